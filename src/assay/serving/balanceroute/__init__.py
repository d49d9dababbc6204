"""BalanceRoute: give each lock-step worker the waiting request that best fills its gap to the fullest one.

Data-parallel workers that share a model's experts finish every decode step together, so the worker with the most KV to
read sets the pace of all. A request cannot move once it is placed, and it grows. So the router holds requests back in
one pool and, between two steps, looks at each worker's margin: how much KV it lacks to the fullest. Load x placed
within the margin m fills a hole and costs nobody anything: the group's imbalance falls by x. Beyond the margin every
token makes all G workers wait: the imbalance changes by m - (G-1)(x - m). This tent has its peak at the margin, so the
best request is one of the two around it in the sorted pool, found by bisection. Workers are visited from the largest
margin down. That is BR-0, which predicts nothing. BR-H adds the tents of the next 32 steps, discounted, with the loads
that are expected then; its estimator learns from finished requests who is likely to end (`LookAhead`).

What happens when no gain is left but slots are free is not in the abstract, and it matters: never raising the fullest
keeps the batch small, always filling every slot gives much of the balance away. `overflow="pays"` (our rule) raises
it where the sequences that then fit make up for the longer step, by the cost model; where there is none, it fills. A
request passed over for `patience` seconds goes first.

Bu, Lyu, Chen, Song, Liang, Gurung, Fan, Ye and Zhou, arXiv:2605.06113. The paper ran 144 NPUs on a trace of its own
and on Azure's of 2024. Here 32 lock-step workers (at full size up to 144) are simulated on the cost of an Ascend 910B
running Qwen3-30B-A3B with its experts spread over all workers; prompts arrive with their KV computed elsewhere. Azure's
conversation trace of 2023 and Mooncake's (a production trace, with prompts ten times as long) are played faster than
the group can serve, and each claim is read off the one on which it fares worse. The decision times are real.

>>> from assay.serving.engine.simulator import simulate
>>> from assay.serving.balanceroute.lockstep import Delivered, evenness, workers
>>> from assay.serving.baselines.routers import VllmV1
>>> from assay.workloads.chat import chat
>>> group, trace = workers("910b:qwen3-30b-a3b", 16, slots=16), chat(1500, rate=1e4, seed=0, stay=np.zeros(1))
>>> balanced, plain = (
...     evenness(simulate(trace, group, router, cache=Delivered(), prefix_cache=False))
...     for router in (BalanceRoute(slots=16), VllmV1())
... )
>>> balanced.load_gap < 0.7 * plain.load_gap
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.errors import BadInput
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.serving.balanceroute.aboard import Aboard
from assay.serving.balanceroute.gap_filling import fill
from assay.serving.balanceroute.lockstep import Delivered, LeastKv, Outstanding, Pooled, evenness, workers
from assay.serving.baselines.length_estimates import EmpiricalHazard, LogisticHazard, Survival
from assay.serving.baselines.routers import BASELINES
from assay.serving.engine.simulator import simulate
from assay.serving.interface import Cacheless, Finished, Fleet, Floats, Ints, Request
from assay.sim.random import stream
from assay.sim.trust import sentence
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab


@dataclass
class BalanceRoute:
    """BR-0: decides on what is on board now, and predicts nothing."""

    key = "balanceroute"
    lockstep = True  # what it evens out is the wait for the slowest of a group
    slots: int = 0  # sequences a worker takes (vLLM: max_num_seqs); 0: what the fleet says, or 256
    window: int = 256  # so many of the oldest are looked at
    patience: float = 2.0  # seconds in the window after which a request goes first
    overflow: str = "pays"  # never, pays or always: may a free slot be filled although the fullest grows?
    headroom: float = 0.02  # of the KV memory is left to sequences that grow

    sent: int = field(default=0, init=False)
    picked: int = field(default=0, init=False)  # of them, before somebody who had waited longer: it chose by length

    steps: tuple[int, ...] = field(default=(0,), init=False)  # ahead; BR-H looks further
    discount: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        if self.overflow not in ("never", "pays", "always"):
            raise BadInput(f"overflow is never, pays or always, not '{self.overflow}'")
        self._steps = np.array(self.steps, dtype=np.float64)
        self._weights = self.discount**self._steps
        self._outstanding = Outstanding()
        self._since: dict[int | str, float] = {}
        self._look = -np.inf
        _compiled()

    def assign(self, queue: Sequence[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        """Fill the gaps below the fullest worker with the requests that fit them best."""
        slots = (self.slots or getattr(fleet, "slots", 256)) - fleet.running - fleet.waiting
        if not (slots > 0).any():
            return []
        if len(queue) > 1 and queue[-1].arrival == fleet.now and fleet.running.any():
            return []  # others wait already: the newcomer is weighed with them after this step
        window = queue[: self.window]
        lengths = np.array([request.prompt for request in window], dtype=np.float64)
        order = np.argsort(lengths, kind="stable")
        now = self._outstanding.load(fleet)
        chosen, workers = fill(
            lengths[order], self._urgent(window, order, fleet.now), self._steps, self._weights,
            self._expected(fleet, now), slots, self._room(fleet, now), fleet.running + fleet.waiting,
            self._allowed(fleet, now, min(int((slots > 0).sum()), len(queue))),
        )  # fmt: skip
        sent = [(window[p], g) for p, g in zip(order[chosen].tolist(), workers.tolist(), strict=True)]
        self.sent += len(sent)
        self.picked += int((order[chosen] >= len(sent)).sum())
        for request, worker in sent:
            self._outstanding.send(request, worker)
            self._since.pop(request.id, None)
        return sent

    def _expected(self, fleet: Fleet, now: Floats) -> Floats:
        """[step ahead, worker]: load. What is there now is all that BR-0 asks for."""
        return now[None, :].copy()

    def _urgent(self, window: Sequence[Request], order: Ints, now: float) -> Ints:
        """Positions by length of those that have been in the window for too long; looked up now and then."""
        if now < self._look:
            return np.empty(0, np.int64)
        self._look = now + 0.25 * self.patience
        late = [k for k, request in enumerate(window) if now - self._since.setdefault(request.id, now) > self.patience]
        return np.argsort(order)[late] if late else np.empty(0, np.int64)

    def _room(self, fleet: Fleet, now: Floats) -> Floats:
        """KV tokens that each worker can still take; without limit where nothing is known of it."""
        if not len(fleet.costs):
            return np.full(len(fleet), np.inf)
        capacity = np.array([cost.kv_tokens for cost in fleet.costs], dtype=np.float64)
        return (fleet.kv_free - self.headroom) * capacity - (now - fleet.kv_tokens)

    def _allowed(self, fleet: Fleet, now: Floats, more: int) -> float:
        """How many tokens a request may raise the fullest worker by.

        Tokens per second are sequences / (fixed + s x fullest). Raising the fullest by d pays if `more` sequences come
        of it, one on every worker that then has room, and d < more x (fixed / s + fullest) / sequences.
        """
        if self.overflow == "never":
            return -np.inf
        if self.overflow == "always" or not len(fleet.costs) or not fleet.costs[0].decode_kv:
            return np.inf
        cost, aboard = fleet.costs[0], max(int(fleet.running.sum()), 1)
        fixed = cost.tokens[min(aboard // len(fleet), len(cost.tokens) - 1)] / cost.decode_kv
        return float(more * (fixed + now.max()) / aboard)


@dataclass
class LookAhead(BalanceRoute):
    """BR-H: the same with the loads expected over the next steps, by an estimator of who will be finished by then.

    >>> LookAhead(slots=64).steps
    (0, 1, 2, 4, 8, 16, 32)
    """

    key = "balanceroute-h"
    survival: Survival = field(default_factory=EmpiricalHazard)
    steps: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    discount: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        self._aboard: Aboard | None = None

    def assign(self, queue: Sequence[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        """As BR-0, and keep note of who is where."""
        if self._aboard is None:
            self._aboard = Aboard(len(fleet))
        sent = super().assign(queue, fleet)
        for request, worker in sent:
            self._aboard.send(request, worker)
        return sent

    def finished(self, request: Request, done: Finished) -> None:
        """Forget a request, and learn how long it was."""
        if self._aboard is not None:
            self._aboard.drop(request.id)
        self.survival.learn(request.prompt, done.output)

    def _expected(self, fleet: Fleet, now: Floats) -> Floats:
        assert self._aboard is not None
        loads = self._aboard.expected(fleet, self.survival, np.array(self.steps))
        ahead: Floats = loads + (now - loads[0])
        return ahead


@cache
def _compiled() -> None:
    """Compile before the first decision, so that no request waits for it."""
    fill(
        np.ones(1), np.zeros(1, np.int64), np.zeros(1), np.ones(1), np.zeros((1, 1)), np.ones(1, np.int64), np.ones(1),
        np.zeros(1, np.int64), 0.0,
    )  # fmt: skip


offers = {"router": BalanceRoute}

evidence = Evidence.REPLAY
use_when = (
    "Data-parallel attention with experts spread over the workers (or any barrier per step), long or very different "
    "prompts, and more requests waiting than slots are free: the pool is what it chooses from."
)
avoid_when = (
    "Workers step on their own (uneven load then costs little), the pool is usually empty (nothing to choose from), or "
    "reading KV is a small part of a step: evening it out then saves as little."
)
trust = sentence("roofline")
own_input = (
    "assay compare serving --trace examples/chats.jsonl --fleet examples/lockstep.toml --policies balanceroute,vllm-v1"
)
replays = ("azure-2023-conv", "mooncake-conversation")
references = (
    "vLLM's data-parallel balancing: 4 x waiting + running.",
    "Azure LLM inference trace 2023, conversations: Patel et al., ISCA 2024.",
    "Mooncake's conversation trace: Qin et al., FAST 2025.",
)

LAYOUT = "910b:qwen3-30b-a3b"
AZURE, MOONCAKE = "AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"
BACKLOG, LIGHT = 2.0, 0.6  # times what the group can serve
ABLATIONS = ("br-0, never", "br-0, always", "br-h, logistic", "round-robin", "vllm-v1, pooled")


class TrueLengths:
    """Knows every answer's length: the upper bound of looking ahead, for studies alone."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = np.asarray(outputs)

    def learn(self, prompt: int, output: int) -> None:
        """There is nothing to learn."""

    def survive(self, generated: Ints, prompt: Ints, steps: Ints, ids: Ints | None = None) -> Floats:
        """One until the end, then zero."""
        alive: Floats = (generated[:, None] + steps < self.outputs[ids][:, None]).astype(np.float64)
        return alive


