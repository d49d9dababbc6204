"""Rows and their edges in the order of the file, and work that runs ahead of who needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from assay.data.atlas.layers import Floats
from assay.data.disk.arrays import Array, DiskArray
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import Bytes, Int64s, aligned

ENDS = 4096  # nodes whose ends of edges are read together
DEEP = 2  # reads of a stream under way at once

Progress = Callable[[int], None]
T = TypeVar("T")
R = TypeVar("R")


def pieces(
    graph: DiskGraph, rows: Iterator[tuple[int, Array]], edges: Iterator[tuple[int, Array]]
) -> Iterator[tuple[int, Floats, Int64s, int, Array]]:
    """Yield (first node, its chunk's rows, bounds of their edges, first edge, what `edges` has of them).

    Both streams are (first, some of a file's rows), such as the graph's targets. A chunk whose edges are in several of
    the latter comes in several pieces.
    """
    held, along = 0, np.empty(0, np.int32)
    ends: Iterator[Int64s] | None = None
    for first, raw in rows:
        x = raw.astype(np.float32, copy=False)
        ends = _bounds(graph, len(x)) if ends is None else ends
        bounds = next(ends)
        start, stop = int(bounds[0]), int(bounds[-1])
        while True:
            if start < stop and start >= held + len(along):
                held, along = next(edges)
            piece = along[start - held : stop - held]
            yield first, x, bounds, start, piece
            start += len(piece)
            if start >= stop:
                break


def _bounds(graph: DiskGraph, rows: int) -> Iterator[Int64s]:
    """Yield where the edges of the next so many nodes begin and end; those of the nodes behind are under way."""
    step = max(ENDS // rows, 1) * rows
    coming: Callable[[], Int64s] | None = None
    for at in range(0, graph.n, step):
        held = coming() if coming else graph.indptr.rows(at, min(at + step, graph.n) + 1)
        after = at + step
        coming = graph.indptr.rows_async(after, min(after + step, graph.n) + 1) if after < graph.n else None
        for a in range(0, len(held) - 1, rows):
            yield held[a : a + rows + 1]


def blocks(array: DiskArray, rows: int) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows) in order, each until the next one is asked for; up to DEEP are being read meanwhile.

    One read at a time would be waited for: a request of some hundred kilobytes takes longer than to add them up. And
    all are read into the same few places: pages of memory that are asked for and returned take as long as to fill them.
    """
    starts = iter(range(0, len(array), rows))
    coming: deque[tuple[int, Bytes, Callable[[], Array]]] = deque()

    def begin(room: Bytes) -> None:
        if (start := next(starts, None)) is not None:
            coming.append((start, room, array.rows_into_async(start, min(start + rows, len(array)), room)))

    for _ in range(min(DEEP + 1, -(-len(array) // rows))):
        begin(aligned(array.room(rows)))
    while coming:
        start, room, wait = coming.popleft()
        yield start, wait()
        begin(room)


def shared(work: Callable[[T, R], None], items: Iterator[T], rooms: Sequence[R]) -> Iterator[T]:
    """Do `work` on every item, as many at once as there are rooms, each in one of them; yield items that are done.

    >>> sums = [0, 0]
    >>> def add(item, room): sums[item % 2] += item + room
    >>> list(shared(add, iter([4, 5]), [10])), sums
    ([4, 5], [14, 15])
    """
    free: SimpleQueue[R] = SimpleQueue()
    for room in rooms:
        free.put(room)

    def one(item: T) -> T:
        room = free.get()
        try:
            work(item, room)
        finally:
            free.put(room)
        return item

    under_way: deque[Future[T]] = deque()
    with ThreadPoolExecutor(len(rooms), thread_name_prefix="shared") as threads:
        for item in items:
            under_way.append(threads.submit(one, item))
            if len(under_way) > len(rooms):  # one more: nobody waits for the next
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield what `items` yields; it works on the next one, in a thread of its own, while one is used.

    >>> list(ahead(iter([1, 2, 3])))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
