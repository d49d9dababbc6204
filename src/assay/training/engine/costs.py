"""What a transformer's layers take to train: seconds of each pass, bytes on the wires, bytes that stay in memory.

Counted for one rank of a layout and one microbatch. Matrices are `max(FLOPs, bytes)` over what the device attains at
their shape; a forward product has two counterparts in the backward pass, of which the gradient of the weights can be
put off. Attention is a fused kernel that keeps no scores: its backward pass computes them again. Activations outside
the tensor-parallel regions are cut along the sequence, as Megatron does (Korthikanti et al., MLSys 2023).

>>> from assay.sim.models import model
>>> from assay.training.engine.cluster import read
>>> from assay.training.interface import Job, Layout, Plan
>>> costs = stage_costs(model("llama-3-8b"), read("8xh100"), Plan(Layout(tp=2, pp=2, dp=2)), Job(8, 4096))
>>> costs.forward.shape, bool(costs.weights.sum() > 1.5 * costs.forward.sum() * 0.4)
((2,), True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import add
from typing import Any

import numpy as np

from assay.sim.models import Gemm, Model
from assay.training.engine.allowed import RECOMPUTE as RECOMPUTE
from assay.training.engine.allowed import check as check
from assay.training.engine.cluster import USABLE as USABLE
from assay.training.engine.cluster import (
    ClosedForms,
    Cluster,
    Group,
    crossings,
    on_nodes,
    slowest_hop,
    strided,
    widest,
)
from assay.training.engine.schedules import SCHEDULES, holders, named
from assay.training.interface import Floats, Job, Layout, Plan, Schedule

ATTENTION_AGAIN = 2.5  # FLOPs of a fused attention's backward pass over its forward pass
PARAMETERS = ("dense", "experts")  # of a layer: the same for all microbatches


@dataclass(frozen=True)
class Layer:
    """One layer on one rank, for one microbatch; or for many at once, and then what depends on it is an array."""

    forward: float = 0.0  # seconds of computing
    inputs: float = 0.0  # of the backward pass, gradients of its inputs
    weights: float = 0.0  # of the backward pass, gradients of its weights
    wires: float = 0.0  # seconds of communication that a forward pass waits for; a backward pass waits as long
    kept: float = 0.0  # bytes of activations until the backward pass
    whole: float = 0.0  # bytes of them all while a recomputed layer runs backward
    dense: float = 0.0  # parameters that all data-parallel ranks share
    experts: float = 0.0  # parameters of its experts
    dispatch: float = 0.0  # seconds of `wires` that rows take to experts and back
    covering: float = 0.0  # seconds of computing, either way, behind which keys and values go round already

    def __add__(self, other: Layer) -> Layer:
        return Layer(*map(add, vars(self).values(), vars(other).values()))

    def __mul__(self, times: float) -> Layer:
        return Layer(*(value * times for value in vars(self).values()))


@dataclass(frozen=True)
class StageCosts:
    """Of every part of the model, first layers first, on one rank: seconds a microbatch, bytes, parameters."""

    layers: Floats
    forward: Floats
    inputs: Floats
    weights: Floats
    wires_forward: Floats
    wires_backward: Floats
    kept: Floats  # bytes a microbatch in flight
    passing: Floats  # bytes while a backward pass runs, beside what is kept
    state: Floats  # bytes of weights, gradients and optimizer
    gather: Floats  # seconds to gather the updated weights
    reduce: Floats  # seconds to reduce the gradients
    update: Floats  # seconds of the optimizer
    send: Any  # seconds of a microbatch's way from a stage to another, [from, to]; or of any way
    gradient_bytes: Floats  # that one rank hands to the reduction
    dispatch_forward: Any = 0.0  # seconds of the exchanges that another microbatch can compute over
    dispatch_backward: Any = 0.0
    params: Any = ()  # of one rank: dense ones, those of experts


@dataclass(frozen=True)
class _Rank:
    """The rates of one rank, and the sizes of its share of a microbatch."""

    model: Model
    cluster: Cluster
    layout: Layout
    mbs: int
    recompute: str
    seq: Any  # a number, or an array of several microbatches' tokens
    seen: Any

    @property
    def tokens(self) -> Any:
        return self.mbs * self.seq / self.layout.cp

    @property
    def item(self) -> float:
        return self.cluster.precision.item

    def product(self, m: Any, n: float, k: Any, count: float = 1.0, dtype: str = "") -> Any:
        """Seconds of `count` products of this shape."""
        on, efficiency = self.cluster.device, self.cluster.efficiency
        arithmetic = 2.0 * m * n * k / (on.flops(dtype or self.cluster.precision.dtype) * efficiency.of(m, n, k))
        memory = self.item * (m * n + n * k + m * k) / (on.mem_bw * efficiency.memory)
        return count * _larger(arithmetic, memory) + on.launch

    def moving(self, nbytes: Any, launches: int = 1) -> Any:
        """Seconds of operations that only read and write."""
        return (
            nbytes / (self.cluster.device.mem_bw * self.cluster.efficiency.memory)
            + launches * self.cluster.device.launch
        )

    def wires(self, op: str, group: Group, nbytes: Any) -> Any:
        """Seconds of a collective of these ranks, for one size or for several."""
        group = widest(group, self.cluster.per_node, self.cluster.ranks)
        if self.cluster.collectives is not None and len(group) > 1:
            found = self.cluster.collectives.seconds(op, np.array(group), np.atleast_1d(nbytes))
            return found if isinstance(nbytes, np.ndarray) else float(found[0])
        return ClosedForms(self.cluster).of_group(op, group, nbytes)

    def matrices(self, gemms: list[Gemm], rows: Any, cut: int, groups: float = 1.0, narrow: bool = True) -> Layer:
        """Forward and both backward products of some matrices; `rows` of each of `groups` of them.

        A matrix that is not cut meets a part of the rows on each of `cut` ranks. Adding the gradients of weights to
        those of other microbatches does not hide behind the product, nor does making activations and gradients `narrow`
        where products are of a narrower dtype.
        """
        total, sums = Layer(), self.cluster.precision.summed
        dtype = self.cluster.precision.products if narrow else ""
        casts = (self.item + 2.0) * groups if dtype else 0.0  # read, and written once along rows and once along columns
        for gemm in gemms:
            k = gemm.inputs / (cut if gemm.cut == "inputs" else 1)
            n = gemm.outputs / (cut if gemm.cut == "outputs" else 1)
            here = rows / cut if gemm.cut == "none" else rows
            total = total + Layer(
                forward=self.product(here, n, k, groups, dtype) + self.moving(casts * here * k, 0),
                inputs=self.product(here, k, n, groups, dtype) + self.moving(casts * here * n, 0),
                weights=self.product(n, k, here, groups, dtype) + self.moving(sums * n * k * groups, 0),
            )
        return total

    def held(self, gemms: list[Gemm]) -> float:
        return sum(gemm.params / (1 if gemm.cut == "none" else self.layout.tp) for gemm in gemms)

    def tensor_parallel(self) -> Any:
        """Gather the sequence before a cut region, reduce and scatter it after."""
        tp, whole = self.layout.tp, self.tokens * self.model.hidden * self.item
        if tp == 1:
            return 0.0
        return self.wires("all_gather", strided(tp, 1), whole / tp) + self.wires(
            "reduce_scatter", strided(tp, 1), whole
        )

    def streams(self, forward: Any, backward: Any, launches: int) -> Layer:
        """Element-wise work: so many bytes read and written each way."""
        return Layer(forward=self.moving(forward, launches), inputs=self.moving(backward, launches))

    def residual(self, tokens: Any) -> Any:
        """Bytes of a sum and its norm: read two, write two; backward read two gradients and the sum, write one."""
        return 4 * self.item * tokens * self.model.hidden


def _larger(one: Any, other: Any) -> Any:
    """The larger, in every microbatch."""
    return np.maximum(one, other) if isinstance(one, np.ndarray) else max(one, other)


def _attention(rank: _Rank, seen: Any, linear: bool) -> Layer:
    """A mixer with its norm: attention over `seen` tokens, or a recurrence."""
    shape, tp, cp, t = rank.model, rank.layout.tp, rank.layout.cp, rank.tokens
    gemms = shape.linear_gemms() if linear else shape.attention_gemms()
    width, inner = sum(gemm.outputs for gemm in gemms[:-1]), gemms[-1].inputs  # queries, keys, values and their latents
    at = rank.cluster.efficiency
    flops = (shape.recurrent_flops() if linear else shape.pair_flops() * (seen + at.short)) * t / tp
    mixing = flops / (rank.cluster.device.flops(rank.cluster.precision.dtype) * at.attending(_head(shape)))
    turned = 2 * rank.item * t * width / tp  # queries and keys by their positions; values come along
    layer = rank.matrices(gemms, t, tp) + rank.streams(*2 * (rank.residual(t) / tp + turned,), 3)
    wires, covering = rank.tensor_parallel(), 0.0
    if cp > 1 and not linear:  # keys and values go round while attention works on those that are there
        kv = t * _keys_and_values(shape, tp) * rank.item
        ring = widest(strided(cp, tp), rank.cluster.per_node, rank.cluster.ranks)
        hop = rank.wires("send", slowest_hop(ring, rank.cluster.per_node), kv)  # every block passes it
        wires = wires + _larger((cp - 1) * hop - mixing, 0.0)
        covering = -_larger(-(cp - 1) * hop, -mixing)
    kept = t * rank.item * (2 * shape.hidden + width + inner) / tp
    spared = t * rank.item * shape.hidden / tp if rank.recompute == "selective" else 0.0
    return layer + Layer(
        forward=mixing, inputs=ATTENTION_AGAIN / at.backward * mixing, wires=wires, kept=kept - spared, whole=kept,
        dense=rank.held(gemms), covering=covering,
    )  # fmt: skip


def _head(shape: Model) -> float:
    """How wide a head is; where it is made from latents, as wide as its values: what is kept of keys hardly counts."""
    return shape.latent.v if shape.latent is not None else shape.head_dim


def _keys_and_values(shape: Model, tp: int) -> float:
    """Numbers of a token that go round between ranks that share a sequence: latents are made to keys and values first.

    >>> from assay.sim.models import model
    >>> _keys_and_values(model("llama-3-8b"), 1), _keys_and_values(model("deepseek-v3"), 8)
    (2048.0, 5120.0)
    """
    if shape.latent is None:
        return 2.0 * max(1.0, shape.kv_heads / tp) * shape.head_dim
    return shape.heads / tp * (shape.latent.nope + shape.latent.rope + shape.latent.v)


def _feed_forward(rank: _Rank, ffn: int) -> Layer:
    """A dense feed-forward part with its norm; without the norm's input where it lies beside experts."""
    shape, tp, t = rank.model, rank.layout.tp, rank.tokens
    gemms = shape.mlp_gemms(ffn)
    first = gemms[0].outputs
    moved = _activated(rank, rank.residual(t), t * first, t * ffn)
    layer = rank.matrices(gemms, t, tp) + rank.streams(moved[0] / tp, moved[1] / tp, 2)
    kept = t * rank.item * (2 * shape.hidden + first + ffn) / tp
    spared = t * rank.item * (shape.hidden + ffn) / tp if rank.recompute == "selective" else 0.0
    return layer + Layer(wires=rank.tensor_parallel(), kept=kept - spared, whole=kept, dense=rank.held(gemms))