def routers(trace: Requests, slots: int) -> dict[str, Any]:
    """Everything that the study compares."""
    return {
        "vllm-v1": BASELINES["vllm-v1"](),
        "vllm-v1, pooled": Pooled(BASELINES["vllm-v1"](), slots),
        "round-robin": BASELINES["round-robin"](),
        "least-requests": BASELINES["least-requests"](),
        "least-kv": LeastKv(),
        "least-kv, pooled": Pooled(LeastKv(), slots),
        "br-0": BalanceRoute(slots),
        "br-0, never": BalanceRoute(slots, overflow="never"),
        "br-0, always": BalanceRoute(slots, overflow="always"),
        "br-h": LookAhead(slots),
        "br-h, logistic": LookAhead(slots, survival=LogisticHazard()),
        "br-h, true lengths": LookAhead(slots, survival=TrueLengths(trace.output)),
    }


def study(lab: Lab) -> Tables:
    """Two traces in backlog and one without, beside the rules that engines ship; then the decisions by the clock."""
    slots = 24
    traces = {"azure": (AZURE, 9500), "mooncake": (MOONCAKE, 6000)}  # half of each: seeds should see different parts
    files = {name: lab.trace_or_none(file) for name, (file, _) in traces.items()}
    turns = lab.pick(quick=3, full=4)  # so many times the slots are filled, where the trace has as many requests
    cases = [
        {
            "trace": str(files[name]), "workers": group, "slots": slots, "load": load,
            "count": min(turns * group * slots, traces[name][1]),
            "all": lab.size == "full",
        }
        for group in lab.pick(quick=(32,), full=(16, 32, 64, 144))
        for name, load in (("azure", BACKLOG), ("mooncake", BACKLOG), ("azure", LIGHT))
        if files[name]
    ]  # fmt: skip
    served = lab.run(compare_at, cases, per="policy")
    if cases:
        served = served.drop("all").with_columns(
            trace=pl.col("trace").replace({str(path): name for name, path in files.items()})
        )
    timed = lab.run(decide, [{"workers": 64, "waiting": 512, "slots": 64}], per="policy", alone=True)
    return {"served": served, "timed": timed.with_columns(trace=pl.lit("none"))}


