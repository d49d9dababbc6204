"""What the watcher makes of reports: who is blamed, what is drawn, what Prometheus reads."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live.watch.gather import KEPT, Gathering
from assay.live.watch.metrics import MetricsPage, page
from assay.live.watch.summary import MOST_SUSPECTS, Named, RankRow, Summary, summarise
from assay.observe.frontier.collector import STAGES
from assay.observe.frontier.diagnosis import diagnose
from assay.record.errors import AssayError, BadInput
from tests.live.watched import ELSEWHERE, HEALTHY, drawn, job, report, times

# ------------------------------------------------------------------------------------------------ what is judged


def test_the_rank_that_stalls_is_named_not_those_that_wait_for_it() -> None:
    seen = summarise(job(stall=30 * 10**6, culprit=2), 1.0)
    first = seen.suspects[0]
    assert (first.rank, first.stage, first.label, round(first.score, 9)) == (2, "data", "confirmed", 0.03)
    assert "rank 2" in first.next and (first.host, first.pid) == (ELSEWHERE, 7)


def test_a_healthy_job_has_no_suspect_and_says_why() -> None:
    seen = summarise(job(), 1.0)
    assert (seen.suspects, seen.label) == ([], "") and "no rank takes longer" in seen.why


def test_the_summary_is_the_frontiers_own_answer_on_the_same_steps() -> None:
    rng = np.random.default_rng(3)
    watched, blocks = Gathering(window=40), []
    for rank in range(5):
        rows = rng.integers(10**6, 9 * 10**6, (90, 6))
        rows[:, 1] += 5 * 10**6 * (rank == 3)
        blocks.append(rows)
        for first in range(0, 90, 7):
            watched.take(report(rank, first, rows[first : first + 7], size=5), now=0.0)
    seen = summarise(watched, 1.0)
    found = diagnose(np.stack(blocks, 1)[50:90], STAGES)
    assert (seen.first_step, seen.last_step, seen.label) == (50, 89, found.label)
    assert [(str(one.rank), one.stage, one.score) for one in seen.suspects] == [
        (one.entity, one.indicator, one.score) for one in found.suspects[:MOST_SUSPECTS]
    ]
    assert seen.accounting == {name: spent / 1e9 for name, spent in found.accounting.items()}


@given(st.integers(2, 5), st.integers(2, 40), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_accounting_adds_up_to_the_total_exactly(size: int, steps: int, seed: int) -> None:
    rng, watched = np.random.default_rng(seed), Gathering(window=20)
    for rank in range(size):
        watched.take(report(rank, 0, rng.integers(0, 10**9, (steps, 6)), size), now=0.0)
    seen = summarise(watched, 0.0)
    assert sum(seen.accounting.values()) == seen.total


def test_lost_reports_leave_gaps_that_are_marked_and_not_zero() -> None:
    watched = Gathering(window=40)
    for rank in range(4):
        for first in range(0, 60, 10):
            if (rank, first) != (1, 40):
                watched.take(report(rank, first, times(10)), now=0.0)
    seen = summarise(watched, 0.5)
    assert seen.label == "incomplete"
    assert seen.ranks[1].stages["forward"] == pytest.approx(0.010)


def test_a_reference_finds_what_all_ranks_lose_which_comparing_ranks_cannot() -> None:
    def slowed(**settings: Any) -> Summary:
        watched = Gathering(window=20, **settings)
        for rank in range(4):
            rows = times(60)
            rows[40:, 1] += 10 * 10**6
            watched.take(report(rank, 0, rows), now=0.0)
        return summarise(watched, 0.5)

    assert slowed().suspects == []
    seen = slowed(reference=20)
    assert (seen.compared, seen.label, seen.suspects[0].stage) == ("reference", "shared", "forward")


def test_a_reference_outlives_the_steps_that_are_kept() -> None:
    watched = Gathering(window=20, reference=10)
    for first in range(0, 3 * KEPT, 64):
        for rank in range(2):
            slow = 15 * 10**6 if first >= KEPT else 0
            watched.take(report(rank, first, times(64, rank, slow, culprit=1), size=2), now=0.0)
    seen = summarise(watched, 0.5)
    assert (seen.compared, seen.suspects[0].rank, seen.suspects[0].stage) == ("reference", 1, "data")


def test_work_that_a_device_was_given_is_labelled() -> None:
    watched = Gathering()
    for rank in range(4):
        rows = np.tile(HEALTHY, (60, 1))
        rows[:, 1 if rank == 2 else 2] += 30 * 10**6
        watched.take(report(rank, 0, rows, deferred=True), now=0.0)
    assert summarise(watched, 0.5).label == "device-deferred"


@pytest.mark.parametrize("wrong", [{"window": 1}, {"window": KEPT}, {"reference": -1}, {"reference": 10**6}])
def test_settings_that_cannot_be_are_bad_input(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=r"would be right|or 0 for none"):
        Gathering(**wrong)


# ------------------------------------------------------------------------------------------------ the view


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_view_fits_its_terminal_and_says_who_and_where(width: int) -> None:
    text = drawn(summarise(job(stall=30 * 10**6, culprit=2), 1.0), width)
    assert all(len(line) <= width for line in text.splitlines())
    for said in ("4 of 4 ranks report", "68 ms a step", "rank 2 · data  +30 ms a step (44%)  confirmed", "process 7"):
        assert said in text
    assert len([line for line in text.splitlines() if "●" in line]) == 4  # a sign alone where room is scarce


def test_where_not_all_stages_have_room_the_suspects_is_among_those_shown() -> None:
    stages = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "other")
    row = RankRow(0, "reports", 9, "vm", 1, 0, 0, 0.0, "", 0.0, dict.fromkeys(stages, 0.001) | {"other": 0.05})
    suspect = Named(0, "other", 0.05, 0.9, "confirmed", "look")
    accounting = {"other": 0.05} | dict.fromkeys(stages[:-1], 0.001)
    seen = Summary(2, 2, [row], 0, 9, 1, 0.056, stages, accounting, 0.056, "confirmed", suspects=[suspect])
    header = next(line for line in drawn(seen, 60).splitlines() if line.lstrip().startswith("rank  "))
    assert "other" in header and "data" in header


def test_the_view_of_a_thousand_ranks_shows_the_one_that_matters() -> None:
    text = drawn(summarise(job(size=1000, stall=30 * 10**6, culprit=777), 1.0), height=30)
    assert len(text.splitlines()) <= 30
    assert any(line.split()[0] == "777" for line in text.splitlines() if line.strip())
    assert "more ranks" in text


def test_every_trouble_of_a_rank_has_its_line() -> None:
    watched = job(steps=60)
    for rank in (0, 3):
        watched.take(report(rank, 60, times(30), start=2 if rank == 3 else 1, dropped=5), now=8.0)
    text = drawn(summarise(watched, 9.0, {"malformed": 3}))
    for said in ("rank 1 silent for 9.0 s, last at step 59: another-machine, process 7",
                 "rank 3: restarted once", "10 steps could not be sent", "left aside: 3 malformed"):  # fmt: skip
        assert said in text


# ------------------------------------------------------------------------------------------------ metrics


def test_the_metrics_page_is_what_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    watched = job(stall=30 * 10**6, culprit=2)
    watched.take(report(5, 0, times(9), host='a"\\b'), now=0.0)
    seen = summarise(watched, 1.0)
    found = {family.name: family.samples for family in parser.text_string_to_metric_families(page(seen))}
    advances = {one.labels["stage"]: one.value for one in found["assay_stage_advance_seconds"]}
    assert sum(advances.values()) == pytest.approx(seen.step) and advances["data"] == pytest.approx(0.034)
    blamed = found["assay_suspect_score"][0]
    assert (blamed.labels, blamed.value) == ({"rank": "2", "stage": "data"}, pytest.approx(0.03))
    assert {one.labels["rank"]: one.value for one in found["assay_rank_last_step"]}["0"] == 59


def test_metrics_are_served_on_loopback_and_nothing_else_is() -> None:
    served = MetricsPage(0, lambda: summarise(job(), 1.0))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=10) as answer:
            assert b"assay_ranks_reporting 4\n" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{served.port}/", timeout=10)
        with pytest.raises(AssayError, match="choose another port"):
            MetricsPage(served.port, lambda: summarise(job(), 1.0))
    finally:
        served.close()
