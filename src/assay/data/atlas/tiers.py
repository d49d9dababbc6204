"""The hot tier: accumulators in memory, for as many nodes as there is room, and who must leave when it is full.

A node holds a slot from the first message it gets until its group of rows is complete, or until it is evicted. An
evicted accumulator is a partial sum: the node may come back with an empty slot, and the parts are added up at the end.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.atlas.layers import MAX, SOFTMAX, SUM, Floats, Int32s
from assay.sim.compiled import njit
from assay.sim.random import stream

Int64s = npt.NDArray[np.int64]

POLICIES = ("min-pending", "max-pending", "lru", "random", "belady")
NEVER, SPILLED = -1, -2  # in place of a slot

DONE, MORE, FULL = 0, 1, 2  # how a push ended
ROW, EDGE, OWNED, FREE, READY, CLOCK, RETURNS, LIVE = range(8)  # fields of the state


class HotTier:
    """`slots` accumulators of `width` columns for n nodes whose rows are written in groups of `group`.

    `expected` counts the messages each node will get, its own included.

    >>> tier = HotTier(1, 4, 1, np.array([2, 1, 1, 1], np.int32), group=4, reduce=SUM)
    >>> x = np.array([[10.0]], np.float32)
    >>> tier.push(0, x, x, np.array([0, 1]), 0, np.array([0], np.int32), False, None) == DONE
    True
    >>> tier.acc[0].tolist(), tier.pending.tolist()
    ([20.0], [0, 1, 1, 1])
    """

    def __init__(self, slots: int, n: int, width: int, expected: Int32s, group: int, reduce: int) -> None:
        self.n, self.width, self.group, self.reduce = n, width, group, reduce
        self.acc = np.zeros((slots, width), np.float32)
        self.owner = np.full(slots, -1, np.int32)
        self.stamp = np.zeros(slots, np.int32)
        self.free = np.arange(slots, dtype=np.int32)[::-1].copy()
        self.slot_of = np.full(n, NEVER, np.int32)
        self.pending = expected
        groups = -(-n // group)
        self.complete = np.zeros(groups, np.int16 if group < 2**15 else np.int32)
        self.broken = np.zeros(groups, np.bool_)  # a row of it was evicted: it is put together at the end
        self.ready = np.empty(groups, np.int32)
        self.state = np.zeros(8, np.int64)
        self.state[FREE] = slots
        # One argument for all of these: Python 3.11 keeps up to 2,000 tuples of twenty arguments, and uses none again.
        self._arrays = (
            self.acc, self.owner, self.stamp, self.free, self.slot_of, self.pending, self.complete, self.broken,
            self.ready,
        )  # fmt: skip
        self.evicted = 0

    def push(
        self, first: int, sent: Floats, own: Floats, bounds: Int64s, start: int, targets: Int32s, drop: bool,
        facing: Floats | None,
    ) -> int:  # fmt: skip
        """Add a piece of the stream: the targets of edges from `start` on, whose sources begin with node `first`.

        Ends with DONE after the last row, MORE where further edges are needed, FULL where a slot is. The next push
        goes on where this one ended.
        """
        facing = np.empty((0, 0), np.float32) if facing is None else facing
        return int(_push(
            self.state, first, sent, own, bounds, start, targets, drop, facing, self.reduce, self._arrays, self.group,
        ))  # fmt: skip

    def count(self, targets: Int32s, start: int) -> int:
        """As `push`, of messages without content, by the number of the first one; no sender has a term of its own."""
        nothing = np.empty((1, 0), np.float32)
        self.state[OWNED] = 1
        return self.push(-1, nothing, nothing, np.array([start, start + len(targets)]), start, targets, False, None)

    def begin_chunk(self) -> None:
        """The next push begins with the first row of another chunk."""
        self.state[[ROW, EDGE, OWNED]] = 0
        self.state[CLOCK] += 1

    @property
    def returns(self) -> int:
        """How often a message came for a node that had been evicted: another part of it to write and to read."""
        return int(self.state[RETURNS])

    @property
    def live(self) -> int:
        """The most nodes that held a slot at once."""
        return int(self.state[LIVE])

    def ready_rows(self) -> Int64s:
        """The nodes of complete groups, ascending; the list begins anew."""
        groups = np.sort(self.ready[: self.state[READY]]).astype(np.int64)
        self.state[READY] = 0
        rows = (groups[:, None] * self.group + np.arange(self.group)).ravel()
        return rows[rows < self.n]

    def take(self, nodes: Int64s) -> Floats:
        """The accumulators of these nodes, whose slots become free."""
        slots = self.slot_of[nodes]
        self._release(nodes, slots, NEVER)
        return self.acc[slots]

    def evict(self, nodes: Int64s, put: Callable[[Int64s, Floats, Int32s], None]) -> None:
        """Hand the accumulators of these nodes to `put(nodes, accumulators, slots)`; their groups are broken."""
        slots = self.slot_of[nodes]
        put(nodes, self.acc, slots)
        self._release(nodes, slots, SPILLED)
        self.broken[nodes // self.group] = True
        self.evicted += len(nodes)

    def _release(self, nodes: Int64s, slots: Any, mark: int) -> None:
        self.owner[slots] = -1
        top = int(self.state[FREE])
        self.free[top : top + len(slots)] = slots
        self.state[FREE] = top + len(slots)
        self.slot_of[nodes] = mark

    def victims(self, count: int, policy: str, seed: int = 0, arrivals: tuple[Int64s, Int64s] | None = None) -> Int64s:
        """`count` nodes to evict, ascending. Complete ones leave first, whatever the policy.

        `arrivals` are (indptr, sources) of every node's messages in the order of the stream: what Belady knows.
        """
        if policy not in POLICIES or (policy == "belady" and arrivals is None):
            raise ValueError(f"no eviction policy '{policy}'; one of {', '.join(POLICIES[:-1])} expected")
        indptr, sources = arrivals if arrivals else (np.empty(0, np.int64), np.empty(0, np.int64))
        chance = np.empty(0, np.int64)
        if policy == "random":
            rng = stream(seed, "atlas-evicts", int(self.state[CLOCK]), self.evicted)
            chance = rng.permutation(len(self.owner))
        nodes, keys = _keys(
            self.owner, self.pending, self.stamp, POLICIES.index(policy), chance, indptr, sources,
            len(self.owner) - int(self.state[FREE]),
        )  # fmt: skip
        count = min(count, len(nodes))
        chosen: Int64s = nodes[np.argpartition(keys, count - 1)[:count]] if count else nodes[:0]
        return np.sort(chosen)


@njit(cache=True, nogil=True)
def _keys(owner, pending, stamp, rule, chance, indptr, sources, hot):
    """The nodes in the tier, and a key by which the least of them leave first."""
    nodes, keys = np.empty(hot, np.int64), np.empty(hot, np.int64)
    i = 0
    for s in range(len(owner)):
        v = np.int64(owner[s])
        if v < 0:
            continue
        left = np.int64(pending[v])
        nodes[i] = v
        if left == 0:
            keys[i] = -(1 << 62)
        elif rule == 0:
            keys[i] = left
        elif rule == 1:
            keys[i] = -left
        elif rule == 2:
            keys[i] = stamp[s]
        elif rule == 3:
            keys[i] = chance[s]
        else:
            keys[i] = -sources[indptr[v + 1] - left]
        i += 1
    return nodes, keys


@njit(cache=True, nogil=True)
def absorb(acc, s, row, reduce, columns, facing, v, heads):
    """Add one message to accumulator s. Without a sign there is no test for negative numbers, and loops use vectors."""
    s = np.uintp(s)
    if reduce == SUM:
        for j in range(columns):
            acc[s, j] += row[j]
    elif reduce == MAX:
        for j in range(columns):
            acc[s, j] = max(acc[s, j], row[j])
    else:
        per = (columns - heads) // heads
        for h in range(heads):
            logit = row[h] + facing[v, h]
            logit = logit if logit > 0 else np.float32(0.2) * logit
            _soft(acc, s, h, heads, per, logit, np.float32(1), row, heads)


@njit(cache=True, nogil=True)
def _soft(acc, s, h, heads, per, top, total, row, skip):
    """Merge a softmax-weighted part, whose largest logit is `top`, into head h: both are scaled to the larger one."""
    base, at, per = np.uintp(2 * heads + h * per), np.uintp(skip + h * per), np.uintp(per)
    if top <= acc[s, h]:
        scale = np.exp(top - acc[s, h])
        acc[s, heads + h] += total * scale
        for j in range(per):
            acc[s, base + j] += scale * row[at + j]
    else:
        scale = np.exp(acc[s, h] - top)
        acc[s, h] = top
        acc[s, heads + h] = acc[s, heads + h] * scale + total
        for j in range(per):
            acc[s, base + j] = acc[s, base + j] * scale + row[at + j]


@njit(cache=True, nogil=True)
def merge(acc, s, part, reduce, columns, heads):
    """Add another partial accumulator of the same node to accumulator s; `columns` of it are maxima, under MAX."""
    s = np.uintp(s)
    if reduce == SUM:
        for j in range(acc.shape[1]):
            acc[s, j] += part[j]
        return
    if reduce == SOFTMAX:
        per = (acc.shape[1] - 2 * heads) // heads
        for h in range(heads):
            _soft(acc, s, h, heads, per, part[h], part[heads + h], part, 2 * heads)
        return
    for j in range(acc.shape[1]):
        if reduce == MAX and j < columns:
            acc[s, j] = max(acc[s, j], part[j])
        else:
            acc[s, j] += part[j]


@njit(cache=True, nogil=True)
def clear(acc, s, reduce, columns, heads):
    """Begin accumulator s anew: nothing added, no maximum, no weight."""
    acc[s, :] = 0
    if reduce == MAX:
        acc[s, :columns] = -np.inf
    elif reduce == SOFTMAX:
        acc[s, :heads] = -np.inf


@njit(cache=True, nogil=True)
def _push(state, first, sent, own, bounds, start, targets, drop, facing, reduce, arrays, group):
    acc, owner, stamp, free, slot_of, pending, complete, broken, ready = arrays
    columns, heads, stop = sent.shape[1], facing.shape[1], start + len(targets)
    rows, n = len(bounds) - 1, len(pending)
    row = state[ROW]
    while row < rows:
        # A node's own term is one more message, before those along its edges.
        e = max(state[EDGE], bounds[row]) - 1 + state[OWNED]
        last = min(bounds[row + 1], stop)
        while e < last:
            v = first + row if not state[OWNED] else np.int64(targets[e - start])
            if state[OWNED] and drop and v == first + row:
                e += 1
                continue
            s = slot_of[v]
            if s < 0:
                if state[FREE] == 0:
                    state[ROW] = row
                    state[EDGE] = max(e, bounds[row])
                    return FULL
                state[FREE] -= 1
                state[RETURNS] += s == SPILLED
                s = free[state[FREE]]
                slot_of[v], owner[s] = s, v
                clear(acc, s, reduce, columns, heads)
                state[LIVE] = max(state[LIVE], len(owner) - state[FREE])
            if state[OWNED]:
                absorb(acc, s, sent[row], reduce, columns, facing, v, heads)
            else:
                merge(acc, s, own[row], reduce, columns, heads)
            stamp[s] = state[CLOCK]
            pending[v] -= 1
            if pending[v] == 0 and not broken[v // group]:
                g = v // group
                complete[g] += 1
                if complete[g] == min(group, n - g * group):
                    ready[state[READY]] = g
                    state[READY] += 1
            state[OWNED] = 1
            e += 1
        if bounds[row + 1] > stop:
            state[ROW], state[EDGE] = row, stop
            return MORE
        row += 1
        state[OWNED] = 0
        state[EDGE] = 0
    state[ROW] = row
    return DONE


@njit(cache=True, nogil=True)
def clear_all(acc, reduce, columns, heads):
    """Begin every accumulator anew; all of them at once, which takes a tenth of the time of one after another."""
    acc[:] = 0
    least = columns if reduce == MAX else heads if reduce == SOFTMAX else 0
    if least:
        acc[:, :least] = -np.inf
