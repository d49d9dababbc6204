"""Collectives as the sends they consist of: who passes which part of the vector to whom, after which other sends.

`execute` performs them on buffers, `arrivals` tells when each has arrived where every queue has a wire of its own, and
:func:`assay.sim.links.deliver` when they share the links of a network. How long the whole takes in closed form stands
in :mod:`assay.sim.collectives`.

>>> sends = ring_sends("all_reduce", ranks=3, count=6)
>>> sends.sent().tolist()  # 2(p-1)/p of the vector
[8, 8, 8]
>>> execute(sends, np.arange(18.0).reshape(3, 6))[0].tolist()
[18.0, 21.0, 24.0, 27.0, 30.0, 33.0]

- Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009: the ring.
- Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", ParCo 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.compiled import njit
from assay.sim.links import rows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sends:
    """The sends of one collective, in an order in which each comes after all it waits for.

    Send i passes `size[i]` elements from `start[i]` on of rank `src[i]` into rank `dst[i]` at `into[i]`, where they are
    added or take the place of what is there. It waits for those it comes `after` to arrive, and for the one before it
    in its `queue` to leave.
    """

    op: str
    ranks: int
    count: int  # elements of each rank's buffer
    src: Ints
    dst: Ints
    start: Ints
    into: Ints
    size: Ints
    adds: NDArray[np.bool_]
    channel: Ints
    queue: Ints
    after_ptr: Ints
    after: Ints

    def __len__(self) -> int:
        return self.src.size

    def sent(self) -> Ints:
        """Elements that each rank sends."""
        return np.bincount(self.src, self.size, self.ranks).astype(np.int64)

    def received(self) -> Ints:
        """Elements that each rank receives."""
        return np.bincount(self.dst, self.size, self.ranks).astype(np.int64)


def execute(sends: Sends, buffers: ArrayLike, order: ArrayLike | None = None) -> NDArray[Any]:
    """What each rank holds after the collective; `order` is another order in which to perform the sends."""
    given = np.asarray(buffers)
    if given.shape != (sends.ranks, sends.count):
        raise ValueError(f"buffers of shape {given.shape}; ({sends.ranks}, {sends.count}) expected")
    held = given.copy()
    source = given if sends.op == "all_to_all" else held  # parts that arrive must not be sent on
    for i in np.arange(len(sends)) if order is None else np.asarray(order):
        part = source[sends.src[i], sends.start[i] : sends.start[i] + sends.size[i]]
        place = held[sends.dst[i], sends.into[i] : sends.into[i] + sends.size[i]]
        place[...] = place + part if sends.adds[i] else part
    return held


def ring_sends(
    op: str, ranks: int, count: int, *, channels: int = 1, chunk: int | None = None, slices: int = 1
) -> Sends:
    """All-reduce, all-gather or reduce-scatter round a ring, each channel on its own part and chunk after chunk.

    Args:
        op: all_reduce, all_gather or reduce_scatter; for the last two a buffer holds one part for each rank.
        ranks: around the ring.
        count: elements of a buffer.
        channels: parts that go round side by side.
        chunk: elements that a rank passes on at most in one step; a part of `ranks` chunks is one loop.
        slices: pieces of a chunk that are passed on as soon as they are there.
    """
    steps = {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op)
    if steps is None:
        raise ValueError(f"no ring for '{op}'; there are all_reduce, all_gather and reduce_scatter")
    whole = op == "all_reduce"
    if not whole and count % ranks:
        raise ValueError(f"{op}: {count} elements are not one equal part for each of {ranks} ranks")
    per = count if whole else count // ranks
    reach = max(1, per) if chunk is None else chunk * (ranks if whole else 1)  # elements of one loop
    number = np.arange(steps * slices * ranks).reshape(steps, slices, ranks)
    step, piece, rank = (x.astype(np.int64) for x in np.unravel_index(number, number.shape))
    which = (rank - step - (op == "reduce_scatter")) % ranks  # the chunk that is passed on
    before = np.where(step > 0, number[step - 1, piece, (rank - 1) % ranks], -1)
    places: list[tuple[Ints, Ints]] = []
    after: list[Ints] = []
    lanes: list[int] = []
    for channel in range(channels):
        low, high = per * channel // channels, per * (channel + 1) // channels
        loops = max(1, -(-(high - low) // reach))
        for loop in range(loops):
            begin, end = (low + (high - low) * x // loops for x in (loop, loop + 1))
            places.append(_pieces(begin, end, which, piece, slices, ranks if whole else 0, per))
            base = len(after) * number.size
            waits = np.where(before >= 0, before + base, before)
            if loop:  # a rank sends on only when its last part of the loop before is there
                waits = np.where(step == 0, base - number.size + number[-1, -1, (rank - 1) % ranks], waits)
            after.append(waits.reshape(-1))
            lanes.append(channel)
    adds = (step < ranks - 1) if op != "all_gather" else np.zeros(step.shape, bool)
    src, add = (np.tile(x.reshape(-1), len(after)) for x in (rank, adds))
    start, size = (np.concatenate([place[i].reshape(-1) for place in places]) for i in (0, 1))
    lane, waits = np.repeat(np.array(lanes, np.int64), number.size), np.concatenate(after)
    pointer = np.concatenate([[0], np.cumsum(waits >= 0)])
    return Sends(
        op, ranks, count, src, (src + 1) % ranks, start, start, size, add, lane, src * channels + lane, pointer,
        waits[waits >= 0],
    )  # fmt: skip


def _pieces(begin: int, end: int, which: Ints, piece: Ints, slices: int, chunks: int, per: int) -> tuple[Ints, Ints]:
    """Where the pieces of a loop's chunks begin, and their sizes: of one vector in `chunks`, or of each rank's part."""
    if chunks:
        cut = which * slices + piece
        first, last = (begin + (end - begin) * x // (chunks * slices) for x in (cut, cut + 1))
    else:
        first, last = (which * per + begin + (end - begin) * x // slices for x in (piece, piece + 1))
    return first, last - first


def double_tree(units: ArrayLike) -> tuple[Ints, Ints]:
    """Two trees over the units (nodes) that ranks lie in, a chain within each: the parent of each rank, -1 at the top.

    Who has children in one tree is a leaf of the other, so that together they use every link both ways.

    >>> [tree.tolist() for tree in double_tree(range(4))]
    [[-1, 2, 0, 2], [1, 3, 1, -1]]
    """
    unit = np.unique(np.asarray(units), return_inverse=True)[1]
    heads = np.array([np.flatnonzero(unit == u)[0] for u in range(unit.max() + 1)])
    n = heads.size
    upper = [_in_order(n)]
    flip = (n - 1 - np.arange(n)) if n % 2 == 0 else (np.arange(n) - 1) % n  # place in the first tree
    back = np.argsort(flip)
    upper.append(np.array([back[p] if p >= 0 else -1 for p in upper[0][flip]]))
    trees = []
    for tree in upper:
        parent = np.empty(unit.size, np.int64)
        for u in range(n):
            members = np.flatnonzero(unit == u)
            parent[members[1:]] = members[:-1]
            parent[members[0]] = heads[tree[u]] if tree[u] >= 0 else -1
        trees.append(parent)
    return trees[0], trees[1]


def _in_order(n: int) -> Ints:
    """Parents of a binary tree in which odd places are leaves: a place's lowest set bit is its height."""
    parent = np.full(n, -1, np.int64)
    for place in range(1, n):
        bit = place & -place
        above = (place - bit) | (2 * bit)
        parent[place] = above if above < n else place - bit
    return parent


