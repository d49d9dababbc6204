"""TAPER: run extra branches of an answer only with time that nobody else in the batch will miss.

Some answers have parts that can be written side by side. Decoding all of them at once makes the shared step longer for
every request in the batch; decoding one after another keeps a request, and its KV cache, in the instance for longer
than needed. A fixed cap is wrong most of the time, because how many branches are harmless changes with who is in the
batch, how long their contexts are and how far ahead of their targets they run. TAPER decides before every step. Every
request gets one token; the slack is how much longer the step may take until the first request of the batch falls
behind its own target; extra branches are added, one request after the other, while the predicted extra time fits that
slack. A branch that is left out loses nothing: its KV stays where it is. The prediction comes from a cost model that
is corrected after every step by what the step really took.

Gandhi, Hari, Dally and Kozyrakis, arXiv:2605.06914. How the margin, the order of branches and progress in a parallel
stage are defined is our reading: the margin is 5 % of the base step, the longest remaining branch goes first (which
needs lengths that a real engine must estimate; `BLIND` does without), and progress counts the tokens of all branches.

Here it runs on step times of Qwen3-32B that were measured on an H200, with generated answers (half of them branch, 2 to
16 wide) and one pair of targets. Room for KV is what one branch at a time runs out of: requests stay longer, the queue
grows, first tokens are late. The length of the step is what all branches at once run out of. As each branch reads the
shared prefix again, extra branches are not free, which bounds what any policy can win; with a kernel that reads it once
(`prefix_reads="once"`, in the full study) starting everything at once does less harm.

>>> from assay.workloads.branches import generate
>>> trace, cost = generate(60, rate=1.8, share=0.5, seed=0), best("h200:qwen3-32b")
>>> outcomes = [serve(trace, cost, policy, ttft=2.0, tpot=0.05) for policy in (OFF, TAPER)]
>>> outcomes[1].makespan < outcomes[0].makespan, bool((outcomes[1].tpot <= 0.05).all())
(True, True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures, traces
from assay.record.tables import Tables
from assay.record.types import Claim, Evidence
from assay.serving.taper.branch_engine import Served, serve
from assay.serving.taper.branch_state import EAGER, OFF, Policy
from assay.sim.random import stream
from assay.sim.roofline import layout
from assay.sim.step_times import best, trust_of
from assay.workloads import branches, request_files
from assay.workloads.branches import Branching

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
use_when = (
    "Answers have parts that can be decoded side by side (outlines, sampled paths, sub-questions), they share a batch "
    "with plain requests that have a target per token, and KV memory, not step time, limits how many requests run."
)
avoid_when = (
    "Nothing branches; the step is already as long as the target allows, so that there is no slack to spend; or load "
    "is so low that starting every branch at once does no harm either."
)
own_input = "assay compare taper --trace examples/branches.jsonl --rate 2.2"
replays = ("azure-2023-conv",)
references = ("Azure LLM inference trace 2023, conversations: Patel et al., ISCA 2024.",)

TAPER = Policy("taper", regulated=True)
BLIND = Policy("taper-blind", regulated=True, order="least")  # does not know how long branches will get
PER_REQUEST = tuple(Policy(f"cap-{cap}", per_request=cap) for cap in (2, 4, 8))
PER_BATCH = tuple(Policy(f"batch-{cap}", per_batch=cap) for cap in (2, 4, 8, 16, 32, 64, 128))
POLICIES = {policy.name: policy for policy in (OFF, EAGER, *PER_REQUEST, *PER_BATCH, TAPER, BLIND)}
QUICK = ("irp-off", "irp-eager", "batch-32", "taper")

LAYOUT = "h200:qwen3-32b"
trust = trust_of(LAYOUT)
TTFT, TPOT = 2.0, 0.05  # seconds: targets of every request (assumed)
ATTAINMENT = 0.95
START = 2.0  # requests a second: where the search for a capacity begins
JITTER = 0.03  # of a step's time (assumed)
AZURE = "AzureLLMInferenceTrace_conv.csv"
BEYOND = 1.1  # where TAPER's attainment is read: this far above the highest rate that Off or Eager sustain


def run(trace: Branching, policy: Policy, seed: int, on: str = LAYOUT, **options: Any) -> Served:
    """Serve a trace as the study does: the predictor starts from the data sheet's peaks and has the rest to learn."""
    believed = layout(on, compute=1.0, bandwidth=1.0, overhead=0.0)
    targets = {"ttft": TTFT, "tpot": TPOT} | options
    return serve(trace, best(on), policy, believed=believed, jitter=JITTER, seed=seed, **targets)


