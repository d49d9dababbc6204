"""The room's engine: right first, timed in turns, no speed-up that the rounds do not show."""

from __future__ import annotations

import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from assay.kernels.engine import elsewhere, machine, runner
from assay.kernels.engine.asking import why, write_plot
from assay.kernels.engine.tuning import Key, Tuning
from assay.kernels.interface import Cost, Implementation, Kernel, Machine, Match, Record
from assay.record import timing
from assay.record.errors import BadInput
from assay.record.types import NotMeasured

HERE = Machine("here", "f", {1: 1e10, 2: 1.5e10}, {"f32": 1e11}, {1: 1e9}, 1e-6, "today")
SUM = Kernel(
    "sum", lambda p: float(p.sum()), lambda p, out, right: Match(out == right), lambda p: Cost(p.size, p.nbytes)
)


def record(name: str, rounds: tuple[float, ...], prepare: float = 0.0) -> Record:
    run = float(np.median(rounds))
    return Record(name, "numba", 1, prepare, run, min(rounds), max(rounds), rounds, run / 2, "memory", Match(True))


def test_a_wrong_result_is_told_and_does_not_win() -> None:
    ways = [
        Implementation("right", "numpy", lambda p: p, np.sum),
        Implementation("wrong", "numpy", lambda p: p, lambda p: 0.0),
    ]
    outcome = runner.measure(SUM, np.ones(1000), ways, HERE, rounds=3)
    assert not outcome["wrong"].match.right
    assert "right is fastest" in why(outcome)
    assert "Wrong results: wrong" in why(outcome)


def test_an_implementation_that_goes_wrong_later_is_noticed() -> None:
    answers = iter([10.0, 10.0, 10.0, 3.0])
    ways = [Implementation("late", "numpy", lambda p: p, lambda p: next(answers))]
    assert not runner.measure(SUM, np.ones(10), ways, HERE, rounds=3)["late"].match.right


def test_what_cannot_run_is_named_and_if_nothing_can_that_is_one_line() -> None:
    never = Implementation("gpu", "cuda", id, id, lambda: "there is no GPU")
    with pytest.raises(BadInput, match="there is no GPU"):
        runner.measure(SUM, np.ones(3), [never], HERE)


def test_no_speedup_is_told_whose_interval_holds_one() -> None:
    assert runner.speedup(record("a", (1.0, 1.3, 0.9)), record("b", (1.1, 0.95, 1.2))) is None
    found = runner.speedup(record("a", (1.0, 1.01, 0.99)), record("b", (3.0, 3.02, 2.99)))
    assert found is not None
    assert 2.9 < found.low <= found.value


def test_preparation_pays_from_some_run_on_or_never() -> None:
    ours, peer = record("ours", (1.0,), prepare=10.0), record("peer", (3.0,))
    assert runner.break_even(ours, peer) == 5
    assert runner.amortised(ours, [5])[0] <= runner.amortised(peer, [5])[0]
    assert math.isinf(runner.break_even(record("slow", (4.0,), 1.0), peer))


def test_the_limit_is_the_largest_of_its_bounds() -> None:
    assert HERE.limit(Cost(bytes=1.5e10)) == (1.0, "memory")
    assert HERE.limit(Cost(bytes=1e10), threads=1) == (1.0, "memory")
    assert HERE.limit(Cost(flops=1e12, bytes=1)) == (10.0, "arithmetic")
    assert HERE.limit(Cost(serial_steps=3e6)) == (3.0, "serial")


def test_a_busy_machine_answers_nothing() -> None:
    with pytest.raises(NotMeasured, match="too busy"):
        runner.quiet_enough([0.3, 0.4])


