"""What an algorithm answers, and a counterexample that can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from assay.protocols.automata.automaton import Automaton, Configuration, Schedule, steps
from assay.protocols.automata.specification import Question, shows


@dataclass(frozen=True, slots=True)
class Proved:
    """There is no such run, for any parameters that the assumptions admit."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The algorithm does not take this question; `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The algorithm ended without an answer; `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Parameters, a start and a schedule that break the specification."""

    parameters: Mapping[str, int]
    start: Configuration
    schedule: Schedule
    trail: tuple[Configuration, ...]  # after each entry of the schedule, the start first

    @classmethod
    def of(cls, automaton: Automaton, question: Question, start: Configuration, schedule: Schedule) -> Counterexample:
        """The counterexample, replayed step by step in the automaton as it was given; RuntimeError if it is none."""
        parameters = {name: start.values[name] for name in automaton.parameters}
        run = list(steps(automaton, start, schedule))
        if not (automaton.admits(parameters) and automaton.starts_in(start) and shows(question, run)):
            raise RuntimeError("a counterexample does not show what it should; this is a defect of assay")
        ends = accumulate((times for _, times in schedule), initial=0)
        return cls(parameters, start, schedule, tuple(run[end] for end in ends))

    def rows(self, automaton: Automaton) -> list[dict[str, object]]:
        """One row for each entry of the schedule: the rule, how often, and what is where afterwards."""
        named = [("start", 0), *self.schedule]
        rows: list[dict[str, object]] = []
        for (name, times), now in zip(named, self.trail, strict=True):
            rules = automaton.rules_named(name)
            where = {place: now.values[place] for place in automaton.locations if now.values[place]}
            counts = {variable: now.values[variable] for variable in automaton.shared}
            move = f"{rules[0].source} -> {rules[0].target}" if rules else ""
            rows.append({"rule": name, "move": move, "times": times, "processes": where, "shared": counts})
        return rows


Outcome = Proved | Counterexample | Unsupported | Inconclusive
