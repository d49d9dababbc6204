"""LMETRIC: send a request where (prompt tokens it would have to compute) x (requests on board) is least.

A router for cached prompts has two wishes that pull apart: follow the cache, and spread the load. The usual answer is
a weighted sum of two indicators in different units, and nobody knows the weights. A product needs none: a factor on
either indicator multiplies every instance's score alike and cannot change which one is smallest. An instance that has
the prefix wins as long as it is not busier by more than what the prefix saves.

The product can fail in one way: a hot prefix makes the first factor so small on its holders that a growing queue
never loses. `guard` watches for it: an instance chosen with more than `guard` times the mean load is left out for this
request, so that the prefix is copied elsewhere. How often it acts is counted in `guarded`.

The paper's traces are not at hand. The study has three workloads at 85 % of what vLLM's own rule can serve: Mooncake's
conversations (a real trace, of which a fleet's caches find a tenth), generated chats and generated agent loops (whose
prompts mostly repeat). Sessions are closed loops, in Mooncake's trace those that its prompts show. Every claim is read
off all three, each weighing the same. The weighted sum that stands for the production scheduler is tuned for the
figure in question, on other seeds and on another part of the trace.

Zhang et al., OSDI 2026, arXiv:2603.15202.

>>> from assay.serving.engine.simulator import simulate
>>> from assay.serving.fleet import parse
>>> from assay.workloads.chat import chat
>>> outcome = simulate(chat(200, rate=20.0, seed=0), parse("4xh200:qwen3-8b"), LMetric())
>>> outcome.summary()["requests"]
200
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.serving.baselines.routers import BASELINES, Linear
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse
from assay.serving.interface import Fleet, Request
from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.sim.trust import sentence
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.serving.engine.outcome import Outcome


@njit(cache=True)
def _products(prompt: int, matched: Any, running: Any, waiting: Any, pending: Any, out: Any) -> int:
    """Scores, requests on board and new tokens of every instance, the rows of `out`; where the smallest score is, or -1
    if there are several of it.

    Compiled: between two requests of a gateway caches go cold, and then a call of NumPy's costs as much as this.
    """
    at, times = -1, 0
    for i in range(len(matched)):
        out[1, i] = running[i] + waiting[i]
        out[2, i] = max(prompt - matched[i], 1) + (pending[i] if len(pending) else 0)
        out[0, i] = out[2, i] * (out[1, i] + 1)
        if at < 0 or out[0, i] < out[0, at]:
            at, times = i, 1
        elif out[0, i] == out[0, at]:
            times += 1
    return at if times == 1 else -1


_NOTHING = np.zeros(0, np.int64)


@dataclass
class LMetric:
    """The product of new prefill tokens and requests on board, smallest first.

    `pending` also counts the prompt tokens an instance has accepted and not computed, as one of the ports does.
    """

    key = "lmetric"
    pending: bool = False
    guard: float = 0.0  # times the mean load; 0: off
    guarded: int = 0

    def route(self, request: Request, fleet: Fleet) -> int:
        """Ties go to the smaller batch, then to the longer match."""
        found = np.empty((3, len(fleet)), np.int64)
        pending = fleet.prefill_tokens if self.pending else _NOTHING
        alone = _products(request.prompt, fleet.match(request), fleet.running, fleet.waiting, pending, found)
        score, load, tokens = found
        chosen = fleet.argmin(score, load, tokens, alone=alone)
        if self.guard and load[chosen] > self.guard * max(load.mean(), 1.0):
            spared = np.where(load > self.guard * max(load.mean(), 1.0), np.inf, score)
            self.guarded += 1
            return fleet.argmin(spared, load, tokens)
        return chosen


offers = {"router": LMetric}
evidence = Evidence.REPLAY
use_when = (
    "Several replicas of one model with prefix caches serve prompts that share beginnings: chats, agents, common "
    "system prompts. It needs nothing but what a gateway counts itself."
)
avoid_when = (
    "Prompts share nothing (any load-only rule does as well), or one prefix alone outgrows an instance: switch the "
    "guard on, or replicate that prefix on purpose."
)
trust = sentence("roofline")
own_input = (
    "assay compare serving --trace examples/chats.jsonl --fleet 16xh200:qwen3-32b --policies lmetric,vllm-v1,linear"
)
replays = ("mooncake-conversation",)
references = (
    "vLLM's data-parallel balancing: 4 x waiting + running.",
    "Mooncake's conversation trace: Qin et al., FAST 2025.",
)

WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the weighted sum
FLEET = "8xh20:qwen3-30b-a3b"
LOAD = 0.85  # at which the claims are judged
JUDGES = ("vllm-v1", "predicted-ttft")
OTHERS = ("round-robin", "least-requests", "session-hash", "llm-d", "dynamo", "sglang-cache-aware", "loadaware")
# What stands for the scheduler in production, which is not public: a weighted sum, tuned for the figure in question.
PRODUCTION = {"ttft_mean": "linear, tuned for ttft", "tpot_mean": "linear, tuned for tpot"}
WORKLOADS = ("conversation", "chat", "agents")
TRACE = "mooncake_conversation_trace.jsonl"
JUDGED = 8000  # requests of the trace, from the first, in which stretches are judged; the weight is tuned on the rest


def study(lab: Lab) -> pl.DataFrame:
    """A real chat trace, generated chats and agent loops at 85 % of capacity, beside the rules that routers ship."""
    counts = {"conversation": lab.pick(3000, 4000), "chat": lab.pick(3000, 16_000), "agents": lab.pick(3000, 16_000)}
    path = lab.trace_or_none(TRACE)
    cases = [
        {"workload": workload, "path": str(path), "load": load, "count": counts[workload]}
        for workload in (WORKLOADS if path else WORKLOADS[1:])
        for load in lab.pick(quick=(LOAD,), full=(0.7, LOAD, 0.95))
    ]
    judged = lab.with_seeds(quick=5, full=5).run(compare_at, cases, per="policy")
    others = lab.with_seeds(quick=2, full=3).run(others_at, cases, per="policy")
    return pl.concat([judged, others], how="diagonal").drop("path")


def compare_at(workload: str, path: str, load: float, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """The product, and whom the claims compare it with, at one share of the rate that the fleet can sustain."""
    trace, guard = at_load(make(workload, path, count, seed), load), LMetric(guard=3.0)
    routers = {"lmetric": LMetric(), "lmetric, guard": guard} | {name: BASELINES[name]() for name in JUDGES}
    rows = {name: _serve(trace, router) for name, router in routers.items()}
    rows["lmetric, guard"]["guarded"] = guard.guarded / len(trace)
    swept = {weight: _serve(trace, Linear(weight)) for weight in WEIGHTS}
    best = tuned(workload, path, load, count // 2, seed)
    rows |= {PRODUCTION[figure]: swept[weight] | {"weight": weight} for figure, weight in best.items()}
    ranked = sorted(swept.values(), key=lambda row: float(row["ttft_mean"]))
    return rows | {"linear, best weight": ranked[0], "linear, worst weight": ranked[-1]}


def others_at(workload: str, path: str, load: float, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """The rules that no claim is about, and the product with the work that waits counted in."""
    trace = at_load(make(workload, path, count, seed), load)
    routers = {"lmetric, pending": LMetric(pending=True)} | {name: BASELINES[name]() for name in OTHERS}
    return {name: _serve(trace, router) for name, router in routers.items()}


def tuned(workload: str, path: str, load: float, count: int, seed: int) -> dict[str, float]:
    """For either figure the weight that an operator would set: the best on a trace that nobody is judged on."""
    trace = at_load(make(workload, path, count, seed, tuning=True), load)
    swept = {weight: _serve(trace, Linear(weight)) for weight in WEIGHTS}
    return {figure: min(WEIGHTS, key=lambda weight: float(swept[weight][figure])) for figure in PRODUCTION}


def _serve(trace: Requests, router: Any) -> dict[str, Any]:
    return steady(simulate(trace, parse(FLEET), router, record=False))


def make(workload: str, path: str, count: int, seed: int, tuning: bool = False) -> Requests:
    """A stretch of the chat trace, another one for each seed, or generated traffic; `tuning`: what nobody is judged on.

    Stretches of two seeds may overlap: the trace holds four that do not.
    """
    from assay.workloads.chat import Agents, chat
    from assay.workloads.closed_loop import closed

    random = stream(seed, "lmetric", "tuning" if tuning else "judged")
    if workload != "conversation":
        drawn = int(random.integers(2**40))
        return chat(count, rate=10.0, seed=drawn, agents=Agents() if workload == "agents" else None)
    whole = _whole(path)
    first, last = (JUDGED, len(whole)) if tuning else (0, JUDGED)
    start = first + int(random.integers(0, last - first - count + 1))
    return closed(whole.part(start, start + count))


@lru_cache(maxsize=1)
def _whole(path: str) -> Requests:
    from assay.workloads.request_files import read

    return read(path, dejitter=True)


def at_load(trace: Requests, load: float) -> Requests:
    """The trace, faster or slower, so that in the stretch that is judged this share of what the fleet can do is sent.

    A turn waits for the answer before it, and sessions end after the stretch: what comes by vLLM's rule is less than
    the trace's own rate says, so the pace is set anew until it is right to 2 %. (At another pace people think faster.)
    """
    wanted = load * saturated(trace)
    pace = wanted / trace.rate
    for _ in range(6):
        records, judged = late(simulate(trace.faster(pace), parse(FLEET), BASELINES["vllm-v1"](), record=False))
        sent = records["arrival"][judged]
        reached = len(sent) / (sent.max() - sent.min()) / wanted
        if abs(reached - 1) < 0.02:
            break
        pace /= reached**1.5  # what is sent follows the pace less than in proportion
    return trace.faster(pace)


def saturated(trace: Requests) -> float:
    """Requests a second that the fleet completes by vLLM's own rule while all of them wait at the door.

    Counted from the first fifth that is done to seven tenths, so that it does not hang on filling up and draining.
    """
    outcome = simulate(trace.faster(1e6), parse(FLEET), BASELINES["vllm-v1"](), record=False, loop="open")
    done = np.sort(outcome.records["finish"][outcome.served])
    first, last = int(0.2 * len(done)), int(0.7 * len(done))
    return float((last - first) / (done[last] - done[first]))


def late(outcome: Outcome) -> tuple[Any, Any]:
    """The records of what was served, and which of it was sent in the second half of the time in which sessions begin.

    Until then caches fill and sessions grow; a mean from the start would depend on how long the trace is.
    """
    records = outcome.records
    begins = records["arrival"] if outcome.requests.after is None else records["arrival"][outcome.requests.after < 0]
    served = records[outcome.served]
    return served, (served["arrival"] >= 0.5 * begins.max()) & (served["arrival"] <= begins.max())


def steady(outcome: Outcome) -> dict[str, Any]:
    """The figures of the requests that are judged, see `late`."""
    records, judged = outcome.records, late(outcome)[1]
    ttft, tpot, prompt = outcome.ttft[judged], outcome.tpot[judged], records["prompt"][outcome.served][judged]
    several = records["output"][outcome.served][judged] > 1
    return {
        "offered": outcome.offered, "ttft_mean": float(ttft.mean()), "ttft_p50": float(np.median(ttft)),
        "ttft_p99": float(np.quantile(ttft, 0.99)), "tpot_mean": float(tpot[several].mean()),
        "tpot_p99": float(np.quantile(tpot[several], 0.99)), "e2e_mean": float(outcome.e2e[judged].mean()),
        "cached_ratio": float(records["cached"][outcome.served][judged].sum() / prompt.sum()),
        "preemptions": int(records["preemptions"].sum()),
    }  # fmt: skip


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Both latencies of every router, a row a workload."""
    import altair as alt

    titles = {"ttft_mean": "time to first token, s", "tpot_mean": "time per output token, s"}
    cases = table.filter(pl.col("load") == LOAD).group_by("workload", "policy", maintain_order=True)
    means = cases.agg(pl.col("ttft_mean").mean(), pl.col("tpot_mean").mean())
    long = means.unpivot(list(titles), index=["workload", "policy"], variable_name="figure", value_name="seconds")
    long = long.with_columns(pl.col("figure").replace(titles), ours=pl.col("policy").str.starts_with("lmetric"))
    dots = (
        alt.Chart(long)
        .mark_circle(size=70, opacity=0.9)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title=None),
            y=alt.Y("policy:N", sort=alt.SortField("seconds"), title=None),
            color=alt.Color("ours:N", legend=None),
        )
        .properties(width=300, height=240)
    )
    title = alt.Title(
        "Routers at 85 % of the fleet's capacity", subtitle="Mean over requests and seeds; left is better"
    )
    panels = dots.facet(row=alt.Row("workload:N", title=None), column=alt.Column("figure:N", title=None), title=title)
    chart: alt.FacetChart = panels.resolve_scale(x="independent", y="independent")
    return chart


