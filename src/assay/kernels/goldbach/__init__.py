"""GoldbachGPU: every even number of a range as a sum of two primes, by segments, in memory that does not grow.

The paper sieves a segment into packed bits, then gives each even number a thread that tries small primes p until n - p
is marked. Here 32 (on a CPU 64) even numbers are settled at a time: the sieve, shifted by p, is ORed into their bits,
for p = 3, 5, 7, ... until all are set; on a GPU sieve and search of a tile never leave the chip. What no prime below
16,384 settled would be told, not skipped; nothing was. Each segment leaves a line of a certificate, and any can be done
again.

arXiv:2603.02621.

>>> from assay.kernels.goldbach import goldbach  # `assay.kernels.goldbach_up_to` is the same
>>> goldbach(1000).records[-1]  # the even number up to 1,000 whose least prime is largest
(992, 73)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.kernels.engine import elsewhere
from assay.kernels.goldbach import tables
from assay.kernels.goldbach.checking import Checked, check, goldbach, read, redo
from assay.record import measures
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Checked", "goldbach", "read", "redo"]

evidence = Evidence.REAL
use_when = (
    "A range of even numbers is to be checked again by other code, or sieving patterns on a GPU are the interest."
)
avoid_when = (
    "A proof is wanted; or ranges beyond 4e18, which others have checked already (Oliveira e Silva and others)."
)
own_input = "assay compare kernels --numbers 1000000000000 --width 10000000"
references = (
    "Oliveira e Silva, Herzog and Pardi, Math. Comp. 2014: the conjecture up to 4e18, and the records of least primes.",
)
RECORDS = (
    (6, 3), (12, 5), (30, 7), (98, 19), (220, 23), (308, 31), (556, 47), (992, 73), (2642, 103), (5372, 139),
    (7426, 173), (43532, 211), (54244, 233), (63274, 293), (113672, 313), (128168, 331), (194428, 359), (194470, 383),
    (413572, 389), (503222, 523), (1077422, 601), (3526958, 727), (3807404, 751), (10759922, 829), (24106882, 929),
    (27789878, 997), (37998938, 1039), (60119912, 1093), (113632822, 1163), (187852862, 1321), (335070838, 1427),
    (419911924, 1583), (721013438, 1789), (1847133842, 1861), (7473202036, 1877),
)  # fmt: skip
"""Even numbers up to 1e10 that need a larger least prime than all before (published: OEIS A025018, A025019)."""


# ------------------------------------------------------------------------------------------------ the study


def per_number(begin: int, end: int) -> dict[int, int]:
    """How often each prime is the least, by a byte table and one number at a time: the paper's way, on a processor."""
    low = begin - tables.BACK
    prime = np.ones(end - low, np.bool_)
    for p in tables.primes_below(int(end**0.5) + 2).tolist():
        prime[max(p * p, -(-low // p) * p) - low :: p] = False
    rest, counts = np.arange(begin, end, 2), {}
    for p in tables.primes_below(tables.BACK)[1:].tolist():
        hit = prime[rest - p - low]
        if hit.any():
            counts[p] = int(hit.sum())
            rest = rest[~hit]
        if not len(rest):
            break
    return counts


def whole_range(limit: int, seed: int) -> dict[str, Any]:
    """A whole range on one thread of this machine, in processor time; and its records beside the published ones."""
    begin = time.process_time()
    found = goldbach(limit, threads=1)
    seconds = time.process_time() - begin
    known = [(n, p) for n, p in RECORDS if n <= limit]
    return {
        "seconds": seconds,
        "checked": found.checked,
        "expected": limit // 2 - 1,
        "same_records": found.records[1:] == known,
    }


def segments(width: int, seed: int) -> dict[str, dict[str, Any]]:
    """A segment at a random place below 1e11, by tiles and by a table of bytes."""
    from assay.sim.random import stream

    begin = 128 * int(stream(seed, "goldbach").integers(10**6, 10**9))
    check(begin, begin + width, 1)
    start = time.process_time()
    ours = check(begin, begin + width, 1)
    tiles = time.process_time() - start
    start = time.process_time()
    counts = per_number(begin, begin + width)
    table = time.process_time() - start
    same = ours.counts == counts
    return {"tiles": {"seconds": tiles, "same": same}, "byte table": {"seconds": table, "same": same}}


def study(lab: Lab) -> Tables:
    """Ranges from 4 on, on one thread; segments at random places, beside a table of bytes. The H200's are on record."""
    some = lab.with_seeds(quick=2, full=5)
    limits = lab.pick(quick=(10**7, 3 * 10**7, 10**8), full=(10**8, 10**9, 10**10))
    goldbach(10**6, threads=1)  # compiled before the clock runs
    return {
        "ranges": some.run(whole_range, [{"limit": limit} for limit in limits], alone=True),
        "segments": some.run(segments, [{"width": lab.pick(quick=1 << 21, full=1 << 24)}], per="method", alone=True),
    }


# ----------------------------------------------------------------------------------------------- the claims


def _h200(limit: int) -> dict[str, Any]:
    return next(row for row in elsewhere.rows("h200", "goldbach") if row["limit"] == limit)


def _checked(table: pl.DataFrame) -> Estimate:
    whole = [
        row["limit"]
        for row in elsewhere.rows("h200", "goldbach")
        if not row["left"] and row["checked"] == row["limit"] // 2 - 1
    ]
    return measures.counted(max(whole))


def gpu_bytes(limit: int = 10**12) -> int:
    """What the kernel has on the GPU: its tables, its counts, and what it could not settle."""
    made = tables.tables(limit, 24576)
    arrays = (made.wheels, made.lengths, made.primes, made.inverses, made.small)
    return sum(part.nbytes for part in arrays) + 16 * len(made.small) + 8 * (1 + tables.MOST_LEFT)


def _records(table: pl.DataFrame) -> Estimate:
    rows = table.filter(pl.col("experiment") == "ranges")["same_records"].to_list()
    told = {tuple(pair) for pair in _h200(10**10)["records"]}
    held = [*rows, *(pair in told for pair in RECORDS)]
    return measures.counted(sum(held) / len(held), len(held))


def _rival(table: pl.DataFrame) -> Estimate:
    """Both in the same rounds on the H200: extremes of the rounds as the interval."""
    rows = {row["method"]: row for row in elsewhere.rows("h200", "goldbach-rival")}
    ours, theirs = rows["tiles"], rows["thread a number"]
    return Estimate(
        theirs["seconds"] / ours["seconds"], theirs["low"] / ours["high"], theirs["high"] / ours["low"], ours["rounds"]
    )


claims = [
    Claim("checked", _checked),
    Claim("memory", lambda table: measures.counted(gpu_bytes()), construction="the sum of the arrays that we allot"),
    Claim("packed", lambda table: measures.counted(16.0), construction="a bit an odd number against a byte a number"),
    Claim("linear", measures.slope("limit", "seconds", experiment="ranges")),
    Claim("seconds", lambda table: measures.counted(_h200(10**12)["seconds"])),
    Claim("records", _records, asks="Every published record of the least prime up to 1e10 comes out.", kind=Kind.EVERY),
    Claim(
        "per-number", _rival, asks="On an H200 a thread a number takes longer than tiles that never leave the chip.",
        kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "bytes", measures.ratio("seconds", of={"method": "byte table"}, to={"method": "tiles"}, experiment="segments"),
        asks="A byte table in vector code takes longer than tiles of bits, on one core.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "same", measures.share("same", experiment="segments"), asks="Both find the same least primes.", kind=Kind.EVERY,
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds against the bound, here on one thread and on an H200."""
    import altair as alt

    rows = [{"limit": r["limit"], "seconds": r["seconds"], "where": "H200"} for r in elsewhere.rows("h200", "goldbach")]
    here = (
        table.filter(pl.col("experiment") == "ranges")
        .group_by("limit", maintain_order=True)
        .agg(pl.col("seconds").mean())
    )
    rows += [{"limit": limit, "seconds": seconds, "where": "one thread here"} for limit, seconds in here.rows()]
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame(rows), title="Every even number up to a bound")
        .mark_line(point=True)
        .encode(
            x=alt.X("limit:Q", scale=alt.Scale(type="log"), title="bound (log)"),
            y=alt.Y("seconds:Q", scale=alt.Scale(type="log"), title="seconds (log)"),
            color=alt.Color("where:N", title=None),
        )
    )
    return chart
