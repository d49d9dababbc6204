"""Specifications turned round: which runs would break them."""

from __future__ import annotations

import pytest

from assay.protocols.automata.automaton import Configuration
from assay.protocols.automata.parser import parse
from assay.protocols.automata.specification import Asked, Beyond, Stall, Violation, occupancy, question, shows

FRAME = """ta T {{
  shared x; parameters N;
  assumptions {{ N >= 1; }}
  locations {{ a: [0]; b: [1]; c: [2]; }}
  inits {{ a == N; b == 0; c == 0; x == 0; }}
  rules {{
    0: a -> b when (true) do {{ x' == x + 1; }};
    1: b -> c when (x >= 2) do {{}};
    2: b -> b when (true) do {{}};
  }}
  specifications {{ it: {text}; }}
}}"""


def asked(text: str) -> Asked | Beyond:
    automaton = parse(FRAME.format(text=text))
    return question(automaton, automaton.specifications["it"])


def violations(text: str) -> list[tuple[list[str], list[list[str]]]]:
    found = asked(text)
    assert isinstance(found, Asked)
    assert found.kind == "safety"
    told = []
    for one in found.questions:
        assert isinstance(one, Violation)
        told.append((list(map(str, one.start)), [list(map(str, goal)) for goal in one.goals]))
    return told


class TestSafety:
    def test_an_implication_gives_a_start_and_a_goal(self) -> None:
        assert violations("a == 0 -> [](c == 0)") == [(["0 >= a"], [["c > 0"]])]

    def test_a_disjunction_with_a_negated_start_is_the_same(self) -> None:
        assert violations("!(a == 0 && b == 0) || []c == 0") == [(["0 >= a", "0 >= b"], [["c > 0"]])]

    def test_an_implication_inside_always_needs_both(self) -> None:
        assert violations("[](b != 0 -> c == 0)") == [([], [["b > 0", "c > 0"]])]

    def test_preconditions_on_parameters_go_to_the_start(self) -> None:
        assert violations("N > 5 -> (a == 0 -> [](c == 0))") == [(["N >= 6", "0 >= a"], [["c > 0"]])]

    def test_somebody_in_one_of_several_locations_is_a_goal_for_each(self) -> None:
        assert violations("[](b + c == 0)") == [([], [["b > 0"], ["c > 0"]])]

    def test_locations_may_be_wanted_empty(self) -> None:
        found = asked("[](a != 0 || b != 0)")
        assert isinstance(found, Asked)
        (one,) = found.questions
        assert isinstance(one, Violation)
        automaton = parse(FRAME.format(text="[](a != 0)"))
        assert occupancy(automaton, one.goals[0]) == ({}, frozenset({"a", "b"}))

    def test_a_statement_about_the_start_alone_is_broken_at_the_start(self) -> None:
        assert violations("a <= 3") == [(["a >= 4"], [[]])]

    def test_a_statement_that_no_numbers_break_has_no_questions(self) -> None:
        assert violations("[](a >= 0)") == []

    def test_two_moments_are_one_where_the_first_stays_true(self) -> None:
        assert violations("[](c != 0 -> [](b == 0))") == [([], [["c > 0", "b > 0"]])]  # nobody leaves c

    def test_two_moments_are_two_where_the_first_may_pass(self) -> None:
        assert isinstance(asked("[](b != 0 -> [](c == 0))"), Beyond)


class TestLiveness:
    def stall(self, text: str) -> Stall:
        found = asked(text)
        assert isinstance(found, Asked)
        assert found.kind == "liveness"
        (one,) = found.questions
        assert isinstance(one, Stall)
        return one

    def run(self, *counts: tuple[int, int, int]) -> list[Configuration]:
        return [Configuration({"a": a, "b": b, "c": c, "x": b + c, "N": 2}) for a, b, c in counts]

    def test_never_reaching_a_goal_is_shown_by_a_run_that_rests_elsewhere(self) -> None:
        stall = self.stall("a != 0 -> <>(c != 0)")
        assert shows(stall, self.run((2, 0, 0), (1, 1, 0)))
        assert not shows(stall, self.run((2, 0, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)))

    def test_a_run_does_not_rest_where_a_rule_must_fire(self) -> None:
        stall = self.stall("<>(c != 0)")
        assert not shows(stall, self.run((2, 0, 0)))

    def test_fairness_excuses_a_run_that_rests_unfairly(self) -> None:
        stall = self.stall("<>[](x < 2 || b == 0) -> <>(c != 0)")
        assert shows(stall, self.run((2, 0, 0), (1, 1, 0)))
        assert not shows(stall, self.run((2, 0, 0), (1, 1, 0), (0, 2, 0)))

    def test_again_and_again_is_for_good_where_a_run_rests(self) -> None:
        assert self.stall("[]<>(b == 0) -> <>(c != 0)").final == self.stall("<>[](b == 0) -> <>(c != 0)").final

    def test_a_response_fails_from_the_moment_that_asks_for_it(self) -> None:
        stall = self.stall("[](c != 0 -> <>(b == 0))")
        assert len(stall.moments) == 1
        assert shows(stall, self.run((2, 0, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)))
        assert not shows(stall, self.run((2, 0, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1), (0, 0, 2)))
        assert not shows(stall, self.run((2, 0, 0), (1, 1, 0), (0, 2, 0)))

    @pytest.mark.parametrize(
        "text", ["[](a == 0 || []([](b == 0) || <>(c == 0)))", "<>(a == 0 && <>(b == 0 && <>[](c != 0))) -> [](a == 0)"]
    )
    def test_deeper_nesting_is_said_to_be_beyond(self, text: str) -> None:
        found = asked(f"!({text})") if text.startswith("[]") else asked(text)
        assert isinstance(found, Beyond)
        assert "nested" in found.why
