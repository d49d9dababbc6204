"""A growing index for the crash lab: it adds, deletes and writes checkpoints, and dies; another process searches it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from assay.data.engine.version_log import GRACE, Damaged
from assay.data.interface import NotFound, Store, Violation
from assay.data.navis import building
from assay.data.navis.disk import StoreDisk
from assay.data.navis.index import Navis
from assay.data.navis.records import Config
from assay.data.navis.seek import Array
from assay.sim.clock import Clock
from assay.sim.streams import stream

WIDTH, DEGREE, BREADTH = 200, 60, 16
WIDE = 64  # breadth at which a walk passes most of the nodes
FIRST = 40  # vectors that it begins with
ROUND = 3  # vectors of an insertion
PER_ROUND = 10  # changes to the store, about
GOES = 4  # of so many ids one is deleted
PAUSE = GRACE / 2  # virtual seconds between rounds, so that old records are trimmed, too


@cache
def content(one: int) -> Array:
    """The vector of an id.

    >>> content(7).shape
    (200,)
    """
    return stream(one, "navis-crash").standard_normal(WIDTH, np.float32)


@cache
def _base() -> building.Base:
    return building.base(np.stack([content(i) for i in range(FIRST)]), DEGREE, BREADTH, 1.2)


class Growing(Navis):
    """A writer that goes on after the newest id, and a searcher."""

    roles: tuple[str, ...] = ("writer", "searcher")

    def __init__(self) -> None:
        super().__init__(cache=8192, buffer=0, workers=1)

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:  # type: ignore[override]
        """As always, with pages as objects of the store."""
        await super().open(store, StoreDisk(store), clock=clock, seed=seed)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Build, then insert, delete and write checkpoints in turn."""
        if role == "searcher":
            await self._look_on(ops)
            return
        if not self.exists:
            rows = np.stack([content(i) for i in range(FIRST)])
            await self.build(rows, np.arange(FIRST), Config(WIDTH, DEGREE, BREADTH, BREADTH), base=_base())
            promised.extend(range(FIRST))
        assert self.nodes is not None
        while (first := max(self.nodes.number) + 1) < FIRST + ROUND * max(ops // PER_ROUND, 2):
            ids = np.arange(first, first + ROUND)
            await self.insert(ids, np.stack([content(one) for one in ids.tolist()]))
            promised.extend(ids.tolist())
            number = first // ROUND
            if number % 3 == 1:
                gone = number // 3 * GOES
                await self.delete(np.array([gone]))
                promised.append(-gone - 1)
            if number % 3 == 2:
                await self.checkpoint()
            await self.clock.sleep(PAUSE)

    async def _look_on(self, ops: int) -> None:
        """Open and check again and again; a state whose pages go meanwhile is read anew."""
        for _ in range(max(ops // PER_ROUND, 2)):
            await self.clock.sleep(0.7 * PAUSE)
            for attempt in range(20):
                try:
                    await self.reload()
                    if wrong := await self.check():
                        raise AssertionError(f"a searcher saw {wrong[0]}")
                    break
                except (Damaged, NotFound):
                    if attempt == 19:
                        raise

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """The index's rules; every id that is there or was promised is found by its vector, at no distance."""
        wrong = list(await super().check()) + list(await self.log.check())
        if wrong or not self.exists:
            return [*wrong, *([Violation("what was promised is there", "no index")] if promised and not wrong else [])]
        assert self.nodes is not None
        deleted = {-one - 1 for one in promised if one < 0}
        every = sorted({*self.nodes.number, *(one for one in promised if one >= 0)})
        rows = np.stack([content(one) for one in every])
        nearest, far = self.search(rows, 1)
        # A walk as narrow as this may pass by what is there; what is lost no walk finds: those missed get a wide one.
        if len(missed := np.flatnonzero(nearest[:, 0] != every)):
            nearest[missed], far[missed] = self.search(rows[missed], 1, WIDE)
        for one, found, distance in zip(every, nearest[:, 0].tolist(), far[:, 0].tolist(), strict=True):
            there = found == one and distance == 0.0
            if one in deleted:
                wrong += [Violation("what was deleted is not found", f"id {one}")] if there else []
            elif not there and (one in self.nodes.number and not self._is_dead(one)):
                wrong.append(Violation("an id that is there is found at no distance", f"id {one}: {found}, {distance}"))
            elif not there and one not in self.nodes.number:
                wrong.append(Violation("what was promised is there", f"id {one}"))
        return wrong
