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
from assay.protocols.automata.solver import Unrolling
from assay.protocols.automata.specification import (
    Asked,
    Beyond,
    Counterexample,
    Inconclusive,
    Question,
    Unsupported,
    Violation,
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


def verify(
    automaton: Automaton, *, specifications: Sequence[str] = (), algorithms: Sequence[str] = ("smt",),
    parameters: Mapping[str, int] | None = None, seconds: float = 60.0,
) -> Iterator[Finding]:  # fmt: skip
    """Answer each specification (all, unless named) with each algorithm; `seconds` is for one of these answers."""
    for name in algorithms:
        if name not in ALGORITHMS:
            raise BadInput(f"no algorithm '{name}'; there are {', '.join(ALGORITHMS)}")
    for name in specifications:
        if name not in automaton.specifications:
            there = ", ".join(automaton.specifications) or "none"
            raise BadInput(f"no specification '{name}' in {automaton.name}; there are {there}")
    if parameters is not None and not automaton.admits(_complete(automaton, parameters)):
        raise BadInput(f"the assumptions of {automaton.name} do not admit {_listed(parameters)}")
    if set(algorithms) - {"explicit"}:
        _populated(automaton, seconds)
    for name in specifications or automaton.specifications:
        asked = question(automaton, automaton.specifications[name])
        if isinstance(asked, Beyond):
            yield Finding(name, "liveness", Verdict.UNSUPPORTED, "–", 0.0, asked.why)
            continue
        for algorithm in algorithms:
            yield _answer(automaton, name, asked, algorithm, parameters, seconds)


def _populated(automaton: Automaton, seconds: float) -> None:
    """BadInput where no run exists at all: of nothing everything is true, and a proof would say nothing."""
    for part, what in ((replace(automaton, initial=()), "assumptions"), (automaton, "inits")):
        if Unrolling(part, (), seconds).check() is False:
            raise BadInput(f"the {what} of {automaton.name} cannot all hold: no run exists, and all would be proved")


def _complete(automaton: Automaton, parameters: Mapping[str, int]) -> Mapping[str, int]:
    if set(parameters) != set(automaton.parameters):
        raise BadInput(f"{automaton.name} has the parameters {', '.join(automaton.parameters)}; give each a value")
    return parameters


def _answer(
    automaton: Automaton, name: str, asked: Asked, algorithm: str,
    parameters: Mapping[str, int] | None, seconds: float,
) -> Finding:  # fmt: skip
    begun = time.perf_counter()
    limits = {"parameters": parameters} if algorithm == "explicit" else {"seconds": seconds}
    verdict, note, run = Verdict.PROVED, "", None
    for one in asked.questions:
        outcome = _ask(automaton, one, algorithm, limits)
        match outcome:
            case Counterexample():
                verdict, note, run = Verdict.VIOLATED, f"at {_listed(outcome.parameters)}", outcome
                break
            case Unsupported(why):
                verdict, note = Verdict.UNSUPPORTED, why
                break
            case Inconclusive(why):
                verdict, note = Verdict.UNKNOWN, why
            case explicit.Checked(sizes, states) if verdict is Verdict.PROVED or verdict is Verdict.CHECKED:
                verdict, note = Verdict.CHECKED, _extent(sizes, states)
    return Finding(name, asked.kind, verdict, algorithm, time.perf_counter() - begun, note, run)


def _ask(automaton: Automaton, question: Question, algorithm: str, limits: Mapping[str, Any]) -> Any:
    if isinstance(question, Violation) or algorithm == "explicit":
        return ALGORITHMS[algorithm](automaton, question, **limits)
    if algorithm == "smt":
        return smt.check_liveness(automaton, question, **limits)
    return Unsupported(f"{algorithm} takes safety only; smt and explicit take liveness too")


def _extent(sizes: Sequence[Mapping[str, int]], states: int) -> str:
    where = _listed(sizes[0]) if len(sizes) == 1 else f"{len(sizes)} choices of small parameters"
    return f"no violation at {where} ({states:,} configurations): no proof"


def _listed(parameters: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items()) or "no parameters"
