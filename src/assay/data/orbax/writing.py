"""From arrays in memory to pieces in the store: hash one blob while the one before is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from assay.data.engine.segments import SegmentBlob, checksum
from assay.data.interface import Store
from assay.data.orbax.pieces import Piece, cut
from assay.data.orbax.tree import Box, Leaf
from assay.data.store.blocking import Lasting
from assay.data.store.direct import BLOCK, aligned, touch

SMALLEST, LARGEST = 32 << 20, 128 << 20  # bytes of one object; in between, a state has about sixteen
IN_FLIGHT = 2  # objects that are written at once
LARGE = 1 << 20  # bytes: such a copy would only push out of the caches what training needs there
LOT = 16 << 20  # bytes that a thread copies before it takes the next: one that is held up does not hold up the rest

Place = tuple[str, tuple[int, ...], tuple[int, ...]]  # path, start, shape
Cut = tuple[str, Box, memoryview]
Lot = TypeVar("Lot")
Moves = list[tuple[memoryview, memoryview]]  # where to, where from


def cuts(leaves: Sequence[Leaf], rank: int, world: int) -> list[Cut]:
    """All that this rank writes."""
    return [(leaf.path, box, view) for leaf in leaves for box, view in cut(leaf, rank, world)]


def likeness(leaves: Sequence[Leaf]) -> list[bytes]:
    """A digest of each array that all ranks hold alike, to see whether they do; of others nothing.

    Each rank reads all of it, also what others write: nobody else knows what lies here. That is quick beside a disk.

    >>> leaf = Leaf("a", "numpy", "uint8", (3,), ((((0,), (3,)), memoryview(b"abc")),), whole=True)
    >>> [len(one) for one in likeness([leaf])]
    [16]
    """
    return [
        checksum(b"".join(checksum(view) for _, view in leaf.views)) if leaf.whole else b""  # bits: NaN is like NaN
        for leaf in leaves
    ]


@dataclass
class Writing:
    """Objects on their way to the store: what will be where is known, and :meth:`done` waits until it is there."""

    pieces: list[Piece]
    puts: list[asyncio.Task[None]]

    async def done(self) -> None:
        """Until all is durable; where something fails, the rest is called off."""
        try:
            await asyncio.gather(*self.puts)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Call off what is still under way."""
        for task in self.puts:
            task.cancel()
        await asyncio.gather(*self.puts, return_exceptions=True)


async def begin(store: Store, pieces: Sequence[Cut], prefix: str, before: Mapping[Place, Piece]) -> Writing:
    """Put pieces into objects `<prefix>0`, `<prefix>1`, …; one whose bytes an older piece has is only named."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    found = Writing([], [])

    async def put(name: str, blob: SegmentBlob) -> None:
        try:
            await store.put(name, blob.parts())
        finally:
            gate.release()

    try:
        for number, group in enumerate(_grouped(pieces)):
            name = f"{prefix}{number}"
            blob, rows = _blob(name, group, await asyncio.to_thread(_digests, group), before)
            found.pieces += rows
            if blob.segments:
                await gate.acquire()
                for task in found.puts:
                    if task.done():
                        task.result()  # what went wrong, before more is written
                found.puts.append(asyncio.ensure_future(put(name, blob)))
    except BaseException:
        await found.stop()
        raise
    return found


def _blob(
    name: str, group: Sequence[Cut], digests: Sequence[bytes], before: Mapping[Place, Piece]
) -> tuple[SegmentBlob, list[Piece]]:
    blob, rows, last = SegmentBlob(), list[Piece](), ""
    for (path, (start, shape), view), known in zip(group, digests, strict=True):
        old = before.get((path, start, shape))
        if old is not None and old.digest == known:
            rows.append(old)
            continue
        # An array's pieces lie without gaps, so that many of them can be read at once.
        row = blob.add(f"{path}@{','.join(map(str, start))}", view, known=known, follows=path == last)
        last = path
        rows.append(Piece(path, start, shape, name, row.offset, row.length, known))
    return blob, rows


def _grouped(pieces: Sequence[Cut]) -> list[list[Cut]]:
    groups: list[list[Cut]] = []
    most = min(max(sum(len(view) for _, _, view in pieces) // 16, SMALLEST), LARGEST)
    room = 0
    for one in pieces:
        size = len(one[2])
        if not groups or size > room:
            groups.append([])
            room = most
        groups[-1].append(one)
        room -= size
    return groups


def _digests(group: Sequence[Cut]) -> list[bytes]:
    return [checksum(view) for _, _, view in group]


class Stage:
    """Memory that a state is copied to, so that training may go on while it is written. It is kept for the next time.

    >>> stage = Stage()
    >>> leaf = Leaf("a", "numpy", "uint8", (3,), ((((0,), (3,)), memoryview(bytearray(b"abc"))),), True)
    >>> bytes(stage.copy([leaf])[0].views[0][1])
    b'abc'
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def copy(self, leaves: Sequence[Leaf], threads: int = 2) -> list[Leaf]:
        """The same leaves, with their bytes here."""
        sizes = [len(view) for leaf in leaves for _, view in leaf.views]
        need = sum(-(-size // BLOCK) * BLOCK for size in sizes)
        fresh = need > len(self._memory)
        if fresh:
            self._memory = memoryview(b"")  # let the old one go before the new one comes
            self._memory = aligned(need)
        copies, moves, at = [], [], 0
        for leaf in leaves:
            views = []
            for box, view in leaf.views:
                place = self._memory[at : at + len(view)]
                at += -(-len(view) // BLOCK) * BLOCK
                views.append((box, place))
                moves.append((place, view))
            copies.append(Leaf(leaf.path, leaf.kind, leaf.dtype, leaf.shape, tuple(views), leaf.whole))
        share_out(_spread(moves, LOT), lambda lot: _move(lot, fresh), threads)
        return copies


def share_out(lots: list[Lot], work: Callable[[Lot], None], threads: int) -> None:
    """Let this thread and others take one lot after the other until none is left.

    Nobody waits meanwhile: a thread that was woken for every lot made a copy of 2 GB by two others 8 % longer.
    """
    left = iter(lots)  # of a list: two threads never get the same

    def take() -> None:
        for lot in left:
            work(lot)

    with Lasting(max(threads - 1, 1)) as pool:
        others = [pool.submit(take) for _ in range(threads - 1)]
        take()
        for one in others:
            one.result()


def _spread(moves: Moves, share: int) -> list[Moves]:
    """The copies in lots of about equal bytes; a large one is cut."""
    lots: list[Moves] = [[]]
    room = share
    for place, view in moves:
        done = 0
        while done < len(view):
            if not room:
                lots.append([])
                room = share
            step = min(room, len(view) - done)
            lots[-1].append((place[done : done + step], view[done : done + step]))
            done, room = done + step, room - step
    return lots


def _move(lot: Moves, fresh: bool) -> None:
    for place, view in lot:  # both ways to copy let other threads run
        if fresh:
            touch(place)
        to, source = np.frombuffer(place, np.uint8), np.frombuffer(view, np.uint8)
        if len(to) >= LARGE and source.flags.writeable:
            from assay.sim.past_caches import copy_past_caches  # small states do not wait for a compiler

            copy_past_caches(to, source)
        else:
            np.copyto(to, source)
