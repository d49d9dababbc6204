"""Libra: split GPUs between rollout and training anew as lengths drift, and route agents by what their tools returned.

Three parts. A planner searches all splits of the GPUs, the training plan of the one side and the sizes of instances of
the other, from the trajectories of the latest step. A hybrid pool lends whole instances to training between plans. A
multi-level feedback queue (C-MLFQ) starts every trajectory on a small instance; at each tool's return it walks a tree
of past returns (tool, size of the answer, status), and moves the trajectory to a large or a small instance where the
mean and the p90 of what such trajectories still wrote agree. Moving costs reading the context again.

Rivals get the same: instances of one size, the split tuned on the first step (verl's and AReaL's way); on a pool with
both sizes, least connections, a length predictor, and a queue that moves by tokens written, its limit tuned.

CUHK, arXiv:2606.03077; rules and constants are those of the code published with it.

>>> split([40] * 3, gpus=16).rollout  # tokens that trajectories write, and how many GPUs there are
8
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record.measures import Measure, best, change, not_here, ratio
from assay.record.types import Claim, Evidence, Kind
from assay.sim.random import stream
from assay.sim.step_times import trust_of
from assay.training.engine.rollout import Rule, play
from assay.training.libra import loop, planner
from assay.training.libra.planner import Machine, Split
from assay.workloads.trajectories import Trajectories, draw, joined

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
use_when = (
    "Rollouts are the longer side, their lengths drift over a run, and tools' answers say how much is still to come."
)
avoid_when = (
    "Large instances alone roll out faster than any mix (fast links between GPUs, a long tail): then there is nothing "
    "to route, and only the split is worth planning."
)
trust = (
    f"Step times: {trust_of('a800:qwen3-8b')} Trajectories are generated with assumed lengths; a user's own file is "
    "read by `assay plan rl`."
)
own_input = "assay plan rl --trajectories examples/trajectories.jsonl --model qwen3-8b --device a800 --gpus 48"
references = (
    "verl (HybridFlow): Sheng et al., EuroSys 2025. AReaL: Fu et al., 2025: static splits, least connections.",
    "Multi-level feedback queues for LLM serving: FastServe, Wu et al., 2023.",
)

MACHINE = Machine("qwen3-8b", "a800", 48)
SMALL = 16  # GPUs of quick runs, with as many trajectories a GPU
KNOWN = 4  # steps that routers may learn from
POOL = Split(24, (16, 0, 0, 1))  # small and large instances beside each other, for the routing experiment
LIMITS = (1000, 2000, 5000, 10_000)  # of a bucket, among which the rivals' is tuned
DRIFTS = ("steady", "growing", "shifting")
NO_FLEET = "reward against time needs RL training of a real policy on tens of GPUs; assay times steps, and trains none"


def split(written: Sequence[int], gpus: int, machine: str = "a800", model: str = "qwen3-8b") -> Split:
    """The best split of GPUs for trajectories of one turn that write so many tokens each."""
    tokens = np.asarray(written, dtype=np.int64)
    ones = np.ones(len(tokens), dtype=np.int64)
    work = Trajectories(
        np.arange(len(tokens) + 1), 512 * ones, tokens, np.zeros(len(tokens)), -ones, 0 * ones, ("none",)
    )
    return planner.best(Machine(model, machine, gpus), work)[0].split


def course(drift: str, steps: int, count: int, seed: int) -> list[Trajectories]:
    """The trajectories of all steps: alike, ever longer, or of two kinds of task that take turns."""
    parts = []
    for step in range(steps):
        along = step / max(1, steps - 1)
        if drift == "growing":
            options: dict[str, Any] = {"stretch": 0.5 * 4**along, "hard": 0.05 + 0.2 * along}
        elif drift == "shifting":
            options = {"stretch": 0.4, "hard": 0.03} if step % 12 < 6 else {"stretch": 1.6, "hard": 0.25}
        else:
            options = {}
        parts.append(draw(count, seed, step=step, **options))
    return parts


def trained(drift: str, gpus: int, steps: int, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """The same steps with Libra, without its parts, and with the best static split of the first step."""
    parts, machine = course(drift, steps, count, seed), replace(MACHINE, gpus=gpus)
    static, mixed = planner.homogeneous(machine, parts[0])[0].split, planner.best(machine, parts[0])[0].split
    manners = {
        "static": (static, loop.Manner(Rule(), replan=False, elastic=False)),
        "planner": (static, loop.Manner(Rule(), elastic=False)),
        "elastic": (static, loop.Manner(Rule(), replan=False)),
        "libra": (mixed, loop.Manner()),
    }
    found = {}
    for name, (first, manner) in manners.items():
        one = loop.run(machine, parts, first, manner)
        found[name] = {
            "throughput": one.throughput, "seconds": one.seconds, "replans": one.replans, "lent": one.lent,
            "migrations": one.migrations, "finished": one.finished, "split": one.splits[-1].name,
        }  # fmt: skip
    return found


def hindsight(drift: str, gpus: int, steps: int, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Libra beside a split that is the best of every step, known before it begins, and costs nothing to change."""
    parts, machine = course(drift, steps, count, seed), replace(MACHINE, gpus=gpus)
    first = planner.best(machine, parts[0])[0].split
    libra = loop.run(machine, parts, first, loop.Manner()).seconds
    each = [planner.best(machine, part)[0] for part in parts]
    oracle = sum(one.step for one in each) + each[-1].train  # the last step's trajectories are trained on, too
    static = loop.run(machine, parts, planner.homogeneous(machine, parts[0])[0].split,
                      loop.Manner(Rule(), replan=False, elastic=False)).seconds  # fmt: skip
    return {"libra": {"seconds": libra}, "oracle": {"seconds": oracle}, "static": {"seconds": static}}


