"""HELM: one HBM pool, two caches, and a border between them that follows the traffic.

A generative recommender keeps two things in GPU memory: embeddings of popular items, which otherwise come over the
host link, and the KV of users' histories, which otherwise is computed again. Whatever one gets, the other loses, and
which of them deserves it changes with the hour: a sale draws many users with short histories and a wide choice of
items; an evening brings back few users with long ones. HELM moves the border once a second, in three layers: a small
network trained offline by reinforcement, a linear correction that keeps learning online, and a guard that, during
bursts, lets the border go one way only and no faster than an idle link can refill. Requests go where queue, resident
KV and resident embeddings together promise the earliest answer; all three are in seconds, so nothing needs a weight.

The study replays the same requests against every split and every controller. Caches are real least-recently-used lists;
the best split is found by replay and known to nobody while it runs. The paper's sizes, reward and step limits are not
public in full: the ones here are parameters of `recommender_node.Node`, `helm_policy` and `recommender_traffic.Shape`.

The paper's latency target is not public either, and attainment follows from it. Ours is what an operator would write
down who had tuned a static split: the P99 that the best one keeps in steady traffic, measured on the same fleet before
all else. The table has the share in time at half, once, twice and four times that target.

The best static split is chosen with hindsight and may choose its router too, and that decides the first claims.
HELM's router asks which node answers *this* request first; under load that sends users away from their history, and the
prefill that is repeated makes all others wait. Plain KV-affinity does not. So a static split with KV-affinity comes
close to HELM, or beats it, while the same controller over KV-affinity ("helm, kv-affinity") beats both where traffic
changes: the border is worth moving, the routing formula is what loses.

Without authors' code at hand, after arXiv:2605.04450.

>>> outcome = replay("steady", "static 0.3", nodes=2, duration=60.0, seed=0)
>>> bool(outcome.latency.max() > outcome.latency.min() > 0.0), float(outcome.ratios.max())
(True, 0.3)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record import intervals, measures
from assay.record.tables import Tables
from assay.record.timing import interleave
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.serving.helm.policy import (
    FEATURES,
    WARMUP,
    WEIGHTS,
    BurstGuard,
    Controller,
    HillClimb,
    Layered,
    Residual,
    drive,
    train,
)
from assay.serving.helm.recommender_node import Fleet, Node
from assay.sim import learners
from assay.sim.random import stream
from assay.workloads.recommender_traffic import REGIMES, Traffic, generate

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # nodes are simulated; caches, traffic order and controllers are real
use_when = (
    "Two caches of different worth share one GPU's memory and the mix of traffic shifts within minutes: recommender "
    "nodes with embeddings and user KV, or any engine that trades a weight cache for a KV cache."
)
avoid_when = (
    "Traffic is steady (a swept static split is as good and cannot misbehave), everything fits, or the link to the "
    "host has no idle time to refill what a moved border empties."
)
trust = "How long a node takes is a model; no measured node was at hand to say how far off it is."
own_input = "assay compare helm --traffic examples/recommender.csv --nodes 1 --pool 2"
references = (
    "PPO: Schulman, Wolski, Dhariwal, Radford and Klimov, arXiv:1707.06347.",
    "Generative recommenders and their cost: Zhai et al., arXiv:2402.17152.",
)

Floats = NDArray[np.float64]
SPLITS = tuple(round(0.1 * k, 1) for k in range(1, 10))
ORDERED = ("burst", "trend", "steady")  # the longest first
WINDOW = 20.0  # seconds over which one split is called the best
TRAINING_STEPS, TRAINING_SEED = 150_000, 0
TARGETS = {"half": 0.5, "target": 1.0, "double": 2.0, "fourfold": 4.0}  # times the target
CONTROLLED = ("hill-climb", "ppo", "helm", "helm without layer 2", "helm without layer 3")
ELSEWHERE = ("kv-affinity", "least-load")  # routers that HELM's own ("both-caches") is compared with


def names(splits: Sequence[float], router: str = "") -> tuple[str, ...]:
    """The static policies of some splits; a name without a router means HELM's own.

    >>> names([0.1, 0.2], "least-load")
    ('static 0.1, least-load', 'static 0.2, least-load')
    """
    return tuple(f"static {split}{', ' * bool(router)}{router}" for split in splits)


POLICIES = (
    *names(SPLITS), *(name for router in ELSEWHERE for name in names(SPLITS, router)),
    "unified-lru", *CONTROLLED, *(f"helm, {router}" for router in ELSEWHERE),
)  # fmt: skip
# What the quick size replays. Left out is what was far from the best on other seeds (100 and up): least load but for
# one split, KV-affinity at the edges, and all beyond 0.6, from where the tail only grows.
FEW = (*names(SPLITS[:6]), *names(SPLITS[1:5], "kv-affinity"), *names([0.2], "least-load"), "helm", "helm, kv-affinity")


@dataclass(frozen=True, eq=False)
class Outcome:
    """A replay: every request's latency in order of arrival, and the splits in force, [period, node]."""

    traffic: Traffic
    latency: Floats
    ratios: Floats
    allocated: float
    """The largest share of a node's pool that was ever allocated."""


