"""The line that a span of iterations follows is what its iterations cost one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.llm_cost import COEFFICIENTS, FOREVER, StepCost, chunk_line, decode_line, launch_line
from tests.oracles.llm_instance import iteration_seconds

_TERM = st.sampled_from([0.0, 1e-7, 3e-6, 1e-4])


@st.composite
def costs(draw: st.DrawFn) -> StepCost:
    terms = {name: draw(_TERM) for name in COEFFICIENTS if name != "window"}
    return StepCost(np.zeros(1000), window=float(draw(st.integers(1, 400))), **terms)


@settings(deadline=None)
@given(costs(), st.integers(1, 50), st.integers(0, 20_000))
def test_decodes_follow_their_line_as_long_as_it_is_valid(cost: StepCost, b: int, context: int) -> None:
    alpha, gamma, valid = decode_line(cost.packed(), b, context)
    assert valid >= 1
    for k in [*range(min(valid, 40)), min(valid, 10_000) - 1]:
        contexts = [context + b * k] + [0] * (b - 1)  # only the sum counts
        assert alpha + gamma * k == pytest.approx(iteration_seconds(cost, contexts, []), rel=1e-9, abs=1e-18)


@settings(deadline=None)
@given(costs(), st.integers(1, 300), st.integers(0, 20_000))
def test_chunks_follow_their_line_as_long_as_it_is_valid(cost: StepCost, chunk: int, before: int) -> None:
    alpha, gamma, valid = chunk_line(cost.packed(), chunk, before)
    assert valid >= 1
    cost = replace(cost, launch=0.0, launch_alone=0.0)
    for k in [*range(min(valid, 40)), min(valid, 10_000) - 1]:
        assert alpha + gamma * k == pytest.approx(
            iteration_seconds(cost, [], [(chunk, before + k * chunk)]), rel=1e-9, abs=1e-18
        )


@settings(deadline=None)
@given(costs(), st.integers(0, 9), st.integers(0, 2000), st.integers(1, 300), st.integers(0, 20_000))
def test_launching_holds_a_line_up_until_the_work_takes_longer(
    cost: StepCost, b: int, context: int, chunk: int, before: int
) -> None:
    contexts = [context] + [0] * (b - 1) if b else []
    decoding, rise, first = decode_line(cost.packed(), b, context)
    prompt, slope, second = chunk_line(cost.packed(), chunk, before)
    work, steeper, until = decoding + prompt, rise + slope, min(first, second)
    alpha, gamma, valid = launch_line(cost.packed(), b, work, steeper, until)
    assert 1 <= valid <= until
    for k in [*range(min(valid, 40)), min(valid, 10_000) - 1]:
        now = [contexts[0] + b * k, *contexts[1:]] if b else []
        expected = iteration_seconds(cost, now, [(chunk, before + k * chunk)])
        assert alpha + gamma * k == pytest.approx(expected, rel=1e-9, abs=1e-18)
    if valid < until:  # it ends where the work overtakes, and not before
        assert work + steeper * valid + cost.launch >= alpha * (1 - 1e-9)


@settings(max_examples=300, deadline=None)
@given(costs(), st.integers(1, 60), st.integers(0, 3000))
def test_a_line_is_not_cut_short(cost: StepCost, chunk: int, before: int) -> None:
    """Where `valid` ends, the next line has another slope: cutting costs speed, so it happens only at kinks."""
    for line, step in ((chunk_line, chunk), (decode_line, chunk)):
        _, gamma, valid = line(cost.packed(), chunk, before)
        if valid < FOREVER:
            _, after, _ = line(cost.packed(), chunk, before + step * valid)
            assert after != gamma or valid == 1


def test_nothing_costs_nothing_forever() -> None:
    assert decode_line(StepCost(np.zeros(1)).packed(), 0, 0) == (0.0, 0.0, FOREVER)
    assert decode_line(StepCost(np.zeros(1), decode_kv=1.0).packed(), 2, 10) == (10.0, 2.0, FOREVER)


def test_the_window_ends_the_line_where_it_is_full() -> None:
    cost = StepCost(np.zeros(9), decode_window=1.0, window=10.0)
    assert decode_line(cost.packed(), 2, 15) == (15.0, 2.0, 3)  # 15, 17, 19, and 20 from then on
    assert decode_line(cost.packed(), 2, 20) == (20.0, 0.0, FOREVER)


def test_a_chunk_changes_from_memory_to_compute_bound() -> None:
    cost = StepCost(np.zeros(9), prefill_pair=1.0, prefill_kv=3.0)
    # two tokens a time: pairs 2 (pre + 1), tokens read 3 (pre + 2); compute never overtakes 3/2 of the slope
    assert chunk_line(cost.packed(), 2, 0) == (6.0, 6.0, FOREVER)
    # four tokens a time: 4 (pre + 2) = 8, 24, … against 3 (pre + 4) = 12, 24, …
    assert chunk_line(cost.packed(), 4, 0) == (12.0, 12.0, 1)
    assert chunk_line(cost.packed(), 4, 4) == (24.0, 16.0, FOREVER)


@settings(deadline=None)
@given(
    costs(),
    st.integers(0, 20),
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 900)), max_size=3),
)
def test_seconds_is_the_documented_sum(cost: StepCost, b: int, context: int, chunks: list[tuple[int, int]]) -> None:
    contexts = [context] + [0] * (b - 1) if b else []
    expected = iteration_seconds(cost, contexts, chunks)
    assert cost.seconds(b, context if b else 0, chunks) == pytest.approx(expected, rel=1e-12, abs=1e-18)
    tripled = cost.scaled(3.0).seconds(b, context, chunks)
    assert tripled == pytest.approx(3.0 * cost.seconds(b, context, chunks), rel=1e-12, abs=1e-18)
