"""Models made of models: an encoder and a language model, each cut its own way, in one pipeline of unequal work.

A section is one model on some ranks. `passes` gives the seconds of its stages for any microbatches, by their tokens and
by the pairs of tokens that attend to each other, at the costs of the rest of the engine. Sections in a row are one
pipeline: their stages follow one another, `pipeline` solves it on the engine's own graph with a duration for every pass
of every copy, and `peak` is what a rank holds at its fullest, where what a forward pass keeps may be let go by the
backward pass of another microbatch.

>>> from assay.sim.encoders import vision
>>> from assay.sim.models import model
>>> from assay.training.engine.cluster import read
>>> from assay.training.engine.schedules import OneFOneB
>>> on, eye = read("4xh100"), vision("clip-vit-l")
>>> sees = Section(eye.shape, on, Layout(pp=1, dp=2), causal=False)
>>> speaks = Section(model("llama-3.2-1b"), on, Layout(pp=1, dp=2))
>>> images, texts = np.array([[576.0, 576.0, 0.0]] * 2), np.array([[700.0, 900.0, 400.0]] * 2)  # 2 copies
>>> both = joined(sees.passes(images, images**2), speaks.passes(texts, texts**2 / 2))
>>> solved = pipeline(OneFOneB(), both, joined_ends(sees, speaks))
>>> both.forward.shape, 0 < solved.bubble < 1, both.forward[0, 0].round(4).tolist()
((2, 2, 3), True, [0.0015, 0.0015, 0.0])
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.models import Model
from assay.training.engine.cluster import ClosedForms, Cluster, crossings
from assay.training.engine.costs import StageCosts, microbatch_costs, parts
from assay.training.engine.graph import COMP, SEND, StepGraph, price_vector, step_graph
from assay.training.engine.schedules import B, F, W
from assay.training.interface import Floats, Ints, Layout, Plan, Schedule


@dataclass(frozen=True)
class Passes:
    """Of every stage and microbatch, [stages, *microbatches] (copies first): seconds with exchanges, and bytes."""

    forward: Floats
    inputs: Floats  # of the backward pass, gradients of the inputs
    weights: Floats  # and of the weights
    kept: Floats  # bytes of activations until the backward pass
    sent: Floats  # seconds of the way to the next stage, forward or back
    passing: Floats  # [stages]: bytes beside the kept ones while a recomputed layer of the fullest runs backward

    @property
    def backward(self) -> Floats:
        """Both gradients."""
        return self.inputs + self.weights


@dataclass(frozen=True)
class Ends:
    """Of every stage, in seconds: gathering the updated weights, reducing the gradients, updating; and its layers."""

    gather: Floats
    reduce: Floats
    update: Floats
    layers: Floats


@dataclass(frozen=True)
class Section:
    """One model of several: on which machines, how it is cut, what it keeps.

    `causal`: a token sees those before it; an encoder's see all. `trained`: without it there are forward passes alone,
    and nothing is kept. `counts`: layers of each stage, alike where none are given.
    """

    shape: Model
    cluster: Cluster
    layout: Layout
    recompute: str = "none"
    zero: int = 1
    causal: bool = True
    trained: bool = True
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.shape.heads % self.layout.tp:
            raise BadInput(f"tp{self.layout.tp} does not divide the {self.shape.heads} heads of {self.shape.name}")
        counts = self.layers_of_stages()
        if min(counts) < 1 or sum(counts) != self.shape.layers:
            raise BadInput(f"{self.shape.name}: {list(counts)} layers a stage; {self.shape.layers}, at least 1 each")

    def layers_of_stages(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return self.counts or tuple(parts(self.shape.layers, self.layout.pp))

    def pairs(self, tokens: Floats) -> Floats:
        """Pairs that attend to each other in sequences of so many tokens each; add them up over a microbatch.

        >>> from assay.sim.models import model
        >>> from assay.training.engine.cluster import read
        >>> Section(model("llama-3-8b"), read("8xh100"), Layout(dp=8)).pairs(np.array([100.0])).tolist()
        [5000.0]
        """
        return np.asarray(tokens, float) ** 2 / (2 if self.causal else 1)

    def passes(self, tokens: Floats, pairs: Floats) -> Passes:
        """Of microbatches with so many tokens, and pairs of them; one without tokens takes no time."""
        there = np.asarray(tokens, float) > 0
        found = self._costs(np.maximum(tokens, 1.0), np.where(there, pairs, 0.0) / np.maximum(tokens, 1.0))
        back = there * float(self.trained)
        sent = np.stack(
            [np.broadcast_to(way, found.forward.shape[1:]) for way in self._hops(np.asarray(tokens, float))]
        )
        return Passes(
            (found.forward + found.wires_forward) * there, (found.inputs + found.wires_backward) * back,
            found.weights * back, found.kept * back, sent * there, found.passing * float(self.trained),
        )  # fmt: skip

    def _hops(self, tokens: Floats) -> list[Floats]:
        """Of every stage, the seconds of a microbatch's way to the next one's ranks, in this section or another."""
        cut, on = self.layout, self.cluster
        nbytes = tokens / cut.cp * self.shape.hidden * on.precision.item / cut.tp
        far = crossings(cut.pp + 1, cut.tp * cut.cp * cut.dp, on.per_node)
        nodes = [min(on.nodes, 1 + int(far[stage, stage + 1])) for stage in range(cut.pp)]
        return [np.asarray(ClosedForms(on).of_size("send", 2, one, nbytes)) for one in nodes]

    def state(self) -> Floats:
        """Bytes of each stage's rank: weights, and where it is trained gradients and optimizer."""
        if self.trained:
            return _still(self).state
        found = _still(self)
        return np.asarray(found.gradient_bytes * self.cluster.precision.item / self.cluster.precision.gradient)

    def work(self, tokens: Floats, beside: float) -> Floats:
        """Seconds that a sequence of so many tokens adds to a microbatch of `beside` tokens, all stages, both passes.

        >>> from assay.sim.models import model
        >>> from assay.training.engine.cluster import read
        >>> added = Section(model("llama-3-8b"), read("8xh100"), Layout(dp=8)).work(np.array([0.0, 100.0, 200.0]), 4096)
        >>> bool(added[0] == 0 and 1.9 < added[2] / added[1] < 2.1)
        True
        """
        tokens = np.asarray(tokens, float)
        every = self.passes(np.append(tokens, 0.0) + beside, np.append(self.pairs(tokens), 0.0))
        seconds = (every.forward + every.backward).sum(axis=0)
        return np.asarray(seconds[:-1] - seconds[-1])

    def ends(self) -> Ends:
        """What follows the passes."""
        found, on = _still(self), float(self.trained)
        return Ends(found.gather * on, found.reduce * on, found.update * on, found.layers)

    def flops(self, tokens: float, pairs: float) -> float:
        """FLOPs that these need whoever computes them: forward, and twice that backward where it is trained."""
        window = min(float(self.shape.window), pairs / max(tokens, 1.0))
        seen = pairs * self.shape.full_layers + window * tokens * self.shape.window_layers
        return (3.0 if self.trained else 1.0) * (self.shape.flops(tokens) + self.shape.pair_flops() * seen)

    def _costs(self, tokens: Floats, seen: Floats) -> StageCosts:
        plan = Plan(self.layout, recompute=self.recompute, zero=self.zero)
        return microbatch_costs(self.shape, self.cluster, plan, self.layers_of_stages(), tokens, seen)


