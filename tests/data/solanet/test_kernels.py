"""NN-descent without locks, and the search of another part: their promises, and the plain ones beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.solanet import search
from assay.data.solanet.descent import _merge, descend
from assay.data.solanet.graph import Knn
from assay.data.solanet.trials import exact, points, truth, wrong
from assay.data.vectors.graph import recall
from tests.oracles import neighbours as oracle


@pytest.mark.parametrize("threads", [1, 2])
def test_descent_finds_nearly_all_neighbours_and_keeps_its_promises(threads: int) -> None:
    rows = points(1200, 24, 1)
    some, right = truth(rows, 16, 1)
    found = descend(rows, 16, threads=threads, seed=2)
    assert recall(found.ids[some], right) > 0.99
    assert wrong(Knn(found.ids, np.sqrt(found.far)), rows) == 0
    assert found.distances < 1200 * 1200


def test_one_seed_gives_one_graph() -> None:
    rows = points(400, 8, 0)
    assert np.array_equal(descend(rows, 8, seed=5).ids, descend(rows, 8, seed=5).ids)


def test_many_points_at_one_place_are_each_others_neighbours() -> None:
    rows = np.zeros((60, 3), np.float32)
    found = descend(rows, 5)
    assert (found.far == 0).all() and wrong(Knn(found.ids, found.far), rows) == 0


def test_too_many_neighbours_are_told() -> None:
    with pytest.raises(ValueError, match="60 neighbours among 60 rows; 1 to 59 expected"):
        descend(np.zeros((60, 3), np.float32), 60)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 8))
def test_merging_a_buffer_keeps_the_nearest_once(offers: list[int], k: int) -> None:
    ids, far = np.arange(100, 100 + k, dtype=np.int32)[None], np.linspace(30.5, 60.5, k, dtype=np.float32)[None].copy()
    everything = {*zip(far[0].tolist(), ids[0].tolist(), strict=True), *((float(v), v) for v in offers)}
    words = [(int(np.float32(v).view(np.uint32)) << 32) | v for v in offers]
    buffer = np.array([[*words, 0]], np.uint64)
    went = _merge(0, 1, ids, far, np.zeros((1, k), np.bool_), buffer, np.array([len(offers)], np.int32))
    kept = sorted(everything)[:k]
    assert list(zip(far[0].tolist(), ids[0].tolist(), strict=True)) == kept
    assert went >= sum(v < 100 for _, v in kept)


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 6))
@settings(max_examples=25)
def test_a_part_is_searched_as_by_the_plain_one(seed: int, breadth: int, narrow: int) -> None:
    """One point, whole numbers that are all different: distances are exact, and there are no ties."""
    rng = np.random.default_rng(seed)
    n, k = 20, 3
    rows = rng.permutation(2000)[:n, None].astype(np.float32) * 2
    graph = rng.integers(-1, n, (n, k)).astype(np.int32)
    mine = np.array([[1.0 + 2 * rng.integers(0, 2000)]], np.float32)
    known = np.sort(rng.choice(10**6, k, replace=False) + 0.5).astype(np.float32)
    ids, far, fresh = (
        np.full((1, k), 900, np.int32) + np.arange(k, dtype=np.int32),
        known[None].copy(),
        np.zeros((1, k), np.bool_),
    )
    nobody, hits = np.full((1, k), -1, np.int32), np.full((1, search.HITS), -1, np.int32)
    word = np.uint64(seed)
    order = np.zeros(1, np.int32)
    computed = search.search_part(
        order, mine, nobody, nobody, ids, far, fresh, rows, graph, np.int32(50), hits, breadth, narrow, 1, word
    )
    from assay.sim.random import below, bits

    begin = [int(below(np.uint64(bits(word, np.uint64(r))), n)) for r in range(4)]
    right, pool, count = oracle.bounded_beam(rows, graph.tolist(), mine[0], begin, known.tolist(), breadth, narrow)
    assert (far[0].tolist(), computed) == (right, count)
    assert hits[0, : len(pool)].tolist() == pool
    new = [v for v in ids[0].tolist() if v < 900]
    assert all(50 <= v < 50 + n for v in new) and fresh.sum() == len(new)


def test_points_are_searched_after_one_that_lists_them() -> None:
    near = descend(points(500, 8, 3), 6).ids
    order = search.walk_order(near).tolist()
    assert sorted(order) == list(range(500))
    place = {u: i for i, u in enumerate(order)}
    follows = {int(v) for i, u in enumerate(order) for v in near[u] if place[int(v)] > i}
    roots = [u for u in order if u not in follows]
    assert roots == sorted(roots) and len(roots) < 50, "the others are those that nobody before them leads to"


@given(st.integers(0, 10**6))
def test_links_lead_to_each_node_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = rng.integers(-1, 60, (30, 5)).astype(np.int32)
    pairs = rng.integers(0, 30, (20, 2))
    table = np.full((30, search.SEEN), -1, np.int32)
    points_, nodes = np.empty(100, np.int32), np.empty(100, np.int32)
    count = search.follow(pairs[:, 0], pairs[:, 1], lists, 10, 20, 0, table, points_, nodes)
    found = list(zip(points_[:count].tolist(), nodes[:count].tolist(), strict=True))
    right = {(int(u), int(v)) for u, place in pairs for v in lists[place] if v >= 0 and not 10 <= v < 20}
    assert len(found) == len(set(found)) and set(found) == right


def test_all_distances_give_the_right_neighbours() -> None:
    rows = points(300, 8, 0)
    some, right = truth(rows, 7, 0)
    assert recall(exact(rows, 7)[some], right) > 0.999
    assert _sorted(exact(rows, 7), rows)


def _sorted(ids: Any, rows: Any) -> bool:
    far = ((rows[ids] - rows[:, None]) ** 2).sum(axis=2)
    return bool((np.diff(far, axis=1) > -1e-3).all())
