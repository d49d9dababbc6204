"""Division of big integers by a whole shifted inverse: Newton on whole numbers, one product, a last correction.

The quotient u / v is u times B^h / v, moved down again; B^h / v comes from Newton's iteration, entirely in integers,
with lengths that double from step to step, so that a division costs a few full-length products and no more. On a GPU a
block takes a pair, by classical products in registers where they are short and by transforms in shared memory where
they are long; on a CPU a thread does. Of a step's first product only the limbs that do not cancel are found: modulo
B^N + 1 by the transform, and a few low limbs directly. The quotient is off by one at most before it is corrected; that
is proven, and checked every time.

arXiv:2606.06386; Watt, arXiv:2304.01753 (whole shifted inverses).

>>> from assay.kernels.bigint_div import divide  # `assay.kernels.divide` is the same
>>> divide(2**40000 - 1, 2**20000 + 1) == (2**20000 - 1, 0)
True
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.kernels.bigint_div import layout, pairs
from assay.kernels.bigint_div.dividing import (
    DividedByZero,
    divide,
    divide_limbs,
    gcd,
    mulmod,
    multiply,
    multiply_limbs,
    on_cpu,
)
from assay.kernels.engine import elsewhere
from assay.record import intervals, measures
from assay.record.tables import Tables
from assay.record.timing import interleave, median
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["DividedByZero", "divide", "divide_limbs", "gcd", "mulmod", "multiply"]

evidence = Evidence.REAL
use_when = "Thousands of quotients of 2^13 to 2^18 bits are wanted and a GPU is at hand, or no GMP is."
avoid_when = "Few or short numbers; or a processor with GMP, four times as fast a core at 2^15 bits, twice at 2^18."
own_input = "assay compare kernels --divide examples/pairs.csv"
references = (
    "Watt, arXiv:2304.01753: whole shifted inverses by Newton's iteration without fractions.",
    "Brent, Percival and Zimmermann, Math. Comp. 2007: rounding errors of transforms, and when products are exact.",
)
BITS = (1 << 15, 1 << 16, 1 << 17, 1 << 18)  # the paper's sizes


# ------------------------------------------------------------------------------------------------ the study


def exact(kind: str, bits: int, count: int, seed: int) -> dict[str, Any]:
    """Random or adversarial pairs, beside Python's own division; and by how much quotients were off before."""
    from assay.sim.random import stream

    make = {"random": pairs.anyhow, "adversarial": pairs.adversarial}[kind]
    made = make(stream(seed, "bigint-div", kind, bits), bits, count)
    u, v = zip(*made, strict=True)
    found = list(zip(*divide(u, v, "cpu"), strict=True))
    same = sum(got == divmod(a, b) for got, (a, b) in zip(found, made, strict=True))
    halves = [pair for pair in made if pair[1] > 1][:count]
    raw = on_cpu(layout.limbs_of([a for a, _ in halves]), layout.limbs_of([b for _, b in halves]))
    off = np.bincount(1 + np.where(raw.fixes[:, 0] < 0, raw.fixes[:, 0], raw.fixes[:, 1]), minlength=3)
    return {"pairs": len(made), "same": same, "too_large": int(off[0]), "as_is": int(off[1]), "too_small": int(off[2])}


def counted(counts: Any, bits: int) -> float:
    """Full-length products that a division of `bits` bits by half as many was made of, by limbs of transforms and
    products of limbs; full length is that of quotient times divisor."""
    half = bits // 64
    return float(counts[1] / layout.transform(2 * half + 1) + counts[2] / half**2)


