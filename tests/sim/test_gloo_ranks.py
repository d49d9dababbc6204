"""Ranks in one process group."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from assay.sim.gloo_ranks import joined
from assay.sim.ranks import Rank, Ranks

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs 'torch'")


def added(rank: Rank, folder: str) -> float:
    with joined(rank, folder) as dist:
        import torch

        value = torch.full((1,), float(rank.index + 1))
        dist.all_reduce(value)
        threads = torch.get_num_threads()
    assert threads == 1 and not dist.is_initialized()
    return float(value)


def test_ranks_add_up_over_gloo_and_leave_the_group(tmp_path: Path) -> None:
    with Ranks(2, added, str(tmp_path), imports=("torch",)) as ranks:
        assert ranks.wait(timeout=200) == [3.0, 3.0]
