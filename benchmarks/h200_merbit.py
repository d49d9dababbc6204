"""Sparse products on one GPU: every way of MERBIT beside cuSPARSE's four, on 30 irregular matrices; PageRank.

    python3 benchmarks/h200_merbit.py                   # NVIDIA GPU with NumPy and CuPy; no assay
    MATRICES=web-far,social DTYPES=float64 python3 benchmarks/h200_merbit.py merbit
    python3 benchmarks/h200_merbit.py spmv              # what users call, beside SciPy (needs SciPy and Numba)

Writes h200_merbit.jsonl to $OUT, or here.
"""

# mypy: ignore-errors
# ruff: noqa: B007, B023, D102, E731, RUF012

from __future__ import annotations

import ctypes
import os
import re
import time
import traceback
from pathlib import Path

import cupy as cp
import numpy as np

import h200_common as common
from h200_common import timed

common.packages("assay.kernels.merbit")

from assay.kernels.merbit import gpu as ways  # noqa: E402
from assay.kernels.merbit import matrices  # noqa: E402

tell = None


class CuSparse:
    """cuSPARSE's SpMV by its C interface: every algorithm, analysed beforehand where the library can."""

    ALGORITHMS = {"coo1": 1, "csr1": 2, "csr2": 3, "coo2": 4}

    def __init__(self):
        import cupyx.scipy.sparse as sparse

        sparse.identity(8, dtype="f", format="csr") @ cp.ones(8, cp.float32)  # loads the library
        maps = Path("/proc/self/maps").read_text()
        path = re.search(r"\S*libcusparse\.so\S*", maps).group(0)
        self.lib, self.handle = ctypes.CDLL(path), ctypes.c_void_p()
        self.ok(self.lib.cusparseCreate(ctypes.byref(self.handle)))
        version = ctypes.c_int()
        self.lib.cusparseGetVersion(self.handle, ctypes.byref(version))
        self.version, self.keep = version.value, []

    def ok(self, status):
        if status:
            raise RuntimeError(f"cusparse status {status}")

    def product(self, name, start, row, col, val, x, y, shape):
        """A function that computes y = A x by one algorithm; how long its analysis took is its `prepare`."""
        lib, size, kind = self.lib, ctypes.c_size_t(), 0 if val.dtype == np.float32 else 1
        number = ctypes.c_float if kind == 0 else ctypes.c_double
        one, zero, matrix, vec_x, vec_y = number(1), number(0), *(ctypes.c_void_p() for _ in range(3))
        pointer = lambda array: ctypes.c_void_p(array.data.ptr)
        sizes = [ctypes.c_int64(v) for v in (*shape, len(col))]
        if name.startswith("csr"):
            self.ok(
                lib.cusparseCreateCsr(
                    ctypes.byref(matrix), *sizes, pointer(start), pointer(col), pointer(val), 2, 2, 0, kind
                )
            )
        else:
            self.ok(
                lib.cusparseCreateCoo(
                    ctypes.byref(matrix), *sizes, pointer(row), pointer(col), pointer(val), 2, 0, kind
                )
            )
        self.ok(lib.cusparseCreateDnVec(ctypes.byref(vec_x), ctypes.c_int64(len(x)), pointer(x), kind))
        self.ok(lib.cusparseCreateDnVec(ctypes.byref(vec_y), ctypes.c_int64(len(y)), pointer(y), kind))
        plain = (
            self.handle,
            0,
            ctypes.byref(one),
            matrix,
            vec_x,
            ctypes.byref(zero),
            vec_y,
            kind,
            self.ALGORITHMS[name],
        )
        self.ok(lib.cusparseSpMV_bufferSize(*plain, ctypes.byref(size)))
        buffer = cp.empty(max(1, size.value), cp.uint8)
        cp.cuda.Device().synchronize()
        begin = time.perf_counter()
        if hasattr(lib, "cusparseSpMV_preprocess"):
            self.ok(lib.cusparseSpMV_preprocess(*plain, pointer(buffer)))
        cp.cuda.Device().synchronize()
        prepare = time.perf_counter() - begin
        self.keep = [*self.keep[-40:], (one, zero, buffer)]
        run = lambda: lib.cusparseSpMV(*plain, pointer(buffer))
        run.prepare = prepare
        self.ok(run())
        return run


