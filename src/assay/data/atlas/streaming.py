"""Rows and their edges in the order of the file, and work that runs ahead of who needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from assay.data.atlas.layers import Floats, Int32s
from assay.data.disk.arrays import DiskArray
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import Int64s

ENDS = 4096  # nodes whose ends of edges are read together

Progress = Callable[[int], None]
T = TypeVar("T")


def pieces(
    graph: DiskGraph, source: DiskArray, rows: int, edges: int, beside: Sequence[DiskArray] = ()
) -> Iterator[tuple[int, Floats, Int64s, int, Int32s, list[Floats]]]:
    """Yield (first node, its chunk's rows, bounds of their edges, first edge, targets, weights); the next is under way.

    A chunk with more than `edges` edges comes in several pieces. `beside` are files with four bytes for each edge.
    """
    reading = zip(graph.indices.stream(edges), *(array.stream(edges) for array in beside), strict=True)
    held, targets, weights = 0, np.empty(0, np.int32), [np.empty(0, np.float32) for _ in beside]
    ends_at, ends = 0, np.empty(0, np.int64)
    for first, raw in source.stream(rows):
        x = raw.astype(np.float32, copy=False)
        if first + len(x) + 1 > ends_at + len(ends):
            ends_at, ends = first, graph.indptr.rows(first, min(first + max(len(x), ENDS), graph.n) + 1)
        bounds = ends[first - ends_at : first - ends_at + len(x) + 1]
        start, stop = int(bounds[0]), int(bounds[-1])
        while True:
            if start < stop and start >= held + len(targets):
                (held, targets), *others = next(reading)
                weights = [values for _, values in others]
            a, b = start - held, stop - held
            piece = targets[a:b]
            yield first, x, bounds, start, piece, [values[a:b] for values in weights]
            start += len(piece)
            if start >= stop:
                break


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
