"""Cosine, inner product, tags, upserts, deletions and the check by brute force, in Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data.interface import StoreError
from assay.data.navis.vector_index import VectorIndex
from assay.data.store.directory import DirStore
from assay.data.vectors import write_vectors
from assay.record.errors import BadInput


def rows_of(n: int, width: int = 16, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return (random.normal(size=(n, width)) * random.uniform(0.2, 3, (n, 1))).astype(np.float32)


def answered(*words: Any) -> Any:
    done = CliRunner().invoke(command, ["vec", *map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def similar(rows: Any, queries: Any, metric: str) -> Any:
    products = queries.astype(np.float64) @ rows.T
    if metric == "ip":
        return products
    return products / np.linalg.norm(rows, axis=1) / np.linalg.norm(queries, axis=1)[:, None]


@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_the_most_similar_are_found_with_their_similarity(metric: str, tmp_path: Path) -> None:
    rows, queries = rows_of(700), 50 * rows_of(40, seed=1)
    right = similar(rows, queries, metric)
    with VectorIndex.build(tmp_path, rows[:500], metric=metric, longest=1e2 if metric == "ip" else None) as index:
        index.insert(rows[500:])
        ids, far = index.search(queries, 5)
        assert index.width == 16
        assert index.check(queries, 5)[0] >= 0.95
    with VectorIndex(tmp_path) as index:
        assert np.array_equal(index.search(queries, 5)[0], ids), "it is known when it is opened again"
    best = np.sort(right, axis=1)[:, :-6:-1]
    found = np.take_along_axis(right, ids, axis=1)
    assert (found >= best[:, -1:] - 1e-3 * np.abs(best).max()).mean() >= 0.95
    assert np.abs(far - found).max() <= 1e-3 * np.abs(right).max() and (np.diff(far) <= 0).all()


def test_what_a_metric_cannot_hold_is_refused_before_anything_is_in(tmp_path: Path) -> None:
    rows = rows_of(60)
    with VectorIndex.build(tmp_path / "ip", rows, metric="ip") as index:
        with pytest.raises(BadInput, match=r"vector 1 is .* long, and this index takes up to .*--longest"):
            index.insert(np.stack([rows[0], 100 * rows[1]]))
        write_vectors(tmp_path / "more.fvecs", np.concatenate([rows, 100 * rows]))
        with pytest.raises(BadInput, match="--longest"):
            index.insert_file(tmp_path / "more.fvecs")
        assert len(index) == 60
    with pytest.raises(BadInput, match="vector 3 is all zeros, and has no cosine"):
        VectorIndex.build(tmp_path / "cosine", np.where(np.arange(9)[:, None] == 3, 0, rows[:9]), metric="cosine")
    with pytest.raises(BadInput, match="'dot' is no metric; one of l2, cosine, ip"):
        VectorIndex.build(tmp_path / "dot", rows, metric="dot")


@pytest.mark.parametrize("few", [0, 10**6])
def test_a_tag_restricts_a_search_also_after_a_compaction_and_a_restart(
    few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.data.navis.searching.FEW", few)
    monkeypatch.setattr("assay.data.navis.searching.FEW_SHARE", 0.0)
    rows = rows_of(600)
    tags = ["rare" if i % 50 == 7 else "odd" if i % 2 else "" for i in range(600)]

    def right(tag: str, gone: Any = ()) -> Any:
        some = [i for i in range(600) if tags[i] == tag and i not in gone]
        far = ((rows[some] - rows[3]) ** 2).sum(axis=1)
        return [some[i] for i in np.argsort(far, kind="stable")[:8]]

    with VectorIndex.build(tmp_path, rows[:400], tags=tags[:400]) as index:
        index.insert(rows[400:], tags=tags[400:])
        for tag in ("odd", "rare"):
            assert index.search(rows[3], 8, tag=tag)[0][0].tolist() == right(tag)
        assert (index.search(rows[3], 8, tag="none")[0] == -1).all()
        assert index.search(rows[3], 20, tag="rare")[0][0].tolist()[12:] == [-1] * 8
        assert index.check(rows[:20], 5, tag="odd")[0] == 1.0
        gone = range(300)
        index.delete(np.array(gone))
    with VectorIndex(tmp_path) as index:
        for tag in ("odd", "rare"):
            assert index.search(rows[3], 6, tag=tag)[0][0].tolist() == right(tag, gone)[:6]


def test_an_upsert_replaces_at_once_and_survives_a_restart(tmp_path: Path) -> None:
    rows = rows_of(200)
    with VectorIndex.build(tmp_path, rows[:100], tags=["old"] * 100) as index:
        index.insert(rows[100:150])
        index.upsert(np.stack([rows[150], rows[160], rows[151]]), np.array([5, 120, 5]), tags=["new"] * 3)
        for each in (index, VectorIndex(tmp_path)):  # from memory, and from the log
            assert len(each) == 150
            assert each.search(rows[151])[0][0, 0] == 5 and each.search(rows[160])[0][0, 0] == 120
            assert 5 not in each.search(rows[5], 3, tag="old")[0] and each.search(rows[151], tag="new")[0][0, 0] == 5
            assert each.search(rows[5])[1][0, 0] > 0
        for i in range(4):
            index.upsert(rows[i : i + 100], np.arange(100))
        nodes: Any = index.inside.nodes
        assert len(index) == 150 and nodes.count <= 250, "the dead are compacted"
        assert index.search(rows[3])[0][0, 0] == 0
        index.upsert(rows[7:8], np.array([7]))
        nodes = index.inside.nodes
        dead = nodes.count - 150
        assert dead and index.compact() == dead
        assert index.compact() == 0 and len(index) == 150
    with VectorIndex(tmp_path) as index:
        assert len(index) == 150 and index.search(rows[3])[0][0, 0] == 0


def test_an_upsert_that_is_not_durable_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(120)
    with VectorIndex.build(tmp_path, rows[:100]) as index:
        with monkeypatch.context() as patch:

            async def full(*_: Any, **__: Any) -> Any:
                raise StoreError("no space left on device")

            patch.setattr(DirStore, "put", full)
            with pytest.raises(StoreError):
                index.upsert(rows[100:101], np.array([7]))
        assert index.search(rows[7])[0][0, 0] == 7 and index.search(rows[7])[1][0, 0] == 0
    with VectorIndex(tmp_path) as index:
        assert len(index) == 100 and index.search(rows[7])[1][0, 0] == 0


def test_the_command_line_does_all_of_it(tmp_path: Path) -> None:
    rows, index = rows_of(300), tmp_path / "index"
    np.save(tmp_path / "rows.npy", rows[:200])
    np.save(tmp_path / "more.npy", rows[200:])
    np.save(tmp_path / "queries.npy", rows[::30])
    (tmp_path / "tags.txt").write_text("".join(f"{'even' if i % 2 == 0 else ''}\n" for i in range(200)))
    (tmp_path / "ids.txt").write_text("".join(f"{i}\n" for i in range(150, 250)))
    np.save(tmp_path / "gone.npy", np.arange(10, 20))
    made = answered("build", index, tmp_path / "rows.npy", "--metric", "cosine", "--tags", tmp_path / "tags.txt")
    assert made["index"]["metric"] == "cosine"
    found = answered("insert", index, tmp_path / "more.npy", "--ids", tmp_path / "ids.txt", "--upsert")
    assert found["index"]["vectors"] == 250
    found = answered("search", index, tmp_path / "queries.npy", "-k", 3, "--check", 100)
    assert found["search"]["recall"] >= 0.95 and found["search"]["checked"] == 10
    assert found["table"][0]["cosine"] == pytest.approx(1, abs=1e-5)
    assert [int(row["nearest"].split()[0]) for row in found["table"]][-3:] == [160, 190, 220]
    found = answered("search", index, tmp_path / "queries.npy", "-k", 2, "--tag", "even")
    assert all(int(one) % 2 == 0 and int(one) < 150 for row in found["table"] for one in row["nearest"].split())
    found = answered("delete", index, 3, 3, 1000, "--ids", tmp_path / "gone.npy")
    assert found["index"] == {"deleted": 11, "vectors": 239} and "1 ids were not there" in found["why"]
    found = answered("compact", index)["index"]
    assert found["vectors"] == 239 and found["nodes_gone"] == 50 + 11
    assert answered("search", index, tmp_path / "queries.npy", "--check", 10)["search"]["recall"] == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["insert", "{i}", "{r}", "--upsert"], "--ids FILE expected"),
        (["insert", "{i}", "{r}", "--ids", "{b}"], "bad.txt, line 2: 'x' is no id"),
        (["insert", "{i}", "{r}", "--tags", "{b}"], "40 vectors and 3 tags"),
        (["delete", "{i}"], "no ids; assay data vec delete INDEX 5 7"),
        (["search", "{i}", "{r}", "--tag", "nobody's", "--check", "5"], "no vector has the tag"),
    ],
)
def test_bad_options_are_told_in_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows_of(40))
    (tmp_path / "bad.txt").write_text("1\nx\n2\n")
    places = {"i": tmp_path / "index", "r": tmp_path / "rows.npy", "b": tmp_path / "bad.txt"}
    answered("build", places["i"], places["r"])
    with pytest.raises(BadInput) as told:
        CliRunner().invoke(command, ["vec", *(word.format(**places) for word in words)], catch_exceptions=False)
    assert message in str(told.value) and "\n" not in str(told.value)