def _activated(rank: _Rank, moved: Any, first: Any, ffn: Any) -> tuple[Any, Any]:
    """Bytes forward and backward of an activation or gate, with what else is `moved`; backward both are read again."""
    return moved + rank.item * (first + ffn), moved + rank.item * (2 * first + ffn)


def _experts(rank: _Rank) -> Layer:
    """Router, the way to the experts, grouped products with few rows each, and the way back; evenly loaded."""
    shape, layout, mixture = rank.model, rank.layout, rank.model.experts
    assert mixture is not None
    own = rank.tokens / layout.tp  # sequences are cut over tensor parallelism, and tokens are sent from there
    pairs = own * mixture.top_k
    local = mixture.count / layout.ep
    gemms = shape.mlp_gemms(mixture.ffn)
    layer = rank.matrices(gemms, layout.etp * pairs / local, layout.etp, groups=local)
    layer = layer + rank.matrices([Gemm(shape.hidden, mixture.count, "none")], own, 1, narrow=False)
    first = gemms[0].outputs
    moved = rank.residual(own) + layout.etp * rank.residual(pairs)  # rows to their experts and back
    layer = layer + rank.streams(*_activated(rank, moved, pairs * first, pairs * mixture.ffn), 5)
    if mixture.shared_ffn:
        layer = layer + _feed_forward(rank, mixture.shared_ffn)
    wires = _dispatch(rank, pairs * shape.hidden * rank.item)
    kept = rank.item * (own * 2 * shape.hidden + pairs * (layout.etp * shape.hidden + first + mixture.ffn))
    spared = rank.item * (own * shape.hidden + pairs * mixture.ffn) if rank.recompute == "selective" else 0.0
    return layer + Layer(
        wires=wires, kept=kept - spared, whole=kept, dense=float(shape.hidden * mixture.count),
        experts=local * sum(gemm.params for gemm in gemms) / layout.etp, dispatch=wires,
    )  # fmt: skip


