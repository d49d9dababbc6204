"""Two analyses for the crash lab: a search by kept functions around a ring, and components by rotating ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from assay.data.graphflash.function import serving
from assay.data.graphflash.job import ROTATING, Design, Job, prepare
from assay.data.graphflash.parts import Network, network
from assay.data.graphflash.programs import PROGRAMS, Params, wanted
from assay.data.interface import Store, StoreError, Violation
from assay.sim.clock import Clock
from assay.sim.faas import Modelled
from assay.sim.streams import key as key_of

EACH = 3  # vertices of a part
KEPT, TURNS = Design(checkpoint=2), Design(ROTATING)
LEAST = 3  # parts
BOTH = 60  # changes from which both jobs are done


def ring(parts: int) -> Network:
    """A ring in which a search meets one part after the other, from both sides.

    >>> ring(3).n
    9
    """
    n = EACH * parts
    return network([(v, (v + step) % n) for v in range(n) for step in (1, n - 1)])


@cache
def given(program: str, parts: int) -> Network:
    """The ring as a program wants it; thousands of lives begin with the same one."""
    return wanted(PROGRAMS[program], ring(parts))


def expected(program: str, n: int) -> Any:
    """What comes out, without any of our code."""
    around = np.arange(n)
    return np.minimum(around, n - around) if program == "bfs" else np.zeros(n, np.int64)


class Analyst:
    """A coordinator that does two jobs; several at once do the same ones together."""

    key = "graphflash"
    roles: tuple[str, ...] = ("coordinator",)

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Nothing to recover here: every job reads its own log."""
        self.store, self.clock = store, clock
        self.author = f"{key_of(seed, 'graphflash'):016x}"
        self.ran = 0

    async def _job(self, program: str, parts: int, design: Design) -> Job:
        cut = await prepare(self.store, given(program, parts), parts, "range")
        self.ran += 1
        return Job(
            self.store, cut, program, Params(n=cut.n), design, workers=parts, clock=self.clock,
            author=f"{self.author}-{self.ran}",
        )  # fmt: skip

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """The jobs, from wherever their logs have come to; a short scenario has the search alone."""
        jobs = [("bfs", max(LEAST, ops // 24), KEPT), ("components", max(LEAST, ops // 48), TURNS)]
        for program, parts, design in jobs if ops >= BOTH else jobs[:1]:
            job = await self._job(program, parts, design)
            async with Modelled(serving(self.store), slots=job.count, cold=(0.0, 0.0), clock=self.clock) as platform:
                value = await job.run(platform)
            promised.append([program, job.cut.n, job.name, value.tolist()])
            await job.tidy()

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Answers are right and stay; what a log needs is there."""
        wrong = []
        for program, n, name, value in promised:
            if value != expected(program, n).tolist():
                wrong.append(Violation("an answer is right", f"{program} on {n} vertices: {value[:8]}"))
            if await self.store.head(f"jobs/{name}/result") is None:
                wrong.append(Violation("an answer stays", f"{program} on {n} vertices"))
        graphs = [meta.key async for meta in self.store.list("graphs/") if meta.key.endswith("/index")]
        for index in graphs:
            parts = int(index.split("/")[1].split("-")[2])
            for program, design in (("bfs", KEPT), ("components", TURNS)):
                wrong += await self._checked(program, parts, design)
        return wrong

    async def _checked(self, program: str, parts: int, design: Design) -> list[Violation]:
        job = await self._job(program, parts, design)
        wrong = list(await job.log.check())
        await job.catch_up()
        if await self.store.head(f"{job.base}/result") is not None:
            return wrong
        for number, group in enumerate(job.groups):
            needed = {letter.key for _, letters in [*group.again, (0, group.mail)] for letter in letters}
            if group.state is not None:
                needed.add(group.state.key)
            for name in sorted(needed):
                try:
                    await self.store.get(name)
                except StoreError as error:
                    wrong.append(Violation("what a log names is there", f"group {number}: {error}"))
        return wrong
