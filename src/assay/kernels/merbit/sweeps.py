"""A sparse matrix for products whose sums lie in shared memory: rows in groups, nonzeros of each by their columns.

As many rows as have their sums in the shared memory of a multiprocessor are a group; with a range of columns it is a
unit, which one block works on. Where nonzeros come by columns, neighbours want neighbouring entries of x: with 240,000
nonzeros over 2 million columns a sector of four doubles serves 1.3 of them, and a line in the first cache two. All
blocks begin at the first column and go at one pace, so that x is read from memory once even if it is larger than the
second cache. An entry is its value, 16 bits of its column and 16 of its sum: as many bytes as in CSR.

Long rows have several sums, dealt out one nonzero after the other: lanes that add to one sum wait for each other.

Arrays are NumPy's or CuPy's (`xp`). Only NumPy is imported: `benchmarks/h200_merbit.py` reads this file without assay.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

STRIP = 1 << 16  # columns that 16 bits tell apart
GROUP = 32  # entries of one strip that a warp takes at once
APART = 1024  # a row longer than one in so many of its unit's nonzeros has several sums
DEALT = 16  # rows that are dealt out together: whole sectors of y
EMPTY = 0.3  # of the rows without nonzeros from which on they are left out, and cleared apart
GAIN = 0.85  # of the bytes from which on columns are cut into ranges, whose sums must be added up


class Swept(NamedTuple):
    """What the kernel reads."""

    word: Any  # uint32, an entry: its column within a strip, and in the high half its sum within the group
    val: Any  # the values, zeros where 32 entries are filled up
    strip: Any  # int32, 32 entries: their strip
    begin: Any  # int32, a unit: its first 32 entries; one more at the end
    first: Any  # int32, a group: its first sum; one more at the end
    target: Any  # int32, a sum: its row, or ~row where other sums are added to it
    clear: Any  # int32: rows to be cleared before; None: all
    units: int
    groups: int
    room: int  # sums of the largest group, and one for what fills up


def ranges(rows: int, cols: int, nonzeros: int, size: int, multiprocessors: int, most: int) -> tuple[int, int]:
    """Into how many groups of rows and ranges of columns to cut: whole rounds of units, the fewest bytes of x and sums.

    Ranges keep what a unit wants of x together, but their sums must be added up. Counted as if columns were anywhere.

    >>> ranges(2_000_000, 2_000_000, 32_000_000, 8, 132, 29_000)
    (132, 1)
    >>> ranges(150_000, 1_000_000, 64_000_000, 8, 132, 29_000)
    (11, 12)
    """
    for times in range(1, 65):
        units, moved = multiprocessors * times, {}
        for cut in range(1, units + 1):
            if units % cut == 0 and rows * cut / units <= 0.9 * most:
                sectors = max(1.0, cols * size / 32 / cut)
                wanted = units * sectors * -math.expm1(-nonzeros / units / sectors) * 32
                moved[cut] = nonzeros * (size + 4) + wanted + rows * (size + 4 if cut == 1 else cut * 36 + size)
        if moved:
            best = min(moved, key=moved.__getitem__)
            best = best if moved[best] < GAIN * moved[1] else 1
            return units // best, best
    return -(-rows // max(1, int(0.9 * most))), 1


class _Sums(NamedTuple):
    start: Any  # int64, a kept row: its first sum; one more at the end
    parts: Any  # a kept row: how many sums
    row: Any  # int32, a sum: its row
    kept: Any  # rows that have sums in the order of those, or None: all as they come
    absent: Any  # rows that have none


def _sums(xp: Any, counts: Any, longest: int, dealt: int) -> _Sums:
    """The sums of each row, several where it is long; rows as they come, or dealt out to so many groups."""
    kept, absent = xp.flatnonzero(counts), xp.flatnonzero(counts == 0)
    if len(kept) >= (1 - EMPTY) * len(counts):
        kept, absent = None, absent[:0]
    if dealt:
        kept = xp.arange(len(counts)) if kept is None else kept
        place = xp.arange(len(kept), dtype=xp.int64)
        kept = kept[xp.argsort(place // DEALT % dealt * len(kept) + place)]
    its = counts if kept is None else counts[kept]
    parts = xp.maximum(1, -(-its // longest)).astype(xp.int64)
    start = xp.concatenate([xp.zeros(1, xp.int64), xp.cumsum(parts)])
    owner = xp.searchsorted(start[1:], xp.arange(int(start[-1]), dtype=xp.int64), side="right")
    row = owner if kept is None else kept[owner]
    return _Sums(start, parts, row.astype(xp.int32), kept, absent)


def _groups(xp: Any, sums: _Sums, counts: Any, groups: int, most: int) -> Any:
    """The first sum of each group, one more at the end: nonzeros and sums weighed alike, none too large.

    Where that would make a group too large, sums weigh the more: one group too many is a whole round more of units.
    """
    its, every = counts if sums.kept is None else counts[sums.kept], len(sums.row)
    owner = xp.searchsorted(sums.start[1:], xp.arange(every, dtype=xp.int64), side="right")
    weight, bounds = (its / sums.parts + 1.0)[owner], np.zeros(1, np.int64)
    total, ends = float(weight.sum()), xp.arange(1, groups, dtype=xp.float64) / groups
    for share in (0.0, 0.25, 0.5, 0.75, 1.0) if every else ():
        upto = xp.cumsum(weight * ((1 - share) / total) + share / every)
        cuts = xp.searchsorted(upto, ends, side="right")
        inner = np.asarray(cuts.get() if hasattr(cuts, "get") else cuts, np.int64)
        bounds = np.unique(np.concatenate([[0], inner, [every]]))
        if np.diff(bounds).max() <= most:
            break
    pieces = [np.arange(a, b, most) for a, b in pairwise(bounds)] or [np.zeros(1, np.int64)]
    return xp.asarray(np.concatenate([*pieces, [every]]).astype(np.int32))


def _ranges_of(xp: Any, col: Any, cols: int, cut: int) -> Any:
    """The range of each nonzero: ranges of columns that hold as many nonzeros each."""
    if cut == 1:
        return xp.zeros(len(col), xp.int64)
    upto = xp.cumsum(xp.bincount(col, minlength=cols))
    bounds = xp.searchsorted(upto, xp.arange(1, cut, dtype=xp.int64) * len(col) // cut)
    return xp.searchsorted(bounds, col, side="left").astype(xp.int64)


def swept(
    xp: Any, start: Any, col: Any, val: Any, shape: tuple[int, int], multiprocessors: int, memory: int, cut: int = 0,
    dealt: bool = False,
) -> Swept:  # fmt: skip
    """The matrix for `sweep.cu` on so many multiprocessors of so many bytes of shared memory; `cut` ranges of columns,
    or as many as seem best. Groups are of neighbouring rows, which is best where these want the same columns; `dealt`
    out rows make groups alike where some regions hold most of the nonzeros.

    >>> import numpy as np
    >>> made = swept(np, np.array([0, 2, 3]), np.array([1, 4, 0]), np.array([5.0, 6.0, 7.0]), (2, 5), 1, 1 << 16)
    >>> (made.word[:3] & 0xFFFF).tolist(), made.val[:3].tolist(), made.target.tolist()  # by columns
    ([0, 1, 4], [7.0, 5.0, 6.0], [0, 1])
    """
    (rows, cols), size, every = shape, val.dtype.itemsize, len(col)
    most = min(memory // size - 1, STRIP - 2)
    counts = xp.diff(start).astype(xp.int64)
    groups, ranged = ranges(max(1, int((counts > 0).sum())), cols, every, size, multiprocessors, most)
    if cut:
        groups, ranged = -(-max(multiprocessors, -(-rows * cut // most)) // cut), cut
    longest = max(16, every // (groups * ranged * APART))
    sums = _sums(xp, counts, longest, groups if dealt else 0)
    if len(sums.row) > groups * (most - 1):  # rows with several sums are too many: whole rounds of units all the same
        whole = multiprocessors // math.gcd(multiprocessors, ranged)
        groups = -(-len(sums.row) // ((most - 1) * whole)) * whole
        sums = _sums(xp, counts, longest, groups if dealt else 0)
    first = _groups(xp, sums, counts, groups, most)
    groups, units = len(first) - 1, (len(first) - 1) * ranged
    place, unit = _places(xp, start, sums, first, every)
    unit = unit + groups * _ranges_of(xp, col, cols, ranged)
    order = xp.argsort(unit * cols + col)
    unit, its = unit[order], col[order].astype(xp.int64)
    strips = max(1, -(-cols // STRIP))
    run = unit * strips + its // STRIP  # entries of one strip in one unit: filled up to whole groups of 32
    at, run_of, runs, total = _filled(xp, run, every)
    word = xp.zeros(total, xp.uint32)
    filler = xp.diff(first)[(runs // strips) % groups]  # behind the last sum
    mark = xp.zeros(total // GROUP, xp.int64)
    mark[run_of] = 1
    of = xp.cumsum(mark) - 1
    word[:] = xp.repeat(filler[of].astype(xp.uint32), GROUP) << 16
    word[at] = (its % STRIP).astype(xp.uint32) | (place[order].astype(xp.uint32) << 16)
    value = xp.zeros(total, val.dtype)
    value[at] = val[order]
    begin = xp.searchsorted((runs // strips)[of], xp.arange(units + 1)) if total else xp.zeros(units + 1)
    several = (sums.parts > 1) if ranged == 1 else xp.ones(len(sums.parts), xp.bool_)
    owner = xp.searchsorted(sums.start[1:], xp.arange(len(sums.row), dtype=xp.int64), side="right")
    target = xp.where(several[owner], ~sums.row, sums.row).astype(xp.int32)
    return Swept(
        word, value, (runs % strips)[of].astype(xp.int32), begin.astype(xp.int32), first, target,
        _cleared(xp, sums, several, len(counts)), units, groups, int(xp.diff(first).max()) + 1,
    )  # fmt: skip


def _places(xp: Any, start: Any, sums: _Sums, first: Any, every: int) -> tuple[Any, Any]:
    """Of each nonzero its sum's place within the group, and the group."""
    entry = xp.arange(every, dtype=xp.int64)
    row = xp.searchsorted(start[1:], entry, side="right")
    rank = entry - start[row]
    if sums.kept is not None:
        among = xp.zeros(len(start) - 1, xp.int64)
        among[sums.kept] = xp.arange(len(sums.kept))
        row = among[row]
    one = sums.start[row] + rank % sums.parts[row]
    group = xp.searchsorted(first[1:], xp.arange(len(sums.row)), side="right")[one]
    return one - first[group], group.astype(xp.int64)


def _filled(xp: Any, run: Any, every: int) -> tuple[Any, Any, Any, int]:
    """Where each entry lies when runs are filled up to 32, the first 32 of each run, the runs, and how many entries."""
    fresh = xp.ones(every, xp.bool_)
    fresh[1:] = run[1:] != run[:-1]
    begins = xp.flatnonzero(fresh)
    length = xp.diff(xp.concatenate([begins, xp.asarray([every])]))
    before = xp.concatenate([xp.zeros(1, xp.int64), xp.cumsum(-(-length // GROUP))])
    of = xp.cumsum(fresh) - 1
    at = before[of] * GROUP + xp.arange(every) - begins[of]
    return at, before[:-1], run[fresh], int(before[-1]) * GROUP


def _cleared(xp: Any, sums: _Sums, several: Any, every: int) -> Any:
    """Rows that sums are added to, and those that have none."""
    added = xp.flatnonzero(several)
    rows = xp.concatenate([sums.absent, added if sums.kept is None else sums.kept[added]])
    return rows.astype(xp.int32) if len(rows) <= every // 8 else None