def _dispatch(rank: _Rank, nbytes: float) -> float:
    """Seconds of a rank's rows to the experts and back: to their ranks, and there to all that hold a slice of them."""
    etp, ep = rank.layout.etp, rank.layout.ep
    wires = 2 * rank.wires("all_to_all", strided(ep, etp * rank.layout.ecp), nbytes) if ep > 1 else 0.0
    if etp > 1:
        slices = strided(etp, 1)
        wires += rank.wires("all_gather", slices, nbytes) + rank.wires("reduce_scatter", slices, etp * nbytes)
    return wires


@lru_cache(maxsize=256)
def kinds(shape: Model) -> tuple[tuple[str, str], ...]:
    """The mixer and the feed-forward part of every layer: full attention spread evenly, dense parts first.

    >>> from assay.sim.models import model
    >>> kinds(model("deepseek-v3"))[2:4]
    (('full', 'dense'), ('full', 'moe'))
    """
    mixers = ["full"] * shape.full_layers
    for name, count in (("window", shape.window_layers), ("linear", shape.linear_layers)):
        total, others = len(mixers) + count, list(mixers)
        chosen = {int((i + 1) * total / len(others)) - 1 for i in range(len(others))} if others else set()
        rest = iter(others)
        mixers = [next(rest) if i in chosen else name for i in range(total)] if count else mixers
    feeds = ["dense"] * shape.dense_layers + ["moe"] * shape.moe_layers
    gap = len(mixers) - len(feeds)
    return tuple(zip(mixers + ["none"] * -gap, feeds + ["none"] * gap, strict=True))


