"""Folding beside those who do not fold: everyone at their best, predictions that were not tuned, words for users."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.compare import command as compare_command
from assay.record.errors import BadInput
from assay.sim.models import Experts, model
from assay.training import moe_folding
from assay.training.engine.cluster import read
from assay.training.engine.step import simulate, simulate_many
from assay.training.interface import Job
from assay.training.moe_folding import FINE, MIXTRAL, PUBLISHED, QWEN, calibrated, contest, h100s
from assay.training.moe_folding.compare import compare
from assay.training.moe_folding.methods import METHODS, best_of_each, fitting, possible


@settings(max_examples=4)
@given(
    gpus=st.sampled_from([8, 16]), seq=st.sampled_from([4096, 16_384]), count=st.sampled_from([8, 32]),
    top_k=st.sampled_from([2, 4]),
)  # fmt: skip
def test_the_best_folded_plan_is_never_slower_than_the_best_unfolded(
    gpus: int, seq: int, count: int, top_k: int
) -> None:
    shape = replace(model("qwen3-30b-a3b"), full_layers=8, moe_layers=8, experts=Experts(count, top_k, 1024))
    cluster, job = read(f"{gpus}xh100"), Job(16, seq)
    found = best_of_each(fitting(shape, cluster, job, possible(shape, cluster, job, micro=1)))
    assert found["folded"] is not None
    for one in found.values():
        assert one is None or one.plan.zero == 3 or found["folded"].step <= one.step


def test_every_method_is_at_its_best() -> None:
    """No plan that its rules allow and that fits is faster, whatever is recomputed."""
    shape, cluster, job = model("qwen3-30b-a3b"), read("8xh200"), Job(16, 4096)
    plans = possible(shape, cluster, job, micro=2)
    every = [one for one in simulate_many(shape, cluster, plans, job) if one.fits]
    for name, one in best_of_each(fitting(shape, cluster, job, plans)).items():
        assert one is not None
        assert one.step == min(other.step for other in every if METHODS[name](other.plan))


def test_the_dense_run_is_met_whatever_is_guessed() -> None:
    plan, job, gpus, published = PUBLISHED
    for seed in (0, 1):
        at = calibrated(seed)
        assert simulate(moe_folding.DENSE, h100s(gpus, at), plan, job).mfu == pytest.approx(published, abs=1e-3)
    assert calibrated(0) != calibrated(1)


def test_the_two_published_utilisations_are_predicted_within_eight_points() -> None:
    """Calibrated on a dense model only; the same shares for both."""
    mixtral = contest(MIXTRAL, 128, 256, 4096, any_etp=False, seed=0)
    qwen = contest(QWEN, 64, 256, 4096, any_etp=False, seed=0)
    assert mixtral["folded"]["mfu"] == pytest.approx(0.493, abs=0.08)
    assert qwen["folded"]["mfu"] == pytest.approx(0.390, abs=0.08)
    for rows in (mixtral, qwen):
        assert rows["folded"]["folds"] == 1.0
        assert rows["folded"]["mfu"] == max(row["mfu"] for row in rows.values() if row["mfu"] is not None)
        assert {row["folds"] for name, row in rows.items() if name in ("unfolded", "tp+ep+dp")} == {0.0}


@pytest.mark.slow
def test_small_experts_and_cut_sequences_gain_more_than_a_twentieth() -> None:
    rows = contest(FINE, 128, 64, 32_768, any_etp=False, seed=0)
    assert rows["folded"]["mfu"] > 1.05 * rows["unfolded"]["mfu"]
    assert "cp" in rows["folded"]["plan"]
    assert "ecp" in rows["unfolded"]["plan"]


def test_small_experts_and_cut_sequences_gain_more_than_a_twentieth_on_fewer_gpus() -> None:
    shape, job = replace(model("qwen2-57b-a14b"), full_layers=14, moe_layers=14), Job(16, 32_768)
    cluster = h100s(32, calibrated(None))
    found = best_of_each(fitting(shape, cluster, job, possible(shape, cluster, job, micro=1, any_etp=False)))
    folded, unfolded = found["folded"], found["unfolded"]
    assert folded is not None and unfolded is not None
    assert folded.plan.layout.cp > 1
    assert folded.mfu > 1.05 * unfolded.mfu


def test_the_answer_names_layouts_and_says_why() -> None:
    answer = compare("qwen3-30b-a3b", "16xh100", Job(32, 16_384), micro=1)
    steps = [row["step"] for row in answer["table"]]
    assert steps == sorted(steps)
    assert answer["table"][0]["method"] == "folded"
    assert "Folding" in answer["why"]
    assert {row["method"] for row in answer["table"]} | set(answer["none_fits"]) == set(METHODS)


def test_bad_input_is_one_line() -> None:
    with pytest.raises(BadInput, match="llama-3-8b has no experts to fold"):
        compare("llama-3-8b", "8xh100", Job(16, 4096))
    with pytest.raises(BadInput, match="no plan of mixtral-8x22b fits 8 x h100"):
        compare("mixtral-8x22b", "8xh100", Job(16, 4096), micro=1)
    told = CliRunner().invoke(compare_command, ["moe-folding", "--model", "nothing", "--cluster", "8xh100"])
    assert told.exit_code != 0
