"""What a training step of one long sequence takes on a mixed cluster, for any split of its tokens and heads.

A layer's pass on a group of ranks: products of each rank's own tokens; an all-to-all that turns all heads of some
tokens into all tokens of some heads; attention, while keys and values of the other groups go round; the way back. A
rank waits for its group before and after attention, groups wait for keys and values, and everybody for everybody at
the layer's end (weights are sharded over all ranks, and gathered a layer ahead). Forward passes are repeated in the
backward pass: of a long sequence only the layers' inputs are kept.

Tokens are dealt to groups in pairs of stretches from both ends (zig-zag with unequal stretches), so under the causal
mask queries of group j and keys of group i make S_j S_i / 2 pairs, whichever comes first. Messages take a latency and
bytes over the slower of the two ports, counted apart for the node's links and the network; receive buffers are two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.collectives import Link, nested_all_gather
from assay.sim.compiled import njit
from assay.sim.models import Model
from assay.training.engine.costs import ATTENTION_AGAIN
from assay.training.hexiseq.machines import Machines
from assay.training.interface import Floats, Ints

STATE = 16.0  # bytes a parameter: weights, gradients, master copy and Adam's moments
ITEM = 2.0
BUFFERS = 2  # keys and values on their way in


@dataclass(frozen=True)
class Work:
    """One sequence of `seq` tokens through a model: what its layers take for a token and for a pair of tokens."""

    seq: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    token_flops: float  # of one layer's products
    last_flops: float  # of the last product, to the vocabulary
    weights: float  # parameters of one layer
    params: float
    token_kept: float  # bytes a token for the whole step
    token_passing: float  # and while a layer runs backward

    @property
    def shared(self) -> int:
        """Heads of queries to one of keys."""
        return self.heads // self.kv_heads


def work(shape: Model, seq: int) -> Work:
    """What a model makes of a sequence.

    Raises:
        BadInput: a model whose layers are not all full attention with keys and values of their own.
    """
    if shape.latent is not None or shape.window_layers or shape.linear_layers:
        raise BadInput(f"model {shape.name}: not all layers are full attention with keys and values; choose another")
    last = 2.0 * shape.hidden * shape.vocab
    weights = (shape.params - shape.vocab * shape.hidden * (1 if shape.tied else 2)) / shape.layers
    mixture = shape.experts
    ffn = shape.ffn if mixture is None else mixture.top_k * mixture.ffn + mixture.shared_ffn
    passing = ITEM * (6 * shape.hidden + 3 * ffn + (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    return Work(
        seq, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, (shape.flops(1) - last) / shape.layers, last,
        weights, shape.params, ITEM * shape.hidden * shape.layers, passing,
    )  # fmt: skip


@dataclass(frozen=True)
class Split:
    """Who does what: the all-to-all group of each rank (groups are numbered in the ring's order), tokens and heads.

    >>> Split(np.array([0, 0, 1]), np.array([3, 1, 2]), np.array([6, 2, 8])).lengths.tolist()
    [4, 2]
    """

    group: Ints
    tokens: Ints
    heads: Ints

    @property
    def groups(self) -> int:
        """How many."""
        return int(self.group.max()) + 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each group."""
        return np.bincount(self.group, weights=self.tokens).astype(np.int64)

    def check(self, job: Work) -> None:
        """Raise ValueError where tokens or heads are missing or negative."""
        if self.tokens.min() < 0 or self.heads.min() < 0 or self.tokens.sum() != job.seq:
            raise ValueError(f"{int(self.tokens.sum())} tokens are dealt, {job.seq} expected, none negative")
        owned = np.bincount(self.group, weights=self.heads)
        if (owned != job.heads).any():
            raise ValueError(f"groups have {owned.min():g} to {owned.max():g} heads; all {job.heads} expected in each")


@dataclass(frozen=True)
class Pace:
    """Seconds of a step; of each group the seconds it works and waits; bytes of each rank."""

    seconds: float
    busy: Floats  # of each group, seconds until its part of all passes is done
    compute: Floats  # of each group, seconds of products and attention alone
    memory: Floats
    fits: bool


class Clockwork:
    """A cluster and a job laid out for compiled code: asks for any split's seconds."""

    def __init__(self, on: Machines, job: Work) -> None:
        self.on, self.job = on, job
        inside, outside = Link(on.near, float(on.inside.min())), Link(on.far, float(on.outside.min()))
        per_node = int(np.unique(on.node, return_counts=True)[1].min())
        self.gather = nested_all_gather(on.ranks, per_node, ITEM * job.weights / on.ranks, inside, outside)
        self.state = STATE * job.params / on.ranks + 2 * ITEM * job.weights
        self._rank = np.ascontiguousarray([on.matrix, on.attention, on.inside, on.outside, on.memory])
        self._job = np.array(
            [job.layers, job.heads, job.shared, job.dim, job.token_flops, job.last_flops, job.token_kept
             + job.token_passing, self.state, self.gather, on.near, on.far, ATTENTION_AGAIN]
        )  # fmt: skip

    def pace(self, split: Split) -> Pace:
        """Of one split; memory that is exceeded is an answer."""
        order, ptr = laid(split.group)
        seconds, busy, compute, memory = solve(
            order, ptr, split.tokens, split.heads, self.on.node, self._rank, self._job
        )
        return Pace(float(seconds), busy, compute, memory, bool((memory <= self.on.memory).all()))

    def arrays(self) -> tuple[Any, ...]:
        """What compiled searches take."""
        return self.on.node, self._rank, self._job


def laid(group: Ints) -> tuple[Ints, Ints]:
    """Ranks group by group, and where each group begins."""
    return np.argsort(group, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64)


@njit(cache=True, nogil=True)
def _swap(ranks: Any, tokens: Any, heads: Any, node: Any, rank: Any, job: Any, sent: Any, asked: Any) -> Any:
    """Seconds of a group's all-to-alls before and after attention."""
    if len(ranks) == 1:
        return 0.0, 0.0
    shared, item = job[2], 2.0 * job[3]
    before = after = 0.0
    every_token = every_head = 0.0
    for r in ranks:
        sent[node[r]] = 0.0
        asked[node[r]] = 0.0
    for r in ranks:
        wide = item * (heads[r] + 2 * np.ceil(heads[r] / shared))
        sent[node[r]] += tokens[r]
        asked[node[r]] += wide
        every_token += tokens[r]
        every_head += wide
    for r in ranks:
        wide = item * (heads[r] + 2 * np.ceil(heads[r] / shared))
        plain = heads[r] * item / wide if wide > 0 else 0.0  # what comes back is queries' heads alone
        inside, outside = rank[2, r], rank[3, r]
        near_out, near_in = tokens[r] * (asked[node[r]] - wide), (sent[node[r]] - tokens[r]) * wide
        far_out, far_in = tokens[r] * (every_head - asked[node[r]]), (every_token - sent[node[r]]) * wide
        before = max(before, max(near_out, near_in) / inside, max(far_out, far_in) / outside)
        q_share = job[1] * item / every_head
        near_out, far_out = near_out * q_share, far_out * q_share  # the same tokens come back, queries' part of them
        after = max(after, max(near_out, near_in * plain) / inside, max(far_out, far_in * plain) / outside)
    spans = False
    for r in ranks:
        spans |= node[r] != node[ranks[0]]
    latency = job[10] if spans else job[9]
    return latency + before, latency + after


@njit(cache=True, nogil=True)
def _hop(here: Any, there: Any, heads: Any, node: Any, rank: Any, job: Any, load: Any) -> Any:
    """Seconds a token that keys and values take from one group to the next: every interval of heads to its owner.

    Both groups' heads lie in the order of their ranks; a piece of the common refinement has one owner on either side.
    """
    shared, item = job[2], 4.0 * job[3]
    for r in here:
        load[r, :] = 0.0
    for r in there:
        load[r, :] = 0.0
    a = b = 0
    at, end_a, end_b = 0, heads[here[0]], heads[there[0]]
    while at < job[1]:
        while end_a <= at:
            a += 1
            end_a += heads[here[a]]
        while end_b <= at:
            b += 1
            end_b += heads[there[b]]
        to = min(end_a, end_b)
        nbytes = item * (np.ceil(to / shared) - np.floor(at / shared))
        far = 0 if node[here[a]] == node[there[b]] else 1
        load[here[a], far] += nbytes
        load[there[b], far] += nbytes
        at = to
    worst = 0.0
    for side in (here, there):
        for r in side:
            worst = max(worst, load[r, 0] / rank[2, r], load[r, 1] / rank[3, r])
    return worst


@njit(cache=True, nogil=True)
def _ring(lengths: Any, starts: Any, after: Any, pair: Any, hop: Any, latency: float, ways: float) -> Any:
    """When each group is done with all keys and values, and has its outputs back."""
    k = len(lengths)
    arrived, previous = starts.copy(), starts.copy()  # the block of this step, of the step before
    done, earlier = np.empty(k), starts.copy()
    for j in range(k):
        done[j] = starts[j] + lengths[j] * lengths[j] / 2 * pair[j]
    for t in range(1, k):
        previous[:] = arrived
        for j in range(k):
            i = (j - t) % k
            before = (j - 1) % k
            # A hop begins when its sender has the block, the receiver's port is free, and a buffer is.
            begin = max(previous[before], previous[j], earlier[j])
            arrived[j] = begin + ways * (latency + lengths[i] * hop[j])
            earlier[j] = done[j]
            done[j] = max(done[j], arrived[j]) + lengths[j] * lengths[i] / 2 * pair[j]
    for j in range(k):
        home = latency + lengths[j] * hop[j] if ways > 1 and k > 1 else 0.0  # gradients go on to their owner
        done[j] += home + after[j]
    return done


@njit(cache=True, nogil=True)
def solve(order: Any, ptr: Any, tokens: Any, heads: Any, node: Any, rank: Any, job: Any) -> Any:
    """Seconds of a step; of groups when they are done and what they compute; of ranks their bytes."""
    k, n = len(ptr) - 1, len(order)
    layers, shared, dim, per_token, last = job[0], job[2], job[3], job[4], job[5]
    lengths, products, pair, hop = np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k)
    before, after = np.zeros(k), np.zeros(k)
    sent, asked, load = np.zeros(n), np.zeros(n), np.zeros((n, 2))
    end = 0.0
    for j in range(k):
        ranks = order[ptr[j] : ptr[j + 1]]
        for r in ranks:
            lengths[j] += tokens[r]
            products[j] = max(products[j], tokens[r] * per_token / rank[0, r])
            pair[j] = max(pair[j], heads[r] * 4 * dim / rank[1, r])
            end = max(end, 3 * tokens[r] * last / rank[0, r])
        before[j], after[j] = _swap(ranks, tokens, heads, node, rank, job, sent, asked)
    spans = False
    for r in order:
        spans |= node[r] != node[order[0]]
    for j in range(k if k > 1 else 0):
        p = (j - 1) % k
        hop[j] = _hop(order[ptr[p] : ptr[p + 1]], order[ptr[j] : ptr[j + 1]], heads, node, rank, job, load)
    latency = job[10] if spans else job[9]
    once = _ring(lengths, products + before, after, pair, hop, latency, 1.0)
    again = _ring(lengths, 2 * products + before, after, job[11] * pair, hop, latency, 2.0)
    seconds = layers * (2 * max(once.max(), job[8]) + max(again.max(), 2 * job[8])) + end
    compute = layers * (4 * products + (2 + job[11]) * pair * lengths * lengths.sum() / 2)
    memory = np.empty(n)
    longest = lengths.max() if k > 1 else 0.0
    for j in range(k):
        for r in order[ptr[j] : ptr[j + 1]]:
            keys = np.ceil(heads[r] / shared)
            own = lengths[j] * dim * (8 * heads[r] + 8 * keys)  # in, out and their gradients, two bytes each
            memory[r] = job[7] + tokens[r] * job[6] + own + BUFFERS * longest * keys * dim * 8
    return seconds, layers * (2 * once + again), compute, memory