def parts(layers: int, stages: int) -> list[int]:
    """How many layers each part of the model gets: alike, and what is left over not to the ends, which have more to do.

    >>> parts(126, 16)
    [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7]
    """
    each, over = divmod(layers, stages)
    by_need = sorted(range(stages), key=lambda s: (s in (0, stages - 1), s == stages - 1, s))
    return [each + (s in by_need[:over]) for s in range(stages)]


@lru_cache(maxsize=65536)
def _layer(rank: _Rank, mixer: str, feed: str) -> Layer:
    window = -_larger(-rank.seen, -float(rank.model.window)) if rank.model.window else rank.seen
    layer = Layer()
    if mixer != "none":
        layer = layer + _attention(rank, window if mixer == "window" else rank.seen, mixer == "linear")
    if feed != "none":
        layer = layer + (_experts(rank) if feed == "moe" else _feed_forward(rank, rank.model.ffn))
    if rank.recompute == "full":
        entry = rank.tokens * rank.item * rank.model.hidden / rank.layout.tp
        return Layer(
            layer.forward, layer.inputs + layer.forward, layer.weights, layer.wires, entry, layer.whole, layer.dense,
            layer.experts, layer.dispatch, layer.covering,
        )  # fmt: skip
    if rank.recompute == "selective":  # what is kept less is norms and activations, computed again
        again = rank.moving(2 * (layer.whole - layer.kept), 2)
        return layer + Layer(inputs=again)
    return layer


