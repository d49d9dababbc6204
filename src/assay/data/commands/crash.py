"""`assay data crash`: kill a component at every change to its store, and see whether anything is lost."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import click

from assay.data.crash.faulty import Fault, Kind
from assay.data.crash.lab import EXHAUSTIVE, Case, Finding, Make, Report, examine, replay, smallest
from assay.data.crash.processes import examine_processes
from assay.data.interface import Crashable
from assay.record import catalogue
from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.sim.own_code import load

BASELINES = Path(__file__).parents[1] / "baselines"


def named(component: str) -> str:
    """A component's code by its name: a paper's key, a baseline's, or already `module:Class`.

    >>> named("append-log")
    'assay.data.baselines.append_log:AppendLog'
    """
    if ":" in component:
        return component
    homes = known()
    if component not in homes:
        raise BadInput(f"no component '{component}' can be crashed; {', '.join(homes)}, or module:Class of your own")
    made = importlib.import_module(homes[component]).offers["crashable"]
    return f"{made.__module__}:{made.__qualname__}"


def known() -> dict[str, str]:
    """The modules of all that can be crashed, by name: papers that offer it, and the room's baselines that do.

    >>> known()["append-log"]
    'assay.data.baselines.append_log'
    """
    homes = {key: catalogue.paper(key).module for key in catalogue.offering("crashable", "data")}
    for path in sorted(BASELINES.glob("*.py")):
        if "crashable" in path.read_text(encoding="utf-8"):
            homes[path.stem.replace("_", "-")] = f"assay.data.baselines.{path.stem}"
    return homes


@click.command(epilog="Example:  assay data crash append-log --ops 50")
@click.argument("component", metavar="COMPONENT|module:Class", required=False)
@click.option("--all", "everything", is_flag=True, help="Every component there is, a row each, instead of one.")
@click.option("--ops", type=click.IntRange(1, 100_000), default=400, show_default=True, help="About so many changes.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--mixes", type=click.IntRange(0), default=100, show_default=True, help="Orders of actors at once.")
@click.option("--processes", type=click.IntRange(0), default=0, show_default=True, help="Points in real processes.")
@click.option("--at", help="One case: CHANGE:KIND, or two with a comma, the second while recovering.")
@click.option("--mix", type=click.IntRange(0), help="One order of actors at once.")
def command(
    component: str | None, everything: bool, ops: int, seed: int, mixes: int, processes: int, at: str | None,
    mix: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Crash COMPONENT before, after and during each change, with lost answers and late writes; crash its recovery, too.

    COMPONENT is a paper's key, a baseline, or a class of yours with open, work and check; --all takes every paper and
    baseline. Ends with 1 where a rule breaks, and tells the shortest scenario that breaks it.
    """
    if everything:
        if component is not None or at is not None or mix is not None:
            raise BadInput("--all goes with neither a component nor a case; leave one of them out")
        return _all(ops, seed, mixes, processes)
    if component is None:
        raise BadInput(f"name what is to be crashed: {', '.join(known())}, module:Class of your own, or --all")
    name = named(component)
    make = _checked(name)
    if at is not None or mix is not None:
        return _one(make, ops, seed, at, mix)
    report = _examined(name, ops, seed, mixes, processes)
    return _answer(component, report, smallest(make, report.findings[0]) if report.findings else None)


def _examined(name: str, ops: int, seed: int, mixes: int, processes: int) -> Report:
    progress = click.get_current_context().obj
    report = examine(_checked(name), ops, seed=seed, mixes=mixes, progress=progress)
    if processes:
        report.processes, found = examine_processes(name, ops, processes, seed=seed, progress=progress)
        report.findings += found
    return report


def _all(ops: int, seed: int, mixes: int, processes: int) -> dict[str, Any]:
    """A row a component: what must hold after any crash, what was tried, what broke."""
    rows, broken, tried = [], [], 0
    for component in known():
        try:
            name = named(component)
        except ModuleNotFoundError as error:
            raise BadInput(missing_module(f"crashing {component}", error)) from error
        report = _examined(name, ops, seed, mixes, processes)
        tried += report.cases
        broken += [f"assay data crash {component} {found.case}" for found in report.findings[:1]]
        rows.append({
            "component": component, "must_hold": (inspect.getdoc(load(name).check) or "").partition("\n")[0],
            "changes": report.changes, "crashes": report.crashes, "while_recovering": report.crashes_twice,
            "at_once": report.mixes, "processes": report.processes, "violations": len(report.findings),
        })  # fmt: skip
    if not broken:
        return {"table": rows, "why": f"Nothing was lost: {len(rows)} components, {tried:,} cases, no rule broken."}
    return {"table": rows, "why": "A rule broke. The first case of each: " + "; ".join(broken), "fails": True}


def _checked(name: str) -> Make:
    made = load(name)
    try:
        fits = isinstance(made(), Crashable)
    except TypeError as error:
        raise BadInput(f"{name} cannot be made without arguments: {error}") from error
    if not fits:
        raise BadInput(f"{name} cannot be crashed; it needs key, roles, open, work and check (assay.data.interface)")
    return made  # type: ignore[no-any-return]


def _one(make: Make, ops: int, seed: int, at: str | None, mix: int | None) -> dict[str, Any]:
    faults = tuple(Fault.parse(one) for one in at.split(",")) if at else ()
    case = Case(ops, seed, faults) if mix is None else Case(ops, mix, mixed=max(2, len(make().roles)))
    found = replay(make, case)
    if found is None:
        return {"case": {"is": str(case)}, "why": "Every rule held."}
    return {"case": {"is": str(case)}, "table": _rows(found), "why": _trace(found), "fails": True}


def _rows(found: Finding) -> list[dict[str, Any]]:
    return [{"rule": wrong.rule, "detail": wrong.detail} for wrong in found.violations[:10]]


def _trace(found: Finding) -> str:
    return "The last changes: " + "; ".join(found.trace) + "." if found.trace else "Actors at once, in a random order."


def _answer(component: str, report: Report, worst: Finding | None) -> dict[str, Any]:
    facts = {
        "changes": report.changes, "crashes": report.crashes, "crashes_while_recovering": report.crashes_twice,
        "actors_at_once": report.mixes, "real_processes": report.processes, "cases_that_broke_a_rule":
        len(report.findings), "seconds": round(report.seconds, 1),
    }  # fmt: skip
    if worst is None:
        how = "every change" if report.exhaustive else f"{EXHAUSTIVE:,} changes drawn at random"
        why = (
            f"Nothing was lost in {report.cases:,} cases: {how} failed in each of {len(Kind)} ways, and no rule broke."
        )
        return {component: facts, "why": why}
    again = f"assay data crash {component} {worst.case}"
    why = f"{len(report.findings):,} of {report.cases:,} cases broke a rule. The smallest: {again}\n{_trace(worst)}"
    return {component: facts, "table": _rows(worst), "reproducer": {"command": again}, "why": why, "fails": True}
