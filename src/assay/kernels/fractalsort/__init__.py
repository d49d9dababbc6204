"""FractalSort: bins by the top bits, and of each key only what its bin does not tell.

Keys of up to 16 bits (or of a range that narrow) are only counted: 65,536 counters of one byte, with rare overflows
to a wide parent, stay near the core; the sorted array is the histogram, written out. Where the second-level cache holds
plain counters of four bytes, too, these are as fast on all keys but uniform ones. Longer keys are scattered once
into bins by their top bits; what is left of them is sorted inside the second-level cache, and whole keys come into
being when they are written. The histogram and the packed rest are an index: the i-th smallest key is found without
writing all.

The paper's core is not public. From its description: the split into bin and entry, packed entries, runs in batches,
both uses. Reconstructed here: one-byte counters with parents, the digits inside a bin, one run a bin in memory (batches
only out of core), that the sort in memory does not pack, and that it scatters block by block, each put in order in the
cache first; the radix sorts beside it scatter in the same way.

Dangana, arXiv:2605.10390.

>>> import numpy as np
>>> from assay.kernels import sort
>>> sort(np.array([2.5, -1.0, np.nan, 0.0])).tolist()
[-1.0, 0.0, 2.5, nan]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import polars as pl

from assay.kernels.engine import machine, runner
from assay.kernels.fractalsort.keys import keys_of
from assay.kernels.fractalsort.rivals import counted, lsd, vectors
from assay.kernels.fractalsort.sorting import Index, index, sort, sort_file
from assay.kernels.interface import Cost, Implementation, Kernel, Match
from assay.record import measures
from assay.record.tables import Tables
from assay.record.timing import granted
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.random import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Index", "index", "sort", "sort_file"]

evidence = Evidence.REAL
use_when = (
    "Millions of keys of 16 bits or of a narrow range are sorted, or of whole numbers and dates on several cores; or a "
    "file of keys is larger than memory; or only quantiles are wanted, and the index is enough."
)
avoid_when = (
    "There are a few thousand keys (NumPy is done first, and is what runs then), or keys compare by more than eight "
    "bytes. On one core NumPy's vector code is as fast for whole numbers of 32 and 64 bits, twice as fast for floats."
)
own_input = "assay compare kernels --sort examples/keys.npy"
references = (
    "NumPy's vectorised quicksort: Blacher, Giesen, Sanders and Wassenberg; Intel x86-simd-sort.",
    "LSD radix sort with private histograms: Satish et al., SIGMOD 2010.",
)
OURS = "fractalsort"
PLAIN = "four-byte counters"


# ------------------------------------------------------------------------------------------ the comparison


def _check(x: Any, out: Any, right: Any) -> Match:
    same = bool(np.array_equal(out, right, equal_nan=x.dtype.kind in "fmM"))
    return Match(same, 0.0 if same else 1.0, "" if same else "another order")


def cost(x: Any) -> Cost:
    """Every key read once and written once."""
    return Cost(bytes=2 * x.nbytes)


KERNEL = Kernel("sort", np.sort, _check, cost)


def _without(module: str) -> Callable[[], str]:
    return lambda: "" if find_spec(module) else f"{module} is not installed"


def _polars(x: Any) -> Any:
    return pl.Series(x).sort(nulls_last=True).to_numpy()


def _torch(x: Any) -> Any:
    import torch

    return torch.from_numpy(x).sort().values.numpy()


def contenders(threads: int, dtype: Any) -> list[Implementation]:
    """Ours and the sorts people use, each with all the threads it takes."""

    def same(x: Any) -> Any:
        return x

    ways = [
        Implementation(OURS, "numba", same, partial(sort, threads=threads), threads=threads),
        Implementation("lsd-8", "numba", same, partial(lsd, digit=8, threads=threads), threads=threads),
        Implementation("lsd-11", "numba", same, partial(lsd, digit=11, threads=threads), threads=threads),
        Implementation("numpy", "numpy", same, np.sort),
    ]
    kind = np.dtype(dtype)
    if kind.itemsize <= 2:
        ways.append(Implementation(PLAIN, "numba", same, partial(counted, threads=threads), threads=threads))
    if kind.kind in "iuf" and kind.itemsize > 1 and kind != np.float16:
        ways.append(Implementation("polars", "polars", same, _polars, threads=threads))
    if kind.kind in "if" or kind == np.uint8:  # torch sorts no wider unsigned numbers
        ways.append(Implementation("torch", "torch", same, _torch, _without("torch"), threads=threads))
    return ways


# ------------------------------------------------------------------------------------------------- the study


def drawn(kind: str, bits: int, n: int, seed: int) -> Any:
    """Keys of one distribution."""
    random, dtype = stream(seed, "fractalsort", kind, bits), np.dtype(f"u{bits // 8}")
    if kind == "uniform":
        return random.integers(0, 2**bits, n, dtype=np.uint64).astype(dtype) if bits == 64 else random.integers(
            0, 2**bits, n, dtype=dtype
        )  # fmt: skip
    if kind == "equal":
        return np.full(n, 7, dtype)
    if kind in ("sorted", "reversed"):
        rising = (np.arange(n, dtype=np.uint64) * np.uint64(max(1, (2**bits - 1) // n))).astype(dtype)
        return np.sort(rising) if kind == "sorted" else np.ascontiguousarray(np.sort(rising)[::-1])
    if kind == "zipf":
        return random.zipf(1.2, n).astype(np.uint64).astype(dtype)
    rare = random.random(n) < 0.05  # one hot bin
    return np.where(rare, random.integers(0, 2**bits, n, dtype=np.uint64), random.integers(0, 100, n)).astype(dtype)


def speed(bits: int, n: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every sort on the same uniform keys, and the index alone."""
    x, here = drawn("uniform", bits, n, seed), machine.here()
    threads = numba.get_num_threads()
    ways = contenders(threads, x.dtype)
    ways.append(
        Implementation(
            f"{OURS} index", "numba", keys_of, lambda words: Index.of(words, threads, keep=False), threads=threads
        )
    )
    right = np.sort(x)

    def check(p: Any, out: Any, right: Any) -> Match:
        return _check(p, out.materialise() if isinstance(out, Index) else out, right)

    kernel = Kernel("sort", KERNEL.oracle, check, cost)
    outcome = runner.measure(kernel, x, ways, here, rounds, right)
    bandwidth, quiet = max(here.bandwidth.values()), granted()
    return {
        r.implementation: {
            "seconds": r.run, "efficiency": x.nbytes / (r.run * bandwidth), "fraction": r.fraction,
            "right": r.match.right, "megakeys": n / r.run / 1e6, "granted": quiet,
            "vectors": vectors(bits),
        }
        for r in outcome.records
    }  # fmt: skip


