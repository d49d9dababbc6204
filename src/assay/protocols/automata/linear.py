"""Linear forms over natural numbers, and the formulas made of them.

Every comparison of whole numbers is written as one shape, *a form is at least zero*: ``a < b`` is ``b - a - 1 >= 0``.
The shape is closed under negation, so formulas need no "not", and a disjunctive normal form is a tuple of tuples of
forms. Parameters, shared variables and the number of processes in a location are natural numbers throughout.

Division is that of whole numbers, rounded down. A quotient of parameters is linear in them and in what is left over,
``(N + T)/2 = (N + T - (N + T) mod 2)/2``, so the remainder stands in forms as one more natural number: a `Residue`.

>>> n, t = variable("N"), variable("T")
>>> str(greater(n, 3 * t)), str(negate(greater(n, 3 * t)))
('N > 3*T', '3*T >= N')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from assay.record.errors import BadInput

LARGEST_DNF = 4096  # conjunctions; the published automata stay below a hundred


@dataclass(frozen=True, slots=True)
class Linear:
    """A whole number plus whole multiples of named natural numbers; `terms` are sorted and none is zero."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Linear) -> Linear:
        summed = dict(self.terms)
        for name, factor in other.terms:
            summed[name] = summed.get(name, 0) + factor
        return linear(summed, self.constant + other.constant)

    def __sub__(self, other: Linear) -> Linear:
        return self + -1 * other

    def __rmul__(self, factor: int) -> Linear:
        return linear({name: factor * own for name, own in self.terms}, factor * self.constant)

    @property
    def names(self) -> frozenset[str]:
        """What occurs in it."""
        return frozenset(name for name, _ in self.terms)

    def factor(self, name: str) -> int:
        """How often the name counts."""
        return dict(self.terms).get(name, 0)

    def only(self, names: Iterable[str]) -> Linear:
        """The terms of these names, without the constant."""
        chosen = set(names)
        return Linear(tuple((name, factor) for name, factor in self.terms if name in chosen))

    @property
    def read(self) -> frozenset[str]:
        """What its value depends on: for a residue, the names in it."""
        return frozenset().union(*(name.form.read if isinstance(name, Residue) else {name} for name, _ in self.terms))

    def value(self, values: Mapping[str, int]) -> int:
        """The form at a point."""
        return self.constant + sum(factor * valued(name, values) for name, factor in self.terms)

    def __str__(self) -> str:
        """The form as the statement that it is at least zero."""
        left = [(name, factor) for name, factor in self.terms if factor > 0]
        right = [(name, -factor) for name, factor in self.terms if factor < 0]
        if not self.terms:
            return "true" if self.constant >= 0 else "false"
        strict = self.constant == -1 and bool(left)
        constant = 0 if strict else self.constant
        return f"{_sum(left, constant)} {'>' if strict else '>='} {_sum(right, -constant)}"


class Residue(str):
    """What is left of a form over the parameters when it is divided by a modulus: a name that knows its own value.

    >>> left = residue(variable("N") + number(5), 3)
    >>> str(left), left.value({"N": 6})
    ('(N + 2) mod 3 >= 0', 2)
    """

    form: Linear
    modulus: int

    def __new__(cls, form: Linear, modulus: int) -> Residue:
        """The name; `residue` makes a form of it, in its one spelling."""
        made = super().__new__(cls, f"({_sum(list(form.terms), form.constant)}) mod {modulus}")
        made.form, made.modulus = form, modulus
        return made

    def __getnewargs__(self) -> tuple[Linear, int]:  # type: ignore[override]
        return self.form, self.modulus

    def at(self, values: Mapping[str, int]) -> int:
        """Its value at a point."""
        return self.form.value(values) % self.modulus


def residue(form: Linear, modulus: int) -> Linear:
    """The form modulo a number, with factors brought below it."""
    small = linear({name: factor % modulus for name, factor in form.terms}, form.constant % modulus)
    return variable(Residue(small, modulus)) if small.terms else small


def valued(name: str, values: Mapping[str, int]) -> int:
    """A name's value at a point; a residue has its own."""
    return name.at(values) if isinstance(name, Residue) else values[name]


def fixed(form: Linear, parameters: Mapping[str, int]) -> Linear:
    """The form with the values of its residues at these parameters in their place.

    >>> str(fixed(variable("x") - residue(variable("N"), 2), {"N": 5}))
    'x > 0'
    """
    known: dict[str, int] = {name: name.at(parameters) for name, _ in form.terms if isinstance(name, Residue)}
    return substitute(form, lambda name: number(known[name]) if name in known else variable(name)) if known else form


def about(form: Linear, names: Iterable[str]) -> bool:
    """Whether nothing but these names decides it."""
    return form.read <= set(names)


