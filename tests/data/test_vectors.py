"""Vectors in published formats, and the kernels of neighbour graphs beside plain ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.vectors import (
    ProductCode,
    beam_search,
    brute_force,
    drifting,
    nn_descent,
    read_vectors,
    robust_prune,
    write_vectors,
)
from assay.data.vectors.files import COUNTED, HEADED
from assay.data.vectors.graph import recall
from tests.oracles import neighbours as oracle

# Whole numbers: distances are exact, and ties are real ones.
grids = st.tuples(st.integers(2, 30), st.integers(1, 4), st.integers(0, 10**6)).map(
    lambda shape: np.random.default_rng(shape[2]).integers(-6, 7, shape[:2]).astype(np.float32)
)


# ------------------------------------------------------------------------------------------- files


@given(st.sampled_from([*HEADED.items(), *COUNTED.items()]), st.integers(1, 20), st.integers(1, 50))
@settings(max_examples=20)
def test_what_is_written_is_read(tmp_path_factory: Any, form: Any, n: int, d: int) -> None:
    suffix, kind = form
    rows = np.random.default_rng(n * d).integers(0, 100, (n, d)).astype(kind)
    path = tmp_path_factory.mktemp("v") / f"rows{suffix}"
    write_vectors(path, rows)
    found = read_vectors(path)
    assert found.dtype == kind and np.array_equal(found, rows)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"cut, or|dimension expected"):
        read_vectors(path)


def test_bytes_are_laid_out_as_published(tmp_path: Path) -> None:
    (tmp_path / "a.fvecs").write_bytes(b"\x02\0\0\0\0\0\x80?\0\0\0@\x02\0\0\0\0\0@@\0\0\x80@")
    (tmp_path / "a.u8bin").write_bytes(b"\x02\0\0\0\x03\0\0\0\x01\x02\x03\x04\x05\x06")
    (tmp_path / "a.dat").write_text("0 1\n2.5 3\n")
    assert read_vectors(tmp_path / "a.fvecs").tolist() == [[1, 2], [3, 4]]
    assert read_vectors(tmp_path / "a.u8bin").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert read_vectors(tmp_path / "a.dat").tolist() == [[0, 1], [2.5, 3]]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.fvecs", b"\0\0\0\0", "dimension 0"),
        ("a.ivecs", b"\x01\0\0\0aaaa\x02\0\0\0bbbb", "different dimensions"),
        ("a.fbin", b"\x01", "dimension expected first"),
        ("a.npy", b"nothing", "by numpy.save expected"),
        ("a.dat", b"1 2\n3\n", "line 2: 1 numbers"),
        ("a.dat", b"1 two\n", "line 1: '1 two'"),
        ("a.parquet", b"", "no format of vectors"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says) as told:
        read_vectors(tmp_path / name)
    assert "\n" not in str(told.value)


# ------------------------------------------------------------------------------------------- stream


def test_clusters_come_one_after_another_under_drift_and_at_once_without() -> None:
    moving, still = drifting(4000, 24, clusters=20, seed=2), drifting(4000, 24, clusters=20, drift=0.0, seed=2)
    assert len(set(moving.cluster[:400])) <= 4 < 18 <= len(set(moving.cluster[-400:]))
    assert len(set(still.cluster[:400])) >= 18
    spectrum = np.linalg.svd(moving.vectors - moving.vectors.mean(axis=0), compute_uv=False)
    assert (spectrum[:16] ** 2).sum() > 0.99 * (spectrum**2).sum(), "sixteen dimensions hold nearly all of it"


# -------------------------------------------------------------------------------------------- kernels


@given(grids, st.integers(1, 5), st.integers(1, 12), st.data())
def test_beam_search_walks_as_the_plain_one(vectors: Any, degree: int, breadth: int, data: st.DataObject) -> None:
    n = len(vectors)
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    graph = rng.integers(-1, n, (n, degree)).astype(np.int32)
    entries = np.unique(rng.integers(0, n, data.draw(st.integers(1, 4)))).astype(np.int32)
    query = rng.integers(-6, 7, vectors.shape[1]).astype(np.float32)
    found, far, walked = beam_search(vectors, graph, query, entries, breadth)
    expected, steps = oracle.beam(vectors, graph.tolist(), query, entries.tolist(), breadth)
    assert (found.tolist(), walked.tolist()) == (expected, steps)
    assert far.tolist() == [oracle.squared(vectors[v], query) for v in expected]


@given(grids, st.integers(1, 8), st.sampled_from([1.0, 1.25, 2.0]), st.data())
def test_pruning_keeps_what_the_plain_one_keeps(vectors: Any, degree: int, alpha: float, data: st.DataObject) -> None:
    candidates = data.draw(st.lists(st.integers(0, len(vectors) - 1), min_size=1, max_size=40))
    point = np.zeros(vectors.shape[1], np.float32)
    kept = robust_prune(vectors, point, np.array(candidates, np.int32), alpha, degree)
    assert kept.tolist() == oracle.prune(vectors, point, candidates, alpha, degree)


@given(grids, st.integers(1, 6))
def test_brute_force_is_the_sorted_list_of_distances(vectors: Any, k: int) -> None:
    ids, far = brute_force(vectors, vectors[:3], k)
    for row, query in enumerate(vectors[:3]):
        right = sorted((oracle.squared(v, query), i) for i, v in enumerate(vectors))[:k]
        assert ids[row].tolist() == [i for _, i in right] and far[row].tolist() == [d for d, _ in right]


def test_descent_finds_nearly_all_neighbours_and_keeps_its_promises() -> None:
    vectors = drifting(1500, 24, intrinsic=8, clusters=6, seed=1).vectors
    ids, far = nn_descent(vectors, 10, seed=3)
    right = brute_force(vectors, vectors, 11)[0][:, 1:]
    assert recall(ids, right) > 0.97
    assert all(len(set(row)) == 10 and u not in row for u, row in enumerate(ids.tolist())), "no loops, no repeats"
    assert (np.diff(far, axis=1) >= 0).all()
    again = ((vectors[ids] - vectors[:, None]) ** 2).sum(axis=2)
    assert np.allclose(far, again, rtol=1e-4)
    assert np.array_equal(ids, nn_descent(vectors, 10, seed=3)[0])


def test_codes_name_the_nearest_centre_and_the_table_gives_their_distance() -> None:
    rows = drifting(600, 30, intrinsic=8, clusters=5, seed=4).vectors
    code = ProductCode.train(rows, parts=7, rounds=5, centres=32)
    codes, meant = code.encode(rows), code.decode(code.encode(rows))
    for p in range(7):
        part = np.pad(rows, ((0, 0), (0, 5)))[:, 5 * p : 5 * p + 5]
        far = ((part[:, None] - code.centres[p]) ** 2).sum(axis=2)
        assert np.allclose(far[np.arange(600), codes[:, p]], far.min(axis=1), rtol=1e-4, atol=1e-6)
    table = code.table(rows[0])
    assert np.allclose(code.distances(table, codes), ((meant - rows[0]) ** 2).sum(axis=1), rtol=1e-3, atol=1e-4)
    assert ((meant - rows) ** 2).sum() < 0.5 * ((rows - rows.mean(axis=0)) ** 2).sum()


def test_more_rounds_never_fit_worse() -> None:
    rows = drifting(400, 16, seed=5).vectors
    errors = [((c.decode(c.encode(rows)) - rows) ** 2).sum() for c in
              (ProductCode.train(rows, 4, rounds=r, centres=16) for r in (0, 3, 9))]  # fmt: skip
    assert errors[0] > errors[1] >= errors[2]
