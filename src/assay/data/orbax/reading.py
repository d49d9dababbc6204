"""From pieces in the store to arrays in memory: any sharding that was saved to any sharding that is wanted."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.data.engine.segments import checked
from assay.data.interface import Buffer, Store, StoreError
from assay.data.orbax.pieces import Array, Piece, Table, overlap, run, within
from assay.data.orbax.tree import Box, itemsize
from assay.data.store.direct import BLOCK, aligned

AT_ONCE = 4  # requests under way
REQUEST = 32 << 20  # bytes of one
SHORT = 512  # bytes in a row that are not worth a request of their own
TOGETHER = 64 << 20  # bytes of memory that arrays share


@dataclass(frozen=True)
class Target:
    """A box of an array that is wanted, and the bytes it goes to."""

    array: Array
    box: Box
    into: memoryview

    @property
    def grid(self) -> Any:
        """The bytes as elements, in the box's shape."""
        size = itemsize(self.array.dtype)
        return np.frombuffer(self.into, np.dtype((np.void, size))).reshape(self.box[1])


def target(array: Array, box: Box | None = None) -> Target:
    """Fresh memory for an array, or for a part of it."""
    return targets([(array, box)])[0]


def targets(wanted: Sequence[tuple[Array, Box | None]]) -> list[Target]:
    """Fresh memory for several, on pages and in a row as they lie in the store: one request then reads neighbours.

    A block of memory is free again when the last array in it is.
    """
    boxes = [box or ((0,) * len(array.shape), array.shape) for array, box in wanted]
    sizes = [math.prod(box[1]) * itemsize(array.dtype) for (array, _), box in zip(wanted, boxes, strict=True)]
    blocks: list[int] = []
    places = []
    for size in sizes:
        room = -(-size // BLOCK) * BLOCK
        if not blocks or blocks[-1] + room > TOGETHER:
            blocks.append(0)
        places.append((len(blocks) - 1, blocks[-1]))
        blocks[-1] += room
    memory = [aligned(size) for size in blocks]
    return [
        Target(array, box, memory[block][at : at + size])
        for (array, _), box, size, (block, at) in zip(wanted, boxes, sizes, places, strict=True)
    ]


async def fill(store: Store, table: Table, places: Sequence[Target], *, verify: bool = True) -> int:
    """Read what the places want; returns the bytes that were read.

    Whole pieces are read and checked. Without `verify`, only the bytes that are wanted are.
    """
    wanted: dict[str, list[Target]] = defaultdict(list)
    for one in places:
        wanted[one.array.path].append(one)
    straight: list[Placed] = []
    other: list[tuple[Piece, Target, Box]] = []
    for one, piece, shared in _meetings(table, wanted):
        size = itemsize(one.array.dtype)
        place = run(shared, one.box, size)
        if place is not None and shared == (piece.start, piece.shape):
            straight.append((piece, one.into[place[0] : place[0] + place[1]]))
        else:
            other.append((piece, one, shared))
    gate = asyncio.Semaphore(AT_ONCE)
    reads = [_rows(store, group, gate, verify) for group in _groups(straight)]
    reads += [_overlap(store, *one, gate, verify) for one in other]
    return sum(await asyncio.gather(*reads))


def _meetings(table: Table, wanted: dict[str, list[Target]]) -> Iterator[tuple[Target, Piece, Box]]:
    covered: dict[int, int] = defaultdict(int)
    for piece in table.pieces:
        for one in wanted.get(piece.path, ()):
            shared = overlap((piece.start, piece.shape), one.box)
            if shared is not None:
                covered[id(one)] += math.prod(shared[1])
                yield one, piece, shared
    for several in wanted.values():
        for one in several:
            if covered[id(one)] != math.prod(one.box[1]):
                raise StoreError(f"the checkpoint does not hold all of '{one.array.path}' that is wanted: {one.box}")


Placed = tuple[Piece, memoryview]


def _groups(straight: list[Placed]) -> Iterator[list[Placed]]:
    """Pieces that follow one another both in the object and in memory, to be read by one request."""
    found = sorted(straight, key=lambda one: (one[0].object, one[0].offset))
    group: list[Placed] = []
    for one in found:
        if group and not (_follows(group[-1], one) and _span([*group[:1], one]) <= REQUEST):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _follows(one: Placed, other: Placed) -> bool:
    """Whether both have the same gap behind them, at most the padding to the next page."""
    if one[0].object != other[0].object or one[1].obj is not other[1].obj or not len(other[1]):
        return False
    gap = other[0].offset - one[0].offset
    return _address(other[1]) - _address(one[1]) == gap and gap - one[0].length < BLOCK


def _span(group: list[Placed]) -> int:
    return group[-1][0].offset + group[-1][0].length - group[0][0].offset


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data) if len(view) else 0


async def _rows(store: Store, group: list[Placed], gate: asyncio.Semaphore, verify: bool) -> int:
    """Neighbours straight into their places, and the padding between them."""
    first, into = group[0]
    length = _span(group)
    if not length:
        return 0
    async with gate:
        whole = memoryview(into.obj).cast("B")
        begin = _address(into) - _address(whole)
        await store.read_into(first.object, first.offset, whole[begin : begin + length])
    if verify:  # while others are read
        await asyncio.to_thread(_check, group)
    return length


def _check(group: list[Placed]) -> None:
    for piece, into in group:
        checked(into, piece.digest, f"'{piece.path}' at {piece.start} in {piece.object}")


async def _overlap(store: Store, piece: Piece, one: Target, shared: Box, gate: asyncio.Semaphore, verify: bool) -> int:
    """A piece of which only some is wanted, or whose bytes do not stay in a row."""
    size = itemsize(one.array.dtype)
    box = (piece.start, piece.shape)
    spans = [] if verify else _spans(shared, box, size)
    async with gate:
        if spans:
            places = [(piece.offset + start, length) for start, length in spans]
            data: Buffer = b"".join(await store.get_ranges(piece.object, places))
            held = shared
        else:
            data, held = await store.get(piece.object, piece.offset, piece.length), box
    if verify:
        checked(data, piece.digest, f"'{piece.path}' at {piece.start} in {piece.object}")
    grid = np.frombuffer(data, np.dtype((np.void, size))).reshape(held[1])
    one.grid[within(shared, one.box)] = grid[within(shared, held)]
    return len(data)


def _spans(shared: Box, box: Box, size: int) -> list[tuple[int, int]]:
    """Where the bytes of a box lie within a piece's, in order; empty where they are too short to be worth it."""
    cutting = [axis for axis, (n, m) in enumerate(zip(shared[1], box[1], strict=True)) if n != m]
    last = cutting[-1] if cutting else 0
    length = math.prod(shared[1][last:]) * size
    if length < SHORT:
        return []
    places = np.arange(math.prod(box[1]), dtype=np.int64).reshape(box[1])[within(shared, box)]
    firsts = places.reshape(math.prod(shared[1][:last]), -1)[:, 0] * size
    return [(int(start), length) for start in firsts]
