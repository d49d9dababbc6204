"""DualPipe: two copies of every part are kept, counted and reduced; what goes to experts hides behind computing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.models import model
from assay.sim.random import stream
from assay.training.engine.cluster import read
from assay.training.engine.costs import StageCosts, stage_costs
from assay.training.engine.graph import COMP, REDUCE, SENDING, step_graph
from assay.training.engine.schedules import DualPipe, holders
from assay.training.engine.step import memory_of, simulate, simulate_many, timed
from assay.training.interface import Job, Layout, Plan

DENSE, MOE = model("llama-3-8b"), model("qwen3-30b-a3b")
JOB = Job(64, 4096)


def costs(seed: int, pp: int, dispatch: float) -> StageCosts:
    """Any seconds at all, with exchanges of which a share goes to experts."""
    random = stream(seed, "test", "dualpipe")

    def some(scale: float = 1.0) -> np.ndarray:
        return scale * (0.1 + random.random(pp))

    forth, back = some(0.5), some(0.5)
    return StageCosts(
        np.full(pp, 3.0), some(), some(), some(), forth, back, some(), some(), some(), some(), some(), some(),
        0.01 * random.random((pp, pp)), some(), dispatch * forth, dispatch * back,
    )  # fmt: skip


def ends(cost: StageCosts, pp: int, m: int) -> float:
    graph, seconds, _ = timed(cost, Layout(pp=pp), DualPipe(), m)
    return float(graph.dag.ends(seconds).max())


cases = st.tuples(st.integers(0, 99), st.sampled_from([2, 4, 6]), st.integers(2, 4))


@given(cases)
def test_the_more_of_the_exchanges_can_hide_the_shorter_is_the_step(case: tuple[int, int, int]) -> None:
    seed, pp, rounds = case
    steps = [ends(costs(seed, pp, share), pp, pp * rounds) for share in (0.0, 0.3, 0.6, 1.0)]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(steps))


@given(cases)
def test_a_step_is_no_shorter_than_its_computing_and_what_the_sending_takes_of_it(case: tuple[int, int, int]) -> None:
    """Nor longer than one pass after the other."""
    seed, pp, rounds = case
    cost, m = costs(seed, pp, 1.0), pp * rounds
    graph, seconds, _ = timed(cost, Layout(pp=pp), DualPipe(), m)
    for stage in range(pp):
        mine = (graph.kind == COMP) & (graph.stage == stage)
        held = sorted({stage, pp - 1 - stage})
        computing = m / 2 * sum((cost.forward + cost.inputs + cost.weights)[part] for part in (stage, pp - 1 - stage))
        exchanges = m / 2 * sum((cost.wires_forward + cost.wires_backward)[part] for part in (stage, pp - 1 - stage))
        assert computing < seconds[mine].sum() < computing + exchanges, held
        assert float(graph.dag.ends(seconds).max()) >= computing


def test_overlapped_passes_take_what_the_slower_of_the_two_takes() -> None:
    """By hand: two passes of 3 s each and 1 s of sending each; then with 9 s of sending each."""
    for away, expected in ((1.0, 6.0 + SENDING * 2.0), (9.0, 18.0)):
        pp, some = 2, np.ones(2)
        cost = StageCosts(
            some, 3 * some, 2 * some, some, away * some, away * some, some, some, some, 0 * some, 0 * some, 0 * some,
            0.0, some, away * some, away * some,
        )  # fmt: skip
        graph, seconds, _ = timed(cost, Layout(pp=pp), DualPipe(), 8)
        firsts = np.flatnonzero(graph.wires >= graph.prices.overlap)
        lead = [i for i in firsts if graph.kind[i] == COMP and graph.wires[i] < graph.prices.total - 1]
        assert lead
        for i in lead:  # forward, backward and gradients of weights follow one another on their stage
            assert seconds[i : i + 3].sum() == pytest.approx(expected)


def test_gradients_of_both_copies_are_reduced() -> None:
    """With one data-parallel copy, too: the two ranks that hold a part have summed up different microbatches."""
    one, two = (simulate(DENSE, "4xh100", Plan(Layout(pp=4), name), Job(16, 4096)) for name in ("1f1b", "dualpipe"))
    assert one.seconds[one.graph.kind == REDUCE].sum() == 0.0
    reduced = two.seconds[two.graph.kind == REDUCE]
    assert len(reduced) == 2 * 2 * 4  # two parts on each of four stages, in two pieces
    gradients = stage_costs(DENSE, read("4xh100"), two.plan, Job(16, 4096)).gradient_bytes
    link = 0.8 * 450e9
    assert reduced.sum() / 4 > 0.9 * gradients.mean() * 2 * 0.5 / link


def test_a_reduction_waits_for_both_copies() -> None:
    pp, m = 4, 8
    assert holders(DualPipe(), pp) == ((0, 3), (1, 2), (1, 2), (0, 3))
    graph = step_graph(DualPipe(), pp, m)
    for node in np.flatnonzero(graph.kind == REDUCE):
        before = graph.dag.indices[graph.dag.indptr[node] : graph.dag.indptr[node + 1]]
        passes = before[graph.kind[before] == COMP]
        assert set(graph.stage[passes].tolist()) == {int(graph.part[node]), pp - 1 - int(graph.part[node])}
        assert set(graph.part[passes].tolist()) == {int(graph.part[node])}


def test_a_reduction_over_a_slow_network_is_felt_where_copies_lie_on_other_nodes() -> None:
    """Stages of eight ranks are nodes: the copies of every part meet over the network, with one data-parallel copy."""
    at = Plan(Layout(tp=8, pp=4), "dualpipe")
    slow, fast = (simulate(DENSE, f"32xh100:eth{gbits}", at, Job(16, 4096)) for gbits in (10, 400))
    assert slow.seconds[slow.graph.kind == REDUCE].sum() > 20 * fast.seconds[fast.graph.kind == REDUCE].sum()


@pytest.mark.parametrize("zero", [0, 1])
def test_memory_counts_two_copies_of_weights_and_gradients_and_one_of_what_is_sharded(zero: int) -> None:
    layout, cluster = Layout(pp=4, dp=2), read("8xh100")
    cost = stage_costs(DENSE, cluster, Plan(layout, "dualpipe", zero=zero), JOB)
    single = stage_costs(DENSE, cluster, Plan(layout, zero=zero), JOB)
    params = single.gradient_bytes / 4
    graph = step_graph(DualPipe(), 4, 32)
    held = memory_of(graph, replace(cost, kept=0 * cost.kept, passing=0 * cost.passing))
    mirrored = params + params[::-1]
    optimizer = 12 * mirrored / (4 if zero else 1)  # over both copies of both data-parallel ranks
    assert held == pytest.approx((2 + 4) * mirrored + optimizer)


def test_its_purpose_shows_where_experts_are_far() -> None:
    """On a slow network 1F1B waits for every exchange with experts, DualPipe for what computing does not cover."""
    layout = Layout(pp=4, dp=16, ep=16)
    plain, dual = simulate_many(
        MOE, read("64xh800:ib200"), [Plan(layout, "1f1b"), Plan(layout, "dualpipe")], Job(256, 4096)
    )
    assert dual.step < 0.9 * plain.step
    assert dual.exchange * dual.step < 0.75 * plain.exchange * plain.step
    for one in (plain, dual):
        assert 0 <= one.bubble < 1
        assert one.compute + one.exchange + one.data + one.bubble == pytest.approx(1.0)


def test_a_dense_model_has_nothing_to_hide() -> None:
    graph = step_graph(DualPipe(), 4, 8)
    cost = stage_costs(DENSE, read("8xh100"), Plan(Layout(tp=2, pp=4), "dualpipe"), Job(8, 4096))
    assert not np.any(cost.dispatch_forward)
    assert len(graph.prices.joined) == 4