@lru_cache(maxsize=65536)
def _ends(rank: _Rank) -> tuple[Layer, Layer]:
    """The embedding, and the last norm, head and loss; an encoder has no vocabulary and neither."""
    shape, tp, t = rank.model, rank.layout.tp, rank.tokens
    if not shape.vocab:
        return Layer(), Layer()
    table = shape.vocab * shape.hidden / tp
    summed = 2 * t * shape.hidden * (rank.cluster.precision.gradient + rank.item)  # rows are added where they belong
    lookup = rank.streams(2 * t * shape.hidden * rank.item, summed, 2) + Layer(dense=table)
    head = rank.matrices([Gemm(shape.hidden, shape.vocab, "outputs")], t, tp, narrow=False)
    logits = t * shape.vocab / tp * rank.cluster.precision.gradient
    head = (
        head
        + rank.streams(*2 * (2 * rank.item * t * shape.vocab / tp,), 2)  # read twice; backward read once and written
        + Layer(kept=logits + t * rank.item * shape.hidden, whole=logits, dense=table)
    )
    return lookup, head + Layer(wires=rank.tensor_parallel() / 2)


def stage_costs(shape: Model, cluster: Cluster, plan: Plan, job: Job, order: Schedule | None = None) -> StageCosts:
    """Of every part of the model, under a plan that `check` has found possible, with its schedule or another `order`.

    Answers are kept: do not write into them.
    """
    order = order or (named(plan.schedule, plan.layout.vpp) if plan.schedule in SCHEDULES else None)
    held = holders(order, plan.layout.pp) if order is not None else ()
    several = held if any(len(stages) > 1 for stages in held) else ()
    # Whatever the order, a pass costs the same; only who holds what differs, and what a backward pass is.
    split = plan.zero >= 2 and order is not None and order.split
    return _stage_costs(shape, cluster, replace(plan, schedule=""), job, several, split)


@lru_cache(maxsize=8192)
def _stage_costs(
    shape: Model, cluster: Cluster, plan: Plan, job: Job, several: tuple[tuple[int, ...], ...] = (), split: bool = False
) -> StageCosts:
    rank = _Rank(shape, cluster, _whole(plan.layout), plan.mbs, plan.recompute, job.seq, job.seen)
    if not several:
        return _costs(rank, plan, parts(len(kinds(shape)), plan.layout.stages), split)
    once = _stage_costs(shape, cluster, plan, job, ())
    return replace(once, **_held(rank, plan, once.params, several))


