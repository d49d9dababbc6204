"""The algorithms against each other and against plain search: they may decline, they may not contradict."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.protocols.automata import acs, explicit, smt, zcs
from assay.protocols.automata.automaton import Automaton
from assay.protocols.automata.specification import (
    Counterexample,
    Inconclusive,
    Outcome,
    Proved,
    Stall,
    Unsupported,
    Violation,
)
from tests.protocols.automata.random_automata import automata, resting_automata, stalls, violations

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def agree(automaton: Automaton, violation: Violation) -> None:
    """All that answer give one answer; a proof means that search finds nothing, a run is one that search finds too."""
    answers: dict[str, Outcome] = {
        "smt": smt.check(automaton, violation, seconds=20),
        "acs": acs.check(automaton, violation, seconds=20),
        "zcs": zcs.check(automaton, violation, seconds=20),
    }
    decided = {name: a for name, a in answers.items() if not isinstance(a, Unsupported | Inconclusive)}
    assert "smt" in decided
    assert len({type(answer) for answer in decided.values()}) == 1, answers
    plain = explicit.check(automaton, violation, up_to=5, most=20_000)
    if isinstance(plain, Counterexample):
        assert all(isinstance(answer, Counterexample) for answer in decided.values()), (answers, plain)
    for answer in decided.values():
        if isinstance(answer, Counterexample) and max(answer.parameters.values()) <= 8:
            there = explicit.check(automaton, violation, parameters=answer.parameters)
            assert isinstance(there, Counterexample | Inconclusive), (answers, there)


@settings(max_examples=30, deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_no_algorithm_contradicts_another_nor_plain_search(data: st.DataObject) -> None:
    automaton = data.draw(automata())
    agree(automaton, data.draw(violations(automaton)))


def agree_on_liveness(automaton: Automaton, stall: Stall) -> None:
    """A proof means that plain search finds no such run at small sizes; a run is one that search finds too."""
    answer = smt.check_liveness(automaton, stall, seconds=20)
    plain = explicit.check(automaton, stall, up_to=4, most=20_000)
    if isinstance(answer, Proved):
        assert not isinstance(plain, Counterexample), plain
    if isinstance(answer, Counterexample) and max(answer.parameters.values()) <= 8:
        there = explicit.check(automaton, stall, parameters=answer.parameters)
        assert isinstance(there, Counterexample | Inconclusive), there
    if isinstance(plain, Counterexample):
        assert isinstance(answer, Counterexample | Inconclusive), answer


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_liveness_agrees_with_plain_search(data: st.DataObject) -> None:
    automaton = data.draw(resting_automata())
    agree_on_liveness(automaton, data.draw(stalls(automaton)))


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_liveness_agrees_with_plain_search_at_length(data: st.DataObject) -> None:
    automaton = data.draw(resting_automata())
    agree_on_liveness(automaton, data.draw(stalls(automaton)))


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_no_algorithm_contradicts_another_nor_plain_search_at_length(data: st.DataObject) -> None:
    automaton = data.draw(automata())
    agree(automaton, data.draw(violations(automaton)))


def test_random_automata_are_proved_and_violated_alike() -> None:
    """The property tests would be empty if nearly all drawn automata had the same verdict."""
    seen = {"safe": 0, "unsafe": 0, "live": 0, "stalling": 0}

    @settings(max_examples=30, deadline=None, suppress_health_check=SLOW, derandomize=True, database=None)
    @given(st.data())
    def tally(data: st.DataObject) -> None:
        automaton = data.draw(automata())
        safe = smt.check(automaton, data.draw(violations(automaton)), seconds=20)
        resting = data.draw(resting_automata())
        live = smt.check_liveness(resting, data.draw(stalls(resting)), seconds=20)
        seen["safe"] += isinstance(safe, Proved)
        seen["unsafe"] += isinstance(safe, Counterexample)
        seen["live"] += isinstance(live, Proved)
        seen["stalling"] += isinstance(live, Counterexample)

    tally()
    assert min(seen.values()) >= 3, seen