def base_policy(weights: str = "") -> learners.Mlp:
    """Layer 1: the network that was trained offline, from a file of `train` or the one that comes with assay.

    >>> base_policy()(np.zeros(len(FEATURES))).shape
    (1,)
    """
    nets, _ = learners.load(Path(weights) if weights else WEIGHTS)
    return nets["base"]


def controller(
    policy: str, nodes: int, base: learners.Mlp, seed: int = 0, node: Node | None = None
) -> tuple[Controller, str]:
    """The controller of a policy, and how the border's moves are refilled under it.

    Without layer 3 a move is a bulk copy. The baselines get the lazy refill too, so that what they lose by is theirs.

    >>> controller("helm without layer 3", 4, base_policy())[1]
    'bulk'
    """
    residual, guard = partial(Residual, nodes, seed), partial(BurstGuard, nodes, node or Node())
    match policy.partition(", ")[0]:
        case "hill-climb":
            return HillClimb(nodes), "idle"
        case "ppo":
            return Layered(base), "idle"
        case "helm without layer 2":
            return Layered(base, guard=guard()), "idle"
        case "helm without layer 3":
            return Layered(base, residual=residual()), "bulk"
        case "helm":
            return Layered(base, residual=residual(), guard=guard()), "idle"
    raise ValueError(f"no policy '{policy}'; there are {', '.join(POLICIES)}")


def replay(
    regime: str | Traffic, policy: str, *, nodes: int = 4, duration: float = 200.0, seed: int = 0, weights: str = "",
    node: Node | None = None,
) -> Outcome:  # fmt: skip
    """Serve one traffic under one policy.

    >>> replay("steady", "unified-lru", nodes=1, duration=20.0).allocated <= 1.0
    True
    """
    traffic = generate(regime, nodes, duration, seed, warmup=WARMUP) if isinstance(regime, str) else regime
    what, _, router = policy.partition(", ")
    router = router or "both-caches"
    if what.startswith("static ") or what == "unified-lru":
        unified = what == "unified-lru"
        ratio = 0.5 if unified else float(what.split()[1])
        fleet = Fleet(traffic, nodes, ratio=ratio, router=router, unified=unified, node=node)
        fleet.advance(traffic.duration)
        ratios = fleet.ratios[None]
    else:
        chosen, refill = controller(policy, nodes, base_policy(weights), seed, node)
        fleet = Fleet(traffic, nodes, ratio=0.5, router=router, refill=refill, node=node)
        ratios = drive(fleet, chosen)
    return Outcome(traffic, fleet.latency, ratios, float(fleet.allocated.max() / fleet.node.pool))


# ------------------------------------------------------------------------------------------- the study


def windows(traffic: Traffic) -> NDArray[np.int64]:
    """The window of each request, negative while caches fill."""
    return np.floor((traffic.arrival - WARMUP) / WINDOW).astype(np.int64)


