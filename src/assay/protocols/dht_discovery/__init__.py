"""Chord, Pastry and Kademlia as directories of agents: one control plane, one load, three ways to route.

An agent publishes a record (DID, capabilities, endpoint, time to live) under the hash of each capability; whoever needs
a capability looks its hash up. Which nodes keep the record, and how a lookup gets there, is the overlay's business, and
the only thing that differs here: replication, timeouts, republishing and the period of maintenance are shared. In every
period each node checks its neighbours and renews one piece of its table: Chord a finger, Pastry a row, Kademlia a
bucket. Nodes know only what messages told them; those that leave do so without a word.

The paper prints no table that we could compare with, so its sentences are judged. What it leaves open is chosen here:
8 replicas, 1 s timeout, republishing every 60 s, maintenance every 5 s, 5 min mean sessions under churn, 1 min away,
eight sites up to 40 ms apart. "Operating cost" is every message that is sent, by node and second.

Dazzi, Carlini, Mordacchini and Urso, arXiv:2605.11839.

>>> found = directory.run("pastry", 32, directory.Scenario(warm_up=25.0, seconds=40.0, rate=0.2))
>>> found["success_ratio"] > 0.99
True
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols.dht_discovery import directory
from assay.protocols.dht_discovery.directory import Scenario
from assay.protocols.nodes.overlay import Settings
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.MODEL  # the nodes are real and also run over TCP; the network between thousands of them is a model
use_when = (
    "Agents or services of many owners must find each other by capability and nobody shall run the one registry; nodes "
    "stay for minutes at least. Pastry where traffic counts, Kademlia where slow lookups under churn hurt."
)
avoid_when = (
    "A registry that you can keep alive will do: it answers in one round trip and costs a tenth. Queries are more than "
    "a name (ranges, similarity), nodes may lie, or they leave within seconds."
)
own_input = (
    "assay compare protocols --nodes chord,pastry,kademlia --agents examples/agents.csv --churn examples/sessions.csv"
)
references = (
    "Chord: Stoica et al., SIGCOMM 2001. Pastry: Rowstron and Druschel, Middleware 2001; Castro et al., DSN 2004.",
    "Kademlia: Maymounkov and Mazières, IPTPS 2002.",
    "Flooding and walks: Lv et al., ICS 2002.",
)

OVERLAYS = tuple(directory.OVERLAYS)
SESSION, FASTEST = 300.0, 5.0
"""Mean seconds that a node stays: under the usual churn, and at the fastest."""
SIZES = {"quick": 64, "full": 2048}  # the paper's is 4096


def warm_up(n: int) -> float:
    """The paper's warm-up: log2 N rounds of maintenance.

    >>> warm_up(4096)
    60.0
    """
    return math.ceil(math.log2(n)) * Settings.period


# ------------------------------------------------------------------------------------------- the study


def trial(nodes: str, n: int, regime: str, session: float, seconds: float, rate: float, seed: int) -> dict[str, Any]:
    """One kind of node in one regime: "cold" (lookups from the first second), "stationary" or "churn"."""
    scenario = Scenario(
        warm_up=0.0 if regime == "cold" else warm_up(n),
        seconds=seconds,
        rate=rate,
        session=session if regime == "churn" else None,
        pause=min(60.0, session),
        seed=seed,
    )
    return directory.run(nodes, n, scenario)


def study(lab: Lab) -> Tables:
    """All overlays cold, stationary and under churn; faster and faster churn; growing sizes; and the baselines."""

    def case(nodes: str, n: int, regime: str = "stationary", session: float = SESSION, rate: float = 0.05) -> Any:
        return {"nodes": nodes, "n": n, "regime": regime, "session": session, "seconds": 40.0, "rate": rate}

    main = [case(nodes, SIZES[lab.size], regime) for nodes in OVERLAYS for regime in ("cold", "stationary", "churn")]
    mid = lab.pick(quick=64, full=256)
    paces = lab.pick(quick=(FASTEST,), full=(FASTEST, 60.0))
    churns = [case(nodes, mid, "churn", session) for nodes in OVERLAYS for session in paces]
    sizes = lab.pick(quick=(32, 128), full=(64, 128, 256, 512))
    growth = [case(nodes, size) for nodes in OVERLAYS for size in sizes]
    beside = ("registry", "random-walk", "flooding", *(f"{nodes}-oracle" for nodes in OVERLAYS))
    baselines = [case(nodes, mid, rate=0.02 if nodes == "flooding" else 0.05) for nodes in beside]
    # A run of 2048 nodes takes half a minute, and most of what it counts is thousands of lookups: three seeds will do.
    dear = lab.with_seeds(quick=len(lab.seeds), full=3)
    cases = {"regimes": main[::-1], "growth": growth[::-1], "churn": churns, "rivals": baselines}
    tables = {name: dear.run(trial, some) for name, some in cases.items()}
    order = ["nodes", "n", "regime", "session", "seed"]
    return {name: table.sort(order, maintain_order=True) for name, table in tables.items()}


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """What each overlay costs in each regime, and how hops grow with the number of nodes."""
    import altair as alt

    largest = _main(table)
    cost = (
        alt.Chart(largest.group_by("nodes", "regime").agg(pl.col("messages_rate").mean()).sort("nodes", "regime"))
        .mark_bar()
        .encode(
            x=alt.X("nodes:N", title=None, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("regime:N"),
            y=alt.Y("messages_rate:Q", title="messages a node and second"),
            color=alt.Color("regime:N"),
        )
        .properties(width=300, height=300, title="Operating cost")
    )
    stationary = table.filter((pl.col("regime") == "stationary") & pl.col("nodes").is_in(OVERLAYS))
    points = stationary.group_by("nodes", "n").agg(pl.col("hops_mean").mean()).sort("nodes", "n")
    hops = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("n:Q", scale=alt.Scale(type="log", base=2), title="nodes"),
            y=alt.Y("hops_mean:Q", title="hops of a lookup"),
            color=alt.Color("nodes:N", title="overlay"),
        )
        .properties(width=300, height=300, title="Hops grow with the logarithm")
    )
    chart: alt.HConcatChart = alt.hconcat(cost, hops).resolve_scale(color="independent")
    return chart


# ------------------------------------------------------------------------------------------ the claims


def _main(table: pl.DataFrame) -> pl.DataFrame:
    """The main experiment: the overlays in all three regimes at one size."""
    return measures.rows(table, {"experiment": "regimes"})


def in_main(measure: measures.Measure) -> measures.Measure:
    """The measure on the main experiment only."""
    return lambda table: measure(_main(table))


def over_pastry(column: str, *rivals: str) -> measures.Measure:
    """How many times Pastry's value the rivals' is, in the regime and against the rival where that is least."""
    ratios = {
        f"{rival}, {regime}": measures.ratio(column, of={"nodes": rival}, to={"nodes": "pastry"}, regime=regime)
        for rival in rivals
        for regime in ("stationary", "churn")
    }
    return in_main(measures.best(ratios, min))


def from_cold(column: str) -> measures.Measure:
    """By how much a column changes from a cold start to a warm one, with the overlay where it falls least."""
    changes = {
        nodes: measures.change(column, new={"regime": "stationary"}, old={"regime": "cold"}, nodes=nodes)
        for nodes in OVERLAYS
    }
    return in_main(measures.best(changes, max))


def gained(nodes: str) -> measures.Measure:
    """Points of success that the warm-up brings, seed by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        warm, cold = (measures.rows(table, {"nodes": nodes, "regime": regime}) for regime in ("stationary", "cold"))
        return intervals.bootstrap((warm["success_ratio"] - cold["success_ratio"]).to_list())

    return measure


