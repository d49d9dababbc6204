"""MERBIT's descriptor of a CSR matrix: the merge list cut into equal tiles, its row ends as bits.

The merge list holds the nonzeros and, after the last of each row, its row end: row i ends at item start[i + 1] + i. It
is cut into tiles of 32 lanes times `items`. One bit an item says which it is; with it and the first row of each tile,
row pointers are not read again. Columns and values stay as they are, or, where a few columns have most of the nonzeros,
columns are numbered anew by popularity, so that what is wanted most of x lies together.

Arrays are NumPy's or CuPy's (`xp`). Only NumPy is imported: `benchmarks/h200_kernels.py` reads this file on machines
that have no assay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LANES = 32
POPULAR = 1 << 15  # columns that a first-level cache holds
WORTH = 0.1  # of the nonzeros that must become near for columns to be numbered anew


class Tiles(NamedTuple):
    """What the kernel reads beside the matrix."""

    bits: Any  # uint32: bit i of word w says whether item 32 w + i is a row end
    row: Any  # int32, a tile: its first row; one more at the end: the number of rows
    tiles: int
    items: int  # of the whole merge list


def tiles(xp: Any, start: Any, nonzeros: int, items: int) -> Tiles:
    """The tiles of the matrix with row pointers `start`, `items` (odd, at most 31) a lane.

    >>> import numpy as np
    >>> made = tiles(np, np.array([0, 2, 3]), 3, items=3)
    >>> f"{made.bits[0]:05b}"  # read from the right: nonzero nonzero end nonzero end
    '10100'
    >>> made.row.tolist()
    [0, 2]
    """
    rows, tile = len(start) - 1, LANES * items
    every = rows + nonzeros
    count = max(1, -(-every // tile))
    ends = start[1:].astype(xp.int64) + xp.arange(rows, dtype=xp.int64)
    is_end = xp.zeros(count * tile + 32, xp.bool_)  # a lane reads a word ahead
    is_end[ends] = True
    bits = xp.packbits(is_end, bitorder="little").view(xp.uint32)
    row = xp.searchsorted(ends, xp.arange(count + 1, dtype=xp.int64) * tile).astype(xp.int32)
    return Tiles(bits, row, count, every)


def popular(xp: Any, col: Any, cols: int) -> tuple[Any, float]:
    """Columns by popularity, most wanted first, and by how much more of the nonzeros the first of them then hold.

    >>> import numpy as np
    >>> order, gained = popular(np, np.array([5, 5, 5, 2]), 6)
    >>> order[:2].tolist()
    [5, 2]
    """
    counts = xp.bincount(col, minlength=cols)
    order = xp.argsort(-counts, kind="stable") if xp.__name__ == "numpy" else xp.argsort(-counts)
    near = min(POPULAR, cols)
    after, before = counts[order[:near]].sum(), counts[:near].sum()
    return order.astype(xp.int32), float(after - before) / max(1, len(col))


def renumbered(xp: Any, col: Any, order: Any) -> Any:
    """Columns by their place in an order."""
    place = xp.empty(len(order), xp.int32)
    place[order] = xp.arange(len(order), dtype=xp.int32)
    return place[col]
