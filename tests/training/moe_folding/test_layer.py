"""The dispatcher on four real processes: two meshes change where tokens are computed, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from assay.training.interface import Layout  # noqa: E402
from assay.training.moe_folding import layer_job  # noqa: E402
from assay.training.moe_folding.layer import AUXILIARY, within_capacity  # noqa: E402
from assay.training.moe_folding.layer_job import Case  # noqa: E402
from tests.oracles import moe_block  # noqa: E402

TOKENS, SEED = 12, 3
FOLDED, BOTH, UNFOLDED, SPREAD = (
    Layout(tp=2, dp=2, ep=4), Layout(tp=2, cp=2, ep=2, etp=2), Layout(tp=2, dp=2, ep=2, etp=2),
    Layout(cp=2, dp=2, ep=2, ecp=2),
)  # fmt: skip
DROPS = ((None, False), (1.0, False), (1.0, True))
CASES = [Case(layout, *drop) for layout in (FOLDED, BOTH, UNFOLDED, SPREAD) for drop in DROPS]


@pytest.fixture(scope="module")
def found() -> dict[Case, layer_job.Found]:
    return dict(zip(CASES, layer_job.steps(CASES, TOKENS, SEED), strict=True))


def test_outputs_losses_and_gradients_are_those_of_the_dense_block(found: dict[Case, layer_job.Found]) -> None:
    for case, ranks in found.items():
        apart = layer_job.apart(case, ranks, TOKENS, SEED)
        assert max(apart[name] for name in ("out", "loss", "gradients")) <= 1e-5, case


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[5], CASES[8], CASES[9]], ids=lambda c: c.layout.name)
def test_and_those_of_a_block_computed_token_by_token(case: Case, found: dict[Case, layer_job.Found]) -> None:
    weights, inputs, targets = layer_job.weights_and_inputs(4, TOKENS, SEED)
    weights = {name: weight.requires_grad_() for name, weight in weights.items()}
    losses, outputs = moe_block.losses(
        weights, inputs, targets, slices=case.layout.tp * case.layout.cp, top_k=layer_job.TOP_K, auxiliary=AUXILIARY,
        capacity=case.capacity, whole_sequence=case.whole_sequence,
    )  # fmt: skip
    sum(losses).backward()
    for rank, mine in enumerate(found[case]):
        assert np.abs(mine["out"] - outputs[rank].detach().numpy()).max() <= 1e-5
        assert mine["loss"] == pytest.approx(losses[rank].item(), abs=1e-5)
        for name, weight in weights.items():
            whole = layer_job.share(name, weight.grad, case.layout, rank)
            assert np.abs(mine["gradients"][name] - whole.numpy()).max() <= 1e-5, name


def test_every_pair_is_computed_once_or_dropped(found: dict[Case, layer_job.Found]) -> None:
    for case, ranks in found.items():
        computed = sum(rank["computed"] for rank in ranks) / case.layout.etp  # every slice of an expert sees the row
        dropped = sum(rank["dropped"] for rank in ranks)
        assert computed + dropped == 4 * TOKENS * layer_job.TOP_K
        assert (dropped > 0) == (case.capacity is not None)


def test_experts_reduced_over_attentions_groups_would_be_wrong(found: dict[Case, layer_job.Found]) -> None:
    """Folded, the copies of an expert are not the copies of attention: summing over those mixes experts up."""
    wrong = layer_job.apart(CASES[0], found[CASES[0]], TOKENS, SEED)["over_dense_copies"]
    assert wrong > 0.01


def test_an_expert_keeps_the_likeliest_and_of_equals_the_first() -> None:
    chosen = torch.tensor([[0, 1], [0, 1], [0, 1], [0, 2]])
    probability = torch.tensor([[0.4, 0.3], [0.5, 0.3], [0.4, 0.3], [0.1, 0.05]])
    kept = within_capacity(probability, chosen, experts=4, factor=1.0)  # room for two each
    assert kept.tolist() == [[True, True], [True, True], [False, False], [False, True]]
