"""Iterations of a hybrid-parallel job on the engine: packed sequences of drawn lengths, jitter, slow groups.

A microbatch is filled with sequences of lognormal lengths, the last one cut. Every pass takes what the engine says for
its tokens and for those they see, times a jitter. Predictions know none of that: `Profile` fits each stage's times of
some warm-up microbatches and runs the same schedule with what it would expect.

Lengths and jitters are assumed. Iterations are solved many at once, as columns over one graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from assay.sim.models import Model, model
from assay.sim.random import stream
from assay.training.engine.cluster import Cluster, read
from assay.training.engine.compound import Ends, Passes, Section, steps
from assay.training.engine.schedules import OneFOneB
from assay.training.interface import Floats, Layout
from assay.training.resihp.detector import Workload, fit

MEDIAN, SPREAD, SHORTEST = 2048.0, 1.4, 64.0  # of the sequences' lengths
JITTER, STEP_JITTER = 0.015, 0.005  # of a pass and of all passes of an iteration
MOST = 96  # sequences drawn for a microbatch; what is then left of it is one more
AT_ONCE = 50  # iterations


@dataclass(frozen=True)
class Training:
    """A job: the model, its layout, microbatches a replica and tokens a microbatch."""

    name: str = "llama-2-70b"
    cluster: str = "256xa100:ib200"
    layout: Layout = field(default_factory=lambda: Layout(tp=4, pp=16, dp=4))
    microbatches: int = 16
    tokens: int = 16384

    @property
    def shape(self) -> Model:
        """The model."""
        return model(self.name)

    @property
    def on(self) -> Cluster:
        """The machines."""
        return read(self.cluster)

    @property
    def section(self) -> Section:
        """As the engine cuts it: layers alike."""
        return Section(self.shape, self.on, self.layout, recompute="selective")


def lengths(training: Training, count: int, seed: int, *names: str | int) -> Floats:
    """Squared lengths, summed over each microbatch: [replicas, microbatches, iterations]; all have the same tokens."""
    random, whole = stream(seed, "resihp", "lengths", *names), float(training.tokens)
    shape = (training.layout.dp, training.microbatches, count)
    drawn = np.clip(MEDIAN * np.exp(SPREAD * random.standard_normal((*shape, MOST))), SHORTEST, whole)
    ends = np.minimum(np.cumsum(np.floor(drawn), axis=-1), whole)
    ends[..., -1] = whole
    return np.asarray((np.diff(ends, axis=-1, prepend=0.0) ** 2).sum(axis=-1))


def passes(
    training: Training,
    squares: Floats,
    seed: int,
    slow: Floats | None = None,
    *names: str | int,
    jitter: float = JITTER,
) -> Passes:
    """What every pass really takes; `slow` is how many times as long, [stages, replicas, iterations]."""
    random = stream(seed, "resihp", "jitter", *names)
    found = training.section.passes(np.full(squares.shape, float(training.tokens)), squares / 2)
    factor = np.exp(jitter * random.standard_normal(found.forward.shape, np.float32))
    factor *= np.exp(STEP_JITTER * (jitter > 0) * random.standard_normal(squares.shape[-1]))
    if slow is not None:
        factor *= slow[:, :, None, :]
    return Passes(
        found.forward * factor, found.inputs * factor, found.weights * factor, found.kept, found.sent, found.passing
    )


def solved(found: Passes, ends: Ends) -> Floats:
    """Seconds of every replica's pipeline in every iteration, [replicas, iterations]: up to its own gradients.

    A replica that is late is seen on its own clock even where another one has longer sequences just then.
    """
    stages, replicas, m, count = found.forward.shape
    alone = [
        np.moveaxis(each, 2, 1).reshape(stages, 1, m, replicas * count)
        for each in (found.forward, found.inputs, found.weights, found.kept, found.sent)
    ]
    forward, inputs, weights, kept, sent = alone
    one = Passes(forward, inputs, weights, kept, sent, found.passing)
    return steps(OneFOneB(), one, ends).reshape(replicas, count)


def iterations(training: Training, squares: Floats, seed: int, slow: Floats | None = None, *names: str | int) -> Floats:
    """What really happens, [replicas, iterations]."""
    ends, found = training.section.ends(), []
    for first in range(0, squares.shape[-1], AT_ONCE):
        some = slice(first, first + AT_ONCE)
        part = None if slow is None else slow[..., some]
        found.append(solved(passes(training, squares[..., some], seed, part, *names, first), ends))
    return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class Profile:
    """What each stage's microbatches should take, forward and backward; sends and ends as they were profiled."""

    training: Training
    forward: tuple[Workload, ...]
    backward: tuple[Workload, ...]

    @classmethod
    def learned(cls, training: Training, squares: Floats, seed: int) -> Profile:
        """Fitted to every stage's microbatches of these healthy iterations."""
        seen = passes(training, squares, seed, None, "warm-up")
        tokens = np.full(squares.shape, float(training.tokens))
        every = range(training.layout.pp)
        return cls(
            training, tuple(fit(tokens, squares, seen.forward[stage]) for stage in every),
            tuple(fit(tokens, squares, seen.backward[stage]) for stage in every),
        )  # fmt: skip

    def predicted(self, squares: Floats) -> Passes:
        """Of microbatches with these squares."""
        tokens = float(self.training.tokens)
        forward, backward = (
            np.stack([one.seconds(tokens, squares) for one in each]) for each in (self.forward, self.backward)
        )
        section = self.training.section
        sent = np.broadcast_to(section.passes(np.array([tokens]), np.array([tokens]))
                               .sent[..., None, None], forward.shape)  # fmt: skip
        none = np.zeros(len(forward))
        return Passes(forward, backward, np.zeros_like(backward), np.zeros_like(forward), sent, none)

    def iterations(self, squares: Floats) -> Floats:
        """Seconds that replicas should take, [replicas, iterations]: the schedule, run with predicted passes."""
        ends = self.training.section.ends()
        some = [squares[..., first : first + AT_ONCE] for first in range(0, squares.shape[-1], AT_ONCE)]
        return np.concatenate([solved(self.predicted(part), ends) for part in some], axis=1)


def slowed(training: Training, count: int, onset: int, stage: int, replica: int, times: float) -> Floats:
    """One group that takes so many times as long from iteration `onset` on."""
    found = np.ones((training.layout.pp, training.layout.dp, count))
    found[stage, replica, onset:] = times
    return found
