"""Every wiring obeys the ports and the switches of its cubes; distances are those of the graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim import topology
from assay.sim.collectives import Link
from assay.training.tons.pods import CHIPS, PLACES, SIDE, Pod, distances, face_place, groups, shapes, sums, torus
from assay.training.tons.search import best_torus, best_twisted, random_shifts, synthesise, total_hops


@st.composite
def pods(draw: st.DrawFn, most: int = 6) -> Pod:
    cubes = draw(st.integers(1, most))
    factors = draw(st.sampled_from(list(groups(cubes))))
    shift = draw(st.lists(st.integers(0, cubes - 1), min_size=3 * PLACES, max_size=3 * PLACES))
    return Pod("drawn", factors, np.array(shift, np.int64).reshape(3, PLACES))


def obeys(pod: Pod) -> None:
    """Six ports a chip; mesh within cubes; each switch joins + ports with - ports of its own dimension and place."""
    found = pod.neighbours
    chips = np.arange(pod.ranks)
    place = np.stack(np.unravel_index(chips % CHIPS, (SIDE,) * 3), axis=1)
    for port in range(6):
        d, sign = port // 2, 1 if port % 2 == 0 else -1
        there = found[:, port]
        assert (found[there, port ^ 1] == chips).all()  # the other end's opposite port leads back
        inside = (place[:, d] + sign >= 0) & (place[:, d] + sign < SIDE)
        assert (there[inside] // CHIPS == chips[inside] // CHIPS).all()
        assert (place[there][:, d] == (place[:, d] + sign) % SIDE).all()
        assert all(face_place(int(a) % CHIPS, d) == face_place(int(b) % CHIPS, d) for a, b in enumerate(there[:CHIPS]))
        for chip in chips[:CHIPS][~inside[:CHIPS]]:  # a switch sees every cube once
            assert sorted(there[chip::CHIPS] // CHIPS) == list(range(pod.cubes))


@given(pods())
@settings(max_examples=20)
def test_drawn_wirings_obey_the_switches(pod: Pod) -> None:
    obeys(pod)


@pytest.mark.parametrize("cubes", [2, 4])
def test_all_that_are_compared_obey_the_switches(cubes: int) -> None:
    for pod in (best_torus(cubes), best_twisted(cubes), random_shifts(cubes, 0), synthesise(cubes, steps=50)):
        obeys(pod)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (4, 2, 1)])
def test_the_torus_of_cubes_is_the_torus_of_chips(shape: tuple[int, int, int]) -> None:
    whole = topology.torus([SIDE * n for n in shape], Link(0.0, 1.0))
    assert sorted(distances(torus(shape))[0].tolist()) == sorted(whole.distances(0).tolist())


@given(pods())
@settings(max_examples=20)
def test_64_chips_at_once_are_as_far_as_one_after_the_other(pod: Pod) -> None:
    far = distances(pod)
    masks = np.empty((3, pod.ranks), np.uint64)
    found = total_hops(pod.neighbours, masks, np.iinfo(np.int64).max)
    assert found == (far.sum() if (far >= 0).all() else np.iinfo(np.int64).max)


@given(st.integers(1, 64))
def test_groups_are_of_the_right_order_and_their_tables_are_groups(cubes: int) -> None:
    assert all(a * b * c == cubes for a, b, c in shapes(cubes))
    for factors in groups(cubes):
        table = sums(factors)
        assert table.shape == (cubes, cubes) and (table == table.T).all() and (table[0] == np.arange(cubes)).all()
        assert (np.sort(table, axis=1) == np.arange(cubes)).all()


def test_a_wiring_is_a_topology_with_every_link_both_ways() -> None:
    pod = synthesise(2, steps=50)
    found = pod.topology(Link(1e-6, 50e9))
    assert len(found.ends) == 6 * pod.ranks
    assert found.distances(0).tolist() == distances(pod)[0].tolist()
    assert len(pod.without(0, 3).topology(Link(1e-6, 50e9)).ends) == 6 * pod.ranks - 2 * pod.cubes
