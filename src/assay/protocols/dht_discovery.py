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
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols import directory
from assay.protocols.directory import Scenario
from assay.protocols.nodes.overlay import Settings
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # the nodes are real and also run over TCP; the network between thousands of them is a model
use_when = (
    "Agents or services of many owners must find each other by capability and nobody shall run the one registry; nodes "
    "stay for minutes at least. Pastry where traffic counts, Kademlia where slow lookups under churn hurt."
)
avoid_when = (
    "A registry that you can keep alive will do: it answers in one round trip and costs a tenth. Queries are more than "
    "a name (ranges, similarity), nodes may lie, or they leave within seconds."
)
own_input = "assay compare protocols --nodes chord,pastry,kademlia --agents agents.csv --churn sessions.csv"
references = (
    "Chord: Stoica et al., SIGCOMM 2001. Pastry: Rowstron and Druschel, Middleware 2001; Castro et al., DSN 2004.",
    "Kademlia: Maymounkov and Mazières, IPTPS 2002.",
    "Flooding and walks: Lv et al., ICS 2002.",
)

OVERLAYS = tuple(directory.OVERLAYS)
SESSION = 300.0
PAPERS_SIZE = 4096


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


def study(lab: Lab) -> pl.DataFrame:
    """All overlays cold, stationary and under churn; faster and faster churn; growing sizes; and the baselines."""

    def case(nodes: str, n: int, regime: str = "stationary", session: float = SESSION, rate: float = 0.05) -> Any:
        seconds = lab.pick(quick=40.0, full=120.0)
        return {"nodes": nodes, "n": n, "regime": regime, "session": session, "seconds": seconds, "rate": rate}

    n = lab.pick(quick=64, full=PAPERS_SIZE)
    regimes = [case(nodes, n, regime) for nodes in OVERLAYS for regime in ("cold", "stationary", "churn")]
    mid = lab.pick(quick=64, full=512)
    paces = lab.pick(quick=(10.0,), full=(10.0, 30.0, 120.0))
    churns = [case(nodes, mid, "churn", session) for nodes in OVERLAYS for session in paces]
    sizes = lab.pick(quick=(32, 128), full=(64, 128, 256, 512, 1024, 2048))
    growth = [case(nodes, size) for nodes in OVERLAYS for size in sizes]
    beside = ("registry", "random-walk", "flooding", *(f"{nodes}-oracle" for nodes in OVERLAYS))
    baselines = [case(nodes, mid, rate=0.02 if nodes == "flooding" else 0.05) for nodes in beside]
    table = lab.run(trial, [*regimes, *growth[::-1], *churns, *baselines])
    return table.sort("nodes", "n", "regime", "session", "seed", maintain_order=True)


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """What each overlay costs in each regime, and how hops grow with the number of nodes."""
    import altair as alt

    largest = _at_largest(table)
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


def _at_largest(table: pl.DataFrame) -> pl.DataFrame:
    """The main experiment: the overlays at the size that also ran cold."""
    size = table.filter(pl.col("regime") == "cold")["n"].max()
    return table.filter((pl.col("n") == size) & (pl.col("session") == SESSION) & pl.col("nodes").is_in(OVERLAYS))


def least(
    column: str, against: tuple[str, ...], regimes: tuple[str, ...] = ("stationary", "churn")
) -> measures.Measure:
    """How many times Pastry's value the others' is, in the regime and against the rival where it is least."""

    def measure(table: pl.DataFrame) -> Estimate:
        main = _at_largest(table)
        ratios = [
            measures.ratio(column, of={"nodes": rival}, to={"nodes": "pastry"}, regime=regime)(main)
            for rival in against
            for regime in regimes
        ]
        return min(ratios, key=lambda ratio: ratio.value)

    return measure


def at_papers_size(measure: measures.Measure) -> measures.Measure:
    """A measure of which the paper says for how many nodes it holds; with fewer it stays open."""

    def measured(table: pl.DataFrame) -> Estimate:
        if _at_largest(table).filter(pl.col("n") == PAPERS_SIZE).is_empty():
            raise NotMeasured(f"{PAPERS_SIZE} nodes: run with --full")
        return measure(table)

    return measured


