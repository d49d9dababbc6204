"""Linear forms and formulas over natural numbers."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.automata.linear import (
    And,
    Atom,
    Formula,
    Linear,
    Or,
    dnf,
    equal,
    greater,
    holds_one,
    linear,
    negate,
    number,
    variable,
)
from assay.record.errors import BadInput

NAMES = ("x", "y")
forms = st.builds(
    lambda x, y, c: linear({"x": x, "y": y}, c), st.integers(-3, 3), st.integers(-3, 3), st.integers(-5, 5)
)


def combined(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    parts = st.lists(inner, max_size=3).map(tuple)
    return st.builds(And, parts) | st.builds(Or, parts)


formulas: st.SearchStrategy[Formula] = st.recursive(st.builds(Atom, forms), combined, max_leaves=6)


def truth(formula: Formula, values: dict[str, int]) -> bool:
    match formula:
        case Atom(form):
            return form.value(values) >= 0
        case And(parts):
            return all(truth(part, values) for part in parts)
        case Or(parts):
            return any(truth(part, values) for part in parts)
    raise AssertionError(formula)


def points() -> list[dict[str, int]]:
    return [dict(zip(NAMES, values, strict=True)) for values in product(range(5), repeat=2)]


@given(formulas)
def test_the_normal_form_says_the_same_at_every_point(formula: Formula) -> None:
    cases = dnf(formula)
    assert all(holds_one(cases, point) == truth(formula, point) for point in points())


@given(formulas)
def test_a_negation_is_true_exactly_where_the_formula_is_not(formula: Formula) -> None:
    assert all(truth(negate(formula), point) != truth(formula, point) for point in points())


@given(forms, forms, st.integers(-3, 3))
def test_forms_add_and_scale_as_their_values_do(a: Linear, b: Linear, factor: int) -> None:
    for point in points():
        assert (a + b).value(point) == a.value(point) + b.value(point)
        assert (a - factor * b).value(point) == a.value(point) - factor * b.value(point)


@given(forms)
def test_a_form_has_one_spelling(form: Linear) -> None:
    assert form + variable("x") - variable("x") == form
    assert hash(linear(dict(reversed(form.terms)), form.constant)) == hash(form)


def test_comparisons_read_as_they_are_written() -> None:
    n, t = variable("n"), variable("t")
    assert str(greater(n, 3 * t)) == "n > 3*t"
    assert str(Atom(number(2) - t)) == "2 >= t"
    assert [list(map(str, case)) for case in dnf(equal(n, number(4)))] == [["n >= 4", "4 >= n"]]


def test_a_condition_with_too_many_cases_is_refused() -> None:
    either = Or((greater(variable("x"), number(1)), greater(variable("y"), number(1))))
    with pytest.raises(BadInput, match="more than 4096 cases"):
        dnf(And((either,) * 13))
