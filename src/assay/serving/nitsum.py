"""Nitsum: tensor parallelism as a control that turns while the pool serves tiers of requests.

Tiers differ in how soon and how steadily they want tokens. A strict tier needs wide groups (many GPUs on each token),
a relaxed one is served cheapest by narrow ones, and the mix moves by the minute; so every fixed cut of a pool wastes
GPUs on somebody. Every few seconds the controller measures what each tier asked for lately, solves a small integer
programme for the cut that lets most requests meet both targets (`assay.serving.tier_plan`), and changes to it where
the gain over the next half minute exceeds what the switch costs. The switch is cheap for two reasons: weights are
laid out so that a narrower slice is a contiguous part of a wider one, so going wide loads nothing and going narrow
fetches only what is missing from neighbours; and KV is split anew by heads and moved while decoding goes on, so that
requests stand still for the last layer only. In a group the strictest tier goes first, by the deadline of its first
token.

What is not printed in the paper and inferred here: the capacity tables, the programme and the hysteresis.

WukLab, UC San Diego, arXiv:2605.05467.

>>> from assay.serving.engine import simulate
>>> from assay.workloads.chat import chat
>>> targets = {"chat": SLO(ttft=1.0, tpot=0.0125), "batch": SLO(ttft=30.0, tpot=0.15)}
>>> nitsum = Nitsum("h200:qwen3-32b", 4, targets)
>>> trace = chat(200, rate=4.0, seed=0, tiers=(("chat", 0.7), ("batch", 0.3)))
>>> outcome = simulate(trace, nitsum.slots(), nitsum, order=nitsum.order, planner=nitsum)
>>> bool(outcome.attainment(targets) > 0.9)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.types import Claim, Evidence
from assay.serving import tier_plan
from assay.serving.control import Control, Withdrawn
from assay.serving.engine import simulate
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.gpu_pool import Group, Pool, pack, spread
from assay.serving.interface import SLO, Finished, Fleet, Request
from assay.serving.routers import LeastRequests
from assay.serving.tier_plan import Plan, Sort, best_plan, name_of
from assay.serving.tiers import Demand, StrictestFirst, Window, strict_first
from assay.sim.random import stream
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REPLAY
use_when = (
    "One pool serves requests with different latency targets, their mix changes within minutes, and the model runs at "
    "several tensor-parallel widths on GPUs with fast links."
)
avoid_when = (
    "All requests want the same, or the mix is steady: plan once and leave it. And where a layout can only be changed "
    "by a restart, change it by the hour, not by the minute."
)
own_input = ""
references = ("Azure LLM inference trace 2023, conversations: Patel et al., Splitwise, ISCA 2024.",)

AGREE = 0.01  # seconds in which the members of a group agree on the step of a switch
SLACK = 0.5  # of a strict group's seats that relaxed tiers may fill, while nobody waits there
BURST = 1.1  # demand to plan for, over the measured one


@dataclass
class Nitsum:
    """Router and planner in one: it sends requests to the groups it forms.

    `restart` above 0 replaces the cheap switch by one of so many seconds in which KV is lost. `plan_once` plans for a
    given demand and never again.
    """

    key = "nitsum"
    layout: str
    gpus: int
    targets: Mapping[str, SLO]
    period: float = 3.0
    horizon: float = 30.0  # seconds over which a switch must pay
    window: float = 6.0  # seconds over which demand is measured
    restart: float = 0.0
    roles: tuple[str, ...] = tier_plan.ROLES
    plan_once: Mapping[str, Demand] | None = None
    plan_seconds: float = 0.0
    plans: int = 0

    def __post_init__(self) -> None:
        self._names = strict_first(self.targets)
        self._rank = {name: rank for rank, name in enumerate(self._names)}
        self.order = StrictestFirst(self.targets)
        self.seen = Window(self.window)
        self.pool = Pool(self.gpus, self._spec)
        self._sorts: dict[int, Sort] = {}  # by the slot that leads
        self._seats = np.ones(self.gpus)
        self._level = np.zeros(self.gpus, np.int64)
        self._demand: Mapping[str, Demand] = {}

    # ------------------------------------------------------------------------------------------- the pool

    def _spec(self, group: Group) -> Instance:
        from assay.sim.roofline import layout

        name = name_of(self.layout, group.width)
        return Instance(
            layout(name), tp=group.width, gpus=group.width, name=name, role=group.role, max_seqs=tier_plan.SEATS
        )

    def slots(self) -> FleetSpec:
        """The fleet to simulate: every GPU a slot. Models that need several GPUs get the narrowest that fits."""
        width = next(width for width in tier_plan.WIDTHS if tier_plan.fits(self.layout, width))
        one = replace(self._spec(Group(0, width)), gpus=1)
        from assay.sim.hardware import device

        link = device(self.layout.split(":")[0]).nvlink
        return FleetSpec((one,) * self.gpus, bandwidth=0.75 * link.bandwidth, name=f"{self.gpus} x {self.layout}")

    def begin(self, fleet: Fleet, control: Control) -> None:
        """Before anything is known: an even demand of all tiers, or the one that was given."""
        even = {name: Demand(1.0, 1000.0, 1.0, 200.0) for name in self._names}
        self._demand = self.plan_once or even
        plan = self._solve()
        self.pool.begin(control, pack(self.gpus, [(width, role) for role, width in _each(plan.kinds)]))
        self._settle(plan, control)

    # ------------------------------------------------------------------------------------------ the plan

    def plan(self, fleet: Fleet, control: Control) -> None:
        """Measure, plan, and switch where it pays."""
        if self.plan_once is not None or control.now < self.pool.busy:
            return
        measured = self.seen.demand(control.now)
        if not measured:
            return
        self._demand = {name: self._with_backlog(name, wanted, fleet).rounded() for name, wanted in measured.items()}
        kinds: dict[tuple[str, int], int] = {}
        for group in self.pool.groups:
            kinds[group.role, group.width] = kinds.get((group.role, group.width), 0) + 1
        stay = self._solve(kinds)
        if stay.served < 0.97 * stay.asked:
            change = self._solve()
            groups = pack(self.gpus, [(width, role) for role, width in _each(change.kinds)], self.pool.groups)
            touched = sum(group.width for group in set(self.pool.groups) - set(groups)) / self.gpus
            cost = self._expected_pause() * touched * stay.served
            if (change.served - stay.served) * self.horizon > cost + 0.03 * stay.served * self.horizon:
                self._switch(groups, change, control)
                return
        self._settle(stay, control)

    def _with_backlog(self, name: str, wanted: Demand, fleet: Fleet) -> Demand:
        """Those who wait already are to be served within the horizon too; a share of them by the tier's rate."""
        waiting = max(float(fleet.waiting.sum()) - 2.0 * len(self.pool.groups), 0.0)
        total = sum(len(seen) for seen in self.seen._arrivals.values()) or 1
        return replace(
            wanted, rate=BURST * wanted.rate + waiting * len(self.seen._arrivals[name]) / total / self.horizon
        )

    def _solve(self, kinds: Mapping[tuple[str, int], int] | None = None) -> Plan:
        self.plans += 1
        return best_plan(self.layout, self.gpus, self.targets, self._demand, roles=self.roles, kinds=kinds)

    def _settle(self, plan: Plan, control: Control) -> None:
        """Hold every group to the level the plan gives it: the strictest levels to the groups that have them."""
        left = dict(plan.groups)
        self._sorts = {}
        for group in self.pool.groups:
            able = [
                sort for sort, count in left.items() if count and (sort.role, sort.width) == (group.role, group.width)
            ]
            old = self._level[group.first]
            sort = (
                min(able, key=lambda one: (one.level != old, one.level)) if able else Sort(group.role, group.width, 0)
            )
            left[sort] = left.get(sort, 1) - 1
            self._hold(group.first, sort, control)

    def _hold(self, slot: int, sort: Sort, control: Control) -> None:
        held = tier_plan.batch(self.layout, sort, self.targets, self._demand)
        self._sorts[slot], self._seats[slot], self._level[slot] = sort, held.seats, sort.level
        control.limit(slot, held.seats, held.tokens)

    # ---------------------------------------------------------------------------------------- the switch

    def _expected_pause(self) -> float:
        return self.restart or 0.2

    def _switch(self, groups: list[Group], plan: Plan, control: Control) -> None:
        before = {slot: group.width for group in self.pool.groups for slot in group.slots}
        touched = {slot for group in set(groups) ^ set(self.pool.groups) for slot in group.slots}

        def pause(moved: list[Withdrawn]) -> float:
            return self.restart or self.seconds(before, groups, touched, moved)

        place = spread(control, groups, lambda group: float(self._spec(group).room))
        self.pool.switch(
            control, groups, keep=not self.restart, pause=pause, place=place, done=lambda: self._settle(plan, control)
        )

    def seconds(
        self, before: Mapping[int, int], groups: list[Group], touched: set[int], moved: list[Withdrawn]
    ) -> float:
        """How long a cheap switch holds its groups up: missing weights, and the last layer of the KV that moves."""
        from assay.sim.hardware import device
        from assay.sim.layouts import Memory, read_layout

        shape = read_layout(self.layout)
        link = 0.75 * device(shape.device.name).nvlink.bandwidth
        whole = shape.model.param_bytes(shape.dtype)
        widths = {slot: group.width for group in groups for slot in group.slots}
        missing = max(
            (missing_share(before.get(slot, 1), widths[slot]) for slot in touched if slot in widths), default=0.0
        )
        kv = sum(item.context for item in moved if item.kept) * shape.model.kv_bytes(Memory(shape).kv_dtype)
        return AGREE + whole * missing / link + kv / max(len(touched), 1) / link / shape.model.layers

    # ---------------------------------------------------------------------------------------- the requests

    def arrived(self, request: Request, fleet: Fleet, control: Control) -> bool:
        """Count it; routing is the router's matter."""
        self.seen.arrived(request)
        return False

    def finished(self, request: Request, done: Finished) -> None:
        """Learn how long answers are."""
        self.seen.finished(request, done)

    def route(self, request: Request, fleet: Fleet) -> int:
        """Least predicted wait among the groups that are held to this tier or a stricter one."""
        able, rank = self._able(request, fleet), self._rank.get(request.tier, len(self._names) - 1)
        pace = np.array([cost.tokens[2048] / 2048 for cost in fleet.costs])
        board = fleet.running + fleet.waiting
        wait = (fleet.prefill_tokens + request.prompt) * pace
        over = np.maximum(board + 1 - self._seats, 0) / self._seats
        wait = wait + over * 5.0  # a seat comes free when somebody ends
        full = (board > SLACK * self._seats) | (fleet.prefill_tokens > request.prompt)
        strange = (self._level < rank) & full  # relaxed ones only into slack
        return self._first(wait + 1e3 * strange, able, fleet)

    def route_decode(self, request: Request, fleet: Fleet) -> int:
        """The emptiest group, by seats, that keeps the tier's time between tokens."""
        able = self._able(request, fleet)
        both = np.array(
            [self._sorts[slot].role == "both" if slot in self._sorts else True for slot in range(self.gpus)]
        )
        return self._first((fleet.running + fleet.waiting) / self._seats + 10.0 * both, able, fleet)

    def _able(self, request: Request, fleet: Fleet) -> Any:
        eligible = np.ones(self.gpus, bool) if fleet.eligible is None else fleet.eligible
        prefill = np.array([slot in self._sorts and self._sorts[slot].role == "prefill" for slot in range(self.gpus)])
        fine = eligible & ((self._level <= self._rank.get(request.tier, 0)) | prefill)
        return fine if fine.any() else eligible

    def _first(self, score: Any, able: Any, fleet: Fleet) -> int:
        chosen = np.flatnonzero(able)
        return int(chosen[np.argmin(np.asarray(score)[chosen])])