def microbatch_costs(
    shape: Model, cluster: Cluster, plan: Plan, counts: Sequence[int], tokens: Floats, seen: Floats
) -> StageCosts:
    """The same for microbatches that differ: arrays [part, *microbatches] of what depends on them.

    Args:
        shape: the model.
        cluster: where it runs.
        plan: how it is cut; its layout's copies share each of these microbatches' weights.
        counts: layers of every part.
        tokens: of every microbatch.
        seen: tokens that one of its tokens attends to, on average.

    >>> from assay.sim.models import model
    >>> from assay.training.engine.cluster import read
    >>> small, large = 1024.0, 4096.0
    >>> found = microbatch_costs(model("llama-3-8b"), read("8xh100"), Plan(Layout(pp=2)), (16, 16),
    ...                          np.array([small, large]), np.array([small, large]) / 2)
    >>> found.forward.shape, found.state.shape
    ((2, 2), (2,))
    """
    return _costs(_Rank(shape, cluster, _whole(plan.layout), 1, plan.recompute, tokens, seen), plan, counts)


def _whole(layout: Layout) -> Layout:
    """The same without stages and copies: however many there are, a layer costs the same."""
    return replace(layout, pp=1, dp=1, vpp=1)


def _costs(rank: _Rank, plan: Plan, counts: Sequence[int], split: bool = False) -> StageCosts:
    each, ends = _many(rank) if isinstance(rank.seq, np.ndarray) else _one(rank)
    sums = _sums(rank, counts, each, ends)
    column = {
        name: _column([getattr(part, name) for part in sums], () if name in PARAMETERS else np.shape(rank.seq))
        for name in Layer.__dataclass_fields__
    }
    layer_count = np.array(counts, float)
    fullest = max((np.max(one.whole) for one in each.values()), default=0.0)
    again = 2 if plan.recompute == "full" else 1
    wires_forward, wires_backward = column["wires"], column["wires"] * again
    params = column["dense"], column["experts"]
    held = _held(rank, plan, params, ())
    gather, reduce, every = held["gather"], held["reduce"], params[0] + params[1]
    ahead = column["forward"] - column["covering"]  # while rings go round, links have nothing to spare
    behind = column["inputs"] + (0.0 if split else column["weights"]) - again * column["covering"]
    at_hand = _at_hand(plan.layout, params, layer_count)
    if plan.zero == 2:  # a microbatch's gradients go to who sums them up, all but those of the layers at hand
        wires_backward = wires_backward + _hidden(reduce, reduce / layer_count, behind)
        held["state"] = held["state"] + rank.cluster.precision.gradient * at_hand
        held["reduce"] = 0 * reduce
    if plan.zero == 3:  # weights come and go with every pass, a layer ahead of the computing
        one, both = gather / layer_count, gather + reduce
        wires_forward = wires_forward + _hidden(gather, one, ahead)
        wires_backward = wires_backward + _hidden(both, both / layer_count, behind)
        held["state"] = held["state"] + rank.item * at_hand
        held["gather"], held["reduce"] = 0 * gather, 0 * reduce
    return StageCosts(
        layers=layer_count if plan.overlap else np.ones_like(layer_count), forward=column["forward"],
        inputs=column["inputs"], weights=column["weights"],
        wires_forward=wires_forward, wires_backward=wires_backward, kept=column["kept"],
        passing=np.full(len(sums), fullest if plan.recompute == "full" else 0.0),
        send=_sends(rank, plan.layout, rank.tokens * rank.model.hidden * rank.item / plan.layout.tp),
        gradient_bytes=rank.cluster.precision.gradient * every, dispatch_forward=column["dispatch"],
        dispatch_backward=column["dispatch"] * again, params=params, **held,
    )  # fmt: skip


def _at_hand(layout: Layout, params: tuple[Floats, Floats], layers: Floats) -> Floats:
    """Parameters of two layers of a rank, of all that copies share: those that are there whole while it works on them.

    Of all its parts together, and no more than it would hold if nothing were shared.
    """
    total = np.zeros_like(layers)
    for some, copies in zip(params, (layout.dp * layout.cp, max(1, layout.edp)), strict=True):
        if copies > 1:
            total = total + some * np.minimum(2.0 / (layers * layout.vpp), 1.0 - 1.0 / copies)
    return total


