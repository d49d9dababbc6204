"""DriftSched: guess an answer's length from the prompt's kind and tenant, correct the guess, order the queue by it.

A queue in front of a busy GPU does best by taking short jobs first, but nobody says how long an answer will be. This
gateway counts keywords to sort a prompt into one of four kinds, takes that kind's usual length, times a bias that
follows what finished answers measured (a moving average with weight 0.1), times a safety factor of the tenant's tier,
times a little for long prompts. Five orders can use it: first come first, strict tiers, shares of 50/30/20, shortest
first, and tiers with aging.

What is counted matters more than the feedback. The first version counted the words of prompts and answers although
limits and base lengths are in tokens; an answer of 384 tokens has some 230 words, so every estimate looked far off and
feedback mended it. The paper's later version uses the tokenizer and finds biases near 1. Both are here
(`counting="words"` and `"tokens"`), and the table shows both.

The keywords, factors, limits, mixes of prompts and arrival times are those of the author's code. Our prompts are from
templates (`assay.workloads.prompts`), with the kind written into them as the author's generator does, or without; no
model answers them, so lengths are drawn around their kind's limit and cut at it. The worker (micro-batches of 32 on an
L4 with Qwen1.5-1.8B, all answers of a batch returned together) is simulated; the 10 ms it waits for a batch to fill are
left out, since the queue is never empty when it matters.

Palaniappan, arXiv:2606.02982.

>>> order = DriftSched("sjf")
>>> request = Request(0, 0.0, prompt=20, tier="premium", text="Summarize the architecture of a log, a summary please.")
>>> order.category(request), order.estimate(request)
('summary', 311)
>>> for _ in range(60):
...     order.finished(request, Finished(output=128, ttft=0.1, e2e=1.0, cached=0, instance=0))
>>> order.estimate(request)
155
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.errors import BadInput
from assay.record.types import Claim, Evidence
from assay.serving.engine import simulate
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.interface import Finished, Request
from assay.serving.length_estimates import BiasedBase, Quantiles
from assay.serving.orders import ORDERS, REMEMBERED
from assay.serving.outcome import Outcome
from assay.serving.routers import RoundRobin
from assay.workloads.prompts import EVERYDAY, HEAVY, LIMITS, Prompts, generate, tokens, words

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

KEYWORDS = {
    "summary": ("summarize", "summary"),
    "report": ("detailed", "report", "comprehensive"),
    "technical": ("architecture", "code", "technical"),
}
BASE = {"short_qa": 64, "summary": 256, "technical": 384, "report": 512}  # tokens
SAFETY = {"premium": 1.2, "standard": 1.0, "batch": 0.8}
COUNT: dict[str, Callable[[str], int]] = {"words": words, "tokens": tokens}


@dataclass
class DriftSched:
    """An order of the queue with its own estimate of lengths. `policy` is any key of `ORDERS`.

    `text` gives a request's prompt where the request does not carry it; `measured` gives the length of a finished
    answer in the unit that is counted, by default the tokens that the engine reports.
    """

    policy: str = "sjf"
    counting: str = "tokens"
    feedback: bool = True
    text: Callable[[Request], str] = lambda request: request.text or ""
    measured: Callable[[Request, Finished], float] = lambda request, done: done.output
    predictor: Quantiles | None = None  # instead of base times bias: a quantile for each category and tenant
    # category, estimate, measured; bounded, since a gateway runs for months
    log: deque[tuple[str, float, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED), repr=False)

    def __post_init__(self) -> None:
        if self.policy not in ORDERS or self.counting not in COUNT:
            known = f"there are {', '.join(ORDERS)}, counting words or tokens"
            raise BadInput(f"no policy '{self.policy}' counting '{self.counting}'; {known}")
        self.lengths = BiasedBase(BASE, frozen=not self.feedback)
        self._order = ORDERS[self.policy]()
        self._estimates: dict[int | str, tuple[str, float]] = {}

    def key(self, request: Request, now: float) -> float:
        """The policy's key; the estimate is made now, whether the policy uses it or not."""
        category = self.category(request)
        estimate = self._estimate(request, category)
        self._estimates[request.id] = category, estimate
        if len(self._estimates) > REMEMBERED:  # the oldest will not finish any more
            del self._estimates[next(iter(self._estimates))]
        return estimate if self.policy == "sjf" else float(self._order.key(request, now))

    def finished(self, request: Request, done: Finished) -> None:
        """Compare with the estimate, and learn."""
        actual = self.measured(request, done)
        if request.id not in self._estimates:  # it joined another queue; what would have been said of it?
            self._estimates[request.id] = self.category(request), self.estimate(request)
        category, estimate = self._estimates.pop(request.id)
        self.log.append((category, estimate, actual))
        self.lengths.learn(category, actual)
        if self.predictor is not None:
            self.predictor.learn((category, request.tenant), actual)
        if self.policy != "sjf" and hasattr(self._order, "finished"):
            self._order.finished(request, done)

    def category(self, request: Request) -> str:
        """The kind with the most keywords in the text; a short question where there is none."""
        text = self.text(request).lower()
        hits = {kind: sum(text.count(word) for word in found) for kind, found in KEYWORDS.items()}
        best = max(hits, key=lambda kind: hits[kind])
        return best if hits[best] else "short_qa"

    def estimate(self, request: Request) -> float:
        """Tokens of the answer: base x bias x safety x (1 + a thousandth of the prompt, at most 1.5)."""
        return self._estimate(request, self.category(request))

    def _estimate(self, request: Request, category: str) -> float:
        if self.predictor is not None:
            return self.predictor.estimate((category, request.tenant))
        longer = min(1.5, 1.0 + COUNT[self.counting](self.text(request)) / 1000)
        return int(self.lengths.estimate(category) * SAFETY.get(request.tier, 1.0) * longer)


