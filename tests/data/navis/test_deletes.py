"""What was deleted comes back by its id, is compacted, and costs no recall; readers see later commits when they ask."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data.crash.faulty import Fault, Kind
from assay.data.crash.lab import Case, examine, recorded, replay
from assay.data.engine.version_log import Damaged
from assay.data.interface import Violation
from assay.data.navis import compaction
from assay.data.navis.crashing import Growing
from assay.data.navis.memory import Numbers
from assay.data.navis.vector_index import VectorIndex
from assay.data.store.blocking import wait
from assay.data.vectors import brute_force, drifting, write_vectors
from assay.data.vectors.graph import recall
from assay.record.errors import BadInput


@cache
def rows_of(n: int) -> Any:
    return drifting(n, 24, intrinsic=8, clusters=6, seed=4).vectors


SMALL: dict[str, Any] = {"degree": 12, "breadth": 32}


def test_an_id_that_was_deleted_comes_back_with_its_new_vector_and_stays(tmp_path: Path) -> None:
    rows = rows_of(130)
    with VectorIndex.build(tmp_path, rows[:100], **SMALL) as index:
        for again in (101, 102, 103):
            assert index.delete([5, 5]) == 1
            assert index.insert(rows[again], ids=np.array([5])).tolist() == [5]
            assert index.search(rows[again], 1)[0].tolist() == [[5]] and len(index) == 100
    with VectorIndex(tmp_path, write=True) as index:
        ids, far = index.search(rows[103], 1)
        assert (ids.tolist(), far.tolist()) == ([[5]], [[0.0]]) and index.search(rows[5], 1)[1][0, 0] > 0
        assert index.delete([5]) == 1 and 5 not in index.search(rows[103], 20)[0]
        assert wait(index.inside.check()) == []


def test_an_id_twice_in_one_insert_is_one_vector_the_first(tmp_path: Path) -> None:
    rows = rows_of(130)
    with VectorIndex.build(tmp_path, rows[:100], **SMALL) as index:
        index.insert(np.concatenate([rows[100:102], rows[103:]]), ids=np.array([700, 700, *range(200, 227)]))
        assert len(index) == 128 and index.search(rows[100], 1)[0].tolist() == [[700]]
        assert index.search(rows[101], 1)[1][0, 0] > 0
        with pytest.raises(BadInput, match="numbers from 0 on"):
            index.insert(rows[:1], ids=np.array([-1]))
        assert wait(index.inside.check()) == []


def test_ids_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    wrong = [np.array([1.5]), np.array(["1"]), np.array([1 << 63], np.uint64)]
    with pytest.raises(BadInput, match="whole numbers"):
        VectorIndex.build(tmp_path / "never", rows, ids=np.arange(60) + 0.5)  # type: ignore[arg-type]
    with VectorIndex.build(tmp_path / "index", rows, degree=8, breadth=16) as index:
        for ids in wrong:
            with pytest.raises(BadInput, match=r"an id is|ids of type"):
                index.insert(rows[:1] + 1, ids=ids)  # 1 is there already, and would be left as it is
            with pytest.raises(BadInput, match=r"an id is|ids of type"):
                index.delete(ids)
        assert len(index) == 60 and index.delete([]) == 0


def test_a_forked_process_does_not_write_beside_its_parent(tmp_path: Path) -> None:
    code = """
import os, sys
import numpy as np
from assay.data.navis import VectorIndex
from assay.record.errors import BadInput
rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
index = VectorIndex.build(sys.argv[1], rows, degree=8, breadth=16)
index.insert(rows + 9)
if not (child := os.fork()):
    try:
        index.insert(rows + 1)
    except BadInput as error:
        index.close()
        os._exit(3 * ("forked" in str(error)))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
index.insert(rows + 2)
index.close()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "index"], check=True, timeout=120)
    with VectorIndex(tmp_path / "index") as index:
        assert len(index) == 180


