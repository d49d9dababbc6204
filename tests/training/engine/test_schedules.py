"""Schedules against their closed forms, to the last bit: durations are whole numbers, so floats add exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.models import model
from assay.training.engine.cluster import read
from assay.training.engine.costs import StageCosts, stage_costs
from assay.training.engine.graph import slot_table
from assay.training.engine.schedules import SCHEDULES, named
from assay.training.engine.step import simulate, simulate_many, timed
from assay.training.interface import Job, Layout, Plan, Schedule


def bubble(order: Schedule, pp: int, m: int, f: float, b: float, w: float) -> float:
    """What a step takes beyond the work of one stage, where a stage takes f, b and w for a microbatch."""
    parts = int(slot_table(order, pp, m)[:, :, 4].max()) + 1
    one, none = np.ones(parts) * pp / parts, np.zeros(parts)
    costs = StageCosts(
        np.ones(parts), f * one, b * one, w * one, none, none, none, none, none, none, none, none, 0.0, none
    )
    graph, seconds, _ = timed(costs, Layout(pp=pp), order, m)
    return float(graph.dag.ends(seconds).max()) - m * (f + b + w)


sizes = st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))


@given(sizes)
def test_gpipe_and_1f1b_idle_as_long_as_it_takes_to_fill_and_drain(size: tuple[int, ...]) -> None:
    pp, rounds, f, b, w = size
    for name in ("gpipe", "1f1b"):
        assert bubble(named(name), pp, pp * rounds, f, b, w) == (pp - 1) * (f + b + w)


@given(sizes, st.sampled_from([2, 4]))
def test_interleaving_divides_the_bubble_by_the_chunks(size: tuple[int, ...], chunks: int) -> None:
    pp, rounds, f, b, w = size
    assert bubble(named("interleaved", chunks), pp, pp * rounds, f, b, w) == (pp - 1) * (f + b + w) / chunks


@given(sizes)
def test_zb_h1_fills_the_end_with_gradients_of_weights(size: tuple[int, ...]) -> None:
    pp, rounds, f, b, w = size
    w = min(w, f, b)  # where W is longer than what it is put behind, it waits for itself
    assert bubble(named("zb-h1"), pp, pp * max(rounds, 2), f, b, w) == (pp - 1) * (f + b - w)


@given(sizes)
def test_dualpipe_fills_from_both_ends(size: tuple[int, ...]) -> None:
    pp, rounds, f, b, w = size
    f = min(f, b)  # as its authors count: a forward pass is no longer than a backward one
    pp, w = 2 * pp, min(w, f)
    assert bubble(named("dualpipe"), pp, pp * max(rounds, 2), f, b, w) == (pp // 2 - 1) * (f + 2 * b - w)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "dualpipe"])
def test_in_flight_microbatches(name: str) -> None:
    """1F1B keeps as many as there are stages after it; GPipe keeps all."""
    pp, m = 4, 8
    most = []
    for stage in range(pp):
        rows = named(name, 1).slots(stage, pp, m)
        last = 2 if named(name).split else 1
        most.append(int(np.cumsum((rows[:, 0] == 0).astype(int) - (rows[:, 0] == last).astype(int)).max()))
    known: dict[str, Any] = {"gpipe": [8] * 4, "1f1b": [4, 3, 2, 1], "pipedream": [4, 3, 2, 1], "zb-h1": [4] * 4}
    assert most == known.get(name, most)


def test_pipedream_never_drains_and_keeps_old_weights() -> None:
    """Its step is the slowest stage's work alone; the first stages hold a version for each microbatch in flight."""
    job, layout = Job(32, 2048), Layout(pp=4, dp=2)
    drained, steady = (simulate("llama-3-8b", "8xh100", Plan(layout, name), job) for name in ("1f1b", "pipedream"))
    costs = stage_costs(model("llama-3-8b"), read("8xh100"), drained.plan, job)
    busiest = (costs.forward + costs.inputs + costs.weights + costs.wires_forward + costs.wires_backward).max()
    assert steady.microbatches == drained.microbatches == 16
    assert steady.step == pytest.approx(16 * busiest)
    assert steady.step < drained.step
    stashed = steady.memory - drained.memory
    assert stashed == pytest.approx(costs.gradient_bytes / 2 * np.array([3, 2, 1, 0]))
    assert steady.row() == simulate_many(model("llama-3-8b"), read("8xh100"), [steady.plan], job)[0].row()
