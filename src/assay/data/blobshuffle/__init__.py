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
(16, 1.0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from assay.data.blobshuffle.batching import BatchPolicy as BatchPolicy
from assay.data.blobshuffle.billing import Billed as Billed
from assay.data.blobshuffle.brokers import LogBroker as LogBroker
from assay.data.blobshuffle.crashing import Stream
from assay.data.blobshuffle.jobs import repartition as repartition
from assay.data.blobshuffle.planning import plan as plan
from assay.data.blobshuffle.shuffle import DESIGNS, Placement
from assay.data.blobshuffle.shuffle import BlobShuffle as BlobShuffle
from assay.data.blobshuffle.simulate import GIB, SCALE, cluster, counted, named, records_of
from assay.data.crash.lab import cases, recorded, replay
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


def costs(size: int, blobs: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every design on the same records, with blobs of so many bytes that are full: counted requests, in dollars."""
    small = size // SCALE
    record = max(64, small // 256)
    told = {}
    for name, design in DESIGNS.items():
        if name == "claim check" or "ahead" in name:  # a pointer a record has no size, reading ahead costs nothing
            continue
        batches = records_of(3 * blobs * small // record, record, 64, seed)
        told[name] = counted(design.sized(size), batches, Placement(64), scale=SCALE, every=1 << 40)
    return told


def pointers(record: int, seed: int) -> dict[str, Any]:
    """A pointer to an object of its own for each record of so many bytes."""
    return counted(DESIGNS["claim check"], records_of(1000, record, 64, seed), Placement(64))


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


def crashes(ops: int, every: int, seed: int) -> dict[str, Any]:
    """The crash lab on a stream with two tasks and its readers: one in so many of its cases, of all kinds in turn."""
    tried = cases(Stream, len(recorded(Stream, ops, seed)), ops, seed, mixes=20)[seed % every :: every]
    return {"cases": len(tried), "kept": sum(replay(Stream, case) is None for case in tried)}


def study(lab: Lab) -> Tables:
    """Counted costs by size, a cluster in virtual time, the plan against it, and crashes."""
    some = lab.with_seeds(quick=2, full=5)
    seconds = lab.pick(quick=2.0, full=6.0)
    runs = [
        {"design": design, "gib_per_s": rate, "seconds": seconds * share}
        for design, rate, share in (
            ("native", RATE, 0.5), ("blob", RATE, 0.5), ("blob + cache", RATE, 1.0), ("blob + cache", 2 * RATE, 1.0),
            ("blob + cache, 8 ahead", RATE, 0.75), ("blob + cache, all zones", RATE, 0.5),
        )
    ]  # fmt: skip
    full = {"blobs": lab.pick(quick=16, full=64)}
    return {
        "cluster": some.run(clusters, runs),
        "cost": some.run(costs, [{"size": size} | full for size in SIZES], per="design"),
        "claim check": some.run(pointers, [{"record": record} for record in (1024, 65_536)]),
        "plan": some.run(planned, [{"target": 1.5, "seconds": 1.25 * seconds}]),
        "crashes": some.run(crashes, [lab.pick(quick={"ops": 56, "every": 7}, full={"ops": 300, "every": 1})]),
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


def off(table: pl.DataFrame) -> Estimate:
    """The larger of the plan's two errors, as a share."""
    found = measures.rows(table, {"experiment": "plan"})
    late, dear = ((found[f"planned_{a}"] / found[b] - 1).abs() for a, b in (("p95", "p95"), ("usd", "usd_per_TiB")))
    return intervals.bootstrap([max(pair) for pair in zip(late, dear, strict=True)])


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
    Claim(
        "planned", off, kind=Kind.AT_MOST, value=0.15, unit="share",
        asks="The plan's p95 is within 15 % of the cluster's, and so are its dollars.",
    ),
    Claim("exact", exact, kind=Kind.EVERY, asks="In the cluster every byte arrives once, and in its producer's order."),
    Claim(
        "crashes", measures.probability("kept", "cases", experiment="crashes"), kind=Kind.EVERY,
        asks="After a crash at any change, each committed record arrives once, in order.",
    ),
]  # fmt: skip
