"""Paths reach every pair, their loads are counted rightly, and no circle of waits exists, whole or with a fault."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.training.tons.flows import distance_bound, throughput
from assay.training.tons.pods import CHIPS, PORTS, Pod, distances, sums, torus
from assay.training.tons.routes import Routes, route
from assay.training.tons.search import random_shifts, synthesise

FOUND = synthesise(4, steps=200)
WIRINGS = [torus((2, 1, 1)), FOUND, FOUND.without(2, 7), random_shifts(2, 1)]


@cache
def routed(pod: Pod) -> Routes:
    return route(pod)


def walked(pod: Pod, found: Routes) -> tuple[np.ndarray, np.ndarray]:
    """Links (chip, port) of every path hop by hop, -1 beyond the end, and where each ends."""
    at, links = found.pairs[:, 0].copy(), np.full(found.ports.shape, -1, np.int64)
    for hop in range(found.ports.shape[1]):
        going = found.ports[:, hop] >= 0
        links[going, hop] = at[going] * PORTS + found.ports[going, hop]
        at[going] = pod.neighbours[at[going], found.ports[going, hop]]
    return links, at


@pytest.mark.parametrize("pod", WIRINGS, ids=lambda pod: pod.name)
def test_every_pair_is_reached_over_the_fewest_hops_and_loads_are_counted(pod: Pod) -> None:
    found = routed(pod)
    links, ends = walked(pod, found)
    assert len(found.pairs) == CHIPS * (pod.ranks - 1)
    assert (ends == found.pairs[:, 1]).all()
    assert ((links >= 0).sum(axis=1) == distances(pod)[found.pairs[:, 0], found.pairs[:, 1]]).all()
    used = links[links >= 0]
    counted = np.bincount(used // PORTS % CHIPS * PORTS + used % PORTS, minlength=CHIPS * PORTS)
    assert (counted.reshape(CHIPS, PORTS) == found.load).all()


@pytest.mark.parametrize("pod", WIRINGS, ids=lambda pod: pod.name)
def test_waits_on_all_channels_and_from_all_cubes_form_no_circle(pod: Pod) -> None:
    found, table = routed(pod), sums(pod.factors)
    links, _ = walked(pod, found)
    assert (np.diff(found.channel, axis=1) >= 0).all()  # never back
    holds: list[np.ndarray] = []
    waits: list[np.ndarray] = []
    for hop in range(links.shape[1] - 1):
        both = links[:, hop + 1] >= 0
        for by in range(pod.cubes):
            for ends, which in ((holds, hop), (waits, hop + 1)):
                link, lane = links[both, which], found.channel[both, which]
                moved = table[by][link // (CHIPS * PORTS)] * CHIPS * PORTS + link % (CHIPS * PORTS)
                ends.append(moved * found.channels + lane)
    first, second = np.unique(np.stack([np.concatenate(holds), np.concatenate(waits)]), axis=1)
    size = pod.ranks * PORTS * found.channels
    graph = coo_array((np.ones(first.size), (first, second)), shape=(size, size))
    count, _ = connected_components(graph, directed=True, connection="strong")
    assert count == size  # every link and channel is a component of its own
    assert not (first == second).any()


def test_a_wiring_in_pieces_is_told() -> None:
    apart = Pod("apart", (2,), np.zeros((3, 16), np.int64))
    for judge in (route, throughput):
        with pytest.raises(ValueError, match="apart: some chips do not reach others"):
            judge(apart)


@pytest.mark.parametrize(("shape", "k"), [((1, 1, 1), 4), ((2, 2, 2), 8), ((4, 2, 2), 16)])
def test_a_torus_carries_eight_kths_of_a_link(shape: tuple[int, int, int], k: int) -> None:
    pod = torus(shape)
    found = throughput(pod, rounds=3)
    assert found.reached * pod.ranks / (pod.ranks - 1) == pytest.approx(8 / k, rel=0.01)
    assert found.reached <= found.bound * (1 + 1e-9)


@pytest.mark.parametrize("pod", WIRINGS, ids=lambda pod: pod.name)
def test_what_is_reached_lies_below_every_bound_and_fixed_paths_do_too(pod: Pod) -> None:
    found = throughput(pod)
    assert found.reached <= found.bound <= distance_bound(pod) * (1 + 1e-9)
    assert routed(pod).throughput(pod.ranks) <= found.bound * (1 + 1e-9)
