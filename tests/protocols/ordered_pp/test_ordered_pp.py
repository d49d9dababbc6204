"""Ordered agents: the compiled engines against dictionaries, the compiler against every short word."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols import ordered_pp
from assay.protocols.ordered_pp import linear_bounded, population, rankers, swarm_counts, swarm_ordered
from assay.protocols.ordered_pp.languages import language
from assay.protocols.ordered_pp.linear_bounded import MACHINES, Simulation
from assay.protocols.ordered_pp.rankers import compile_language
from assay.protocols.ordered_pp.swarm_ordered import PLACES, Rule, Table, check, run
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict
from tests.oracles import ordered

SMALL_RULES = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(PLACES)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    max_size=8,
)


def of(table: dict[tuple[int, int, int], tuple[int, int]]) -> Rule:
    return lambda p, q, where: table.get((p, q, where))


class TestTheExactChecker:
    @settings(max_examples=60, deadline=None)
    @given(SMALL_RULES, st.lists(st.integers(0, 2), min_size=2, max_size=4))
    def test_it_agrees_with_dictionaries_and_networkx(self, table: Any, row: list[int]) -> None:
        rule = of(table)
        assert check(rule, row, lambda state: state == 1).output == ordered.decided(rule, row, lambda state: state == 1)

    def test_reaching_an_answer_is_not_enough(self) -> None:
        rule = of({(0, 0, 1): (1, 1), (1, 1, 1): (0, 0)})  # says yes and no in turn, for ever
        assert check(rule, [0, 0], bool).output is None

    def test_two_ends_that_differ_decide_nothing(self) -> None:
        rule = of({(0, 0, 1): (1, 1), (0, 0, -1): (2, 2)})
        assert check(rule, [0, 0], lambda state: state == 1).output is None
        assert check(rule, [0, 0], lambda state: state == 1).bottoms == 2

    def test_bad_rows_are_refused(self) -> None:
        with pytest.raises(ValueError, match="agents"):
            check(of({}), [0], bool)
        with pytest.raises(ValueError, match="more than"):
            check(lambda p, q, where: (5 * p + where, 7 * q + 1), [0, 0], bool)


class TestTheEngine:
    def test_one_meeting_has_the_law_of_random_pairs(self) -> None:
        rule: Rule = lambda p, q, where: (f"{p}{where}", q) if len(p) < 3 and len(q) < 3 else None  # noqa: E731
        random = np.random.default_rng(1)
        slow = Counter(ordered.run(rule, ["a", "b", "c"], 1, random) for _ in range(3000))
        fast = Counter(tuple(run(rule, ["a", "b", "c"], seed=s, max_time=0.4).final) for s in range(3000))
        assert set(slow) == set(fast)
        assert all(abs(fast[row] - 500) < 5 * 21 for row in fast)  # six ordered pairs, standard deviation 20.4

    def test_it_stops_where_nothing_can_change_and_says_when_that_came(self) -> None:
        end = run(lambda p, q, where: (q, p) if where == 1 and p > q else None, list(range(20, 0, -1)), seed=2)
        assert end.final == list(range(1, 21))
        assert end.silent and end.interactions >= 190  # so many neighbours had to be swapped

    def test_a_cap_is_kept(self) -> None:
        end = run(lambda p, q, where: (q, p), [0, 1, 2], max_time=50)
        assert not end.silent and end.interactions <= 150

    def test_long_rows_run(self) -> None:
        end = run(lambda p, q, where: (1, 1) if p or q else None, [1] + [0] * 99_999, seed=1)
        assert end.silent and set(end.final) == {1}

    def test_too_short_a_row_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 2"):
            run(lambda p, q, where: None, [1])


class TestTheCompiler:
    @pytest.mark.parametrize("name", ordered_pp.IN_DA)
    def test_every_word_up_to_four_letters_is_decided_rightly(self, name: str) -> None:
        protocol = compile_language(language(name, ordered_pp.IN_DA[name]))
        for word in protocol.language.words(2, 4):
            assert protocol.decided(word) == (word in protocol.language), word

    @pytest.mark.parametrize("name", ["a.*b", "b*a.*"])
    def test_the_parts_together_say_what_the_whole_protocol_says(self, name: str) -> None:
        protocol = compile_language(language(name, ordered_pp.IN_DA[name]))
        for word in protocol.language.words(2, 3):
            assert check(protocol.rule, protocol.row(word), protocol.output).output == protocol.decided(word)

    def test_only_the_observer_changes_and_only_order_matters(self) -> None:
        protocol = compile_language(language("a*b*a*"))
        row = protocol.row("ab")
        for p, q in product(row, repeat=2):
            results = [protocol.rule(p, q, where) for where in PLACES]
            assert results[0] == results[1] and results[2] == results[3]
            assert all(result is not None and result[1] == q for result in results)

    def test_a_thousand_agents_agree_on_the_truth(self) -> None:
        protocol = compile_language(language("a.*b"))
        for word in ("a" + "ab" * 499 + "b", "b" + "ab" * 499 + "b"):
            end = run(protocol.rule, protocol.row(word), seed=1)
            assert end.silent
            assert {protocol.output(state) for state in end.final} == {word in protocol.language}

    def test_a_fair_share_of_sampled_words_is_inside(self) -> None:
        wanted = language("a*b*")
        random = np.random.default_rng(1)
        inside = sum(ordered_pp._word(wanted, 50, random) in wanted for _ in range(200))
        assert 60 < inside < 140


@pytest.mark.slow
@pytest.mark.parametrize("name", ordered_pp.IN_DA)
def test_every_word_of_five_letters_is_decided_rightly(name: str) -> None:
    protocol = compile_language(language(name, ordered_pp.IN_DA[name]))
    assert [w for w in protocol.language.words(5, 5) if protocol.decided(w) != (w in protocol.language)] == []


@pytest.mark.parametrize("name", MACHINES)
def test_neighbours_simulate_a_linear_bounded_automaton(name: str) -> None:
    machine = MACHINES[name]
    simulation = Simulation(machine)
    table = Table(simulation.rule)  # what one word has met the others need not ask again
    for length in range(2, 5):
        for letters in product(machine.alphabet, repeat=length):
            word = "".join(letters)
            assert check(table, simulation.row(word), simulation.output).output == machine.member(word), word


def test_strangers_do_not_compute() -> None:
    simulation = Simulation(MACHINES["copy"])
    x, y = simulation.row("ab")
    assert simulation.rule(x, y, 2) is None and simulation.rule(x, y, -2) is None


class TestAUsersLanguage:
    def test_a_language_of_da_is_decided_word_by_word(self) -> None:
        answer = ordered_pp.answer("a.*b", ["ab", "ba", "a" * 30 + "b"], replicas=3)
        assert answer["recognisable"]
        assert [row["decided"] for row in answer["table"]] == [True, False, True]
        assert answer["table"][2]["time_mean"] > 0

    def test_a_language_outside_da_gets_its_reason(self) -> None:
        answer = ordered_pp.answer(".*aa.*", ["ab"])
        assert not answer["recognisable"]
        assert "differ in membership" in answer["why"]
        assert answer["table"][0]["word"] == "ab" and all(row["decided"] is None for row in answer["table"])
        assert {row["member"] for row in answer["table"][1:]} == {True, False}

    def test_without_words_the_shortest_of_both_sides_are_decided(self) -> None:
        table = ordered_pp.answer("a.*b")["table"]
        assert [(row["word"], row["decided"]) for row in table] == [
            ("ab", True), ("aab", True), ("aa", False), ("ba", False),
        ]  # fmt: skip

    def test_a_language_of_da_that_is_too_deep_to_compile_is_still_classified(self) -> None:
        answer = ordered_pp.answer("a.a.", ["aaab", "abba"], alphabet="ab")
        assert answer["recognisable"] and "rankers of more than 4 steps" in answer["why"]
        assert [(row["member"], row["decided"]) for row in answer["table"]] == [(True, None), (False, None)]

    def test_every_run_has_a_table_of_its_own(self) -> None:
        """Together twenty runs of this protocol visit more states than a table holds; one does not."""
        (row,) = ordered_pp.answer("b*a.*b|ca*", ["bbbabcab"], replicas=20)["table"]
        assert row["decided"] is True

    def test_a_word_that_needs_too_many_states_is_told_and_the_others_are_decided(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(swarm_ordered, "LARGEST", 40)
        table = ordered_pp.answer("b*a.*b|ca*", ["ca", "cb", "bbbabcab"], replicas=2)["table"]
        assert [row["decided"] for row in table] == [True, False, None]
        assert table[2]["how"] == "not run: too many states"

    @pytest.mark.parametrize(("expression", "words"), [("(a", ["ab"]), ("a.*", ["a"])])
    def test_bad_input_is_one_line(self, expression: str, words: list[str]) -> None:
        with pytest.raises(ValueError) as caught:
            ordered_pp.answer(expression, words)
        assert len(str(caught.value).splitlines()) == 1


class TestAgentsThatOnlyCount:
    @settings(max_examples=settings().max_examples * 3 // 10)  # each takes long
    @given(st.text("ab", min_size=2, max_size=9), st.integers(0, 99))
    def test_everybody_knows_at_last_how_often_each_letter_occurs_up_to_two(self, word: str, seed: int) -> None:
        start = Counter(population.enrolled(letter, "ab") for letter in word)
        end = swarm_counts.run(population.census, start, seed=seed)
        known = {tuple(count for _, count in state) for state in end.final(0)}
        assert end.silent.all() and known == {(min(word.count("a"), 2), min(word.count("b"), 2))}

    @pytest.mark.parametrize("name", [".*a.*", "b*ab*"])
    def test_they_are_right_where_counts_decide(self, name: str) -> None:
        found = ordered_pp.by_counts(name, 60, replicas=8, seed=3)
        assert found["right"] == found["words"] == 8

    def test_they_guess_where_order_decides(self) -> None:
        assert ordered_pp.by_counts("a.*b", 60, replicas=20, seed=3)["right"] < 20

    def test_both_kinds_of_agents_get_the_same_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[list[str]] = []
        monkeypatch.setattr(ordered_pp, "_counted", lambda words, wrong: seen.append(words) or {})
        ordered_pp.converge("a.*", 12, 3, seed=5)
        ordered_pp.by_counts("a.*", 12, 3, seed=5)
        assert seen[0] == seen[1]


class TestTheStudy:
    def test_every_short_word_is_explored_whatever_the_seeds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Words were once dealt out by the seeds' numbers: with seeds from 1000 on, none was left."""
        monkeypatch.setattr(ordered_pp, "IN_DA", {"a.*": "ab"})
        monkeypatch.setattr(ordered_pp, "OUTSIDE_DA", {"(ab)*": "ab"})
        monkeypatch.setattr(linear_bounded, "MACHINES", {"copy": MACHINES["copy"]})
        monkeypatch.setattr(ordered_pp, "LENGTHS", (60, 30))
        tables = dict(ordered_pp.study(Lab("ordered-pp", seeds=(1000, 7))))
        tried = {name: table["words"].sum() for name, table in tables.items()}
        assert tried["inside"] == 4 + 8 + 16 + 32
        assert tried["machine"] == 4 + 8 + 16
        assert tried["alike"] == 3
        assert tried["unordered"] == tried["large"] > 0

    def test_the_witnesses_of_a_language_outside_are_looked_at_by_all_rankers(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ordered_pp.refuse("(ab)*", 0)["right"] == 3
        monkeypatch.setattr(rankers, "defined", lambda ranker, word: len(word) % 7 == 0)
        assert ordered_pp.refuse("(..)*", 0)["right"] < 3


class TestTheClaims:
    def table(self, **changes: Any) -> pl.DataFrame:
        base = {
            "experiment": "inside", "name": "a.*", "seed": 1000, "words": 20, "right": 20, "wrong": "",
            "unordered_ratio": 0.8,
        }  # fmt: skip
        return pl.from_dicts([base | changes], infer_schema_length=None)

    def answer(self, table: pl.DataFrame, claim: str) -> Answer:
        return next(a for a in judge(study("ordered-pp"), table) if a.id == claim)

    def test_one_wrong_word_is_a_counterexample_and_is_shown(self) -> None:
        assert self.answer(self.table(), "one-sided").verdict is Verdict.REPRODUCED
        found = self.answer(self.table(right=19, wrong="ba"), "one-sided")
        assert found.verdict is Verdict.NOT_REPRODUCED and found.cases == "a.*: ba"
        assert found.n == 20  # words, not languages

    def test_what_counting_lacks_is_measured_seed_by_seed(self) -> None:
        rows = [
            {"experiment": experiment, "name": name, "seed": seed, "words": 8, "right": right, "wrong": ""}
            for experiment, right in (("large", 8), ("unordered", 4))
            for name in ("a.*", ".*b", "a*b*")
            for seed in range(5)
        ]
        found = self.answer(pl.from_dicts([*self.table().to_dicts(), *rows], infer_schema_length=None), "over-counting")
        assert found.measured == 0.5 and found.n == 5 and found.verdict is Verdict.REPRODUCED

    def test_the_sentences_say_what_was_tried(self) -> None:
        texts = {claim: self.answer(self.table(), claim).text for claim in ("one-sided", "successor")}
        assert all("the paper:" in text and "here:" in text for text in texts.values())

    @pytest.mark.parametrize("claim", ["undecidable", "outside"])
    def test_what_is_said_of_all_protocols_is_not_measured_by_some(self, claim: str) -> None:
        found = self.answer(self.table(), claim)
        assert found.verdict is Verdict.NOT_MEASURED and "is the evidence" in found.note

    def test_the_plot_is_drawn(self) -> None:
        rows = [{"experiment": "large", "name": "a.*", "n": n, "time_mean": float(n)} for n in (100, 200)]
        assert charts.svg(ordered_pp.plot(pl.from_dicts(rows))).startswith("<svg")
