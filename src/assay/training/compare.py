"""`assay compare training`: schedules, planners or assigners side by side on one model, cluster and data mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.sim import own_code
from assay.sim.models import Model, model
from assay.sim.random import stream
from assay.training.baselines.assigners import ASSIGNERS
from assay.training.baselines.planners import PLANNERS
from assay.training.engine import cluster as clusters
from assay.training.engine import planning, sensitivity
from assay.training.engine import search as space
from assay.training.engine.cluster import Cluster
from assay.training.engine.costs import check
from assay.training.engine.planning import TIE
from assay.training.engine.schedules import SCHEDULES
from assay.training.engine.step import Outcome, Unequal, simulate, simulate_many
from assay.training.interface import Assigner, Job, Plan, Planner, Schedule

METHODS = {"schedules": "slots", "planners": "search", "assigners": "assign"}
NEEDED = {"schedules": ("slots", "check", "virtual", "chunks", "split", "flush")}
SYNCHRONOUS = [name for name, each in SCHEDULES.items() if each().flush]


@click.command(epilog="Example:  assay compare training --model llama-3-8b --cluster 8xh100 --what planners")
@click.option("--model", "name", required=True, help="A model's name, or its config.json.")
@click.option("--cluster", "machines", required=True, help="COUNTxDEVICE[:ibGb/s], or a TOML file.")
@click.option(
    "--what", type=click.Choice(list(METHODS)), default="schedules", show_default=True,
    help="Schedules and planners each at their own best layout; assigners on the best layout, with --lengths.",
)  # fmt: skip
@click.option("--policy", "own", multiple=True, help="One more: package.module:Class or file.py:Class.")
@click.option("--batch", type=click.IntRange(1), default=512, show_default=True, help="Sequences of a step.")
@click.option("--seq", type=click.IntRange(1), default=4096, show_default=True, help="Tokens of a sequence.")
@click.option("--lengths", type=click.Path(path_type=Path), help="A JSONL file of your documents' lengths.")
def command(
    name: str, machines: str, what: str, own: tuple[str, ...], batch: int, seq: int, lengths: Path | None
) -> dict[str, Any]:
    """Schedules, planners or assigners on your own model, cluster and documents: who is fastest, and why."""
    shape, cluster, job = model(name), clusters.read(machines), planning.job(batch, seq, lengths)
    mine = {_label(text): _made(text, what) for text in own}
    if what == "schedules":
        table, why = schedules(shape, cluster, job, mine)
    elif what == "planners":
        table, why = planners(shape, cluster, job, mine)
    else:
        table, why = assigners(shape, cluster, Job(batch, seq), lengths, mine)
    facts = {"model": shape.name, "cluster": cluster.name, "batch": batch, "seq": seq, "compared": what}
    return {
        "job": facts, "table": table, "why": why, "trust": planning.trust(cluster),
        "units": {"step": "s", "memory": "bytes a rank"}, "shown": list(table[0])[:11],
    }  # fmt: skip


def beside(kind: str, key: str) -> dict[str, Any]:
    """The options with which a paper's component is compared."""
    return {"what": f"{kind}s"}


def _label(text: str) -> str:
    return str(getattr(own_code.load(text), "key", text.rpartition(":")[2]))


def _made(text: str, what: str) -> Any:
    """The user's own component, which must have the method of its kind."""
    made = own_code.load(text)
    try:
        made = made() if isinstance(made, type) else made
    except Exception as error:
        raise BadInput(f"{text}: {type(error).__name__}: {error}") from error
    if not hasattr(made, METHODS[what]):
        raise BadInput(f"{text} has no method '{METHODS[what]}', which {what} have; choose another --what?")
    if lacks := [name for name in NEEDED.get(what, ()) if not hasattr(made, name)]:
        raise BadInput(f"{text} has no '{lacks[0]}'; schedules have {', '.join(NEEDED[what])} (examples/schedule.py)")
    return made


@contextmanager
def _users_own(key: str) -> Iterator[None]:
    """What a component of the user's raises is the user's to mend: one line."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{key}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def schedules(shape: Model, cluster: Cluster, job: Job, own: dict[str, Schedule]) -> tuple[list[dict[str, Any]], str]:
    """Every schedule with the layout, microbatch and recomputation that suit it best."""
    cuts = [plan for plan in space.plans(shape, cluster, job, schedules=tuple(SYNCHRONOUS)) if plan.layout.pp > 1]
    best: dict[str, Outcome] = {}
    for one in simulate_many(shape, cluster, cuts, job):
        if one.fits and (one.plan.schedule not in best or one.step < best[one.plan.schedule].step):
            best[one.plan.schedule] = one
    for key, order in own.items():
        tried = [_own_schedule(shape, cluster, plan, job, key, order) for plan in cuts if plan.schedule == "1f1b"]
        fitting = [one for one in tried if one is not None and one.fits]
        if not fitting:
            raise BadInput(f"{key}: no layout fits into memory with this schedule")
        best[key] = min(fitting, key=lambda one: one.step)
    if not best:
        raise BadInput("no pipeline of this model fits this cluster; use more ranks or a smaller batch")
    ranked = sorted(best.items(), key=lambda pair: pair[1].step)
    told = f"{_told([(key, one) for key, one in ranked])} {_hangs(shape, cluster, job, [one for _, one in ranked])}"
    return [{"policy": key, **one.row()} for key, one in ranked], told.strip()


def _hangs(shape: Model, cluster: Cluster, job: Job, ranked: Sequence[Outcome]) -> str:
    """Which assumed share would change the order; nothing of a winner whose schedule is the user's own."""
    plans = [one.plan for one in ranked if one.plan.schedule in SCHEDULES]
    if len(plans) < 2 or plans[0] != ranked[0].plan:
        return ""
    return sensitivity.told(cluster, sensitivity.turns(shape, cluster, job, plans))


