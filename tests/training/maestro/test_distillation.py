"""A real teacher and student: the same loss and weights whichever cut the edge has, and so many times fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.training.maestro import distill_job


def test_the_loss_is_the_same_whether_logits_or_hidden_states_travel() -> None:
    found = distill_job.run(steps=6, seed=0)
    logits, hidden = found["logits"], found["hidden"]
    assert hidden["losses"] == pytest.approx(logits["losses"], abs=1e-6)
    assert logits["losses"][-1] < logits["losses"][0]
    for one, other in zip(logits["weights"], hidden["weights"], strict=True):
        assert np.abs(one - other).max() <= 1e-6
    assert logits["bytes"] / hidden["bytes"] == distill_job.VOCAB / distill_job.TEACHER
