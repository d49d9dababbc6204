"""The way that atlas chooses is the one that moves the fewest bytes, by an estimate that is held to what is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.data.atlas import infer, layers, trials
from assay.data.atlas.choosing import estimates
from assay.data.atlas.engine import Plan
from assay.data.atlas.strips import StripPlan


def test_in_order_of_community_the_way_that_is_chosen_moves_the_fewest_bytes(tmp_path: Path) -> None:
    nodes, width, model = 8192, 128, trials.model_of("gcn", (128, 128), 0)
    bench = trials.Bench.made(tmp_path / "bench", trials.edges_of("ordered", nodes, 8, 0), nodes, width, 0)
    rows = {way: bench.atlas(model, nodes * width, way) for way in ("auto", "lru", "strips")}  # a quarter of the bytes
    moved = {way: row["read_ratio"] + row["spilled_ratio"] for way, row in rows.items()}
    assert moved["auto"] <= 1.01 * moved["strips"] < 0.85 * moved["lru"]


@pytest.mark.parametrize("graph", ["rmat", "shuffled", "ordered"])
def test_the_bytes_by_which_a_way_is_chosen_are_those_that_it_moves(tmp_path: Path, graph: str) -> None:
    """In little memory, where evictions are small and each of their parts is read in whole pages."""
    nodes, width, memory, model = 8192, 128, 1 << 20, trials.model_of("gcn", (128, 128), 0)
    bench = trials.Bench.made(tmp_path / "bench", trials.edges_of(graph, nodes, 8, 0), nodes, width, 0)
    plan, strips = Plan.of(model[0], nodes, 8, memory), StripPlan.of(model[0], nodes, memory)
    told = estimates(model[0], bench.graph, plan.slots, strips, plan.choosing, -(-nodes // plan.range_rows))
    for way in ("lru", "strips"):
        [ran] = infer(model, bench.graph, bench.features, tmp_path / "y.npy", memory, policy=way).layers
        moved = ran.feature_bytes + ran.edge_bytes + ran.spill_bytes + ran.output_bytes
        # 17 % too much on R-MAT; without those pages it was 25 % too little on the shuffled one.
        assert 0.8 < sum(told[way]) / moved < 1.2, way


def test_the_sample_that_rules_are_tried_on_is_part_of_the_plan() -> None:
    layer = layers({"convs.0.lin.weight": np.ones((128, 128))})[0]
    little, much = (Plan.of(layer, 1 << 17, 8, memory).choosing for memory in (7 << 20, 1 << 30))
    assert 80 * little < 7 << 20 and much == 50_000
