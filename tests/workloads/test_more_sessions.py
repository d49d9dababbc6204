"""More load of a kind is more sessions: each as slow as it was, each with prompts of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.workloads.chat import chat
from assay.workloads.closed_loop import opened
from assay.workloads.more_sessions import by_session, resampled, sustained
from assay.workloads.prefixes import infinite_cache_hit, shared_tokens
from assay.workloads.requests import Requests

TRACE = chat(400, rate=4.0, seed=3)


@given(st.floats(0.5, 60.0), st.floats(20.0, 300.0), st.integers(0, 3))
def test_every_turn_keeps_its_think_time_its_session_and_its_distance(rate: float, seconds: float, seed: int) -> None:
    trace = chat(120, rate=3.0, seed=seed)
    load = sustained(trace, rate, seconds)
    assert load.after is not None and load.think is not None and load.session is not None and load.origin is not None
    assert trace.after is not None and trace.think is not None
    assert (np.diff(load.arrival) >= 0).all() and load.arrival[0] >= 0
    later = np.flatnonzero(load.after >= 0)
    before = load.after[later]
    assert (load.origin[before] == trace.after[load.origin[later]]).all()
    assert (load.session[before] == load.session[later]).all()
    assert (load.think[later] == trace.think[load.origin[later]]).all()
    apart = trace.arrival[load.origin[later]] - trace.arrival[load.origin[before]]
    np.testing.assert_allclose(load.arrival[later] - load.arrival[before], apart, atol=1e-6)


@pytest.mark.parametrize("rate", [2.0, 4.0, 37.0, 200.0])
def test_the_rate_is_what_was_asked_from_the_first_second_on(rate: float) -> None:
    load = sustained(TRACE, rate, 200.0)
    assert load.steady is not None
    for begin in (0.0, load.steady[0], load.steady[1] - 60.0):
        inside = (load.arrival >= begin) & (load.arrival < begin + 60.0)
        assert inside.sum() / 60.0 == pytest.approx(rate, rel=0.25 if rate < 10 else 0.05)


def test_a_trace_with_one_long_session_at_its_beginning_offers_its_rate_too() -> None:
    """All sessions open in the first second, and go on for an hour."""
    arrival = np.sort(np.concatenate([np.arange(5) * 0.2, np.linspace(10.0, 3600.0, 495)]))
    trace = opened(Requests.of(arrival, [90] * 500, [9] * 500, session=(np.arange(500) % 5).astype(np.int32)))
    load = sustained(trace, 1.0, 600.0)
    assert load.steady is not None
    inside = (load.arrival >= load.steady[0]) & (load.arrival < load.steady[1])
    assert inside.sum() / 600.0 == pytest.approx(1.0, rel=0.15)


def test_copies_share_what_several_sessions_share_and_nothing_else() -> None:
    load = sustained(TRACE, 40.0, 100.0)
    assert TRACE.prefixes is not None and load.prefixes is not None and load.session is not None
    assert load.origin is not None and TRACE.session is not None
    once = infinite_cache_hit(TRACE, answers=True)
    assert infinite_cache_hit(load, answers=True) == pytest.approx(once, abs=0.05)
    rows = np.random.default_rng(1).integers(0, len(load), (400, 2))
    for one, other in rows.tolist():
        if one == other:
            continue
        first, second = int(load.origin[one]), int(load.origin[other])
        shared = shared_tokens(load.prefixes, one, other)
        if load.session[one] == load.session[other] or TRACE.session[first] != TRACE.session[second]:
            assert shared == shared_tokens(TRACE.prefixes, first, second)
        else:
            assert shared <= shared_tokens(TRACE.prefixes, first, second)


def test_a_prompt_that_only_one_session_has_is_another_one_in_each_copy() -> None:
    load = sustained(TRACE, 40.0, 100.0)
    assert load.prefixes is not None and load.session is not None and load.origin is not None
    users: dict[int, set[int]] = {}
    for row in range(len(load)):
        for segment in load.prefixes.segments[load.prefixes.offsets[row] : load.prefixes.offsets[row + 1]].tolist():
            users.setdefault(segment, set()).add(int(load.session[row]))
    sources: dict[int, set[int]] = {}
    assert TRACE.prefixes is not None and TRACE.session is not None
    for row in range(len(TRACE)):
        for segment in TRACE.prefixes.segments[TRACE.prefixes.offsets[row] : TRACE.prefixes.offsets[row + 1]].tolist():
            sources.setdefault(segment, set()).add(int(TRACE.session[row]))
    assert any(len(by) > 1 for by in users.values())
    for row in range(len(load)):
        path = load.prefixes.segments[load.prefixes.offsets[row] : load.prefixes.offsets[row + 1]].tolist()
        origin = int(load.origin[row])
        old = TRACE.prefixes.segments[TRACE.prefixes.offsets[origin] : TRACE.prefixes.offsets[origin + 1]].tolist()
        for new, was in zip(path, old, strict=True):
            if len(sources[was]) == 1:
                assert len(users[new]) == 1
            assert load.prefixes.stop[new] == TRACE.prefixes.stop[was]


def test_a_resampled_trace_is_made_of_the_same_sessions() -> None:
    other = resampled(TRACE, 7)
    assert other.origin is not None
    whole = by_session(TRACE)
    assert set(np.unique(whole.of[other.origin])) < set(range(len(whole.opens)))
    assert len(other) == pytest.approx(len(TRACE), rel=0.3)
    assert resampled(TRACE, 7).arrival.tolist() == other.arrival.tolist()
    nothing = resampled(replace(TRACE, after=None, think=None, session=None, prefixes=None), 1)
    assert len(nothing) == pytest.approx(400, rel=0.3)
