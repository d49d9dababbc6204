"""How fast an encoder and a language model train: one layout for both, grids of their own on the same GPUs, or apart.

One layout: the encoder lies on the first stage with the language model's tensor and data parallelism, and the first
stage has fewer layers of the language model, so that it is not late. An image is not cut over context parallelism:
every rank of such a group computes all images, as Megatron's do; a rival of our own cuts them there, too. Grids of
their own on the same GPUs: all encoder passes of a step, the language model's pipeline, all encoder passes back; the
encoder's activations wait that long. Apart: the encoder's ranks are the first stages of one pipeline. Every kind is
searched with the same options: tensor, context, pipeline and data parallelism, sequences of a microbatch,
recomputation; what does not fit into memory is no answer. The search takes equal sequences and a closed form of 1F1B;
its best few are then solved on the engine's graph with the images that were drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from assay.sim.encoders import Vision
from assay.sim.models import Model
from assay.sim.random import stream
from assay.training.engine.cluster import Cluster, usable
from assay.training.engine.compound import Ends, Passes, Section, joined, joined_ends, peak, pipeline
from assay.training.engine.costs import RECOMPUTE, parts
from assay.training.engine.rough import Unit, filled, held, unit
from assay.training.engine.schedules import GPipe, OneFOneB
from assay.training.engine.search import divisors
from assay.training.interface import Floats, Layout

TENSOR = (1, 2, 4, 8)
CONTEXT = (1, 2, 4, 8, 16)
MICRO = (1, 2, 4)
MOST_STAGES = 16
WHOLE = "whole"  # of an encoder that shares GPUs: nothing is kept but images, all of it is computed again
CHUNK = 16  # images that pass through an encoder together
KINDS = ("one layout", "images cut", "colocated", "separate")
TOP = 6  # of the search's best that are solved


@dataclass(frozen=True)
class Work:
    """What is trained: packed sequences of `context` tokens, a share of them of images of `patches` patches."""

    eye: Vision
    llm: Model
    context: int
    batch: int
    share: float = 0.5
    patches: int = 576

    @property
    def most(self) -> int:
        """Images that a sequence has room for."""
        return max(1, self.context * self.eye.merge // self.patches)

    def images(self, seed: int | None = None) -> Floats:
        """Images of every sequence, drawn; without a seed their mean."""
        if seed is None:
            return np.full(self.batch, self.share * self.most)
        random = stream(seed, "hetpar", "images", self.context)
        return random.binomial(self.most, self.share, self.batch).astype(float)


@dataclass(frozen=True)
class Choice:
    """A way to lay out both, of one of KINDS; `first`: layers of the language model on the first stage, 0: alike."""

    kind: str
    llm: Layout
    encoder: Layout
    mbs: int
    recompute: str
    encoder_recompute: str
    first: int = 0

    @property
    def ranks(self) -> int:
        """GPUs."""
        return self.llm.ranks + (self.encoder.ranks if self.kind == "separate" else 0)

    @property
    def name(self) -> str:
        """As one would write it."""
        head = self.llm.name if self.kind in KINDS[:2] else f"encoder {self.encoder.name}, llm {self.llm.name}"
        return f"{head}, mbs{self.mbs}, recompute {self.encoder_recompute} and {self.recompute}"


@dataclass(frozen=True)
class Pace:
    """What a step of a choice comes to."""

    choice: Choice
    step: float
    memory: float
    fits: bool
    flops: float  # a second and GPU
    tokens: float  # a second
    encoder: float  # seconds a step in which the busiest of the encoder's ranks works on images


def measure(work: Work, on: Cluster, choice: Choice, images: Floats) -> Pace:
    """A step of one choice on these images."""
    how = {"colocated": _colocated, "separate": _separate}.get(choice.kind, _one_layout)
    step, memory, encoder = how(work, on, choice, images)
    return _pace(work, on, choice, images, step, memory, encoder)


def _pace(work: Work, on: Cluster, choice: Choice, images: Floats, step: float, memory: float, encoder: float) -> Pace:
    text = work.batch * work.context
    llm, sees = _llm(work, on, choice), _eye(work, on, choice)
    patches = float(images.sum()) * work.patches
    flops = llm.flops(text, text * work.context / 2) + sees.flops(patches, patches * work.patches)
    fits = memory <= usable(on.device)
    return Pace(choice, step, memory, fits, flops / (step * choice.ranks), text / step, encoder)


def _llm(work: Work, on: Cluster, choice: Choice) -> Section:
    counts = _counts(work.llm.layers, choice.llm.pp, choice.first)
    return Section(work.llm, on, choice.llm, choice.recompute, counts=counts)


def _eye(work: Work, on: Cluster, choice: Choice) -> Section:
    again = "none" if choice.encoder_recompute == WHOLE else choice.encoder_recompute
    return Section(work.eye.shape, on, choice.encoder, again, causal=False)


def _counts(layers: int, stages: int, first: int) -> tuple[int, ...]:
    if not first or stages == 1:
        return tuple(parts(layers, stages))
    rest = layers - first
    each, over = divmod(rest, stages - 1)
    return first, *(each + (k < over) for k in range(stages - 1))


def _texts(work: Work, section: Section, mbs: int, copies: int) -> Passes:
    """The language model's passes: microbatches that are alike."""
    m = work.batch // (section.layout.dp * mbs)
    tokens = np.full((copies, m), float(mbs * work.context))
    return section.passes(tokens, tokens * work.context / 2)


