"""A step of an encoder and a language model in one pipeline: by which split, in which order, which samples where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from assay.record.errors import BadInput
from assay.sim.encoders import Vision
from assay.sim.models import Model
from assay.training.engine.cluster import Cluster, usable
from assay.training.engine.compound import Section, joined, joined_ends, levelled, peak, pipeline, summed
from assay.training.engine.costs import RECOMPUTE
from assay.training.engine.schedules import B, F, Interleaved, OneFOneB
from assay.training.entrain.deals import Deal
from assay.training.interface import Floats, Ints, Layout, Schedule
from assay.workloads.multimodal import Samples


@dataclass(frozen=True)
class Setup:
    """A job: machines, models, and how a batch goes through them.

    `buffer`: image tokens that may be put off at one time in a copy, in microbatches of mean size.
    """

    cluster: Cluster
    sees: Vision
    speaks: Model
    copies: int = 4
    tp: int = 2
    stages: int = 8
    m: int = 32  # microbatches a copy
    mbs: int = 4
    buffer: float = 2.0

    def __post_init__(self) -> None:
        if self.copies * self.tp * self.stages != self.cluster.ranks:
            cut = f"{self.copies} copies of {self.stages} stages, tensor parallelism {self.tp}"
            raise BadInput(f"{cut}: {self.copies * self.tp * self.stages} ranks, the cluster has {self.cluster.ranks}")
        if self.stages < 2:
            raise BadInput(f"{self.stages} stages: an encoder and a language model need at least 2")

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.copies * self.m * self.mbs

    def splits(self) -> list[int]:
        """Stages that the encoder may get."""
        few, most = self.stages - self.speaks.layers, self.sees.shape.layers
        return [n for n in range(1, self.stages) if few <= n <= most]


@dataclass(frozen=True)
class Ahead(OneFOneB):
    """1F1B whose first `encoders` stages, which hold the encoder, run `ahead` forward passes more before the first
    backward pass: eager forward.

    >>> "".join("FB"[what] + str(mb) + " " for what, _, mb, _ in Ahead(encoders=1, ahead=1).slots(0, 2, 4))
    'F0 F1 F2 B0 F3 B1 B2 B3 '
    """

    encoders: int = 0
    ahead: int = 0

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        warm = min(m, pp - stage - 1 + (self.ahead if stage < self.encoders else 0))
        rows = [(F, 0, i, 0) for i in range(warm)]
        for i in range(m - warm):
            rows += [(F, 0, warm + i, 0), (B, 0, i, 0)]
        return np.array(rows + [(B, 0, i, 0) for i in range(m - warm, m)], np.int64)


def sizes(setup: Setup, samples: Samples) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each sample: patches and pairs of them that the encoder sees, tokens and pairs of the language model."""
    patches, tokens = (setup.sees.merge * samples.image).astype(float), samples.tokens.astype(float)
    return patches, patches**2, tokens, tokens**2 / 2