DISTRIBUTIONS = ("uniform", "equal", "sorted", "reversed", "zipf", "hot")


def shapes(bits: int, n: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Ours on keys of every distribution, on one thread, in turns."""
    from assay.record.timing import interleave, median

    cases = {kind: drawn(kind, bits, n, seed) for kind in DISTRIBUTIONS}
    right = {kind: bool(np.array_equal(sort(x), np.sort(x))) for kind, x in cases.items()}
    runs = interleave({kind: partial(sort, x, threads=1) for kind, x in cases.items()}, rounds)
    return {kind: {"seconds": median(runs[kind]), "right": right[kind]} for kind in DISTRIBUTIONS}


def study(lab: Lab) -> Tables:
    """Sixteen and 32 bits beside NumPy, Polars and LSD radix sorts; and keys of every distribution."""
    some = lab.with_seeds(quick=3, full=5)
    sizes = lab.pick(quick=((16, 1 << 22), (32, 1 << 22)), full=((16, 1 << 28), (16, 1 << 29), (32, 1 << 26)))
    cases = [{"bits": bits, "n": n, "rounds": lab.pick(quick=3, full=3)} for bits, n in sizes]
    shaped = [{"bits": bits, "n": lab.pick(quick=1 << 20, full=1 << 24), "rounds": 3} for bits in (16, 32)]
    return {
        "speed": some.run(speed, cases, per="method", alone=True),
        "shapes": some.run(shapes, shaped, per="keys", alone=True),
    }


def _times(bits: int, *rivals: str) -> measures.Measure:
    """Seconds of the best of some rivals over ours, at the largest size."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "speed", "bits": bits})
        rows = rows.filter(pl.col("n") == pl.col("n").max())
        runner.quiet_enough(rows["granted"].to_list())
        if rivals == ("numpy",) and not rows["vectors"].all():
            raise NotMeasured("NumPy sorts such keys without vector code on this processor: no rival worth a claim")
        others = rows.filter(pl.col("method").is_in(rivals) if rivals else ~pl.col("method").str.starts_with(OURS))
        best = others.group_by("method").agg(pl.col("seconds").mean()).sort("seconds")["method"][0]
        return measures.ratio("seconds", of={"method": best}, to={"method": OURS})(rows)

    return measure


def _always_right(table: pl.DataFrame) -> Estimate:
    ours = table.filter(pl.col("method").str.starts_with(OURS) | pl.col("keys").is_not_null())
    return measures.counted(float(ours["right"].mean()), len(ours))  # type: ignore[arg-type]


def _spread(table: pl.DataFrame) -> Estimate:
    """The slowest distribution over uniform keys, of 32 bits."""
    rows = measures.rows(table, {"experiment": "shapes", "bits": 32})
    slowest = rows.group_by("keys").agg(pl.col("seconds").mean()).sort("seconds")["keys"][-1]
    return measures.ratio("seconds", of={"keys": slowest}, to={"keys": "uniform"})(rows)


claims = [
    Claim("cpu", _times(16)),
    Claim("gpu", measures.not_here("it compares with a GPU's share of its bandwidth: needs a GPU sort's figures")),
    Claim("fpga", measures.not_here("needs an FPGA")),
    Claim(
        "numpy-16", _times(16, "numpy"), asks="NumPy takes longer to sort 16-bit keys.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "numpy-32", _times(32, "numpy"), asks="NumPy's vectorised sort takes longer on 32-bit keys than ours on all "
        "cores.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "lsd-32", _times(32, "lsd-8", "lsd-11"), asks="The better of radix sorts with three and with four passes takes "
        "longer on 32-bit keys, with as many threads.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "counters", _times(16, PLAIN), asks="Counting 16-bit keys in plain counters of four bytes takes longer than in "
        "one-byte counters with parents.", kind=Kind.RATIO, toward="up",
    ),
    Claim("right", _always_right, asks="Every sorted array is NumPy's.", kind=Kind.EVERY),
    Claim(
        "steady", _spread, asks="The slowest distribution takes at most 2 times as long as uniform keys, 32 bits.",
        kind=Kind.AT_MOST, value=2.0, unit="ratio",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Million keys a second of every sort."""
    import altair as alt

    shown = table.filter(pl.col("experiment") == "speed")
    shown = shown.with_columns(case=pl.format("{} bits, {} keys", pl.col("bits"), pl.col("n")))
    means = shown.group_by("case", "method", maintain_order=True).agg(pl.col("megakeys").mean())
    chart: alt.Chart = (
        alt.Chart(means, title=alt.Title("Sorting", subtitle="Mean over seeds of the median round"))
        .mark_point(filled=True, size=90)
        .encode(
            x=alt.X("megakeys:Q", scale=alt.Scale(type="log"), title="million keys a second (log)"),
            y=alt.Y("method:N", sort="-x", title=None),
            color=alt.Color("case:N", title=None),
        )
    )
    return chart
