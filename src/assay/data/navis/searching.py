"""What is near a query: a walk, a look at the vectors it found, and a longer walk where too few of them live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.data.navis import pages
from assay.data.navis.seek import REQUESTS, STEPS, WANTED, Array, Scratch
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.data.navis.index import Navis

LEAST = 32  # vectors that a search reads
FEW, FEW_SHARE = 2000, 0.05  # nodes of a tag, or of all: where so few have it, each of them is looked at


def search(index: Navis, queries: Array, k: int, breadth: int | None, tag: str | None) -> tuple[Array, Array]:
    """Ids and squared distances of the nearest, as :meth:`Navis.search` tells them."""
    rows = np.atleast_2d(np.asarray(queries, np.float32))
    if index.nodes is None or rows.shape[1] != index.config.width:
        there = f"the vectors here {index.config.width}" if index.nodes is not None else "there is no index here"
        raise BadInput(f"queries have {rows.shape[1]} numbers, and {there}; the same width expected")
    breadth = max(breadth or index.config.search, k)
    if tag is not None:
        with index.gate.walking():
            some = np.flatnonzero(index.nodes.tagged(tag)).astype(np.int32)
            if len(some) <= max(FEW, FEW_SHARE * index.nodes.count):
                near, far = pages.nearest_of(index, some, rows, k)
                return np.where(near >= 0, index.nodes.ids[near], -1), far
    found = index._each(lambda query: _search(index, query, k, breadth, tag), list(rows))
    return np.stack([ids for ids, _ in found]), np.stack([far for _, far in found])


def _search(index: Navis, query: Array, k: int, breadth: int, tag: str | None = None) -> tuple[Array, Array]:
    ids, exact = np.full(k, -1, np.int64), np.full(k, np.inf, np.float32)
    top, answered = k, False
    while not answered:
        with index.gate.walking():
            nodes, generation = index.nodes, index.generation
            assert nodes is not None
            wanted = ~nodes.dead[: nodes.count] if tag is None else nodes.tagged(tag)
            live = nodes.count - nodes.lost if tag is None else int(wanted.sum())
            # The dead, and those of other tags, are passed and not answered.
            while top < nodes.count and top * live < k * nodes.count:
                top, breadth = 2 * top, 2 * breadth
            # Codes order near ones badly, and those far from what they were trained on not at all: however few are
            # asked for, look at some, and at more where more breadth is given.
            some = max(index.config.rerank * top, LEAST, breadth // 2)
            first = breadth if index.config.packed else min(some, breadth)
            x, _, _ = index._walk(query, breadth, min(top, breadth), first, breadth, True)
            count = int(x.tally[WANTED])
            near, far = x.ids[:count].copy(), x.exact[:count].copy()
            order = np.lexsort((near, far))
            order = order[wanted[near[order]]][:k]
            if len(order) < min(k, live) and breadth >= nodes.count:
                living = np.flatnonzero(wanted).astype(np.int32)
                near, far = (found[0, :live] for found in pages.nearest_of(index, living, query[None], k))
                order = np.arange(len(near))
            ids[: len(order)], exact[: len(order)] = nodes.ids[near[order]], far[order]
        index.did.search_reads += int(x.tally[REQUESTS])
        _learn(index, x, breadth, breadth, generation)
        answered = len(order) >= min(k, live) or breadth >= nodes.count
        top, breadth = 2 * top, 2 * breadth
    index.did.searches += 1
    return ids, exact


def _learn(index: Navis, x: Scratch, breadth: int, want: int, generation: int) -> None:
    """Let the cache learn from a walk: now if nobody walks, else when somebody changes something anyway."""
    if index._pool is not None and not index.gate.free() and index._late.qsize() < 64:
        index._late.put((generation, _copied(x, index.geo.by_page)))
    else:
        with index.gate.changing():
            if generation == index.generation:
                index.cache.learn(index.view, x)
    index._release(x, breadth, want)


def _copied(x: Scratch, pages_too: bool) -> Scratch:
    """What the cache learns from, in memory of its own."""
    steps = int(x.tally[STEPS])
    return x._replace(
        expanded=x.expanded[:steps].copy(), expanded_hop=x.expanded_hop[:steps].copy(), lists=x.lists[:steps].copy(),
        source=x.source[:steps].copy(), vector_row=x.vector_row[:steps].copy(), tally=x.tally.copy(),
        pages=x.pages.copy() if pages_too else x.pages,
    )  # fmt: skip