component = DriftSched

evidence = Evidence.MODEL
use_when = (
    "A queue stands in front of a GPU for minutes, jobs differ much in length, and their kind can be told from the "
    "prompt. Count what the engine counts: its usage field has the tokens of every answer."
)
avoid_when = (
    "The queue is short, or long jobs must not starve (use aging, or shares), or lengths vary as much within a kind as "
    "between kinds."
)
own_input = "assay compare serving --trace my.jsonl --fleet 1xl4:qwen1.5-1.8b --order sjf"
references = (
    "Start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996.",
    "The author's code, for keywords, factors and the experiment: github.com/kpalania1/driftsched.",
)

LAYOUT = "l4:qwen1.5-1.8b"
BATCH = 32
POLICIES = ("fcfs", "priority", "weighted", "sjf", "aging")
BOTH = ("fcfs", "sjf")  # the other three do not look at lengths: how they are counted changes nothing
PLANS = {"micro-batch": "static", "continuous": "vllm-v1"}


# ------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> pl.DataFrame:
    """A learning phase at a low rate, then a flood of longer jobs; five orders, two ways to count, two engines."""
    learning, flood = lab.pick(quick=(400, 800), full=(1000, 2000))
    settings = [
        (counting, engine, prompts)
        for counting in ("words", "tokens")
        for engine in PLANS
        for prompts in lab.pick(quick=("labelled",), full=("labelled", "natural", "natural, no limits"))
    ]
    settings += lab.pick(quick=[("tokens", "micro-batch", "natural")], full=[])
    cases = [
        {"counting": counting, "engine": engine, "prompts": prompts, "learning": learning, "flood": flood}
        for counting, engine, prompts in settings
    ]
    return lab.run(compare_at, cases, per="policy")


def compare_at(counting: str, engine: str, prompts: str, learning: int, flood: int, seed: int) -> dict[str, Any]:
    """Every order on one workload."""
    texts: dict[str, Any] = {"labelled": prompts == "labelled", "limits": {} if "no limits" in prompts else LIMITS}
    phases = (
        generate(learning, seed, mix=EVERYDAY, gaps=(0.05, 0.15), **texts),
        generate(flood, seed + 1000, mix=HEAVY, gaps=(0.005, 0.03), **texts),
    )
    orders = {policy: DriftSched(policy, counting) for policy in POLICIES if counting == "words" or policy in BOTH}
    orders["sjf, no feedback"] = DriftSched("sjf", counting, feedback=False)
    orders["sjf, quantiles"] = DriftSched("sjf", counting, predictor=Quantiles())
    rows = {name: _row(order, phases, engine) for name, order in orders.items()}
    rows["sjf, true lengths"] = _row(_Clairvoyant("sjf", counting), phases, engine)
    return rows


class _Clairvoyant(DriftSched):
    """Knows every answer's length: the bound of what a better estimate could give."""

    truth: Any = None

    def key(self, request: Request, now: float) -> float:
        super().key(request, now)
        return float(self.truth[request.id])


