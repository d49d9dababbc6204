"""How fast an encoder and a language model train: one layout for both, grids of their own on the same GPUs, or apart.

One layout: the encoder lies on the first stage with the language model's tensor and data parallelism, and the first
stage has fewer layers of the language model, so that it is not late. An image is not cut over context parallelism: every
rank of such a group computes all images, as Megatron's do; a rival of our own cuts them there, too. Grids of their own
on the same GPUs: all encoder passes of a step, the language model's pipeline, all encoder passes back; the encoder's
activations wait that long. Apart: the encoder's ranks are the first stages of one pipeline. Every kind is searched with
the same options: tensor, context, pipeline and data parallelism, sequences of a microbatch, recomputation; what does
not fit into memory is no answer. The search takes equal sequences and a closed form of 1F1B; its best few are then
solved on the engine's graph with the images that were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from assay.sim.encoders import Vision
from assay.sim.models import Model
from assay.sim.random import stream
from assay.training.engine.cluster import Cluster
from assay.training.engine.compound import Ends, Passes, Section, joined, joined_ends, peak, pipeline
from assay.training.engine.costs import RECOMPUTE, USABLE, parts
from assay.training.engine.schedules import GPipe, OneFOneB
from assay.training.engine.search import divisors
from assay.training.interface import Floats, Layout

TENSOR = (1, 2, 4, 8)
CONTEXT = (1, 2, 4, 8, 16)
MICRO = (1, 2, 4)
MOST_STAGES = 16
CHUNK = 16  # images that pass through an encoder together
KINDS = ("one layout", "images cut", "colocated", "separate")
TOP = 6  # of the search's best that are solved


@dataclass(frozen=True)
class Work:
    """What is trained: packed sequences of `context` tokens, of which a share belongs to images of `patches` patches."""

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
    """A way to lay out both; `kind` is one of KINDS. `first`: layers of the language model on the first stage, 0: alike."""

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


def _pace(
    work: Work, on: Cluster, choice: Choice, images: Floats, step: float, memory: float, encoder: float
) -> Pace:
    text = work.batch * work.context
    llm, sees = _llm(work, on, choice), _eye(work, on, choice)
    patches = float(images.sum()) * work.patches
    flops = llm.flops(text, text * work.context / 2) + sees.flops(patches, patches * work.patches)
    return Pace(choice, step, memory, memory <= USABLE * on.device.mem_bytes, flops / (step * choice.ranks), text / step,
                encoder)  # fmt: skip


def _llm(work: Work, on: Cluster, choice: Choice) -> Section:
    counts = _counts(work.llm.layers, choice.llm.pp, choice.first)
    return Section(work.llm, on, choice.llm, choice.recompute, counts=counts)


def _eye(work: Work, on: Cluster, choice: Choice) -> Section:
    return Section(work.eye.shape, on, choice.encoder, choice.encoder_recompute, causal=False)


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
    return table[:1] if (images == images[0]).all() else table


def _seen(work: Work, section: Section, images: Floats) -> Passes:
    return section.passes(images * work.patches, images * float(work.patches) ** 2)


def _added(first: Passes, rest: Passes) -> Passes:
    """An encoder of one stage together with the first stage of the language model."""
    fields = {}
    for name in ("forward", "inputs", "weights", "kept", "passing"):
        table = getattr(rest, name).copy()
        table[0] = np.maximum(table[0], getattr(first, name)[0]) if name == "passing" else table[0] + getattr(first, name)[0]
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
    kept = float(seen.kept.sum()) + float(eye.state()[0]) + float(seen.passing[0])
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
        if ranks % (tp * cp) or shape.heads % tp or work.context // cp < 2048:
            continue
        for pp in divisors(ranks // (tp * cp), min(MOST_STAGES, shape.layers)):
            dp = ranks // (tp * cp * pp)
            for mbs, recompute in product(MICRO, RECOMPUTE):
                if work.batch % (dp * mbs) == 0 and (mbs == 1 or mbs * work.context / (cp * tp) <= 16384):
                    yield Layout(tp, cp, pp, dp), mbs, recompute


def choices(work: Work, on: Cluster, kind: str, ranks: int) -> Iterator[Choice]:
    """All of a kind on so many GPUs."""
    heads = work.eye.shape.heads
    if kind in KINDS[:2]:
        for (cut, mbs, recompute), again in product(cuts(work, ranks), RECOMPUTE):
            if heads % cut.tp == 0 and (kind == "one layout" or cut.cp > 1):
                eye = Layout(cut.tp, 1, 1, cut.dp * cut.cp) if kind == "one layout" else Layout(cut.tp, cut.cp, 1, cut.dp)
                one = Choice(kind, cut, eye, mbs, recompute, again)
                yield one
                if cut.pp > 1:
                    yield replace(one, first=_balanced(work, on, one))
        return
    if kind == "colocated":
        for (cut, mbs, recompute), tp, again in product(cuts(work, ranks), TENSOR, RECOMPUTE):
            if heads % tp == 0:
                yield Choice(kind, cut, Layout(tp=tp, dp=ranks // tp), mbs, recompute, again)
        return
    for away in sizes(on, ranks):
        for (cut, mbs, recompute), tp, pp, again in product(cuts(work, ranks - away), TENSOR, (1, 2), RECOMPUTE):
            if heads % tp or away % (tp * pp):
                continue
            dp = away // (tp * pp)
            if dp % cut.dp == 0 or cut.dp % dp == 0:
                yield Choice(kind, cut, Layout(tp=tp, pp=pp, dp=dp), mbs, recompute, again)


def sizes(on: Cluster, ranks: int) -> list[int]:
    """How many of the GPUs an encoder may have: whole nodes, up to a half of all."""
    return list(range(on.per_node, ranks // 2 + 1, on.per_node))


def _balanced(work: Work, on: Cluster, choice: Choice) -> int:
    """Layers of the language model on the first stage such that it takes as long as the others, encoder and all."""
    text = _unit(_llm(work, on, choice), float(choice.mbs * work.context), work.context / 2)
    layer = text.took[0] / parts(work.llm.layers, choice.llm.pp)[0]
    first = (work.llm.layers - (choice.llm.pp - 1) * _unit_seen(work, on, choice).took[0] / layer) / choice.llm.pp
    return int(np.clip(round(first), 1, work.llm.layers // choice.llm.pp))


class Unit(NamedTuple):
    """Of one microbatch, every stage's: seconds forward and back, bytes kept and passing; its state; what ends a step."""

    took: Floats
    kept: Floats
    passing: Floats
    state: Floats
    ends: Floats


