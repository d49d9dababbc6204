"""What attention over a batch takes on many ranks: a model of blocks that travel, and of the rings it competes with.

Pairs are computed at the roofline's rate (`assay.sim.roofline`: the data sheet's peak times an assumed efficiency) in
tiles of 128 tokens, so that stretches shorter than a tile cost a whole one; each kernel costs a launch. Messages take
latency and bytes over the link, which is the node's own between its ranks and the network's beyond. A backward pass
computes five products where the forward pass computes two, and moves keys and values once and their gradients once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.collectives import Link
from assay.sim.compiled import njit
from assay.sim.hardware import device
from assay.sim.models import model
from assay.sim.roofline import COMPUTE_EFFICIENCY, LINK_EFFICIENCY
from assay.training.fcp.blocks import Ints, Plan
from assay.training.fcp.blocks import plan as make_plan

Floats = NDArray[np.float64]

TILE = 128
BACKWARD = 2.5  # times the forward pass's products
COPIES = 6 / 132  # of the multiprocessors move blocks while the others compute
COALESCED = 16  # blocks that one kernel attends to


@dataclass(frozen=True)
class Cluster:
    """Ranks in nodes, and what one of them does with a pair and a token of one attention layer."""

    ranks: int
    per_node: int
    inside: Link
    outside: Link
    peak: float  # FLOP/s of the data sheet
    rate: float  # pairs a second, all heads
    launch: float
    heads: int
    kv_heads: int
    kv_bytes: float  # keys and values of a token
    q_bytes: float  # queries of a token

    @property
    def pair_flops(self) -> float:
        """FLOPs of a pair."""
        return self.peak * COMPUTE_EFFICIENCY / self.rate

    @property
    def cuts(self) -> list[int]:
        """Into how many parts the heads can be cut, each on one of so many neighbouring ranks."""
        return [u for u in range(1, self.heads + 1) if self.heads % u == 0 and self.ranks % u == 0]

    def grouped(self, cut: int) -> Cluster:
        """Groups of so many ranks taken for one: each has all tokens of the group, and its part of the heads."""
        return replace(
            self, ranks=self.ranks // cut, per_node=max(1, self.per_node // cut), peak=cut * self.peak,
            rate=cut * self.rate, kv_bytes=self.kv_bytes * max(1 / cut, 1 / self.kv_heads), q_bytes=self.q_bytes / cut,
        )  # fmt: skip

    def regrouped(self, tokens: float, cut: int) -> float:
        """Seconds to turn all heads of some tokens into all tokens of some heads, and the results back."""
        if cut == 1:
            return 0.0
        link = self.inside if cut <= self.per_node else self.outside
        nbytes = tokens / self.ranks * (2 * self.q_bytes + self.kv_bytes)
        return 2 * link.latency + nbytes * (cut - 1) / cut / link.bandwidth

    def link(self, ranks: int) -> Link:
        """The link that a ring of so many neighbouring ranks waits for."""
        return self.inside if ranks <= self.per_node else self.outside


def cluster(ranks: int, name: str = "llama-3-70b", on: str = "h200") -> Cluster:
    """So many devices that compute the attention of a model.

    >>> cluster(64).per_node
    8
    """
    shape, gpu = model(name), device(on)
    peak = gpu.flops("bf16")
    return Cluster(
        ranks, gpu.gpus_per_node, gpu.nvlink.derated(LINK_EFFICIENCY), gpu.nic.derated(LINK_EFFICIENCY), peak,
        peak * COMPUTE_EFFICIENCY / shape.pair_flops(), gpu.launch, shape.heads, shape.kv_heads,
        4.0 * shape.kv_heads * shape.head_dim, 2.0 * shape.heads * shape.head_dim,
    )  # fmt: skip


def tiled(tokens: ArrayLike) -> Floats:
    """Tokens up to whole tiles."""
    return np.ceil(np.asarray(tokens, np.float64) / TILE) * TILE


@dataclass(frozen=True)
class Times:
    """Seconds of forward and backward pass, and how uneven the ranks' work was, as a share above the mean."""

    forward: float
    backward: float
    imbalance: float

    def mfu(self, pairs: float, on: Cluster) -> float:
        """The share of the peak that was used for pairs that count."""
        return (1 + BACKWARD) * pairs * on.pair_flops / (on.ranks * on.peak * (self.forward + self.backward))