def a_doubling(nodes: str) -> measures.Measure:
    """Hops that a doubling of the nodes adds: the slope of hops in log2 N."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"nodes": nodes, "regime": "stationary"})
        return intervals.slope(chosen["n"].to_list(), (2.0 ** chosen["hops_mean"]).to_list())

    return measure


def all_found(table: pl.DataFrame) -> Estimate:
    """The share of lookups that succeed when nobody leaves, over all overlays; and the overlay with most failures."""
    calm = measures.rows(_main(table), {"regime": "stationary"})
    found = measures.probability("successes", "lookups")(calm)
    missed = calm.group_by("nodes").agg((pl.col("lookups") - pl.col("successes")).sum().alias("missed"))
    worst = missed.sort("missed", "nodes", descending=[True, False]).row(0)
    return replace(found, cases=f"{worst[1]} lookups of {worst[0]} failed" if worst[1] else "")


def faster_churn(table: pl.DataFrame) -> Estimate:
    """Points of success that the fastest churn costs against none, over all overlays, seed by seed."""
    churn = measures.rows(table, {"experiment": "churn"})
    fastest, size = churn["session"].min(), churn["n"].max()
    chosen = table.filter((pl.col("n") == size) & pl.col("nodes").is_in(OVERLAYS))
    cases = ({"regime": "churn", "session": fastest}, {"regime": "stationary"})
    wild, calm = (
        measures.rows(chosen, case).group_by("seed").agg(pl.col("success_ratio").mean()).sort("seed") for case in cases
    )
    return intervals.bootstrap((wild["success_ratio"] - calm["success_ratio"]).to_list())


claims = [
    Claim("cheapest", over_pastry("messages_rate", "chord", "kademlia")),
    Claim("warm-success", in_main(measures.best({nodes: gained(nodes) for nodes in OVERLAYS}, min))),
    Claim("warm-messages", from_cold("messages_per_lookup")),
    Claim("warm-latency", from_cold("latency_mean")),
    Claim("control", over_pastry("control_rate", "chord")),
    Claim(
        "bytes",
        over_pastry("bytes_rate", "chord", "kademlia"),
        asks="Chord and Kademlia both send more bytes than Pastry, stationary and under churn.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "all-found",
        all_found,
        asks="After the warm-up and with nobody leaving, every lookup succeeds, with every overlay.",
        kind=Kind.EVERY,
    ),
    Claim(
        "fast-churn",
        faster_churn,
        asks=f"Fewer lookups succeed where nodes stay for {FASTEST:.0f} s than where nobody leaves, over all overlays.",
        kind=Kind.DIFFERENCE,
        toward="down",
        unit="share",
    ),
    Claim(
        "tail",
        in_main(measures.ratio("latency_p99", of={"nodes": "kademlia"}, to={"nodes": "chord"}, regime="churn")),
        asks="The slowest hundredth of lookups under churn takes less time with Kademlia than with Chord.",
        kind=Kind.RATIO,
        toward="down",
    ),
    Claim(
        "hops-chord",
        a_doubling("chord"),
        asks="A doubling of the nodes adds half a hop to a lookup with Chord, as its theory says.",
        kind=Kind.LEVEL,
        value=1 / 2,
        unit="hops",
    ),
    Claim(
        "hops-pastry",
        a_doubling("pastry"),
        asks="A doubling of the nodes adds a quarter of a hop to a lookup with Pastry, whose digits have four bits.",
        kind=Kind.LEVEL,
        value=1 / 4,
        unit="hops",
    ),
    Claim(
        "hops-kademlia",
        a_doubling("kademlia"),
        asks="A doubling of the nodes adds at most one hop to a lookup with Kademlia.",
        kind=Kind.AT_MOST,
        value=1.0,
        unit="hops",
    ),
]