def _dealt(work: Work, images: Floats, dp: int, mbs: int) -> Floats:
    """Images of every copy's microbatches [copies, microbatches]; one column where all sequences are alike."""
    m = work.batch // (dp * mbs)
    table = images.reshape(dp, m, mbs).sum(axis=2)
    return np.asarray(table[:1] if (images == images[0]).all() else table)


def _seen(work: Work, section: Section, images: Floats) -> Passes:
    return section.passes(images * work.patches, images * float(work.patches) ** 2)


def _added(first: Passes, rest: Passes) -> Passes:
    """An encoder of one stage together with the first stage of the language model."""
    fields = {}
    for name in ("forward", "inputs", "weights", "kept", "passing"):
        table = getattr(rest, name).copy()
        table[0] = (
            np.maximum(table[0], getattr(first, name)[0]) if name == "passing" else table[0] + getattr(first, name)[0]
        )
        fields[name] = table
    return replace(rest, **fields)


def _fullest(section: Section, passes: Passes, more: Floats | float = 0.0) -> float:
    """Bytes of the fullest rank of a pipeline."""
    held = section.state() + more + passes.passing
    return float((held[:, None] + peak(OneFOneB(), passes.kept)).max())


def _one_layout(work: Work, on: Cluster, choice: Choice, images: Floats) -> tuple[float, float, float]:
    llm, eye = _llm(work, on, choice), _eye(work, on, choice)
    pictures = _dealt(work, images, choice.llm.dp, choice.mbs)
    seen, text = _seen(work, eye, pictures), _texts(work, llm, choice.mbs, len(pictures))
    both, ends, own = _added(seen, text), llm.ends(), eye.ends()
    ends = Ends(*(np.r_[getattr(ends, name)[0] + getattr(own, name)[0], getattr(ends, name)[1:]]
                  for name in ("gather", "reduce", "update", "layers")))  # fmt: skip
    more = np.zeros(choice.llm.pp)
    more[0] = eye.state()[0]
    solved = pipeline(OneFOneB(), both, ends)
    return solved.step, _fullest(llm, both, more), float((seen.forward + seen.backward).sum(axis=(0, 2)).max())


