"""The format of ByMC and TACO: what is read, and what the reader says when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols import taco
from assay.protocols.automata.automaton import Automaton, weaken
from assay.protocols.automata.parser import condition, parse, read
from assay.record.errors import BadInput

LIBRARY = Path(taco.__file__).parent / "library"
TEXTS = [path.read_text() for path in sorted(LIBRARY.iterdir())]
SMALL = """skel Proc {
  local pc;
  shared x, y;
  parameters N, T;
  define MOST == N - T; /* the rest may be silent */
  assumptions (1) { N > 2 * T; T >= 1; }
  locations (2) { a: [0]; b: [0; 1]; }
  inits (2) { a == N - T; b == 0; x == 0; y == 0; }
  rules (2) {
  0: a -> b when (x + 1 >= MOST || y < 2) do { x' == x + 1; unchanged(y); };
  7: b -> a when (true) do { y' := y - 2; x' := 0 };
  }
  specifications (1) { never: (a == N) -> [](b == 0); }
}
"""


def test_every_section_of_a_file_is_read() -> None:
    automaton = parse(SMALL)
    assert (automaton.parameters, automaton.shared, automaton.locations) == (("N", "T"), ("x", "y"), ("a", "b"))
    assert [str(rule) for rule in automaton.rules] == [
        "0: a -> b when T + x + 1 >= N do x += 1",
        "0: a -> b when 1 >= y do x += 1",
        "7: b -> a when true do y -= 2; x = 0",
    ]
    assert not automaton.increments_only
    assert list(automaton.specifications) == ["never"]


def test_a_guard_with_or_becomes_several_rules_of_one_name() -> None:
    assert [len(rule.guard) for rule in parse(SMALL).rules_named("0")] == [1, 1]


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("skel Proc", "proc Proc", "1:1", "expected 'skel NAME {' or 'ta NAME {', found 'proc'"),
        ("shared x, y;", "shared x y;", "3:12", "expected ',' or ';' after a name, found 'y'"),
        ("shared x, y;", "shared x, x;", "3:13", "the name 'x' is used already"),
        ("N - T; /*", "N - Z; /*", "5:22", "unknown name 'Z'; known here: N, T"),
        ("2 * T;", "T * T;", "6:27", "a product of two variables is not linear"),
        ("N > 2 * T;", "N + 2 * T;", "6:21", "expected a condition here, this is a number"),
        ("a == N - T;", "[](a == N);", "8:15", "no temporal operator may stand here"),
        ("a -> b when", "a -> c when", "10:11", "unknown location 'c'; there are a, b"),
        ("x' == x + 1", "x == x + 1", "10:50", "expected ''' after the variable"),
        ("x' == x + 1", "x' == 2 * x", "10:54", "expected x, x plus or minus a number, or 0"),
        ("unchanged(y)", "unchanged(x)", "10:71", "'x' is given two values"),
        ("7: b", "0: b", "11:3", "there are two rules 0"),
        ("[](b == 0);", "[](b == 0)", "13:54", "expected ';' after the specification, found '}'"),
        ("[](b == 0)", "[](b + 0)", "13:46", "expected a condition here"),
        ("may be silent */", "may be silent", "5:25", "this comment is never closed"),
        ("T >= 1;", "T >= 1234567890;", "6:37", "a number of more than 9 digits"),
        ("locations (2)", "locations (x)", "7:14", "expected the number of entries"),
        ("x + 1 >= MOST", "x + 1 ? MOST", "10:25", "unexpected character '?'"),
    ],
)  # fmt: skip
def test_an_error_says_where_it_is_and_what_would_be_right(old: str, new: str, place: str, says: str) -> None:
    assert old in SMALL
    with pytest.raises(BadInput) as caught:
        parse(SMALL.replace(old, new, 1), "file.ta")
    assert str(caught.value).startswith(f"file.ta:{place}: "), str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("piece", ["(", "!", "[]", "<>", "-", "a == 0 -> ", "a == 0 && ("])
def test_deep_nesting_never_exhausts_the_stack(piece: str) -> None:
    accepted_or_one_line(SMALL.replace("(a == N) -> [](b == 0)", piece * 5_000 + "a == 0"))
    closed = piece * 5_000 + "a == 0" + ")" * (5_000 * piece.count("("))
    accepted_or_one_line(SMALL.replace("(a == N) -> [](b == 0)", closed))


def test_conditions_that_change_too_deep_are_refused() -> None:
    text = SMALL.replace("(a == N) -> [](b == 0)", "(a == 0 && (b == 0 || " * 100 + "a == 1" + "))" * 100)
    with pytest.raises(BadInput, match="conditions change deeper than 64 times"):
        parse(text)


def test_brackets_of_one_kind_may_be_deep() -> None:
    text = SMALL.replace("[](b == 0)", "[](" + "(b == 0 && " * 500 + "b == 0" + ")" * 500 + ")")
    assert parse(text).specifications


def test_a_quotient_is_rounded_down() -> None:
    rule = parse(SMALL.replace("x + 1 >= MOST || y < 2", "x >= ((N + T) / 2) + 1")).rules[0]
    assert str(rule.guard[0]) == "(N + T) mod 2 + 2*x >= N + T + 2"
    assert parse(SMALL.replace("N - T; /*", "N / 2; /*")).rules
    with pytest.raises(BadInput, match="divide by a whole number from 1"):
        parse(SMALL.replace("x + 1 >= MOST", "x / y >= MOST"))


def test_a_variable_may_be_named_unchanged_twice() -> None:
    assert parse(SMALL.replace("unchanged(y)", "unchanged(y, y)")).rules


def test_a_long_flat_condition_is_fine() -> None:
    text = SMALL.replace("[](b == 0)", "[](" + " && ".join(["b == 0"] * 2_000) + ")")
    assert parse(text).specifications


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TEXTS), st.data())
def test_a_mangled_file_is_read_or_refused_in_one_line(text: str, data: st.DataObject) -> None:
    """Cut, repeat, swap pieces: whatever comes out, there is an automaton or one line."""
    for _ in range(data.draw(st.integers(1, 4))):
        a, b = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        insert = data.draw(
            st.sampled_from(["", text[a:b][:40], "(", "}", ";", "->", "[]", "'", "9", "\x00", "é", "/*"])
        )
        text = text[:a] + insert + text[b if data.draw(st.booleans()) else a :]
    accepted_or_one_line(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    accepted_or_one_line(text)


def accepted_or_one_line(text: str) -> None:
    try:
        assert isinstance(parse(text, "f"), Automaton)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ta"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not text"):
        read(path)
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "absent.ta")


class TestWeakening:
    def test_replaces_the_assumption_with_the_same_factors(self) -> None:
        broadcast = taco.load("broadcast")
        weak = weaken(broadcast, condition("n >= 3*t", broadcast))
        assert {str(cases[0][0]) for cases in weak.assumptions} == {"n >= 3*t", "t >= f", "t > 0"}

    def test_else_the_one_over_the_same_parameters(self) -> None:
        broadcast = taco.load("broadcast")
        weak = weaken(broadcast, condition("n >= 2*t", broadcast))
        assert {str(cases[0][0]) for cases in weak.assumptions} == {"n >= 2*t", "t >= f", "t > 0"}

    def test_says_which_assumptions_there_are_where_none_fits(self) -> None:
        broadcast = taco.load("broadcast")
        with pytest.raises(BadInput, match=r"replaces no assumption of Broadcast; there are: n > 3\*t; t >= f; t > 0"):
            weaken(broadcast, condition("n >= 3*f", broadcast))

    @pytest.mark.parametrize("text", ["n >=", "n + 1", "n != 3", "n > 1 && t > 1", "copies >= 1", "n > 1; t > 2"])
    def test_takes_one_comparison_of_parameters(self, text: str) -> None:
        with pytest.raises(BadInput):
            condition(text, taco.load("broadcast"))
