"""Discrete incremental voting (DIV): agree on the average by nudging, one unit and one neighbour at a time.

Every node holds an integer. In one step a random node looks at one random neighbour and moves its own value by one
towards the neighbour's. Nobody averages, nobody counts, a message is one comparison; yet all nodes end with the same
value, and on a well-connected regular graph it is the initial average, rounded up or down. Two things drive it. The
degree-weighted sum of all values is a martingale, so where the process ends it ends fairly in expectation. And values
drift together, so the extremes die out first, until two neighbouring values are left; from there on it is a plain
two-opinion vote, which takes about n² steps and is the slow part.

The paper bounds the expected time by a constant times n(K log(Kn) + γn)/Φ², for n nodes, K the spread of the initial
values, Φ the graph's conductance and γ its average over its least degree. A theorem has no number to reproduce, so
the study runs the exact process, one interaction at a time, and fits the exponents that the bound allows.

Berenbrink, Cooper, Götte, Hintze and Radzik, arXiv:2606.06381.

>>> import networkx as nx
>>> outcome = vote(nx.complete_graph(300), [0, 7] * 150, replicas=100)
>>> sorted(set(outcome.final.tolist())), float(outcome.weighted_average[0])
([3, 4], 3.5)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.div import swarm
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim import graphs
from assay.sim.random import stream

if TYPE_CHECKING:
    import altair as alt
    import numpy.typing as npt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.REAL  # the process is the thing itself: nothing is modelled or skipped
use_when = (
    "Cheap agents must agree on about the mean of small integers with tiny messages and no leader: sensor thresholds, "
    "replica counts, fair prices; on a dense or expanding network of roughly equal degrees."
)
avoid_when = (
    "The graph has a bottleneck or a hub (the result then leans towards well-connected nodes and may miss the "
    "average), nodes can lie, an exact or real-valued mean is needed, or n² interactions are too many."
)
own_input = (
    "assay compare protocols --graph examples/edges.txt --opinions examples/opinions.csv --rules div,pull,median"
)
references = (
    "The process: Cooper, Radzik and Shiraga, Discrete Incremental Voting, OPODIS 2023.",
    "The median rule: Doerr, Goldberg, Minder, Sauerwald and Scheideler, SPAA 2011.",
)

RULES = ("div", "pull", "median", "best-of-three", "average")
SPAN = (
    7  # odd, so that half the nodes at 0 and half at 7 average to 3.5: the last two values start even, the worst case
)


def vote(
    graph: Any, opinions: npt.ArrayLike | Mapping[Any, int], *, rule: str = "div", seed: int = 0, replicas: int = 1,
    max_steps: int | None = None,
) -> swarm.Outcome:  # fmt: skip
    """Run DIV, or a rule it is compared with, on your own graph: NetworkX, SciPy sparse, an edge array, or a `CSR`.

    A list of opinions is in the order in which the graph iterates its nodes, which in NetworkX need not be that of
    their numbers; a dict names the nodes.

    >>> vote([(0, 1), (1, 2), (2, 0)], [1, 1, 1]).steps.tolist()
    [0]
    >>> import networkx as nx
    >>> vote(nx.Graph([("b", "a"), ("b", "c")]), {"a": 0, "b": 3, "c": 0}).weighted_average.tolist()
    [1.5]
    """
    if isinstance(opinions, Mapping):
        nodes = list(graph) if hasattr(graph, "edges") else list(range(graphs.as_graph(graph).n))
        if set(nodes) != set(opinions):
            odd = next(iter(set(nodes) ^ set(opinions)))
            raise ValueError(f"{odd!r} is only in one of graph and opinions; one opinion for each node expected")
        opinions = [opinions[node] for node in nodes]
    return swarm.run(graphs.as_graph(graph), opinions, rule, seed, replicas, max_steps)


def bound(graph: graphs.Graph, span: int, phi: float) -> float:
    """The paper's bound with constant 1: n(K log(Kn) + γn)/Φ².

    >>> round(bound(graphs.complete(100), span=10, phi=0.5))
    67631
    """
    n = graph.n
    return n * (span * math.log(span * n) + graph.gamma * n) / phi**2


# ------------------------------------------------------------------------------------------- the study


def trial(start: str, graph: str, n: int, span: int, rule: str, replicas: int, seed: int) -> dict[str, Any]:
    """Some replicas of one rule from one start on one graph."""
    network = _graph(graph, n, seed)
    opinions = _start(start, network, span, seed)
    outcome = swarm.run(network, opinions, rule, seed, replicas, max_steps=10**11)
    aim = outcome.weighted_average[0]
    hits = (outcome.final == math.floor(aim)) | (outcome.final == math.ceil(aim))
    phi = graphs.conductance(network).high  # where only bounds are known, the end that makes the claim harder
    steps = float(outcome.steps.mean())
    return {
        "steps_mean": steps,
        "bound_ratio": steps / bound(network, span, phi),
        "inverse_conductance": 1 / phi,
        "hits": int(hits.sum()),
        "bias_ratio": float((outcome.final - aim).mean()) / span,
        "censored": int(outcome.censored.sum()),
    }


def _graph(name: str, n: int, seed: int) -> graphs.Graph:
    match name.split(":"):
        case ["complete"]:
            return graphs.complete(n)
        case ["random-regular", degree]:
            return graphs.random_regular(n, int(degree), seed)
        case ["cycle"]:
            return graphs.cycle(n)
        case ["torus"]:
            return graphs.torus(math.isqrt(n))
        case ["ring-of-cliques", size]:
            return graphs.ring_of_cliques(n // int(size), int(size))
        case ["star"]:
            return graphs.star(n)
        case ["barbell"]:
            return graphs.barbell(n // 5 * 2, n - n // 5 * 4)
    raise ValueError(f"no graph family '{name}'")


def _start(name: str, graph: graphs.Graph, span: int, seed: int) -> npt.NDArray[np.int64]:
    """Who begins with what: half of the nodes at each end, unless the name says otherwise."""
    random = stream(seed, "div", name, graph.n, span)
    if name == "expectation":  # the best-connected nodes disagree with the rest: weighted and plain mean differ
        return np.where(graph.degrees == graph.degrees.max(), span, 0).astype(np.int64)
    if name == "average":  # skewed, so that mean, median and mode are three different values
        opinions = np.floor((span + 1) * random.random(graph.n) ** 3).astype(np.int64)
        opinions[:2] = 0, span
        return opinions
    opinions = np.zeros(graph.n, np.int64)
    opinions[: graph.n // 2] = span
    random.shuffle(opinions)
    return opinions


def study(lab: Lab) -> Tables:
    """The exponents of the bound one by one, then where the process ends, beside four other rules."""

    def case(graph: str, n: int, span: int = SPAN, rule: str = "div", replicas: int = 8) -> Any:
        return {"graph": graph, "n": n, "span": span, "rule": rule, "replicas": replicas}

    top = lab.pick(quick=12, full=14)
    sizes = [case("random-regular:8", 2**p, replicas=3 * 2**14 >> p) for p in range(top, 6, -1)]
    spans = [case("random-regular:8", 64, span=4**p) for p in range(4, lab.pick(quick=8, full=10))]
    side = lab.pick(quick=(8, 12, 16, 24, 32), full=(8, 12, 16, 24, 32, 48))
    mixing = [
        *(case("torus", s * s) for s in side),
        *(case("cycle", 2**p) for p in range(4, lab.pick(quick=9, full=10))),
        *(case("ring-of-cliques:8", 8 * 2**p) for p in range(2, lab.pick(quick=6, full=7))),
    ]
    large, many = lab.pick(quick=(2048, 80), full=(4096, 40))
    average = [
        case("complete", n, span=math.isqrt(n), rule=rule, replicas=many if rule == "div" else 5)
        for n, rule in [(256, "div"), *((large, rule) for rule in RULES)]
    ]
    average.append(case("star", 256, span=16, replicas=80))
    expectation = [
        case(graph, n, span=8, rule=rule, replicas=lab.pick(quick=5_000, full=20_000))
        for graph, n in (("star", 17), ("barbell", 20))
        for rule in ("div", "div-edge")
    ]
    cases = {"size": sizes, "average": average, "conductance": mixing, "span": spans, "expectation": expectation}
    tables = {name: lab.run(trial, [{"start": name, **case} for case in some]) for name, some in cases.items()}
    order = ["graph", "rule", "n", "span", "seed"]
    return {name: table.drop("start").sort(order, maintain_order=True) for name, table in tables.items()}


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Measured steps against n on every family, and the bound's n² beside them."""
    import altair as alt

    scaling = table.filter(pl.col("experiment").is_in(["size", "conductance"]) & (pl.col("rule") == "div"))
    points = scaling.group_by("graph", "n").agg(pl.col("steps_mean").mean()).sort("graph", "n")
    log = alt.Scale(type="log")
    measured = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("n:Q", scale=log, title="nodes n"),
            y=alt.Y("steps_mean:Q", scale=log, title="steps to consensus", axis=alt.Axis(format="~s")),
            color=alt.Color("graph:N"),
        )
    )
    sizes = sorted(set(points["n"].to_list()))
    guide = pl.DataFrame({"n": [sizes[0], sizes[-1]], "steps": [float(sizes[0] ** 2), float(sizes[-1] ** 2)]})
    square = alt.Chart(guide).mark_line(strokeDash=[4, 4], opacity=0.6, color="#7F7F7F").encode(x="n:Q", y="steps:Q")
    title = alt.Title("Time to consensus", subtitle="Mean over seeds; the dashed line is n²")
    chart: alt.LayerChart = (square + measured).properties(width=560, height=340, title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def steepest(x: str, y: str, **where: Any) -> measures.Measure:
    """The largest exponent of y in x over the graph families."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, where)
        families = chosen["graph"].unique(maintain_order=True).to_list()
        return measures.best({family: measures.slope(x, y, graph=family) for family in families})(chosen)

    return measure


def farthest(column: str, **where: Any) -> measures.Measure:
    """The mean over seeds on the graph on which it is farthest from zero."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, where)
        means = {graph: measures.mean(column, graph=graph) for graph in sorted(chosen["graph"].unique())}
        return measures.best(means, lambda found, key: max(found, key=lambda one: abs(key(one))))(chosen)

    return measure


def _largest(table: pl.DataFrame, rule: str, graph: str) -> pl.DataFrame:
    chosen = measures.rows(table, {"experiment": "average", "graph": graph, "rule": rule})
    return chosen.filter(pl.col("n") == pl.col("n").max())


def at_largest_n(table: pl.DataFrame) -> Estimate:
    """How often DIV ends at the rounded average, on the largest complete graph."""
    return measures.probability("hits", "replicas")(_largest(table, "div", "complete"))


def more_hits(table: pl.DataFrame, rule: str = "div", graph: str = "complete") -> Estimate:
    """By how much the share of runs that end at the rounded average is larger with DIV on the complete graph."""
    ours, theirs = (
        (rows["hits"] / rows["replicas"]).to_numpy()
        for rows in (_largest(table, "div", "complete"), _largest(table, rule, graph))
    )
    return intervals.bootstrap(ours - theirs)


def below_bound(table: pl.DataFrame) -> Estimate:
    """The share of DIV's cases whose mean time is below the bound with constant 1; and the one that comes closest."""
    cases = measures.rows(table, {"rule": "div"}).group_by("graph", "n", "span").agg(pl.col("bound_ratio").mean())
    closest = cases.sort("bound_ratio", "n").row(-1, named=True)
    found = intervals.clopper_pearson(int((cases["bound_ratio"] <= 1).sum()), len(cases))
    where = f"{closest['graph']} of {closest['n']} nodes, range {closest['span']}"
    return replace(found, cases=f"at most {closest['bound_ratio']:.2g} of the bound: {where}")


def with_terms(measure: measures.Measure) -> measures.Measure:
    """The measure on a table that also has the bound's term K log(Kn), and the steps it leaves for 1/Φ to explain."""
    span_log = pl.col("span") * (pl.col("span") * pl.col("n")).log()
    unexplained = pl.col("bound_ratio") * pl.col("inverse_conductance") ** 2
    return lambda table: measure(table.with_columns(span_log=span_log, scaled_steps=unexplained))


claims = [
    Claim("expanders", measures.slope("n", "steps_mean", experiment="size")),
    Claim("range", with_terms(measures.slope("span_log", "steps_mean", experiment="span"))),
    Claim("conductance", with_terms(steepest("inverse_conductance", "scaled_steps", experiment="conductance"))),
    Claim("rounded", at_largest_n),
    Claim("expectation", farthest("bias_ratio", experiment="expectation", rule="div")),
    Claim(
        "constant",
        below_bound,
        asks="On every graph, size and range of opinions here the mean time is below n(K log(Kn) + γn)/Φ².",
        kind=Kind.EVERY,
    ),
    Claim(
        "over-pull",
        lambda table: more_hits(table, rule="pull"),
        asks="On the same complete graph DIV ends at the rounded average more often than pull voting.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "over-star",
        lambda table: more_hits(table, graph="star"),
        asks="DIV ends at the rounded average more often on a complete graph than on a star, which is no expander.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
]
