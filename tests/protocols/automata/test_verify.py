"""The built-in protocols: proved as they are, broken as soon as a resilience condition is too weak."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.protocols import taco
from assay.protocols.automata import parser
from assay.protocols.automata.automaton import Automaton, configuration, simulate, steps, weaken
from assay.protocols.automata.solver import Unrolling, levels, simplify
from assay.protocols.automata.specification import Asked, Inconclusive, Proved, Violation, late, question
from assay.protocols.automata.verify import Finding, Verdict, verify
from assay.protocols.taco import node
from assay.protocols.taco.noticed import noticing
from assay.record import traces
from assay.record.errors import BadInput

SAFE = [
    (name, specification)
    for name, specification in (
        ("agreement", "unforgeability"), ("bracha", "unforgeability"), ("broadcast", "unforgeability"),
        ("commit", "agreement"), ("commit", "abort_validity"), ("commit", "commit_validity"),
        ("folklore", "unforgeability"),
    )
]  # fmt: skip
PUBLISHED = ("aba", "bcast-byz", "bcast-folklore-crash", "bosco", "frb", "nbacg", "strb", "toy")


def answers(automaton: Automaton, *specifications: str, algorithms: tuple[str, ...] = ("smt",)) -> list[Finding]:
    return list(verify(automaton, specifications=specifications, algorithms=algorithms, seconds=600))


def weakened(name: str, text: str) -> Automaton:
    automaton = published(name) if name in PUBLISHED else taco.load(name)
    return weaken(automaton, parser.condition(text, automaton))


def published(name: str) -> Automaton:
    return parser.read(traces.find(f"taco/{name}.ta"))


@cache
def published_answers(name: str) -> tuple[Finding, ...]:
    return tuple(answers(published(name)))


class TestBuiltIn:
    @pytest.mark.parametrize(("name", "specification"), SAFE)
    def test_safety_is_proved_by_every_algorithm(self, name: str, specification: str) -> None:
        found = answers(taco.load(name), specification, algorithms=("smt", "acs", "zcs"))
        assert [row.verdict for row in found] == [Verdict.PROVED] * 3

    def test_one_step_consensus_is_proved_by_one_formula(self) -> None:
        assert {row.verdict for row in answers(taco.load("one_step"))} == {Verdict.PROVED}

    @pytest.mark.slow
    def test_one_step_consensus_is_proved_by_every_algorithm(self) -> None:
        found = answers(taco.load("one_step"), algorithms=("smt", "acs", "zcs"))
        assert {row.verdict for row in found} == {Verdict.PROVED}

    def test_relay_is_proved_and_needs_more_than_three_times_the_faults(self) -> None:
        assert answers(taco.load("broadcast"), "relay")[0].verdict is Verdict.PROVED
        broken = answers(weakened("broadcast", "n >= 3*t"), "relay")[0]
        assert broken.verdict is Verdict.VIOLATED
        assert broken.counterexample is not None
        assert broken.counterexample.parameters["n"] == 3 * broken.counterexample.parameters["t"]

    def test_resets_are_for_acs_and_zcs(self) -> None:
        found = answers(taco.load("rounds"), "unforgeability", algorithms=("smt", "acs", "zcs"))
        assert [row.verdict for row in found] == [Verdict.UNSUPPORTED, Verdict.PROVED, Verdict.PROVED]
        found = answers(taco.load("rounds"), "silence", algorithms=("acs", "zcs"))
        assert {row.verdict for row in found} == {Verdict.VIOLATED}

    def test_what_an_algorithm_does_not_take_is_said_in_one_line(self) -> None:
        found = answers(taco.load("folklore"), "crash_budget", algorithms=("smt", "acs", "zcs"))
        assert [row.verdict for row in found] == [Verdict.PROVED, Verdict.UNSUPPORTED, Verdict.UNSUPPORTED]
        assert "counters" in found[1].note
        found = answers(taco.load("broadcast"), "relay", algorithms=("acs", "zcs"))
        assert {row.verdict for row in found} == {Verdict.UNSUPPORTED}

    def test_explicit_search_claims_no_proof(self) -> None:
        (row,) = verify(taco.load("commit"), specifications=["agreement"], algorithms=["explicit"])
        assert row.verdict is Verdict.CHECKED
        assert "no proof" in row.note

    @pytest.mark.parametrize(
        ("assumed", "initial", "what"),
        [("n > 2; n < 2;", "a == n; b == 0;", "assumptions"), ("n > 2;", "a == n; b == 0; a == 1;", "inits")],
    )
    def test_of_an_automaton_without_runs_nothing_is_proved(self, assumed: str, initial: str, what: str) -> None:
        empty = parser.parse(
            f"ta Empty {{ parameters n; assumptions {{ {assumed} }} locations {{ a: [0]; b: [1]; }}"
            f" inits {{ {initial} }} rules {{ 0: a -> b when (true) do {{}}; }} specifications {{ s: [](b == 0); }} }}"
        )
        for algorithm in ("smt", "acs", "zcs"):
            with pytest.raises(BadInput, match=f"the {what} of Empty cannot all hold: no run exists"):
                answers(empty, algorithms=(algorithm,))
        (row,) = answers(empty, algorithms=("explicit",))
        assert row.verdict is Verdict.UNKNOWN
        assert "no run starts" in row.note or "admit no parameters" in row.note

    def test_a_solver_out_of_time_is_unknown_not_proved(self) -> None:
        (row,) = verify(noticing(taco.load("bracha")), specifications=["unforgeability"], seconds=1e-9)
        assert row.verdict is Verdict.UNKNOWN


class TestTime:
    """One budget for everything, on a clock of the test's own."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        return now

    def test_all_answers_together_take_no_longer_than_asked(
        self, monkeypatch: pytest.MonkeyPatch, clock: list[float]
    ) -> None:
        def too_slow(*_: object) -> Inconclusive:
            clock[0] += float(str(_[-1]))
            return late(1.0)

        monkeypatch.setattr("assay.protocols.automata.verify._ask_one", too_slow)
        found = list(verify(taco.load("commit"), seconds=6))
        assert {row.verdict for row in found} == {Verdict.UNKNOWN}
        assert len(found) == 3
        assert clock[0] <= 6.001

    def test_what_needs_more_gets_what_the_others_leave(
        self, monkeypatch: pytest.MonkeyPatch, clock: list[float]
    ) -> None:
        asked: list[object] = []

        def first_is_hard(automaton: object, question: object, *rest: object) -> Proved | Inconclusive:
            asked.append(question)
            seconds = float(str(rest[-1]))
            if question != asked[0] or seconds >= 4:
                return Proved()
            clock[0] += seconds
            return late(seconds)

        monkeypatch.setattr("assay.protocols.automata.verify._ask_one", first_is_hard)
        found = list(verify(taco.load("commit"), seconds=6))
        assert {row.verdict for row in found} == {Verdict.PROVED}
        names = list(taco.load("commit").specifications)
        assert [row.specification for row in found] == [*names[1:], names[0]]

    @pytest.mark.parametrize("algorithm", ["smt", "acs", "zcs", "explicit"])
    def test_no_time_at_all_is_unknown_never_proved(self, algorithm: str) -> None:
        (row,) = verify(taco.load("commit"), specifications=["agreement"], algorithms=[algorithm], seconds=0.0)
        assert row.verdict is Verdict.UNKNOWN
        assert "give more --seconds" in row.note