def rivals(device, a, x, y):
    """Published methods in CUDA of our own: CSR-vector at the group that fits the mean row, and plain merge path."""
    value, rows, nonzeros = ways.NAMES[a.val.dtype.itemsize], a.shape[0], len(a.col)
    code = device.make("spmv.cu", VALUE=value, ITEMS=7, WARPS=4)
    mean = nonzeros / max(1, rows)
    group = next((g for g in (2, 4, 8, 16) if mean <= 2 * g), 32)
    warps = -(-(rows + nonzeros) // (32 * 7))
    carry, carry_row = cp.empty(warps, a.val.dtype), cp.empty(warps + 1, cp.int32)
    numbers, matrix = (np.int32(warps), np.int32(rows)), (a.start, a.col, a.val)

    def run_vector():
        code.launch("csr_vector", -(-rows * group // 256), 256, *matrix, x, y, np.int32(rows), np.int32(group))

    def run_merge():
        code.launch("merge_path", -(-warps // 4), 128, *matrix, x, y, carry, carry_row, *numbers, np.int64(nonzeros))
        code.launch("merbit_carries", -(-warps // 256), 256, carry_row, carry, y, *numbers)

    return {"csr-vector": run_vector, "merge-path": run_merge}


def rows_of(a):
    """The row of each nonzero."""
    return cp.searchsorted(a.start[1:], cp.arange(len(a.col), dtype=cp.int32), side="right").astype(cp.int32)


class Reference:
    """The product in double precision, and how far off each row may be: 4 eps of the sum of magnitudes a nonzero."""

    def __init__(self, library, a, row, x):
        rows, val, x = a.shape[0], a.val.astype(cp.float64), x.astype(cp.float64)
        self.right, magnitude = cp.empty(rows), cp.empty(rows)
        library.product("csr1", a.start, row, a.col, val, x, self.right, a.shape)()
        library.product("csr1", a.start, row, a.col, cp.abs(val), cp.abs(x), magnitude, a.shape)()
        self.bound = 4 * np.finfo(a.val.dtype).eps * cp.maximum(cp.diff(a.start), 1) * magnitude + 1e-300

    def wrong(self, run, y):
        """How many rows are too far off."""
        y.fill(cp.nan)
        run()
        return int((~(cp.abs(y - self.right) <= self.bound)).sum())


def our_ways(device, a):
    """Every way of ours, and whichever is fastest when tried beforehand."""
    made = {f"merbit {i}x{w}": ways.tiled(device, a, i, w) for i, w in ways.CONFIGURATIONS}
    made |= {f"merbit {order}": ways.tiled(device, a, *ways.BEST, order) for order in ("popular", "sorted")}
    for name, setting in ways.SETTINGS.items():
        made[f"merbit panels {name}"] = ways.in_panels(device, a, setting[a.val.dtype.itemsize])
    made |= {f"merbit {way.name}": way for way in (ways.swept(device, a, dealt) for dealt in (False, True))}
    return made | {"merbit tuned": ways.fastest(device, a)}


def one_matrix(device, library, name, drawn, dtype):
    random = cp.random.RandomState(1)
    val = (random.random_sample(len(drawn.col)) - 0.5).astype(dtype)
    a = ways.Matrix(drawn.start, drawn.col, val, drawn.shape)
    rows, cols = a.shape
    x, y, row = (random.random_sample(cols) - 0.5).astype(dtype), cp.empty(rows, dtype), rows_of(a)
    reference, mine = Reference(library, a, row, x), our_ways(device, a)
    contenders = {label: (lambda way=way: way(x, y)) for label, way in mine.items()}
    prepare = {label: way.prepare for label, way in mine.items()}
    for algorithm in CuSparse.ALGORITHMS:
        try:
            run = library.product(algorithm, a.start, row, a.col, val, x, y, a.shape)
            contenders[f"cusparse {algorithm}"], prepare[f"cusparse {algorithm}"] = run, run.prepare
        except Exception as error:
            tell("merbit-error", matrix=name, algorithm=algorithm, error=str(error)[:200])
    contenders |= rivals(device, a, x, y)
    wrong = {label: reference.wrong(run, y) for label, run in contenders.items()}
    longest = int(cp.diff(a.start).max())
    for label, values in timed(contenders).items():
        way = mine.get(label)
        chosen = "" if way is None else f"{way.name} {way.detail}".strip()
        tell("merbit", matrix=name, dtype=np.dtype(dtype).name, rows=rows, cols=cols, nonzeros=len(a.col),
             longest=longest, method=label, seconds=values, wrong=wrong[label], prepare=prepare.get(label, 0.0),
             chosen=chosen)  # fmt: skip


def merbit():
    """Every way and rival on 30 irregular matrices; MATRICES=a,b and DTYPES=float64 for some."""
    device, library = ways.gpu(), CuSparse()
    tell("cusparse", version=library.version)
    some, dtypes = os.environ.get("MATRICES", ""), os.environ.get("DTYPES", "float32,float64").split(",")
    for name, make in matrices.irregular(cp).items():
        if some and name not in some.split(","):
            continue
        try:
            a = make()
            for dtype in dtypes:
                one_matrix(device, library, name, a, np.dtype(dtype))
                cp.get_default_memory_pool().free_all_blocks()
        except Exception as error:
            tell("merbit-error", matrix=name, error=traceback.format_exc()[-400:] + str(error)[:100])


def pagerank():
    """Until the ranks move by less than 1e-6 in sum, layout included: cuSPARSE, MERBIT, and MERBIT without values."""
    device, library = ways.gpu(), CuSparse()
    update = cp.ElementwiseKernel(
        "float32 y, float32 lost, float32 n", "float32 r", "r = 0.85f * (y + lost / n) + 0.15f / n", "damp"
    )
    made = matrices.irregular(cp)
    for name in ("rmat-22-16-0.57", "rmat-20-64-0.57", "zipf-hubs", "web-near", "social"):
        a = made[name]()
        n = a.shape[0]
        out = cp.bincount(a.col, minlength=n).astype(cp.float32)  # A[i, j]: a link from j to i
        scale = cp.where(out > 0, 1 / cp.maximum(out, 1), 0).astype(cp.float32)
        val, dangling = scale[a.col], (out == 0).astype(cp.float32)
        row = rows_of(a)
        x, y = cp.empty(n, cp.float32), cp.empty(n, cp.float32)

        matrix = ways.Matrix(a.start, a.col, val, a.shape)

        def prepared(method):
            if method.startswith("merbit"):
                order = "popular" if "popular" in method else "as it is"
                way = ways.tiled(device, matrix, *ways.BEST, order, pattern="no values" in method)
                return lambda: way(x, y)
            return library.product(method.split()[1], a.start, row, a.col, val, x, y, a.shape)

        def ranks(method):
            run, r = prepared(method), cp.full(n, 1 / n, cp.float32)
            for iteration in range(1, 201):
                x[:] = r * scale if "no values" in method else r
                run()
                new = update(y, (r * dangling).sum(), np.float32(n))
                moved = float(cp.abs(new - r).sum())
                r = new
                if moved < 1e-6:
                    break
            return r, iteration

        methods = [
            "merbit",
            "merbit, no values",
            "merbit popular, no values",
            "cusparse csr1",
            "cusparse csr2",
            "cusparse coo1",
            "cusparse coo2",
        ]
        first = {method: ranks(method) for method in methods}
        seconds = {method: [] for method in methods}
        for turn in range(5):
            for method in methods[turn % 7 :] + methods[: turn % 7]:
                cp.cuda.Device().synchronize()
                begin = time.perf_counter()
                ranks(method)
                cp.cuda.Device().synchronize()
                seconds[method].append(time.perf_counter() - begin)
        reference = first["cusparse csr1"][0]
        for method in methods:
            tell(
                "pagerank",
                matrix=name,
                method=method,
                iterations=first[method][1],
                seconds=seconds[method],
                nonzeros=len(a.col),
                off=float(cp.abs(first[method][0] - reference).sum()),
            )
        cp.get_default_memory_pool().free_all_blocks()


def spmv():
    """`spmv(csr, where="gpu") @ x` with vectors of NumPy and of CuPy beside SciPy's product in double precision."""
    import scipy.sparse

    common.packages("assay.sim")
    from assay.kernels.merbit.spmv import spmv as prepared

    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for rows, cols, count in ((1, 1, 1), (1000, 700, 5000), (5000, 5000, 0), (200_000, 100_000, 3_000_000)):
            row = (random.pareto(1.2, count) * rows / 50).astype(np.int64) % rows
            entries = random.standard_normal(count).astype(dtype), (row, random.integers(0, cols, count))
            a, x = scipy.sparse.csr_array(entries, shape=(rows, cols)), random.standard_normal(cols).astype(dtype)
            right, size = a.astype(np.float64) @ x.astype(np.float64), abs(a.astype(np.float64)) @ abs(x.astype(float))
            bound = 4 * np.finfo(dtype).eps * np.maximum(np.diff(a.indptr), 1) * size + 1e-300
            for products in (1, 500, 5000):
                made = prepared(a, where="gpu", products=products)
                given = made @ x, (made @ cp.asarray(x)).get()
                wrong = [int((~(np.abs(y - right) <= bound)).sum()) for y in given]
                tell("merbit-check", rows=rows, cols=cols, nonzeros=a.nnz, dtype=np.dtype(dtype).name,
                     products=products, wrong=wrong, why=made.why)  # fmt: skip


PARTS = {"merbit": merbit, "pagerank": pagerank, "spmv": spmv}

if __name__ == "__main__":
    tell = common.Answers("h200_merbit")
    tell.run(common.asked(PARTS))