def routed(informative: float, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """One step on a pool of small and large instances, after some like it that everybody may learn from."""
    steps = [draw(count, seed, step=step, informative=informative) for step in range(KNOWN + 1)]
    history, past, work = joined(steps[:-1]), steps[-2], steps[-1]
    pool = planner.pool(MACHINE, POOL)
    noise = np.exp(0.8 * stream(seed, "predicted lengths").standard_normal(count))

    def hint(part: Trajectories, limit: int, factor: Any) -> Any:
        return (part.written * factor > limit).astype(np.int64)

    def tuned(name: str, factor: Any = 1.0) -> Rule:
        rules = [Rule(name, limits=(limit, 50_000)) for limit in LIMITS]
        return min(rules, key=lambda rule: play(past, pool, rule, hint=hint(past, rule.limits[0], factor)).makespan)

    predicted, known, aged = tuned("hinted", noise), tuned("hinted"), tuned("aged")
    alike = min(
        (planner.pool(MACHINE, Split(24, counts)) for counts in planner.alike(24, [1, 2, 4, 8])),
        key=lambda places: play(past, places, Rule()).makespan,
    )
    found = {
        "least-connections": play(work, pool, Rule()),
        "predicted": play(work, pool, predicted, hint=hint(work, predicted.limits[0], noise)),
        "la-mlfq": play(work, pool, aged),
        "c-mlfq": play(work, pool, Rule("learnt"), past=history),
        "true-lengths": play(work, pool, known, hint=hint(work, known.limits[0], 1.0)),
        "one-size": play(work, alike, Rule()),
    }
    return {
        name: {"makespan": one.makespan, "migrations": one.migrations, "reread": one.reread, "finished": one.finished}
        for name, one in found.items()
    }


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Whole runs under drift beside the best static split; Libra beside hindsight; and routing on a mixed pool."""
    gpus = lab.pick(quick=SMALL, full=MACHINE.gpus)
    size = {"gpus": gpus, "steps": lab.pick(quick=14, full=60), "count": 48 * gpus}
    runs = [{"drift": drift, **size} for drift in DRIFTS]
    few = [{"drift": "growing", "gpus": gpus, "steps": lab.pick(quick=8, full=30), "count": 48 * gpus}]
    routes = [{"informative": x, "count": 512} for x in (1.0, 0.0)]
    return {
        "runs": lab.with_seeds(quick=5, full=5).run(trained, runs, per="system"),
        "hindsight": lab.with_seeds(quick=2, full=5).run(hindsight, few, per="system"),
        "routing": lab.run(routed, routes, per="router"),
    }


def _faster(of: str, than: str, drift: str) -> Measure:
    return ratio("throughput", of={"system": of}, to={"system": than}, experiment="runs", drift=drift)


def _routes(than: str, informative: float) -> Measure:
    where = {"experiment": "routing", "informative": informative}
    return ratio("makespan", of={"router": than}, to={"router": "c-mlfq"}, **where)


claims = [
    Claim("throughput", best({drift: _faster("libra", "static", drift) for drift in DRIFTS})),
    Claim("reward", not_here(NO_FLEET)),
    Claim(
        "planning", _faster("planner", "static", "growing"), kind=Kind.RATIO, toward="up",
        asks="Where lengths grow, replanning alone exceeds the throughput of the split that was best at first.",
    ),
    Claim(
        "hindsight", change("seconds", new={"system": "libra"}, old={"system": "oracle"}, experiment="hindsight"),
        kind=Kind.AT_MOST, value=0.10, unit="change",
        asks="Libra's run takes at most 10 % longer than the best split of every step known beforehand.",
    ),
    Claim(
        "routing", _routes("least-connections", 1.0), kind=Kind.AT_LEAST, value=1.3, unit="ratio",
        asks="Where returns tell how much is to come, least connections takes at least 1.3 times C-MLFQ's makespan.",
    ),
    Claim(
        "la-mlfq", _routes("la-mlfq", 1.0), kind=Kind.AT_LEAST, value=1.3, unit="ratio",
        asks="There a queue that moves by tokens written, its limit tuned, takes at least 1.3 times C-MLFQ's makespan.",
    ),
    Claim(
        "no-signal", change("makespan", new={"router": "c-mlfq"}, old={"router": "least-connections"},
                            experiment="routing", informative=0.0),
        kind=Kind.AT_MOST, value=0.03, unit="change",
        asks="Where returns tell nothing, C-MLFQ's makespan is at most 3 % above that of least connections.",
    ),
    Claim(
        "one-size", _routes("one-size", 1.0), kind=Kind.RATIO, toward="up",
        asks="C-MLFQ on mixed instances is faster than the best pool of one size on as many GPUs.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Throughput by system and drift."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "runs").group_by("drift", "system", maintain_order=True)
    chart: alt.Chart = (
        alt.Chart(found.agg(pl.col("throughput").mean()))
        .mark_bar()
        .encode(
            x=alt.X("throughput:Q", title="tokens written a second"),
            y=alt.Y("system:N", title=None, sort=["static", "elastic", "planner", "libra"]),
            row=alt.Row("drift:N", title=None, sort=list(DRIFTS)),
        )
        .properties(width=380, title=f"RL steps of {MACHINE.model} on {MACHINE.gpus} {MACHINE.device}")
    )
    return chart


def answer(work: Trajectories, machine: Machine, top: int) -> dict[str, Any]:
    """What `assay plan rl` prints: the best splits for the latest step of the user's trajectories."""
    latest = work.of_step(int(work.step.max()))
    planned, by_hand = planner.best(machine, latest), planner.homogeneous(machine, latest)
    rows: list[dict[str, Any]] = []
    seen: set[tuple[Split, str]] = set()
    for judged, router in sorted(
        [(one, "c-mlfq") for one in planned] + [(one, "least-connections") for one in by_hand],
        key=lambda pair: (pair[0].step, pair[0].rollout),
    ):
        if (judged.split, router) not in seen:
            seen.add((judged.split, router))
            rows.append(_row(judged, router, latest))
    first = rows[0]
    side = "rollout" if first["rollout"] > first["training"] else "training"
    hand = by_hand[0]
    gain = hand.step / first["step"] - 1
    lead = "ties with it" if gain < 0.02 else f"takes {gain:.0%} longer".replace("%", " %")
    large = planner.sizes(machine, int(latest.length.max()))[-1]
    return {
        "job": {"model": machine.model, "device": machine.device, "gpus": machine.gpus, "trajectories": len(latest),
                "turns": int(latest.turns.sum()), "written_p50": float(np.median(latest.written)),
                "written_max": int(latest.written.max())},
        "table": rows[:top],
        "why": f"{first['split']} takes {first['step']:.0f} s a step; {side} is the longer side. The best split by "
        f"hand ({hand.split.name}, least connections) {lead}.",
        "trust": trust_of(f"{machine.device}:{machine.model}:tp{large}") + " Tools take what the file says.",
        "units": {"step": "s", "training": "s", "rollout": "s", "tokens_per_second": "tokens/s"},
    }  # fmt: skip


def _row(judged: planner.Judged, router: str, work: Trajectories) -> dict[str, Any]:
    return {
        "split": judged.split.name, "router": router, "step": judged.step, "training": judged.train,
        "rollout": judged.rollout, "tokens_per_second": float(work.written.sum()) / judged.step,
        "idle": 1 - min(judged.train, judged.rollout) / judged.step, "layout": judged.plan,
    }  # fmt: skip


def scaled(work: Trajectories, count: int, seed: int) -> Trajectories:
    """So many trajectories of a step, drawn from the user's with replacement."""
    chosen = stream(seed, "drawn trajectories").integers(0, len(work), count)
    return replace(work[chosen], step=np.zeros(count, dtype=np.int64))