@lru_cache(maxsize=1024)
def sections(setup: Setup, split: int, recompute: str, patches: int, tokens: int) -> tuple[Section, Section]:
    """Both models, the encoder on `split` stages (0: on all of them, as the language model), layers levelled for
    microbatches of this size."""
    sees = Section(
        setup.sees.shape, setup.cluster, Layout(tp=setup.tp, pp=split or setup.stages, dp=setup.copies), recompute,
        causal=False,
    )  # fmt: skip
    speaks = Section(
        setup.speaks, setup.cluster, Layout(tp=setup.tp, pp=setup.stages - split, dp=setup.copies), recompute
    )
    each = max(1, patches // setup.mbs), max(1, tokens // setup.mbs)  # of a sample
    return (
        levelled(sees, max(patches, 1.0), setup.mbs * each[0] ** 2),
        levelled(speaks, max(tokens, 1.0), setup.mbs * each[1] ** 2 / 2),
    )


def nominal(setup: Setup, samples: Samples) -> tuple[int, int]:
    """Patches and tokens of a microbatch in the mean, roughly: what layers are levelled for."""
    patches, _, tokens, _ = sizes(setup, samples)
    return tuple(int(256 * round(max(1.0, setup.mbs * each.mean() / 256))) for each in (patches, tokens))  # type: ignore[return-value]


def works(setup: Setup, samples: Samples) -> tuple[Floats, Floats]:
    """Seconds that each sample adds to the encoder and to the language model, over all their stages."""
    usual = nominal(setup, samples)
    sees, speaks = sections(setup, setup.splits()[0], "none", *usual)
    patches, _, tokens, _ = sizes(setup, samples)
    return sees.work(patches, usual[0]), speaks.work(tokens, usual[1])


# -------------------------------------------------------------------------------------------------- the split


def slowest(setup: Setup, means: Sequence[Floats], usual: tuple[int, int]) -> Floats:
    """Seconds of the slowest stage, [splits, draws], for mean samples (`sizes`) of some draws."""
    found = []
    for split in setup.splits():
        sees, speaks = sections(setup, split, "none", *usual)
        patches, patch_pairs, tokens, pairs = (setup.mbs * np.asarray(mean, float) for mean in means)
        both = joined(sees.passes(patches, patch_pairs), speaks.passes(tokens, pairs))
        found.append((both.forward + both.backward).max(axis=0))
    return np.array(found)


def split_of(setup: Setup, profile: Samples) -> int:
    """The encoder's stages with which the slowest stage is least, for the mean of the profiled samples."""
    means = [np.array([each.mean()]) for each in sizes(setup, profile)]
    return setup.splits()[int(slowest(setup, means, nominal(setup, profile))[:, 0].argmin())]


def splits_of_draws(setup: Setup, samples: Samples, size: int) -> Ints:
    """The split for each group of `size` samples in a row."""
    draws = len(samples) // size
    means = [each[: draws * size].reshape(draws, size).mean(axis=1) for each in sizes(setup, samples)]
    at = slowest(setup, means, nominal(setup, samples)).argmin(axis=0)
    return np.asarray(np.array(setup.splits(), np.int64)[at])


# -------------------------------------------------------------------------------------------------- the step


@dataclass(frozen=True)
class Step:
    """What a step comes to."""

    seconds: float
    split: int  # stages of the encoder; 0: it lies on all of them
    recompute: str
    ahead: int
    bubble: float
    memory: float  # bytes of the fullest rank
    sight: Floats  # forward seconds of the encoder, [copies, m]
    words: Floats  # and of the language model
    deal: Deal


def step(
    setup: Setup, samples: Samples, deal: Deal, split: int, recompute: str = "none", ahead: int = 0,
    halves: bool = True,
) -> Step:  # fmt: skip
    """One step. `halves`: the encoder's backward pass runs for the samples whose language work is done; without it a
    microbatch waits until all of its are."""
    return steps(setup, samples, deal, split, recompute, (ahead,), halves)[0]


def steps(
    setup: Setup, samples: Samples, deal: Deal, split: int, recompute: str, ahead: Sequence[int], halves: bool = True
) -> list[Step]:
    """The same for encoders that run more or less ahead."""
    sees, speaks = sections(setup, split, recompute, *nominal(setup, samples))
    patches, patch_pairs, tokens, pairs = sizes(setup, samples)

    def add(values: Floats, places: Ints) -> Floats:
        return summed(values, places, setup.copies, setup.m)

    back = deal.language if halves else _last(deal, setup)
    there = sees.passes(add(patches, deal.encoder), add(patch_pairs, deal.encoder))
    behind = sees.passes(add(patches, back), add(patch_pairs, back))
    says = speaks.passes(add(tokens, deal.language), add(pairs, deal.language))
    both = joined(replace(there, inputs=behind.inputs, weights=behind.weights), says)
    freed, ends = joined(behind, says).kept, joined_ends(sees, speaks)
    found = []
    for more in ahead:
        order: Schedule = Ahead(encoders=split, ahead=more) if split else Interleaved(2)
        solved, held = pipeline(order, both, ends), peak(order, both.kept, freed)
        parts = order.chunks, setup.stages
        state = np.concatenate([sees.state(), speaks.state()]).reshape(parts).sum(axis=0)
        memory = (state + both.passing.reshape(parts).max(axis=0))[:, None] + held
        found.append(
            Step(solved.step, split, recompute, more, solved.bubble, float(memory.max()),
                 there.forward.sum(axis=0), says.forward.sum(axis=0), deal)
        )  # fmt: skip
    return found


def _last(deal: Deal, setup: Setup) -> Ints:
    """Where each sample's encoder runs backward if its microbatch does so as a whole: where the last of it is done."""
    last = np.zeros((setup.copies, setup.m), np.int64)
    np.maximum.at(last, (deal.encoder[:, 0], deal.encoder[:, 1]), deal.language[:, 1])
    return np.column_stack([deal.encoder[:, 0], last[deal.encoder[:, 0], deal.encoder[:, 1]]])


def fits(setup: Setup, found: Step) -> bool:
    """Whether the fullest rank has the memory."""
    return found.memory <= usable(setup.cluster.device)


def fastest(
    setup: Setup, samples: Samples, deals: Iterable[Deal], splits: Iterable[int], ahead: Sequence[int] = (0,),
    halves: bool = True,
) -> Step | None:  # fmt: skip
    """The fastest that fits, recomputing no more than needed; none where nothing fits."""
    best: Step | None = None
    for deal, split in product(list(deals), list(splits)):
        left = list(ahead)
        for recompute in RECOMPUTE:
            for found in steps(setup, samples, deal, split, recompute, left, halves) if left else ():
                if fits(setup, found):
                    best = found if best is None or found.seconds < best.seconds else best
                    left.remove(found.ahead)
    return best
