"""Attention on real processes is attention in one piece: outputs, and gradients of queries, keys and values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.training.fcp import attention_job
from assay.training.fcp.blocks import Plan, plan

RANKS = 3


@cache
def outcomes() -> list[tuple[Plan, dict[str, Any]]]:
    """Batches of drawn lengths, some shorter than a block, some longer, under either mask: all in one job."""
    random = np.random.default_rng(7)
    lengths = [random.integers(1, 60, random.integers(2, 7)).tolist() for _ in range(6)]
    plans = [plan(some, RANKS, size=8, causal=k % 2 == 0) for k, some in enumerate(lengths)]
    return list(zip(plans, attention_job.run(plans, seed=3), strict=True))


@pytest.mark.parametrize("case", range(6))
def test_outputs_and_gradients_are_those_of_attention_in_one_piece(case: int) -> None:
    found, outcome = outcomes()[case]
    expected = attention_job.in_one_piece(found.blocks.lengths.tolist(), found.blocks.causal, seed=3)
    assert set(outcome) == {"out", "q", "k", "v"}
    for name, values in expected.items():
        assert outcome[name].shape == values.shape
        assert np.abs(values).max() > 0.1
        assert np.abs(outcome[name] - values).max() <= 1e-4, name


def test_keys_and_values_really_travelled() -> None:
    assert sum(len(found.block) for found, _ in outcomes()) > 40


def test_a_plan_without_a_timetable_is_refused() -> None:
    found = plan([200, 150], RANKS, size=8, matched=False)
    with pytest.raises(ValueError, match="one at most"):
        attention_job.run([found], seed=0)
