"""Every way between stages, and every hop of a ring, is priced by the ranks that it joins."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from assay.cli.plan import command as plan
from assay.sim.models import model
from assay.training.engine.cluster import (
    ClosedForms,
    Nccl,
    crossings,
    on_nodes,
    read,
    slowest_hop,
    spread,
    strided,
    widest,
)
from assay.training.engine.costs import stage_costs
from assay.training.engine.graph import SEND
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan

LLAMA = model("llama-3-8b")


def test_a_send_that_leaves_the_node_takes_as_long_as_the_network_needs() -> None:
    """Eight stages of two ranks on two nodes: one way of seven leaves the node, and a slow network is felt."""
    at, job = Plan(Layout(tp=2, pp=8), mbs=1), Job(64, 4096)
    slow, fast = (simulate(LLAMA, f"16xa100:eth{gbits}", at, job) for gbits in (1, 10))
    nbytes = 4096 * LLAMA.hidden * 2 / 2
    crossing = {gbits: nbytes / (0.8 * gbits * 1e9 / 8) for gbits in (1, 10)}
    sends = slow.seconds[slow.graph.kind == SEND]
    assert sorted({round(x, 3) for x in sends.tolist()})[-1] == pytest.approx(crossing[1], rel=0.01)
    assert (sends < 1e-3).sum() == 6 * len(sends) // 7
    # every microbatch passes that wire
    assert slow.step > 64 * crossing[1]
    assert slow.step > 2 * fast.step


def test_the_plan_for_a_slow_network_is_not_that_of_a_faster_one() -> None:
    def best(network: str) -> dict[str, float]:
        words = ["training", "--model", "llama-3-8b", "--cluster", f"16xa100:{network}", "--batch", "64", "--json"]
        row: dict[str, float] = json.loads(CliRunner().invoke(plan, words).output)["table"][0]
        return row

    assert best("eth1")["step"] > 1.05 * best("eth10")["step"]


@pytest.mark.parametrize("schedule", ["interleaved", "dualpipe"])
def test_ways_back_to_the_first_stage_are_priced_by_their_own_ranks(schedule: str) -> None:
    """Interleaved stages send from the last to the first, DualPipe's both ways."""
    vpp = 2 if schedule == "interleaved" else 1
    at = Plan(Layout(tp=4, pp=4, vpp=vpp), schedule)
    found = simulate(LLAMA, "16xa100:eth10", at, Job(16, 4096))
    graph, cluster = found.graph, found.cluster
    after = np.repeat(np.arange(len(graph.kind)), np.diff(graph.dag.indptr))
    ways = {}
    for before, node in zip(graph.dag.indices.tolist(), after.tolist(), strict=True):
        if graph.kind[before] == SEND and graph.stage[node] >= 0 and graph.kind[node] != SEND:
            ways[int(graph.stage[before]), int(graph.stage[node])] = float(found.seconds[before])
    assert {(1, 2), (2, 1)} <= set(ways)
    for (a, b), seconds in ways.items():
        nodes = 1 if a // 2 == b // 2 else 2
        expected = ClosedForms(cluster).of_size("send", 2, nodes, 4096 * LLAMA.hidden * 2 / 4)
        assert seconds == pytest.approx(expected), (a, b)


def test_a_ring_of_context_waits_for_its_slowest_hop() -> None:
    """Tensor parallelism of one: neighbours of a ring over 16 ranks share a node but at two places."""
    shape, job = LLAMA, Job(16, 131_072)
    at = Plan(Layout(cp=16), recompute="full")
    slow, fast = (stage_costs(shape, read(f"16xa100:eth{gbits}"), at, job).wires_forward[0] for gbits in (1, 100))
    kv = 131_072 / 16 * 2 * shape.kv_heads * shape.head_dim * 2
    assert slow > 0.5 * shape.layers * 15 * kv / (0.8 * 0.125e9)
    assert fast < 0.1 * slow


def test_groups_that_do_not_fit_nodes_are_priced_by_the_one_that_lies_worst() -> None:
    cluster = replace(read("24xa100:eth10"), per_node=6)
    tensor = stage_costs(LLAMA, cluster, Plan(Layout(tp=4, dp=6)), Job(24, 4096)).wires_forward
    whole = stage_costs(LLAMA, replace(cluster, per_node=8), Plan(Layout(tp=4, dp=6)), Job(24, 4096)).wires_forward
    assert tensor.sum() > 3 * whole.sum()


