"""A training job for the crash lab: it saves, lets old checkpoints go, and dies; another process collects meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.data.interface import Store, StoreError, Violation
from assay.data.orbax.checkpoints import Checkpoints, Retention
from assay.data.orbax.register import StepExists
from assay.data.orbax.tree import flatten
from assay.sim.clock import Clock

CHANGES = 6  # to the store, about, by a step that is saved and an old one that goes
PAUSE = 40.0  # virtual seconds between steps, more than the grace: what the dead left behind is collected


def state(step: int) -> dict[str, Any]:
    """What the job would hold at a step: an array that changes, one that changes at times, one that never does.

    >>> state(3)["weights"].tolist()
    [3.0, 4.0, 5.0, 6.0]
    """
    return {
        "weights": np.arange(step, step + 4, dtype=np.float64),
        "slow": np.full((2, 3), step // 3, np.int32),
        "frozen": np.ones(5, np.float32),
        "step": step,
    }


class Job(Checkpoints):
    """A trainer that goes on after the newest checkpoint, and a collector."""

    roles: tuple[str, ...] = ("trainer", "collector")

    def __init__(self) -> None:
        super().__init__(keep=Retention(last=3), grace=30.0)

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """As always."""
        self.run = ""
        await super().open(store, clock=clock, seed=seed)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Save step after step and collect after each; as a collector only the latter."""
        if role == "collector":
            for _ in range(ops // CHANGES):
                await self.clock.sleep(PAUSE / 2)
                await self.collect()
            return
        while (step := max(await self.steps(), default=-1) + 1) < max(2, ops // CHANGES):
            leaves, skeleton = flatten(state(step))
            try:
                await self.save(step, leaves, skeleton)
            except StepExists:  # a dead process's save landed just now
                continue
            promised.append(step)
            await self.clock.sleep(PAUSE)
            await self.collect()

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Listed means complete and as it was; the newest promised step, or a later one, is listed."""
        wrong = list(await super().check())
        steps = await self.steps()
        for step in steps:
            try:
                wrong += await self._changed(step)
            except StoreError:
                continue  # told already
        if promised and max(promised) > max(steps, default=-1):
            wrong.append(Violation("a promised checkpoint is listed", f"step {max(promised)}, of {steps}"))
        return wrong

    async def _changed(self, step: int) -> list[Violation]:
        _, found, _ = await self.read(await self.table(step), lambda path: True, lambda array: None)
        leaves, _ = flatten(state(step))
        expected = {leaf.path: bytes(leaf.views[0][1]) for leaf in leaves}
        read = {path: bytes(targets[0].into) for path, targets in found.items()}
        return [] if read == expected else [Violation("a checkpoint keeps its bytes", f"step {step}")]