@lru_cache(maxsize=4096)
def _still(section: Section) -> StageCosts:
    """What does not depend on microbatches."""
    return section._costs(np.ones(1), np.zeros(1))


def joined(*sections: Passes) -> Passes:
    """One pipeline of several sections' stages, in this order."""
    return Passes(*(np.concatenate([getattr(one, each.name) for one in sections]) for each in fields(Passes)))


def joined_ends(*sections: Section) -> Ends:
    """What follows the passes of one pipeline of these sections."""
    every = [section.ends() for section in sections]
    return Ends(*(np.concatenate([getattr(one, each.name) for one in every]) for each in fields(Ends)))


def summed(values: Any, places: Ints, copies: int, m: int) -> Floats:
    """Values of samples added up over microbatches, [copies, m]; `places` has a row (copy, microbatch) for each sample.

    >>> summed([1.0, 2.0, 4.0], np.array([[0, 0], [0, 1], [0, 1]]), copies=1, m=2).tolist()
    [[1.0, 6.0]]
    """
    flat = places[:, 0] * m + places[:, 1]
    found: Floats = np.bincount(flat, np.asarray(values, float), minlength=copies * m).astype(float)
    return found.reshape(copies, m)


@dataclass(frozen=True)
class Solved:
    """A step: when it ends, and the seconds that each stage of each copy works, [stages, copies]."""

    step: float
    busy: Floats

    @property
    def bubble(self) -> float:
        """The share of the step in which a rank waits for others, in the mean."""
        return float(1 - self.busy.mean() / self.step)


def pipeline(order: Schedule, passes: Passes, ends: Ends) -> Solved:
    """A step of parts in a row, each copy with its own microbatches: `passes` are [parts, copies, microbatches].

    Where the schedule has several chunks a stage, so many parts lie on each (an encoder's on the first round over the
    stages, say, and a language model's on the second). Copies meet where gradients are reduced; transfers take their
    turn on the wires.

    Raises:
        BadInput: a schedule that cannot be, or whose chunks do not divide the parts.
    """
    count, copies, m = passes.forward.shape
    if count % order.chunks:
        raise BadInput(f"{count} parts do not make stages of {order.chunks} chunks each")
    stages = count // order.chunks
    graph = step_graph(order, stages, m, tuple(range(copies)), (0,) * copies)
    seconds = _seconds(graph, passes, ends)
    busy = np.zeros((stages, copies))
    comp = graph.kind == COMP
    np.add.at(busy, (graph.stage[comp], graph.column[comp]), seconds[comp])
    return Solved(float(graph.dag.ends(seconds).max()), busy)


