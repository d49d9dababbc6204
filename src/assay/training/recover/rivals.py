"""What others do when a replica dies, as replicas of the same interface: drop it and go on, keep spares, or restart.

The first two are torchft's modes by their rule, written on our substrate: they mend the group as fast as `recover` does
and keep what survivors have computed, which torchft does not. So what is compared is the rule alone. torchft itself
runs in `benchmarks/training_recover.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from assay.training.recover.replicas import Replicas, deal


class DropAndGo(Replicas):
    """A dead replica's microbatches are left out: the batch shrinks with the group."""

    def __init__(self, *arguments: Any, replicas: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.replicas = replicas

    def _share(self, done: Mapping[int, Sequence[int]]) -> list[int]:
        mine = done[self.backend.rank]
        return [one for one in range(self.backend.rank, self.batch, self.replicas) if one not in mine]

    def _kept(self, summed: Sequence[int]) -> int:
        """All or none: buckets with and without the dead one's part are not mixed here either."""
        return min(summed) if min(summed) == len(self.buckets) else 0

    def _check(self, ledgers: Sequence[Sequence[int]]) -> None:
        pass  # fewer microbatches are what it is about


class Spares(Replicas):
    """So many replicas work; others hold the weights, take part in every sum with nothing, and step in."""

    def __init__(self, *arguments: Any, replicas: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.replicas = replicas

    def _share(self, done: Mapping[int, Sequence[int]]) -> list[int]:
        active = dict(sorted(done.items(), key=lambda one: (not one[1], one[0]))[: self.replicas])
        return deal(self.batch, active).get(self.backend.rank, [])


class Restarting(Exception):  # noqa: N818 - not an error of ours
    """A replica died: everybody stops here and begins anew from the last checkpoint."""


class Restart(Replicas):
    """Nobody survives a death: what was done since the last checkpoint is done again, by new processes."""

    def _kept(self, summed: Sequence[int]) -> int:
        if self.recovered:
            raise Restarting
        return super()._kept(summed)


SYSTEMS: dict[str, Callable[[int], Callable[..., Replicas]]] = {
    "recover": lambda replicas: Replicas,
    "drop-and-go": lambda replicas: partial(DropAndGo, replicas=replicas),
    "restart": lambda replicas: Restart,
    "spares": lambda replicas: partial(Spares, replicas=replicas),
}
