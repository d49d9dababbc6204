"""The plane as torch sees it; imported where torch is there. Workers that are spawned find the class here by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from assay.data.interface import Buffer, Store
from assay.data.lakestream.jobs import slices


class PlaneDataset(IterableDataset[Any]):
    """See :func:`assay.data.lakestream.dataset`."""

    def __init__(
        self, store: str | Store, rank: int, world: int, start: int, turns: Sequence[str],
        decode: Callable[[list[Buffer]], Any],
    ) -> None:  # fmt: skip
        self.store, self.rank, self.world, self.start = store, rank, world, start
        self.turns, self.decode = tuple(turns), decode

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine, of = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for parts in slices(self.store, self.rank, self.world, start=self.start + mine, every=of, turns=self.turns):
            yield self.decode(parts)
