"""Flying Serving: replicas merge into one tensor-parallel group while they serve, and part again when it gets busy.

Data parallelism (every GPU a replica) serves the most requests; tensor parallelism (all GPUs on each request) answers
soonest. A service is quiet at night and busy at noon, so either choice is wrong half of the day, and changing it by a
restart takes minutes. Here every engine holds the whole model and a shard is a slice of it, so a switch loads nothing
(`assay.serving.flying_serving.weight_slices` has the three ways to slice, and the KV memory whose block size follows
the width). What a switch does cost is in the model: the members agree on a step, the KV of running requests does not
fit the other layout and is computed again (`hard-preempt`), or the running cohort is drained first (`sequential`),
and a sliced matrix multiplies more slowly than a native shard.

Two policies. By load: merge while nobody waits and the batch is small, part when a queue builds, with different
thresholds for the two and a pause between switches. By request: one that fits no single engine, or one of the tier
`express`, gets a merged subset. A width changes by way of width 1, as in the authors' engine.

Merging costs and speeds are the authors' published measurements, kept as constants of the model; the engines' own
speed is assay's roofline. The study alternates quiet and busy hours at rates that every static layout sustains: beyond
them one layout's queue grows for as long as one cares to look. It is judged where the pool merges and parts every day.

arXiv:2602.22593, ICS 2026.

>>> from assay.serving.engine.simulator import simulate
>>> from assay.serving.baselines.routers import LeastRequests
>>> from assay.workloads.chat import chat
>>> pool = Engines("h200:llama-3-8b", 4)
>>> flying = Flying(pool)
>>> quiet = simulate(chat(100, rate=2.0, seed=0), pool.slots(), LeastRequests(), planner=flying)
>>> flying.width, quiet.summary()["requests"]
(4, 100)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.serving.baselines.routers import LeastRequests
from assay.serving.engine import steady_state
from assay.serving.engine.control import Control, Withdrawn
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.fleet.gpu_pool import Group, Pool, spread
from assay.serving.interface import Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.sim.trust import sentence
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
use_when = (
    "One pool of GPUs sees quiet and busy hours, or a few urgent or very long requests among many, and the model fits "
    "each engine whole."
)
avoid_when = (
    "The load hardly changes (the right static layout is as good and simpler), the model needs all GPUs anyway, or "
    "contexts are so long that computing their KV again at a switch costs more than the wrong layout."
)
trust = sentence("roofline")
own_input = "assay compare flying-serving --trace examples/shifts.csv --engines 4xh200:qwen3-32b"
references = ("The engine's own figures: README of the authors' public fork of vLLM.",)

EXPRESS = "express"  # the tier whose requests are worth a merge of their own
PENALTY = {1: 0.0, 2: 0.19, 4: 0.37, 8: 0.37}  # time per token over a native shard's (published for an 8B; 8 assumed)
LARGE_PENALTY = {1: 0.0, 2: 0.14, 4: 0.19, 8: 0.19}  # published as 14 to 19 % for a 70B
LARGE = 60e9  # parameters from which the second table is used (assumed)
MERGE = 0.6  # seconds; published: 0.2 to 1.0
SPLIT, SPLIT_LONG = 0.02, 2.98  # seconds, and seconds more at LONG tokens of context; published: 0.02 to 3
LONG = 131_072
RESTART = 120.0  # seconds of an engine restart with another layout ("minutes")


def merged(native: StepCost, penalty: float) -> StepCost:
    """A native shard's cost with the price of slicing: decodes slow down by `penalty`, a prompt by the same seconds.

    >>> cost = StepCost(np.full(9000, 0.01), kv_tokens=100)
    >>> round(merged(cost, 0.2).seconds(b=1), 6)
    0.012
    """
    decode = {name: getattr(native, name) * (1 + penalty) for name in ("decode_fixed", "decode_seq", "decode_kv")}
    tokens = native.tokens + penalty * native.tokens[1]  # once an iteration: more launches, and a barrier
    return replace(native, tokens=tokens, name=f"{native.name}, merged", **decode)


@lru_cache(maxsize=64)
def _merged_layout(name: str, penalty: float) -> StepCost:
    """One object for one layout: the engine tells costs apart by identity."""
    from assay.sim.roofline import layout

    return merged(layout(name), penalty) if penalty else layout(name)


@dataclass(frozen=True)
class Engines:
    """`count` equal engines of one layout, such as `h200:llama-3-70b:tp2`, that may merge."""

    layout: str
    count: int
    max_seqs: int = 256  # of one engine; a group may run as many as its members together
    max_tokens: int = 8192

    @property
    def tp(self) -> int:
        """GPUs of one engine."""
        found = re.search(r":tp(\d+)", self.layout)
        return int(found[1]) if found else 1

    def _wide(self, width: int) -> str:
        base = re.sub(r":tp\d+", "", self.layout)
        return f"{base}:tp{self.tp * width}" if self.tp * width > 1 else base

    def native(self, width: int = 1) -> Instance:
        """A static instance of `width` engines' GPUs."""
        from assay.sim.roofline import layout

        gpus = self.tp * width
        return Instance(
            layout(self._wide(width)), tp=gpus, gpus=gpus, name=self._wide(width),
            max_seqs=min(self.max_seqs * width, self.max_tokens), max_tokens=self.max_tokens,
        )  # fmt: skip

    def spec(self, group: Group) -> Instance:
        """A merged group: a native instance at the price of slicing, and the room that full copies of weights leave.

        Every engine keeps all its weights, so a group of w has w times the KV room of one engine and not more.
        """
        from assay.sim.layouts import read_layout

        table = LARGE_PENALTY if read_layout(self.layout).model.params > LARGE else PENALTY
        native = self.native(group.width)
        room = self.native(1).room * group.width
        return replace(native, cost=_merged_layout(native.name, table[group.width]), kv_tokens=room)

    def fleet(self, width: int = 1) -> FleetSpec:
        """All of them, in static groups of `width`."""
        return FleetSpec(
            (self.native(width),) * (self.count // width), name=f"{self.count // width} x {self._wide(width)}"
        )

    def slots(self) -> FleetSpec:
        """The pool as a planner needs it: every engine a slot, with seats for the widest group."""
        seats = self.native(self.count).max_seqs
        return FleetSpec((replace(self.native(1), max_seqs=seats),) * self.count, name=f"{self.count} engines")


def thresholds(engines: Engines, widest: int, prompt: float, output: float) -> tuple[float, float]:
    """On how few requests to merge, and on how many to part, from the cost model (the authors set them by hand).

    A merged group is left at 85 % of the rate it sustains; engines merge at the load which that group would carry at
    60 %. Requests on board follow from the rate by Little's law.
    """
    wide, alone = engines.spec(Group(0, widest)), engines.spec(Group(0, 1))
    groups = engines.count / widest
    most = steady_state.most(wide.cost, prompt, output, room=float(wide.room), max_seqs=float(wide.max_seqs))
    busy = steady_state.steady(wide.cost, 0.85 * most, prompt, output, room=float(wide.room))
    calm = steady_state.steady(alone.cost, 0.6 * most / widest, prompt, output, room=float(alone.room))
    large = max(busy.sequences, 1.0) * groups
    return min(calm.sequences * engines.count, 0.7 * large), large


@dataclass
class Flying:
    """The planner: how wide the groups are, by load and by request.

    `method`: `hard-preempt` drops the KV of running requests and computes it again in the new layout; `sequential`
    lets them finish first, while newcomers wait, for at most `drain` seconds. `restart` instead of 0 stands for an
    engine that must be restarted for another layout.
    """

    key = "flying-serving"
    engines: Engines
    widest: int = 0  # 0: all engines
    method: str = "hard-preempt"
    prompt: float = 1000.0  # typical tokens, from which the thresholds follow
    output: float = 250.0
    small: float = 0.0  # requests on board below which engines merge; 0: `thresholds`
    large: float = 0.0  # above which they part
    queue: float = 2.0  # waiting requests per engine above which they part
    dwell: float = 2.0  # seconds for which the wish to merge must last
    alarm: float = 1.0  # seconds for which the wish to part must last
    rest: float = 10.0  # seconds between a switch and the next merge
    drain: float = 20.0
    restart: float = 0.0
    by_load: bool = True
    by_request: bool = False
    period: float = 0.25
    switches: int = 0
    held: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.method not in ("hard-preempt", "sequential"):
            raise ValueError(f"no switching method '{self.method}'; there are hard-preempt and sequential")
        self.widest = self.widest or self.engines.count
        if not self.large:
            self.small, self.large = thresholds(self.engines, self.widest, self.prompt, self.output)
        if not 0 < self.small < self.large:
            raise ValueError("without a gap between `small` and `large` the pool would switch to and fro")
        self.pool = Pool(self.engines.count, self.engines.spec)
        self.room = self.engines.spec(Group(0, self.widest)).room if self.by_request else 0
        self._wish, self._since, self._last = 0, 0.0, -np.inf
        self._draining: tuple[list[Group], float] | None = None
        self._special: set[int] = set()

    @property
    def width(self) -> int:
        """Of the widest group at present."""
        return max(group.width for group in self.pool.groups)

    # ---------------------------------------------------------------------------------------- the policies

    def begin(self, fleet: Fleet, control: Control) -> None:
        """Start as replicas: nobody knows the load yet."""
        self.pool.begin(control, self._cut(1))

    def _cut(self, width: int) -> list[Group]:
        return [Group(first, width) for first in range(0, self.engines.count, width)]

    def plan(self, fleet: Fleet, control: Control) -> None:
        """Look at the load, and switch where a wish has lasted."""
        if control.now < self.pool.busy:
            return
        if self._draining is not None:
            self._drained(fleet, control)
            return
        wanted = self._wanted(fleet)
        if wanted == self.width:
            self._wish = 0
            return
        if wanted != self._wish:
            self._wish, self._since = wanted, control.now
        patience = self.dwell if wanted > self.width else self.alarm
        rested = wanted < self.width or control.now - self._last >= self.rest
        if control.now - self._since >= patience and rested:
            self._go(1 if self.width > 1 else wanted, fleet, control)  # a width changes by way of width 1

    def _wanted(self, fleet: Fleet) -> int:
        if self._special:
            return self.widest
        if not self.by_load:
            return 1
        waiting = int(fleet.waiting.sum())
        load = int(fleet.running.sum()) + waiting
        if self.width > 1:
            return 1 if load > self.large or waiting > self.queue * self.engines.count else self.width
        return self.widest if load <= self.small and waiting == 0 else 1

    def arrived(self, request: Request, fleet: Fleet, control: Control) -> bool:
        """By request: hold one that only a merged group can serve until there is one."""
        if not self.by_request:
            return False
        alone = self.width == 1 and control.now >= self.pool.busy and self._draining is None
        long = not bool(fleet.eligible is None or fleet.eligible.any())
        if not long and not (request.tier == EXPRESS and self.width == 1):
            return False
        self._special.add(int(request.id))
        if not long:
            return False
        self.held.append(int(request.id))
        if alone:
            self._go(self.widest, fleet, control)
        return True

    def finished(self, request: Request, done: Any) -> None:
        """A special request is over."""
        self._special.discard(int(request.id))

    # ---------------------------------------------------------------------------------------- the switch

    def _go(self, width: int, fleet: Fleet, control: Control) -> None:
        groups = self._cut(width)
        if self.method == "sequential":
            for group in self.pool.groups:
                control.limit(group.first, 0)  # newcomers wait here, the cohort runs out
            self._draining = groups, control.now + self.drain
            self._drained(fleet, control)
        else:
            self._switch(groups, control)

    def _drained(self, fleet: Fleet, control: Control) -> None:
        assert self._draining is not None
        groups, deadline = self._draining
        if (
            not fleet.running.any() or control.now >= deadline
        ):  # whoever is still there is computed again: no starvation
            self._draining = None
            self._switch(groups, control)

    def _switch(self, groups: list[Group], control: Control) -> None:
        self.switches += 1
        self._last, self._wish = control.now, 0
        wider = groups[0].width > self.width

        def pause(moved: list[Withdrawn]) -> float:
            if self.restart:
                return self.restart
            longest = max((item.context for item in moved), default=0)
            return MERGE if wider else SPLIT + SPLIT_LONG * min(longest / LONG, 1.0)

        def done() -> None:
            held, self.held = self.held, []
            for r in held:
                if control.takes(r, groups[0].first):
                    control.send(r, groups[0].first, self.pool.busy)
                else:
                    self.held.append(r)

        place = spread(control, groups, lambda group: float(group.width))
        self.pool.switch(control, groups, keep=False, pause=pause, place=place, done=done)


# ---------------------------------------------------------------------------------------------- the study

MODELS = {
    "8B": Engines("h200:llama-3-8b", 8),
    "32B": Engines("h200:qwen3-32b", 4),
    "70B": Engines("h200:llama-3-70b:tp2", 2),
}
PEAKS = (0.5, 0.7, 0.9)  # the busy rate, of what the least capable static layout sustains
QUIET = 0.1  # the quiet rate, likewise
PHASE, LONG_PHASE = 40, 160  # how long quiet and busy hours last, in times that one request takes alone on one engine
PROMPT, OUTPUT = 4096, 256  # the fork's own benchmark


def traffic(engines: Engines, peak: float, phase: int, days: int, seed: int, use: str = "judged") -> Requests:
    """Long prompts and short answers; a day is a quiet phase and a busy one.

    Even the busy rate is one that every static layout sustains. Above it the queue of some would grow for as long as
    the phase lasts, and so would any ratio of latencies.
    """
    from assay.workloads.chat import Lengths

    random = stream(seed, "flying-serving", use, engines.layout, str(peak))
    least = min(capacity(engines, width) for width in widths(engines))
    seconds = phase * alone(engines)
    counts = random.poisson(np.tile([QUIET, peak], days) * least * seconds)
    arrival = seconds * np.sort(np.repeat(np.arange(2 * days), counts) + random.random(counts.sum()))
    prompt, output = Lengths.lognormal(PROMPT, OUTPUT, sigma=0.3).draw(random, len(arrival))
    return Requests.of(arrival, prompt, output)


def hours(requests: Requests, seconds: float) -> tuple[Any, Any]:
    """Who comes in quiet hours, and who in busy ones, of all days but the first, in which the pool warms up."""
    which = (requests.arrival // seconds).astype(int)
    return (which >= 2) & (which % 2 == 0), (which >= 2) & (which % 2 == 1)


def widths(engines: Engines) -> list[int]:
    """Of static layouts: powers of two up to all engines."""
    return [2**k for k in range(engines.count.bit_length()) if 2**k <= engines.count]


def _full(n: int) -> Requests:
    return Requests.of(np.zeros(n), np.full(n, PROMPT), np.full(n, OUTPUT))


@lru_cache(maxsize=64)
def capacity(engines: Engines, width: int = 1) -> float:
    """Requests a second that static groups of a width complete when all wait at the door."""
    n = 60 * engines.count
    return n / simulate(_full(n), engines.fleet(width), LeastRequests(), record=False).makespan


@lru_cache(maxsize=16)
def alone(engines: Engines) -> float:
    """Seconds of one request on one engine: what the length of a phase is measured in."""
    return simulate(_full(1), engines.fleet(1), LeastRequests(), record=False).makespan


def statics(engines: Engines) -> dict[str, int]:
    """Static layouts by name, with their widths."""
    names = {1: "static DP", engines.count: "static TP"}
    return {names.get(width, f"static hybrid {width}"): width for width in widths(engines)}


def settings(engines: Engines, prompt: float = PROMPT, output: float = OUTPUT) -> list[dict[str, Any]]:
    """What an operator would try: how wide to merge, how, and to part at what share of the load `thresholds` gives."""
    found: list[dict[str, Any]] = []
    for widest in widths(engines)[1:]:
        small, large = thresholds(engines, widest, prompt, output)
        for method in ("hard-preempt", "sequential"):
            found += [
                {"widest": widest, "method": method, "small": min(small, 0.7 * part * large), "large": part * large}
                for part in (0.25, 1.0)
            ]
    return found


def served(requests: Requests, engines: Engines, what: Flying | int) -> Any:
    """One run, of a planner or of static groups of a width, without a prefix cache."""
    planner, fleet = (what, engines.slots()) if isinstance(what, Flying) else (None, engines.fleet(what))
    return simulate(requests, fleet, LeastRequests(), planner=planner, prefix_cache=False, record=False)


def tune(model: str, peak: float, phase: int, seed: int) -> dict[str, Any]:
    """Everybody's best on days that are not judged: of `settings` the best that merges all engines and the best of any
    width, and the best static layout.
    """
    engines = MODELS[model]
    requests = traffic(engines, peak, phase, 3 if phase == PHASE else 2, seed, use="tuned")
    judged = np.logical_or(*hours(requests, phase * alone(engines)))

    def mean(what: Flying | int) -> float:
        return float(served(requests, engines, what).e2e[judged].mean())

    tried, rigid = settings(engines), statics(engines)
    found = [mean(Flying(engines, **one)) for one in tried]
    whole = [i for i, one in enumerate(tried) if one["widest"] == engines.count]
    return {
        "setting": min(whole, key=lambda i: found[i]),
        "any_width": int(np.argmin(found)),
        "rigid": min(rigid, key=lambda name: mean(rigid[name])),
    }


def compare_at(
    model: str, peak: float, phase: int, days: int, setting: int, any_width: int, rigid: str, seed: int
) -> dict[str, dict[str, Any]]:
    """Every layout on the same days, each as it was tuned on others; restarts only where hours are long.

    Whoever restarts waits until a wish has lasted a minute, and merges again ten minutes later at the soonest.
    """
    engines = MODELS[model]
    requests = traffic(engines, peak, phase, days + 1, seed)
    tried = settings(engines)
    compared: dict[str, Flying | int] = {"flying": Flying(engines, **tried[setting])}
    if any_width != setting:
        compared["flying, any width"] = Flying(engines, **tried[any_width])
    if phase == LONG_PHASE:
        compared["restart"] = Flying(engines, **tried[setting], restart=RESTART, dwell=60.0, alarm=60.0, rest=600.0)
    rows = {name: row(requests, engines, what, phase) for name, what in (compared | statics(engines)).items()}
    return {"flying": rows["flying"], "flying, any width": rows["flying"]} | rows | {"best static": rows[rigid]}


def row(requests: Requests, engines: Engines, what: Flying | int, phase: int) -> dict[str, Any]:
    """Mean latencies over the days, in quiet and in busy hours; how the last day differs from the first; switches."""
    outcome = served(requests, engines, what)
    seconds = phase * alone(engines)
    quiet, busy = hours(requests, seconds)
    day = (requests.arrival // (2 * seconds)).astype(int)
    planner = what if isinstance(what, Flying) else None
    return {
        "width": planner.widest if planner else what,
        "method": planner.method if planner else None,
        "e2e_mean": float(outcome.e2e[quiet | busy].mean()),
        "e2e_quiet": float(outcome.e2e[quiet].mean()),
        "e2e_busy": float(outcome.e2e[busy].mean()),
        "ttft_quiet": float(outcome.ttft[quiet].mean()),
        "ttft_busy": float(outcome.ttft[busy].mean()),
        "last_day": float(outcome.e2e[day == day.max()].mean()),
        "switches": planner.switches if planner else 0,
        "recomputed": planner.pool.recomputed if planner else 0,
        "finished": int(np.isfinite(outcome.e2e).sum()),
    }


def study(lab: Lab) -> pl.DataFrame:
    """Three models through days of quiet and busy hours, beside every static layout; one also beside restarts."""
    days, peaks = lab.pick(quick=(2, PEAKS[1:]), full=(6, PEAKS))
    cases = [{"model": m, "peak": peak, "phase": PHASE} for m in MODELS for peak in peaks]
    cases.append({"model": "70B", "peak": PEAKS[-1], "phase": LONG_PHASE})
    chosen = lab.with_seeds(quick=1, full=1).run(tune, cases).drop("seed").to_dicts()
    judged = [case | {"days": days if case["phase"] == PHASE else days // 2} for case in chosen]
    return lab.run(compare_at, judged, per="layout").drop("setting", "any_width", "rigid")


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Mean end-to-end latency in quiet and in busy hours, a point a layout, a panel a model."""
    import altair as alt

    chosen = table.filter((pl.col("peak") == pl.col("peak").max()) & (pl.col("phase") == PHASE))
    means = chosen.group_by("model", "layout", maintain_order=True).agg(pl.col("e2e_quiet", "e2e_busy").mean())
    long = means.unpivot(index=["model", "layout"], variable_name="hours", value_name="seconds")
    long = long.with_columns(pl.col("hours").str.strip_prefix("e2e_"))
    title = alt.Title(
        "Static layouts and switching on the fly", subtitle="Busiest days; mean over seeds; lower is better"
    )
    chart: alt.FacetChart = (
        alt.Chart(long.filter(pl.col("layout") != "best static"))
        .mark_point(filled=True, size=80, opacity=1)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="mean end-to-end latency, s (log)"),
            y=alt.Y("layout:N", title=None),
            color=alt.Color("hours:N"),
        )
        .properties(width=210, height=200)
        .facet(alt.Facet("model:N", title=None), title=title)
        .resolve_scale(x="independent")
    )
    return chart


def over(layout: str, column: str) -> measures.Measure:
    """The largest ratio, of a layout's to Flying's, over the models and peaks where Flying merges and parts daily."""

    def case(model: str, peak: float) -> measures.Measure:
        def measure(table: pl.DataFrame) -> Estimate:
            chosen = measures.rows(table, {"model": model, "peak": peak, "phase": PHASE})
            flying = measures.rows(chosen, {"layout": "flying"})
            if (flying["switches"] < 2 * flying["days"]).any():
                raise NotMeasured(f"Flying does not switch daily ({model}, peak {peak:g})")
            return measures.ratio(column, of={"layout": layout}, to={"layout": "flying"})(chosen)

        return measure

    return measures.best({f"{model}, peak {peak:g}": case(model, peak) for model in MODELS for peak in PEAKS})


def over_best_static(table: pl.DataFrame) -> Estimate:
    """Over all cases: the mean of the best static layout's latency over Flying's, whatever widths suit it best."""
    days = table.filter(pl.col("phase") == PHASE)
    rows = {name: measures.rows(days, {"layout": name}) for name in ("flying, any width", "best static")}
    ours, theirs = (part.sort("seed", "model", "peak") for part in rows.values())
    ratio = ours.select("seed", log=(theirs["e2e_mean"] / ours["e2e_mean"]).log())
    found = intervals.bootstrap(ratio.group_by("seed", maintain_order=True).agg(pl.col("log").mean())["log"].to_list())
    value, low, high = (math.exp(x) for x in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n)


claims = [
    Claim("high-load", over("static TP", "e2e_busy")),
    Claim("low-load", over("static DP", "e2e_quiet")),
    Claim(
        "best-static",
        over_best_static,
        asks="Over whole days and all cases, mean latency is higher with the static layout that did best on another "
        "day, hybrids among them, than with Flying at its best width.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "restart",
        measures.ratio("e2e_mean", of={"layout": "restart"}, to={"layout": "flying"}, model="70B", phase=LONG_PHASE),
        asks="Where quiet and busy hours last a quarter of an hour each, mean latency is higher if the layout changes "
        "by restarts of two minutes than if it changes on the fly (70B, two engines).",
        kind=Kind.RATIO,
        toward="up",
    ),
]