def travelling(
    plan: Plan, on: Cluster, *, coalesced: int = COALESCED, overlapped: bool = True, reshuffled: bool = True
) -> Times:
    """Blocks that travel in the plan's rounds; a rank computes with what it has while the next blocks come.

    `reshuffled`: bringing tokens to the plan's layout and back hides behind the blocks that need nobody.
    """
    arrives = _arrivals(plan, on)
    with_messages = _message_pairs(plan)
    busy = np.bincount(plan.owner, weights=_block_pairs(plan), minlength=plan.ranks)
    local = busy - np.bincount(plan.receiver, weights=with_messages, minlength=plan.ranks)
    rate = on.rate * (1 - COPIES)
    ends = []
    for times, ways in ((1.0, 1.0), (BACKWARD, 2.0)):
        pace, start = times / rate, times * local / rate + on.launch
        moved = plan.blocks.tokens.sum() / plan.ranks * (2 * on.q_bytes + on.kv_bytes) / on.link(on.ranks).bandwidth
        ready = np.maximum(start, moved) if reshuffled else start + moved
        ends.append(_finish(plan, ready, ways * arrives, pace * with_messages, on.launch, coalesced, overlapped))
    return Times(ends[0], ends[1], float(busy.max() / busy.mean() - 1))


def best_blocks(lengths: Ints, on: Cluster, size: int, memory: float, causal: bool = True) -> tuple[Times, int]:
    """Blocks that travel between groups of ranks which share out the heads, at their best cut, and which that is."""
    found = {}
    for cut in on.cuts:
        if on.ranks > cut:
            group, ways = on.grouped(cut), on.regrouped(float(lengths.sum()), cut)
            times = travelling(make_plan(lengths, group.ranks, size, causal=causal, memory=memory), group)
            found[cut] = replace(times, forward=times.forward + ways, backward=times.backward + 2 * ways)
    best = min(found, key=lambda cut: found[cut].forward + found[cut].backward)
    return found[best], best


def _arrivals(plan: Plan, on: Cluster) -> Floats:
    """When each message is there: ports take messages in the order of rounds, and a message takes both ends' ports.

    Nobody waits for a round of others to end. Without a timetable several receivers want the same holder, and wait.
    """
    same = plan.sender // on.per_node == plan.receiver // on.per_node
    nbytes = plan.blocks.tokens[plan.block] * on.kv_bytes
    inside, outside = (link.latency + nbytes / link.bandwidth for link in (on.inside, on.outside))
    order = np.lexsort((plan.receiver, plan.round))
    arrives = np.zeros(len(order))
    _take_turns(order, plan.sender, plan.receiver, np.where(same, inside, outside), np.zeros((2, plan.ranks)), arrives)
    return arrives


@njit(cache=True, nogil=True)
def _take_turns(order: Ints, sender: Ints, receiver: Ints, lasts: Floats, free: Floats, arrives: Floats) -> None:
    for m in order:
        start = max(free[0, sender[m]], free[1, receiver[m]])
        arrives[m] = start + lasts[m]
        free[0, sender[m]] = arrives[m]
        free[1, receiver[m]] = arrives[m]


def _block_pairs(plan: Plan) -> Floats:
    """Pairs of each block's queries as kernels compute them: whole sequences in a block in tiles of their own."""
    cut = plan.blocks
    count = cut.stop - cut.start
    whole = count == cut.lengths[cut.sequence]
    tiles = tiled(count)
    alone = tiles * (tiles + TILE) / 2 if cut.causal else tiles * tiles
    extra = np.where(whole, alone - (count * (count + 1) / 2 if cut.causal else count * count), 0.0)
    return cut.pairs + np.bincount(cut.block, weights=extra, minlength=len(cut.pairs))


