"""A step of an encoder and a language model: the encoder on every rank of the pipeline, or on stages as layers are.

Two families. *Multiplexed*: every rank holds the encoder beside its stage of the language model; a microbatch's images
are shared out over all ranks of the copy, and a stage's order has encoder slots among its forward and backward passes.
*In a row*: stages hold so many layers of the encoder and so many of the language model, one after the other; with the
encoder all on the first stage, on stages of its own, or cut by equal time, this is Megatron, disaggregation, or what an
automatic parallelizer finds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from assay.sim.dag import Dag
from assay.sim.encoders import Vision
from assay.sim.models import Model
from assay.sim.packing import lpt
from assay.training.engine.cluster import ClosedForms, Cluster, usable
from assay.training.engine.compound import Ends, Passes, Section, peak, pipeline, summed
from assay.training.engine.costs import parts
from assay.training.engine.schedules import B, F, OneFOneB
from assay.training.interface import Floats, Ints, Layout
from assay.training.omni.encoding import makespans
from assay.workloads.multimodal import Samples

EXCHANGES = 4  # all-to-alls of a layer whose sequence and heads change places: queries, keys, values, and back
GROUP = 8  # ranks that share a long image, within a node
LEAD = 1  # slots by which an encoder's forward pass is early


@dataclass(frozen=True)
class Setup:
    """A job: machines, both models, tokens of a sequence, sequences of a step."""

    name: str
    cluster: Cluster
    sees: Vision
    speaks: Model
    seq: int
    batch: int


@dataclass(frozen=True)
class Cut:
    """How it is laid out: tensor parallelism and stages of the language model, recomputation of both."""

    tp: int
    pp: int
    recompute: str = "selective"
    seeing: str = "selective"  # recomputation of the encoder
    zero: int = 1  # of a multiplexed encoder: 1 whole on every rank, 3 sharded over a node
    layers: tuple[int, ...] = ()  # in a row: encoder layers of each stage
    words: tuple[int, ...] = ()  # and of the language model


@dataclass(frozen=True)
class Outcome:
    """What a step comes to."""

    seconds: float
    memory: float  # bytes of the fullest rank
    mfu: float
    cut: float = 0.0  # share of images that a group of ranks shares

    def fits(self, setup: Setup) -> bool:
        """Whether the fullest rank has the memory."""
        return self.memory <= usable(setup.cluster.device)


@dataclass(frozen=True)
class Dealt:
    """Samples packed into the sequences of a step: the copy and microbatch of each."""

    samples: Samples
    places: Ints
    copies: int
    m: int

    def add(self, values: Floats) -> Floats:
        """Values of samples over microbatches, [copies, m]."""
        return summed(values, self.places, self.copies, self.m)


def dealt(setup: Setup, samples: Samples, copies: int, balanced: bool) -> Dealt:
    """Sequences filled in the order drawn; balanced, images are spread over them longest first and texts fill up.

    Reordering stays within the step: the same samples, each once.
    """
    m = setup.batch // copies
    bins = copies * m
    if not balanced:
        at = np.minimum((samples.tokens.cumsum() - 1) // setup.seq, bins - 1)
    else:
        cost = (samples.image * setup.sees.merge).astype(float) ** 1.5  # between tokens and pairs of them
        at = lpt(cost, bins)
        texts = np.flatnonzero(samples.image == 0)
        room = setup.seq - np.bincount(at[samples.image > 0], samples.tokens[samples.image > 0], bins)
        for i in texts[np.argsort(-samples.tokens[texts], kind="stable")]:
            at[i] = int(room.argmax())
            room[at[i]] -= samples.tokens[i]
    return Dealt(samples, np.column_stack([at % copies, at // copies]), copies, m)


def language(setup: Setup, cut: Cut, copies: int) -> Section:
    """The language model's section."""
    layout = Layout(tp=cut.tp, pp=cut.pp, dp=copies)
    return Section(setup.speaks, setup.cluster, layout, cut.recompute, counts=cut.words)


def _useful(setup: Setup, deal: Dealt) -> float:
    """FLOPs of a step that somebody has to compute."""
    patches, tokens = deal.samples.image * float(setup.sees.merge), deal.samples.tokens.astype(float)
    eye = Section(setup.sees.shape, setup.cluster, Layout(), causal=False)
    mouth = Section(setup.speaks, setup.cluster, Layout())
    return eye.flops(patches.sum(), (patches**2).sum()) + mouth.flops(tokens.sum(), (tokens**2).sum() / 2)