def chain(ranks: int) -> Ints:
    """Parents of a chain from rank 0 on.

    >>> chain(4).tolist()
    [-1, 0, 1, 2]
    """
    return np.arange(ranks, dtype=np.int64) - 1


def depths(parent: Ints) -> Ints:
    """How far below the top each rank is.

    >>> depths(np.array([-1, 2, 0, 2])).tolist()
    [0, 2, 1, 2]
    """
    found, at = np.zeros(parent.size, np.int64), parent.copy()
    while (at >= 0).any():
        found += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return found


def tree_sends(
    op: str, parents: Sequence[Ints], count: int, *, channels: int | None = None, chunk: int | None = None
) -> Sends:
    """All-reduce up and down trees, or broadcast down, chunk after chunk; channels take turns in the trees.

    Args:
        op: all_reduce, broadcast or reduce.
        parents: for each tree the parent of each rank, -1 at its top.
        count: elements of a buffer.
        channels: as many as trees unless given.
        chunk: elements of a chunk at most; unless given, a channel's part is one chunk.
    """
    if op not in ("all_reduce", "broadcast", "reduce"):
        raise ValueError(f"no tree for '{op}'; there are all_reduce, broadcast and reduce")
    lanes, ranks = channels or len(parents), parents[0].size
    made = [_tree_once(op, parent) for parent in parents]
    columns: list[tuple[Ints, Ints, Ints, Ints, NDArray[np.bool_], Ints]] = []
    lists: list[Ints] = []
    base = 0
    for lane in range(lanes):
        src, dst, up, after = made[lane % len(made)]
        low, high = count * lane // lanes, count * (lane + 1) // lanes
        pieces = max(1, -(-(high - low) // chunk)) if chunk else 1
        for piece in range(pieces):
            first, last = (low + (high - low) * x // pieces for x in (piece, piece + 1))
            same = np.full(src.size, 1, np.int64)
            columns.append((src, dst, first * same, (last - first) * same, up, lane * same))
            lists += [waits + base for waits in after]
            base += src.size
    src, dst, start, size, adds, lane_of = (np.concatenate([c[i] for c in columns]) for i in range(6))
    queue = (src * ranks + dst) * lanes + lane_of
    return Sends(op, ranks, count, src, dst, start, start, size, adds.astype(bool), lane_of, queue, *rows(lists))


def _tree_once(op: str, parent: Ints) -> tuple[Ints, Ints, NDArray[np.bool_], list[Ints]]:
    """One chunk's way through a tree: source, target, whether it goes up, and what each send waits for."""
    depth = depths(parent)
    below = [np.flatnonzero(parent == rank) for rank in range(parent.size)]
    order = np.argsort(depth, kind="stable")
    places: dict[tuple[str, int], int] = {}
    sends: list[tuple[int, int, bool, Ints]] = []
    if op != "broadcast":
        for rank in order[::-1].tolist():
            if parent[rank] >= 0:
                places["up", rank] = len(sends)
                waits = np.array([places["up", child] for child in below[rank].tolist()], np.int64)
                sends.append((rank, int(parent[rank]), True, waits))
    if op != "reduce":
        for rank in order.tolist():
            above = int(parent[rank])
            if above < 0:
                continue
            top = parent[above] < 0
            own = [("up", child) for child in below[above].tolist()] if top else [("down", above)]
            waits = np.array([places[key] for key in own if key in places], np.int64)
            places["down", rank] = len(sends)
            sends.append((above, rank, False, waits))
    src, dst = (np.array([send[i] for send in sends], np.int64) for i in (0, 1))
    return src, dst, np.array([send[2] for send in sends], bool), [send[3] for send in sends]


def direct_sends(ranks: int, count: int, *, channels: int = 1) -> Sends:
    """An all-to-all: every rank sends each other one its part, nearest first, so many at a time."""
    if count % ranks:
        raise ValueError(f"all_to_all: {count} elements are not one equal part for each of {ranks} ranks")
    ahead, src = (x.reshape(-1) for x in np.indices((ranks - 1, ranks)))
    dst, part, lane = (src + ahead + 1) % ranks, count // ranks, ahead % channels
    before = np.arange(src.size) - channels * ranks  # the same rank's send of `channels` rounds ago
    pointer = np.concatenate([[0], np.cumsum(before >= 0)])
    return Sends(
        "all_to_all", ranks, count, src, dst, dst * part, src * part, np.full(src.size, part, np.int64),
        np.zeros(src.size, bool), lane, src * channels + lane, pointer, before[before >= 0],
    )  # fmt: skip


def arrivals(sends: Sends, per_element: ArrayLike, latency: ArrayLike) -> Floats:
    """When each send has arrived where every queue has a wire of its own: seconds, for each send or for all.

    >>> sends = ring_sends("all_reduce", ranks=4, count=4_000_000)
    >>> round(arrivals(sends, 1e-9, 1e-6).max() * 1e6)  # 6 us, and 6 times 1 MB at 1 GB/s
    6006
    """
    busy = np.broadcast_to(np.asarray(per_element, np.float64), len(sends)) * sends.size
    delay = np.broadcast_to(np.asarray(latency, np.float64), len(sends)).copy()
    queues = np.unique(sends.queue, return_inverse=True)[1]
    return _arrivals(busy, delay, queues.astype(np.int64), sends.after_ptr, sends.after)


@njit(cache=True)
def _arrivals(busy: Floats, delay: Floats, queue: Ints, after_ptr: Ints, after: Ints) -> Floats:
    arrived = np.empty(busy.size)
    free = np.zeros(busy.size)
    for i in range(busy.size):
        begin = free[queue[i]]
        for j in range(after_ptr[i], after_ptr[i + 1]):
            begin = max(begin, arrived[after[j]])
        free[queue[i]] = begin + busy[i]
        arrived[i] = begin + busy[i] + delay[i]
    return arrived
