"""GraphFlash: functions finish all they can inside a part, put one bundle of mail, and wake only those who got some.

Functions of a cloud are stateless and meet in storage alone, so a graph algorithm of many small messages drowns in
requests. Here a superstep of a part is two objects: a bundle with the combined mail for every other part, and a record
that makes it official. Inside the part the program runs until nothing changes, which saves supersteps; parts without
mail are not called, which saves calls. *Kept* functions have their parts and state in memory for the whole job;
*rotating*, few functions take one part after the other, and hold no more than that.

The paper's text was not at hand beyond its abstract: that mail is gathered by part, that parts live together in one
function, that only parts with mail are called, and the two modes are the paper's; names of objects, formats, the log
and the schedule of saved states are reconstructed. A kept function is called by its name here, as systems with a
direct way to their workers do; clouds without one would have it ask the store.

The study runs functions that are real processes on a real folder beside a vertex-centric design with a key for each
vertex (after Graphless), and what needs no store at all; S3's latencies and cold starts are modelled.

arXiv:2605.11631.

>>> ran = run_graph("components", [(1, 2), (2, 3), (7, 8)], workers=1)
>>> ran.names[ran.values].tolist()
[1, 1, 1, 7, 7]
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from assay.data.graphflash import trials
from assay.data.graphflash.crashing import Analyst
from assay.data.graphflash.job import Design
from assay.data.graphflash.parts import Network, network
from assay.data.graphflash.programs import PROGRAMS
from assay.data.graphflash.run import Ran, run_graph, simulate
from assay.data.graphflash.trials import ALONE, KEYS, MEMORY, OURS, PEER, TURNS, VERTICES
from assay.record import intervals, measures
from assay.record.measures import Measure
from assay.record.types import Claim, Estimate, Evidence, Kind

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

__all__ = ["Design", "Network", "Ran", "network", "run_graph", "simulate"]

evidence = Evidence.REAL
needs = ("data",)
use_when = "A graph is analysed now and then, and a cluster that waits in between would cost more than the work."
avoid_when = "The graph fits into one machine that is there anyway: in memory it takes a fraction of the time."
own_input = "assay data graph pagerank examples/web.txt"
offers = {"crashable": Analyst}
references = (
    "Graphless: Toader et al., 2019: vertex-centric supersteps by functions, mail in a store.",
    "Giraph++: Tian et al., VLDB 2013: running to convergence inside a part.",
    "igraph and supersteps in threads of one process: what it takes without functions.",
)


SIZES = (256, 512, 1024, 2048, 4096)  # vertices
RUNS = (("road", "bfs"), ("rmat", "pagerank"), ("rmat", "components"))


def study(lab: Lab) -> Tables:
    """Real functions with ample and with limited resources; requests by design; S3 modelled; memory; crashes."""
    few = lab.with_seeds(quick=2, full=5)
    here = replace(few, workers=0)  # these start processes themselves, one case after the other
    nodes = lab.pick(quick={"bfs": 100, "pagerank": 16, "components": 96}, full=dict.fromkeys(PROGRAMS, 2048))
    real = [{"graph": g, "program": p, "nodes": nodes[p], "degree": lab.pick(quick=4, full=8)} for g, p in RUNS]
    rmat = {"graph": "rmat", "nodes": lab.pick(quick=4096, full=1 << 16), "degree": 16, "parts": 8}
    road = {"graph": "road", "nodes": lab.pick(quick=1024, full=1 << 16), "degree": 4, "parts": 64}
    big = {"graph": "rmat", "nodes": lab.pick(quick=1 << 13, full=1 << 18), "degree": 16, "workers": 2}
    held = {"nodes": lab.pick(quick=1 << 14, full=1 << 20), "degree": 16, "parts": 4}
    far = {"nodes": lab.pick(quick=256, full=4096), "degree": 8, "workers": 16, "profile": "s3-standard"}
    parts = lab.pick(quick=4, full=8)
    safety = {"ops": lab.pick(quick=12, full=300), "mixes": lab.pick(quick=2, full=100)}
    return {
        "ample": here.run(trials.speed, [{**one, "workers": 2, "parts": parts} for one in real], per="system"),
        "sizes": here.run(
            trials.speed,
            [{**real[1], "nodes": n, "workers": 2, "parts": parts} for n in lab.pick(quick=(16, 32), full=SIZES)],
            per="system",
        ),
        "limited": here.run(trials.limited, [{**one, "parts": 2 * parts} for one in (real[0], real[2])], per="system"),
        "large": here.run(trials.large, [{**big, "program": "pagerank"}], per="system"),
        "counted": few.run(trials.counted, [{**one, "program": "bfs"} for one in (rmat, road)], per="design"),
        "modelled": few.run(trials.modelled, [{"graph": "rmat", "program": "bfs", **far}], per="system"),
        "memory": here.run(trials.held, [held], per="system"),
        "crashes": lab.with_seeds(quick=1, full=1).run(trials.crashes, [safety]),
    }


def _beside(column: str, slow: str, fast: str, **where: str) -> dict[str, Measure]:
    """How many times as much of a column the slow system takes, by case."""
    return {
        f"{program} on {graph}": measures.ratio(
            column, of={"system": slow}, to={"system": fast}, graph=graph, program=program, **where
        )
        for graph, program in RUNS
    }


def _falls(column: str, new: str, old: str, **where: str) -> dict[str, Measure]:
    return {
        f"{program} on {graph}": measures.change(
            column, new={"system": new}, old={"system": old}, graph=graph, program=program, **where
        )
        for graph, program in RUNS
    }


def _by_clock(measure: Measure, experiment: str = "ample") -> Measure:
    """Functions are billed by the clock: while others had the processors, it says nothing of them."""
    return measures.clocked(measure, experiment=experiment)


def _grown(table: pl.DataFrame) -> Estimate:
    """How many times as fast on the largest graph over that on the smallest, paired by seed."""
    found = measures.rows(table, {"experiment": "sizes"}).sort("seed")
    sizes = sorted(found["nodes"].unique())
    factors = []
    for n in (sizes[-1], sizes[0]):
        of = {
            name: found.filter((pl.col("nodes") == n) & (pl.col("system") == name))["seconds"]
            for name in (VERTICES, OURS)
        }
        factors.append((of[VERTICES] / of[OURS]).to_list())
    return intervals.ratio(*factors)


def _right(table: pl.DataFrame) -> Estimate:
    """The share of answers that are those of supersteps in memory."""
    found = table.filter(pl.col("same").is_not_null())["same"]
    held = float(found.mean())  # type: ignore[arg-type]
    return measures.counted(held, len(found))


def _kept(table: pl.DataFrame) -> Estimate:
    found = measures.rows(table, {"experiment": "crashes"})
    tried = int(found["cases"].sum())
    return measures.counted(int(found["kept"].sum()) / tried, tried)


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of every system with ample resources."""
    import altair as alt

    shown = table.filter(pl.col("experiment") == "ample")
    means = shown.group_by("program", "system", maintain_order=True).agg(pl.col("seconds").mean())
    chart: alt.Chart = (
        alt.Chart(means, title=alt.Title("Two functions on a local folder", subtitle="Mean over seeds"))
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="seconds (log)"),
            y=alt.Y("system:N", title=None, sort=[OURS, TURNS, KEYS, VERTICES, ALONE, MEMORY, PEER]),
            color=alt.Color("program:N"),
        )
    )
    return chart