def _mfu(setup: Setup, deal: Dealt, seconds: float) -> float:
    peak_rate = setup.cluster.ranks * setup.cluster.device.flops(setup.cluster.precision.dtype)
    return float(_useful(setup, deal) / (seconds * peak_rate))


# ------------------------------------------------------------------------------------------------ in a row


def in_a_row(setup: Setup, cut: Cut, samples: Samples, balanced: bool = False) -> Outcome:
    """Stages with `cut.layers` of the encoder and `cut.words` of the language model, 1F1B."""
    copies = setup.cluster.ranks // (cut.tp * cut.pp)
    deal = dealt(setup, samples, copies, balanced)
    tokens, patches = deal.samples.tokens.astype(float), (deal.samples.image * setup.sees.merge).astype(float)
    sees, speaks = _rows(setup, cut, copies)
    eye = sees.passes(deal.add(patches), deal.add(patches**2))
    mouth = speaks.passes(deal.add(tokens), deal.add(tokens**2 / 2))
    both = Passes(*(_placed(cut, getattr(eye, field), getattr(mouth, field)) for field in Passes.__dataclass_fields__))
    both.sent[_held(cut.words)] = mouth.sent  # what leaves a stage is its last layer's
    ends, more = sees.ends(), speaks.ends()
    last = Ends(*(_placed(cut, getattr(ends, field), getattr(more, field)) for field in Ends.__dataclass_fields__))
    solved = pipeline(OneFOneB(), both, last)
    state = _placed(cut, sees.state(), speaks.state())
    memory = (state + both.passing)[:, None] + peak(OneFOneB(), both.kept)
    return Outcome(solved.step, float(memory.max()), _mfu(setup, deal, solved.step))


@lru_cache(maxsize=256)
def _rows(setup: Setup, cut: Cut, copies: int) -> tuple[Section, Section]:
    sees = Section(
        setup.sees.shape, setup.cluster, Layout(tp=cut.tp, pp=len(_held(cut.layers)), dp=copies), cut.seeing,
        causal=False, counts=tuple(n for n in cut.layers if n),
    )  # fmt: skip
    speaks = language(setup, replace(cut, pp=len(_held(cut.words)), words=tuple(n for n in cut.words if n)), copies)
    return sees, speaks


def _held(layers: tuple[int, ...]) -> list[int]:
    """Stages that have any."""
    return [stage for stage, count in enumerate(layers) if count]


def _placed(cut: Cut, eye: Floats, mouth: Floats) -> Floats:
    """Rows of both models' stages added up over all stages."""
    found = np.zeros((cut.pp, *mouth.shape[1:]))
    found[_held(cut.layers)] += eye
    found[_held(cut.words)] += mouth
    return found


# ---------------------------------------------------------------------------------------------- multiplexed


def multiplexed(
    setup: Setup, cut: Cut, samples: Samples, *, balanced: bool = True, how: str = "mixed", on_demand: bool = True
) -> Outcome:
    """The encoder on every rank; its passes where they are needed, or (not `on_demand`) all first and all last."""
    copies = setup.cluster.ranks // (cut.tp * cut.pp)
    deal = dealt(setup, samples, copies, balanced)
    found = encoded(setup, cut, deal, balanced, how)
    tokens, speaks = deal.samples.tokens.astype(float), language(setup, cut, copies)
    mouth = speaks.passes(deal.add(tokens), deal.add(tokens**2 / 2))
    eye, orders, move = _whole(setup, cut, copies), slots(cut.pp, deal.m, on_demand), reshard(setup, cut, deal)
    last = max(played(on_demand, found.forward[c], found.backward[c], mouth, move[c], c) for c in range(copies))
    seconds = last + _tail(speaks) + _tail(eye)
    memory = max(_fullest(orders, found.kept[c], mouth.kept[:, c], mouth.passing) for c in range(copies))
    memory += float(speaks.state().max() + eye.state().max()) + _passing(setup, cut, deal)
    return Outcome(seconds, memory, _mfu(setup, deal, seconds), found.cut)