def missing_share(before: int, after: int) -> float:
    """The share of all weights that a GPU must fetch to go from one width to another.

    >>> missing_share(2, 8), missing_share(4, 1)
    (0.0, 0.75)
    """
    return max(1 / after - 1 / before, 0.0)


def _each(kinds: Mapping[tuple[str, int], int]) -> list[tuple[str, int]]:
    return [kind for kind, count in sorted(kinds.items()) for _ in range(count)]


# ---------------------------------------------------------------------------------------------- the study

LAYOUT, GPUS = "h200:qwen3-32b", 8
TARGETS = {
    "interactive": SLO(ttft=0.5, tpot=1 / 80),  # 80 tokens a second
    "standard": SLO(ttft=2.0, tpot=1 / 25),
    "batch": SLO(ttft=30.0, tpot=0.15),
}
MIXES = {"strict": (0.8, 0.15, 0.05), "relaxed": (0.05, 0.65, 0.30), "even": (0.3, 0.45, 0.25)}
KINDS = {"shifting": ["strict", "relaxed"], "steady": ["even"]}
TUNED = 0.9  # the load at which static layouts are chosen, of what the best cut is planned to serve
RESTART = 30.0  # seconds: "tens of seconds"


def offered(path: str, kind: str) -> list[float]:
    """Requests a second of each mix that the best cut of the pool is planned to serve."""
    from assay.serving.steady_state import largest
    from assay.workloads.request_files import read

    whole = read(path)
    sample = whole.prompt.astype(float)
    shape = Demand(1.0, float(sample.mean()), float(sample.std() / sample.mean()), float(whole.output.mean())).rounded()

    def works(rate: float, mix: tuple[float, ...]) -> bool:
        demand = {name: replace(shape, rate=rate * part) for name, part in zip(TARGETS, mix, strict=True)}
        return best_plan(LAYOUT, GPUS, TARGETS, demand).served > 0.99 * rate

    return [largest(lambda rate, mix=MIXES[name]: works(rate, mix), 16.0) for name in KINDS[kind]]  # type: ignore[misc]


