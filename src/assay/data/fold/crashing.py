"""What the crash lab kills: a stream of short documents, deduplicated batch by batch, the log folded now and then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np

from assay.data.engine.version_log import GRACE
from assay.data.fold.decide import Settings
from assay.data.fold.graph import Graph
from assay.data.fold.index import Fold
from assay.data.fold.memory import identity
from assay.data.interface import Store, Violation
from assay.data.store.memory import MemStore
from assay.sim.clock import Clock

PER = 4  # documents to a batch
CHANGES = 3  # about so many a batch
SMALL = Settings(bits=256, links=4, ef=12, near=4)
EVERY = 8  # batches between two foldings of the log
_known: dict[tuple[Settings, int], tuple[list[int], bytes]] = {}


@cache
def text(number: int) -> str:
    """The scenario's documents: one in three is an earlier one with its last word changed.

    >>> text(5).split()[:3] == text(2).split()[:3]
    True
    """
    source = number // 2 if number % 3 == 2 and number > 2 else number
    if source != number:
        return text(source).rpartition(" ")[0] + f" changed{number}"
    return " ".join(f"w{(source * 7919 + i * 104729) % 1_000_003}" for i in range(24))


class Job:
    """FOLD with a stream to deduplicate."""

    key = "fold"
    roles: tuple[str, ...] = ("writer",)
    settings = SMALL

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Recover."""
        self.fold, self.clock = Fold(self.settings), clock
        await self.fold.open(store, clock=clock, seed=seed)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """What is left of the stream."""
        while (batch := self.fold.cursor.get("batch", 0)) < max(1, ops // CHANGES):
            numbers = range(PER * batch, PER * (batch + 1))
            answer = await self.fold.admit(
                [str(n) for n in numbers], [text(n) for n in numbers], cursor={"batch": batch + 1}
            )
            promised.extend([n, bool(kept)] for n, kept in zip(numbers, answer.keep, strict=True))
            if batch % EVERY == EVERY // 2:
                await self.fold.save_graph()
            if batch % EVERY == EVERY - 1:
                await self.fold.tidy()
                await self.clock.sleep(GRACE + 1)
                await self.fold.tidy()

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Besides the index's own rules: fates and the graph are those of a run that nothing disturbed."""
        wrong = await self.fold.check()
        batches = self.fold.cursor.get("batch", 0)
        fates, shape = await undisturbed(batches, self.settings)
        mine = self._fates(PER * batches)
        if mine != fates:
            first = next(n for n, (one, other) in enumerate(zip(mine, fates, strict=True)) if one != other)
            detail = f"document {first}: {mine[first]}, {fates[first]}"
            wrong.append(Violation("decisions do not depend on crashes", detail))
        for number, kept in promised:
            if number >= len(mine) or kept != (mine[number] >= 0):
                wrong.append(Violation("a decision that was told stays", f"document {number}: kept was {kept}"))
        if self._shape() != shape:
            wrong.append(Violation("the graph is the same to the last link", f"after {batches} batches"))
        return wrong

    def _shape(self) -> bytes:
        """What the graph looks like; nothing where there is none."""
        near, seen = self.fold.near, blake2b(digest_size=16)
        for rows in (near.saved()["links"], near.saved()["upper"]) if isinstance(near, Graph) else ():
            behind = np.logical_or.accumulate(rows < 0, axis=1)  # what lies behind a list's end means nothing
            seen.update(np.where(behind, -1, rows).tobytes())
        return seen.digest()

    def _fates(self, documents: int) -> list[int]:
        keys = np.array([_identity(n) for n in range(documents)], np.uint64)
        return [int(one) >> 16 for one in self.fold.fates.get(keys)] if documents else []


@cache
def _identity(number: int) -> int:
    return identity(str(number), text(number))


async def undisturbed(batches: int, settings: Settings) -> tuple[list[int], bytes]:
    """The fates of so many batches when nothing happens, and the graph's shape."""
    if (settings, batches) not in _known:
        job = Job()
        job.fold = Fold(settings)
        await job.fold.open(MemStore(), seed=0)
        _known[settings, 0] = [], job._shape()
        for batch in range(batches):
            numbers = range(PER * batch, PER * (batch + 1))
            await job.fold.admit([str(n) for n in numbers], [text(n) for n in numbers])
            _known[settings, batch + 1] = job._fates(PER * (batch + 1)), job._shape()
    return _known[settings, batches]
