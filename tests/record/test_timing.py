"""Contenders take turns."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

from assay.record import timing
from assay.record.timing import Gauge, calm, interleave
from assay.record.types import NotMeasured


def test_every_round_runs_all_and_nobody_is_always_first() -> None:
    calls: list[str] = []
    seconds = interleave({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=6)
    assert all(len(times) == 6 for times in seconds.values())
    rounds = ["".join(calls[i : i + 3]) for i in range(0, 18, 3)]
    assert [sorted(r) for r in rounds] == [["a", "b", "c"]] * 6
    assert {r[0] for r in rounds} == {"a", "b", "c"}


def test_seconds_are_those_of_the_clock_that_is_asked_for() -> None:
    ticks = iter([0.0, 1.0, 5.0, 7.0, 7.0, 8.5])
    assert interleave({"a": lambda: None}, rounds=3, clock=lambda: next(ticks)) == {"a": [1.0, 2.0, 1.5]}


def test_a_gauge_tells_what_others_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([(10.0, 10.0, 1.0), (16.0, 24.0, 7.0)])  # idle, busy, own
    monkeypatch.setattr(timing, "_processors", lambda: next(seen))
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 2)
    with Gauge() as gauge:
        pass
    assert gauge.free == pytest.approx(2 * (1 - (14 - 6) / 20))


@pytest.mark.parametrize(("niceness", "idle"), [(0, 7.0), (10, 5.0)])
def test_to_a_process_that_is_not_nice_what_nice_ones_compute_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, niceness: int, idle: float
) -> None:
    second = timing.os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text("cpu  " + " ".join(str(n * second) for n in (3, 2, 1, 4, 1, 0, 0, 0)) + "\ncpu0 1\n")
    monkeypatch.setattr(timing.os, "nice", lambda step: niceness)
    found = timing._processors(tmp_path / "stat")
    assert found is not None and found[:2] == (idle, 11.0 - idle)


def test_a_process_spends_what_all_spend_that_descend_from_it_and_what_the_ended_left_it(tmp_path: Path) -> None:
    def lives(pid: int, parent: int, own: int, ended: int, name: str = "python") -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        fields = ["S", parent, *[0] * 9, own, 0, ended, 0]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))} 20 0\n")

    second = timing.os.sysconf("SC_CLK_TCK")
    lives(1, 0, 7 * second, 9 * second)
    lives(50, 1, 2 * second, 1 * second)
    lives(40, 50, 4 * second, 0, "a fork) server (R 1")  # numbers come round again: a child's may be lower
    lives(60, 40, 8 * second, 16 * second)
    lives(70, 1, 5 * second, 0)
    (tmp_path / "80").mkdir()  # it ended while we looked
    assert timing.tree_seconds(50, tmp_path) == 3 + 4 + 24
    (tmp_path / "60" / "stat").unlink()
    lives(40, 50, 4 * second, 24 * second, "a fork) server (R 1")
    assert timing.tree_seconds(50, tmp_path) == 3 + 4 + 24, "it ended, and nothing is lost or counted twice"
    assert timing.tree_seconds(99, tmp_path) == 0


def test_where_the_system_does_not_count_nobody_is_called_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing._processors(tmp_path / "stat") is None
    monkeypatch.setattr(timing, "_processors", lambda: None)
    with Gauge() as gauge:
        pass
    assert gauge.free == math.inf


def test_what_the_clock_says_counts_where_others_left_processors_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 64)
    calm(pl.DataFrame({"free_cores": [1.7, None, 1.9]}))
    calm(pl.DataFrame({"free_cores": [None]}, schema={"free_cores": pl.Float64}))
    calm(pl.DataFrame({"seconds": [1.0]}))
    with pytest.raises(NotMeasured, match=r"others left 0\.9 processors of 2"):
        calm(pl.DataFrame({"free_cores": [0.8, 1.0]}))
