"""MERBIT's descriptor of a CSR matrix: the merge list cut into equal tiles, its row ends as bits.

The merge list holds the nonzeros and, after the last of each row, its row end: row i ends at item start[i + 1] + i. It
is cut into tiles of 32 lanes times `items`. One bit an item says which it is; with it and the first row of each tile,
row pointers are not read again. Columns and values stay as they are, or, where a few columns have most of the nonzeros,
columns are numbered anew by popularity, so that what is wanted most of x lies together.

Or tiles are taken together to panels, each with the list of the columns that it wants, none twice: the list's entries
of x fit into shared memory, and a nonzero names its place there in 16 bits. Where the lists lie scattered over x, a
first kernel reads x in strips, as it lies, and hands the entries out.

Arrays are NumPy's or CuPy's (`xp`). Only NumPy is imported: `benchmarks/h200_merbit.py` reads this file on machines
that have no assay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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


# ------------------------------------------------------------------------------------------------------- panels

RESERVED = 1024  # bytes of shared memory that the system takes of each block
SECTOR = 32  # bytes that are read or written at once: entries of a strip for a panel are filled up to them


class Lists(NamedTuple):
    """The columns that each panel wants, none twice, in their order."""

    columns: Any  # int32
    begin: Any  # int32, a panel: where its list begins; one more at the end
    panel: Any  # int32, a nonzero: its panel
    rank: Any  # int32, a nonzero: its column's place among all lists
    per: int  # tiles of a panel


class Panels(NamedTuple):
    """A matrix whose nonzeros name x by their place in the list of their panel."""

    near: Any  # uint16, a nonzero: that place; zeros up to a multiple of eight
    begin: Any  # int32, a panel: where its list begins; one more at the end
    per: int  # tiles of a panel
    room: int  # entries of the longest list, whole units of 16 bytes
    columns: Any = None  # int32: the lists, where panels gather x themselves
    strips: Strips | None = None  # how x is handed out, where they do not


class Strips(NamedTuple):
    """The lists of all panels in the order of columns: what a strip of x must give to whom."""

    place: Any  # uint16, an entry: its column within the strip
    to: Any  # int32, a sector of entries: where it goes among the lists
    piece: Any  # int32: a strip, the first and the last of its units of 16 bytes
    owner: Any  # int32, a block: the first of its pieces; one more at the end
    width: int  # columns of a strip
    entries: int  # of all lists, with what fills up sectors


class Setting(NamedTuple):
    """How the kernel of panels is built and fed."""

    items: int  # of a lane
    warps: int  # of a block
    blocks: int  # of a multiprocessor
    depth: int  # stages of a warp
    lists: int  # of x that a block holds at once
    strip: int  # bytes of x that hand_out reads at once

    @property
    def tile(self) -> int:
        """Items of a warp."""
        return LANES * self.items

    def fixed(self, size: int) -> int:
        """Bytes of shared memory whatever the panel: the stages, where nonzeros are copied to by eights."""
        return self.warps * self.depth * (-(-(self.tile + 7) // 256) * 256) * (size + 2) + 24

    def of_tile(self, size: int) -> int:
        """Bytes that each tile of a panel adds, but for its list: sums, bits and first row of three panels."""
        return 3 * (2 * size + 4 * (self.items + 1))

    def width(self, size: int) -> int:
        """Columns of a strip."""
        return min(1 << 16, self.strip // size // 8 * 8)

    def shared(self, per: int, room: int, size: int) -> int:
        """Bytes of shared memory of a block."""
        return self.lists * room * size + self.fixed(size) + per * self.of_tile(size)

    def per(self, tiles: int, multiprocessors: int, memory: int, cols: int, size: int, times: int = 1) -> int:
        """Tiles of a panel whose list fits if none of its columns comes twice; `times` as many if most do.

        Panels are dealt out to the blocks in rounds, and the tiles of one to its warps: as few rounds as can be, with
        one more for each panel's beginning.

        >>> Setting(15, 8, 2, 2, 1, 112_640).per(70_700, 132, 233_472, 2_000_000, 4)
        30
        """
        pads = -(-cols // self.width(size)) * (SECTOR // size - 1) * size
        left = memory // self.blocks - RESERVED - self.fixed(size)
        most = (left - self.lists * min(pads, left // 4)) // (self.lists * self.tile * size + self.of_tile(size))
        per = np.arange(1, max(1, min(most * times, -(-tiles // (multiprocessors * self.blocks)))) + 1)
        panels = (tiles + per - 1) // per
        rounds = -(-panels // (multiprocessors * self.blocks))
        cost = rounds * (-(-per // self.warps) + 1)
        return int(per[cost == cost.min()][-1])


def worth_handing_out(entries: int, sectors: int, size: int) -> bool:
    """Whether reading x by strips and handing it out takes less than gathering lists that lie in so many sectors.

    An entry handed out is 2.5 bytes read, one value written and read again; one gathered a column's number and its
    share of a sector. The rates, 3 and 5 TB/s, are those of an H200's memory and second cache in these kernels.

    >>> worth_handing_out(100, 95, 4), worth_handing_out(100, 13, 4)
    (True, False)
    """
    return entries * (2.5 + 2 * size) / 3 < entries * 4 / 3 + sectors * SECTOR / 5


def lists(xp: Any, t: Tiles, col: Any, cols: int, items: int, per: int) -> Lists:
    """The lists of panels of `per` tiles.

    >>> import numpy as np
    >>> t = tiles(np, np.array([0, 20, 40]), 40, items=1)
    >>> made = lists(np, t, np.arange(40) % 3, 10, 1, per=1)
    >>> made.columns.tolist(), made.begin.tolist()  # of the first 31 nonzeros, and of nine
    ([0, 1, 2, 0, 1, 2], [0, 3, 6])
    """
    count, tile = -(-t.tiles // per), LANES * items
    cut = xp.minimum(xp.arange(count + 1, dtype=xp.int64) * per, t.tiles)
    first = xp.minimum(cut * tile, t.items) - t.row[cut]  # nonzeros before each panel
    panel = xp.searchsorted(first[1:], xp.arange(len(col), dtype=xp.int64), side="right").astype(xp.int32)
    key = panel.astype(xp.int64) * cols + col
    order = xp.argsort(key)
    key = key[order]
    fresh = xp.ones(len(key), xp.bool_)
    fresh[1:] = key[1:] != key[:-1]
    rank = xp.empty(len(key), xp.int32)
    rank[order] = (xp.cumsum(fresh) - 1).astype(xp.int32)
    listed = key[fresh]
    owner = listed // max(1, cols)
    begin = xp.searchsorted(owner, xp.arange(count + 1, dtype=xp.int64)).astype(xp.int32)
    return Lists((listed - owner * cols).astype(xp.int32), begin, panel, rank, per)


def sectors(xp: Any, made: Lists, size: int) -> int:
    """How many sectors of 32 bytes panels touch when they gather x, `size` bytes each, themselves."""
    if not len(made.columns):
        return 0
    sector = made.columns.astype(xp.int64) * size // 32
    fresh = sector[1:] != sector[:-1]
    return 1 + int(fresh.sum())  # where one list ends the next begins in another sector, but for a few


def _filled(xp: Any, places: Any) -> Any:
    """Places in 16 bits, with zeros up to a multiple of eight: they are copied by eights."""
    near = xp.zeros(-(-len(places) // 8) * 8, xp.uint16)
    near[: len(places)] = places
    return near


def gathered(xp: Any, made: Lists) -> Panels:
    """Panels that gather x by their lists."""
    room = -(-max(1, int(xp.diff(made.begin).max())) // 8) * 8
    near = _filled(xp, made.rank - made.begin[made.panel])
    return Panels(near, made.begin, made.per, room, columns=made.columns)


def handed_out(xp: Any, made: Lists, cols: int, width: int, blocks: int, size: int) -> Panels:
    """Panels to which x, `size` bytes each, is handed out by strips of `width` columns (at most 65,536), by
    so many blocks.
    """
    count, strips, every, full = len(made.begin) - 1, max(1, -(-cols // width)), len(made.columns), SECTOR // size
    entry = xp.arange(every, dtype=xp.int64)
    panel = xp.searchsorted(made.begin[1:], entry, side="right")
    run = panel * strips + made.columns // width  # entries of one strip for one panel
    fresh = xp.ones(every, xp.bool_)
    fresh[1:] = run[1:] != run[:-1]
    of, runs, start = xp.cumsum(fresh) - 1, run[fresh], entry[fresh]
    sector = xp.zeros(len(runs) + 1, xp.int64)  # before each run, when runs are filled up
    sector[1:] = xp.cumsum(-(-xp.diff(xp.concatenate([start, xp.asarray([every])])) // full))
    total = int(sector[-1])
    moved = (sector[of] * full + entry - start[of]).astype(xp.int32)
    begin = (sector[xp.searchsorted(runs, xp.arange(count + 1) * strips)] * full).astype(xp.int32)
    place = xp.zeros((total, full), xp.uint16)
    place.ravel()[moved] = (made.columns % width).astype(xp.uint16)
    mark = xp.zeros(total, xp.int32)
    mark[sector[:-1]] = 1
    strip = (runs % strips)[xp.cumsum(mark) - 1]
    to = xp.argsort(strip * total + xp.arange(total))
    piece, owner = pieces(xp.bincount(strip, minlength=strips).tolist(), blocks)
    near = _filled(xp, moved[made.rank] - begin[made.panel])
    room = max(full, int(xp.diff(begin).max()))
    given = Strips(place[to].ravel(), to.astype(xp.int32), xp.asarray(piece), xp.asarray(owner), width, total * full)
    return Panels(near, begin, made.per, room, strips=given)


def pieces(sectors: list[int], blocks: int) -> tuple[Any, Any]:
    """Strips of so many sectors each in one row, cut into equal shares, one a block: pieces (strip, first, last unit,
    two a sector), and where the pieces of each block begin.

    >>> piece, owner = pieces([3, 0, 5], 2)
    >>> piece.tolist(), owner.tolist()
    ([[0, 0, 6], [2, 6, 8], [2, 8, 16]], [0, 2, 3])
    """
    ends = np.concatenate([[0], np.cumsum(sectors)])
    cuts = ends[-1] * np.arange(blocks + 1) // blocks
    bounds = np.unique(np.concatenate([ends, cuts]))
    strip = np.searchsorted(ends, bounds[:-1], side="right") - 1
    made = np.stack([strip, 2 * bounds[:-1], 2 * bounds[1:]], 1)
    return made.astype(np.int32), np.searchsorted(bounds, cuts).astype(np.int32)


def panelled(
    xp: Any, t: Tiles, col: Any, cols: int, size: int, setting: Setting, multiprocessors: int, memory: int
) -> Panels:
    """The matrix in panels as long as shared memory allows, x handed out or gathered, whichever takes less."""
    limit, width = memory // setting.blocks - RESERVED, setting.width(size)
    for times in (8, 4, 2, 1):
        per = setting.per(t.tiles, multiprocessors, memory, cols, size, times)
        room = (limit - setting.shared(per, 0, size)) // (setting.lists * size)
        if times > 1 and _most_distinct(xp, col, per * setting.tile) > 0.9 * room:
            continue
        made = lists(xp, t, col, cols, setting.items, per)
        if int(xp.diff(made.begin).max()) > room:
            continue
        found = gathered(xp, made)
        if worth_handing_out(len(made.columns), sectors(xp, made, size), size):
            found = handed_out(xp, made, cols, width, multiprocessors, size)
        if setting.shared(per, found.room, size) <= limit and found.room < 1 << 16:
            return found
    return gathered(xp, lists(xp, t, col, cols, setting.items, 1))  # a tile alone always fits


def _most_distinct(xp: Any, col: Any, window: int, samples: int = 24) -> int:
    """The most columns that some of the matrix's stretches of so many nonzeros want."""
    if len(col) <= window:
        return len(xp.unique(col))
    starts = np.linspace(0, len(col) - window, samples).astype(np.int64)
    return max(len(xp.unique(col[start : start + window])) for start in starts.tolist())
