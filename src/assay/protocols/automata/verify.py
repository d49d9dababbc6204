"""All specifications of an automaton, by one algorithm or several, as rows of a table.

>>> from assay.protocols.taco import load
>>> [(row.specification, row.verdict.value) for row in verify(load("broadcast"), algorithms=["smt"])]
[('unforgeability', 'proved'), ('relay', 'proved')]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from assay.protocols.automata import acs, explicit, smt, zcs
from assay.protocols.automata.automaton import Automaton
from assay.protocols.automata.solver import Unrolling, ends
from assay.protocols.automata.specification import (
    Asked,
    Beyond,
    Counterexample,
    Inconclusive,
    Question,
    Unsupported,
    Violation,
    late,
    question,
)
from assay.record.errors import BadInput

ALGORITHMS: Mapping[str, Callable[..., Any]] = {
    "smt": smt.check, "acs": acs.check, "zcs": zcs.check, "explicit": explicit.check,
}  # fmt: skip


class Verdict(StrEnum):
    """What is known about a specification after one algorithm."""

    PROVED = "proved"  # for all parameters that the assumptions admit
    CHECKED = "checked"  # no violation at the parameters that were searched; no proof
    VIOLATED = "violated"  # with a counterexample that was replayed
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One specification and one algorithm."""

    specification: str
    kind: str
    verdict: Verdict
    algorithm: str
    seconds: float
    note: str = ""
    counterexample: Counterexample | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One specification for one algorithm; for `auto`, whichever decides it."""

    specification: str
    asked: Asked
    algorithm: str


def verify(
    automaton: Automaton, *, specifications: Sequence[str] = (), algorithms: Sequence[str] = ("auto",),
    parameters: Mapping[str, int] | None = None, seconds: float = 60.0,
) -> Iterator[Finding]:  # fmt: skip
    """Answer each specification (all, unless named) with each algorithm, as the answers come.

    `seconds` is for everything together. Each answer gets an equal share of what is left; those that would need more
    come last, and share what the others did not use.
    """
    _known(automaton, specifications, algorithms, parameters)
    until = ends(seconds)
    if set(algorithms) - {"explicit"}:
        _populated(automaton, until)
    tasks: list[Task] = []
    for name in specifications or automaton.specifications:
        asked = question(automaton, automaton.specifications[name])
        if isinstance(asked, Beyond):
            yield Finding(name, "liveness", Verdict.UNSUPPORTED, "–", 0.0, asked.why)
            continue
        tasks += [Task(name, asked, algorithm) for algorithm in algorithms]
    waiting: list[Task] = []
    for position, task in enumerate(tasks):
        finding, more_time = _answer(automaton, task, parameters, _share(until, len(tasks) - position))
        if more_time and len(tasks) > 1:
            waiting.append(task)
        else:
            yield finding
    for position, task in enumerate(waiting):
        yield _answer(automaton, task, parameters, _share(until, len(waiting) - position))[0]


def _share(until: float, among: int) -> float:
    return max(until - time.monotonic(), 0.0) / among


def _known(
    automaton: Automaton, specifications: Sequence[str], algorithms: Sequence[str],
    parameters: Mapping[str, int] | None,
) -> None:  # fmt: skip
    for name in algorithms:
        if name not in ("auto", *ALGORITHMS):
            raise BadInput(f"no algorithm '{name}'; there are auto, {', '.join(ALGORITHMS)}")
    for name in specifications:
        if name not in automaton.specifications:
            there = ", ".join(automaton.specifications) or "none"
            raise BadInput(f"no specification '{name}' in {automaton.name}; there are {there}")
    if parameters is not None and not automaton.admits(_complete(automaton, parameters)):
        raise BadInput(f"the assumptions of {automaton.name} do not admit {_listed(parameters)}")


def _populated(automaton: Automaton, until: float) -> None:
    """BadInput where no run exists at all: of nothing everything is true, and a proof would say nothing."""
    for part, what in ((replace(automaton, initial=()), "assumptions"), (automaton, "inits")):
        if Unrolling(part, (), until).check() is False:
            raise BadInput(f"the {what} of {automaton.name} cannot all hold: no run exists, and all would be proved")


def _complete(automaton: Automaton, parameters: Mapping[str, int]) -> Mapping[str, int]:
    if set(parameters) != set(automaton.parameters):
        raise BadInput(f"{automaton.name} has the parameters {', '.join(automaton.parameters)}; give each a value")
    return parameters


def _answer(
    automaton: Automaton, task: Task, parameters: Mapping[str, int] | None, seconds: float
) -> tuple[Finding, bool]:
    """The finding, and whether more time might have made a better one."""
    begun = time.perf_counter()
    until = ends(seconds)
    verdict, note, run, more_time = Verdict.PROVED, "", None, False
    used: list[str] = []
    for position, one in enumerate(task.asked.questions):
        own = _share(until, len(task.asked.questions) - position)
        if position and not own:
            verdict, note, more_time = Verdict.UNKNOWN, late(seconds).why, True
            break
        outcome, by = _ask(automaton, one, task.algorithm, parameters, own)
        used += [by] if by not in used else []
        match outcome:
            case Counterexample():
                verdict, note, run = Verdict.VIOLATED, f"at {_listed(outcome.parameters)}", outcome
                more_time = False
                break
            case Unsupported(why):
                verdict, note, more_time = Verdict.UNSUPPORTED, why, False
                break
            case Inconclusive(why, out_of_time):
                verdict, note, more_time = Verdict.UNKNOWN, why, more_time or out_of_time
            case explicit.Checked(sizes, states) if verdict is Verdict.PROVED or verdict is Verdict.CHECKED:
                verdict, note = Verdict.CHECKED, _extent(sizes, states)
    by = ", ".join(used) or task.algorithm
    took = time.perf_counter() - begun
    return Finding(task.specification, task.asked.kind, verdict, by, took, note, run), more_time


def able(automaton: Automaton) -> tuple[str, ...]:
    """The algorithms that may decide an automaton, the surest first: counters that fall are for acs and zcs.

    >>> from assay.protocols.taco import load
    >>> able(load("broadcast")), able(load("rounds"))
    (('smt',), ('acs', 'zcs'))
    """
    return ("smt",) if automaton.increments_only else ("acs", "zcs")


def _ask(
    automaton: Automaton, question: Question, algorithm: str, parameters: Mapping[str, int] | None, seconds: float
) -> tuple[Any, str]:
    """The outcome, and the algorithm it is of: for `auto` the first that decides, or what the last one said."""
    if algorithm != "auto":
        return _ask_one(automaton, question, algorithm, parameters, seconds), algorithm
    until = ends(seconds)
    best: tuple[Any, str] | None = None
    names = able(automaton)
    for position, name in enumerate(names):
        outcome = _ask_one(automaton, question, name, parameters, _share(until, len(names) - position))
        if not isinstance(outcome, Unsupported | Inconclusive):
            return outcome, name
        if best is None or isinstance(best[0], Unsupported):
            best = outcome, name
    assert best is not None
    return best


def _ask_one(
    automaton: Automaton, question: Question, algorithm: str, parameters: Mapping[str, int] | None, seconds: float
) -> Any:
    if algorithm == "explicit":
        return explicit.check(automaton, question, parameters=parameters, seconds=seconds)
    if isinstance(question, Violation):
        return ALGORITHMS[algorithm](automaton, question, seconds=seconds)
    if algorithm == "smt":
        return smt.check_liveness(automaton, question, seconds=seconds)
    return Unsupported(f"{algorithm} takes safety only; smt and explicit take liveness too")


def _extent(sizes: Sequence[Mapping[str, int]], states: int) -> str:
    where = _listed(sizes[0]) if len(sizes) == 1 else f"{len(sizes)} choices of small parameters"
    return f"no violation at {where} ({states:,} configurations): no proof"


def _listed(parameters: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items()) or "no parameters"