def _held(
    rank: _Rank, plan: Plan, params: tuple[Floats, Floats], several: tuple[tuple[int, ...], ...]
) -> dict[str, Floats]:
    """What follows from which ranks hold each part: bytes of state, seconds to gather, to reduce and to update.

    `several` are the stages that hold each part, where copies of it lie on more than one.
    """
    layout, keeps, (dense, experts) = plan.layout, rank.cluster.precision, params
    on = len(several[0]) if several else 1
    sharded = (dense / (layout.dp * layout.cp) + experts / max(1, layout.edp)) / on
    every = dense + experts
    state = (
        keeps.item * (sharded if plan.zero == 3 else every)
        + keeps.gradient * (sharded if plan.zero >= 2 else every)
        + keeps.optimizer * (sharded if plan.zero >= 1 else every)
        + (2.0 * every if keeps.products else 0.0)  # weights in the narrower dtype, along rows and along columns
    )
    gather, reduce = _replicated(rank, plan, params, several)
    update = np.array([rank.moving(keeps.update * p) for p in (sharded if plan.zero >= 1 else every)])
    return {"state": state, "gather": gather, "reduce": reduce, "update": update}


def _replicated(
    rank: _Rank, plan: Plan, params: tuple[Floats, Floats], several: tuple[tuple[int, ...], ...]
) -> tuple[Floats, Floats]:
    """Seconds to gather every part's weights and to reduce its gradients over all ranks that hold it: dense, experts.

    Where a part lies on several stages they all take part, and these stages' other parts share their links.
    """
    layout, zero = plan.layout, plan.zero
    groups = strided(layout.dp * layout.cp, layout.tp), _expert_copies(layout)
    if not several:
        dense, experts = (_data_parallel(rank, zero, *each) for each in zip(params, groups, strict=True))
        return dense[0] + experts[0], dense[1] + experts[1]
    size = layout.tp * layout.cp * layout.dp
    pairs, which = list(dict.fromkeys(several)), np.array([several.index(stages) for stages in several])
    gather, reduce = np.zeros((2, len(several)))
    for some, group in zip(params, groups, strict=True):
        found: dict[tuple[int, ...], tuple[Floats, Floats]] = {}  # groups that lie alike take as long
        for stages in pairs:
            ranks = _at_stages(group, stages, size)
            nodes = on_nodes(ranks, rank.cluster.per_node)
            if nodes not in found:
                found[nodes] = _data_parallel(rank, zero, some, ranks)
            mine = which == several.index(stages)
            gather[mine] += found[nodes][0][mine].sum()
            reduce[mine] += found[nodes][1][mine].sum()
    return gather, reduce


@lru_cache(maxsize=4096)
def _at_stages(group: Group, stages: tuple[int, ...], size: int) -> Group:
    """The same ranks of several stages."""
    return tuple(stage * size + rank for stage in stages for rank in group)


def _sends(rank: _Rank, layout: Layout, nbytes: Any) -> Any:
    """Seconds from every stage to every other: a way is as slow as that of the rank whose partner is farthest."""
    if layout.pp == 1:
        return 0.0
    size, per_node = layout.tp * layout.cp * layout.dp, rank.cluster.per_node
    far = crossings(layout.pp, size, per_node)
    if not far.any() or size % per_node == 0:  # all alike; nothing goes from a stage to itself
        return rank.wires("send", (0, size if far.any() else min(1, per_node - 1)), nbytes)
    near, beyond = (rank.wires("send", pair, nbytes) for pair in ((0, min(1, per_node - 1)), (0, per_node)))
    return np.where(far.reshape(*far.shape, *(1,) * np.ndim(nbytes)), beyond, near)


def _column(values: Sequence[Any], shape: tuple[int, ...]) -> Floats:
    """What every part takes, of one microbatch or of as many as there are."""
    return np.stack([np.broadcast_to(value, shape) for value in values]) if shape else np.array(values)