def from_cold(*columns: str, worst: Any) -> measures.Measure:
    """By how much the columns change from a cold start to a warm one, for the overlay where it is worst."""

    def measure(table: pl.DataFrame) -> Estimate:
        main = _at_largest(table)
        changes = [
            measures.change(column, new={"regime": "stationary"}, old={"regime": "cold"}, nodes=nodes)(main)
            for nodes in OVERLAYS
            for column in columns
        ]
        return worst(changes, key=lambda change: change.value)  # type: ignore[no-any-return]

    return measure


def a_doubling(nodes: str) -> measures.Measure:
    """Hops that a doubling of the nodes adds: the slope of hops in log2 N."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"nodes": nodes, "regime": "stationary"})
        return intervals.slope(chosen["n"].to_list(), (2.0 ** chosen["hops_mean"]).to_list())

    return measure


def rarest_success(regime: str) -> measures.Measure:
    """The share of lookups that succeed, with the overlay that does worst."""

    def measure(table: pl.DataFrame) -> Estimate:
        main = _at_largest(table)
        shares = [measures.probability("successes", "lookups", nodes=nodes, regime=regime)(main) for nodes in OVERLAYS]
        return min(shares, key=lambda share: share.value)

    return measure


def faster_churn(table: pl.DataFrame) -> Estimate:
    """Success at the fastest churn against none, at the size that saw several paces, where the change is least."""
    fastest = table.filter(pl.col("regime") == "churn")["session"].min()
    size = table.filter(pl.col("session") == fastest)["n"].max()
    chosen = table.filter(pl.col("n") == size)
    changes = [
        measures.change(
            "success_ratio", new={"regime": "churn", "session": fastest}, old={"regime": "stationary"}, nodes=nodes
        )(chosen)
        for nodes in OVERLAYS
    ]
    return max(changes, key=lambda change: change.value)


claims = [
    Claim("cheapest", at_papers_size(least("messages_rate", ("chord", "kademlia")))),
    Claim("warm-success", from_cold("success_ratio", worst=min)),
    Claim("warm-cost", from_cold("messages_per_lookup", "latency_mean", worst=max)),
    Claim("control", least("control_rate", ("chord",))),
    Claim(
        "question-1",
        least("bytes_rate", ("chord", "kademlia")),
        asks="operating cost in bytes, too, is lowest with Pastry: the least of the others' shares of it.",
        kind=Kind.AT_LEAST,
        value=1.0,
        unit="?",
    ),
    Claim(
        "question-2",
        rarest_success("stationary"),
        asks="after the warm-up and with nobody leaving, lookups succeed with every overlay, with probability.",
        kind=Kind.AT_LEAST,
        value=0.999,
        unit="?",
    ),
    Claim(
        "question-3",
        faster_churn,
        asks="the faster nodes come and go, the fewer lookups succeed, with every overlay: change at the shortest sessions.",
        kind=Kind.DIFFERENCE,
        toward="down",
    ),
    Claim(
        "question-4",
        lambda table: measures.ratio("latency_p99", of={"nodes": "kademlia"}, to={"nodes": "chord"}, regime="churn")(
            _at_largest(table)
        ),
        asks="the slowest hundredth of lookups under churn is faster with Kademlia than with Chord.",
        kind=Kind.RATIO,
        toward="down",
    ),
    Claim(
        "question-5",
        a_doubling("chord"),
        asks="a doubling of the nodes adds half a hop with Chord.",
        kind=Kind.LEVEL,
        value=(0.4 + 0.6) / 2,
        unit="?",
    ),
    Claim(
        "question-6",
        a_doubling("pastry"),
        asks="a doubling of the nodes adds a quarter of a hop with Pastry.",
        kind=Kind.LEVEL,
        value=(0.15 + 0.35) / 2,
        unit="?",
    ),
    Claim(
        "question-7",
        a_doubling("kademlia"),
        asks="a doubling of the nodes adds at most one hop with Kademlia.",
        kind=Kind.AT_MOST,
        value=1.0,
        unit="?",
    ),
]