class TestByDefault:
    def test_counters_that_fall_get_an_algorithm_that_takes_them(self) -> None:
        found = list(verify(taco.load("rounds")))
        assert [(row.verdict.value, row.algorithm) for row in found] == [("proved", "acs"), ("violated", "acs")]

    def test_where_acs_declines_zcs_is_asked(self) -> None:
        automaton = taco.load("rounds")
        text = Path(taco.__file__).parent.joinpath("library", "rounds.eta").read_text()
        wanted = text.replace("specifications {", "specifications { empty: [](accepted == 0 || having > 0);")
        (row,) = verify(parser.parse(wanted), specifications=["empty"])
        assert automaton.specifications.keys() < parser.parse(wanted).specifications.keys()
        assert (row.verdict, row.algorithm) == (Verdict.VIOLATED, "zcs")


class TestWeakened:
    CASES = (
        ("broadcast", "f <= t + 1", "unforgeability"),
        ("agreement", "f <= t + 1", "unforgeability"), ("bracha", "f <= t + 1", "unforgeability"),
    )  # fmt: skip

    @pytest.mark.parametrize(("name", "text", "specification"), CASES)
    def test_all_algorithms_find_a_run_that_processes_on_the_kernel_repeat(
        self, name: str, text: str, specification: str
    ) -> None:
        weak = weakened(name, text)
        for row in answers(weak, specification, algorithms=("smt", "acs", "zcs", "explicit")):
            assert row.verdict is Verdict.VIOLATED, row
            assert row.counterexample is not None
            outcome = node.replay(weak, row.counterexample)
            assert node.occupied(weak, outcome) == {
                place: row.counterexample.trail[-1].values[place] for place in weak.locations
            }

    def test_the_table_of_a_counterexample_ends_in_the_violation(self) -> None:
        weak = weakened("broadcast", "f <= t + 1")
        (row,) = answers(weak, "unforgeability")
        assert row.counterexample is not None
        table = row.counterexample.rows(weak)
        assert table[0]["rule"] == "start"
        assert "accepted" in table[-1]["processes"]  # type: ignore[operator]
        assert len(table) == len(row.counterexample.schedule) + 1


