"""Builds for the crash lab: graph after graph of a few points, as ranks and their parent make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.data.interface import Store, StoreError, Violation
from assay.data.solanet.build import DONE, FINAL, LOCAL, Build, Recipe
from assay.sim.clock import Clock

PARTS, SIZE, K = 2, 3, 2
CHANGES = 4 + 4 * PARTS  # to the store, by one graph


def recipe(number: int) -> Recipe:
    """The scenario's graphs differ in their seed."""
    return Recipe(PARTS * SIZE, 1, K, PARTS, "euclidean", "tree", number, "")


def lists(stage: str, part: int, number: int) -> tuple[Any, Any]:
    """What a part's lists would hold.

    >>> lists("local", 0, 1)[0].tolist()
    [[1, 2], [2, 3], [3, 4]]
    """
    ids = np.arange(SIZE)[:, None] + np.arange(K) + number + part * SIZE
    return ids.astype(np.int32), np.full((SIZE, K), number + (stage == FINAL), np.float32)


class Job:
    """One who builds; a second one, or its heir, goes on with what it finds."""

    key = "solanet"
    roles: tuple[str, ...] = ("builder",)

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Nothing is read before it is needed."""
        self.store = store

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Build one graph after the other, as ranks and their parent do."""
        for number in range(max(ops // CHANGES, 1)):
            build = Build(recipe(number), f"g{number}/")
            if await build.begin(self.store) is not None:
                continue
            for stage in (LOCAL, FINAL):
                for part in range(PARTS):
                    if await build.kept(stage, part) is None:
                        await build.keep(stage, part, *lists(stage, part, number), {})
                        promised.append([number, stage, part])
            await build.finish(np.arange(PARTS * SIZE))
            promised.append([number, DONE, 0])

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Each graph keeps its promises; one that counts holds what was built."""
        wrong = []
        for number in sorted({one[0] for one in promised}):
            build = Build(recipe(number), f"g{number}/")
            build.store = self.store
            wrong += await build.check([one[1:] for one in promised if one[0] == number])
            wrong += await self._changed(build, number)
        return wrong

    async def _changed(self, build: Build, number: int) -> list[Violation]:
        done = await build.done()
        if done is None:
            return []
        right = [np.concatenate([lists(FINAL, part, number)[i] for part in range(PARTS)]) for i in (0, 1)]
        try:
            found = [await build.array(name, done) for name in ("ids", "dist")]
        except (StoreError, ValueError):
            return []  # told already
        same = all(np.array_equal(a, b) for a, b in zip(found, right, strict=True))
        return [] if same else [Violation("a graph holds what was built", f"graph {number}")]