@pytest.mark.parametrize("n", [500, pytest.param(1200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at_once", [True, False])
def test_after_nine_of_ten_were_deleted_recall_is_that_of_a_fresh_index(tmp_path: Path, at_once: bool, n: int) -> None:
    rows, random = rows_of(n), np.random.default_rng(1)
    gone, queries = random.permutation(n)[: n * 9 // 10], rows[::13] + np.float32(0.05)
    live = np.setdiff1d(np.arange(n), gone)
    with VectorIndex.build(tmp_path / "index", rows, **SMALL) as index:
        for some in [gone] if at_once else np.array_split(gone, n // 100):
            assert index.delete(some) == len(some)
            left = index.search(queries, 10)[0]
            assert (left >= 0).all() and not np.isin(left, some).any()
        assert len(index) == n // 10 and index.next_id() == n
        right = live[brute_force(rows[live], queries, 10)[0]]
        with VectorIndex.build(tmp_path / "fresh", rows[live], ids=live, **SMALL) as fresh:
            expected = recall(fresh.search(queries, 10)[0], right)
        assert recall(index.search(queries, 10)[0], right) >= expected - 0.02 > 0.9
    with VectorIndex(tmp_path / "index", write=True) as index:
        assert recall(index.search(queries, 10)[0], right) >= expected - 0.02
        assert index.insert(rows[:2]).tolist() == [n, n + 1] and wait(index.inside.check()) == []


@pytest.mark.parametrize("packed", [False, True])
def test_where_all_near_ones_are_dead_there_are_answers_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(compaction, "DEAD", 2.0)  # never
    rows = rows_of(500)
    near = brute_force(rows, rows[7:8], 300)[0][0]
    with VectorIndex.build(tmp_path, rows, packed=packed, **SMALL) as index:
        index.delete(near)
        found = index.search(rows[7], 10)[0][0]
        left = np.setdiff1d(np.arange(500), near)
        right = left[brute_force(rows[left], rows[7:8], 10)[0][0]]
        assert recall(found[None], right[None]) >= 0.8
        index.delete(left[:-3])
        few = left[-3:].tolist()
        assert sorted(index.search(rows[7], 5)[0][0].tolist()) == [-1, -1, *few]
        monkeypatch.undo()
        index.delete(few[:1])  # compacted now
        assert index.inside.nodes is not None and index.inside.nodes.count == 2
        assert sorted(index.search(rows[7], 3)[0][0].tolist()) == [-1, *few[1:]]
        index.delete(few)
        assert len(index) == 0 and (index.search(rows[7], 3)[0] == -1).all()
        assert index.insert(rows[:3]).tolist() == [500, 501, 502] and index.search(rows[1], 1)[0][0, 0] == 501


def test_an_open_reader_sees_later_commits_after_refresh(tmp_path: Path) -> None:
    rows = rows_of(400)
    with VectorIndex.build(tmp_path, rows[:200], memory=1 << 15, **SMALL) as index, VectorIndex(tmp_path) as reader:
        index.insert(rows[200:300])
        index.delete([3])
        assert len(reader) == 200
        reader.refresh()
        assert len(reader) == 299 and reader.search(rows[250], 1)[0].tolist() == [[250]]
        index.delete(np.arange(150))  # compacted: other pages, other numbers
        assert reader.search(rows[250], 1)[0].tolist() == [[250]]
        reader.refresh()
        assert len(reader) == 150 and reader.search(rows[0], 5)[0].min() >= 150
        index.refresh()
        assert len(index) == 150


def test_threads_change_and_search_one_index_at_once(tmp_path: Path) -> None:
    rows, wrong = rows_of(420), list[int]()
    with VectorIndex.build(tmp_path, rows[:300], memory=1 << 15, **SMALL) as index:
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                wrong.extend(i for i in range(0, 100, 23) if index.search(rows[i], 1)[0][0, 0] != i)

        threads = [
            threading.Thread(target=look),
            threading.Thread(target=lambda: [index.delete(np.arange(i, i + 20)) for i in range(100, 300, 20)]),
            *[threading.Thread(target=lambda a=a: index.insert(rows[a : a + 40], ids=np.arange(a, a + 40)))
              for a in (300, 340, 380)],
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join()
        done.set()
        threads[0].join()
        assert wrong == [] and len(index) == 220
    with VectorIndex(tmp_path) as index:
        assert len(index) == 220 and wait(index.inside.check()) == [] and wait(index.inside.log.check()) == []
        kept = [*range(100), *range(300, 420)]
        assert index.search(rows[kept], 1)[0][:, 0].tolist() == kept


class Shrinking(Growing):
    """Compacts at every deletion."""

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """A deletion that nobody heard of yet may have been compacted: then its id is gone, and that is right."""
        last = max((-one - 1 for one in promised if one < 0), default=12)
        wrong = await super().check(promised)
        return [one for one in wrong if not one.detail.startswith(f"id {last + 4}")]


@pytest.mark.slow
def test_a_crash_at_any_change_of_compactions_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DEAD", 0.01)
    assert examine(Shrinking, ops=20, mixes=5).findings == []


def test_a_crash_around_the_state_of_a_compaction_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DEAD", 0.01)
    changes = recorded(Shrinking, 20, 0)
    state = next(i for i, one in enumerate(changes) if "log-state/" in one and i > 20)
    for at, kind in itertools.product(range(state - 2, state + 3), (Kind.BEFORE, Kind.AFTER)):
        assert replay(Shrinking, Case(20, 0, (Fault(at, kind),))) is None


def test_pages_that_changed_are_noticed_before_they_are_written_again(tmp_path: Path) -> None:
    rows = rows_of(300)
    VectorIndex.build(tmp_path, rows[:200], **SMALL).close()
    (file,) = (tmp_path / "pages").iterdir()
    raw = bytearray(file.read_bytes())
    raw[100::4096] = bytes(255 - one for one in raw[100::4096])
    file.write_bytes(raw)
    with VectorIndex(tmp_path, write=True) as index:
        with pytest.raises(Damaged, match="is not what was written"):
            index.delete(np.arange(100))
        assert len(index) == 100


def test_numbers_are_those_of_the_newest_node() -> None:
    numbers = Numbers(np.array([7, 3, 7]))
    assert (numbers[7], numbers[3], len(numbers)) == (2, 1, 2)
    numbers.add(7, 9)
    assert (numbers[7], sorted(numbers)) == (9, [3, 7]) and 8 not in numbers


def test_a_file_that_grew_or_was_renamed_goes_on_and_one_that_changed_is_told(tmp_path: Path) -> None:
    rows, index, path = rows_of(300), tmp_path / "index", tmp_path / "a.fvecs"
    write_vectors(path, rows[:100])
    VectorIndex.build(index, rows[:100], source=path, **SMALL).close()

    def insert(file: Path) -> tuple[int, int]:
        with VectorIndex(index, write=True) as opened:
            return opened.insert_file(file)

    assert insert(path) == (100, 0)
    write_vectors(path, rows[:150])
    assert insert(path) == (100, 50)
    renamed = path.rename(tmp_path / "b.fvecs")
    assert insert(renamed) == (150, 0)
    np.save(tmp_path / "c.npy", rows[:170])
    assert insert(tmp_path / "c.npy") == (150, 20)
    write_vectors(renamed, rows[:120])
    other = rows[:170].copy()
    other[60] += 1
    write_vectors(tmp_path / "c.fvecs", other[:10] + 2)
    assert insert(tmp_path / "c.fvecs") == (0, 10)
    np.save(tmp_path / "c.npy", other)
    with pytest.raises(BadInput, match="have changed"):
        insert(tmp_path / "c.npy")
    with VectorIndex(index) as opened:
        assert len(opened) == 180 and opened.search(rows[165], 1)[0].tolist() == [[165]]
        assert len(opened.inside.sources) == 2
