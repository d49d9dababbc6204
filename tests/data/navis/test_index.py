"""An index on disk: it finds, it grows, it keeps what it was given, and its walk is the plain one."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.engine.version_log import Damaged
from assay.data.navis import building, entrance, trials
from assay.data.navis.cache import ListCache
from assay.data.navis.entrance import Entrance
from assay.data.navis.linking import decoded, prepare
from assay.data.navis.pages import breadth_first
from assay.data.navis.seek import LENGTH, STEPS, checksum, geometry, scratch, seek
from assay.data.navis.vector_index import VectorIndex
from assay.data.store.blocking import wait
from assay.data.vectors import brute_force, drifting
from assay.data.vectors.graph import prune, recall
from assay.record.errors import BadInput
from tests.oracles import neighbours as oracle


@cache
def rows_of(n: int, width: int = 32, seed: int = 0) -> Any:
    return drifting(n, width, intrinsic=8, clusters=6, seed=seed).vectors


# ---------------------------------------------------------------------------------------------------------- the walk


@pytest.fixture(scope="module", params=["split", "packed", "packed-by-list"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    designs: dict[str, Any] = {
        "split": {},
        "packed": {"packed": True, "aware": False},
        "packed-by-list": {"packed": True},
    }
    design = designs[request.param]
    folder = tmp_path_factory.mktemp("walk")
    with VectorIndex.build(folder / "index", rows_of(150), memory=4096, degree=8, breadth=24, **design) as index:
        index.insert(rows_of(190)[150:])
        inside: Any = index.inside
        every = np.arange(inside.nodes.count, dtype=np.int32)
        meant = decoded(inside.centres, inside.nodes.codes, every, 32)
        yield index, meant, [row[1 : 1 + row[0]].tolist() for row in inside.lists(every)]


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 3))
@settings(max_examples=15)
def test_a_walk_finds_what_the_plain_one_finds(small: Any, seed: int, breadth: int, count: int) -> None:
    index, meant, graph = small
    inside = index.inside
    rng = np.random.default_rng(seed)
    query = rows_of(200)[rng.integers(200)] + rng.normal(size=32).astype(np.float32) * np.float32(0.1)
    entries = np.unique(rng.integers(0, len(index), count)).astype(np.int32)
    table, _ = prepare(inside.centres, query)
    x = scratch(breadth, 1, inside.geo, inside.disk.direct)
    assert seek(inside.view, x, query, table, entries, 1, 1, 3, 0, 0, True) == 0
    found, walked = oracle.beam(meant, graph, query, entries.tolist(), breadth)
    assert x.ids[: x.tally[LENGTH]].tolist() == found
    assert x.expanded[: x.tally[STEPS]].tolist() == walked


@given(st.integers(2, 25), st.integers(2, 8), st.sampled_from([1.0, 1.2, 2.0]), st.integers(0, 10**6))
@settings(max_examples=30)
def test_pruning_is_the_plain_one_and_spares_children(n: int, degree: int, alpha: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, point = rng.integers(-6, 7, (n, 3)).astype(np.float32), np.zeros(3, np.float32)
    far = (rows**2).sum(axis=1)
    order = np.lexsort((np.arange(n), far))
    kept = prune(rows, far, order, np.float32(alpha**2), np.zeros(n, np.bool_), degree)
    assert kept.tolist() == oracle.prune(rows, point, list(range(n)), alpha, degree)
    children = rng.permutation(n)[: rng.integers(0, degree + 1)]
    keep = np.isin(np.arange(n), children)
    kept = prune(rows, far, order, np.float32(alpha**2), keep, degree)
    assert set(children.tolist()) <= set(kept.tolist()) and len(kept) <= degree


@given(st.integers(2, 60), st.integers(2, 6), st.integers(0, 10**6))
@settings(max_examples=30)
def test_a_tree_reaches_everything_in_any_graph(n: int, degree: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = np.zeros((n, degree + 1), np.int32)
    for u in range(n):
        some = rng.permutation(n)[: rng.integers(0, degree + 1)]
        lists[u, 0] = len(some)
        lists[u, 1 : 1 + len(some)] = some
    parents = building.tree(lists, 0)
    assert len(breadth_first(lists, 0)) == n and (lists[:, 0] <= degree).all()
    assert all(u in lists[p, 1 : 1 + lists[p, 0]] for u, p in enumerate(parents.tolist()) if u)


def test_a_page_differs_from_its_checksum_when_any_word_does() -> None:
    page = np.arange(1024, dtype=np.int32)
    sums = {int(checksum(page))}
    for at in (0, 1, 511, 1023):
        page[at] ^= 1
        sums.add(int(checksum(page)))
    assert len(sums) == 5


# ---------------------------------------------------------------------------------------------------------- the index


@pytest.mark.parametrize("design", [{}, trials.DESIGNS[trials.PACKED]], ids=["split", "packed"])
def test_what_was_inserted_is_found_also_after_it_is_opened_again(tmp_path: Path, design: Any) -> None:
    rows = rows_of(400, 40)
    with VectorIndex.build(tmp_path / "index", rows[:250], memory=1 << 15, degree=16, breadth=32, **design) as index:
        assert index.insert(rows[250:]).tolist() == list(range(250, 400))
        before = index.search(rows[::9], 10)
        assert index.inside.did.checkpoints > 1, "memory for changes was full more than once"
        assert wait(index.inside.check()) == []
    with VectorIndex(tmp_path / "index", memory=1 << 15) as index:
        found, far = index.search(rows, 1)
        assert np.array_equal(found[:, 0], np.arange(400)) and not far.any()
        assert recall(index.search(rows[::9], 10)[0], brute_force(rows, rows[::9], 10)[0]) > 0.95
        assert recall(before[0], brute_force(rows, rows[::9], 10)[0]) > 0.95
        assert wait(index.inside.check()) == []


def test_equal_vectors_are_all_reached_and_found(tmp_path: Path) -> None:
    rows = np.ones((300, 16), np.float32)
    with VectorIndex.build(tmp_path / "index", rows[:20], degree=4, breadth=8) as index:
        index.insert(rows[20:])
        assert wait(index.inside.check()) == []
        assert len(set(index.search(rows[0], 5)[0][0].tolist())) == 5


def test_deleted_ids_are_not_found_and_stay_deleted(tmp_path: Path) -> None:
    rows = rows_of(200)
    with VectorIndex.build(tmp_path / "index", rows) as index:
        assert index.delete([5, 7, 5000]) == 2 and len(index) == 198
        assert index.delete([5]) == 0
    with VectorIndex(tmp_path / "index") as index:
        assert 5 not in index.search(rows[5], 10)[0] and 6 in index.search(rows[6], 10)[0]


def test_ids_are_the_callers_and_known_ones_are_left(tmp_path: Path) -> None:
    rows = rows_of(120)
    with VectorIndex.build(tmp_path / "index", rows[:100], ids=np.arange(100) * 10) as index:
        index.insert(rows[100:], ids=np.arange(100, 120) * 10)
        index.insert(rows[100:] + 1, ids=np.arange(100, 120) * 10)
        assert len(index) == 120 and index.search(rows[110], 1)[0].tolist() == [[1100]]
        assert index.insert(rows[:1]).tolist() == [1191]


def test_one_writes_and_others_read_meanwhile(tmp_path: Path) -> None:
    rows = rows_of(360)
    place = tmp_path / "index"
    with VectorIndex.build(place, rows[:200], memory=1 << 15) as index, VectorIndex(place) as other:
        with pytest.raises(BadInput, match="another process is writing"):
            VectorIndex(tmp_path / "index", write=True)
        with pytest.raises(BadInput, match="write=True"):
            other.insert(rows[:1])
        for first in range(200, 360, 40):
            index.insert(rows[first : first + 40])
            assert other.search(rows[17], 1)[0].tolist() == [[17]], "of its own time, or a newer one"


def test_threads_search_while_another_inserts(tmp_path: Path) -> None:
    rows = rows_of(260)
    wrong: list[int] = []
    with VectorIndex.build(tmp_path / "index", rows[:200], memory=1 << 15) as index:
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                wrong.extend(i for i in range(0, 200, 23) if index.search(rows[i], 1)[0][0, 0] != i)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        index.insert(rows[200:])
        done.set()
        for thread in threads:
            thread.join()
        assert wrong == [] and np.array_equal(index.search(rows, 1)[0][:, 0], np.arange(260))


def test_a_page_changed_behind_the_index_is_told_and_not_used(tmp_path: Path) -> None:
    rows = rows_of(300, 700)
    VectorIndex.build(tmp_path / "index", rows).close()
    (file,) = (tmp_path / "index" / "pages").iterdir()
    raw = bytearray(file.read_bytes())
    raw[100::4096] = bytes(255 - one for one in raw[100::4096])
    file.write_bytes(raw)
    with VectorIndex(tmp_path / "index") as index, pytest.raises(Damaged, match=r"page \d+ of pages/.* build it again"):
        index.search(rows[:5], 3)


# ------------------------------------------------------------------------------------------------ what the parts do


@pytest.mark.slow
def test_edges_apart_from_vectors_halve_the_bytes_of_wide_vectors_at_the_same_recall() -> None:
    wide, short = counted(768, 1200, 160), counted(32, 1200, 160)
    assert wide["navis"]["kib"] <= 0.5 * wide["packed"]["kib"]
    assert abs(wide["navis"]["recall"] - wide["packed"]["recall"]) <= 0.03
    assert short["navis"]["kib"] / short["packed"]["kib"] > wide["navis"]["kib"] / wide["packed"]["kib"]


def test_edges_apart_from_vectors_spare_bytes_and_more_so_for_wide_vectors() -> None:
    wide, short = counted(768, 160, 32), counted(32, 160, 32)
    assert wide["navis"]["kib"] < wide["packed"]["kib"]
    assert abs(wide["navis"]["recall"] - wide["packed"]["recall"]) <= 0.03
    assert short["navis"]["kib"] / short["packed"]["kib"] > wide["navis"]["kib"] / wide["packed"]["kib"]


def counted(width: int, first: int, inserts: int) -> dict[str, dict[str, float]]:
    vectors, asked = trials.stream_of(width, first, inserts, 40, seed=3)
    base = building.base(vectors[:first], 24, 48, 1.2)
    found = {}
    for name in (trials.PACKED, trials.OURS):
        made = trials.OnDisk(base, vectors[:first], len(vectors), trials.DESIGNS[name], 0)
        made.insert(np.arange(first, len(vectors)), vectors[first:])
        right = recall(made.search(asked, 10), brute_force(vectors, asked, 10)[0])
        found[name] = {"kib": made.counts()["kib_read_per_insert"], "recall": right}
        made.close()
    return found


def test_the_cache_keeps_lists_near_the_entrance_and_far_ones_asked_for_twice() -> None:
    geo = geometry(64, 4, packed=False, by_page=False)
    cache = ListCache(geo, 3 * 20, aware=True)
    cache.grow(100)
    x = scratch(8, 1, geo, direct=False)

    def walk(*steps: tuple[int, int]) -> list[int]:
        for i, (node, hop) in enumerate(steps):
            x.expanded[i], x.expanded_hop[i] = node, hop
            x.source[i] = 1 if cache.row_of[node] >= 0 else 2
        x.tally[STEPS] = len(steps)
        cache.learn(View(np.arange(100, dtype=np.int32)), x)  # type: ignore[arg-type]
        return np.flatnonzero(cache.row_of >= 0).tolist()

    assert walk((1, 0), (2, 1), (50, 9)) == [1, 2]
    assert walk((1, 0), (2, 1), (50, 9)) == [1, 2, 50]
    assert walk((1, 0), (3, 0), (2, 1)) == [1, 2, 3], "the far one goes"


class View:
    """Of a view, what a cache looks at."""

    def __init__(self, slots: Any) -> None:
        self.slots = slots


def test_the_entrance_leads_to_the_nearest_and_lets_the_least_used_go() -> None:
    rows = np.arange(64, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    centres = np.arange(64, dtype=np.float32)[None, :, None] * np.ones((4, 1, 1), np.float32)
    codes = np.repeat(np.arange(64, dtype=np.uint8)[:, None], 4, axis=1)

    def decode(nodes: Any) -> Any:
        return rows[nodes]

    made = Entrance.of(())
    for node in range(64):
        made.join(node, prepare(centres, rows[node])[0], codes, decode)
    for node in (0, 13, 63):
        assert made.find(prepare(centres, rows[node])[0], codes)[0][0] == node
    made.uses[:] = 5
    made.uses[20] = 0
    made.leave(decode)
    assert 20 not in made.nodes and len(made.nodes) == 63
    assert made.find(prepare(centres, rows[41])[0], codes)[0][0] == 41, "whoever led through it has another way"


def test_an_entrance_that_is_too_large_to_be_looked_at_whole_gets_a_level_above_which_its_nodes_leave_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.arange(64, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    centres = np.arange(64, dtype=np.float32)[None, :, None] * np.ones((4, 1, 1), np.float32)
    codes = np.repeat(np.arange(64, dtype=np.uint8)[:, None], 4, axis=1)

    def table(node: int) -> Any:
        return prepare(centres, rows[node])[0]

    monkeypatch.setattr(entrance, "TOP", 40)
    made = Entrance.of(())
    for node in range(64):
        made.join(node, table(node), codes, rows.__getitem__)
        made.rise(codes, table, rows.__getitem__)
    above = made.levels()[1]
    assert len(made.levels()) == 2 and made.nodes[above.down].tolist() == above.nodes.tolist()
    for _ in range(50):
        made.leave(rows.__getitem__)
        assert made.nodes[above.down].tolist() == above.nodes.tolist()
    for node in made.nodes.tolist():
        assert made.find(table(node), codes)[0][0] == node


def test_lists_that_were_never_on_disk_are_not_in_the_cache() -> None:
    cache = ListCache(geometry(16, 8, False, False), 4000, aware=True)
    cache.grow(100)
    cache.tag(np.array([5, 99, 100, 1301], np.int32), 1)  # neighbours of the same batch have no place yet
    assert len(cache.row_of) == 100


def test_vectors_that_are_there_already_change_nothing(tmp_path: Path) -> None:
    rows = rows_of(80)
    with VectorIndex.build(tmp_path, rows) as index:
        before = index.inside.version
        index.insert(rows[:3], ids=np.arange(3))
        index.insert(rows[:0])
        assert index.inside.version == before
        wait(
            index.inside.insert(np.arange(3), rows[:3], source="file", rows=3)
        )  # how far it has come is worth a record
    with VectorIndex(tmp_path) as index:
        assert len(index) == 80 and index.inside.sources == {"file": 3}
