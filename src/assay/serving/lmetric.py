"""LMETRIC: send a request where (prompt tokens it would have to compute) x (requests on board) is least.

A router for cached prompts has two wishes that pull apart: follow the cache, and spread the load. The usual answer is
a weighted sum of two indicators in different units, and nobody knows the weights. A product needs none: a factor on
either indicator multiplies every instance's score alike and cannot change which one is smallest. An instance that has
the prefix wins as long as it is not busier by more than what the prefix saves.

The product can fail in one way: a hot prefix makes the first factor so small on its holders that a growing queue
never loses. `guard` watches for it: an instance chosen with more than `guard` times the mean load is left out for this
request, so that the prefix is copied elsewhere. How often it acts is counted in `guarded`.

The study runs on two workloads at 85 % of what vLLM's own rule can serve: agent loops, whose prompts mostly repeat (as
the paper's chat and coding traces do; those are not at hand), and the Mooncake conversation trace, of which a fleet's
caches find only a tenth. The claims are read off the first; on the second all rules are close.

Zhang et al., OSDI 2026, arXiv:2603.15202.

>>> from assay.serving.engine import simulate
>>> from assay.serving.fleet import parse
>>> from assay.workloads.chat import chat
>>> outcome = simulate(chat(200, rate=20.0, seed=0), parse("4xh200:qwen3-8b"), LMetric())
>>> outcome.summary()["requests"]
200
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.types import Claim, Evidence
from assay.serving.engine import simulate
from assay.serving.fleet import parse
from assay.serving.interface import Fleet, Request
from assay.serving.routers import BASELINES, Linear
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab


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
        tokens, load = fleet.new_prefill_tokens(request), fleet.batch_size
        if self.pending:
            tokens = tokens + fleet.prefill_tokens
        score = tokens * (load + 1)
        chosen = fleet.argmin(score, load, tokens)
        if self.guard and load[chosen] > self.guard * max(load.mean(), 1.0):
            spared = np.where(load > self.guard * max(load.mean(), 1.0), np.inf, score)
            self.guarded += 1
            return fleet.argmin(spared, load, tokens)
        return chosen


component = LMetric
evidence = Evidence.REPLAY
use_when = (
    "Several replicas of one model with prefix caches serve prompts that share beginnings: chats, agents, common "
    "system prompts. It needs nothing but what a gateway counts itself."
)
avoid_when = (
    "Prompts share nothing (any load-only rule does as well), or one prefix alone outgrows an instance: switch the "
    "guard on, or replicate that prefix on purpose."
)
own_input = "assay compare serving --trace my.jsonl --fleet 16xh200:qwen3-32b --policies lmetric,vllm-v1,linear"
references = (
    "vLLM's data-parallel balancing: 4 x waiting + running.",
    "Mooncake's conversation trace: Qin et al., FAST 2025.",
)

WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the weighted sum
FLEET = "8xh20:qwen3-30b-a3b"
RIVALS = ("vllm-v1", "round-robin", "least-requests", "llm-d", "dynamo", "sglang-cache-aware", "loadaware")
PRODUCTION = "linear, tuned"  # stands for the scheduler in production, which is not public


def study(lab: Lab) -> pl.DataFrame:
    """A chat trace and agent loops at 85 % of what the fleet can serve, beside the rules that routers ship."""
    count = lab.pick(quick=2500, full=12_000)
    loads = lab.pick(quick=(0.85,), full=(0.7, 0.85, 0.95))
    chats = str(lab.trace("mooncake_conversation_trace.jsonl"))
    cases = [{"workload": name, "load": load, "count": count} for name in (chats, "agents") for load in loads]
    table = lab.run(compare_at, cases, per="policy")
    return table.with_columns(workload=pl.col("workload").replace({chats: "conversation"}))


def compare_at(workload: str, load: float, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every router on one workload, at one share of the rate that the fleet can sustain."""
    fleet = parse(FLEET)
    trace = _trace(workload, count, seed)
    trace = trace.faster(load * saturated(trace) / trace.rate)
    routers: dict[str, Any] = {
        "lmetric": LMetric(),
        "lmetric, pending": LMetric(pending=True),
        "lmetric, guard": LMetric(guard=3.0),
    }
    routers |= {name: BASELINES[name]() for name in RIVALS}
    rows = {name: _row(simulate(trace, fleet, router, record=False)) for name, router in routers.items()}
    rows["lmetric, guard"]["guarded"] = routers["lmetric, guard"].guarded / len(trace)
    swept = {weight: _row(simulate(trace, fleet, Linear(weight), record=False)) for weight in WEIGHTS}
    # The weight is tuned on another stretch of the same workload, as an operator would, not on the one it is scored on.
    other = _trace(workload, count, seed + 1000)
    other = other.faster(load * saturated(other) / other.rate)
    tuned = min(WEIGHTS, key=lambda w: _row(simulate(other, fleet, Linear(w), record=False))["ttft_mean"])
    rows[PRODUCTION] = swept[tuned] | {"weight": tuned}
    rows["linear, best weight"] = min(swept.values(), key=lambda row: row["ttft_mean"])
    rows["linear, worst weight"] = max(swept.values(), key=lambda row: row["ttft_mean"])
    return {name: {"guarded": 0.0, "weight": None} | row for name, row in rows.items()}


def _trace(workload: str, count: int, seed: int) -> Requests:
    """A stretch of the chat trace, another one for each seed; or agent loops."""
    from assay.workloads.chat import Agents, chat
    from assay.workloads.request_files import read

    if workload == "agents":
        return chat(count, rate=10.0, seed=seed, agents=Agents())
    whole = read(workload, dejitter=True)
    start = (seed * 1777) % (len(whole) - count + 1)
    return whole.part(start, start + count)


def saturated(trace: Requests) -> float:
    """Requests a second that the fleet completes when all of them wait at the door, by vLLM's own rule."""
    outcome = simulate(trace.faster(1e6), parse(FLEET), BASELINES["vllm-v1"](), record=False)
    return len(trace) / outcome.makespan


def _row(outcome: Any) -> dict[str, Any]:
    names = ("ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean", "tpot_p99", "e2e_mean", "cached_ratio", "preemptions")
    row = outcome.summary()
    return {name: row[name] for name in names}


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Both latencies of every router, a row a workload."""
    import altair as alt

    titles = {"ttft_mean": "time to first token, s", "tpot_mean": "time per output token, s"}
    cases = table.filter(pl.col("load") == 0.85).group_by("workload", "policy", maintain_order=True)
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


def _falls(column: str, against: str) -> measures.Measure:
    new, old = {"policy": "lmetric"}, {"policy": against}
    return measures.change(column, new=new, old=old, load=0.85, workload="agents")


claims = [
    Claim("ttft-vllm", _falls("ttft_mean", "vllm-v1"), evidence=Evidence.MODEL),
    Claim("tpot-vllm", _falls("tpot_mean", "vllm-v1"), evidence=Evidence.MODEL),
    Claim("ttft-production", _falls("ttft_mean", PRODUCTION), evidence=Evidence.MODEL),
    Claim("tpot-production", _falls("tpot_mean", PRODUCTION), evidence=Evidence.MODEL),
]
