"""Contenders take turns."""

from __future__ import annotations

from assay.record.timing import interleave


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