def _own_schedule(shape: Model, cluster: Cluster, plan: Plan, job: Job, key: str, order: Schedule) -> Outcome | None:
    layout = replace(plan.layout, vpp=1)
    m = check(shape, cluster, replace(plan, layout=layout), job)
    with _users_own(key):
        try:
            order.check(layout.pp, m)
        except BadInput:
            return None
        return simulate(shape, cluster, replace(plan, layout=layout, schedule=key), job, schedule=order)


def planners(shape: Model, cluster: Cluster, job: Job, own: dict[str, Planner]) -> tuple[list[dict[str, Any]], str]:
    """Every planner over the same plans: how many it asks for, and what it finds."""
    plans, rows, found = space.plans(shape, cluster, job), [], []
    for key, planner in ({name: each() for name, each in PLANNERS.items()} | own).items():
        asked: list[Outcome] = []

        def ask(some: Sequence[Plan], into: list[Outcome] = asked) -> list[Outcome]:
            outcomes = simulate_many(shape, cluster, some, job)
            into.extend(outcomes)
            return outcomes

        with _users_own(key):
            planner.search(plans, ask)
        fitting = [one for one in asked if one.fits]
        if not fitting:
            rows.append({"policy": key, "asked": len(asked), "step": None, "layout": "none that fits"})
            continue
        one = min(fitting, key=lambda outcome: outcome.step)
        found.append((key, one))
        out_of_memory = len(asked) - len(fitting)
        rows.append({"policy": key, "asked": len(asked), "out_of_memory": out_of_memory, **one.row()})
    columns = max(rows, key=len)
    rows = [{name: row.get(name) for name in columns} for row in rows]
    rows.sort(key=lambda row: (row["step"] is None, row["step"], row["asked"]))
    found.sort(key=lambda pair: pair[1].step)
    return rows, f"{_told(found)} {_hangs(shape, cluster, job, [one for _, one in found])}".strip()


def assigners(
    shape: Model, cluster: Cluster, job: Job, lengths: Path | None, own: dict[str, Assigner]
) -> tuple[list[dict[str, Any]], str]:
    """Every assigner on the best layout with several copies, with documents drawn from the file, as they are."""
    if lengths is None:
        raise BadInput("assigners differ by how samples differ: give --lengths, a JSONL file of document lengths")
    fitting = [one for one in planning.best(shape, cluster, job).fitting if one.plan.layout.dp > 1]
    if not fitting:
        raise BadInput("only one copy of the model fits: there is nothing to assign; use more ranks")
    plan, copies, m = fitting[0].plan, fitting[0].plan.layout.dp, fitting[0].microbatches
    drawn = stream(0, "training", "assign").choice(np.minimum(planning.read_lengths(lengths), job.seq), job.batch)
    work = drawn * (shape.flops(1.0) + shape.pair_flops() * shape.attention_layers * drawn / 2)
    rows: list[dict[str, Any]] = []
    found = []
    for key, assigner in ({name: each() for name, each in ASSIGNERS.items()} | own).items():
        with _users_own(key):
            places = np.asarray(assigner.assign(work, copies, m))
        if places.shape != (len(work), 2) or (places < 0).any() or (places >= (copies, m)).any():
            raise BadInput(f"{key}: a row (copy below {copies}, microbatch below {m}) is expected for each sample")
        load = np.zeros((copies, m))
        np.add.at(load, tuple(places.T), work)
        one = simulate(shape, cluster, plan, job, unequal=Unequal(work=load / load.mean()))
        rows.append({"policy": key, "step": one.step, "imbalance": float(load.max() / load.mean()),
                     "copies_apart": float(load.sum(axis=1).max() / load.sum(axis=1).mean()), "bubble": one.bubble,
                     "layout": plan.layout.name, "schedule": plan.schedule})  # fmt: skip
        found.append((key, one))
    rows.sort(key=lambda row: row["step"])
    found.sort(key=lambda pair: pair[1].step)
    return rows, _told(found)


def _told(found: Sequence[tuple[str, Outcome]]) -> str:
    """Who is fastest, and where the next one's seconds go."""
    (first, winner), *others = found
    told = f"{first} takes {winner.step:.3g} s a step"
    ties = [key for key, one in others if one.step <= (1 + TIE) * winner.step]
    slower = [(key, one) for key, one in others if key not in ties]
    if ties:
        told += f", a tie with {', '.join(ties)} (less than {TIE:.0%} apart)".replace("%", " %")
    if slower:
        key, one = slower[0]
        lost = {name: seconds - planning.parts(winner)[name] for name, seconds in planning.parts(one).items()}
        name = max(lost, key=lambda part: lost[part])
        longer = f"{one.step / winner.step - 1:.1%}".replace("%", " %")
        told += f"; {key} takes {longer} longer, {lost[name]:.2g} s of it {name}"
    return told + "."