def best_splits(curves: Floats) -> Floats:
    """The best of the first `SPLITS` in each window from curves[split, window] of p99: refined by a parabola.

    >>> tails = np.array([[9.0], [4.0], [1.5], [4.0], [9.0], [20.0], [30.0], [40.0], [50.0]])
    >>> best_splits(tails).round(2).tolist()
    [0.3]
    """
    height, splits = np.log(curves), np.array(SPLITS[: len(curves)])
    middle = np.clip(height.argmin(0), 1, len(splits) - 2)
    each = np.arange(curves.shape[1])
    left, here, right = height[middle - 1, each], height[middle, each], height[middle + 1, each]
    bend = np.maximum(left - 2 * here + right, 1e-12)
    shift = np.clip(0.5 * (left - right) / bend, -1.0, 1.0)
    found: Floats = splits[middle] + shift * (splits[1] - splits[0])
    return found


def tied_splits(curves: Floats, slack: float = 0.05) -> tuple[Floats, Floats]:
    """The lowest and the highest split of each window whose P99 is within `slack` of the best.

    >>> tails = np.array([[9.0], [4.0], [1.5], [1.51], [9.0], [20.0], [30.0], [40.0], [50.0]])
    >>> [bound.tolist() for bound in tied_splits(tails)]
    [[0.3], [0.4]]
    """
    good = curves <= (1 + slack) * curves.min(0)
    return np.array(SPLITS)[good.argmax(0)], np.array(SPLITS)[len(good) - 1 - good[::-1].argmax(0)]