def _one(rank: _Rank) -> tuple[dict[tuple[str, str], Layer], tuple[Layer, Layer]]:
    """A layer of each kind, the embedding and the head."""
    return {kind: _layer(rank, *kind) for kind in dict.fromkeys(kinds(rank.model))}, _ends(rank)


def _many(rank: _Rank) -> tuple[dict[tuple[str, str], Layer], tuple[Layer, Layer]]:
    """The same of several microbatches: how a model is cut into stages does not change its layers, so answers are
    kept, by the bytes of their tokens."""
    return _kept(replace(rank, seq=_key(rank.seq), seen=_key(rank.seen)))


def _key(values: Floats) -> tuple[tuple[int, ...], bytes]:
    return values.shape, values.astype(float).tobytes()


@lru_cache(maxsize=64)
def _kept(rank: _Rank) -> tuple[dict[tuple[str, str], Layer], tuple[Layer, Layer]]:
    seq, seen = (np.frombuffer(data).reshape(shape) for shape, data in (rank.seq, rank.seen))
    plain = replace(rank, seq=seq, seen=seen)
    listed = dict.fromkeys(kinds(rank.model))
    return {kind: _layer.__wrapped__(plain, *kind) for kind in listed}, _ends.__wrapped__(plain)


def _hidden(total: Floats, first: Floats, behind: Floats) -> Floats:
    """What a pass waits for weights on their way: the first layer's, and of the rest what it does not compute over."""
    across = (len(total),) + (1,) * (behind.ndim - 1)
    total, first = total.reshape(across), first.reshape(across)
    return np.asarray(first + np.maximum(0, total - first - behind))


def _sums(
    rank: _Rank, counts: Sequence[int], each: dict[tuple[str, str], Layer], ends: tuple[Layer, Layer]
) -> list[Layer]:
    """Every part's layers added up, with the embedding and the head where they belong."""
    listed, first, (embedding, head) = kinds(rank.model), 0, ends
    sums: list[Layer] = []
    alike: dict[tuple[tuple[str, str], ...], Layer] = {}
    for stage, count in enumerate(counts):
        mine = listed[first : first + count]
        total = embedding if stage == 0 else alike.get(mine)
        if total is None or stage == 0:
            total = total or Layer()
            for kind in dict.fromkeys(mine):
                total = total + each[kind] * mine.count(kind)
            if stage:
                alike[mine] = total
        sums.append(total + head if stage == len(counts) - 1 else total)
        first += count
    if len(counts) == 1 and rank.model.tied:
        sums[0] = sums[0] + Layer(dense=-embedding.dense)  # one table is both
    return sums


def _expert_copies(layout: Layout) -> Group:
    """The ranks of a stage that hold the same experts as its first."""
    if layout.ecp == 1:
        return strided(layout.edp, layout.etp * layout.ep)
    stage = replace(layout, pp=1, vpp=1)
    return tuple(stage.experts.groups("ecp", "edp")[0].tolist())


def _data_parallel(rank: _Rank, zero: int, params: Floats, group: Group) -> tuple[Floats, Floats]:
    """Seconds to gather these parameters and to reduce their gradients over the ranks that hold copies of them."""
    copies = len(group)
    if copies <= 1:
        return 0.0 * params, 0.0 * params
    if zero == 0:
        return 0.0 * params, rank.wires("all_reduce", group, rank.cluster.precision.gradient * params)
    gather = rank.wires("all_gather", group, rank.item * params / copies)
    return gather, rank.wires("reduce_scatter", group, rank.cluster.precision.gradient * params)


def model_flops(shape: Model, job: Job) -> float:
    """FLOPs that a step needs whoever computes it: forward and twice that backward, nothing twice.

    >>> from assay.sim.models import model
    >>> round(model_flops(model("llama-3-8b"), Job(1, 8192)) / (6 * 8.03e9 * 8192), 2)
    1.07
    """
    return 3.0 * shape.flops(job.tokens, job.seen)
