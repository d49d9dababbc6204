"""NCCL's model: the closed form is what its sends do, and the best of its plans changes with the size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim import topology
from assay.sim.collectives import Link
from assay.sim.hardware import device
from assay.sim.links import deliver
from assay.sim.nccl import PROTOCOLS, RING, TREE, Choice, NcclModel
from assay.sim.sends import arrivals, execute

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")


@st.composite
def cases(draw: st.DrawFn) -> tuple[NcclModel, int, str, Choice, int]:
    model = NcclModel.of(
        device(draw(st.sampled_from(["h100", "a100", "l4"]))), draw(st.integers(1, 6)), draw(st.integers(1, 8))
    )
    k = model.topology.ranks
    op = draw(st.sampled_from(OPS))
    plan = draw(st.sampled_from([plan for plan in model.plans(op) if plan.channels <= 8]))
    most = 64 * PROTOCOLS[plan.protocol].chunk // max(1, k // 4)
    return model, k, op, plan, k * plan.channels * draw(st.integers(16, max(17, most // k)))


@given(cases())
@settings(max_examples=60)
def test_the_closed_form_is_within_two_percent_of_the_events(case: tuple[NcclModel, int, str, Choice, int]) -> None:
    model, k, op, plan, nbytes = case
    if k == 1:
        return
    sends, byte, hop = model.lower(op, range(k), nbytes, plan)
    simulated = arrivals(sends, byte, hop).max() + PROTOCOLS[plan.protocol].launch[plan.algorithm]
    assert model.timed(op, range(k), nbytes, plan)[0] == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_to_all"])
def test_what_is_timed_gives_the_right_result(op: str) -> None:
    model = NcclModel.of(device("h100"), nodes=3, per_node=2)
    given_ = np.random.default_rng(0).integers(0, 100, (6, 6 * 600))
    for plan in model.plans(op):
        found = execute(model.lower(op, range(6), 6 * 600, plan)[0], given_)
        if op == "all_to_all":
            expected = given_.reshape(6, 6, 600).transpose(1, 0, 2).reshape(6, -1)
        else:
            expected = given_.sum(axis=0) if op == "all_reduce" else given_[0]
        assert (found == expected).all(), plan


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_small_messages_go_by_trees_and_ll_large_ones_round_rings_and_simple(nodes: int) -> None:
    model = NcclModel.of(device("h100"), nodes=nodes)
    small, large = model.choose("all_reduce", range(8 * nodes), [1024.0, 4e9])
    assert (small.algorithm, small.protocol) == (TREE, "LL")
    assert (large.algorithm, large.protocol) == (RING, "Simple")


@pytest.mark.parametrize(("nodes", "bandwidth"), [(1, 450e9), (2, 400e9), (8, 400e9)])
def test_for_large_messages_the_bus_runs_at_the_links_bandwidth(nodes: int, bandwidth: float) -> None:
    k = 8 * nodes
    seconds = NcclModel.of(device("h100"), nodes=nodes).seconds("all_reduce", range(k), [64e9])[0]
    assert 2 * (k - 1) / k * 64e9 / seconds == pytest.approx(bandwidth, rel=0.02)


def test_more_bytes_hardly_ever_take_less_and_scales_act_as_named() -> None:
    model = NcclModel.of(device("h100"), nodes=2)
    sizes = np.geomspace(64, 1e9, 60)
    for op in (*OPS, "send"):
        seconds = model.seconds(op, range(16), sizes)
        assert (seconds[1:] >= 0.95 * seconds[:-1]).all(), op  # where chunks are halved, a pipeline fills sooner
    slow = NcclModel(model.topology, launch=2.0, latency=2.0, bandwidth=0.5)
    assert slow.seconds("send", range(2), sizes) == pytest.approx(2 * model.seconds("send", range(2), sizes))


def test_one_rank_alone_needs_no_time() -> None:
    assert NcclModel.of(device("h100")).seconds("all_reduce", [3], [1e6, 1e9]).tolist() == [0.0, 0.0]


def test_a_group_with_one_member_a_node_has_one_card_a_node() -> None:
    model = NcclModel.of(device("h100"), nodes=4)
    alone, all_ = (
        model.seconds("all_reduce", range(0, 32, 8), [8e9])[0],
        model.seconds("all_reduce", range(32), [8e9])[0],
    )
    assert alone / all_ == pytest.approx(8 * (3 / 4) / (31 / 32), rel=0.02)


def test_without_nvlink_ll128_is_left_out() -> None:
    assert "LL128" not in {plan.protocol for plan in NcclModel.of(device("l4"), nodes=2).plans("all_reduce")}


def test_on_any_graph_the_worst_link_of_the_ring_counts() -> None:
    ring = topology.torus([8], Link(1e-6, 25e9))
    seconds = NcclModel(ring).seconds("all_reduce", range(8), [8e9])[0]
    assert 2 * 7 / 8 * 8e9 / seconds == pytest.approx(25e9, rel=0.02)


def test_two_rings_on_the_same_wires_take_twice_as_long() -> None:
    """The contended solver sees what the closed form cannot: other traffic."""
    ring = topology.torus([4], Link(0.0, 25e9))
    plan = Choice(RING, "Simple", 1)
    sends, _, _ = NcclModel(ring).lower("all_reduce", range(4), 4 * 2**20, plan)
    paths = [ring.path(int(a), int(b)) for a, b in zip(sends.src, sends.dst, strict=True)]
    after = [sends.after[sends.after_ptr[i] : sends.after_ptr[i + 1]] for i in range(len(sends))]
    alone = deliver(paths, sends.size, ring.bandwidth, after=after, queue=sends.queue).max()
    assert alone == pytest.approx(arrivals(sends, 1 / 25e9, 0.0).max(), rel=1e-9)
    twice = deliver(
        paths * 2, np.tile(sends.size, 2), ring.bandwidth, after=after + [a + len(sends) for a in after],
        queue=np.concatenate([sends.queue, sends.queue + 100]),
    ).max()  # fmt: skip
    assert twice == pytest.approx(2 * alone, rel=1e-9)


def test_an_unknown_collective_is_told() -> None:
    with pytest.raises(ValueError, match="no collective is called 'gather'; there are all_reduce"):
        NcclModel.of(device("h100")).seconds("gather", range(8), [1.0])