@pytest.mark.traces
class TestPublished:
    """The files of the paper's own benchmarks, where they are at hand."""

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_every_safety_specification_is_proved(self, name: str) -> None:
        found = published_answers(name)
        safety = [row for row in found if row.kind == "safety"]
        assert safety
        assert {row.verdict for row in safety} == {Verdict.PROVED}

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_liveness_is_answered(self, name: str) -> None:
        """All hold but one: the crash broadcast bounds no crashes, so all processes may crash before they send."""
        liveness = {row.specification: row for row in published_answers(name) if row.kind == "liveness"}
        expected = {
            spec: Verdict.VIOLATED if (name, spec) == ("bcast-folklore-crash", "corr") else Verdict.PROVED
            for spec in liveness
        }
        assert {spec: row.verdict for spec, row in liveness.items()} == expected

    @pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "bosco"])
    def test_acs_and_zcs_give_the_same_answers(self, name: str) -> None:
        for row in answers(published(name), algorithms=("acs", "zcs")):
            assert row.verdict in (Verdict.PROVED, Verdict.UNSUPPORTED), row

    @pytest.mark.slow
    def test_acs_and_zcs_give_the_same_answers_on_bosco(self) -> None:
        found = [row for row in answers(published("bosco"), algorithms=("acs", "zcs")) if row.kind == "safety"]
        assert {row.verdict for row in found} == {Verdict.PROVED}

    @pytest.mark.parametrize(
        ("name", "text", "specification"),
        [
            ("strb", "N >= 3*T", "relay"), ("strb", "F <= T + 1", "unforg"), ("strb", "N >= 2*T", "unforg"),
            ("aba", "N >= 3*T", "agreement"), ("aba", "F <= T + 1", "unforg"),
            ("bcast-byz", "N >= 3*T", "relay"), ("bcast-byz", "F <= T + 1", "unforg"),
            ("toy", "F <= T", "unreachable_l5"), ("frb", "N >= T", "corr"), ("bosco", "F <= T + 1", "lemma4_0"),
        ],
    )  # fmt: skip
    def test_a_resilience_condition_that_is_one_too_weak_flips_the_verdict(
        self, name: str, text: str, specification: str
    ) -> None:
        weak = weakened(name, text)
        (row,) = answers(weak, specification)
        assert row.counterexample is not None, row
        assert node.replay(weak, row.counterexample).stopped in ("scheduler", "quiet")


