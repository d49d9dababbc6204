"""Real processes that each hold a shard: what four save, two and one read, in another sharding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install torch")

from assay.data import Checkpointer
from assay.sim import gloo_ranks
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch

SHAPE = (10, 6)


def whole() -> np.ndarray:
    return np.arange(60, dtype=np.float32).reshape(SHAPE)


def distributed(axis: int | None) -> Any:
    """The array as a DTensor over all ranks: cut along an axis, or the same everywhere."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    placement = Replicate() if axis is None else Shard(axis)
    return distribute_tensor(torch.from_numpy(whole()), mesh, [placement])


def save(rank: Rank, folder: str, store: str) -> None:
    with gloo_ranks.joined(rank, folder):
        ck = Checkpointer(store, rank=rank.index, world=rank.size, run="first")
        ck.save(7, {"rows": distributed(0), "columns": distributed(1), "same": distributed(None), "note": "hello"})


def restore(rank: Rank, folder: str, store: str) -> list[list[list[float]]]:
    with gloo_ranks.joined(rank, folder):
        like = {"rows": distributed(1), "columns": distributed(0)}
        for tensor in like.values():
            tensor.to_local().zero_()
        found = Checkpointer(store).restore(like=like)
        return [found[name].to_local().tolist() for name in ("rows", "columns")]


def together(target: Any, size: int, store: Path) -> list[Any]:
    with scratch() as folder, Ranks(size, target, str(folder), str(store), imports=("torch",)) as ranks:
        return ranks.wait(timeout=200)


@pytest.mark.slow
def test_what_four_ranks_save_two_and_one_read_in_another_sharding(tmp_path: Path) -> None:
    together(save, 4, tmp_path / "store")
    alone = Checkpointer(str(tmp_path / "store")).restore()
    for name in ("rows", "columns", "same"):
        np.testing.assert_array_equal(alone[name], whole())
    assert alone["note"] == "hello"
    answers = together(restore, 2, tmp_path / "store")
    for index in (0, 1):
        rows, columns = answers[index]
        np.testing.assert_array_equal(rows, whole()[:, 3 * index : 3 * index + 3])
        np.testing.assert_array_equal(columns, whole()[5 * index : 5 * index + 5])
