"""Fits to what was observed recover what made it, and blends meet at the border."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.cost_fit import (
    Observed,
    add_overheads,
    fit_engine,
    fit_grid,
    fit_steps,
    rounded,
)
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream

SHAPES: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [
    (b, b * c, ((p, before),) if p else ())
    for b in (0, 1, 8, 64) for c in (100, 3000) for p in (0, 64, 700) for before in (0, 512)
    if b or p
]  # fmt: skip


def observe(cost: StepCost, noise: float = 0.0) -> list[Observed]:
    factors = np.exp(noise * stream(0, "noise").standard_normal(len(SHAPES)))
    return [
        Observed(b, s, chunks, cost.seconds(b, s, chunks) * factor)
        for (b, s, chunks), factor in zip(SHAPES, factors, strict=True)
    ]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e-1), st.floats(1e-6, 1e-4), st.floats(1e-9, 1e-7), st.floats(1e-10, 1e-8))
def test_iterations_of_a_known_cost_give_it_back(base: float, token: float, kv: float, pair: float) -> None:
    truth = StepCost(tokens=base + token * np.arange(1000), decode_kv=kv, prefill_pair=pair)
    cost = fit_steps(observe(truth), max_tokens=999)
    for b, s, chunks in ((20, 30_000, ()), (5, 500, ((300, 100),)), (0, 0, ((900, 0),))):
        assert cost.seconds(b, s, chunks) == pytest.approx(truth.seconds(b, s, chunks), rel=1e-3)


def test_noise_of_ten_percent_leaves_less() -> None:
    truth = StepCost(tokens=0.01 + 2e-5 * np.arange(1000), decode_kv=2e-8, prefill_pair=1e-9)
    cost = fit_steps(observe(truth, noise=0.1), max_tokens=999)
    assert cost.seconds(30, 20_000) == pytest.approx(truth.seconds(30, 20_000), rel=0.1)


def test_overheads_are_found_and_a_slower_machine_too() -> None:
    operations = StepCost(tokens=0.01 + 1e-5 * np.arange(1000), decode_kv=1e-8)
    engine = StepCost(tokens=operations.tokens + 0.002, decode_kv=1e-8, decode_seq=1e-5, prefill_fixed=5e-4)
    cost = add_overheads(operations, observe(engine))
    assert cost.seconds(10, 10_000, [(50, 0)]) == pytest.approx(engine.seconds(10, 10_000, [(50, 0)]), rel=1e-4)
    decodes = [s for s in observe(engine) if not s.chunks]  # no prompt was seen: none is charged
    assert add_overheads(operations, decodes).prefill_fixed == 0.0
    slower = add_overheads(operations, observe(operations.scaled(1.3)), scaled=True)
    assert slower.seconds(10, 10_000) == pytest.approx(1.3 * operations.seconds(10, 10_000), rel=0.01)


def launched(truth: StepCost, noise: float = 0.0) -> list[Observed]:
    factors = np.exp(noise * stream(0, "launched").standard_normal(len(SHAPES)))
    return [
        Observed(b, s, chunks, truth.seconds(b, s, chunks) * factor)
        for (b, s, chunks), factor in zip(SHAPES, factors, strict=True)
    ]


@settings(max_examples=20, deadline=None)
@given(st.floats(0.8, 1.4), st.floats(0.0, 2e-3), st.floats(1.2, 1.8), st.floats(1.0, 1.3))
def test_an_engine_is_found_behind_its_launch_floors(factor: float, fixed: float, floor: float, more: float) -> None:
    bare = StepCost(tokens=0.005 + 2e-5 * np.arange(1000), decode_kv=1e-8, prefill_pair=1e-9)
    slower = bare.scaled(factor)
    device = StepCost(tokens=slower.tokens + fixed, decode_kv=slower.decode_kv, prefill_pair=slower.prefill_pair)
    alone = floor * device.seconds(chunks=((64, 0),))
    truth = replace(device, launch_alone=alone, launch_mixed=more * alone)
    found = fit_engine(bare, launched(truth))
    for b, s, chunks in ((20, 30_000, ()), (5, 500, ((30, 100),)), (0, 0, ((20, 0),)), (0, 0, ((900, 0),))):
        assert found.seconds(b, s, chunks) == pytest.approx(truth.seconds(b, s, chunks), rel=0.03)


def test_a_few_disturbed_iterations_do_not_count() -> None:
    tokens = 0.005 + 2e-5 * np.arange(1000)
    truth = StepCost(tokens=tokens, decode_kv=1e-8, launch_alone=0.012, launch_mixed=0.014)
    seen = [s._replace(seconds=2 * s.seconds) if i % 9 == 4 else s for i, s in enumerate(launched(truth, 0.01))]
    found = fit_engine(replace(truth, launch_alone=0.0, launch_mixed=0.0), seen)
    for b, s, chunks in SHAPES:
        assert found.seconds(b, s, chunks) == pytest.approx(truth.seconds(b, s, chunks), rel=0.06)


def test_a_grid_alone_gives_the_engine() -> None:
    sizes = (16, 32, 64, 128, 256)
    tokens = 0.006 + 1e-5 * rounded(np.arange(1000), sizes)
    truth = StepCost(tokens=tokens, decode_kv=2e-8, prefill_pair=1e-9, launch_alone=0.0085, launch_mixed=0.009)
    found = fit_grid(launched(truth), max_tokens=999, padded=sizes)
    for b, s, chunks in ((30, 20_000, ()), (5, 500, ((300, 100),)), (0, 0, ((40, 0),))):
        assert found.seconds(b, s, chunks) == pytest.approx(truth.seconds(b, s, chunks), rel=0.05)
    assert found.tokens[17] == found.tokens[32]  # padded to the same graph


def test_too_few_iterations_are_said_to_be_too_few() -> None:
    with pytest.raises(BadInput, match="at least 6"):
        fit_steps([])