class TestSemantics:
    def test_random_runs_keep_what_is_proved(self) -> None:
        broadcast = taco.load("broadcast")
        start = configuration(broadcast, {"n": 4, "t": 1, "f": 1}, {"without": 3})
        for seed in range(20):
            fired = list(simulate(broadcast, start, seed=seed))
            trail = list(steps(broadcast, start, tuple((name, 1) for name in fired)))
            assert all(now.values["accepted"] == 0 for now in trail)

    def test_processes_are_neither_made_nor_lost(self) -> None:
        agreement = taco.load("agreement")
        start = configuration(agreement, {"n": 7, "t": 2, "f": 2}, {"zero": 2, "one": 3})
        fired = list(simulate(agreement, start, seed=1))
        trail = list(steps(agreement, start, tuple((name, 1) for name in fired)))
        assert fired
        assert {sum(now.values[place] for place in agreement.locations) for now in trail} == {5}
        assert all(a.values["echoes"] <= b.values["echoes"] for a, b in pairwise(trail))

    def test_a_schedule_of_another_automaton_is_refused(self) -> None:
        broadcast = taco.load("broadcast")
        start = configuration(broadcast, {"n": 4, "t": 1, "f": 1}, {"without": 3})
        with pytest.raises(ValueError, match="rule 2 is not enabled at entry 1"):
            list(steps(broadcast, start, (("2", 1),)))

    def test_simplifying_keeps_names_and_drops_what_cannot_matter(self) -> None:
        def small(automaton: Automaton) -> list[str]:
            asked = question(automaton, automaton.specifications["unforgeability"])
            assert isinstance(asked, Asked)
            (violation,) = asked.questions
            assert isinstance(violation, Violation)
            return [rule.name for rule in simplify(automaton, violation.start, violation.goals, until=inf).rules]

        assert small(taco.load("broadcast")) == []  # nobody has the message: no copy is ever sent, no guard ever passed
        assert small(weakened("broadcast", "f <= t + 1")) == [
            "1",
            "2",
        ]  # forged copies pass it; waiting changes nothing

    def test_a_guard_that_only_what_it_guards_could_make_true_is_never_true(self) -> None:
        """Two counters that wait for each other; a third that somebody raises."""
        text = """ta Waiting { shared a, b, c; parameters n; assumptions { n > 2; }
            locations { x: [0]; y: [1]; z: [2]; }
            inits { x == n; y == 0; z == 0; a == 0; b == 0; c == 0; }
            rules { 0: x -> y when (b >= 1) do { a' == a + 1; }; 1: x -> y when (a >= 1) do { b' == b + 1; };
                    2: x -> z when (true) do { c' == c + 1; }; 3: z -> z when (c >= n) do { c' == c + 1; }; }
            specifications { never: [](y == 0); all: [](z < n); } }"""
        waiting = parser.parse(text)
        verdicts = {row.specification: row.verdict for row in answers(waiting, "never", "all")}
        assert verdicts == {"never": Verdict.PROVED, "all": Verdict.VIOLATED}
        origin = Unrolling(waiting, (), inf)
        assert {rule.name: at for rule, at in levels(waiting.rules, origin).items()} == {"2": 0, "3": 1}

    def test_noticing_lags_behind_but_is_as_safe(self) -> None:
        large = noticing(taco.load("broadcast"))
        assert {row.verdict for row in answers(large, "unforgeability", algorithms=("smt", "acs"))} == {Verdict.PROVED}
        weak = weaken(large, parser.condition("f <= t + 1", large))
        (row,) = answers(weak, "unforgeability")
        assert row.verdict is Verdict.VIOLATED

    def test_noticing_needs_thresholds_that_stay_passed(self) -> None:
        with pytest.raises(BadInput, match="can become false again"):
            noticing(taco.load("folklore"))

    def test_wrong_names_are_refused_with_those_that_are_right(self) -> None:
        broadcast = taco.load("broadcast")
        with pytest.raises(BadInput, match="no specification 'x' in Broadcast; there are unforgeability, relay"):
            answers(broadcast, "x")
        with pytest.raises(BadInput, match="no algorithm 'magic'"):
            answers(broadcast, algorithms=("magic",))
        with pytest.raises(BadInput, match="do not admit n=3"):
            list(verify(broadcast, algorithms=["explicit"], parameters={"n": 3, "t": 1, "f": 1}))
        with pytest.raises(BadInput, match="has the parameters n, t, f"):
            list(verify(broadcast, algorithms=["explicit"], parameters={"n": 3}))