def _sum(terms: list[tuple[str, int]], constant: int) -> str:
    parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in terms]
    parts += [str(constant)] if constant > 0 or not parts else []
    return " + ".join(parts) if parts != [str(constant)] or constant >= 0 else "0"


def linear(terms: Mapping[str, int], constant: int = 0) -> Linear:
    """A form from a mapping, brought to its one spelling."""
    return Linear(tuple(sorted((name, factor) for name, factor in terms.items() if factor)), constant)


def variable(name: str) -> Linear:
    """The form that is one name."""
    return Linear(((name, 1),))


def number(value: int) -> Linear:
    """The form that is one number."""
    return Linear((), value)


def distinct(forms: Iterable[Linear]) -> tuple[Linear, ...]:
    """The forms in their order, each once."""
    return tuple(dict.fromkeys(forms))


Conjunction = tuple[Linear, ...]
"""Every form is at least zero."""
Dnf = tuple[Conjunction, ...]
"""One of the conjunctions holds."""


@dataclass(frozen=True, slots=True)
class Atom:
    """The form is at least zero."""

    form: Linear

    def __str__(self) -> str:
        return str(self.form)


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold; none is true."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of the parts holds; none is false."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Always:
    """The part holds now and ever after."""

    part: Formula


@dataclass(frozen=True, slots=True)
class Eventually:
    """The part holds now or at some time after."""

    part: Formula


Formula = Atom | And | Or | Always | Eventually
TRUE, FALSE = And(()), Or(())


def greater(a: Linear, b: Linear) -> Formula:
    """a > b."""
    return Atom(a - b - number(1))


def at_least(a: Linear, b: Linear) -> Formula:
    """a >= b."""
    return Atom(a - b)


def equal(a: Linear, b: Linear) -> Formula:
    """a == b."""
    return And((Atom(a - b), Atom(b - a)))


def negate(formula: Formula) -> Formula:
    """The formula that holds where this one does not."""
    match formula:
        case Atom(form):
            return Atom(-1 * form - number(1))
        case And(parts):
            return Or(tuple(negate(part) for part in parts))
        case Or(parts):
            return And(tuple(negate(part) for part in parts))
        case Always(part):
            return Eventually(negate(part))
        case Eventually(part):
            return Always(negate(part))


def is_state(formula: Formula) -> bool:
    """Whether the formula speaks of one moment only."""
    match formula:
        case Atom():
            return True
        case And(parts) | Or(parts):
            return all(is_state(part) for part in parts)
        case _:
            return False


Literal = Atom | Always | Eventually


def normal(formula: Formula) -> tuple[tuple[Literal, ...], ...]:
    """The disjunctive normal form, with temporal formulas left whole; BadInput if it would be huge."""
    match formula:
        case And(parts):
            choices = [normal(part) for part in parts]
            size = 1
            for choice in choices:
                size *= len(choice)
                if size > LARGEST_DNF:
                    raise BadInput(f"a condition has more than {LARGEST_DNF} cases; split it into several rules")
            return tuple(tuple(lit for part in picked for lit in part) for picked in product(*choices))
        case Or(parts):
            cases = tuple(case for part in parts for case in normal(part))
            if len(cases) > LARGEST_DNF:
                raise BadInput(f"a condition has more than {LARGEST_DNF} cases; split it into several rules")
            return cases
        case _:
            return ((formula,),)


def dnf(formula: Formula) -> Dnf:
    """The cases of a formula about one moment, without those that no natural numbers meet.

    >>> x = variable("x")
    >>> [list(map(str, case)) for case in dnf(negate(equal(x, number(0))))]
    [['x > 0']]
    """
    cases = (conjunction(lit.form for lit in case if isinstance(lit, Atom)) for case in normal(formula))
    return tuple(dict.fromkeys(case for case in cases if case is not None))


def conjunction(forms: Iterable[Linear]) -> Conjunction | None:
    """The forms that say something; None if natural numbers never meet one of them."""
    kept: dict[Linear, None] = {}
    for form in forms:
        if form.constant < 0 and all(factor <= 0 for _, factor in form.terms):
            return None
        if form.constant < 0 or any(factor < 0 for _, factor in form.terms):
            kept[form] = None
    return tuple(kept)


def holds(conditions: Iterable[Linear], values: Mapping[str, int]) -> bool:
    """Whether every form is at least zero at the point."""
    return all(form.value(values) >= 0 for form in conditions)


def holds_one(cases: Dnf, values: Mapping[str, int]) -> bool:
    """Whether one of the cases holds at the point."""
    return any(holds(case, values) for case in cases)


def substitute(form: Linear, into: Callable[[str], Linear]) -> Linear:
    """The form with every name replaced by a form."""
    result = number(form.constant)
    for name, factor in form.terms:
        result = result + factor * into(name)
    return result
