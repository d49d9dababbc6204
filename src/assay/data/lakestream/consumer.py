"""A consumer: one rank's slices, step by step. Its whole state is the number of the next step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from assay.data.engine.segments import checked, digest
from assay.data.engine.version_log import Damaged
from assay.data.interface import Buffer, NotFound, Store, StoreError
from assay.data.lakestream.manifest import Batch, Manifest
from assay.data.lakestream.producer import CHECK
from assay.record.errors import BadInput
from assay.sim.clock import Clock

AHEAD = 4  # steps that are fetched before they are asked for
SOON, LATER = 0.01, 0.25  # seconds between looks for a new version: at first, and where none came for long


class Reclaimed(StoreError):  # noqa: N818 - read as a sentence
    """The step was deleted because no retained checkpoint needed it."""


class Consumer:
    """Reads rank `rank` of `world`: its slices of every step, in the one order that all ranks see.

    `turns` names producers whose batches are taken in turn instead, whichever was committed first: then the order
    depends on their sources alone, and training gives the same numbers however late each of them was. It ends with the
    first of them that ends.
    """

    def __init__(
        self, store: Store, manifest: Manifest, rank: int, world: int, slices: int, producers: int, clock: Clock,
        turns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        if not 0 <= rank < world or slices % world:
            raise BadInput(f"rank {rank} of {world} cannot share {slices} slices; a world that divides them expected")
        self.store, self.manifest, self.clock = store, manifest, clock
        self.producers, self.turns = producers, tuple(turns)
        self._mine = slice(rank * slices // world, (rank + 1) * slices // world)
        self._places: dict[tuple[str, int], int] = {}  # producer and number → step, where they take turns
        self._placed = 0
        self._lock = asyncio.Lock()

    async def follow(self, step: int = 0, *, ahead: int = AHEAD) -> AsyncIterator[tuple[int, list[Buffer]]]:
        """The slices of this and all later steps, some of them fetched in advance; ends with the last producer."""
        fetching: list[asyncio.Task[list[Buffer] | None]] = []
        try:
            while True:
                while len(fetching) <= ahead:
                    fetching.append(asyncio.ensure_future(self.read(step + len(fetching))))
                found = await fetching.pop(0)
                if found is None:
                    return
                yield step, found
                step += 1
        finally:
            for task in fetching:
                task.cancel()

    async def read(self, step: int) -> list[Buffer] | None:
        """This rank's slices of a step by one range request, checked; waits until it is there; None behind the end."""
        batch = await self._visible(step)
        if batch is None:
            return None
        mine = batch.slices[self._mine]
        first, end = mine[0].offset, mine[-1].offset + mine[-1].length
        try:
            found = memoryview(await self.store.get(batch.key, first, end - first))
        except NotFound:
            state = await self.manifest.refresh()
            if step < state.base:
                raise _gone(step, state.base) from None
            raise Damaged(f"step {step} is visible and {batch.key} is gone: somebody deleted it by hand") from None
        parts = [found[one.offset - first : one.offset - first + one.length] for one in mine]
        for number, (one, part) in enumerate(zip(mine, parts, strict=True), self._mine.start):
            if digest(part)[:CHECK] != one.digest:
                checked(part, one.digest, f"{batch.key}:{number}")  # raises, in the words of all blobs
        return list(parts)

    async def _visible(self, step: int) -> Batch | None:
        pause = SOON
        while True:
            state = self.manifest.state
            place = step if not self.turns else self._turn(step)
            if place is not None and place < state.base:
                raise _gone(step, state.base)
            if place is not None and place < state.next_step:
                return state.batch(place)
            if self._ended(step):
                return None
            before = self.manifest.version
            async with self._lock:
                came = self.manifest.version > before or await self.manifest.poll()
            if not came:
                await self.clock.sleep(pause)
                pause = min(2 * pause, LATER)

    def _turn(self, step: int) -> int | None:
        state = self.manifest.state
        for place in range(max(self._placed, state.base), state.next_step):
            batch = state.batch(place)
            self._places[batch.producer, batch.seq] = place
        self._placed = state.next_step
        return self._places.get((self.turns[step % len(self.turns)], step // len(self.turns)))

    def _ended(self, step: int) -> bool:
        table = self.manifest.state.table
        done = sum(row.done for row in table.values())
        all_done = 0 < self.producers <= done == len(table)
        if not self.turns:
            return all_done and step >= self.manifest.state.next_step
        name = self.turns[step % len(self.turns)]
        row = table.get(name)
        if row is None and all_done:
            raise BadInput(
                f"all producers have ended, and none is called '{name}'; there are {', '.join(sorted(table))}"
            )
        return row is not None and row.done and row.last_seq < step // len(self.turns)

    def floor(self, step: int) -> int:
        """The manifest's step from which on everything is needed to read on from here: what a checkpoint retains."""
        if not self.turns:
            return step
        n = len(self.turns)
        needed = [p for (name, seq), p in self._places.items() if seq * n + self.turns.index(name) >= step]
        return min(needed, default=self._placed)


def _gone(step: int, base: int) -> Reclaimed:
    return Reclaimed(f"step {step} was reclaimed; the plane begins with step {base}: resume from a retained checkpoint")
