"""BlobShuffle: batches of shuffled records go to an object store, and through the broker only where they lie.

A stream that is repartitioned through a replicated broker crosses zones more than three times, and each crossing is
billed. An object store of the region is reached from every zone for nothing but the price of a request. So tasks pack
records by destination into blobs, put them, and send a note of some eighty bytes for every partition in a blob; the
notes and the input's offset are one transaction of the broker, which keeps its guarantees. Readers of a zone share a
cache, so a blob is fetched once a zone and not once a partition. The price is latency: a record waits until its blob
is full or a commit is due, then for a put and a get.

What to watch for: blobs must grow to megabytes before requests are cheap, and at a commit every half second it takes
tens of megabytes a second and task to fill them. One blob for all zones is three times as large at the same age, and
cheaper, though each zone fetches it. And a reader has to fetch ahead as many blobs as tasks commit while one is on its
way: with eight it falls behind at gigabytes a second.

The study counts every design's requests and crossings on the same records, runs a cluster at gigabytes a second in
virtual time with the same objects, and kills a stream at every change to its store.

"BlobShuffle: Cost-Effective Repartitioning in Stream Processing Systems via Object Storage Exemplified with Kafka
Streams", arXiv:2606.03364. Sizes, the cache's topology and the cost formula are reconstructed.

>>> found = plan(rate=2 << 30, p95=2.0)  # bytes and seconds to a blob, for 2 GiB/s within two seconds
>>> found.size >> 20, found.age
(16, 1.5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from assay.data.blobshuffle.billing import Billed as Billed
from assay.data.blobshuffle.brokers import LogBroker as LogBroker
from assay.data.blobshuffle.crashing import Stream
from assay.data.blobshuffle.planning import plan as plan
from assay.data.blobshuffle.repartition import repartition as repartition
from assay.data.blobshuffle.shuffle import DESIGNS, Placement
from assay.data.blobshuffle.shuffle import BlobShuffle as BlobShuffle
from assay.data.blobshuffle.simulate import GIB, cluster, counted, named, records_of
from assay.data.crash.lab import examine
from assay.record import charts, intervals, measures
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

offers = {"crashable": Stream, "shuffle": BlobShuffle}
evidence = Evidence.MODEL
needs = ("data",)
use_when = (
    "A stream of megabytes a second and task is repartitioned across zones, and a second or two of delay is fine."
)
avoid_when = (
    "Records must arrive within a few hundred milliseconds, or a task has so little to send that its blobs stay small: "
    "then requests cost more than crossings."
)
trust = (
    "Dollars are counted requests and crossings times public list prices. Latencies are approximate public figures of "
    "S3 Standard and of a replicated broker; assay data probe fits those of your own store. The network within a zone "
    "is taken as 10 Gbit/s, and nothing limits the processors of tasks. No Kafka was run."
)
own_input = "assay data shuffle --from examples/visits.jsonl --key user --parts 8 --out parts"
references = (
    "Transactions with read_committed readers: KIP-98, Apache Kafka.",
    "Reading from the nearest replica: KIP-392, Apache Kafka.",
    "Consistent hashing: Karger et al., STOC 1997.",
    "ShuffleBench, the workload of the same group: Henning et al., ICPE 2024.",
)

MIB = 1 << 20
SIZES = (MIB // 4, MIB, 4 * MIB, 16 * MIB)
RATE = 2.0  # GiB/s


# --------------------------------------------------------------------------------------------- the study


def costs(size: int, mebibytes: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every design on the same records of a kilobyte, with blobs of so many bytes: counted requests, in dollars."""
    told = {}
    for name in DESIGNS:
        if (name == "claim check" and size != SIZES[-1]) or "ahead" in name:
            continue  # a pointer a record has no size to choose, and reading ahead costs nothing
        found = counted(DESIGNS[name].sized(size), records_of(mebibytes * MIB, 64, seed), Placement(64))
        told[name] = {column: found[column] for column in ("usd_per_TiB", "puts", "gets", "crossings", "blob_MiB")}
        told[name]["missing"] = found["records"] - found["arrived"]
    return told


def clusters(design: str, gib_per_s: float, seconds: float, seed: int) -> dict[str, Any]:
    """64 tasks, 64 partitions, three zones, for so many virtual seconds."""
    return cluster(named(design), gib_per_s * GIB, tasks=64, parts=64, seconds=seconds, seed=seed)


def planned(target: float, seconds: float, seed: int) -> dict[str, Any]:
    """What the plan for a p95 expects, and what the cluster then does."""
    found = plan(RATE * GIB, target)
    seen = cluster(
        named("blob + cache", found.size, found.age), RATE * GIB, tasks=64, parts=64, seconds=seconds, seed=seed
    )
    told = {"blob_MiB": seen["blob_MiB"], "p95": seen["p95"], "usd_per_TiB": seen["usd_per_TiB"]}
    return told | {"size_MiB": found.size / MIB, "age": found.age, "planned_p95": found.p95,
                   "planned_usd": found.usd_per_tib}  # fmt: skip


def crashes(ops: int, seed: int) -> dict[str, Any]:
    """The crash lab on a stream with two tasks and its readers."""
    report = examine(Stream, ops, seed=seed, mixes=5)
    return {"cases": report.cases, "kept": report.cases - len(report.findings)}


