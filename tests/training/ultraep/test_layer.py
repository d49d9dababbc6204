"""The torch layer on real processes: balancing changes where tokens are computed, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from assay.training.ultraep import layer_job  # noqa: E402
from tests.oracles import expert_plans  # noqa: E402

RANKS, EXPERTS, TOKENS, WIDTH, FFN = 2, 4, 48, 8, 12


@pytest.fixture(scope="module")
def found() -> layer_job.Found:
    return layer_job.steps(RANKS, EXPERTS, TOKENS, seed=5, hidden=WIDTH, ffn=FFN)


def test_losses_and_all_gradients_are_those_of_the_unbalanced_layer(found: layer_job.Found) -> None:
    for rank in found:
        assert rank["ultraep"]["loss"] == pytest.approx(rank["none"]["loss"], abs=1e-5)
        assert set(rank["none"]["gradients"]) == {"up", "down", "gate.weight", "gate.bias", "x"}
        for name in rank["none"]["gradients"]:
            assert np.abs(rank["none"][name]).max() > 0
            assert np.abs(rank["ultraep"][name] - rank["none"][name]).max() <= 1e-5, name


def test_tokens_are_really_computed_on_copies_and_the_ranks_are_more_even(found: layer_job.Found) -> None:
    own = EXPERTS // RANKS
    before = [int(rank["none"]["computed"].sum()) for rank in found]
    after = [int(rank["ultraep"]["computed"].sum()) for rank in found]
    away = [np.delete(rank["ultraep"]["computed"], range(g * own, (g + 1) * own)).sum() for g, rank in enumerate(found)]
    assert sum(before) == sum(after) == 2 * RANKS * TOKENS
    assert max(before) > 1.5 * RANKS * TOKENS
    assert max(after) <= 1.05 * RANKS * TOKENS
    assert sum(away) > 0


def test_losses_and_master_gradients_are_those_of_a_layer_in_one_piece(found: layer_job.Found) -> None:
    weights, inputs = layer_job.weights_and_inputs(RANKS, EXPERTS, TOKENS, 5, WIDTH, FFN)
    up, down = (torch.cat([w[name] for w in weights]).requires_grad_() for name in ("up", "down"))
    losses = []
    for mine, (x, target) in zip(weights, inputs, strict=True):
        out = expert_plans.layer(x, mine["gate.weight"], mine["gate.bias"], up, down, top_k=2)
        losses.append((out - target).pow(2).mean())
    sum(losses).backward()
    for rank, loss in zip(found, losses, strict=True):
        assert rank["ultraep"]["loss"] == pytest.approx(loss.item(), abs=1e-5)
    for name, whole in (("up", up), ("down", down)):
        got = np.concatenate([rank["ultraep"][name] for rank in found])
        assert np.abs(got - whole.grad.numpy()).max() <= 1e-5