def _tail(section: Section) -> float:
    """Seconds of gradients, update and weights, none of it hidden behind passes."""
    ends = section.ends()
    return float((ends.reduce + ends.update + ends.gather).max())


@lru_cache(maxsize=64)
def _whole(setup: Setup, cut: Cut, copies: int) -> Section:
    """The encoder on one rank; data-parallel over all of them, or sharded over a node."""
    dp = min(GROUP, setup.cluster.ranks) if cut.zero == 3 else setup.cluster.ranks
    return Section(setup.sees.shape, setup.cluster, Layout(dp=dp), cut.seeing, zero=cut.zero, causal=False)


@dataclass(frozen=True)
class Encoded:
    """Of each microbatch, [copies, m]: seconds of its images on the ranks of its copy, and bytes that the fullest of
    them keeps; and the share of all images that are cut over a group."""

    forward: Floats
    backward: Floats
    kept: Floats
    cut: float


def encoded(setup: Setup, cut: Cut, deal: Dealt, balanced: bool, how: str) -> Encoded:
    """What it takes to encode every microbatch's images on all ranks of its copy."""
    eye, ranks = _whole(setup, cut, deal.copies), cut.tp * cut.pp
    shape, bins = (deal.copies, deal.m), deal.copies * deal.m
    images = deal.samples.image > 0
    patches = deal.samples.image[images] * float(setup.sees.merge)
    if not len(patches):
        return Encoded(np.zeros(shape), np.zeros(shape), np.zeros(shape), 0.0)
    usual = float(patches.mean())
    alone = eye.passes(np.append(patches, 0.0) + usual, np.append(patches**2, 0.0))  # each beside one of mean size
    group = min(GROUP, ranks)
    nbytes = patches / group * setup.sees.shape.hidden * setup.cluster.precision.item
    exchange = EXCHANGES * setup.sees.shape.layers * ClosedForms(setup.cluster).of_size("all_to_all", group, 1, nbytes)
    where = deal.places[images, 0] * deal.m + deal.places[images, 1]
    start = eye.passes(np.ones(1), np.zeros(1))  # launches, and weights on their way where they are sharded
    there = np.bincount(where, minlength=bins) > 0

    def dealt_out(seconds: Floats) -> tuple[Floats, Floats, Ints]:
        whole = seconds[:-1] - seconds[-1]
        times, cuts = makespans(whole, whole / group + exchange, where, bins, ranks, group, balanced, how)
        return times, np.bincount(where, whole, bins).astype(float), cuts

    forward, total, cuts = dealt_out(alone.forward[0])
    backward, _, _ = dealt_out(alone.backward[0])
    # The fullest rank keeps as many times the mean as it works.
    uneven = np.maximum(1.0, forward * ranks / np.maximum(total, 1e-30))
    kept = float(alone.kept[0, -1] / usual) * np.bincount(where, patches, bins) / ranks * uneven
    return Encoded(
        (forward + there * float(start.forward[0, 0])).reshape(shape),
        (backward + there * float(start.backward[0, 0])).reshape(shape), kept.reshape(shape),
        float(cuts.sum() / len(patches)),
    )  # fmt: skip


def _passing(setup: Setup, cut: Cut, deal: Dealt) -> float:
    """Bytes while the longest image's layer is computed again, cut over a group."""
    longest = float(deal.samples.image.max()) * setup.sees.merge / min(GROUP, cut.tp * cut.pp)
    eye = _whole(setup, cut, deal.copies)
    return float(eye.passes(np.array([max(longest, 1.0)]), np.array([longest**2])).passing[0])


