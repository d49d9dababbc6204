"""How an array lies in the store: pieces of whole rows, each with its place and its digest.

A piece is what is checked at once, so a part that is wanted costs at most a piece more at either end. An array has
about sixty of them, between 64 KiB and 8 MiB, and one that is cut evenly over ranks is cut between pieces.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from assay.data.orbax.tree import Box, Leaf, itemsize

PIECES = 64  # of a large array
SMALLEST, LARGEST = 64 << 10, 8 << 20  # bytes of a piece
SHARED = 1 << 20  # bytes above which an array that all ranks hold is written by all of them


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array of the tree."""

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the whole."""
        return math.prod(self.shape) * itemsize(self.dtype)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Rows of an array, and where their bytes lie."""

    path: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    object: str
    offset: int
    length: int
    digest: bytes


class Table(msgspec.Struct, frozen=True, array_like=True):
    """All there is to know about a checkpoint but its bytes."""

    step: int
    skeleton: Any
    arrays: list[Array]
    pieces: list[Piece]
    world: int
    meta: dict[str, Any]


def cut(leaf: Leaf, rank: int, world: int) -> Iterator[tuple[Box, memoryview]]:
    """What this rank writes of an array, in pieces."""
    for (start, shape), view in leaf.views:
        first, last = _mine(leaf, shape, rank, world)
        axis, rows = _rows(shape)
        size = len(view) // rows
        if not shape or not size:  # a number, or nothing
            if first < last:
                yield (start, shape), view
            continue
        step = max(1, min(max(len(view) // PIECES, SMALLEST), LARGEST) // size)
        before, after = start[:axis], start[axis + 1 :]
        outer, inner = shape[:axis], shape[axis + 1 :]
        for row in range(first, last, step):
            end = min(row + step, last)
            yield ((*before, start[axis] + row, *after), (*outer, end - row, *inner)), view[row * size : end * size]


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """The first axis along which there is something to cut, and how long it is; nothing to cut: one row."""
    axis = next((axis for axis, n in enumerate(shape) if n > 1), 0)
    return axis, shape[axis] if shape and math.prod(shape) > 0 else 1


def _mine(leaf: Leaf, shape: tuple[int, ...], rank: int, world: int) -> tuple[int, int]:
    """The rows of a part that this rank writes."""
    rows = _rows(shape)[1]
    if not leaf.whole or world == 1:
        return 0, rows
    if math.prod(shape) * itemsize(leaf.dtype) >= SHARED and rows >= world:
        return rows * rank // world, rows * (rank + 1) // world
    return (0, rows) if zlib.crc32(leaf.path.encode()) % world == rank else (0, 0)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share; None where they do not meet.

    >>> overlap(((0, 0), (4, 4)), ((2, 1), (4, 4)))
    ((2, 1), (2, 3))
    >>> overlap(((0,), (2,)), ((2,), (2,))) is None
    True
    """
    start = tuple(map(max, one[0], other[0]))
    end = [min(a + n, b + m) for a, n, b, m in zip(one[0], one[1], other[0], other[1], strict=True)]
    shape = tuple(e - s for s, e in zip(start, end, strict=True))
    return None if any(n <= 0 for n in shape) else (start, shape)


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """A box as slices of the array that holds the outer one.

    >>> within(((2, 1), (2, 3)), ((2, 0), (4, 4)))
    (slice(0, 2, None), slice(1, 4, None))
    """
    return tuple(slice(s - o, s - o + n) for s, o, n in zip(box[0], outer[0], box[1], strict=True))


def run(box: Box, outer: Box, size: int) -> tuple[int, int] | None:
    """Where a box's bytes lie in the outer one's, as offset and length, if they lie in a row; None otherwise.

    >>> run(((2, 0), (2, 4)), ((0, 0), (8, 4)), 4), run(((0, 1), (2, 2)), ((0, 0), (2, 4)), 4)
    ((32, 32), None)
    """
    shape, whole = box[1], outer[1]
    cutting = [axis for axis, (n, m) in enumerate(zip(shape, whole, strict=True)) if n != m]
    if cutting and any(shape[axis] != 1 for axis in range(cutting[-1])):
        return None
    offset = 0
    for s, o, m in zip(box[0], outer[0], whole, strict=True):
        offset = offset * m + (s - o)
    return offset * size, math.prod(shape) * size
