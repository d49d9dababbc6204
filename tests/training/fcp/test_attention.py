"""Attention on real processes is attention in one piece: outputs, and gradients of queries, keys and values."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.training.fcp import attention_job
from assay.training.fcp.blocks import plan


@pytest.mark.parametrize("causal", [True, False])
def test_outputs_and_gradients_are_those_of_attention_in_one_piece(causal: bool) -> None:
    lengths = [70, 3, 33, 16, 1]
    found = plan(lengths, ranks=2, size=8, causal=causal)
    assert len(found.block) > 4  # keys and values really travel
    outcome, expected = attention_job.run(found, seed=3), attention_job.in_one_piece(lengths, causal, seed=3)
    assert set(outcome) == {"out", "q", "k", "v"}
    for name, values in expected.items():
        assert outcome[name].shape == values.shape
        assert np.abs(values).max() > 0.1
        assert np.abs(outcome[name] - values).max() <= 1e-4, name


def test_a_plan_without_a_timetable_is_refused() -> None:
    found = plan([200, 150], ranks=3, size=8, matched=False)
    with pytest.raises(Exception, match="one at most"):
        attention_job.run(found, seed=0)
