"""Nitsum: tensor parallelism as a control that turns while the pool serves tiers of requests.

Tiers differ in how soon and how steadily they want tokens. A strict tier needs wide groups (many GPUs on each token),
a relaxed one is served cheapest by narrow ones, and the mix moves by the minute; so every fixed cut of a pool wastes
GPUs on somebody. Every few seconds the controller measures what each tier asked for lately, solves a small integer
programme for the cut that lets most requests meet both targets (`assay.serving.nitsum.tier_plan`), and changes to it
where the gain over the next half minute exceeds what the switch costs. The switch is cheap for two reasons: weights
are laid out so that a narrower slice is a contiguous part of a wider one, so going wide loads nothing and going
narrow fetches only what is missing from neighbours; and KV is split anew by heads and moved while decoding goes on,
so that requests stand still for the last layer only. In a group the strictest tier goes first, by the deadline of its
first token.

What is not printed in the paper and inferred here: the capacity tables, the programme and the hysteresis.

WukLab, UC San Diego, arXiv:2605.05467.

>>> from assay.serving.engine.simulator import simulate
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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.serving.baselines.routers import LeastRequests
from assay.serving.engine.control import Control, Withdrawn
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.fleet.gpu_pool import Group, Pool, pack, spread
from assay.serving.interface import SLO, Finished, Fleet, Request
from assay.serving.nitsum import tier_plan
from assay.serving.nitsum.tier_plan import Plan, Sort, best_plan, name_of
from assay.serving.nitsum.tiers import Demand, StrictestFirst, Window, strict_first
from assay.serving.nitsum.traffic import GPUS, KINDS, LAYOUT, STRETCHES, TARGETS, mean_demand, offered, usual, workload
from assay.sim.trust import sentence
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
trust = sentence("roofline")
own_input = (
    "assay compare nitsum --trace examples/shifts.csv --gpus 4xh200:qwen3-32b --slo express:ttft=1,tpot=0.0125 "
    "--slo standard:ttft=4,tpot=0.04 --slo batch:ttft=30,tpot=0.15"
)
replays = ("azure-2023-conv",)
references = ("Azure LLM inference trace 2023, conversations: Patel et al., Splitwise, ISCA 2024.",)

AGREE = 0.01  # seconds in which the members of a group agree on the step of a switch
SLACK = 0.5  # of a strict group's seats that relaxed tiers may fill, while nobody waits there
BURST = 1.1  # demand to plan for, over the measured one


@dataclass
class Nitsum:
    """Router and planner in one: it sends requests to the groups it forms.

    `restart` above 0 replaces the cheap switch by one of so many seconds in which KV is lost. `expected` is what to
    plan for before anything was seen; with `adapts=False` that plan is kept.
    """

    key = "nitsum"
    layout: str
    gpus: int
    targets: Mapping[str, SLO]
    period: float = 5.0
    horizon: float = 30.0  # seconds over which a switch must pay
    window: float = 6.0  # seconds over which demand is measured
    rest: float = 0.0  # seconds between switches at least
    restart: float = 0.0
    roles: tuple[str, ...] = tier_plan.ROLES
    expected: Mapping[str, Demand] | None = None
    adapts: bool = True
    plans: int = 0

    def __post_init__(self) -> None:
        self._names = strict_first(self.targets)
        self._rank = {name: rank for rank, name in enumerate(self._names)}
        self.order = StrictestFirst(self.targets)
        self.seen = Window(self.window)
        self.pool = Pool(self.gpus, self._spec)
        self._seats = np.ones(self.gpus)
        self._level = np.zeros(self.gpus, np.int64)
        self._prefills, self._mixes = np.zeros(self.gpus, bool), np.ones(self.gpus, bool)  # by role
        self._pace = np.zeros(self.gpus)  # seconds of a prompt token
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
        """Before anything was seen: an even demand of all tiers, or the one that is expected."""
        even = {name: Demand(1.0, 1000.0, 1.0, 200.0) for name in self._names}
        self._demand = self.expected or even
        plan = self._solve()
        self.pool.begin(control, pack(self.gpus, [(width, role) for role, width in _each(plan.kinds)]))
        self._settle(plan, control)

    # ------------------------------------------------------------------------------------------ the plan

    def plan(self, fleet: Fleet, control: Control) -> None:
        """Measure, plan, and switch where it pays."""
        if not self.adapts or control.now < self.pool.busy:
            return
        rested = control.now >= self.pool.busy + self.rest or not self.pool.switches
        measured = self.seen.demand(control.now)
        if not measured:
            return
        self._demand = {name: self._with_backlog(name, wanted, fleet).rounded() for name, wanted in measured.items()}
        kinds: dict[tuple[str, int], int] = {}
        for group in self.pool.groups:
            kinds[group.role, group.width] = kinds.get((group.role, group.width), 0) + 1
        stay = self._solve(kinds)
        if rested and stay.served < 0.97 * stay.asked:
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
        self._prefills[:], self._mixes[:] = False, True
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
        self._seats[slot], self._level[slot] = held.seats, sort.level
        self._prefills[slot], self._mixes[slot] = sort.role == "prefill", sort.role == "both"
        self._pace[slot] = self._spec(Group(slot, sort.width)).cost.tokens[2048] / 2048
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
        board = fleet.running + fleet.waiting
        wait = (fleet.prefill_tokens + request.prompt) * self._pace
        over = np.maximum(board + 1 - self._seats, 0) / self._seats
        wait = wait + over * 5.0  # a seat comes free when somebody ends
        full = (board > SLACK * self._seats) | (fleet.prefill_tokens > request.prompt)
        strange = (self._level < rank) & full  # relaxed ones only into slack
        return self._first(wait + 1e3 * strange, able, fleet)

    def route_decode(self, request: Request, fleet: Fleet) -> int:
        """The emptiest group, by seats, that keeps the tier's time between tokens."""
        full = (fleet.running + fleet.waiting) / self._seats
        return self._first(full + 10.0 * self._mixes, self._able(request, fleet), fleet)

    def _able(self, request: Request, fleet: Fleet) -> Any:
        eligible = np.ones(self.gpus, bool) if fleet.eligible is None else fleet.eligible
        fine = eligible & ((self._level <= self._rank.get(request.tier, 0)) | self._prefills)
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