def distance(ratios: Floats, low: Floats, high: Floats) -> float:
    """The mean distance of the splits in force from low..high of their window, over nodes and seconds.

    >>> distance(np.array([[0.5]]), np.array([0.2, 0.6]), np.array([0.2, 0.7])).__round__(2)
    0.2
    """
    second = np.arange(WARMUP, WARMUP + WINDOW * len(low))
    window = ((second - WARMUP) // WINDOW).astype(np.int64)
    course = ratios[second.astype(np.int64)] if len(ratios) > 1 else ratios
    return float(np.maximum(0.0, np.maximum(low[window, None] - course, course - high[window, None])).mean())


def tails(nodes: int, duration: float, seed: int) -> dict[str, dict[str, Any]]:
    """P99 of the static splits that are good in steady traffic: the least of them becomes the target."""
    traffic = generate("steady", nodes, duration, seed, warmup=WARMUP)
    counted = windows(traffic) >= 0
    good = (*names(SPLITS[1:4]), *names(SPLITS[2:4], "kv-affinity"))
    latency = {name: replay(traffic, name, nodes=nodes, seed=seed).latency[counted] for name in good}
    return {name: {"latency_p99": float(np.quantile(values, 0.99))} for name, values in latency.items()}


def trial(
    regime: str, nodes: int, duration: float, target: float, every: bool, weights: str, seed: int
) -> dict[str, dict[str, Any]]:
    """Every policy (or few) on the same requests, and the best split of each window found by replaying all of them."""
    traffic = generate(regime, nodes, duration, seed, warmup=WARMUP)
    policies = POLICIES if every else FEW
    outcomes = {name: replay(traffic, name, nodes=nodes, seed=seed, weights=weights) for name in policies}
    window = windows(traffic)
    members = [np.flatnonzero(window == w) for w in range(int((duration - WARMUP) // WINDOW))]
    statics = np.array([outcomes[name].latency for name in names(SPLITS) if name in outcomes])
    curves = np.array([[np.quantile(run[chosen], 0.99) for chosen in members] for run in statics])
    best, (low, high) = best_splits(curves), tied_splits(curves)
    ends = {"tied_low_max": float(low.max()), "tied_high_min": float(high.min())}
    rows = {name: _row(outcome.latency[window >= 0], target) | ends for name, outcome in outcomes.items()}
    for name, outcome in outcomes.items():
        rows[name] |= {"allocated_max": outcome.allocated}
        if name != "unified-lru":
            rows[name] |= {
                "distance_mean": distance(outcome.ratios, best, best),
                "distance_from_tied_mean": distance(outcome.ratios, low, high),
                "ratio_mean": float(outcome.ratios[int(WARMUP) if len(outcome.ratios) > 1 else 0 :].mean()),
                "travel_mean": float(np.abs(np.diff(outcome.ratios, axis=0)).sum(0).mean()),
            }
    pieced = np.concatenate([statics[pick][chosen] for pick, chosen in zip(curves.argmin(0), members, strict=True)])
    rows["best split of each window"] = _row(pieced, target) | ends
    return rows


def _row(latency: Floats, target: float) -> dict[str, Any]:
    return {
        "latency_mean": float(latency.mean()),
        "latency_p99": float(np.quantile(latency, 0.99)),
        "requests": len(latency),
    } | {f"within_{name}_ratio": float((latency <= times * target).mean()) for name, times in TARGETS.items()}


def timed(rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Processor seconds of one decision for one node, on the states of a random walk: the median round's.

    A decision only computes, so its processor time is its own; a round in which others' work empties its caches is not
    the usual one, nor is the luckiest.
    """
    states = stream(seed, "helm", "states").random((64, 1, len(FEATURES)))
    ratios = np.array([0.5])

    def many(chosen: Controller) -> Callable[[], None]:
        def run() -> None:
            for state in states:
                chosen.decide(state, ratios)

        return run

    contenders = {name: many(controller(name, 1, base_policy(), seed)[0]) for name in ("helm", "ppo", "hill-climb")}
    for run in contenders.values():
        run()
    seconds = interleave(contenders, rounds, clock=time.process_time)
    return {name: {"decision": statistics.median(values) / len(states)} for name, values in seconds.items()}


def study(lab: Lab) -> Tables:
    """Three regimes under every policy. The full size first trains the network anew and keeps it with the artefacts."""
    weights = ""
    if lab.size == "full":
        weights = str(lab.artefacts / "helm.npz")
        train(TRAINING_STEPS, TRAINING_SEED, Path(weights))
    served = serve(lab, lab.pick(quick=3, full=4), lab.pick(quick=390.0, full=630.0), weights)
    decided = lab.run(timed, [{"rounds": lab.pick(quick=15, full=101)}], per="policy", alone=True)
    return {"traffic": served, "decision": decided}


def serve(lab: Lab, nodes: int, duration: float, weights: str = "") -> pl.DataFrame:
    """Every policy in every regime, within the target that the best static split keeps in steady traffic."""
    steady = lab.run(tails, [{"nodes": nodes, "duration": duration}], per="policy").group_by("policy")
    target = float(steady.agg(pl.col("latency_p99").mean())["latency_p99"].min())  # type: ignore[arg-type]
    case = {"nodes": nodes, "target": target, "every": lab.pick(quick=False, full=True), "weights": weights}
    # What a run of bursts is like depends on those it has: twice as long, a dozen.
    cases = [{"regime": r, "duration": 2 * duration if r == "burst" else duration, **case} for r in ORDERED]
    return lab.run(trial, cases, per="policy").drop("every", "weights")


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """P99 against the static split in each regime under both routers, and HELM's beside it."""
    import altair as alt

    served = table.filter(pl.col("experiment") == "traffic").with_columns(ms=pl.col("latency_p99") * 1e3)
    means = served.group_by("regime", "policy", maintain_order=True).agg(pl.col("ms", "ratio_mean").mean())
    router = pl.when(pl.col("policy").str.contains(",")).then(pl.lit("KV-affinity")).otherwise(pl.lit("HELM's"))
    static = means.filter(pl.col("policy").str.contains(r"^static [\d.]+(, kv-affinity)?$")).with_columns(router=router)
    ours = means.filter(pl.col("policy") == "helm")
    y = alt.Y("ms:Q", scale=alt.Scale(type="log"), title="P99 latency, ms (log)")
    x = alt.X("ratio_mean:Q", title="share of the pool for embeddings")
    lines = (
        alt.Chart(static)
        .mark_line(point=True)
        .encode(x=x, y=y, color=alt.Color("regime:N"), opacity=alt.Opacity("router:N", sort=["KV-affinity"]))
    )
    rules = alt.Chart(ours).mark_rule(strokeDash=[4, 4]).encode(y=y, color=alt.Color("regime:N"))
    title = alt.Title("The best split depends on the traffic", subtitle="Lines: static splits by router. Dashed: HELM")
    chart: alt.LayerChart = (lines + rules).properties(width=560, height=320, title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def best_static(table: pl.DataFrame, regime: str, router: str | None = None, column: str = "latency_p99") -> str:
    """The static split and router with the least P99 of a regime (geometric mean), or the most of another column.

    `router` holds the router fixed; "" is HELM's own.

    >>> rows = [("static 0.3", 0.2), ("static 0.4, kv-affinity", 0.1), ("helm", 0.05)]
    >>> table = pl.DataFrame([("burst", *row) for row in rows], ["regime", "policy", "latency_p99"], orient="row")
    >>> best_static(table, "burst"), best_static(table, "burst", router="")
    ('static 0.4, kv-affinity', 'static 0.3')
    """
    runs = table.filter((pl.col("regime") == regime) & pl.col("policy").str.starts_with("static"))
    if router is not None:
        runs = runs.filter(pl.col("policy").is_in(names(SPLITS, router)))
    means = runs.group_by("policy").agg(pl.col(column).log().mean())
    return str(means.sort(column, "policy", descending=[column != "latency_p99", False])["policy"][0])


def beside_best_static(table: pl.DataFrame, regime: str, policy: str, column: str) -> tuple[Floats, Floats]:
    """A policy's column by seed, and that of the best static split and router, chosen with hindsight."""
    both = (policy, best_static(table, regime, column=column))
    ours, theirs = (measures.rows(table, {"regime": regime, "policy": name})[column].to_numpy() for name in both)
    return ours, theirs


def p99_change(regime: str, policy: str = "helm") -> measures.Measure:
    """Change of P99 against the best static split under its best router: the geometric mean over seeds.

    A split that falls behind in one seed's burst has a hundred times the P99 of others: a mean would be that seed's.
    """

    def measure(table: pl.DataFrame) -> Estimate:
        ours, theirs = beside_best_static(table, regime, policy, "latency_p99")
        found = intervals.bootstrap(np.log(ours / theirs))
        value, low, high = np.expm1([found.value, found.low, found.high]).tolist()
        return Estimate(value, low, high, found.n)

    return measure


def more_in_time(regime: str, policy: str = "helm") -> measures.Measure:
    """How much larger a share is within the target than under the best static split and router."""
    return lambda table: intervals.bootstrap(np.subtract(*beside_best_static(table, regime, policy, IN_TIME)))


def over_regimes(of: Callable[[str], measures.Measure], choose: Callable[..., Any]) -> measures.Measure:
    """The least or the largest of a measure over the regimes."""
    return measures.best({regime: of(regime) for regime in REGIMES}, choose)


def shift(table: pl.DataFrame) -> Estimate:
    """How far apart the best splits of two windows lie at most, over all regimes: from tie to tie, by seed.

    Splits within 5 % of a window's least P99 count as equally good, so that noise alone does not move the best one.
    """
    served = measures.rows(table, {"policy": "helm", "experiment": "traffic"})
    spans = served.group_by("seed").agg((pl.col("tied_low_max").max() - pl.col("tied_high_min").min()).alias("span"))
    found = measures.mean("span")(spans)
    return replace(found, cases=f"any two windows of {WINDOW:g} s in {', '.join(REGIMES)} traffic")


IN_TIME = "within_target_ratio"

claims = [
    Claim("p99", over_regimes(p99_change, min)),
    Claim("p99-worst", over_regimes(p99_change, max)),
    Claim("attainment", over_regimes(lambda regime: measures.mean(IN_TIME, policy="helm", regime=regime), min)),
    Claim(
        "distance",
        over_regimes(lambda regime: measures.mean("distance_from_tied_mean", policy="helm", regime=regime), max),
    ),
    Claim("decision", measures.mean("decision", policy="helm", experiment="decision"), evidence=Evidence.REAL),
    Claim("shift", shift),
    Claim(
        "border-trend",
        p99_change("trend", "helm, kv-affinity"),
        asks="In trending traffic HELM's controller over plain KV-affinity lowers P99 against the best static split "
        "under its best router.",
        kind=Kind.CHANGE,
        toward="down",
    ),
    Claim(
        "border-burst",
        p99_change("burst", "helm, kv-affinity"),
        asks="In bursty traffic HELM's controller over plain KV-affinity lowers P99 against the best static split "
        "under its best router.",
        kind=Kind.CHANGE,
        toward="down",
    ),
    Claim(
        "in-time",
        more_in_time("burst", "helm, kv-affinity"),
        asks="In bursty traffic more requests are in time under HELM's controller over plain KV-affinity than under "
        "the best static split and router.",
        kind=Kind.DIFFERENCE,
        unit="share",
        toward="up",
    ),
]
