"""Piper's meshes beside its rivals', its memory beside a counted model's, its exchanges by real processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from assay.record.errors import BadInput
from assay.training import piper
from assay.training.engine import cluster as clusters
from assay.training.interface import Job, Layout, Plan
from assay.training.piper import exchange_job
from assay.training.piper.compare import compare, machine_of
from assay.training.piper.network import Network, frontier
from assay.training.piper.resources import METHODS, fitting, memory, mixture, possible, widest


@pytest.fixture(scope="module")
def sixty_four() -> dict[str, list[Any]]:
    shape, cluster, job = mixture("55B"), frontier(64, piper.MIDDLE), Job(256, 4096)
    networks = {halo: Network.of(cluster, halo) for halo in (True, False)}
    return fitting(shape, cluster, job, possible(shape, cluster, job, micro=1), networks)


def test_the_pick_is_the_best_mesh_and_no_rival_with_its_all_to_alls_is_faster(
    sixty_four: dict[str, list[Any]],
) -> None:
    best = {name: fits[0].step for name, fits in sixty_four.items()}
    assert best["piper"] == min(one.step for one in sixty_four["piper"])
    assert best["piper"] <= best["piper, flat"]
    assert best["x-moe, halo"] <= best["x-moe"] <= best["flat ep"]
    assert sixty_four["piper"][0].plan.layout.pp > 1


def test_methods_keep_to_their_rules(sixty_four: dict[str, list[Any]]) -> None:
    for one in sixty_four["piper"]:
        assert one.plan.layout.tp == one.plan.layout.etp == 1
    for name in ("x-moe", "flat ep", "ted"):
        assert all(one.plan.layout.pp == 1 for one in sixty_four[name])
    assert all(one.plan.layout.ep == widest(mixture("55B"), 64) for one in sixty_four["flat ep"])


def test_stages_pay_on_many_nodes_and_hardly_within_one() -> None:
    """Against expert parallelism over all dies: 15 % in a node, half as good again on eight."""
    one = piper.plans("10B", 8, 64, seed=0)
    many = piper.plans("55B", 64, 64, seed=0)
    assert one["piper"]["mfu"] < 1.2 * one["flat ep"]["mfu"]
    assert many["piper"]["mfu"] > 1.4 * many["flat ep"]["mfu"]


@pytest.mark.slow
def test_on_1024_dies_the_pick_is_twice_as_good_as_expert_parallelism_over_256() -> None:
    rows = piper.plans("545B", 1024, 256, seed=0)
    assert rows["piper"]["mfu"] > 2 * rows["flat ep"]["mfu"]


def test_memory_is_within_a_tenth_of_a_model_that_was_built_and_counted() -> None:
    pytest.importorskip("torch")
    for name, row in piper.memory_exactly(seed=0).items():
        assert abs(row["parameters"]) < 0.01, name
        assert abs(row["activations"]) < 0.1, name
        assert row["off"] < 0.1, name


def test_memory_falls_with_stages_and_with_expert_parallelism() -> None:
    shape, job = mixture("201B"), Job(512, 4096)
    needs = [
        memory(shape, frontier(128), Plan(Layout(pp=pp, dp=128 // pp, ep=ep)), job).max()
        for pp, ep in ((1, 8), (4, 8), (4, 32))
    ]
    assert needs[0] > needs[1] > needs[2]


def test_migration_narrows_the_spread_and_is_told_apart_from_packing() -> None:
    rows = piper.swapping(steps=48, uneven_by=1.6, seed=0)
    assert rows["migration"]["spread"] < 0.7 * rows["fixed"]["spread"]
    assert rows["migration"]["seconds"] < rows["fixed"]["seconds"]
    assert 0 < rows["migration"]["swaps"] < rows["packed"]["swaps"]


def test_real_processes_exchange_every_ragged_block() -> None:
    pytest.importorskip("torch")
    rounds = exchange_job.measured(exchange_job.smaller(2), 500.0, rounds=1, seed=4)
    assert (exchange_job.ragged(4, 500.0, 4) == 0).any()
    assert rounds["round 0"]["wrong"] == 0


@pytest.mark.slow
@pytest.mark.timed
def test_halo_is_quicker_over_slowed_links_as_predicted() -> None:
    pytest.importorskip("torch")
    rounds = exchange_job.measured(exchange_job.smaller(4), 2000.0, rounds=3, seed=0)
    took = {name: np.median([row[name] for row in rounds.values()]) for name in ("flat", "halo")}
    predicted = rounds["round 0"]["flat_predicted"] / rounds["round 0"]["halo_predicted"]
    assert took["flat"] / took["halo"] == pytest.approx(predicted, rel=0.3)


def test_the_answer_says_how_all_to_alls_go() -> None:
    cluster = clusters.read("32xmi250x")
    answer = compare("qwen3-30b-a3b", cluster, Job(64, 2048), machine_of(cluster, cards=4, group=2), micro=1)
    assert {row["method"] for row in answer["table"]} == set(METHODS)
    assert "flat over 32 ranks" in {row["all_to_all"] for row in answer["table"]}
    steps = [row["step"] for row in answer["table"]]
    assert steps == sorted(steps)


def test_bad_input_is_one_line() -> None:
    eight = clusters.read("8xh100")
    with pytest.raises(BadInput, match="llama-3-8b has no experts"):
        compare("llama-3-8b", eight, Job(16, 4096), machine_of(eight))
    with pytest.raises(BadInput, match="no plan of mixtral-8x22b fits 8 x h100"):
        compare("mixtral-8x22b", eight, Job(16, 4096), machine_of(eight), micro=1)
    with pytest.raises(BadInput, match="--cards 3: should divide the 8 devices"):
        machine_of(eight, cards=3)


def test_two_levels_are_asked_at_every_cell_and_not_where_halo_wins() -> None:
    cells = {(4, 1e3): 0.7, (4, 16e3): 0.4, (16, 1e3): 1.5, (16, 16e3): 0.9}
    rows = [
        {"experiment": "exchanges", "nodes": nodes, "per_peer": size, "algorithm": name, "seed": seed,
         "seconds": 1.0 if name == "halo" else times}
        for (nodes, size), times in cells.items() for name in ("halo", "two-level") for seed in range(3)
    ]  # fmt: skip
    claim = next(claim for claim in piper.claims if claim.id == "two-level")
    found = claim.measure(pl.from_dicts(rows))
    assert found.value == pytest.approx(0.4) and found.cases == "4 nodes, 16000 bytes, of 4 cases"