def test_a_setting_that_failed_is_kept_and_not_tried_again(tmp_path: Path) -> None:
    cache, key, calls = Tuning(tmp_path / "t.sqlite"), Key("k", "i", "s", "m", "f4", 3), []

    def fail() -> None:
        calls.append(1)
        raise ValueError("too much shared memory")

    assert cache.best(key, {"bad": fail, "good": lambda: None}) == "good"
    assert cache.best(key, {"bad": fail, "good": lambda: None}) == "good"
    assert len(calls) == 1
    assert "too much shared memory" in cache.export()
    with pytest.raises(BadInput, match="line 1"):
        cache.read("nonsense")


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = measuring(monkeypatch, tmp_path)
    assert asked_anew() == TODAY
    assert asked_anew() == TODAY
    assert len(measured) == 1
    machine.here(again=True)
    assert len(measured) == 2
    with ThreadPoolExecutor(8) as pool:
        machine._LOOKED.clear()
        machine._file().unlink()
        assert list(pool.map(lambda _: machine.here(), range(8))) == [TODAY] * 8
    assert len(measured) == 3


TODAY = replace(HERE, bandwidth=dict.fromkeys((1, machine.numba.get_num_threads()), 10000000000.0), gathers={1: 1e8},
                measured=f"{datetime.now(UTC):%Y-%m-%d}, on this machine")  # fmt: skip


def measuring(patch: pytest.MonkeyPatch, folder: Path, free: float = math.inf) -> list[int]:
    """Let this machine measure as TODAY has it, and at a glance be as fast, while others leave so many cores."""
    measured: list[int] = []
    patch.setenv("ASSAY_HOME", str(folder))
    patch.setattr(machine, "measure", lambda: measured.append(1) or TODAY)
    patch.setattr(machine, "_glance", lambda: (1e10, 1e11))
    patch.setattr(timing.Gauge, "__exit__", lambda self, *_: setattr(self, "free", free))
    machine._LOOKED.clear()
    return measured


def asked_anew() -> Machine:
    """As the next process asks."""
    machine._LOOKED.clear()
    return machine.here()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_forked_while_its_parent_measures_is_not_kept_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measuring(monkeypatch, tmp_path)
    with machine._ONE:
        if not (child := os.fork()):
            signal.alarm(120)  # ends it where it waits for ever
            os._exit(0 if machine.here() == TODAY else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_was_measured_among_others_is_said_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = measuring(monkeypatch, tmp_path, free=0.4)
    assert "others left 0.4" in asked_anew().measured
    assert machine.here().measured.endswith("not kept")  # this process asks once
    assert len(measured) == 1
    measuring(monkeypatch, tmp_path)
    assert asked_anew() == TODAY


@pytest.mark.parametrize(
    "kept",
    [
        replace(TODAY, measured="2020-01-01, on this machine"),
        replace(TODAY, measured="2999-01-01, on this machine"),
        replace(TODAY, measured="today"),
        replace(TODAY, bandwidth={512: 1e10}),  # of other threads
        replace(TODAY, bandwidth=dict.fromkeys(TODAY.bandwidth, 3.8e9)),  # of a loaded machine: a glance outruns it
        replace(TODAY, peaks={"f32": 2e10}),
        replace(TODAY, bandwidth=dict.fromkeys(TODAY.bandwidth, 9e12)),
        replace(TODAY, peaks={"f32": 1e11, "f64": 4e11}),
        replace(TODAY, peaks={"f32": float("nan")}),
        replace(TODAY, gathers={1: 1e10}),
        replace(TODAY, sync=0.0),
    ],
)
def test_what_is_not_to_be_believed_is_measured_again(
    kept: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = measuring(monkeypatch, tmp_path)
    assert asked_anew() == TODAY
    machine._file().write_bytes(msgspec.json.encode(kept))
    assert asked_anew() == TODAY
    assert len(measured) == 2
    assert msgspec.json.decode(machine._file().read_bytes(), type=Machine) == TODAY


def test_what_was_measured_elsewhere_says_where() -> None:
    h200 = machine.named("h200")
    assert h200.bandwidth[0] > 4e12
    assert "H200" in elsewhere.source("h200")


@pytest.mark.parametrize("name", ["roof.svg", "roof.png"])
def test_the_roofline_is_a_picture(name: str, tmp_path: Path) -> None:
    outcome = runner.Outcome("sum", (record("a", (1e-3,)),), {})
    write_plot(outcome, HERE, Cost(1e6, 1e6), tmp_path / name)
    assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(BadInput, match=r"\.svg or \.png"):
        write_plot(outcome, HERE, Cost(1e6, 1e6), tmp_path / "roof.gif")
