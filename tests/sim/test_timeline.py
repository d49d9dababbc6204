"""Every operation on sets of time equals the one on sets of instants."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.sim import timeline
from tests.oracles.timeline import instants

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> timeline.Set:
    return timeline.union([a for a, _ in pairs], [b for _, b in pairs])


def held(one: timeline.Set) -> set[int]:
    starts, ends = one
    assert (starts < ends).all()
    assert (ends[:-1] < starts[1:]).all()  # in order, neither touching nor overlapping
    return instants(zip(starts.tolist(), ends.tolist(), strict=True))


@given(INTERVALS, INTERVALS, st.integers(0, 40), st.integers(0, 40))
def test_sets_of_time_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]], start: int, end: int) -> None:
    a, b, span = made(one), made(other), instants([(start, end)])
    assert held(a) == instants(one)
    assert held(timeline.intersect(a, b)) == instants(one) & instants(other)
    assert held(timeline.subtract(a, b)) == instants(one) - instants(other)
    assert held(timeline.clip(a, start, end)) == instants(one) & span
    assert held(timeline.gaps(a, start, end)) == span - instants(one)
    assert timeline.total(a) == len(instants(one))


@given(INTERVALS, INTERVALS)
def test_what_is_covered_of_each_interval(one: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    asked = [(a, b) for a, b in asked if a <= b]
    got = timeline.covered(made(one), [a for a, _ in asked], [b for _, b in asked])
    assert got.tolist() == [len(instants(one) & instants([pair])) for pair in asked]


def test_a_million_intervals_need_no_python_loop() -> None:
    starts = np.arange(1_000_000) * 3
    one = timeline.union(starts, starts + 2)
    assert timeline.total(one) == 2_000_000
    assert timeline.total(timeline.intersect(one, timeline.union(starts + 1, starts + 3))) == 1_000_000