def study(lab: Lab) -> Tables:
    """Counted costs by size, a cluster in virtual time, the plan against it, and crashes."""
    some = lab.with_seeds(quick=2, full=5)
    seconds = lab.pick(quick=2.5, full=6.0)
    runs = [
        {"design": design, "gib_per_s": rate, "seconds": time}
        for design, rate, time in (
            ("native", RATE, seconds / 2), ("blob", RATE, seconds), ("blob + cache", RATE, seconds),
            ("blob + cache", 2 * RATE, seconds), ("blob + cache, 8 ahead", RATE, seconds),
            ("blob + cache, all zones", RATE, seconds),
        )
    ]  # fmt: skip
    sized = [{"size": size, "mebibytes": max(24, 9 * size // MIB)} for size in SIZES]
    return {
        "cluster": some.run(clusters, runs),
        "cost": lab.with_seeds(quick=2, full=5).run(costs, sized, per="design"),
        "plan": lab.with_seeds(quick=1, full=3).run(planned, [{"target": 1.5, "seconds": 1.6 * seconds}]),
        "crashes": lab.with_seeds(quick=1, full=2).run(crashes, [{"ops": lab.pick(quick=20, full=300)}]),
    }


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """Dollars by the size of a blob, and latency at 2 GiB/s."""
    import altair as alt

    cost = measures.rows(table, {"experiment": "cost"}).group_by("design", "size", maintain_order=True).agg(
        usd=pl.col("usd_per_TiB").mean()
    ).with_columns(mib=pl.col("size") / MIB)  # fmt: skip
    left = alt.Chart(cost).mark_line(point=True).encode(
        x=alt.X("mib:Q", scale=alt.Scale(type="log", base=4), title="MiB to a blob"),
        y=alt.Y("usd:Q", scale=alt.Scale(type="log"), title="$ per TiB"), color=alt.Color("design:N", title=None),
    ).properties(width=300, height=220, title="Counted cost")  # fmt: skip
    waits = measures.rows(table, {"experiment": "cluster", "gib_per_s": RATE}).group_by("design").agg(
        pl.col("p95").mean()
    )  # fmt: skip
    right = alt.Chart(waits).mark_bar(color=charts.PALETTE[0]).encode(
        y=alt.Y("design:N", sort="x", title=None), x=alt.X("p95:Q", title="p95, s"),
    ).properties(width=300, height=220, title="Latency at 2 GiB/s, virtual time")  # fmt: skip
    chart: alt.HConcatChart = alt.hconcat(left, right)
    return chart


# -------------------------------------------------------------------------------------------- the claims


def exact(table: pl.DataFrame) -> Estimate:
    """The share of cluster runs in which every byte arrived once, in order."""
    found = measures.rows(table, {"experiment": "cluster"})
    held = ((found["lost"] == 0) & (found["disorder"] == 0)).sum()
    return intervals.clopper_pearson(int(held), len(found))


def _cost(of: str, to: str, experiment: str = "cost", **where: Any) -> measures.Measure:
    return measures.ratio("usd_per_TiB", {"design": of}, {"design": to}, experiment=experiment, **where)


claims = [
    Claim("cost", _cost("native", "blob + cache", "cluster", gib_per_s=RATE)),
    Claim("p95", measures.mean("p95", experiment="cluster", design="blob + cache", gib_per_s=RATE)),
    Claim("rate", measures.mean("bytes_per_s", experiment="cluster", design="blob + cache", gib_per_s=2 * RATE)),
    Claim(
        "four", _cost("native", "blob + cache", size=4 * MIB), kind=Kind.AT_LEAST, value=40.0, unit="ratio",
        asks="With blobs of 4 MiB that are full, native costs at least 40 times as much.",
    ),
    Claim(
        "small", _cost("native", "blob + cache", size=MIB // 4), kind=Kind.AT_MOST, value=15.0, unit="ratio",
        asks="With blobs of 256 KiB native costs at most 15 times as much.",
    ),
    Claim(
        "follower", _cost("native, follower fetch", "blob + cache", size=16 * MIB), kind=Kind.AT_LEAST, value=40.0,
        unit="ratio", asks="Against native whose readers ask the nearest replica it is still 40 times, at 16 MiB.",
    ),
    Claim(
        "cache", _cost("blob", "blob + cache", size=4 * MIB), kind=Kind.RATIO, toward="up",
        asks="Without the cache of a zone, blobs of 4 MiB cost more.",
    ),
    Claim(
        "together", _cost("blob + cache", "blob + cache, all zones", "cluster", gib_per_s=RATE), kind=Kind.RATIO,
        toward="up", asks="At 2 GiB/s one blob for all zones is cheaper than one for each.",
    ),
    Claim(
        "ahead",
        measures.ratio(
            "p95", {"design": "blob + cache, 8 ahead"}, {"design": "blob + cache"}, experiment="cluster", gib_per_s=RATE
        ),
        kind=Kind.RATIO, toward="up", asks="At 2 GiB/s readers that fetch eight segments ahead fall behind.",
    ),
    Claim("exact", exact, kind=Kind.EVERY, asks="In the cluster every byte arrives once, and in its producer's order."),
    Claim(
        "crashes", measures.probability("kept", "cases", experiment="crashes"), kind=Kind.EVERY,
        asks="After a crash at any change, each committed record arrives once, in order.",
    ),
]  # fmt: skip