def workload(path: str, kind: str, phases: int, seconds: float, rates: list[float], seed: int) -> Requests:
    """Prompts and answers of the Azure trace, its arrivals stretched to each phase's rate, and tiers by the mix.

    `shifting` alternates between the strict and the relaxed mix, `steady` keeps the even one; `rates` are requests a
    second in each of them.
    """
    from assay.workloads.request_files import read

    whole = read(path)
    random = stream(seed, "nitsum", kind)
    names = KINDS[kind] * phases
    start, clock, parts = int(random.integers(0, len(whole) // 2)), 0.0, []
    for name in names[:phases]:
        count = int(rates[KINDS[kind].index(name)] * seconds)
        piece = whole.part(start, start + count)
        tier = random.choice(len(TARGETS), count, p=MIXES[name]).astype(np.int32)
        parts.append(
            (clock + piece.arrival / max(piece.seconds, 1e-9) * seconds * 0.999, piece.prompt, piece.output, tier)
        )
        start, clock = start + count, clock + seconds
    arrival, prompt, output, tier = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Requests.of(arrival, prompt, output, tier=tier, tiers=tuple(TARGETS))


def mean_demand(requests: Requests) -> dict[str, Demand]:
    """What a trace asks for on average: what an operator who plans once would know."""
    found = {}
    assert requests.tier is not None
    for code, name in enumerate(requests.tiers):
        mine = requests.tier == code
        prompt = requests.prompt[mine].astype(float)
        spread_ = float(prompt.std() / prompt.mean())
        found[name] = Demand(
            mine.sum() / requests.seconds, float(prompt.mean()), spread_, float(requests.output[mine].mean())
        )
    return {name: wanted.rounded() for name, wanted in found.items()}


def static(width: int, max_tokens: int, prefill: int = 0) -> FleetSpec:
    """Equal groups of one width; the first `prefill` of them only prefill and the others only decode."""
    from assay.sim.roofline import layout

    name = name_of(LAYOUT, width)
    one = Instance(layout(name), tp=width, gpus=width, name=name, max_tokens=max_tokens, max_seqs=256)
    groups = [one] * (GPUS // width)
    if prefill:
        groups = [replace(one, role="prefill" if i < prefill else "decode") for i in range(len(groups))]
    return FleetSpec(tuple(groups), bandwidth=0.75 * 450e9)


def options() -> dict[str, list[tuple[int, int, int, bool]]]:
    """Families of static layouts with what an operator would try: width, tokens, prefill groups, strict tiers first."""
    rows = {f"static tp{width}": [(width, 2048, 0, False)] for width in tier_plan.WIDTHS}
    rows["priority queue"] = [(width, tokens, 0, True) for width in (2, 4) for tokens in (512, 2048)]
    splits = ((1, 3), (1, 4), (1, 5), (2, 1), (2, 2), (2, 3), (4, 1))  # width, groups that prefill
    rows["static prefill/decode"] = [(width, 8192, prefill, True) for width, prefill in splits]
    return rows


def score(requests: Requests, width: int, tokens: int, prefill: int, first: bool) -> float:
    """Goodput of a static layout."""
    order = StrictestFirst(TARGETS) if first else None
    fleet = static(width, tokens, prefill)
    return simulate(requests, fleet, LeastRequests(), order=order, prefix_cache=False, record=False).goodput(TARGETS)


def tuned(requests: Requests) -> dict[str, tuple[int, int, int, bool]]:
    """Of every family the layout that does best on this stretch."""
    return {
        name: max(family, key=lambda option: score(requests, *option)) if len(family) > 1 else family[0]
        for name, family in options().items()
    }


def serve(requests: Requests, planner: Nitsum) -> dict[str, Any]:
    """One run under a planner."""
    outcome = simulate(
        requests, planner.slots(), planner, order=planner.order, planner=planner, prefix_cache=False, record=False
    )
    paused = planner.pool.paused / (GPUS * outcome.makespan)
    return {"goodput": outcome.goodput(TARGETS), "switches": planner.pool.switches, "paused": paused}


def compare_on(
    path: str, mix: str, load: float, phases: int, seconds: float, rates: list[float], seed: int
) -> dict[str, dict[str, Any]]:
    """Every system on one stretch of traffic; statics are tuned, and the partition planned, on another of its kind."""
    requests = workload(path, mix, phases, seconds, [load * rate for rate in rates], seed)
    other = workload(path, mix, phases, seconds, [TUNED * rate for rate in rates], 1000)
    chosen = _tuned(other, mix)
    rows: dict[str, dict[str, Any]] = {name: {"goodput": score(requests, *best)} for name, best in chosen.items()}
    average = mean_demand(other)
    rows["partition by tier"] = serve(requests, Nitsum(LAYOUT, GPUS, TARGETS, plan_once=average))
    prior = list(rows.values())
    rows["nitsum"] = serve(requests, Nitsum(LAYOUT, GPUS, TARGETS))
    if mix == "shifting" and load < 1.0:
        rows["nitsum, restart"] = serve(requests, Nitsum(LAYOUT, GPUS, TARGETS, restart=RESTART))
    rows["best prior"] = max(prior, key=lambda row: row["goodput"])
    rows["worst prior"] = min(prior, key=lambda row: row["goodput"])
    offered_rate = len(requests) / requests.seconds
    return {name: {"switches": 0, "paused": 0.0, "offered": offered_rate} | row for name, row in rows.items()}


_CHOSEN: dict[str, dict[str, tuple[int, int, int, bool]]] = {}


def _tuned(other: Requests, mix: str) -> dict[str, tuple[int, int, int, bool]]:
    """`tuned`, once a process and mix: an operator does not choose anew for every hour's load."""
    if mix not in _CHOSEN:
        _CHOSEN[mix] = tuned(other)
    return _CHOSEN[mix]


def study(lab: Lab) -> pl.DataFrame:
    """A mix that shifts and one that does not, on 8 H200."""
    path = str(lab.trace("AzureLLMInferenceTrace_conv.csv"))
    phases, seconds = lab.pick(quick=(3, 25.0), full=(10, 60.0))
    cases = [
        {"path": path, "mix": mix, "load": load, "phases": phases, "seconds": seconds, "rates": offered(path, mix)}
        for mix, loads in lab.pick(
            quick=(("shifting", (0.9, 1.2)),),
            full=(("shifting", (0.7, 0.9, 1.1, 1.3, 1.5)), ("steady", (0.6, 0.8, 1.0))),
        )
        for load in loads
    ]
    return lab.run(compare_on, cases, per="system").drop("path", "rates")


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Goodput of every system, a panel a workload."""
    import altair as alt

    named = table.filter(~pl.col("system").is_in(["best prior", "worst prior"]))
    named = named.with_columns(panel=pl.format("{}, load {}", "mix", "load"))
    means = named.group_by("panel", "system", maintain_order=True).agg(pl.col("goodput").mean())
    title = alt.Title("Requests a second that met both targets", subtitle="8 H200, Qwen3-32B; mean over seeds")
    chart: alt.FacetChart = (
        alt.Chart(means)
        .mark_bar()
        .encode(x=alt.X("goodput:Q", title="goodput, requests/s"), y=alt.Y("system:N", sort="-x", title=None))
        .properties(width=320, height=260)
        .facet("panel:N", columns=2, title=title)
    )
    return chart


def _up_to(of: str, to: str) -> Any:
    """The largest ratio of goodput over the loads of the shifting mix, its interval included."""

    def measure(table: pl.DataFrame) -> Any:
        loads = table.filter(pl.col("mix") == "shifting")["load"].unique().sort().to_list()
        found = [
            measures.ratio("goodput", of={"system": of}, to={"system": to}, mix="shifting", load=load)(table)
            for load in loads
        ]
        return max(found, key=lambda estimate: estimate.value)

    return measure


claims = [
    Claim("goodput", _up_to("nitsum", "best prior")),
    Claim(
        "cheap-switch",
        measures.ratio("goodput", of={"system": "nitsum"}, to={"system": "nitsum, restart"}, mix="shifting", load=0.9),
    ),
]
