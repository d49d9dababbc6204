"""Must hold whatever engines do: every request ends exactly once, and nothing is left behind."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")

from tests.live import chaos


def check(report: chaos.Report, requests: int) -> None:
    assert not report.wrong, report.wrong[:5]
    assert sum(report.ends.values()) == report.asked >= requests
    assert report.ends["forgotten"] == 0
    assert report.havoc["killed"] and report.havoc["stopped"]
    assert [engine["aboard"] for engine in report.overview["engines"]] == [0] * len(report.overview["engines"])
    assert report.overview["queue"] == 0
    assert report.ends["complete"] > 0.4 * report.asked  # a busy machine turns more away, and loses none of them
    # Connections of clients are gone; what is left are those kept to engines, at most one for each client.
    assert report.files_left <= report.files[0] + 60
    early, late = report.memory[len(report.memory) // 4], max(report.memory[-3:])
    assert late - early < 16 << 20


def test_a_short_storm_loses_nothing():
    check(chaos.run(3000, seed=1, clients=32), 3000)


def test_a_storm_with_the_simulator_s_times_loses_nothing():
    check(chaos.run(600, seed=2, clients=24, options=("--speed", "30")), 600)


@pytest.mark.slow
def test_twenty_thousand_requests_in_a_storm_lose_nothing():
    check(chaos.run(20_000, seed=3), 20_000)


@pytest.mark.slow
def test_ten_minutes_of_storm_leave_memory_flat():
    report = chaos.run(10_000_000, seed=4, seconds=600.0)
    check(report, report.asked)
    assert report.seconds >= 600.0