@lru_cache(maxsize=8192)
def _unit(section: Section, tokens: float, seen: float) -> Unit:
    one = section.passes(np.array([tokens]), np.array([tokens * seen]))
    ends = section.ends()
    exposed = (ends.gather + ends.reduce) / ends.layers + ends.update
    return Unit((one.forward + one.backward)[:, 0], one.kept[:, 0], one.passing, section.state(), exposed)


def _unit_seen(work: Work, on: Cluster, choice: Choice, images: float = math.nan) -> Unit:
    count = work.share * work.most * choice.mbs if math.isnan(images) else images
    return _unit(_eye(work, on, choice), count * work.patches, float(work.patches))


def rough(work: Work, on: Cluster, choice: Choice) -> tuple[float, float]:
    """Seconds and bytes of a step with equal microbatches, by closed forms."""
    text = _unit(_llm(work, on, choice), float(choice.mbs * work.context), work.context / 2)
    m = work.batch // (choice.llm.dp * choice.mbs)
    if choice.kind == "colocated":
        images = work.batch * work.share * work.most / choice.encoder.dp
        chunk = _unit_seen(work, on, choice, min(float(CHUNK), images))
        times = images / min(float(CHUNK), images)
        more = times * chunk.kept[0] + chunk.passing[0] + chunk.state[0]
        return _filled(text, m) + times * float(chunk.took[0] + chunk.ends[0]), _kept(text, m, more)
    if choice.kind == "separate":
        per = choice.mbs * work.share * work.most * choice.llm.dp / choice.encoder.dp
        both = Unit(*map(np.concatenate, zip(_unit_seen(work, on, choice, per), text, strict=True)))
        return _filled(both, m), _kept(both, m)
    seen, first = _unit_seen(work, on, choice), np.zeros(len(text.took))
    first[0] = 1.0
    both = Unit(*(a + first * b[0] for a, b in zip(text, seen, strict=True)))
    return _filled(both, m), _kept(both, m)


def _filled(unit: Unit, m: int) -> float:
    return float(unit.took.sum() + (m - 1) * unit.took.max() + unit.ends.max())


def _kept(unit: Unit, m: int, more: float = 0.0) -> float:
    flying = np.minimum(m, len(unit.took) - np.arange(len(unit.took)))
    return float((unit.state + unit.passing + flying * unit.kept).max()) + more


@lru_cache(maxsize=256)
def best(work: Work, on: Cluster, kind: str, ranks: int) -> tuple[Choice, ...]:
    """The few that are fastest by closed forms and fit, by what a GPU gets done."""
    room = USABLE * on.device.mem_bytes
    found = []
    for choice in choices(work, on, kind, ranks):
        step, memory = rough(work, on, choice)
        if memory <= room:
            found.append((step * choice.ranks, choice))
    found.sort(key=lambda pair: pair[0])
    return tuple(choice for _, choice in found[:TOP])


def fastest(work: Work, on: Cluster, kind: str, ranks: int, images: Floats) -> Pace | None:
    """Of the best few, the fastest that fits on these very images; None where nothing fits."""
    tried = [measure(work, on, choice, images) for choice in best(work, on, kind, ranks)]
    return max((one for one in tried if one.fits), key=lambda one: one.flops, default=None)