def naive_worst(size: int, stride: int, per_node: int, ranks: int) -> tuple[int, int]:
    """Nodes of every group of the cluster, one by one, and how few ranks are on one; the most, and the fewest."""
    extent, worst = size * stride, (0, 0)
    for start in range(0, ranks - extent + 1, extent):
        for first in range(start, start + stride):
            nodes = [rank // per_node for rank in range(first, first + extent, stride)]
            worst = max(worst, (len(set(nodes)), -min(map(nodes.count, nodes))))
    return worst


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.integers(1, 5))
def test_the_widest_group_is_found(size: int, stride: int, per_node: int, times: int) -> None:
    ranks = size * stride * times
    group = widest(strided(size, stride), per_node, ranks)
    assert (spread(group, per_node), -min(on_nodes(group, per_node))) == naive_worst(size, stride, per_node, ranks)
    assert max(group) < ranks


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 8))
def test_crossings_are_those_of_every_pair_of_partners(stages: int, size: int, per_node: int) -> None:
    found = crossings(stages, size, per_node)
    for a in range(stages):
        for b in range(stages):
            pairs = [((a * size + r) // per_node, (b * size + r) // per_node) for r in range(size)]
            assert found[a, b] == any(x != y for x, y in pairs)


def test_a_hop_leaves_the_node_if_any_does() -> None:
    assert slowest_hop(range(12), 8) == (7, 8)
    assert slowest_hop((0, 1), 8) == (0, 1)


def test_the_other_model_of_collectives_sees_which_nodes_a_group_lies_on() -> None:
    cluster = read("16xa100:eth10")
    nccl, size = Nccl.of(cluster), np.array([1e8])
    near, far = (nccl.seconds("send", np.array(pair), size)[0] for pair in ((6, 7), (7, 8)))
    assert far > 10 * near
    assert nccl.seconds("send", np.array((8, 9)), size)[0] == near


@given(st.integers(9, 40), st.sampled_from([4, 8]), st.sampled_from([1.0, 1e6, 1e9]))
def test_what_a_node_sends_and_receives_passes_the_links_of_its_own_ranks(
    ranks: int, per_node: int, size: float
) -> None:
    """Whatever the algorithm: one rank alone on a node has one link for all that the others have."""
    cluster = replace(read(f"{ranks}xa100:eth10"), per_node=per_node)
    forms, group, link = ClosedForms(cluster), np.arange(ranks), 0.8 * 10e9 / 8
    fewest = min(on_nodes(range(ranks), per_node))

    def seconds(op: str, nbytes: float) -> float:
        return float(forms.seconds(op, group, np.array([nbytes]))[0])

    assert seconds("all_reduce", size) > size / fewest / link  # what it lacks comes in once
    others = size * (ranks - fewest)
    assert seconds("all_gather", size) > others / fewest / link
    assert seconds("reduce_scatter", size * ranks) == pytest.approx(seconds("all_gather", size))
    assert seconds("all_to_all", size) > others / ranks / link


def test_a_node_that_is_not_full_makes_nothing_faster() -> None:
    """Nine ranks reduce no sooner than sixteen: the ninth is alone on its node."""
    size = np.array([1e9])
    nine, twelve, sixteen = (
        ClosedForms(read(f"{n}xa100:eth10")).seconds("all_reduce", np.arange(n), size)[0] for n in (9, 12, 16)
    )
    assert nine > 3.9 * twelve / 2 > sixteen
    other = Nccl.of(read("9xa100:eth10")).seconds("all_reduce", np.arange(9), size)[0]
    assert 0.5 < nine / other < 1.0  # rings of all ranks have no shorter way out
    steps = {n: simulate(LLAMA, f"{n}xa100:eth10", Plan(Layout(dp=n), zero=3), Job(144, 4096)).step for n in (8, 9)}
    assert steps[9] > 1.5 * steps[8]


def test_even_groups_are_priced_as_before() -> None:
    cluster = read("32xa100:eth10")
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for group in (range(8), range(16), range(0, 32, 4), range(32)):
            forms = ClosedForms(cluster)
            assert forms.of_group(op, group, 1e7) == forms.of_size(op, len(group), spread(group, 8), 1e7)