def reshard(setup: Setup, cut: Cut, deal: Dealt) -> Floats:
    """Seconds to bring embeddings from the ranks that made them to the first stage, [copies, m]: the cheaper of sends
    from everyone and of a reduction over a zeroed buffer (adaptive)."""
    ranks = cut.tp * cut.pp
    tokens = deal.add(deal.samples.image.astype(float))
    nbytes = tokens * setup.speaks.hidden * setup.cluster.precision.item
    forms, nodes = ClosedForms(setup.cluster), max(1, ranks // setup.cluster.per_node)
    direct = forms.of_size("all_to_all", ranks, nodes, nbytes / cut.tp) if ranks > 1 else 0 * nbytes
    reduced = forms.of_size("reduce_scatter", ranks, nodes, nbytes) if ranks > 1 else 0 * nbytes
    return np.where(tokens > 0, np.minimum(direct, reduced), 0.0)


EF, EB = 2, 3  # beside F and B


def slots(pp: int, m: int, on_demand: bool = True) -> list[Ints]:
    """Every stage's order, rows (what, microbatch): 1F1B with the encoder's passes among it.

    On demand, a stage that is s behind the first encodes microbatch k + s + 1 before its own k-th forward pass, and
    runs the images of k backward after its backward pass of k + s: where the first stage needs and frees them.

    >>> "".join(("F", "B", "E", "e")[what] + str(mb) + " " for what, mb in slots(2, 3)[1])
    'E0 E1 E2 F0 B0 F1 B1 e0 F2 B2 e1 e2 '
    """
    found = []
    for stage in range(pp):
        rows: list[tuple[int, int]] = [] if on_demand else [(EF, k) for k in range(m)]
        encoded, freed = 0, 0
        for what, _, k, _ in OneFOneB().slots(stage, pp, m).tolist():
            if what == F and on_demand:
                while encoded < min(m, k + stage + LEAD + 1):
                    rows.append((EF, encoded))
                    encoded += 1
            rows.append((what, k))
            if what == B and on_demand:
                while freed < k - stage + 1:
                    rows.append((EB, freed))
                    freed += 1
        rows += [(EB, k) for k in range(freed, m)]
        found.append(np.array(rows, np.int64))
    return found


@lru_cache(maxsize=64)
def graph(pp: int, m: int, on_demand: bool) -> tuple[Dag, Ints]:
    """Everything that a copy does, and what it waits for; rows (what, stage, microbatch), 4 and 5 being the ways of
    embeddings and of their gradients. Edges between stages go over transfers, which are 6 and 7."""
    rows: list[tuple[int, int, int]] = []
    edges: list[tuple[int, int]] = []
    at: dict[tuple[int, int, int], int] = {}
    for stage, order in enumerate(slots(pp, m, on_demand)):
        for place, (what, k) in enumerate(order.tolist()):
            at[what, stage, k] = len(rows)
            if place:
                edges.append((len(rows) - 1, len(rows)))
            rows.append((what, stage, k))
    for k in range(m):
        for what, before, after in ((4, EF, F), (5, B, EB)):
            node = len(rows)
            rows.append((what, 0, k))
            edges += [(at[before, s, k], node) for s in range(pp if what == 4 else 1)]
            edges += [(node, at[after, s, k]) for s in range(1 if what == 4 else pp)]
        for what, send, ends in ((F, 6, range(pp - 1)), (B, 7, range(pp - 1, 0, -1))):
            for s in ends:
                to = s + 1 if what == F else s - 1
                edges += [(at[what, s, k], len(rows)), (len(rows), at[what, to, k])]
                rows.append((send, min(s, to), k))
    return Dag.of(len(rows), edges), np.array(rows, np.int64)


def played(on_demand: bool, forward: Floats, backward: Floats, mouth: Passes, move: Floats, copy: int) -> float:
    """When a copy's last pass ends."""
    pp, m = mouth.forward.shape[0], mouth.forward.shape[2]
    dag, rows = graph(pp, m, on_demand)
    what, stage, k = rows.T
    tables = (mouth.forward[:, copy], mouth.backward[:, copy])
    choices = [
        tables[0][stage, k], tables[1][stage, k], forward[k], backward[k], move[k], move[k],
        mouth.sent[stage, copy, k], mouth.sent[stage, copy, k],
    ]  # fmt: skip
    return float(dag.ends(np.choose(what, choices)).max())


def _fullest(orders: list[Ints], seen: Floats, kept: Floats, passing: Floats) -> float:
    """Bytes of activations of the fullest stage: both models' in flight."""
    found = 0.0
    for stage, order in enumerate(orders):
        what, k = order.T
        own = np.where(what == F, kept[stage, k], 0) - np.where(what == B, kept[stage, k], 0)
        eye = np.where(what == EF, seen[k], 0) - np.where(what == EB, seen[k], 0)
        found = max(found, float((own + eye).cumsum().max()) + float(passing[stage]))
    return found


def even_rows(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of stages, alike."""
    return tuple(parts(layers, stages))
