"""A training job for the crash lab: epoch after epoch from real files, saved, killed, and gone on with.

What lies on disk besides checkpoints is scratch. So after any crash the saved epochs must be those of a training that
nobody disturbed, bit by bit, and none that was promised is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.data.interface import Store, StoreError, Violation
from assay.record import catalogue
from assay.sim.clock import Clock
from assay.sim.scratch import scratch

if TYPE_CHECKING:
    from assay.data.grinnder.layers import Floats, Network

    Weights = dict[str, Floats]

CHANGES = 3  # to the store, about, by an epoch that is saved
EDGES = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (4, 1)])
LABELS = np.array([0, 1, 0, 1, 0, -1])
_known: dict[bytes, Weights] = {}  # an epoch is a function of the weights: whoever comes by with the same need not wait


def first() -> Weights:
    """The weights that training begins with."""
    from assay.data.grinnder.layers import Network

    return _weights(Network("gcn", (3, 4, 2)))


def after(weights: Weights) -> Weights:
    """The weights one epoch later, trained part by part from real files with nothing kept in memory."""
    import torch

    from assay.data.disk.arrays import DiskArray, write_rows
    from assay.data.grinnder.blocks import cut
    from assay.data.grinnder.layers import Network
    from assay.data.grinnder.plan import Plan
    from assay.data.grinnder.trainer import Trainer

    name = b"".join(weights[key].tobytes() for key in sorted(weights))
    if name not in _known:
        network = Network("gcn", (3, 4, 2))
        network.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()})
        with scratch() as folder:
            write_rows(folder / "x.npy", np.sin(np.arange(18, dtype=np.float32)).reshape(6, 3))
            graph = cut(folder / "cut", lambda: iter([EDGES]), 6, 2, network.own_loops)
            plan = Plan(0, 0, 0, gradients=False, mode="rows")
            trainer = Trainer(network, graph, plan, folder / "rows", LABELS, LABELS >= 0)
            with DiskArray.open(folder / "x.npy") as rows:
                trainer.load(rows)
            trainer.epoch()
            trainer.close()
        with torch.no_grad():
            for parameter in network.parameters():  # by hand: torch loads its compiler with an optimizer
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.5)
        _known[name] = _weights(network)
    return _known[name]


def _weights(network: Network) -> Weights:
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}


class Job:
    """A trainer that goes on after the newest saved epoch."""

    key = "grinnder"
    roles: tuple[str, ...] = ("trainer",)

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Find out which epochs are saved."""
        self.saved = catalogue.component("checkpoints", "orbax")
        await self.saved.open(store, clock=clock, seed=seed)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Train and save, epoch after epoch."""
        while (done := max(await self.saved.steps(), default=0)) < max(2, ops // CHANGES):
            weights = after(await self.saved.restore_tree(done) if done else first())
            try:
                await self.saved.save_tree(done + 1, weights)
            except StoreError:
                if done + 1 not in await self.saved.steps():  # else a dead process's save landed just now
                    raise
            promised.append(done + 1)

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Saved epochs are whole and those of an undisturbed training; the newest promised one is among them."""
        wrong = list(await self.saved.check())
        steps, right = await self.saved.steps(), first()
        for step in range(1, max(steps, default=0) + 1):
            right = after(right)
            if step in steps and not await self._same(step, right):
                wrong.append(Violation("an epoch's parameters are those of a training nobody disturbed", f"{step}"))
        if promised and max(promised) > max(steps, default=0):
            wrong.append(Violation("a promised epoch is saved", f"epoch {max(promised)}, of {steps}"))
        return wrong

    async def _same(self, step: int, right: Weights) -> bool:
        try:
            found = await self.saved.restore_tree(step)
        except StoreError:
            return True  # told already
        return all(np.array_equal(found[name], right[name]) for name in right)