def steps(order: Schedule, passes: Passes, ends: Ends) -> Floats:
    """Seconds of many steps at once: `passes` are [parts, copies, microbatches, steps], solved over one graph.

    >>> from assay.training.engine.schedules import OneFOneB
    >>> each, still = np.ones((2, 1, 4, 3)), np.zeros(2)
    >>> each[:, :, :, 1] = 2.0
    >>> plain = Passes(each, each, 0 * each, 0 * each, 0 * each, still)
    >>> steps(OneFOneB(), plain, Ends(still, still, still, still + 1)).tolist()
    [10.0, 20.0, 10.0]
    """
    count, copies, m, _ = passes.forward.shape
    graph = step_graph(order, count // order.chunks, m, tuple(range(copies)), (0,) * copies)
    return graph.dag.last_of_columns(np.ascontiguousarray(_seconds(graph, passes, ends)))


def _seconds(graph: StepGraph, passes: Passes, ends: Ends) -> Floats:
    """Every operation's: the graph's shares of a pass (all of it, its first or its last layer) times the pass.

    Of one step, or of as many as `passes` has; then a column for each.
    """
    one, none = np.ones(len(passes.forward)), np.zeros(len(passes.forward))
    prices = price_vector(
        graph.prices, forward=one, inputs=one, weights=one if graph.schedule.split else none, wires_forward=none,
        wires_backward=none, gather=ends.gather, reduce=ends.reduce, update=ends.update, send=1.0, layers=ends.layers,
        split=graph.schedule.split,
    )  # fmt: skip
    many = passes.forward.shape[3:]
    seconds = np.tile(prices[graph.price].reshape(-1, *(1 for _ in many)), (1, *many)) if many else prices[graph.price]
    what, part, column, mb = graph.what, graph.part, graph.column, graph.mb
    tables = {F: passes.forward, B: passes.inputs if graph.schedule.split else passes.backward, W: passes.weights}
    for kind, table in tables.items():
        mine = (graph.kind == COMP) & (what == kind)
        seconds[mine] *= table[part[mine], column[mine], mb[mine]]
    sends = np.flatnonzero(graph.kind == SEND)
    before = graph.dag.indices[graph.dag.indptr[sends]]  # a transfer's first wait is the pass that made what it brings
    at = part[before] - (what[sends] == B)  # back over the wire that brought the activations
    seconds[sends] *= passes.sent[at, column[sends], mb[before]]
    return np.asarray(seconds)


def peak(order: Schedule, kept: Floats, freed: Floats | None = None) -> Floats:
    """Bytes of activations at the fullest, [stages, copies]: `kept` by the forward pass of each microbatch, `freed`
    by its backward pass (what it kept, unless told otherwise); both [parts, copies, microbatches].

    >>> from assay.training.engine.schedules import GPipe, OneFOneB
    >>> kept = np.ones((2, 1, 4))
    >>> peak(GPipe(), kept).ravel().tolist(), peak(OneFOneB(), kept).ravel().tolist()
    ([4.0, 4.0], [2.0, 1.0])
    """
    freed = kept if freed is None else freed
    count, copies, m = kept.shape
    stages = count // order.chunks
    last = W if order.split else B
    found = np.zeros((stages, copies))
    for stage in range(stages):
        what, chunk, mb, _ = order.slots(stage, stages, m).T
        part = np.array([order.virtual(c, stage, stages) for c in range(order.chunks)])[chunk]
        moves = np.where(what == F, kept[part, :, mb].T, 0) - np.where(what == last, freed[part, :, mb].T, 0)
        found[stage] = np.maximum(moves.cumsum(axis=1).max(axis=1), 0)
    return found


def levelled(section: Section, tokens: float, pairs: float) -> Section:
    """The same section with its layers dealt to stages so that the slowest is least: an embedding or a head weighs
    what it takes in a microbatch of this size.

    >>> from assay.sim.models import model
    >>> from assay.training.engine.cluster import read
    >>> plain = Section(model("llama-3.2-1b"), read("4xh100"), Layout(pp=4))
    >>> levelled(plain, 4096.0, 4096.0**2 / 2).layers_of_stages()
    (5, 5, 5, 1)
    """
    if section.layout.pp == 1:
        return section
    counts, best = np.array(section.layers_of_stages()), (np.inf, section)
    size = np.array([tokens]), np.array([pairs])
    for _ in range(2 * section.shape.layers):  # layers of several kinds may go to and fro
        tried = replace(section, counts=tuple(counts.tolist()))
        found = tried.passes(*size)
        seconds = (found.forward + found.backward)[:, 0]
        if seconds.max() >= best[0]:
            break
        best = float(seconds.max()), tried
        slow, fast = int(np.where(counts > 1, seconds, 0).argmax()), int(seconds.argmin())
        if counts[slow] == 1:
            break
        counts[slow] -= 1
        counts[fast] += 1
    return best[1]
