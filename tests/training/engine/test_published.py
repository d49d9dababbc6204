"""What was published of training runs, what was measured of a chip, and which answers hang on what was assumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.plan import command as plan
from assay.sim.hardware import devices
from assay.sim.models import model
from assay.training.engine import planning, published, sensitivity
from assay.training.engine.cluster import Nccl, attained, measured_on, read, uncounted, usable
from assay.training.engine.gpu import known
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan

DOCS = Path(__file__).parents[3] / "docs" / "training.md"
HOPPER = ("h100", "h200", "h800")


@pytest.mark.parametrize("name", HOPPER)
def test_products_of_one_chip_attain_what_was_measured_of_one_of_them(name: str) -> None:
    assert measured_on(name) == "h200"
    assert read(f"8x{name}").efficiency == attained("h200")
    assert "same chip" in planning.trust(read(f"8x{name}")) or name == "h200"


def test_no_device_is_ahead_of_a_measured_one_by_a_guess() -> None:
    assert {attained(one.name).matrix for one in devices()} == {attained("h200").matrix}


def test_an_h200_is_not_slower_than_an_h100() -> None:
    shape, job = model("llama-3-8b"), Job(64, 4096)
    steps = {name: planning.best(shape, read(f"8x{name}"), job).fastest.step for name in HOPPER}
    assert steps["h200"] <= steps["h100"] <= steps["h800"]


def test_runs_that_were_published_on_a_measured_chip_come_out_near() -> None:
    """Nothing is fitted to them: a bound of a quarter is what a wrong count of layers or links would break."""
    ratios = published.of_chip("h100")
    assert len(ratios) >= 8
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.05
    assert max(np.abs(np.array(ratios) - 1)) < 0.25


def test_every_run_has_a_source_and_a_plan_that_can_be() -> None:
    for run in published.runs():
        assert run.source
        assert 0.3 < run.published < 0.6
        assert 0.2 < published.ours(run) < 0.8, run.name


def test_hours_for_a_trillion_tokens_are_a_share_of_the_peak() -> None:
    """By hand: 1,543 tokens a second of a GPU, each 37 billion multiplications and what attention adds, three times."""
    run = next(one for one in published.runs() if one.fp8)
    seconds = 180e3 * 3600 / 1e12
    assert run.published * 989.4e12 * seconds == pytest.approx(3 * run.shape.flops(1, 2048), rel=0.01)
    assert run.published > 6 * 37e9 / seconds / 989.4e12


def test_the_documentation_has_the_table_as_it_comes_out() -> None:
    assert published.as_markdown() in DOCS.read_text(encoding="utf-8")


def test_trust_says_how_far_off_published_runs_are() -> None:
    for name in ("h100", "a100"):
        told = planning.trust(read(f"64x{name}"))
        assert f"Of {len(published.of_chip(name))} published training runs on this chip" in told
    assert "published" not in planning.trust(read("8xl4"))


# ------------------------------------------------------------------------------------------------ memory


def test_memory_is_corrected_by_what_counts_are_known_to_fall_short_of() -> None:
    stored = known("h200")
    assert stored is not None
    off = np.array(list(stored.memory.values()))
    corrected = (1 + off) * uncounted() - 1
    assert corrected.mean() == pytest.approx(0.0, abs=2e-3)
    assert np.abs(corrected).max() < np.abs(off).max()
    one = simulate("llama-3-8b", "8xh100", Plan(Layout(tp=2, dp=4)), Job(64, 4096))
    assert one.row()["memory"] == one.held == pytest.approx(one.memory.max() * uncounted())


def test_what_fits_by_its_count_alone_does_not_fit() -> None:
    one = simulate("llama-3-8b", "8xh100", Plan(Layout(tp=2, dp=4)), Job(64, 4096))
    needs = one.memory.max() / 0.94  # a device whose memory the count just fills
    tight = replace(one, cluster=replace(one.cluster, device=replace(one.cluster.device, mem_bytes=1.01 * needs)))
    roomy = replace(one, cluster=replace(one.cluster, device=replace(one.cluster.device, mem_bytes=1.06 * needs)))
    assert not tight.fits
    assert roomy.fits
    assert usable(roomy.cluster.device) < 0.94 * roomy.cluster.device.mem_bytes


def test_advice_names_no_plan_that_does_not_fit() -> None:
    shape, cluster, job = model("llama-3-70b"), read("64xh100"), Job(128, 4096)
    found = planning.best(shape, cluster, job)
    assert found.too_large[0].step < found.fastest.step
    answer = planning.answer(found, 8)
    for words in (answer["why"], *(row["winner"] for row in answer["sensitivity"])):
        assert not any(one.plan.name in words for one in found.too_large)
    assert all(row["fits"] for row in answer["table"])


# ------------------------------------------------------------------------------------------- sensitivity


def test_an_answer_that_hangs_on_an_assumed_share_says_at_which_value_another_plan_wins() -> None:
    shape, cluster, job = model("llama-3-8b"), read("16xa100"), Job(64, 4096)
    wide, deep = Plan(Layout(tp=8, dp=2)), Plan(Layout(tp=2, pp=4, dp=2))
    first, second = sorted((wide, deep), key=lambda one: simulate(shape, cluster, one, job).step)
    slow = sensitivity.at(cluster, "links", 0.05)
    assert simulate(shape, slow, wide, job).step > simulate(shape, slow, deep, job).step
    turns = sensitivity.turns(shape, cluster, job, [first, second])
    for turn in turns:
        low, high = sensitivity.RANGES[turn.share]
        assert low <= turn.value <= high
        here = [simulate(shape, sensitivity.at(cluster, turn.share, turn.value), one, job).step
                for one in (first, second)]  # fmt: skip
        assert here[0] == pytest.approx(here[1], rel=0.03)
        assert turn.winner == second


def test_a_close_pair_turns() -> None:
    """A plan with many exchanges beside one with none, as fast at 0.65 of the links: below that the other wins."""
    shape, job = model("qwen3-30b-a3b"), Job(512, 4096)
    cluster = read("64xh100:ib400")
    spread, whole = (
        Plan(Layout(ep=8, dp=64), mbs=2, recompute="selective"),
        Plan(Layout(dp=64), mbs=8, zero=3, recompute="full"),
    )
    turns = sensitivity.turns(shape, cluster, job, [spread, whole])
    assert [turn.share for turn in turns] == ["links"]
    assert turns[0].winner == whole
    assert turns[0].value < 0.8
    assert "links at" in sensitivity.told(cluster, turns)


def test_what_was_measured_or_given_is_not_assumed() -> None:
    mine = replace(read("8xa100"), efficiency=replace(read("8xa100").efficiency, matrix=0.8, links=0.7))
    assert sensitivity.assumed(read("8xh200")) == ("links",)
    assert sensitivity.assumed(mine) == ("attention", "memory")


def test_links_that_are_moved_move_the_other_model_of_collectives_too() -> None:
    cluster = read("16xh100")
    nccl = sensitivity.at(replace(cluster, collectives=Nccl.of(cluster)), "links", 0.4)
    assert nccl.collectives == Nccl.of(replace(cluster, efficiency=nccl.efficiency))


def test_the_answer_has_it() -> None:
    words = ["training", "--model", "llama-3-8b", "--cluster", "8xa100", "--batch", "32", "--json"]
    answer = json.loads(CliRunner().invoke(plan, words).output)
    assert isinstance(answer["sensitivity"], list)
    assert "assumed" in answer["why"]


def test_one_plan_alone_has_no_winner_to_change() -> None:
    words = ["training", "--model", "llama-3-8b", "--cluster", "8xa100", "--batch", "32", "--layout", "tp2", "--json"]
    answer = json.loads(CliRunner().invoke(plan, words).output)
    assert answer["sensitivity"] == []
    assert "winner" not in answer["why"]