LOADS = (0.7, 0.9, 1.2, 1.5)  # of what the best cut for each mix is planned to serve
RESTART = 30.0  # seconds: "tens of seconds"
HORIZONS = (60.0, 300.0)  # seconds over which a restart may have to pay
APART = (
    "prefill",
    "decode",
)  # as in the paper, GPUs are split between the two; groups that do both served less in time


@dataclass(frozen=True)
class Site:
    """A pool, and what its tiers are promised."""

    layout: str = LAYOUT
    gpus: int = GPUS
    targets: Mapping[str, SLO] = field(default_factory=lambda: TARGETS)


OURS = Site()


def static(width: int, max_tokens: int, prefill: int = 0, site: Site = OURS) -> FleetSpec:
    """Equal groups of one width; the first `prefill` of them only prefill and the others only decode."""
    from assay.sim.hardware import device
    from assay.sim.roofline import layout

    name = name_of(site.layout, width)
    one = Instance(layout(name), tp=width, gpus=width, name=name, max_tokens=max_tokens, max_seqs=256)
    groups = [one] * (site.gpus // width)
    if prefill:
        groups = [replace(one, role="prefill" if i < prefill else "decode") for i in range(len(groups))]
    link = device(site.layout.split(":")[0]).nvlink
    return FleetSpec(tuple(groups), bandwidth=0.75 * link.bandwidth)


Option = tuple[int, int, int, bool]  # of a static layout: width, tokens, groups that only prefill, strict tiers first


def options(site: Site = OURS) -> dict[str, list[Option]]:
    """Families of static layouts with what an operator would try, as far as the pool has the GPUs."""
    splits = ((1, 3), (1, 4), (1, 5), (2, 1), (2, 2), (2, 3), (4, 1))  # width, groups that prefill
    families: dict[str, list[Option]] = {
        "static width": [(width, 2048, 0, False) for width in tier_plan.WIDTHS],
        "priority queue": [(width, tokens, 0, True) for width in (2, 4) for tokens in (512, 2048)],
        "static prefill/decode": [(width, 8192, prefill, True) for width, prefill in splits],
    }
    able = {width for width in tier_plan.WIDTHS if site.gpus % width == 0 and tier_plan.fits(site.layout, width)}
    fitting = {
        name: [one for one in family if one[0] in able and one[2] < site.gpus // one[0]]
        for name, family in families.items()
    }
    return {name: family for name, family in fitting.items() if family}


def run_static(requests: Requests, width: int, tokens: int, prefill: int, first: bool, site: Site = OURS) -> Outcome:
    """One run of a static layout."""
    order = StrictestFirst(site.targets) if first else None
    fleet = static(width, tokens, prefill, site)
    return simulate(requests, fleet, LeastRequests(), order=order, prefix_cache=False, record=False)


def run_planned(
    requests: Requests, expected: Mapping[str, Demand], site: Site = OURS, **given: Any
) -> tuple[Outcome, dict[str, Any]]:
    """One run under a planner that expects a demand at first, and how often it switched."""
    planner = Nitsum(site.layout, site.gpus, site.targets, expected=expected, **{"roles": APART} | given)
    outcome = simulate(
        requests, planner.slots(), planner, order=planner.order, planner=planner, prefix_cache=False, record=False
    )
    paused = planner.pool.paused / (site.gpus * outcome.makespan)
    return outcome, {"switches": planner.pool.switches, "paused": paused}


def score(requests: Requests, *option: Any) -> float:
    """Goodput of a static layout."""
    return run_static(requests, *option).goodput(TARGETS)


def serve(requests: Requests, expected: Mapping[str, Demand], **given: Any) -> dict[str, Any]:
    """Goodput under a planner."""
    outcome, told = run_planned(requests, expected, **given)
    return {"goodput": outcome.goodput(TARGETS)} | told


def restarting(horizon: float) -> dict[str, Any]:
    """A planner whose switch is a restart looks at a longer past and a longer future, and rests two minutes after."""
    return {"restart": RESTART, "horizon": horizon, "window": 30.0, "rest": 120.0}


def try_static(
    path: str, mix: str, load: float, phases: int, seconds: float, rates: list[float], family: str, number: int,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """What a static layout serves on a stretch that is not judged."""
    requests = workload(path, mix, load, phases, seconds, rates, seed, use="tuned")
    return {"goodput": score(requests, *options()[family][number])}


def try_restarts(
    path: str, load: float, phases: int, seconds: float, rates: list[float], horizon: float, seed: int
) -> dict[str, Any]:
    """What a planner serves there whose restarts have to pay within a time."""
    requests = workload(path, "shifting", load, phases, seconds, rates, seed, use="tuned")
    return {"goodput": serve(requests, usual(path, "shifting", load, rates), **restarting(horizon))["goodput"]}


def tune(lab: Lab, prior: list[dict[str, Any]], dear: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The cases of both experiments, with the best layout of each family and with the best horizon."""
    ways = [{"family": name, "number": i} for name, family in options().items() for i in range(len(family))]
    tried = lab.run(try_static, [case | way for case in prior for way in ways])["goodput"].to_numpy()
    found = []
    for case, goodput in zip(prior, tried.reshape(len(prior), len(ways)), strict=True):
        best = {name: [goodput[i] for i, way in enumerate(ways) if way["family"] == name] for name in options()}
        found.append(case | {name: int(np.argmax(each)) for name, each in best.items()})
    tried = lab.run(try_restarts, [case | {"horizon": h} for case in dear for h in HORIZONS])["goodput"].to_numpy()
    horizons = tried.reshape(len(dear), len(HORIZONS)).argmax(1)
    return found, [case | {"horizon": HORIZONS[i]} for case, i in zip(dear, horizons, strict=True)]


def compare_on(
    path: str, mix: str, load: float, phases: int, seconds: float, rates: list[float], stretch: int, seed: int,
    **tuned: Any,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Nitsum and what was there before, on one stretch of traffic, each as it was tuned on another of its kind."""
    requests = workload(path, mix, load, phases, seconds, rates, seed, stretch=stretch)
    rows = {name: {"goodput": score(requests, *family[tuned[name]])} for name, family in options().items()}
    expected = usual(path, mix, load, rates)
    rows["partition by tier"] = serve(requests, expected, adapts=False)
    rows["nitsum"] = serve(requests, expected)
    return _filled(rows, requests)


def compare_restarts(
    path: str, load: float, phases: int, seconds: float, rates: list[float], horizon: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Nitsum, the same planner with restarts, and plans made once for the usual and for the true mean demand."""
    requests = workload(path, "shifting", load, phases, seconds, rates, seed)
    expected = usual(path, "shifting", load, rates)
    rows = {
        "nitsum": serve(requests, expected),
        "restart": serve(requests, expected, **restarting(horizon)),
        "planned once": serve(requests, expected, adapts=False),
        "planned once, true mean": serve(requests, mean_demand(requests), adapts=False),
    }
    return _filled(rows, requests)


def _filled(rows: dict[str, dict[str, Any]], requests: Requests) -> dict[str, dict[str, Any]]:
    rest = {"switches": 0, "paused": 0.0, "offered": len(requests) / requests.seconds}
    return {name: rest | row for name, row in rows.items()}


def over_stretches(table: pl.DataFrame) -> pl.DataFrame:
    """One row for all stretches of a seed: their means."""
    measured = ("goodput", "switches", "paused", "offered")
    case = ("mix", "load", "phases", "seconds", "system", "seed")
    return table.group_by(case, maintain_order=True).agg(pl.col(measured).mean())


def study(lab: Lab) -> Tables:
    """Nitsum beside prior systems on a mix that shifts (and one that does not), and beside restarts; 8 H200."""
    found = lab.trace_or_none("AzureLLMInferenceTrace_conv.csv")
    path, made = (str(found), "") if found else ("", ", generated requests")
    rates = {mix: offered(path, mix) for mix in lab.pick(quick=["shifting"], full=list(KINDS))}
    common = {"path": path, "phases": 3}
    shapes = [("shifting", load, 40.0) for load in lab.pick(quick=LOADS[2:3], full=LOADS)]
    shapes += lab.pick(quick=[], full=[("shifting", 0.9, 120.0), ("steady", 0.8, 40.0)])
    prior = [common | {"mix": mix, "load": x, "seconds": s, "rates": rates[mix]} for mix, x, s in shapes]
    dear = [
        common | {"load": load, "seconds": s, "rates": rates["shifting"]}
        for load, s in lab.pick(quick=[(0.9, 80.0)], full=[(0.7, 80.0), (0.9, 80.0), (0.9, 300.0)])
    ]
    one, many = lab.with_seeds(1, 1), lab.with_seeds(quick=4, full=10)
    prior, dear = tune(one, prior, dear)
    each = [case | {"stretch": stretch} for case in prior for stretch in range(STRETCHES)]
    tables = {
        "prior": over_stretches(many.run(compare_on, each, per="system")),
        "restart": many.run(compare_restarts, dear, per="system"),
    }
    shown = {"mix", "load", "phases", "seconds", "system", "seed", "offered", "goodput", "switches", "paused"}
    return {f"{name}{made}": table.select(c for c in table.columns if c in shown) for name, table in tables.items()}


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Goodput of every system, a panel a workload."""
    import altair as alt

    named = table.with_columns(panel=pl.format("{}: load {}, phases of {} s", "experiment", "load", "seconds"))
    means = named.group_by("panel", "system", maintain_order=True).agg(pl.col("goodput").mean())
    title = alt.Title("Requests a second that met both targets", subtitle="8 H200, Qwen3-32B; mean over seeds")
    chart: alt.FacetChart = (
        alt.Chart(means)
        .mark_bar()
        .encode(x=alt.X("goodput:Q", title="goodput, requests/s"), y=alt.Y("system:N", sort="-x", title=None))
        .properties(width=320, height=260)
        .facet(alt.Facet("panel:N", title=None), columns=2, title=title)
    )
    return chart


def over(*systems: str) -> measures.Measure:
    """Goodput over that of the system which, in hindsight, does best on average over the seeds."""

    def measure(table: pl.DataFrame) -> Estimate:
        means = {name: measures.mean("goodput", system=name)(table).value for name in systems}
        best = max(means, key=lambda name: means[name])
        return measures.ratio("goodput", of={"system": "nitsum"}, to={"system": best})(table)

    return measure


def over_prior(table: pl.DataFrame) -> Estimate:
    """The largest ratio of goodput to the best prior system's over the cases of the shifting mix."""
    shifting = measures.rows(table, {"experiment": "prior", "mix": "shifting"})
    cases: dict[str, measures.Measure] = {
        f"load {load:g}, phases of {seconds:g} s": partial(
            lambda case, _: over(*options(), "partition by tier")(case), case
        )
        for (load, seconds), case in shifting.group_by("load", "seconds", maintain_order=True)
    }
    return measures.best(cases)(table)


def beside_restarts(system: str) -> measures.Measure:
    """Goodput over a system's where restarts are compared, at load 0.9 and the longest phases: they suit restarts."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"experiment": "restart", "load": 0.9})
        return over(system)(chosen.filter(pl.col("seconds") == pl.col("seconds").max()))

    return measure


claims = [
    Claim("goodput", over_prior),
    Claim("cheap-switch", beside_restarts("restart")),
    Claim(
        "true-mean",
        beside_restarts("planned once, true mean"),
        asks="Where it is compared with restarts, Nitsum serves at least 1.1 times as many requests in time as a plan "
        "that is made once, for the true mean demand.",
        kind=Kind.AT_LEAST,
        value=1.1,
        unit="ratio",
    ),
]