def _row(order: DriftSched, phases: tuple[Prompts, ...], engine: str) -> dict[str, Any]:
    from assay.sim.roofline import layout

    worker = Instance(layout(LAYOUT), max_seqs=BATCH, plan=PLANS[engine], name=LAYOUT)
    for prompts in phases:  # the queue drains between them, as in the author's experiment
        order.text = lambda request, texts=prompts.texts: texts[request.id]  # type: ignore[misc]
        if order.counting == "words":
            order.measured = lambda request, done, lengths=prompts.answer_words: lengths[request.id]  # type: ignore[misc]
        if isinstance(order, _Clairvoyant):
            order.truth = prompts.requests.output
        order.log.clear()
        outcome = simulate(prompts.requests, FleetSpec((worker,)), RoundRobin(), order=order, prefix_cache=False)
    latency = returned(outcome) if engine == "micro-batch" else outcome.e2e
    errors = np.array([estimate - actual for _, estimate, actual in order.log], dtype=np.float64)
    kinds, tiers = prompts.requests.category, prompts.requests.tier
    assert kinds is not None and tiers is not None
    return {
        "mae": float(np.abs(errors).mean()),
        "rmse": float(np.sqrt((errors**2).mean())),
        "e2e_p50": float(np.median(latency)),
        "e2e_p99": float(np.quantile(latency, 0.99)),
        "e2e_mean": float(latency.mean()),
        "report_p99": float(np.quantile(latency[kinds == 3], 0.99)),
        "premium_p50": float(np.median(latency[tiers == 0])),
        "batch_p99": float(np.quantile(latency[tiers == 2], 0.99)),
        "makespan": outcome.makespan,
    } | {f"bias_{kind}": order.lengths.bias.get(kind, 1.0) for kind in BASE}


def returned(outcome: Outcome) -> Any:
    """Seconds until each answer is returned by a worker that returns a micro-batch when its last answer is complete."""
    admitted, finish = outcome.records["admitted"], outcome.records["finish"]
    batches, member = np.unique(admitted, return_inverse=True)
    end = np.zeros(len(batches))
    np.maximum.at(end, member, finish)
    return end[member] - outcome.records["arrival"]


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """Median and P99 of every order, and the biases that words and tokens end with."""
    import altair as alt

    paper = table.filter((pl.col("prompts") == "labelled") & (pl.col("engine") == "micro-batch"))
    names = {"e2e_p50": "median", "e2e_p99": "P99", "report_p99": "P99 of reports"}
    latency = (
        paper.filter(pl.col("counting") == "words")
        .group_by("policy", maintain_order=True)
        .agg(pl.col(*names).mean())
        .unpivot(index="policy", variable_name="statistic", value_name="seconds")
        .with_columns(pl.col("statistic").replace(names))
    )
    left = (
        alt.Chart(
            latency, title=alt.Title("End-to-end latency in the flood", subtitle="Micro-batches; mean over seeds")
        )
        .mark_point(filled=True, size=80)
        .encode(
            x=alt.X("seconds:Q", title="seconds"),
            y=alt.Y("policy:N", sort=None, title=None),
            color=alt.Color("statistic:N", sort=None),
        )
        .properties(width=380, height=260)
    )
    kinds = [f"bias_{kind}" for kind in BASE]
    bias = (
        paper.filter(pl.col("policy") == "sjf")
        .group_by("counting", maintain_order=True)
        .agg(pl.col(*kinds).mean())
        .unpivot(index="counting", variable_name="kind", value_name="bias")
        .with_columns(pl.col("kind").str.strip_prefix("bias_"))
    )
    right = (
        alt.Chart(bias, title=alt.Title("Bias learnt", subtitle="1: the base length was right"))
        .mark_point(filled=True, size=80)
        .encode(
            x=alt.X("bias:Q", scale=alt.Scale(domain=[0, 1.5])),
            y=alt.Y("kind:N", sort=None, title=None),
            color=alt.Color("counting:N", sort=None),
        )
        .properties(width=260, height=260)
    )
    chart: alt.HConcatChart = alt.hconcat(left, right).resolve_scale(color="independent")
    return chart


# As the paper's first version ran it: words, micro-batches, prompts that name their kind.
_ORIGINAL = {"counting": "words", "engine": "micro-batch", "prompts": "labelled"}


def _feedback(column: str) -> measures.Measure:
    return measures.change(column, new={"policy": "sjf"}, old={"policy": "sjf, no feedback"}, **_ORIGINAL)


def _shortest(column: str) -> measures.Measure:
    return measures.change(column, new={"policy": "sjf"}, old={"policy": "fcfs"}, **_ORIGINAL)


claims = [
    Claim("mae", _feedback("mae")),
    Claim("rmse", _feedback("rmse")),
    Claim("median-latency", _shortest("e2e_p50")),
    Claim("p99-latency", _shortest("e2e_p99")),
]