def _on(column: str, against: str, workload: str) -> measures.Measure:
    """LMETRIC against a rival on one workload."""
    new, old = {"policy": "lmetric"}, {"policy": against}
    return measures.change(column, new=new, old=old, load=LOAD, workload=workload)


def _falls(column: str, against: str) -> measures.Measure:
    """LMETRIC against a rival over all workloads, each weighing the same: the geometric mean, seed by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        judged = table.filter(pl.col("load") == LOAD)
        pooled = judged.group_by("policy", "seed").agg(pl.col(column).log().mean().exp())
        found = measures.change(column, new={"policy": "lmetric"}, old={"policy": against})(pooled)
        parts = [f"{name} {_on(column, against, name)(table).value:+.0%}" for name in WORKLOADS]
        return replace(found, cases=", ".join(parts))

    return measure


claims = [
    Claim("ttft-vllm", _falls("ttft_mean", "vllm-v1"), evidence=Evidence.MODEL),
    Claim("tpot-vllm", _falls("tpot_mean", "vllm-v1"), evidence=Evidence.MODEL),
    Claim("ttft-production", _falls("ttft_mean", PRODUCTION["ttft_mean"]), evidence=Evidence.MODEL),
    Claim("tpot-production", _falls("tpot_mean", PRODUCTION["tpot_mean"]), evidence=Evidence.MODEL),
    Claim(
        "real-trace",
        _on("ttft_mean", "vllm-v1", "conversation"),
        asks="On the one real trace at hand, Mooncake's conversations, LMetric's mean time to first token is shorter "
        "than vLLM-v1's.",
        kind=Kind.CHANGE,
        toward="down",
    ),
    Claim(
        "predicted-ttft",
        _falls("ttft_mean", "predicted-ttft"),
        asks="LMetric's mean time to first token is shorter than that of a router that predicts it from the cost "
        "model, over the same three workloads.",
        kind=Kind.CHANGE,
        toward="down",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "best-weight",
        measures.best({name: _on("ttft_mean", "linear, best weight", name) for name in WORKLOADS}, every=True),
        asks="On each of the three workloads LMetric's mean time to first token is at most 5 % above that of the best "
        "of five weights of the weighted sum, chosen in hindsight.",
        kind=Kind.AT_MOST,
        value=0.05,
        unit="change",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "guard",
        measures.best(
            {name: measures.mean("guarded", policy="lmetric, guard", load=LOAD, workload=name) for name in WORKLOADS},
            every=True,
        ),
        asks="On each of the three workloads LMetric would send at most 1 % of the requests to an instance with more "
        "than three times the mean load: the product's way to fail is rare.",
        kind=Kind.AT_MOST,
        value=0.01,
        unit="share",
        evidence=Evidence.MODEL,
    ),
]
