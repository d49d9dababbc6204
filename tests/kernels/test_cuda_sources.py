"""The CUDA kernels run here line by line, each thread a fibre, and give what their oracles give."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from assay import kernels
from assay.kernels.engine.cuda import Gpu, OnCpu, missing
from assay.kernels.goldbach import checking, tables
from assay.kernels.merbit import layout
from assay.kernels.radius_fps import fps, voxels
from assay.record.errors import BadInput
from assay.workloads import clouds

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SOURCES = Path(kernels.__file__).parent


def matrix_cases(dtype: Any) -> list[Any]:
    random = np.random.default_rng(0)
    shapes = [(1, 1, 1.0), (1, 3000, 0.9), (900, 40, 0.1), (300, 300, 0.0), (800, 3, 0.3)]
    made = [scipy.sparse.random_array((m, n), density=d, format="csr", dtype=dtype, rng=random) for m, n, d in shapes]
    dense = scipy.sparse.csr_array(np.ones((1, 40), dtype))
    return [*made, scipy.sparse.vstack([made[2], dense, made[2]]).tocsr()]


@pytest.mark.parametrize(("dtype", "name"), [(np.float32, "float"), (np.float64, "double")])
def test_sparse_products_are_scipys(dtype: Any, name: str) -> None:
    items, warps = 7, 2
    device = OnCpu(SOURCES / "merbit/spmv.cu", VALUE=name, ITEMS=items, WARPS=warps)
    for a in matrix_cases(dtype):
        rows, cols = a.shape
        x = np.random.default_rng(1).random(cols).astype(dtype)
        start, col = a.indptr.astype(np.int32), a.indices.astype(np.int32)
        allowed = 4 * np.finfo(dtype).eps * np.maximum(np.diff(start), 1) * (abs(a) @ x) + 1e-30
        made = layout.tiles(np, start, a.nnz, items)
        carry, carry_row = np.zeros(made.tiles, dtype), np.zeros(made.tiles + 1, np.int32)
        grid = -(-made.tiles // warps)
        y, merged, by_rows = (np.full(rows, np.nan, dtype) for _ in range(3))
        device.launch(
            "merbit",
            grid,
            32 * warps,
            made.bits,
            made.row,
            col,
            a.data,
            x,
            y,
            carry,
            made.tiles,
            rows,
            np.int64(made.items),
        )
        device.launch("merbit_carries", -(-made.tiles // 32), 32, made.row, carry, y, made.tiles, rows)
        device.launch(
            "merge_path",
            grid,
            32 * warps,
            start,
            col,
            a.data,
            x,
            merged,
            carry,
            carry_row,
            made.tiles,
            rows,
            np.int64(a.nnz),
        )
        device.launch("merbit_carries", -(-made.tiles // 32), 32, carry_row, carry, merged, made.tiles, rows)
        device.launch("csr_vector", -(-rows * 4 // 64), 64, start, col, a.data, x, by_rows, rows, 4)
        for found in (y, merged, by_rows):
            assert (np.abs(found - a @ x) <= allowed).all()


def test_columns_by_popularity_leave_the_product_as_it_is() -> None:
    col = np.array([5, 5, 2, 0, 5])
    order, _ = layout.popular(np, col, 6)
    x = np.arange(6.0)
    assert (x[order][layout.renumbered(np, col, order)] == x[col]).all()


def test_even_numbers_by_tiles_and_by_threads_have_the_same_least_primes() -> None:
    words, back, begin, end = 256, 2048, 64 * 64, 60_002
    device = OnCpu(SOURCES / "goldbach/goldbach.cu", WORDS=words, BACK=back)
    t = tables.tables(end + 64 * words, words, back)
    arguments = (t.wheels, t.lengths, len(t.lengths), t.primes, t.inverses, t.by_warp, len(t.primes))
    counts, first, left = (
        np.zeros(len(t.small), np.uint64),
        np.full(len(t.small), 2**64 - 1, np.uint64),
        np.zeros(64, np.uint64),
    )
    device.launch(
        "goldbach",
        2,
        64,
        np.uint64(begin),
        np.uint64(end),
        *arguments,
        t.small,
        len(t.small),
        10,
        counts,
        first,
        left,
        63,
    )
    plain, early = checking.head(end), checking.head(begin)
    expected = [plain.counts.get(p, 0) - early.counts.get(p, 0) for p in t.small.tolist()]
    assert counts.tolist() == expected
    assert left[0] == 0
    deep = [(int(n), p) for p, n in list(zip(t.small.tolist(), first.tolist(), strict=True))[10:] if n != 2**64 - 1]
    assert all(plain.first[p] == n for n, p in deep if plain.first[p] >= begin)
    segment = np.zeros((end - begin + back) // 64 + 2, np.uint32)
    device.launch(
        "sieve_segment",
        -(-len(segment) // words),
        64,
        np.uint64(begin - back + 1),
        np.uint64(len(segment)),
        *arguments,
        segment,
    )
    other, numbers = np.zeros_like(counts), (end - begin) // 2
    device.launch(
        "per_number",
        -(-numbers // 64),
        64,
        np.uint64(begin),
        np.uint64(numbers),
        segment,
        t.small,
        len(t.small),
        other,
        left,
        63,
    )
    assert other.tolist() == expected


@pytest.mark.parametrize(("defines", "build"), [({}, voxels.octree), ({"BOXES": 1}, voxels.kd_tree)])
def test_sampling_picks_the_same_points_in_the_same_order(defines: dict[str, int], build: Any) -> None:
    device = OnCpu(SOURCES / "radius_fps/fps.cu", **defines)
    for cloud in (
        clouds.lidar(800, 1),
        np.zeros((40, 3), np.float32),
        np.repeat(clouds.uniform(50, 3), 3, 0),
        clouds.uniform(1, 1),
    ):
        n = len(cloud)
        k, start, made = min(n, 40), n // 3, build(cloud, 32)
        count = len(made.start) - 1
        out, d, key = np.zeros(k, np.int32), np.full(n, np.inf, np.float32), np.zeros(count, np.uint64)
        place, listed, visited = np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(1, np.uint64)
        first = int(np.flatnonzero(made.index == start)[0])
        points = map(np.ascontiguousarray, made.points)
        device.launch("pruned", 1, 64, *points, d, made.index, made.start, made.bounds, key, place, listed, n, count, k,
                      first, out, visited)  # fmt: skip
        right = fps.plain(cloud, k, start)
        picked = out >= 0  # the rest lies on points picked already
        assert (out[picked] == right[picked]).all()
        plain, d = np.zeros(k, np.int32), np.full(n, np.inf, np.float32)
        device.launch("plain", 1, 64, *map(np.ascontiguousarray, cloud.T), d, n, k, start, plain)
        assert (plain == out).all()


@pytest.mark.skipif(not missing(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    with pytest.raises(BadInput, match="spmv cannot run on a GPU here"):
        Gpu(SOURCES / "merbit/spmv.cu")


def test_a_source_that_does_not_compile_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cu"
    broken.write_text('extern "C" __global__ void f(int n) { n + ; }')
    with pytest.raises(BadInput, match=r"broken\.cu does not compile"):
        OnCpu(broken)
