"""ResiHP's detector: what lengths take, who is slow, who only had long sequences, and a user's CSV."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.compare import command
from assay.record.errors import BadInput
from assay.training.resihp import Detector, Workload, explain, fit, trials, validate
from assay.training.resihp import detector as detectors
from assay.training.resihp.beats import Heartbeats
from assay.training.resihp.files import read_iterations

EXAMPLE = Path(__file__).parents[3] / "examples" / "iterations.csv"


@cache
def noticed() -> dict[str, dict[str, Any]]:
    return trials.noticed("long", 1000, 40, seed=20_260)


def test_no_alarm_in_a_thousand_healthy_iterations_where_detectors_on_times_alone_raise_more_than_three() -> None:
    found = noticed()
    assert found["resihp"]["false_alarms"] == 0 and found["resihp"]["iterations"] == 1000
    assert min(one["false_alarms"] for name, one in found.items() if name != "resihp") > 3


def test_a_slowdown_of_a_fifth_is_found_within_five_iterations() -> None:
    assert trials.AFTER == 5
    assert noticed()["resihp"]["found_twenty"] >= 0.97 * 40 and noticed()["resihp"]["found"] >= 0.97 * 40


def test_predictions_are_near_and_the_times_themselves_scatter() -> None:
    mine = noticed()["resihp"]
    assert mine["off_microbatch"] < 0.02 and mine["off_iteration"] < 0.051 and mine["scatter"] > 0.05


@given(st.floats(0, 1), st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-6), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_workload_of_its_own_form_is_learnt_from_times_without_noise(
    base: float, token: float, square: float, seed: int
) -> None:
    random, true = np.random.default_rng(seed), Workload(base, token, square)
    tokens = random.integers(10, 5000, 40).astype(float)
    squares = tokens**2 * random.uniform(0.1, 1.0, 40)
    found = fit(tokens, squares, true.seconds(tokens, squares))
    assert found.seconds(tokens, squares) == pytest.approx(true.seconds(tokens, squares), rel=1e-6)


@given(st.integers(0, 2**32), st.floats(1.0, 2.0))
@settings(max_examples=20, deadline=None)
def test_the_detector_online_says_what_the_scores_say(seed: int, times: float) -> None:
    random, warm_up = np.random.default_rng(seed), 40
    tokens = random.integers(100, 4000, 90).astype(float)
    took = (0.01 + 1e-8 * tokens**2) * np.exp(0.02 * random.standard_normal(90))
    took[60:] *= times
    online = Detector(warm_up)
    scores = [online.see(n, n * n, t).score for n, t in zip(tokens, took, strict=True)]
    assert online.workload is not None
    ratios = np.log(took / online.workload.seconds(tokens, tokens**2))
    level, sigma = detectors._learned(ratios[:warm_up])
    slow = detectors._smoothed(((ratios - level) / sigma)[warm_up:])
    assert scores[warm_up:] == pytest.approx(slow.tolist(), rel=1e-9, abs=1e-9)
    assert online.alarms == [warm_up + at for at in detectors.alarms(slow, detectors.K, detectors.RUN, 0)]


def test_a_rule_tuned_on_scores_takes_the_fewest_alarms_of_those_that_find_enough() -> None:
    healthy = np.array([0.0] * 20 + [0.03, 0.0] * 20)
    episodes = [np.array([0.0] * 24 + [0.2] * 5)]
    own = detectors.tuned("fixed", healthy, episodes, onset=24, warm_up=20)
    assert (own.recall, own.false_alarms) == (1.0, 0) and own.threshold < 0.2


def test_a_benchmark_names_who_is_slower_than_it_was_and_nobody_if_all_are() -> None:
    assert validate([2.0, 1.0, 1.02], [1.0, 1.0, 1.0]) == {0: 2.0}
    assert validate([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]) == {}


def test_long_sequences_are_told_from_a_slow_rank() -> None:
    random = np.random.default_rng(1)
    lengths = random.integers(100, 2000, (4, 30)).astype(float)
    lengths[2] = np.maximum(lengths[2], 1500)
    took = (0.01 + 1e-8 * lengths**2) * np.exp(0.01 * random.standard_normal((4, 30)))
    calm = explain(lengths, lengths**2, took, rank=2)
    assert calm is not None and not calm.slow and took[2].mean() > 1.2 * took[[0, 1, 3]].mean()
    took[2] *= 1.25
    late = explain(lengths, lengths**2, took, rank=2)
    assert late is not None and late.slow and late.ratio == pytest.approx(1.25, rel=0.03)
    assert explain(lengths[:, :1], lengths[:, :1] ** 2, took[:, :1], rank=2) is None


def test_a_machine_that_stands_still_accuses_nobody() -> None:
    beats = Heartbeats(ranks=3, patience=5)
    assert all(beats.look([4, 4, 4]) == set() for _ in range(50))
    found = [beats.look([5 + turn, 5 + turn, 4]) for turn in range(6)]
    assert found[-1] == {2} and found[3] == set()


# ------------------------------------------------------------------------------------------------ a user's file


def test_the_users_file_is_judged_and_the_slow_rank_is_named() -> None:
    answer = CliRunner().invoke(command, ["resihp", "--times", str(EXAMPLE), "--json"], catch_exceptions=False)
    said = json.loads(answer.output)
    rows = {row["detector"]: row for row in said["table"]}
    assert "rank 1 takes 1.2" in said["why"] and "rank 0" not in said["why"]
    assert 150 <= rows["resihp"]["first"] < 155 and rows["fixed"]["first"] < 150


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lengths,time\n512 77,0.2\n512 x,0.1\n", "line 3: lengths should be numbers"),
        ("lengths,seconds\n512,-1\n", "line 2: seconds should be a number above 0"),
        ("lengths,seconds\n0 3,1\n", "line 2: a sequence of no tokens"),
        ("tokens,seconds\n5,1\n", "line 1 must name lengths and seconds"),
        ("step,rank,lengths,seconds\n0,0,5,1\n0,1,5,1\n1,0,5,1\n", "rank 1 has no row for step 1"),
        ("step,rank,lengths,seconds\n0,0,5,1\n0,0,5,1\n", "step 0 of rank 0 is there twice"),
        ("rank,lengths,seconds\n1,5,1\n", "ranks should be 0 to 0"),
        ("rank,lengths,seconds\n-1,5,1\n", "rank should be a whole number"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_iterations(path)


def test_too_few_iterations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("lengths,seconds\n" + "5 6,1.0\n" * 30)
    answer = CliRunner().invoke(command, ["resihp", "--times", str(path)])
    assert isinstance(answer.exception, BadInput) or answer.exit_code == 2