def _message_pairs(plan: Plan) -> Floats:
    """Pairs that its receiver computes with each message: its queries of the same sequence that come later."""
    cut = plan.blocks
    key = cut.of * plan.ranks + plan.owner  # blocks lie by sequence, in their order
    order = np.lexsort((np.arange(len(key)), key))
    cumulated = np.concatenate([[0], np.cumsum(cut.tokens[order])])
    wanted = cut.of[plan.block] * plan.ranks + plan.receiver
    ends = np.searchsorted(key[order], wanted, side="right")
    begins = np.searchsorted(key[order], wanted, side="left")
    if cut.causal:  # of the receiver's blocks, those behind the one that came
        scaled = key[order] * (len(key) + 1) + order
        begins = np.searchsorted(scaled, wanted * (len(key) + 1) + plan.block, side="right")
    queries = cumulated[ends] - cumulated[begins]
    found: Floats = (queries * cut.tokens[plan.block]).astype(np.float64)
    return found


def _finish(
    plan: Plan, ready: Floats, arrives: Floats, works: Floats, launch: float, coalesced: int, overlapped: bool
) -> float:
    """When the last rank is done."""
    if not overlapped:
        spent = np.bincount(plan.receiver, weights=works + launch, minlength=plan.ranks)
        return float((ready + arrives.max(initial=0.0) + spent).max())
    order = np.lexsort((plan.round, plan.receiver))
    rank = plan.receiver[order]
    place = np.arange(len(order)) - np.searchsorted(rank, rank)
    unit = np.flatnonzero(place % coalesced == 0)
    if not len(unit):
        return float(ready.max())
    work = np.add.reduceat(works[order], unit) + launch
    there = np.maximum.reduceat(arrives[order], unit)
    done = ready.copy()
    for k, first in enumerate(unit):
        done[rank[first]] = max(done[rank[first]], there[k]) + work[k]
    return float(done.max())


def ring(lengths: Ints, on: Cluster, ulysses: int = 1, causal: bool = True) -> Times:
    """Every sequence in 2P chunks on a ring of P, first with last; heads cut `ulysses` ways within neighbouring ranks.

    With `ulysses` above one this is USP; with as many as there are ranks it is Ulysses alone.
    """
    steps, halves = on.ranks // ulysses, 2 * (on.ranks // ulysses)
    chunk = tiled(lengths / halves)
    # Of a sequence a rank computes two chunks by two; under the mask half of that: with itself more, but never mind.
    pairs = float((2 * chunk * chunk * (1 if causal else 2)).sum()) / ulysses
    tokens = lengths.sum() / steps
    moved = tokens * on.kv_bytes * max(1 / ulysses, 1 / on.kv_heads)
    link = on.link(on.ranks)
    swapped = on.regrouped(float(lengths.sum()), ulysses)
    times = []
    for factor, ways in ((1.0, 1.0), (BACKWARD, 2.0)):
        compute = factor * pairs / on.rate + on.launch
        step = max(compute, ways * (link.latency + moved / link.bandwidth))
        times.append(compute + (steps - 1) * step + ways * swapped)
    return Times(times[0], times[1], 0.0)


def best_ring(lengths: Ints, on: Cluster, causal: bool = True) -> tuple[Times, int]:
    """The ring at its best cut of heads, and which that is."""
    found = {u: ring(lengths, on, u, causal) for u in on.cuts}
    best = min(found, key=lambda u: found[u].forward + found[u].backward)
    return found[best], best


def proportional(lengths: Ints, on: Cluster, memory: float = 1.2, causal: bool = True) -> Times:
    """Each sequence on a ring of its own, as many ranks as its tokens need; short ones packed by their tokens."""
    room = memory * lengths.sum() / on.ranks
    degree = np.minimum(on.ranks, np.ceil(lengths / room).astype(np.int64))
    busy, held = np.zeros((2, on.ranks)), np.zeros(on.ranks)
    pairs = np.zeros(on.ranks)
    for s in np.argsort(-lengths, kind="stable"):
        d = int(degree[s])
        # The neighbouring ranks that hold least; of one rank simply the emptiest.
        windows = np.convolve(held, np.ones(d), mode="valid")
        first = int(np.argmin(windows))
        mine = slice(first, first + d)
        part = ring(lengths[s : s + 1], replace(on, ranks=d), 1, causal)
        busy[:, mine] += np.array([[part.forward], [part.backward]])
        pairs[mine] += float(lengths[s]) ** 2 / d
        held[mine] += lengths[s] / d
    return Times(float(busy[0].max()), float(busy[1].max()), float(pairs.max() / pairs.mean() - 1))
