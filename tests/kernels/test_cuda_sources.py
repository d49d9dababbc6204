"""The CUDA kernels run here line by line, each thread a fibre, and give what their oracles give."""

from __future__ import annotations

import ctypes
import shutil
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import kernels
from assay.kernels.engine.cuda import Gpu, OnCpu, missing
from assay.kernels.goldbach import checking, tables
from assay.kernels.merbit import gpu, layout, sweeps
from assay.kernels.merbit.spmv import spmv
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


def emulated(multiprocessors: int = 2, shared: int = 48 << 10) -> gpu.Device:
    """A GPU of so many multiprocessors whose threads are fibres; what it tries first seems the fastest."""
    counted = count()
    return gpu.Device(
        lambda source, **defines: OnCpu(SOURCES / "merbit" / source, **defines), np, multiprocessors, shared,
        lambda: None, lambda run: float(next(counted)), 64,
    )  # fmt: skip


def on_device(a: Any) -> gpu.Matrix:
    return gpu.Matrix(a.indptr.astype(np.int32), a.indices.astype(np.int32), a.data, a.shape)


def multiplied(way: gpu.Way, x: Any, rows: int) -> Any:
    y = np.full(rows, np.nan, x.dtype)
    way(x, y)
    return y


SMALL = (layout.Setting(7, 2, 2, 2, 1, 512), layout.Setting(15, 3, 1, 3, 2, 1024))