def _colocated(work: Work, on: Cluster, choice: Choice, images: Floats) -> tuple[float, float, float]:
    llm, eye = _llm(work, on, choice), _eye(work, on, choice)
    text = _texts(work, llm, choice.mbs, 1)
    own = int(np.ceil(images.sum() / choice.encoder.dp))  # of the busiest rank, dealt one by one over all of them
    chunks = np.full(-(-own // CHUNK), float(CHUNK))
    chunks[-1] = own - CHUNK * (len(chunks) - 1)
    seen = _seen(work, eye, chunks[None])
    held = seen.kept.sum()
    if choice.encoder_recompute == WHOLE:  # a chunk's forward pass runs again before it goes back
        held, seen = seen.kept.max(), replace(seen, inputs=seen.inputs + seen.forward)
    kept = float(held) + float(eye.state()[0]) + float(seen.passing[0])
    phases = pipeline(GPipe(), seen, eye.ends()).step
    cross = crossing(work, on, images.sum() / choice.ranks)
    step = phases + 2 * cross + pipeline(OneFOneB(), text, llm.ends()).step
    return step, _fullest(llm, text, kept), float((seen.forward + seen.backward).sum())


def crossing(work: Work, on: Cluster, images: float) -> float:
    """Seconds that a rank's share of some images takes over the boundary, as if none of it were there already."""
    nbytes = images * work.patches / work.eye.merge * work.llm.hidden * on.precision.item
    link = (on.outside if on.nodes > 1 else on.inside).derated(on.efficiency.links)
    return float(link.seconds(nbytes))


def _separate(work: Work, on: Cluster, choice: Choice, images: Floats) -> tuple[float, float, float]:
    llm, eye = _llm(work, on, choice), _eye(work, on, choice)
    pictures = _dealt(work, images, choice.llm.dp, choice.mbs)
    few, many = choice.encoder.dp, choice.llm.dp
    if few >= many:  # fan-in: several copies share a microbatch's images
        each = np.ceil(pictures / (few // many))
    else:  # fan-out: a copy sees the images of several, and none goes on before all are seen
        each = pictures * (many // few) if len(pictures) == 1 else np.repeat(
            pictures.reshape(few, many // few, -1).sum(axis=1), many // few, axis=0)  # fmt: skip
    seen, text = _seen(work, eye, each), _texts(work, llm, choice.mbs, len(pictures))
    link = (on.outside if on.nodes > 1 else on.inside).derated(on.efficiency.links)
    rows = pictures * work.patches / work.eye.merge / (choice.llm.tp * choice.llm.cp)
    sent = seen.sent.copy()
    sent[-1] = np.where(pictures > 0, link.seconds(rows * work.llm.hidden * on.precision.item), 0.0)
    both = joined(replace(seen, sent=sent), text)
    solved = pipeline(OneFOneB(), both, joined_ends(eye, llm))
    held = np.concatenate([eye.state(), llm.state()]) + both.passing
    memory = float((held[:, None] + peak(OneFOneB(), both.kept)).max())
    return solved.step, memory, float((seen.forward + seen.backward).sum(axis=(0, 2)).max()) / choice.encoder.pp


# -------------------------------------------------------------------------------------------------- search


def cuts(work: Work, ranks: int) -> Iterator[tuple[Layout, int, str]]:
    """Ways to lay the language model over so many ranks: layout, sequences of a microbatch, recomputation."""
    shape = work.llm
    for tp, cp in product(TENSOR, CONTEXT):
        if ranks % (tp * cp) or tp * cp > 64 or shape.heads % tp or work.context // cp < 2048:
            continue
        for pp in divisors(ranks // (tp * cp), min(MOST_STAGES, shape.layers)):
            dp = ranks // (tp * cp * pp)
            for mbs, recompute in product(MICRO, RECOMPUTE):
                if work.batch % (dp * mbs) == 0 and (mbs == 1 or mbs * work.context / (cp * tp) <= 8192):
                    yield Layout(tp, cp, pp, dp), mbs, recompute


def choices(work: Work, on: Cluster, kind: str, ranks: int) -> Iterator[Choice]:
    """All of a kind on so many GPUs."""
    heads = work.eye.shape.heads
    if kind in KINDS[:2]:
        for (cut, mbs, recompute), again in product(cuts(work, ranks), RECOMPUTE):
            if heads % cut.tp == 0 and (kind == "one layout" or cut.cp > 1):
                whole = Layout(cut.tp, 1, 1, cut.dp * cut.cp)
                eye = whole if kind == "one layout" else Layout(cut.tp, cut.cp, 1, cut.dp)
                yield Choice(kind, cut, eye, mbs, recompute, again)
    elif kind == "colocated":
        for (cut, mbs, recompute), tp, again in product(cuts(work, ranks), TENSOR, (*RECOMPUTE, WHOLE)):
            if heads % tp == 0:
                yield Choice(kind, cut, Layout(tp=tp, dp=ranks // tp), mbs, recompute, again)
    else:
        for away in sizes(work, on, ranks):
            for (cut, mbs, recompute), tp, pp, again in product(cuts(work, ranks - away), TENSOR, (1, 2), RECOMPUTE):
                dp = away // (tp * pp)
                if heads % tp == 0 and away % (tp * pp) == 0 and (dp % cut.dp == 0 or cut.dp % dp == 0):
                    yield Choice(kind, cut, Layout(tp=tp, pp=pp, dp=dp), mbs, recompute, again)


def sizes(work: Work, on: Cluster, ranks: int) -> list[int]:
    """How many of the GPUs an encoder may have: whole nodes, half to twice its share of the FLOPs, and the fewest."""
    patches = work.share * work.most * work.patches
    sees, speaks = (section.flops(n, n * seen) for section, n, seen in (
        (Section(work.eye.shape, on, Layout(), causal=False), patches, work.patches),
        (Section(work.llm, on, Layout()), work.context, work.context / 2),
    ))  # fmt: skip
    share = ranks * sees / (sees + speaks)
    some = range(on.per_node, ranks // 2 + 1, on.per_node)
    return [away for away in some if share / 2 <= away <= 2 * share or away == on.per_node]


@lru_cache(maxsize=8)
def search_of(work: Work, on: Cluster) -> Search:
    """Kept: every kind of layout asks for the same passes of the language model."""
    return Search(work, on)


class Search:
    """Choices of one workload on one cluster by closed forms; what several share is computed once."""

    def __init__(self, work: Work, on: Cluster) -> None:
        self.work, self.on = work, on
        self.texts: dict[tuple[Layout, int, str], Unit] = {}
        self.images: dict[tuple[Layout, str, float], Unit] = {}

    def text(self, one: Choice) -> Unit:
        """A microbatch through the language model."""
        key = one.llm, one.mbs, one.recompute
        if key not in self.texts:
            tokens, plain = float(one.mbs * self.work.context), replace(one, first=0)
            self.texts[key] = unit(_llm(self.work, self.on, plain), tokens, self.work.context / 2)
        found = self.texts[key]
        if not one.first:
            return found
        alike, counts = (_counts(self.work.llm.layers, one.llm.pp, first) for first in (0, one.first))
        more = np.array(counts) - alike  # a layer more or less on a stage is as much as one of a stage's others
        middle = min(1, one.llm.pp - 2)
        return Unit(*(values + more * values[middle] / alike[middle] for values in found))

    def seen(self, one: Choice, images: float) -> Unit:
        """So many images through the encoder."""
        key = one.encoder, one.encoder_recompute, images
        if key not in self.images:
            patches = self.work.patches
            self.images[key] = unit(_eye(self.work, self.on, one), images * patches, float(patches))
        return self.images[key]

    def balanced(self, one: Choice) -> Choice:
        """Fewer layers of the language model on the first stage, so that it takes as long as the others."""
        layers, pp = self.work.llm.layers, one.llm.pp
        layer = self.text(one).took[0] / parts(layers, pp)[0]
        images = self.seen(one, one.mbs * self.work.share * self.work.most).took[0] / layer
        return replace(one, first=int(np.clip(round((layers - (pp - 1) * images) / pp), 1, layers // pp)))

    def rough(self, one: Choice) -> tuple[float, float]:
        """Seconds and bytes of a step."""
        text, work = self.text(one), self.work
        m = work.batch // (one.llm.dp * one.mbs)
        per = work.share * work.most
        if one.kind == "colocated":
            images = work.batch * per / one.encoder.dp
            chunk = self.seen(one, min(float(CHUNK), images))
            times = images / min(float(CHUNK), images)
            again = one.encoder_recompute == WHOLE
            more = (1 if again else times) * chunk.kept[0] + chunk.passing[0] + chunk.state[0]
            phases = times * float(chunk.took[0] + again * chunk.forward[0]) + float(chunk.ends[0])
            return filled(text, m) + phases, held(text, m) + float(more)
        if one.kind == "separate":
            seen = self.seen(one, one.mbs * per * one.llm.dp / one.encoder.dp)
            both = Unit(*map(np.concatenate, zip(seen, text, strict=True)))
            return filled(both, m), held(both, m)
        seen, first = self.seen(one, one.mbs * per), np.zeros(len(text.took))
        first[0] = 1.0
        both = Unit(*(a + first * b[0] for a, b in zip(text, seen, strict=True)))
        return filled(both, m), held(both, m)


@lru_cache(maxsize=256)
def best(work: Work, on: Cluster, kind: str, ranks: int) -> tuple[Choice, ...]:
    """The few that are fastest by closed forms and fit, by what a GPU gets done."""
    search, room = search_of(work, on), usable(on.device)
    found = []
    for one in choices(work, on, kind, ranks):
        some = [one, search.balanced(one)] if kind in KINDS[:2] and one.llm.pp > 1 else [one]
        for choice in some:
            step, memory = search.rough(choice)
            if memory <= room:
                found.append((step * choice.ranks, choice))
    found.sort(key=lambda pair: pair[0])
    return tuple(choice for _, choice in found[:TOP])


def fastest(work: Work, on: Cluster, kind: str, ranks: int, images: Floats) -> Pace | None:
    """Of the best few, the fastest that fits on these very images; None where nothing fits."""
    tried = [measure(work, on, choice, images) for choice in best(work, on, kind, ranks)]
    return max((one for one in tried if one.fits), key=lambda one: one.flops, default=None)
