"""Division is that of whole numbers, everywhere: against Python's own `//` on every run at small parameters."""

from __future__ import annotations

import pickle
from itertools import product

import pytest

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.protocols.automata import explicit
from assay.protocols.automata.automaton import weaken
from assay.protocols.automata.expressions import Number, Source, Words, formula
from assay.protocols.automata.linear import dnf, holds_one, variable
from assay.protocols.automata.parser import condition, parse
from assay.protocols.automata.verify import Finding, Verdict, verify
from assay.record.errors import BadInput
from tests.oracles import threshold_automata as oracle

HALF = """ta Half {
  shared x; parameters N, T;
  assumptions { N >= 3; T == 0; }
  locations { a: [0]; b: [1]; c: [2]; }
  inits { a == N; b == 0; c == 0; x == 0; }
  rules {
    0: a -> b when (true) do { x' == x + 1; };
    1: b -> c when (GUARD) do {};
  }
  specifications { late: [](c == 0 || 2 * x >= N + 1); }
}"""


def answer(text: str, algorithm: str = "smt") -> Finding:
    (found,) = verify(parse(text), algorithms=[algorithm])
    return found


def test_half_of_an_odd_number_is_rounded_down() -> None:
    for algorithm in ("smt", "explicit"):
        found = answer(HALF.replace("GUARD", "x >= (N + 1) / 2"), algorithm)
        assert found.verdict is Verdict.VIOLATED
        assert found.note == "at N=4, T=0"
    assert answer(HALF.replace("GUARD", "x >= N / 2 + 1")).verdict is Verdict.PROVED


def test_a_definition_may_divide() -> None:
    text = HALF.replace("assumptions", "define HALF == (N + 1) / 2; assumptions").replace("GUARD", "x >= HALF")
    assert answer(text).note == "at N=4, T=0"
    assert answer(text.replace("(N + 1) / 2", "N / 2 + 1")).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    "text",
    [
        "x / 2 >= T", "x / 3 < N / 2", "2 * (x / 2) >= N", "N - 3 * (x / 2) > T", "x / 2 == N / 3", "x / 2 != T",
        "(x + N / 2) / 3 >= T", "((x / 2) + N) / 3 <= y", "y + x / 2 >= N / 2", "x / 2 - x / 2 + y >= N / 3",
        "(N - 2 * T) / 3 + 1 <= x", "-(N / 2) + x >= 0", "N / 2 / 2 == T", "4 / 3 * N == x", "(T - N) / 2 + x >= 0",
        "7 / 2 <= x", "(N + 1) / 2 * 2 == N",
    ],
)  # fmt: skip
def test_a_comparison_says_what_python_says(text: str) -> None:
    names = {"x": True, "y": True, "N": False, "T": False}
    said = dnf(formula(Words(Source("x", text)), {k: Number(variable(k), moves=v) for k, v in names.items()}))
    for values in product(range(8), repeat=4):
        point = dict(zip(names, values, strict=True))
        assert holds_one(said, point) == oracle.true(text, point), point


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x / 2 + y / 2 >= T", "one comparison takes one quotient"),
        ("2 * (x / 2) + y >= T", "one comparison takes one quotient"),
        ("(x / 2 + y / 2) / 2 >= T", "cannot be divided again"),
        ("x / y >= 1", "divide by a whole number from 1 to 1,000,000"),
        ("x / 0 >= 1", "divide by a whole number from 1 to 1,000,000"),
    ],
)
def test_what_cannot_be_said_in_one_comparison_is_refused_in_one_line(text: str, says: str) -> None:
    scope = {k: Number(variable(k), moves=k in "xy") for k in "xyNT"}
    with pytest.raises(BadInput, match=says):
        formula(Words(Source("x", text)), scope)


def test_a_weaker_condition_may_divide() -> None:
    automaton = parse(HALF.replace("GUARD", "x >= N - T").replace("T == 0", "N > 2 * T"))
    weak = weaken(automaton, condition("T <= (N + 1) / 2", automaton))
    (broken,) = verify(weak)
    assert broken.counterexample is not None
    assert broken.counterexample.parameters["N"] <= 2 * broken.counterexample.parameters["T"]
    assert {row.verdict for row in verify(automaton)} == {Verdict.PROVED}
    assert pickle.loads(pickle.dumps(weak)) == weak


def compared(seed: int) -> set[str]:
    """Every algorithm against every run at small parameters; the words that were said."""
    written = oracle.written(seed)
    try:
        automaton = parse(written.text())
        found = list(verify(automaton, algorithms=("smt", "acs", "zcs"), seconds=30))
    except BadInput as error:
        assert "no run exists" in str(error), (seed, error)
        return {"no run"}
    by_hand = {tuple(size.items()): oracle.breaks(written, size) for size in oracle.sizes(written, 4)}
    broken = True in by_hand.values()
    for row in found:
        assert not (row.verdict is Verdict.PROVED and broken), (seed, row, by_hand, written.text())
        if row.counterexample is not None and sum(row.counterexample.parameters.values()) <= 12:
            there = oracle.breaks(written, row.counterexample.parameters, most=50_000)
            assert there is not False, (seed, row, written.text())
    for size, breaks in by_hand.items():
        (row,) = verify(automaton, algorithms=["explicit"], parameters=dict(size))
        if breaks is not None and row.verdict in (Verdict.CHECKED, Verdict.VIOLATED):
            assert (row.verdict is Verdict.VIOLATED) == breaks, (seed, size, row, written.text())
    return {row.verdict.value for row in found} | ({"broken"} if broken else set())


def test_no_algorithm_contradicts_every_run_at_small_parameters() -> None:
    said = [compared(seed) for seed in range(12)]
    assert sum("proved" in words for words in said) >= 2
    assert sum("violated" in words for words in said) >= 2


@pytest.mark.slow
def test_no_algorithm_contradicts_every_run_at_small_parameters_at_length() -> None:
    said = [compared(seed) for seed in range(100, 460)]
    answered = [words for words in said if words & {"proved", "violated"}]
    assert len(answered) >= 300
    assert sum("proved" in words for words in answered) >= 60
    assert sum("broken" in words for words in answered) >= 60


def test_small_sizes_are_searched_with_divided_assumptions() -> None:
    automaton = parse(HALF.replace("GUARD", "x >= N / 2").replace("T == 0", "T == N / 2"))
    assert [size["T"] for size in explicit.instances(automaton, 6)] == [1, 2, 2, 3]