@given(
    st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.integers(0, 10**6), st.booleans(), st.booleans(),
    st.sampled_from(["gathered", "handed out", "chosen"]), st.integers(1, 3), st.sampled_from(SMALL),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_products_with_x_in_panels_are_within_rounding_of_the_exact_ones(
    rows: int, cols: int, density: float, seed: int, double: bool, hubs: bool, kind: str, grid: int, setting: Any
) -> None:
    random, dtype = np.random.default_rng(seed), np.float64 if double else np.float32
    there = random.random((rows, cols)) < density * 0.3
    there[:, 0] |= hubs  # one column that all want
    there[rows // 2] |= hubs  # and one row that wants all
    a = scipy.sparse.csr_array(there * (random.random((rows, cols)) - 0.5)).astype(dtype)
    x = (random.random(cols) - 0.5).astype(dtype)
    x[0] = np.inf if not there[:, 0].any() else x[0]  # what nobody wants spoils nothing
    way = gpu.in_panels(emulated(grid), on_device(a), setting, kind="" if kind == "chosen" else kind)
    y = multiplied(way, x, rows)
    right = a.astype(np.float64) @ np.nan_to_num(x.astype(np.float64), posinf=0)
    magnitude = abs(a).astype(np.float64) @ np.abs(np.nan_to_num(x.astype(np.float64), posinf=0))
    allowed = 4 * np.finfo(dtype).eps * np.maximum(np.diff(a.indptr), 1) * magnitude + 1e-300
    assert (np.abs(y - right) <= allowed).all()


@pytest.mark.parametrize("kind", ["gathered", "handed out", "chosen"])
def test_panels_of_one_huge_row_one_column_and_nothing(kind: str) -> None:
    random = np.random.default_rng(2)
    dense = scipy.sparse.csr_array(random.random((1, 5000)))
    thin = scipy.sparse.csr_array((random.random((4000, 1)) < 0.5) * random.random((4000, 1)))
    nothing = scipy.sparse.csr_array((700, 9))
    last = scipy.sparse.vstack([nothing[:, :1], thin, nothing[:, :1]]).tocsr()
    cases: list[Any] = [dense, thin, nothing, last]
    for a in cases:
        x: Any = random.random(a.shape[1]) - 0.5
        way = gpu.in_panels(emulated(), on_device(a), SMALL[0], kind="" if kind == "chosen" else kind)
        y = multiplied(way, x, a.shape[0])
        assert np.abs(y - a @ x).max() <= 4e-16 * 5000 * (abs(a) @ np.abs(x)).max() + 1e-300


@given(
    st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.integers(0, 10**6), st.booleans(), st.booleans(),
    st.integers(1, 3), st.integers(0, 3), st.booleans(), st.sampled_from([1 << 10, 48 << 10]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_products_swept_over_columns_are_within_rounding_of_the_exact_ones(
    rows: int, cols: int, density: float, seed: int, double: bool, hubs: bool, grid: int, cut: int, dealt: bool,
    shared: int,
) -> None:  # fmt: skip
    random, dtype = np.random.default_rng(seed), np.float64 if double else np.float32
    there = random.random((rows, cols)) < density * 0.3
    there[:, 0] |= hubs
    there[rows // 2] |= hubs  # a row that has several sums
    there[rows // 3 :: 2] &= not hubs  # and some that have none
    a = scipy.sparse.csr_array(there * (random.random((rows, cols)) - 0.5)).astype(dtype)
    x = (random.random(cols) - 0.5).astype(dtype)
    x[-1] = np.inf if not there[:, -1].any() else x[-1]  # what nobody wants spoils nothing
    way = gpu.swept(emulated(grid, layout.RESERVED + shared), on_device(a), dealt, 2, 2, cut)
    y, plain = multiplied(way, x, rows), np.nan_to_num(x.astype(np.float64), posinf=0)
    magnitude = abs(a).astype(np.float64) @ np.abs(plain)
    allowed = 4 * np.finfo(dtype).eps * np.maximum(np.diff(a.indptr), 1) * magnitude + 1e-300
    assert (np.abs(y - a.astype(np.float64) @ plain) <= allowed).all()


def test_columns_far_apart_and_no_nonzeros_at_all_are_swept_too() -> None:
    random = np.random.default_rng(3)
    wide = scipy.sparse.random_array((50, 200_000), density=0.001, format="csr", rng=random)  # four strips
    cases: list[Any] = [wide, scipy.sparse.csr_array((30, 20)), scipy.sparse.csr_array(random.random((1, 3000)))]
    for a in cases:
        x: Any = random.random(a.shape[1])
        way = gpu.swept(emulated(), on_device(a), False, 2, 2)
        assert np.abs(multiplied(way, x, a.shape[0]) - a @ x).max() <= 1e-12


def test_groups_take_whole_rounds_and_dealt_rows_make_them_alike() -> None:
    lengths = np.concatenate([np.full(64, 400), np.full(4000, 3)])  # most nonzeros in the first rows
    start = np.concatenate([[0], np.cumsum(lengths)])
    col = np.concatenate([np.arange(n) for n in lengths])
    even, uneven = (
        sweeps.swept(np, start, col, np.ones(len(col)), (len(lengths), 400), 4, 16 << 10, dealt=dealt)
        for dealt in (True, False)
    )
    assert even.units % 4 == 0
    assert np.ptp(np.diff(even.first)) < np.ptp(np.diff(uneven.first))  # sums
    assert np.diff(even.begin).max() <= 1.2 * np.diff(even.begin).mean()  # nonzeros
    assert sorted(np.unique(np.where(even.target < 0, ~even.target, even.target))) == list(range(len(lengths)))


def test_a_users_product_runs_on_a_device_by_the_way_that_was_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CONFIGURATIONS", ((7, 2),))
    monkeypatch.setattr(gpu, "BEST", (7, 2))
    monkeypatch.setattr(gpu, "SETTINGS", {"small": {8: SMALL[0]}})
    monkeypatch.setattr(gpu, "WARPS", 2)
    a: Any = scipy.sparse.random_array((60, 40), density=0.2, format="csr", rng=np.random.default_rng(4))
    x = np.random.default_rng(5).random(40)
    for products, way in (
        (1, "7x2"),
        (300, "7x2"),
        (10_000, "7x2"),
    ):  # the emulated clock finds what it tries first the fastest
        made = spmv(a, where=emulated(), products=products)
        assert np.abs(made @ x - a @ x).max() < 1e-14
        assert way in made.why
    names = [way.name for way in gpu.ways(emulated(), on_device(a))]
    assert names == ["7x2", "panels small", "sweep", "sweep dealt"]
    with pytest.raises(BadInput, match="where must be"):
        spmv(a, where="moon")

    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(sweeps, "swept", full)  # what has no room is left out, as long as something has
    assert [way.name for way in gpu.ways(emulated(), on_device(a))] == ["7x2", "panels small"]
    monkeypatch.setattr(layout, "tiles", full)
    with pytest.raises(BadInput, match="does not fit into the GPU's memory"):
        spmv(a, where=emulated())
    with pytest.raises(BadInput, match="must be float32 or float64"):
        gpu.Product(emulated(), a.astype(np.complex64), 1)


@pytest.mark.skipif(not missing(), reason="there is a GPU")
def test_without_a_gpu_products_stay_on_the_cpu_and_say_why() -> None:
    a = scipy.sparse.eye_array(3, format="csr")
    assert spmv(a).why == f"on the CPU: {missing()}"
    with pytest.raises(BadInput, match="spmv cannot run on a GPU here"):
        spmv(a, where="gpu")


KINDS = ("apart", "few values", "all alike", "huge", "one far away")


@given(st.integers(0, 10**6), st.sampled_from(KINDS), st.sampled_from([10, 11]))
@settings(max_examples=30, deadline=None)
def test_the_blocks_with_the_highest_scores_are_chosen_equal_ones_by_place(seed: int, kind: str, bits: int) -> None:
    random, threads, each, heads, caches = np.random.default_rng(seed), 64, 6, 3, 2
    device = OnCpu(SOURCES / "ab_sparse/choose.cu", THREADS=threads, EACH=each, BITS=bits)
    sizes = random.integers(1, threads * each + 1, heads)
    wanted = random.integers(0, sizes + 1)
    first, begin = (np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (sizes, wanted))
    shape = caches, int(first[-1])
    drawn = {"apart": random.standard_normal(shape), "few values": random.integers(-2, 3, shape),
             "all alike": np.ones(shape), "huge": random.standard_normal(shape) * 1e37,
             "one far away": random.standard_normal(shape) + 1e6 * (np.arange(shape[1]) == 5)}[kind]  # fmt: skip
    scores, picks = drawn.astype(np.float32), max(1, int(begin[-1]))
    chosen = np.full((caches, picks), -1, np.int32)
    device.launch("choose", heads * caches, threads, scores, first, begin, chosen, shape[1], picks, heads)
    for cache in range(caches):
        for h in range(heads):
            mine = scores[cache, first[h] : first[h + 1]]
            right = np.sort(np.argsort(-mine, kind="stable")[: wanted[h]])
            assert (chosen[cache, begin[h] : begin[h + 1]] == right).all()


class Where(ctypes.Structure):
    """The struct of that name in estimate.cu, of three heads."""

    _fields_: ClassVar = [("first", ctypes.c_int * 4), ("runs", ctypes.c_int * 4), ("bits", ctypes.c_int * 3)]


@pytest.mark.parametrize(
    ("bits", "queries", "width", "tiles"), [(4, 4, 128, 1), (4, 11, 64, 3), (16, 4, 64, 2), (16, 8, 128, 1)]
)
def test_the_best_score_of_every_block_is_that_of_its_corners(bits: int, queries: int, width: int, tiles: int) -> None:
    random, sizes, caches, tokens, group, warps = np.random.default_rng(bits), (8, 32, 128), 2, 2944, 2048, 2
    counts = [tokens // size for size in sizes]
    first = np.concatenate([[0], np.cumsum(counts)]).tolist()
    runs = np.concatenate([[0], np.cumsum([-(-count // (16 * tiles)) for count in counts])]).tolist()
    where = Where(tuple(first), tuple(runs), tuple((group // size).bit_length() - 1 for size in sizes))
    q = random.standard_normal((caches, 3, queries, width)).astype(np.float16)
    groups, scored = -(-tokens // group), np.full((caches, first[-1]), np.nan, np.float32)
    fold = random.standard_normal((caches, 3, groups, 4, width)).astype(np.float16)
    code = random.integers(0, 256, (caches, first[-1], width)).astype(np.uint8)
    corners = random.standard_normal((caches, first[-1], 2, width)).astype(np.float16)
    device = OnCpu(SOURCES / "ab_sparse/estimate.cu", HEADS=3, GROUP=queries, WIDTH=width, BITS=bits, BRAIN=0,
                   WARPS=warps, RUN=tiles)  # fmt: skip
    device.launch("estimate", -(-caches * runs[-1] // warps), 32 * warps, q, code if bits == 4 else corners, fold,
                  scored, where, first[-1], groups, caches)  # fmt: skip
    for cache, head in np.ndindex(caches, 3):
        rows, x = slice(first[head], first[head + 1]), q[cache, head].astype(np.float64)
        lower, upper = corners[cache, rows].astype(np.float64).transpose(1, 0, 2)
        if bits == 4:
            steps = fold[cache, head].astype(np.float64).repeat(group // sizes[head], 0)[: counts[head]]
            lower = (code[cache, rows] & 15) * steps[:, 0] + steps[:, 1]
            upper = (code[cache, rows] >> 4) * steps[:, 2] + steps[:, 3]
        right = (np.maximum(x, 0) @ upper.T + np.minimum(x, 0) @ lower.T).max(0)
        assert np.abs(scored[cache, rows] - right).max() < (1e-3 if bits == 4 else 1e-6) * np.abs(right).max()


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
