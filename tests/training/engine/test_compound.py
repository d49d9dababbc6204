"""Pipelines of encoders and language models whose microbatches differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.encoders import vision
from assay.sim.models import model
from assay.training.engine.cluster import read
from assay.training.engine.compound import Ends, Passes, Section, joined, joined_ends, levelled, peak, pipeline, summed
from assay.training.engine.costs import microbatch_costs, parts, stage_costs
from assay.training.engine.schedules import GPipe, Interleaved, OneFOneB, ZeroBubbleH1
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan
from tests.oracles import compound as oracle

ON = read("16xh100")
ORDERS = (OneFOneB(), GPipe(), ZeroBubbleH1(), Interleaved(2))


@given(
    st.sampled_from(ORDERS), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_pipeline_ends_when_it_does_played_stage_by_stage(order, stages, copies, m, seed) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    m, parts = (m * stages, stages * order.chunks) if order.chunks > 1 else (m, stages)
    f, b, w, kept, sent = (random.uniform(0.1, 3, (parts, copies, m)) for _ in range(5))
    gather, reduce, update = random.uniform(0, 2, (3, parts))
    ends = Ends(gather, reduce, update, random.integers(1, 5, parts).astype(float))
    passes = Passes(f, b, w, kept, sent, np.zeros(parts))
    assert pipeline(order, passes, ends).step == pytest.approx(oracle.step(order, passes, ends), rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b", "gemma-3-27b"])
def test_many_microbatches_cost_what_each_costs_alone(name: str, recompute: str, zero: int) -> None:
    shape, plan = model(name), Plan(Layout(tp=2, cp=2, pp=2, dp=2), recompute=recompute, zero=zero)
    tokens, seen = np.array([[512.0, 4096.0], [32.0, 20000.0]]), np.array([[256.0, 100.0], [16.0, 10000.0]])
    found = microbatch_costs(shape, ON, plan, parts(shape.layers, 2), tokens, seen)
    for at in np.ndindex(tokens.shape):
        alone = stage_costs(shape, ON, plan, Job(1, int(tokens[at]), float(seen[at])))
        for field in ("forward", "inputs", "weights", "wires_forward", "wires_backward", "kept"):
            assert getattr(found, field)[(slice(None), *at)] == pytest.approx(getattr(alone, field), rel=1e-12)
        assert found.state == pytest.approx(alone.state)


def test_equal_microbatches_of_one_model_are_the_engines_own_step() -> None:
    cut = Layout(tp=2, pp=4, dp=2)
    alone = simulate("llama-3-8b", ON, Plan(cut), Job(16, 4096))
    section = Section(model("llama-3-8b"), ON, cut)
    tokens = np.full((2, 8), 4096.0)
    found = pipeline(OneFOneB(), section.passes(tokens, section.pairs(tokens)), section.ends())
    assert found.step == pytest.approx(alone.step, rel=1e-9)


def test_an_empty_microbatch_takes_nothing_and_a_frozen_model_has_no_backward_pass() -> None:
    sees = Section(vision("clip-vit-l").shape, ON, Layout(), causal=False)
    found = sees.passes(np.array([0.0, 576.0]), np.array([0.0, 576.0**2]))
    assert found.forward[0, 0] == found.kept[0, 0] == found.sent[0, 0] == 0 < found.forward[0, 1]
    frozen = replace(sees, trained=False)
    still = frozen.passes(np.array([576.0]), np.array([576.0**2]))
    assert still.backward.max() == still.kept.max() == frozen.ends().reduce.max() == 0
    assert frozen.state()[0] == pytest.approx(2 * sees.shape.params)


def test_an_encoder_costs_what_its_products_need() -> None:
    sees = Section(vision("vit-10b").shape, ON, Layout(), causal=False)
    tokens = np.array([16384.0])
    peak_rate = ON.device.flops("bf16")
    seconds = float(sees.passes(tokens, 0 * tokens).forward[0, 0])
    assert 0.5 < sees.flops(16384, 0) / 3 / (seconds * peak_rate) < 0.83


def test_sections_follow_one_another_and_their_memory_is_by_microbatch() -> None:
    sees = Section(vision("vit-1b").shape, ON, Layout(pp=2, dp=2), causal=False)
    speaks = Section(model("llama-3.2-1b"), ON, Layout(pp=2, dp=2))
    tokens = np.array([[1000.0, 3000.0, 500.0]] * 2)
    both = joined(sees.passes(tokens, tokens**2), speaks.passes(tokens, tokens**2 / 2))
    assert both.forward.shape == (4, 2, 3)
    assert joined_ends(sees, speaks).layers.tolist() == [20, 20, 8, 8]
    held = peak(OneFOneB(), both.kept)
    assert held[0, 0] == pytest.approx(both.kept[0, 0].sum())  # all three are in flight on the first of four stages
    assert held[3, 0] == pytest.approx(both.kept[3, 0].max())


def test_what_is_freed_later_is_held_longer() -> None:
    kept = np.ones((1, 1, 3))
    put_off = np.array([[[0.0, 1.0, 2.0]]])  # the first microbatch's sample leaves with the third
    assert peak(OneFOneB(), kept).max() == 1
    assert peak(OneFOneB(), kept, put_off).max() == 2


@pytest.mark.parametrize(("stages", "tokens"), [(1, 500.0), (2, 4000.0), (3, 900.0)])
def test_no_other_deal_of_layers_has_a_faster_slowest_stage(stages: int, tokens: float) -> None:
    plain = Section(model("llama-3.2-1b"), ON, Layout(tp=2, pp=stages, dp=2))
    size = np.array([tokens]), plain.pairs(np.array([tokens]))

    def slowest(counts: tuple[int, ...]) -> float:
        found = replace(plain, counts=counts).passes(*size)
        return float((found.forward + found.backward).max())

    best = levelled(plain, tokens, float(size[1][0])).layers_of_stages()
    cuts = combinations(range(1, 16), stages - 1)
    every = [tuple(np.diff([0, *cut, 16]).tolist()) for cut in cuts]
    assert sum(best) == 16
    assert slowest(best) <= 1.001 * min(slowest(counts) for counts in every)


def test_samples_are_added_up_where_they_are_dealt() -> None:
    assert summed([1, 2, 3], np.array([[1, 0], [0, 1], [1, 0]]), 2, 2).tolist() == [[0, 2], [4, 0]]


def test_sections_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match="does not divide the 16 heads"):
        Section(vision("clip-vit-l").shape, ON, Layout(tp=3))
    with pytest.raises(BadInput, match="24, at least 1 each"):
        Section(vision("clip-vit-l").shape, ON, Layout(pp=2), counts=(24, 0))
    with pytest.raises(BadInput, match="unknown encoder 'clip'"):
        vision("clip")
