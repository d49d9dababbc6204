"""What is kept: the first of what is alike, in any batches, told once and for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mmh3", reason="pip install mmh3")

from assay.data.engine.version_log import Damaged
from assay.data.fold import Fold, Settings, dedup, judged
from assay.data.fold.generate import corpus
from assay.data.fold.graph import Graph
from assay.data.fold.rivals import contenders
from assay.data.fold.sketch import sketched
from assay.data.fold.truth import exact
from assay.data.interface import StoreError
from assay.data.store.directory import DirStore
from assay.data.store.memory import MemStore
from assay.record.errors import BadInput
from tests.oracles import dedup as oracle

SENTENCE = st.lists(st.sampled_from("abcdef"), min_size=0, max_size=14).map(" ".join)


def opened(store: object = None, settings: Settings | None = None) -> Fold:
    fold = Fold(settings)
    asyncio.run(fold.open(store or MemStore()))  # type: ignore[arg-type]
    return fold


def observed(fold: Fold, ids: list[str], texts: list[str]) -> list[bool]:
    return [bool(one) for one in asyncio.run(fold.observe(ids, texts))]


@given(st.lists(SENTENCE, max_size=24), st.integers(1, 9))
def test_what_is_taken_out_is_alike_something_kept_and_copies_always_go(texts: list[str], batch: int) -> None:
    fold = opened()
    keep: list[bool] = []
    for first in range(0, len(texts), batch):
        some = texts[first : first + batch]
        answer = asyncio.run(fold.admit([str(first + i) for i in range(len(some))], some))
        keep += [bool(one) for one in answer.keep]
        for text, kept, of, alike in zip(some, answer.keep, answer.of, answer.alike, strict=True):
            if not kept:
                right = oracle.jaccard(oracle.shingles(text), oracle.shingles(texts[int(of)]))
                assert keep[int(of)] and right >= 0.7
                assert alike == pytest.approx(right, abs=1e-4)
    assert all(not keep[i] for i, text in enumerate(texts) if text.split() in [one.split() for one in texts[:i]])


@given(st.lists(SENTENCE, max_size=24), st.sampled_from([0.5, 0.7, 0.9]))
def test_the_judge_is_right(texts: list[str], tau: float) -> None:
    docs = sketched(texts)
    of, alike = exact(docs.counts, docs.shingles, tau)
    assert [bool(one < 0) for one in of] == oracle.kept(texts, tau)
    for i in np.flatnonzero(of >= 0):
        assert alike[i] == oracle.jaccard(oracle.shingles(texts[i]), oracle.shingles(texts[of[i]]))


@pytest.mark.parametrize("by", ["graph", "bands"])
def test_duplicates_are_found_and_nothing_else_is_taken_out(by: str) -> None:
    texts = [text for some in corpus(1000, seed=3) for text in some]
    docs = sketched(texts)
    of, _ = exact(docs.counts, docs.shingles)
    found = judged(dedup(texts, by=by, batch=400), of >= 0)
    assert found["recall"] >= 0.93
    assert found["precision"] >= 0.98


def test_the_papers_cut_misses_what_it_promises_to_find() -> None:
    texts = [text for some in corpus(700, seed=4) for text in some]
    docs = sketched(texts)
    of, _ = exact(docs.counts, docs.shingles)
    recall = {}
    for cut in ("paper", "calibrated"):
        fold = opened(settings=Settings(verify="none", cut=cut, bits=4096))
        keep = asyncio.run(fold.observe([str(i) for i in range(len(texts))], texts))
        recall[cut] = judged(keep, of >= 0)["recall"]
    assert recall["paper"] < recall["calibrated"] - 0.05


def test_the_same_documents_again_change_nothing_and_get_the_same_answer(tmp_path: Path) -> None:
    texts = [text for some in corpus(300, seed=5) for text in some]
    ids = [f"doc{i}" for i in range(300)]
    fold = opened(DirStore(tmp_path))
    first = asyncio.run(fold.admit(ids, texts))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    again = asyncio.run(fold.admit(ids, texts))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (again.keep == first.keep).all() and again.of == first.of and again.again.all()
    assert np.allclose(again.alike, first.alike, atol=1e-4)
    assert observed(opened(DirStore(tmp_path)), ids, texts) == [bool(one) for one in first.keep]


def test_a_changed_text_under_an_old_name_is_a_document_of_its_own() -> None:
    fold = opened()
    assert observed(fold, ["a"], ["one two three four five six"]) == [True]
    assert observed(fold, ["a"], ["nothing of what was there remains in it now"]) == [True]
    assert observed(fold, ["a", "a"], ["a third text that is new", "a third text that is new"]) == [True, False]


def test_bands_find_the_same_duplicates_and_are_rebuilt_from_the_log(tmp_path: Path) -> None:
    texts = [text for some in corpus(600, seed=12) for text in some]
    docs = sketched(texts)
    of, _ = exact(docs.counts, docs.shingles)
    keep = list[bool]()
    for first in range(0, 600, 200):
        fold = opened(DirStore(tmp_path, fsync=False), Settings(by="bands"))
        keep += observed(fold, [str(first + i) for i in range(200)], texts[first : first + 200])
    found = judged(np.array(keep), of >= 0)
    assert found["recall"] >= 0.98 and found["precision"] == 1
    with pytest.raises(BadInput, match="verified"):
        Fold(Settings(by="bands", verify="none"))


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_goes_on_later_decides_as_one_that_never_stopped(tmp_path: Path, saved: bool) -> None:
    texts = [text for some in corpus(600, seed=6) for text in some]
    ids = [str(i) for i in range(600)]
    whole = opened()
    expected, keep = list[bool](), list[bool]()
    for first in range(0, 600, 120):
        some = ids[first : first + 120], texts[first : first + 120]
        expected += observed(whole, *some)
        fold = opened(DirStore(tmp_path, fsync=False))
        keep += observed(fold, *some)
        if saved and first == 240:
            asyncio.run(fold.save_graph())
            asyncio.run(fold.tidy())
    assert keep == expected
    near = opened(DirStore(tmp_path, fsync=False)).near
    assert isinstance(near, Graph) and isinstance(whole.near, Graph)
    again = near.saved()
    for name, theirs in whole.near.saved().items():
        if name in ("links", "upper"):
            assert [neighbours(row) for row in again[name]] == [neighbours(row) for row in theirs]
        elif name in ("head", "above"):
            assert again[name].tolist() == theirs.tolist()


def neighbours(row: np.ndarray) -> list[int]:
    """A row of links up to the first that is none."""
    found: list[int] = row.tolist()
    return found[: found.index(-1)] if -1 in found else found


def test_settings_cannot_change_and_the_error_says_what_they_were(tmp_path: Path) -> None:
    opened(DirStore(tmp_path), Settings(tau=0.8))
    with pytest.raises(BadInput, match=r"made with tau 0\.8"):
        opened(DirStore(tmp_path), Settings(tau=0.6))
    assert opened(DirStore(tmp_path)).settings.tau == 0.8
    (tmp_path / "settings").write_bytes(msgspec.msgpack.encode({"tau": 0.8}))  # by a programme that knew fewer of them
    assert opened(DirStore(tmp_path), Settings(tau=0.8)).settings == Settings(tau=0.8)
    with pytest.raises(BadInput, match="similarity"):
        Fold(Settings(tau=0))


def test_a_damaged_index_is_found_out_and_a_damaged_graph_is_grown_again(tmp_path: Path) -> None:
    texts = [text for some in corpus(200, seed=7) for text in some]
    fold = opened(DirStore(tmp_path))
    keep = observed(fold, [str(i) for i in range(200)], texts)
    asyncio.run(fold.save_graph())
    graph = next((tmp_path / "graph").iterdir())
    graph.write_bytes(graph.read_bytes()[:-100])
    again = opened(DirStore(tmp_path))
    assert again.kept == sum(keep) and asyncio.run(again.check()) == []
    blob = next((tmp_path / "batch").iterdir())
    data = bytearray(blob.read_bytes())
    data[50] ^= 1
    blob.write_bytes(data)
    with pytest.raises(Damaged, match="damaged"):
        opened(DirStore(tmp_path))


def test_a_store_that_refuses_a_batch_loses_nothing() -> None:
    class Full(MemStore):
        refuses = False

        async def put(self, key: str, data: object, *, if_absent: bool = False) -> object:  # type: ignore[override]
            if self.refuses and key.startswith("log/"):
                raise StoreError("cannot write: no space left")
            return await super().put(key, data, if_absent=if_absent)  # type: ignore[arg-type]

    store = Full()
    fold = opened(store)
    texts = [text for some in corpus(60, seed=8) for text in some]
    ids = [str(i) for i in range(60)]
    observed(fold, ids[:30], texts[:30])
    store.refuses = True
    with pytest.raises(StoreError, match="no space"):
        observed(fold, ids[30:], texts[30:])
    store.refuses = False
    keep = observed(fold, ids[30:], texts[30:])
    other = opened()
    observed(other, ids[:30], texts[:30])
    assert keep == observed(other, ids[30:], texts[30:])
    assert asyncio.run(fold.check()) == []


@pytest.mark.parametrize(
    "name", ["graph-slots", "graph-hamming", "bands-14", "bands-28", "bands-capped", "rescan", "datasketch", "rensa"]
)
def test_every_rival_takes_copies_out_and_leaves_strangers(tmp_path: Path, name: str) -> None:
    if name in ("datasketch", "rensa"):
        pytest.importorskip(name, reason=f"pip install {name}")
    fresh = [text for some in corpus(60, seed=9, copies=0.0) for text in some]
    rival = contenders(tmp_path)[name]()
    assert rival.observe(fresh[:40]).all()
    assert rival.observe([*fresh[20:40], *fresh[40:], fresh[40]]).tolist() == [False] * 20 + [True] * 20 + [False]