claims = [
    Claim("speed", _by_clock(measures.best(_beside("seconds", VERTICES, OURS, experiment="ample")))),
    Claim("resources", _by_clock(measures.best(_falls("gb_seconds", OURS, VERTICES, experiment="ample"), min))),
    Claim("limited", _by_clock(measures.best(_beside("seconds", VERTICES, TURNS, experiment="limited")), "limited")),
    Claim(
        "cost", _by_clock(measures.best(_falls("usd", TURNS, VERTICES, experiment="limited"), min), "limited"),
        evidence=Evidence.MODEL,
    ),
    Claim(
        "clusters",
        _by_clock(
            measures.change("seconds", new={"system": OURS}, old={"system": MEMORY}, experiment="large"), "large"
        ),
    ),
    Claim(
        "right", _right, kind=Kind.EVERY,
        asks="Every answer is that of supersteps in memory: exactly, and ranks to the tolerance.",
    ),
    Claim(
        "twenty", _by_clock(measures.best(_beside("seconds", VERTICES, OURS, experiment="ample"), min)),
        kind=Kind.AT_LEAST, value=20.0, unit="ratio",
        asks="Kept functions are at least 20 times as fast as a vertex-centric design with a key a vertex.",
    ),
    Claim(
        "grows", _by_clock(_grown, "sizes"), kind=Kind.RATIO, toward="up",
        asks="How many times as fast kept functions are as a key a vertex grows with the graph.",
    ),
    Claim(
        "bundles",
        measures.ratio(
            "requests", of={"design": "an object a vertex"}, to={"design": TURNS}, experiment="counted", graph="rmat"
        ),
        kind=Kind.AT_LEAST, value=50.0, unit="ratio", evidence=Evidence.MODEL,
        asks="On R-MAT, an object a vertex takes at least 50 times the requests of bundled mail, all else equal.",
    ),
    Claim(
        "woken",
        measures.ratio(
            "calls", of={"design": "all are woken"}, to={"design": TURNS}, experiment="counted", graph="road"
        ),
        kind=Kind.AT_LEAST, value=2.0, unit="ratio", evidence=Evidence.MODEL,
        asks="In a search on a grid of roads, waking all takes at least 2 times the calls of waking those with mail.",
    ),
    Claim(
        "kept", _by_clock(measures.best(_beside("seconds", TURNS, OURS, experiment="ample"), min)), kind=Kind.RATIO,
        toward="up",
        asks="Kept functions are faster than rotating ones.",
    ),
    Claim(
        "small", measures.ratio("grown", of={"system": TURNS}, to={"system": OURS}, experiment="memory"),
        kind=Kind.RATIO, toward="down", asks="Rotating functions hold less memory than kept ones.",
    ),
    Claim(
        "held", measures.mean("held_ratio", experiment="memory", system=TURNS), kind=Kind.AT_MOST, value=1.3,
        unit="ratio", asks="A rotating function takes at most 1.3 times the bytes of its largest part with its values.",
    ),
    Claim(
        "s3", measures.ratio("seconds", of={"system": VERTICES}, to={"system": OURS}, experiment="modelled"),
        kind=Kind.RATIO, toward="up", evidence=Evidence.MODEL,
        asks="On a store with S3's latencies, kept functions are faster than a key a vertex.",
    ),
    Claim(
        "crashes", _kept, kind=Kind.EVERY, evidence=Evidence.MODEL,
        asks="After a crash at any change to the store, answers are right and nothing that is needed is missing.",
    ),
]  # fmt: skip