def attained(served: Served) -> float:
    """The share of requests that met both targets, without the first (empty instance) and the last (no load behind).

    >>> 0.0 <= attained(run(traffic("poisson", 0.5, 50, seed=0).at(1.0), EAGER, seed=0)) <= 1.0
    True
    """
    n = len(served.trace)
    return float(served.met[n * 3 // 10 : n - n // 10].mean())


def capacity(trace: Branching, policy: Policy, seed: int, **options: Any) -> float:
    """The highest rate, in requests a second, at which 95 % meet both targets: bracketed, then bisected to 2 %."""

    def holds(rate: float) -> bool:
        return attained(run(trace.at(rate), policy, seed, **options)) >= ATTAINMENT

    low, stride = START, 1.4
    if holds(low):
        while holds(low * stride) and low < 1e3:
            low *= stride
    else:
        low /= stride
        while not holds(low):
            low /= stride
            if low < 1e-2:
                return 0.0
    high = low * stride
    while high > 1.02 * low:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def externality(served: Served) -> dict[str, float]:
    """How well admission kept to its budget: what the extras really added, beyond the budget and beside the guess."""
    ran = served.column("extras") > 0
    if not ran.any():
        return {"overshoot_max": 0.0, "overshoot_share": 0.0, "guess_error_mean": 0.0}
    true, budget = served.column("externality")[ran], served.column("budget")[ran]
    error = np.abs(true - served.column("predicted")[ran])
    over = np.maximum(0.0, true - budget)
    return {
        "overshoot_max": float(over.max()),
        "overshoot_share": float((over > 0).mean()),
        "guess_error_mean": float(error.mean()),
    }


# ------------------------------------------------------------------------------------------- the study


def traffic(arrivals: str, share: float, requests: int, seed: int) -> Branching:
    """Generated requests, or a stretch of Azure's conversations, a share of them with branching answers."""
    if arrivals == "poisson":
        return branches.generate(requests, 1.0, share, seed)
    trace = request_files.read(traces.find(AZURE))
    start = int(stream(seed, "taper", "azure").integers(0, len(trace) - requests))
    return branches.branching(trace.part(start, start + requests), share, seed)


def sweep(arrivals: str, share: float, rate: float, requests: int, policies: list[str], seed: int) -> dict[str, Any]:
    """Every policy at one load."""
    trace, rows = traffic(arrivals, share, requests, seed).at(rate), {}
    for name in policies:
        served = run(trace, POLICIES[name], seed, logged=30_000 if POLICIES[name].regulated else 0)
        attainment, parallel = attained(served), trace.branching
        rows[name] = {
            "attainment": attainment,
            "goodput": attainment * rate,
            "ttft_p99": float(np.quantile(served.ttft, 0.99)),
            "tpot_p95": float(np.quantile(served.tpot, 0.95)),
            "e2e_mean": float(served.e2e.mean()),
            "branching_e2e_mean": float(served.e2e[parallel].mean()),
            "extras_mean": served.count("extras") / served.steps,
            "step_mean": served.makespan / served.steps,
            "preemptions": served.count("preempted"),
            **(externality(served) if POLICIES[name].regulated else {}),
        }
    return rows


def limits(
    arrivals: str, share: float, requests: int, tpot: float, prefix_reads: str, policies: list[str], seed: int
) -> dict[str, Any]:
    """Every policy's capacity, and its attainment on fresh traffic at a rate that neither Off nor Eager sustains."""
    options: dict[str, Any] = {"tpot": tpot, "prefix_reads": prefix_reads}
    trace = traffic(arrivals, share, requests, seed)
    found = {name: capacity(trace, POLICIES[name], seed, **options) for name in policies}
    fresh = traffic(arrivals, share, requests, seed + 1_000)
    rate = BEYOND * max(found["irp-off"], found["irp-eager"])
    rows = {}
    for name in policies:
        served = run(fresh.at(rate), POLICIES[name], seed, **options)
        share_met = attained(served)
        rows[name] = {"goodput": found[name], "rate_beyond": rate, "attainment_beyond": share_met,
                      "goodput_beyond": share_met * rate}  # fmt: skip
    return rows


def study(lab: Lab) -> Tables:
    """Capacity of every policy by bisection, then goodput over loads; generated traffic and, where at hand, Azure's."""
    names, requests = list(lab.pick(quick=QUICK, full=tuple(POLICIES))), lab.pick(quick=800, full=800)

    def limit(arrivals: str, share: float, tpot: float = TPOT, reads: str = "each") -> dict[str, Any]:
        return {"arrivals": arrivals, "share": share, "requests": requests, "tpot": tpot, "prefix_reads": reads,
                "policies": names}  # fmt: skip

    cases = []
    if lab.size == "full":
        cases += [limit("poisson", share) for share in (0.2, 1.0)]
        cases += [limit("poisson", 0.5, tpot=tpot) for tpot in (0.035, 0.1)]
        cases += [limit("poisson", 0.5, reads="once")]
        cases += [limit("azure", 0.5)] if lab.trace_or_none(AZURE) else []
    # The claims are about the main case; around it a few seeds show the trend.
    few = lab.with_seeds(quick=2, full=3)
    capacities = [lab.run(limits, [limit("poisson", 0.5)], per="policy"), few.run(limits, cases, per="policy")]
    capacity = pl.concat([part.drop("policies") for part in capacities if not part.is_empty()], how="diagonal_relaxed")
    rates = lab.pick(quick=(0.4, 2.0, 2.4), full=(0.3, 1.0, 1.6, 2.0, 2.4, 3.2))
    loads = [
        {
            "arrivals": "poisson",
            "share": 0.5,
            "rate": rate,
            "policies": names,
            "requests": min(requests, max(requests // 4, int(requests * rate / 2))),
        }  # of about one duration
        for rate in rates
    ]
    return {"capacity": capacity, "load": few.run(sweep, loads, per="policy").drop("policies")}


def best_cap(table: pl.DataFrame) -> str:
    """The fixed cap with the highest mean capacity in the main case: one for all loads, chosen by sweep."""
    rows = table.filter(pl.col("policy").str.contains("^(cap|batch)-"), **MAIN)
    means = rows.group_by("policy").agg(pl.col("goodput").mean()).sort("goodput", "policy", descending=[True, False])
    return str(means["policy"][0])


def plot(table: pl.DataFrame) -> alt.Chart:
    """Goodput over load: all policies serve what arrives until the step or the memory becomes too small."""
    import altair as alt

    names = ["taper", "irp-eager", "irp-off", best_cap(table)]
    rows = table.filter((pl.col("experiment") == "load") & pl.col("policy").is_in(names))
    points = rows.group_by("policy", "rate").agg(pl.col("goodput").mean()).sort("policy", "rate")
    title = alt.Title("Goodput", subtitle="Requests a second that meet both targets; mean over seeds")
    chart: alt.Chart = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("rate:Q", title="requests a second"),
            y=alt.Y("goodput:Q", title="goodput"),
            color=alt.Color("policy:N", sort=names),
        )
        .properties(width=560, height=340, title=title)
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims

MAIN = {
    "experiment": "capacity", "arrivals": "poisson", "share": 0.5, "tpot": TPOT, "prefix_reads": "each",
}  # fmt: skip


claims = [
    Claim("over-sequential", measures.ratio("goodput", of={"policy": "taper"}, to={"policy": "irp-off"}, **MAIN)),
    Claim("over-eager", measures.ratio("goodput", of={"policy": "taper"}, to={"policy": "irp-eager"}, **MAIN)),
    Claim("attainment", measures.mean("attainment_beyond", policy="taper", **MAIN)),
]
