from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim import collectives as c
from assay.sim.collectives import Link

links = st.builds(Link, st.floats(1e-7, 1e-4), st.floats(1e9, 1e12))
sizes = st.floats(0, 1e10)
ranks = st.integers(2, 512)
OPERATIONS = (c.ring_all_reduce, c.tree_all_reduce, c.all_reduce, c.all_gather, c.all_to_all)


def simulated_ring(p: int, nbytes: float, link: Link) -> float:
    """The ring, step by step: every rank passes a p-th of the vector to the next, 2(p-1) times."""
    ready = [0.0] * p
    for _ in range(2 * (p - 1)):
        sent = [start + link.seconds(nbytes / p) for start in ready]
        ready = [max(ready[rank], sent[rank - 1]) for rank in range(p)]
    return max(ready)


@given(st.integers(1, 40), sizes, links)
def test_the_ring_is_the_ring_step_by_step(p: int, nbytes: float, link: Link) -> None:
    assert c.ring_all_reduce(p, nbytes, link) == pytest.approx(simulated_ring(p, nbytes, link), rel=1e-9)


@given(ranks, links)
def test_an_empty_message_costs_latencies_alone(p: int, link: Link) -> None:
    assert c.ring_all_reduce(p, 0.0, link) == pytest.approx(2 * (p - 1) * link.latency)
    assert c.tree_all_reduce(p, 0.0, link) == pytest.approx(2 * math.ceil(math.log2(p)) * link.latency)
    assert c.all_gather(p, 0.0, link) == pytest.approx((p - 1) * link.latency)
    assert c.all_to_all(p, 0.0, link) == c.send(0.0, link) == link.latency


@pytest.mark.parametrize("operation", OPERATIONS)
@given(nbytes=sizes, link=links)
def test_one_rank_needs_no_time(operation: object, nbytes: float, link: Link) -> None:
    assert operation(1, nbytes, link) == 0.0  # type: ignore[operator]


@pytest.mark.parametrize("operation", OPERATIONS)
@given(p=ranks, nbytes=sizes, more=sizes, link=links)
def test_more_bytes_take_longer_and_arrays_give_the_same(
    operation: object, p: int, nbytes: float, more: float, link: Link
) -> None:
    both = operation(p, np.array([nbytes, nbytes + more]), link)  # type: ignore[operator]
    assert both[0] <= both[1]
    assert both.tolist() == [operation(p, nbytes, link), operation(p, nbytes + more, link)]  # type: ignore[operator]


@given(ranks, sizes, links)
def test_no_all_reduce_beats_the_bandwidth_bound(p: int, nbytes: float, link: Link) -> None:
    assert c.all_reduce(p, nbytes, link) >= 2 * (p - 1) / p * nbytes / link.bandwidth


@given(ranks, links)
def test_large_vectors_go_round_the_ring_and_small_ones_up_the_tree(p: int, link: Link) -> None:
    large = 1e3 * p * p * link.latency * link.bandwidth
    assert c.all_reduce(p, large, link) == c.ring_all_reduce(p, large, link)
    if p > 3:
        assert c.all_reduce(p, 0.0, link) == c.tree_all_reduce(p, 0.0, link)


@given(ranks, sizes, links, st.floats(1, 10))
def test_skew_stretches_the_bytes_of_an_all_to_all(p: int, nbytes: float, link: Link, skew: float) -> None:
    even, uneven = (c.all_to_all(p, nbytes, link, s) - link.latency for s in (1.0, skew))
    assert uneven == pytest.approx(skew * even, rel=1e-6, abs=1e-12)


@given(st.sampled_from([2, 4, 8]), st.integers(2, 16), sizes, links)
def test_nodes_in_between_help_only_when_they_are_not_slower(
    per_node: int, nodes: int, nbytes: float, link: Link
) -> None:
    slow = Link(link.latency * 10, link.bandwidth / 10)
    p = per_node * nodes
    assert c.nested_all_reduce(p, per_node, nbytes, link, slow) >= c.nested_all_reduce(p, per_node, nbytes, link, link)
    assert c.nested_all_to_all(p, per_node, nbytes, link, slow) >= c.all_to_all(p, 0.0, link)
    assert c.nested_all_reduce(per_node, per_node, nbytes, link, slow) == c.all_reduce(per_node, nbytes, link)
    assert c.nested_all_to_all(per_node, per_node, nbytes, link, slow) == c.all_to_all(per_node, nbytes, link)