def compare_at(trace: str, workers: int, slots: int, load: float, count: int, all: bool, seed: int) -> dict[str, Any]:
    """Every router on one stretch of a trace, played at `load` times what the group can serve."""
    group = _group(workers, slots)
    requests = _stretch(trace, count, seed)
    everything = evenness(_serve(requests.faster(1e6), group, BASELINES["vllm-v1"]()))
    rate = everything.tokens_per_second / float(requests.output.mean())
    requests = requests.faster(load * rate / requests.rate)
    rows = {}
    for name, router in routers(requests, slots).items():
        if (name in ABLATIONS and not all) or (load == LIGHT and name not in ("vllm-v1", "least-kv", "br-0")):
            continue
        outcome = _serve(requests, group, router)
        rows[name] = evenness(outcome)._asdict() | {
            "e2e_mean": float(outcome.e2e.mean()), "ttft_mean": float(outcome.ttft.mean()),
            "queueing_max": float(outcome.queueing.max()), "tpot_mean": float(outcome.tpot.mean()),
            "decision_mean": outcome.policy_seconds / outcome.decisions,
            "picked": router.picked / router.sent if isinstance(router, BalanceRoute) else None,
        }  # fmt: skip
    return rows


def _group(count: int, slots: int) -> Any:
    return workers(LAYOUT, count, slots)


