"""From an expression to DA: Python's own `re` is the oracle of membership."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.ordered_pp import IN_DA, OUTSIDE_DA, rankers
from assay.protocols.ordered_pp.languages import language

EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(EXPRESSIONS, st.text("ab", max_size=6))
def test_membership_is_that_of_python(expression: str, word: str) -> None:
    assert (word in language(expression, "ab")) == bool(re.fullmatch(expression, word))


@settings(deadline=None)
@given(EXPRESSIONS)
def test_no_smaller_automaton_does(expression: str) -> None:
    automaton = language(expression, "ab").automaton
    words = list(language("a|b").words(0, len(automaton.step)))
    rows = {tuple(automaton.accepts(prefix + word) for word in words) for prefix in words if len(prefix) < 5}
    assert len(rows) == len(automaton.step) or len(automaton.step) > 5


@settings(deadline=None)
@given(EXPRESSIONS)
def test_da_is_the_three_variable_identity(expression: str) -> None:
    wanted = language(expression, "ab")
    monoid = wanted.monoid
    size = len(monoid.elements)
    if size > 25:
        return

    def omega(a: int) -> int:
        power = a
        while not monoid.is_idempotent(power):
            power = monoid.times(power, a)
        return power

    def holds(x: int, y: int, z: int) -> bool:
        e = omega(monoid.times(monoid.times(x, y), z))
        return monoid.times(monoid.times(e, y), e) == e

    triples = ((x, y, z) for x in range(size) for y in range(size) for z in range(size))
    assert wanted.in_da == all(holds(*triple) for triple in triples)


@pytest.mark.parametrize("name", IN_DA)
def test_twelve_languages_are_in_da_and_follow_from_their_rankers(name: str) -> None:
    wanted = language(name, IN_DA[name])
    assert wanted.in_da
    decision = rankers.decide(wanted)
    assert all(decision.accepts(word) == (word in wanted) for word in wanted.words(0, 7))


@pytest.mark.parametrize("name", OUTSIDE_DA)
def test_five_languages_are_refused_with_two_words_that_rankers_cannot_tell_apart(name: str) -> None:
    wanted = language(name, OUTSIDE_DA[name])
    assert wanted.witness is not None
    one, other = wanted.witness.inside(3), wanted.witness.outside(3)
    assert (one in wanted) != (other in wanted)
    for ranker in rankers.all_rankers(wanted.alphabet, 3):
        assert rankers.defined(ranker, one) == rankers.defined(ranker, other)
    with pytest.raises(ValueError, match="not in DA"):
        rankers.decide(wanted)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([">a", "<a", ">b", "<b", ">c", "<c"]), min_size=1, max_size=5), st.text("abc", max_size=9)
)
def test_one_pass_over_a_word_finds_what_walking_finds(steps: list[str], word: str) -> None:
    assert rankers.defined(tuple(steps), word) == (rankers.place(tuple(steps), word) is not None)


@pytest.mark.parametrize(
    ("expression", "word"),
    [("(a", "no ')'"), ("a)", "without '('"), ("*a", "nothing before"), ("[a", "']'"),
     ("", "names no letter"), ("a-b", "not a letter"), ("[]a", "needs letters"),
     # Without letters, too, what is wrong with the expression comes first.
     ("(", "no ')' for the '(' at place 1"), ("(.", "no ')'"), (".)", "')' without '(' at place 2"),
     ("[", "needs letters and ']'"), ("*", "nothing before it"), ("()", "names no letter"), (".*", "names no letter")],
)  # fmt: skip
def test_a_bad_expression_is_one_line(expression: str, word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(word)) as caught:
        language(expression)
    assert "\n" not in str(caught.value)


def test_a_letter_outside_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="alphabet"):
        language("a").automaton.accepts("b")
