"""The step engine against an independent one, folded against unfolded, many against one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.dag import BLOCK, Cyclic, Dag
from assay.sim.models import model
from assay.sim.random import stream
from assay.training.engine import costs as costs_of
from assay.training.engine.cluster import read
from assay.training.engine.costs import StageCosts, stage_costs
from assay.training.engine.graph import step_graph
from assay.training.engine.schedules import DualPipe, Interleaved, OneFOneB, named
from assay.training.engine.search import plans
from assay.training.engine.step import Unequal, simulate, simulate_many, timed
from assay.training.interface import Job, Layout, Plan
from tests.oracles.training_step import Play


def costs(seed: int, parts: int) -> StageCosts:
    """Any seconds at all for the parts of a model."""
    random = stream(seed, "test", "training", "costs")

    def some(scale: float = 1.0) -> Any:
        return scale * random.random(parts)

    layers = random.integers(1, 5, parts).astype(float)
    forth, back = some(0.3), some(0.4)
    return StageCosts(
        layers, some(), some(), some(), forth, back, some(), some(), some(), some(2.0), some(2.0), some(),
        0.2 * random.random((parts, parts)), some(), forth * random.random(parts), back * random.random(parts),
    )  # fmt: skip


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    """Layouts, schedules and microbatches that go together, with stragglers, unequal work and unequal experts."""
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"]))
    pp = draw(st.sampled_from([2, 4] if name == "dualpipe" else [1, 2, 3, 4]))
    vpp = draw(st.integers(2, 3)) if name == "interleaved" else 1
    m = pp * draw(st.integers(2, 4)) if name in ("interleaved", "dualpipe") else draw(st.integers(1, 7))
    layout = Layout(tp=draw(st.sampled_from([1, 2])), cp=draw(st.sampled_from([1, 2])), pp=pp,
                    dp=draw(st.sampled_from([1, 2, 4])), vpp=vpp)  # fmt: skip
    wide = layout.tp * layout.cp
    etp = draw(st.sampled_from([d for d in (1, 2, 4) if wide * layout.dp % d == 0]))
    ep = draw(st.sampled_from([d for d in (1, 2, 4, 8, 16) if wide * layout.dp % (etp * d) == 0]))
    layout = replace(layout, ep=ep, etp=etp)
    if layout.dp % ep == 0 and draw(st.booleans()):
        layout = replace(layout, etp=layout.tp, ecp=layout.cp)  # experts on attention's own mesh
    columns = wide * layout.dp
    slow, work = np.ones((pp, columns)), np.ones((layout.dp, m))
    for _ in range(draw(st.integers(0, 2))):
        slow[draw(st.integers(0, pp - 1)), draw(st.integers(0, columns - 1))] = draw(st.sampled_from([1.5, 3.0]))
    if draw(st.booleans()):
        work[:] = stream(draw(st.integers(0, 99)), "test", "work").uniform(0.5, 2.0, work.shape)
    return {"layout": layout, "order": named(name, vpp), "m": m, "slow": slow, "work": work,
            "costs": costs(draw(st.integers(0, 999)), pp * vpp)}  # fmt: skip


def end(graph: Any, seconds: Any) -> float:
    return float(graph.dag.ends(seconds).max())


@given(situations())
def test_folded_unfolded_and_an_engine_of_its_own_agree(case: dict[str, Any]) -> None:
    unequal = Unequal(case["slow"], case["work"])
    at = case["costs"], case["layout"], case["order"], case["m"]
    folded = end(*timed(*at, unequal=unequal)[:2])
    unfolded = end(*timed(*at, unequal=unequal, folded=False)[:2])
    played = Play(*at, case["slow"], case["work"]).end()
    assert folded == pytest.approx(unfolded, rel=1e-9)
    assert folded == pytest.approx(played, rel=1e-9)


@settings(max_examples=8)
@given(situations())
def test_the_batched_sweep_equals_single_runs(case: dict[str, Any]) -> None:
    graph, seconds, _ = timed(case["costs"], case["layout"], case["order"], case["m"])
    draws = seconds * stream(0, "test", "draws").uniform(0.5, 2.0, (BLOCK + 3, len(seconds)))
    assert (graph.dag.ends(draws) == np.stack([graph.dag.ends(one) for one in draws])).all()


def test_a_straggler_unfolds_only_its_own_orbit() -> None:
    slow = np.ones((2, 64))
    slow[1, 9] = 2.0
    graph, _, weight = timed(costs(0, 2), Layout(tp=8, pp=2, dp=8), OneFOneB(), 4, unequal=Unequal(slow))
    assert graph.columns == 4  # itself, its tensor-parallel partners, its data-parallel partners, the others
    assert sorted((weight * 64).round().astype(int).tolist()) == [1, 7, 7, 49]


def test_many_plans_swept_together_equal_each_alone() -> None:
    shape, cluster, job = model("qwen3-30b-a3b"), read("16xh100"), Job(32, 2048)
    some = plans(shape, cluster, job)[::40]
    for plan, one in zip(some, simulate_many(shape, cluster, some, job), strict=True):
        assert one.step == simulate(shape, cluster, plan, job).step
        assert one.row() == pytest.approx(simulate(shape, cluster, plan, job).row())


def test_a_thousand_ranks_folded_equal_all_of_them() -> None:
    plan, job = Plan(Layout(tp=8, pp=4, dp=32), recompute="full"), Job(128, 8192)
    folded = simulate("llama-3.1-405b", "1024xh100", plan, job)
    whole = simulate("llama-3.1-405b", "1024xh100", plan, job, folded=False)
    assert whole.step == folded.step
    assert len(whole.graph.kind) > 100 * len(folded.graph.kind)


def test_memory_follows_the_microbatches_in_flight() -> None:
    layout, job, cluster = Layout(pp=4, dp=2), Job(64, 4096), read("8xh100")

    def peak(schedule: str) -> Any:
        return simulate("llama-3-8b", cluster, Plan(layout, schedule), job).memory

    kept = stage_costs(model("llama-3-8b"), cluster, Plan(layout), job).kept
    microbatches = 32
    assert peak("gpipe") - peak("1f1b") == pytest.approx((microbatches - np.array([4, 3, 2, 1])) * kept)
    assert peak("zb-h1") - peak("1f1b") == pytest.approx(np.array([0, 1, 2, 3]) * kept)  # as the fullest, everywhere
    assert simulate("llama-3-8b", cluster, Plan(layout), job).fits
    assert not simulate("llama-3-8b", cluster, Plan(layout, "gpipe"), job).fits


def test_out_of_memory_is_a_result() -> None:
    outcome = simulate("llama-3.1-405b", "8xh100", Plan(Layout(tp=8)), Job(8, 4096))
    assert not outcome.fits
    assert outcome.memory.max() > 85e9
    assert outcome.step > 0


class Stuck:
    """Every stage begins with a backward pass that nobody can have asked for."""

    key = "stuck"
    chunks, split, flush = 1, False, True

    def virtual(self, chunk: int, stage: int, pp: int) -> int:
        return stage

    def check(self, pp: int, m: int) -> None:
        pass

    def slots(self, stage: int, pp: int, m: int) -> Any:
        order = [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)] if stage else [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]
        return np.array([(*slot, 0) for slot in order])


def test_a_schedule_that_deadlocks_is_told_so() -> None:
    with pytest.raises(BadInput, match="schedule stuck: its stages wait for each other for ever"):
        step_graph(Stuck(), 2, 2)


def test_cycles_name_their_nodes() -> None:
    with pytest.raises(Cyclic) as error:
        Dag.of(3, [(0, 1), (1, 2), (2, 1)])
    assert error.value.nodes.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(Layout(tp=3, dp=1)), "is 3 ranks, the cluster has 8"),
        (Plan(Layout(tp=8, dp=1), mbs=5), "a batch of 64 sequences is not a multiple of dp1 x mbs5"),
        (Plan(Layout(pp=8, dp=1, vpp=8)), "more stages than the 32 layers of llama-3-8b"),
        (Plan(Layout(pp=8, dp=1), "zigzag"), "unknown schedule 'zigzag'; there are gpipe, 1f1b"),
        (Plan(Layout(pp=8, vpp=2), "interleaved", mbs=16), "use a multiple of 8"),
        (Plan(Layout(dp=8), recompute="some"), "recompute is none|selective|full"),
        (Plan(Layout(dp=8, ep=2)), "ep2 should divide 1 experts"),
    ],
)
def test_impossible_plans_say_which_field(plan: Plan, message: str) -> None:
    with pytest.raises(BadInput) as error:
        simulate("llama-3-8b", "8xh100", plan, Job(64, 4096))
    assert message in str(error.value)


def test_heads_that_are_not_divisible() -> None:
    with pytest.raises(BadInput, match="tp6 does not divide the 32 heads of llama-3-8b"):
        simulate("llama-3-8b", "6xh100", Plan(Layout(tp=6)), Job(64, 4096))


def test_dualpipe_holds_two_parts_and_interleaved_smaller_ones() -> None:
    assert [DualPipe().virtual(1, s, 4) for s in range(4)] == [3, 2, 1, 0]
    assert [Interleaved(2).virtual(1, s, 4) for s in range(4)] == [4, 5, 6, 7]


@given(situations().map(lambda one: one["layout"]), st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
       st.integers(0, 3), st.sampled_from(["none", "full"]))  # fmt: skip
@example(Layout(tp=4, cp=16, pp=4), "1f1b", 3, "none")
@example(Layout(tp=2, pp=4, dp=12), "zb-h1", 3, "full")
def test_nothing_is_slower_on_faster_machines(layout: Layout, order: str, zero: int, recompute: str) -> None:
    """Whatever hides behind computing: less computing never leaves more to wait for than it saves."""
    one = Plan(replace(layout, vpp=1, ep=1, etp=1, ecp=1), order, recompute=recompute, zero=zero)
    cluster, job = read(f"{layout.ranks}xh100:eth10"), Job(7 * layout.dp, 8192)
    device, step = cluster.device, simulate("llama-3-8b", cluster, one, job).step
    quick = {name: 1.3 * flops for name, flops in device.peak_flops.items()}
    for faster in (
        replace(cluster, device=replace(device, peak_flops=quick)),
        replace(cluster, device=replace(device, mem_bw=1.3 * device.mem_bw)),
        replace(cluster, outside=replace(cluster.outside, bandwidth=1.3 * cluster.outside.bandwidth)),
        replace(cluster, inside=replace(cluster.inside, bandwidth=1.3 * cluster.inside.bandwidth)),
    ):
        assert simulate("llama-3-8b", faster, one, job).step <= step * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "layout", "order"),
    [("qwen3-30b-a3b", Layout(tp=4, pp=8, vpp=4, dp=5), "interleaved"), ("llama-3-8b", Layout(pp=16, dp=2), "1f1b"),
     ("qwen3-30b-a3b", Layout(pp=4, dp=2, etp=2), "gpipe")],
)  # fmt: skip
def test_who_shards_more_holds_no_more(name: str, layout: Layout, order: str) -> None:
    """Layers at hand are two of a rank, however many parts it holds, and only where there are copies to share with."""
    job = Job(16 * layout.dp, 8192)
    held = [simulate(name, f"{layout.ranks}xh100", Plan(layout, order, zero=zero), job).held for zero in range(4)]
    assert held == sorted(held, reverse=True)


def test_attention_made_from_latents_is_priced_by_what_is_made_of_them() -> None:
    """By hand, for DeepSeek-V3: 128 heads with keys of 192 and values of 128, latents of 1,536 and 576 numbers."""
    shape, tokens = model("deepseek-v3"), 4096
    rank = costs_of._Rank(shape, read("8xh200"), Layout(), 1, "none", tokens, tokens / 2)
    layer = costs_of._attention(rank, tokens / 2, linear=False)
    made = 128 * (192 + 128 + 128) + 1536 + 576
    assert layer.kept == 2 * tokens * (2 * 7168 + made + 128 * 128)
    cut = costs_of._attention(replace(rank, layout=Layout(tp=8)), tokens / 2, linear=False)
    assert cut.kept == layer.kept / 8
    assert cut.forward < 1.15 * layer.forward / 8  # all eight share the rows of what is not cut
    far = replace(rank, cluster=read("128xh200:eth1"), layout=Layout(cp=16), seq=tokens * 16)
    round_it = (16 - 1) * (2 * tokens * 128 * (192 + 128) / (0.8 * 1e9 / 8))
    assert costs_of._attention(far, tokens / 2, linear=False).wires == pytest.approx(round_it, rel=0.02)
