"""MERBIT: a sparse matrix cut into equal shares of nonzeros plus row ends, with row ends as bits.

Rows of a graph differ by factors of a thousand, so sharing out rows leaves some threads waiting. On the merge path
nonzeros and row ends are counted together, and every thread gets the same number of both. Where rows end is one bit an
item, prepared once, so row pointers drop out of the loop that PageRank or a Krylov method repeats.

The paper's abstract does not name its three extra optimisations, nor the layout of its bits. Reconstructed here: dense
bits; a fast path for pieces of one long row; rows staged and written side by side; and, as options on the GPU, columns
numbered by popularity, x in panels, or sweeps over x. The paper's claims are answered by the tiles alone. Columns and
values stay where the matrix has them: with a lane's nonzeros laid out apart, as CSR5 does, neighbours of a row no
longer share a sector of x; that was 7 % slower on an H200.

A GPU waits for reads of x at random places, 32 bytes each for the 4 or 8 that are wanted. In panels (`panels.cu`, our
own addition) tiles are taken together as long as what they want of x, none twice, fits into shared memory; nonzeros
name it there in 16 bits, half of a column's number. Panels gather it, or a first kernel reads x in strips, as it lies,
and hands it out. In sweeps (`sweep.cu`, ours too) the sums of a group of rows lie there instead, and nonzeros come by
their columns: neighbours share what they read of x. Which way is fastest is tried on each matrix when it is prepared.

arXiv:2605.07391.

>>> import numpy as np, scipy.sparse
>>> from assay.kernels import spmv
>>> a = spmv(scipy.sparse.csr_array(np.array([[0.0, 2.0], [1.0, 3.0]])))  # prepared once
>>> (a @ np.array([1.0, 1.0])).tolist()
[2.0, 4.0]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import polars as pl
import scipy.sparse

from assay.kernels.engine import elsewhere, machine, runner
from assay.kernels.engine.cuda import missing
from assay.kernels.interface import Cost, Implementation, Kernel, Match
from assay.kernels.merbit import matrices
from assay.kernels.merbit.spmv import Spmv, by_merge, by_rows, multiply, spmv, walk
from assay.record import measures
from assay.record.errors import BadInput
from assay.record.intervals import bootstrap
from assay.record.tables import Tables
from assay.record.timing import granted
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Spmv", "pagerank", "spmv"]

evidence = Evidence.REAL
use_when = "The same irregular matrix is multiplied many times: ranks, eigenvectors, linear systems on graphs."
avoid_when = (
    "On a GPU of the H200's kind for less than some 1,700 products in single and 2,900 in double precision, which "
    "trying every way takes to pay. Or rows are alike, or the product is wanted once."
)
own_input = "assay compare kernels --matrix examples/matrix.mtx"
references = (
    "Merge path: Merrill and Garland, SC 2016. CSR5: Liu and Vinter, ICS 2015. CSR-vector: Bell and Garland, SC 2009.",
    "cuSPARSE, NVIDIA's library, at the better of its algorithms.",
)
OURS = "merbit"
TILES = tuple(f"merbit {tile}" for tile in ("5x4", "7x4", "9x4", "15x4", "7x8"))  # the paper's, by their sizes
WAYS = (
    "merbit tuned"  # the fastest of tiles, panels and sweeps, as tried beforehand, apart from the rounds that are told
)

# ------------------------------------------------------------------------------------------ the comparison

Pair = tuple[Any, Any]  # a matrix in CSR form and a vector


def _check(p: Pair, out: Any, right: Any) -> Match:
    """Within 4 eps times the row's length times the sum of magnitudes, row by row."""
    a, x = p
    sizes = np.maximum(np.diff(a.indptr), 1)
    allowed = 4 * np.finfo(a.dtype).eps * sizes * (abs(a).astype(np.float64) @ np.abs(x.astype(np.float64)))
    off = np.abs(out - right)
    return Match(bool((off <= allowed + 1e-300).all()), float(off.max(initial=0.0)))


def cost(p: Pair) -> Cost:
    """Columns and values, row pointers, both vectors; a gather of x for each nonzero."""
    a, x = p
    moved = a.data.nbytes + 4 * a.nnz + 4 * a.shape[0] + x.nbytes + a.shape[0] * a.dtype.itemsize
    return Cost(2.0 * a.nnz, moved, 0.0, a.nnz, "f32" if a.dtype == np.float32 else "f64")


KERNEL = Kernel("spmv", lambda p: p[0].astype(np.float64) @ p[1].astype(np.float64), _check, cost)


def _merge(p: Pair, threads: int) -> Any:
    a, x = p
    w = walk(a, threads)
    return a.indptr, a.indices.astype(np.uint32), a.data, x, w.cuts, w.row