def cost(bits: int, count: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """A batch divided on one thread, in processor time, beside a full-length product, Python's division and GMP's."""
    import numba

    from assay.sim.random import stream

    made = pairs.halves(stream(seed, "bigint-div", "cost", bits), bits, count)
    us, vs = [a for a, _ in made], [b for _, b in made]
    u, v = layout.limbs_of(us), layout.limbs_of(vs)
    ways: dict[str, Any] = {
        "division": lambda: on_cpu(u, v),
        "product": lambda: multiply_limbs(v, v),
        "python": lambda: [divmod(a, b) for a, b in made],
    }
    if find_spec("gmpy2"):
        import gmpy2

        great = [(gmpy2.mpz(a), gmpy2.mpz(b)) for a, b in made]
        ways["gmp"] = lambda: [gmpy2.f_divmod(a, b) for a, b in great]
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        found = on_cpu(u, v)
        multiply_limbs(v, v)
        seconds = interleave(ways, rounds, time.process_time)
    finally:
        numba.set_num_threads(threads)
    same = list(zip(layout.numbers_of(found.q), layout.numbers_of(found.r), strict=True)) == [
        divmod(a, b) for a, b in made
    ]
    rows = {name: {"seconds": median(taken) / count, "multiplications": 1.0} for name, taken in seconds.items()}
    rows["division"]["multiplications"] = counted(found.counts.mean(0), bits)
    times = rows["division"]["seconds"] / rows["product"]["seconds"]
    rows["division"] |= {"same": same, "within": times <= 7.5 and rows["division"]["multiplications"] <= 7.5}
    return {name: {"same": None, "within": None} | row for name, row in rows.items()}


def study(lab: Lab) -> Tables:
    """Exactness on random and adversarial pairs; cost in full-length products. The H200's times are on record."""
    some = lab.with_seeds(quick=2, full=5)
    count = lab.pick(quick=400, full=10_000)
    checks = [{"kind": kind, "bits": bits, "count": count // (1 + (bits > 2048) * 7)}
              for kind in ("random", "adversarial") for bits in (256, 2048, 1 << 15)]  # fmt: skip
    batch = [
        {"bits": bits, "count": lab.pick(quick=6, full=64), "rounds": lab.pick(quick=5, full=15)} for bits in BITS[:3]
    ]
    return {
        "exact": some.run(exact, checks),
        "cost": some.run(cost, batch, per="method", alone=True),
    }


# ----------------------------------------------------------------------------------------------- the claims


def _h200(method: str) -> dict[int, dict[str, Any]]:
    """What was measured on the GPU, by bits of the dividend; the fastest setting of each."""
    found: dict[int, dict[str, Any]] = {}
    for row in elsewhere.rows("h200", "bigint-div"):
        if row["method"] == method and (row["bits"] not in found or row["seconds"] < found[row["bits"]]["seconds"]):
            found[row["bits"]] = row
    if not found:
        raise NotMeasured("measured on an H200 only, and no rows of one are stored")
    return found


def _over(top: dict[str, Any], below: dict[str, Any]) -> Estimate:
    """A ratio of two medians a pair, with the extremes of the rounds as its interval."""
    a, b = ([row[name] / row["pairs"] for name in ("seconds", "low", "high")] for row in (top, below))
    return Estimate(a[0] / b[0], a[1] / b[2], a[2] / b[1], int(top["rounds"]))


def _multiplications(table: pl.DataFrame) -> Estimate:
    """The most that any size takes."""
    division, product = _h200("division"), _h200("product")
    return max((_over(division[bits], product[bits]) for bits in division if bits in product), key=lambda e: e.value)


def _sizes(table: pl.DataFrame) -> Estimate:
    rows = _h200("check")
    held = [bits in rows and rows[bits]["right"] == rows[bits]["pairs"] for bits in BITS]
    return intervals.clopper_pearson(sum(held), len(held))


def _optimum(table: pl.DataFrame) -> Estimate:
    """Time over that of the products counted, less one: what carries, copies and short products cost beside."""
    division, product = _h200("division"), _h200("product")
    found = []
    for bits in division.keys() & product.keys():
        times, model = _over(division[bits], product[bits]), counted(division[bits]["counts"], bits)
        found.append([x / model - 1 for x in (times.value, times.low, times.high)])
    value, low, high = np.mean(found, 0)
    return Estimate(float(value), float(low), float(high), len(found))


def _batches(table: pl.DataFrame) -> Estimate:
    division, gmp = _h200("division"), _h200("gmp")
    held = [
        gmp[bits]["seconds"] / gmp[bits]["pairs"] >= 5 * division[bits]["seconds"] / division[bits]["pairs"]
        for bits in BITS[:3]
        if bits in division and bits in gmp
    ]
    if not held:
        raise NotMeasured("measured on an H200 only, and no rows of one are stored")
    return intervals.clopper_pearson(sum(held), len(held))


def _copied(table: pl.DataFrame) -> Estimate:
    """GMP's time over that of a division whose numbers come from the host and go back, at the worst size."""
    copied, gmp = _h200("division with copies"), _h200("gmp")
    return min((_over(gmp[bits], copied[bits]) for bits in copied.keys() & gmp.keys()), key=lambda one: one.value)


def _classical_products(table: pl.DataFrame) -> Estimate:
    """The most that any size takes where division and product are both classical."""
    division, product = _h200("classical division"), _h200("classical product")
    return max((_over(division[bits], product[bits]) for bits in division.keys() & product.keys()),
               key=lambda one: one.value)  # fmt: skip


def _classical(table: pl.DataFrame) -> Estimate:
    """At the longest size that both were measured at."""
    ours, theirs = _h200("division"), _h200("classical division")
    bits = max(ours.keys() & theirs.keys())
    return _over(theirs[bits], ours[bits])


def _gmp(table: pl.DataFrame) -> Estimate:
    if "gmp" not in table["method"].to_list():
        raise NotMeasured("gmpy2 is not installed: pip install gmpy2")
    measure = measures.ratio(
        "seconds", of={"method": "gmp"}, to={"method": "division"}, experiment="cost", bits=1 << 17
    )
    return measure(table)


def _exact(table: pl.DataFrame) -> Estimate:
    rows = table.filter(pl.col("experiment") == "exact")
    return intervals.clopper_pearson(int(rows["same"].cast(pl.Int64).sum()), int(rows["pairs"].sum()))


claims = [
    Claim("multiplications", _multiplications),
    Claim("sizes", _sizes),
    Claim("optimum", _optimum),
    Claim(
        "exact", _exact, asks="Every quotient and remainder of random and adversarial pairs is Python's.",
        kind=Kind.EVERY,
    ),
    Claim(
        "counted", measures.share("within", experiment="cost", method="division"),
        asks="On a CPU, too, a division is made of at most 7.5 full-length products, and takes no longer than these.",
        kind=Kind.EVERY,
    ),
    Claim(
        "batches", _batches, kind=Kind.EVERY,
        asks="On an H200, 4,096 pairs of 2^15 to 2^17 bits that lie on it take at most a fifth of GMP's time on the 16 "
        "cores beside it.",
    ),
    Claim(
        "copies", _copied, kind=Kind.RATIO, toward="up",
        asks="With copies to the H200 and back, too, GMP on 16 cores takes longer; at the worst of four sizes.",
    ),
    Claim(
        "classical", _classical, kind=Kind.RATIO, toward="up",
        asks="On an H200 a division of 2^17 bits by classical products alone (256 threads a block) takes longer.",
    ),
    Claim(
        "classical-products", _classical_products, kind=Kind.AT_MOST, value=7.0, unit="multiplications",
        asks="On an H200 a division by classical products alone takes at most 7 of these slower products.",
    ),
    Claim(
        "python",
        measures.ratio(
            "seconds", of={"method": "python"}, to={"method": "division"}, experiment="cost", bits=1 << 17
        ),
        asks="On one core Python's own division of 2^17 bits takes longer.", kind=Kind.RATIO, toward="up",
    ),
    Claim("gmp", _gmp, asks="On one core GMP's division of 2^17 bits takes longer.", kind=Kind.RATIO, toward="up"),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds a pair against the dividend's bits, here on one core and on an H200."""
    import altair as alt

    here = (
        table.filter(pl.col("experiment") == "cost")
        .group_by("method", "bits", maintain_order=True)
        .agg(pl.col("seconds").mean())
    )
    rows = [{"way": f"{method}, one core here", "bits": bits, "seconds": s} for method, bits, s in here.rows()]
    rows += [
        {"way": f"{row['method']}, H200", "bits": row["bits"], "seconds": row["seconds"] / row["pairs"]}
        for row in elsewhere.rows("h200", "bigint-div")
        if row["method"] in ("division", "product")
    ]
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame(rows), title="A dividend of so many bits by a divisor of half as many")
        .mark_line(point=True)
        .encode(
            x=alt.X("bits:Q", scale=alt.Scale(type="log", base=2), title="bits of the dividend (log)"),
            y=alt.Y("seconds:Q", scale=alt.Scale(type="log"), title="seconds a pair (log)"),
            color=alt.Color("way:N", title=None),
        )
    )
    return chart
