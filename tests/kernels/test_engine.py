"""The room's engine: right first, timed in turns, no speed-up that the rounds do not show."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from assay.kernels.engine import elsewhere, machine, runner
from assay.kernels.engine.asking import why, write_plot
from assay.kernels.engine.tuning import Key, Tuning
from assay.kernels.interface import Cost, Implementation, Kernel, Machine, Match, Record
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
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    measured = []
    monkeypatch.setattr(machine, "measure", lambda: measured.append(1) or HERE)
    assert machine.here() == HERE
    assert machine.here() == HERE
    assert len(measured) == 1
    machine.here(again=True)
    assert len(measured) == 2


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