def _serve(requests: Requests, group: Any, router: Any) -> Any:
    return simulate(requests, group, router, cache=Delivered(), prefix_cache=False, patience=0.1)


def _stretch(path: str, count: int, seed: int) -> Requests:
    """Some part of a trace, another one for each seed; what prompts share plays no part here."""
    from assay.workloads.request_files import read

    whole = read(path, dejitter=True)
    start = (seed * 1777) % (len(whole) - count + 1)
    return replace(whole.part(start, start + count), prefixes=None, blocks=None)


def decide(workers: int, waiting: int, slots: int, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds of one decision with hundreds waiting, by the clock: a few slots free everywhere, as after a burst."""
    rows = {}
    for name, kind in {"br-0": BalanceRoute, "br-h": LookAhead}.items():
        seconds = []
        for turn in range(21):
            random = stream(seed, "balanceroute", "decide", turn)
            fleet, queue = _crowd(workers, waiting, slots, random)
            router = kind(slots, waiting)
            if isinstance(router, LookAhead):
                aboard = router._aboard = Aboard(workers)
                for number in range(workers * (slots - 8)):
                    aboard.send(Request(-1 - number, 0.0, int(random.integers(100, 4000))), number % workers)
            began = perf_counter()
            sent = router.assign(queue, fleet)
            seconds.append(perf_counter() - began)
        rows[name] = {"decision_max": max(seconds[1:]), "decision_mean": float(np.mean(seconds[1:])), "sent": len(sent)}
    return rows


def _crowd(workers: int, waiting: int, slots: int, random: np.random.Generator) -> tuple[Fleet, list[Request]]:
    fleet = Cacheless()
    fleet.now = 100.0
    fleet.running = np.full(workers, slots - 8)
    fleet.waiting = fleet.prefill_tokens = np.zeros(workers, np.int64)
    fleet.kv_tokens = random.integers(60_000, 100_000, workers)
    fleet.kv_free = np.full(workers, 0.5)
    return fleet, [Request(k, 0.01 * k, int(random.integers(100, 4000))) for k in range(waiting)]


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Load gap and tokens a second of every router on the largest group, a panel a trace."""
    import altair as alt

    served = measures.rows(table, {"load": BACKLOG})
    served = served.filter(pl.col("workers") == pl.col("workers").max())
    means = served.group_by("trace", "policy", maintain_order=True).agg(
        pl.col("load_gap").mean(), pl.col("tokens_per_second").mean()
    )
    base = alt.Chart(means).encode(
        x=alt.X("load_gap:Q", title="load gap: (fullest - mean) / fullest"),
        y=alt.Y("tokens_per_second:Q", scale=alt.Scale(zero=False), title="tokens a second"),
    )
    dots = base.mark_circle(size=90).encode(color=alt.Color("policy:N", legend=None))
    names = base.mark_text(align="left", dx=7, fontSize=10).encode(text="policy:N")
    title = alt.Title("Lock-step workers in backlog", subtitle="Mean over seeds; upper left is better")
    chart: alt.FacetChart = (
        (dots + names)
        .properties(width=420, height=300)
        .facet(alt.Facet("trace:N", title=None), columns=2, title=title)
        .resolve_scale(x="independent", y="independent")
    )
    return chart


def _change(
    column: str, trace: str, new: str = "br-0", old: str = "vllm-v1", load: float = BACKLOG
) -> measures.Measure:
    """One rule against another, on the largest group of the table."""

    def measure(table: pl.DataFrame) -> Estimate:
        largest = measures.rows(table, {"load": load})["workers"].max()
        return measures.change(
            column, new={"policy": new}, old={"policy": old}, load=load, trace=trace, workers=largest
        )(table)

    return measure


def _weaker(column: str, choose: Any, **rules: Any) -> measures.Measure:
    """What holds on both traces: the smaller effect of the two."""
    return measures.best(
        {trace: _change(column, trace, **rules) for trace in ("azure", "mooncake")}, choose, every=True
    )


claims = [
    Claim("load-gap", _weaker("load_gap", max)),
    Claim("throughput", _weaker("tokens_per_second", min)),
    Claim("decision", measures.mean("decision_max", policy="br-0", trace="none"), evidence=Evidence.REAL),
    Claim(
        "same-pool",
        _weaker("tokens_per_second", min, old="least-kv, pooled"),
        asks="BalanceRoute serves more tokens a second in backlog than sending each request of the same pool to the "
        "worker with the least KV, on the trace where it gains less.",
        kind=Kind.CHANGE,
        toward="up",
    ),
    Claim(
        "look-ahead",
        _weaker("tokens_per_second", min, new="br-h", old="br-0"),
        asks="BalanceRoute serves at least 1 % more tokens a second in backlog if it looks 32 steps ahead (BR-H) than "
        "if it looks at the present only, on the trace where it gains less.",
        kind=Kind.AT_LEAST,
        value=0.01,
        unit="change",
    ),
    Claim(
        "light-load",
        _change("e2e_mean", "azure", load=LIGHT),
        asks="At 60 % load, where hardly anybody waits, BalanceRoute's mean time to the last token is at most 5 % "
        "longer than that of vLLM's routing.",
        kind=Kind.AT_MOST,
        value=0.05,
        unit="change",
    ),
]