def _run_merge(state: Any) -> Any:
    start, col, val, x, cuts, rows = state
    y, carry = np.zeros(len(start) - 1, val.dtype), np.empty(len(cuts) - 1, val.dtype)
    by_merge(start, col, val, x, y, cuts, rows, carry)
    for t in range(len(carry) - 1):
        if rows[t + 1] < len(y):
            y[rows[t + 1]] += carry[t]
    return y


def _run_rows(state: Any) -> Any:
    a, col, x = state
    y = np.empty(a.shape[0], a.dtype)
    by_rows(a.indptr, col, a.data, x, y)
    return y


def contenders(threads: int) -> list[Implementation]:
    """Ours, SciPy, rows shared out, and the merge path without bits; ours on the GPU where there is one."""
    return [
        Implementation(OURS, "numba", lambda p: (walk(p[0], threads), p[1]), lambda s: multiply(*s), threads=threads),
        Implementation("scipy", "scipy", lambda p: p, lambda p: p[0] @ p[1]),
        Implementation(
            "rows", "numba", lambda p: (p[0], p[0].indices.astype(np.uint32), p[1]), _run_rows, threads=threads
        ),
        Implementation("merge-path", "numba", lambda p: _merge(p, threads), _run_merge, threads=threads),
        Implementation(
            "merbit on GPU, with copies", "cuda", lambda p: (spmv(p[0], where="gpu", products=10_000), p[1]),
            lambda s: s[0] @ s[1], missing,
        ),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- PageRank


def pagerank(
    links: Any, product: Callable[[Any], Callable[[Any], Any]] | None = None, damping: float = 0.85, close: float = 1e-9
) -> tuple[Any, int]:
    """Ranks of the nodes of a graph, links[i, j] nonzero where j links to i, and how many products it took.

    >>> ranks, products = pagerank(scipy.sparse.csr_array(np.array([[0, 1], [1, 0]])))
    >>> ranks.tolist(), products
    ([0.5, 0.5], 1)
    """
    sparse = bool(scipy.sparse.issparse(links))
    if not sparse or len(links.shape) != 2 or links.shape[0] != links.shape[1] or not links.shape[0]:
        what = f"shape {links.shape}" if hasattr(links, "shape") else type(links).__name__
        raise BadInput(f"links: a square sparse matrix of SciPy's expected, with a node at least, not {what}")
    if not 0 <= damping < 1:
        raise BadInput(f"damping {damping} is no share below 1")
    links = scipy.sparse.csr_array(links, copy=True)
    links.sum_duplicates()
    links.eliminate_zeros()
    n = links.shape[0]
    out = np.bincount(links.indices, minlength=n)
    scaled = scipy.sparse.csr_array((1.0 / out[links.indices], links.indices, links.indptr), links.shape)
    times = product(scaled) if product else spmv(scaled).__matmul__
    lost, rank = out == 0, np.full(n, 1 / n)
    count, moved = 0, np.inf
    while moved >= close and count < 1000:
        count += 1
        fresh = damping * (times(rank) + rank[lost].sum() / n) + (1 - damping) / n
        moved = np.abs(fresh - rank).sum()
        rank = fresh
    return rank, count


# ------------------------------------------------------------------------------------------------- the study

QUICK = ("rmat-20-16-0.57", "zipf-1.0", "dense-rows-short", "web-near")


def drawn(name: str, size: float, dtype: str, seed: int) -> Pair:
    """A matrix of the study with values, and a vector."""
    made, random = matrices.irregular(np, size, seed)[name](), stream(seed, "merbit", name)
    values = (random.random(len(made.col)) - 0.5).astype(dtype)
    return scipy.sparse.csr_array((values, made.col, made.start), made.shape), (
        random.random(made.shape[1]) - 0.5
    ).astype(dtype)


def products(matrix: str, size: float, dtype: str, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every way on one matrix: time, share of the limit, and from when on preparing has paid against SciPy."""
    pair = drawn(matrix, size, dtype, seed)
    here = machine.here()
    outcome = runner.measure(KERNEL, pair, contenders(numba.get_num_threads()), here, rounds)
    peer, quiet = outcome["scipy"], granted()
    return {
        r.implementation: {
            "seconds": r.run, "prepare": r.prepare, "fraction": r.fraction, "right": r.match.right,
            "break_even": None if math.isinf(paid := runner.break_even(r, peer)) else paid, "nonzeros": pair[0].nnz,
            "granted": quiet,
        }
        for r in outcome.records
    }  # fmt: skip


def ranks(matrix: str, size: float, seed: int) -> dict[str, dict[str, Any]]:
    """PageRank to its end, preparation included."""
    a = drawn(matrix, size, "float64", seed)[0]
    ways: dict[str, Any] = {OURS: None, "scipy": lambda scaled: scaled.__matmul__}
    found: dict[str, dict[str, Any]] = {}
    for name, way in ways.items():
        pagerank(a, way)
        begin = time.perf_counter()
        rank, count = pagerank(a, way)
        found[name] = {"seconds": time.perf_counter() - begin, "products": count, "rank": rank}
    off = float(np.abs(found[OURS].pop("rank") - found["scipy"].pop("rank")).sum())
    return {name: row | {"off": off} for name, row in found.items()}


def study(lab: Lab) -> Tables:
    """Irregular matrices on this machine's cores; PageRank to its end. What the H200 did is on record."""
    some = lab.with_seeds(quick=2, full=3)
    names = lab.pick(quick=QUICK, full=tuple(matrices.irregular(np)))
    size, rounds = lab.pick(quick=1 / 64, full=1 / 4), lab.pick(quick=5, full=5)
    cases = [
        {"matrix": name, "size": size, "dtype": kind, "rounds": rounds}
        for name in names
        for kind in ("float32", "float64")
    ]
    return {
        "cpu": some.run(products, cases, per="method", alone=True),
        "pagerank": some.run(ranks, [{"matrix": "web-near", "size": size}], per="method", alone=True),
    }


# ------------------------------------------------------------------------------------------------ the claims


@cache
def on_h200(dtype: str) -> dict[str, dict[str, float]]:
    """Median seconds of every method on every matrix, as measured on an H200."""
    found: dict[str, dict[str, float]] = {}
    for row in elsewhere.rows("h200", "merbit"):
        if row["dtype"] == dtype:
            found.setdefault(row["matrix"], {})[row["method"]] = row["seconds"]
    return found


def _geometric(ratios: list[float]) -> Estimate:
    found = bootstrap(np.log(ratios))
    return Estimate(float(np.exp(found.value)), float(np.exp(found.low)), float(np.exp(found.high)), found.n)


def there(
    rivals: tuple[str, ...], of: tuple[str, ...] = TILES, dtypes: tuple[str, ...] = ("float32", "float64")
) -> measures.Measure:
    """The geometric mean over matrices of the best rival's time over the best of `of`; measured on an H200."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = [row for dtype in dtypes for row in on_h200(dtype).values()]
        return _geometric([min(row[one] for one in rivals) / min(row[one] for one in of) for row in rows])

    return measure


def here(rival: str) -> measures.Measure:
    """The same on this machine's cores, over matrices, dtypes and seeds."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "cpu"})
        runner.quiet_enough(rows["granted"].to_list())
        both = rows.filter(pl.col("method") == rival).join(
            rows.filter(pl.col("method") == OURS), on=["matrix", "dtype", "seed"], suffix="_ours"
        )
        return _geometric((both["seconds"] / both["seconds_ours"]).to_list())

    return measure


def _right(table: pl.DataFrame) -> Estimate:
    rows = table.filter((pl.col("experiment") == "cpu") & (pl.col("method") == OURS))
    there_wrong = [row["wrong"] == 0 for row in elsewhere.rows("h200", "merbit") if row["method"].startswith(OURS)]
    held = [*rows["right"].to_list(), *there_wrong]
    return measures.counted(sum(held) / len(held), len(held))


CUSPARSE = tuple(f"cusparse {name}" for name in ("coo1", "coo2", "csr1", "csr2"))
claims = [
    Claim("single", there(CUSPARSE[:2], dtypes=("float32",))),
    Claim("double", there(CUSPARSE[:2], dtypes=("float64",))),
    Claim("academic", there(("csr-vector", "merge-path"))),
    Claim(
        "vendor", there(CUSPARSE), asks="On an H200 the best of cuSPARSE's four algorithms takes longer than the "
        "paper's tiles, over 30 matrices.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "panels-sweeps", there(CUSPARSE, of=(WAYS,)), asks="On an H200 the best of cuSPARSE's four algorithms takes "
        "longer than the fastest of tiles, panels and sweeps, of which the latter two are ours and not the paper's, "
        "over 30 matrices.", kind=Kind.RATIO, toward="up",
    ),
    Claim("scipy", here("scipy"), asks="SciPy takes longer on this machine's cores.", kind=Kind.RATIO, toward="up"),
    Claim("right", _right, asks="Every product is within 4 eps times the row's length.", kind=Kind.EVERY),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """On an H200: how much longer the best of cuSPARSE takes than the paper's tiles and than all ways, by matrix."""
    import altair as alt

    rows = [
        {"matrix": name, "ratio": min(row[m] for m in CUSPARSE) / min(row[m] for m in of), "way": way}
        for name, row in on_h200("float32").items()
        for way, of in (("the paper's tiles", TILES), ("with our panels and sweeps", (WAYS,)))
    ]
    title = alt.Title("cuSPARSE's best on an H200, over MERBIT", subtitle="single precision; 1: as fast")
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame(rows), title=title)
        .mark_point(filled=True)
        .encode(
            x=alt.X("ratio:Q", scale=alt.Scale(zero=False)), y=alt.Y("matrix:N", sort="-x", title=None), color="way:N"
        )
    )
    return chart
