"""The study of continuous benchmarking: its pieces on small sizes, and its claims."""

from __future__ import annotations

import polars as pl
import pytest

from assay.observe import ci_bench
from assay.observe.bench import instructions
from assay.record import catalogue
from assay.record.types import NotMeasured, Verdict


def claim(text: str) -> ci_bench.Claim:
    (found,) = [one for one in ci_bench.claims if one.text.startswith(text)]
    return found


def test_two_users_store_the_same_but_for_times_and_load() -> None:
    assert ci_bench.again(seed=0) == {"same": True, "unlike": ""}


def test_a_comparison_ends_in_one_of_its_decisions() -> None:
    row = ci_bench.comparisons(change=0.0, replicas=1, pairs=10, rounds=2, seed=0)
    assert row["comparisons"] == 1 and row["alarms"] + row["no_change"] + row["undecided"] == 1
    assert abs(row["change_mean"]) < 5


def test_steps_are_contested_on_recorded_noise() -> None:
    rows = ci_bench.steps(commits=12, histories=4, seed=0)
    assert {"e-divisive", "pelt", "threshold", "welch", "threshold 10 %"} == set(rows)
    assert all(row["planted"] == 2 and 0 <= row["f1"] <= 1 for row in rows.values())


def test_without_a_counter_the_claim_is_not_measured_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "counter", lambda: instructions.Counter("", "no valgrind"))
    rows = ci_bench.counts(hash_seeds=1, seed=0)
    table = pl.DataFrame([{"experiment": "count", "change": float(c), "seed": 0, **row} for c, row in rows.items()])
    with pytest.raises(NotMeasured, match="no valgrind"):
        claim("a planted regression of 2 %").measure(table)


def test_one_false_alarm_in_two_hundred_is_told_with_its_interval() -> None:
    table = pl.DataFrame(
        {
            "experiment": ["compare"] * 2,
            "change": [0.0] * 2,
            "seed": [0, 1],
            "alarms": [0, 1],
            "comparisons": [100, 100],
        }
    )
    estimate = claim("equal code is called changed by time").measure(table)
    assert estimate.value == 0.005 and estimate.n == 200 and estimate.high == pytest.approx(0.0275, abs=0.001)
    assert claim("equal code is called changed by time").holds.judge(estimate) is Verdict.DIRECTION


def test_the_rival_is_the_best_of_the_others() -> None:
    table = pl.DataFrame(
        {
            "experiment": ["steps"] * 6, "method": ["e-divisive", "pelt", "welch"] * 2, "seed": [0, 0, 0, 1, 1, 1],
            "f1": [0.9, 0.5, 0.7, 0.8, 0.5, 0.6],
        }
    )  # fmt: skip
    assert ci_bench.best_rival(table).value == pytest.approx(0.2)


def test_every_stated_claim_is_answered_and_the_plot_is_drawn() -> None:
    paper = catalogue.paper("ci-bench")
    assert {stated.text for stated in paper.claims} <= {one.text for one in ci_bench.claims}
    rows = [
        {"experiment": "steps", "method": m, "found": 3, "planted": 5, "false": 1, "unchanged": 90} for m in ("a", "b")
    ]
    assert ci_bench.plot(pl.DataFrame(rows)).to_dict()["encoding"]["row"]
