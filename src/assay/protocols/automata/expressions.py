"""The words of a `.ta` file, each with its line and column, and its expressions.

Expressions are arithmetic, comparisons, propositions and temporal operators, by precedence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from assay.protocols.automata.linear import (
    FALSE,
    TRUE,
    Always,
    And,
    Atom,
    Eventually,
    Formula,
    Linear,
    Or,
    negate,
    number,
    residue,
)
from assay.record.errors import BadInput

LONGEST_NUMBER = 9  # digits

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*)|(?P<open>/\*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9]+)"
    r"|(?P<sign>:=|->|<>|\[\]|&&|\|\||==|!=|>=|<=|[-+*/()\[\]{}<>!,;:'])"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number or sign and where it stands; the end of the file is the empty word."""

    kind: str
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Source:
    """A text with a name, for errors that say where."""

    name: str
    text: str

    def error(self, offset: int, message: str) -> BadInput:
        """The error at an offset: name:line:column and what would be right."""
        before = self.text[:offset]
        line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
        return BadInput(f"{self.name}:{line}:{column}: {message}")

    def tokens(self) -> Iterator[Token]:
        """The words in their order, then the end."""
        position = 0
        while position < len(self.text):
            found = _TOKEN.match(self.text, position)
            if found is None:
                raise self.error(position, f"unexpected character {self.text[position]!r}")
            kind = str(found.lastgroup)
            if kind == "open":
                end = self.text.find("*/", found.end())
                if end < 0:
                    raise self.error(position, "this comment is never closed with */")
                position = end + 2
                continue
            if kind == "number" and len(found.group()) > LONGEST_NUMBER:
                raise self.error(position, f"a number of more than {LONGEST_NUMBER} digits")
            if kind != "space":
                yield Token(kind, found.group(), position)
            position = found.end()
        yield Token("end", "", len(self.text))


DEEPEST = 64  # changes between "and", "or" and temporal operators; keeps walks off the interpreter's own limit
PRECEDENCE = {
    "->": 1,
    "||": 2,
    "&&": 3,
    "==": 5,
    "!=": 5,
    ">=": 5,
    "<=": 5,
    ">": 5,
    "<": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
}
LARGEST_DIVISOR = 1_000_000
UNARY = 4  # !, [] and <> bind tighter than && and looser than a comparison: []x == 0 is [](x == 0)


class Words:
    """The tokens of a file and a place among them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = list(source.tokens())
        self.place = 0

    @property
    def here(self) -> Token:
        """The next token."""
        return self.tokens[self.place]

    def error(self, message: str, token: Token | None = None) -> Exception:
        """An error at a token, the next one unless told."""
        return self.source.error((token or self.here).offset, message)

    def take(self) -> Token:
        """The next token, consumed; the end stays."""
        token = self.here
        self.place += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Whether the next token is this one, which is then consumed."""
        if self.here.text != text or self.here.kind == "end":
            return False
        self.place += 1
        return True

    def expect(self, text: str, after: str) -> Token:
        """Consume this token or say that it is missing."""
        if self.here.text != text or self.here.kind == "end":
            raise self.error(f"expected '{text}' {after}, found {self.shown}")
        return self.take()

    def name(self, what: str) -> Token:
        """Consume a name."""
        if self.here.kind != "name":
            raise self.error(f"expected {what}, found {self.shown}")
        return self.take()

    @property
    def shown(self) -> str:
        """The next token for an error message."""
        return f"'{self.here.text}'" if self.here.text else "the end of the file"


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number: a form over a divisor that always divides it, and multiples of quotients of what moves.

    Parameters never change, so their quotient is a form with a residue in it. A quotient of counters or processes is
    kept as it is, (form, divisor) and how often it counts, until a comparison says what it asks for.
    """

    form: Linear
    over: int = 1
    quotients: tuple[tuple[tuple[Linear, int], int], ...] = ()
    moves: bool = False  # whether the form has names that change along a run

    def __add__(self, other: Number) -> Number:
        counted = dict(self.quotients)
        for quotient, times in other.quotients:
            counted[quotient] = counted.get(quotient, 0) + times
        kept = tuple((quotient, times) for quotient, times in counted.items() if times)
        summed = other.over * self.form + self.over * other.form
        return _reduced(summed, self.over * other.over, kept, self.moves or other.moves)

    def __rmul__(self, factor: int) -> Number:
        scaled = tuple((quotient, factor * times) for quotient, times in self.quotients if factor)
        return _reduced(factor * self.form, self.over, scaled, self.moves)

    @property
    def constant(self) -> int | None:
        """The number it is, if it names nothing."""
        return None if self.form.terms or self.quotients or self.over != 1 else self.form.constant

    def divided(self, by: int) -> Number:
        """The quotient, rounded down; ValueError where several quotients of what moves would be divided again."""
        form, over = self.form, self.over
        if self.quotients:
            # The floor of (floor(a/d) + whole)/e is that of (a/d + whole)/e.
            ((inner, divisor), times), *others = self.quotients
            if others or times != 1:
                raise ValueError
            form, over = over * inner + divisor * form, over * divisor
        if self.moves or self.quotients:
            return Number(Linear(), 1, (((form, over * by), 1),))
        return _reduced(form - residue(form, over * by), over * by, (), moves=False)

    def at_least_zero(self) -> Linear:
        """The form that is at least zero exactly where the number is; ValueError where no single form is."""
        if not self.quotients:
            return self.form
        ((inner, divisor), times), *others = self.quotients
        if others or (abs(times) > 1 and self.moves):
            raise ValueError
        rest = Number(self.form, self.over)
        limit = rest if abs(times) == 1 else rest.divided(abs(times))
        if times > 0:  # floor(a/d) >= -limit, which is whole: a >= -limit * d
            return limit.over * inner + divisor * limit.form
        return divisor * limit.form - limit.over * inner + number(limit.over * (divisor - 1))


def _reduced(form: Linear, over: int, quotients: tuple[tuple[tuple[Linear, int], int], ...], moves: bool) -> Number:
    common = gcd(over, form.constant, *(factor for _, factor in form.terms))
    small = Linear(tuple((name, factor // common) for name, factor in form.terms), form.constant // common)
    return Number(small, over // common, quotients, moves)


Value = Number | Formula


def formula(words: Words, scope: Mapping[str, Number]) -> Formula:
    """A proposition, temporal or not; a whole number stands for true if it is not zero."""
    return _formula(words, parse(words, scope))


def number_of(words: Words, scope: Mapping[str, Number]) -> Number:
    """An arithmetic expression."""
    return _number(words, parse(words, scope))


@dataclass(frozen=True, slots=True)
class Operand:
    """A value, where it begins, and how often "and", "or" and temporal operators change inside it."""

    value: Value
    begun: Token
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Operator:
    """A sign that waits for what comes after it; an opening bracket waits with no strength at all."""

    sign: Token
    strength: int
    prefix: bool = False


def parse(words: Words, scope: Mapping[str, Number]) -> Operand:
    """An expression. Brackets wait on a stack of our own: published files nest them by the hundred."""
    operands: list[Operand] = []
    waiting: list[Operator] = []
    while True:
        operands.append(_operand(words, scope, waiting))
        while words.here.text == ")" and any(one.sign.text == "(" for one in waiting):
            _settle(words, operands, waiting, 1)
            waiting.pop()
            words.take()
        strength = PRECEDENCE.get(words.here.text, 0)
        if not strength:
            break
        # An implication associates to the right, everything else to the left.
        _settle(words, operands, waiting, strength + (words.here.text == "->"))
        waiting.append(Operator(words.take(), strength))
    _settle(words, operands, waiting, 1)
    if waiting:
        raise words.error(f"expected ')' to close the bracket, found {words.shown}")
    return operands[-1]


def _operand(words: Words, scope: Mapping[str, Number], waiting: list[Operator]) -> Operand:
    """The next number or name; what stands before it, brackets and prefixes, is put on the stack."""
    while True:
        token = words.take()
        match token.kind, token.text:
            case "number", digits:
                return Operand(Number(number(int(digits))), token)
            case "name", "true" | "false":
                return Operand(TRUE if token.text == "true" else FALSE, token)
            case "name", name:
                if name not in scope:
                    raise words.error(f"unknown name '{name}'; known here: {', '.join(sorted(scope)) or 'none'}", token)
                return Operand(scope[name], token)
            case "sign", "(":
                waiting.append(Operator(token, 0))
            case "sign", "-" | "!" | "[]" | "<>":
                waiting.append(Operator(token, PRECEDENCE["*"] if token.text == "-" else UNARY, prefix=True))
            case _:
                found = f"expected an expression, found '{token.text}'" if token.text else "the file ends here"
                raise words.error(found, token)


def _settle(words: Words, operands: list[Operand], waiting: list[Operator], loosest: int) -> None:
    """Apply what waits and binds at least as tightly, back to the last open bracket."""
    while waiting and waiting[-1].strength >= loosest + (waiting[-1].prefix and loosest > 1) and waiting[-1].strength:
        operator = waiting.pop()
        last = operands.pop()
        if operator.prefix:
            made = _prefixed(words, operator.sign, last)
        else:
            made = _apply(words, operator.sign, operands.pop(), last)
        if made.depth > DEEPEST:
            raise words.error(f"conditions change deeper than {DEEPEST} times; write it flatter", made.begun)
        operands.append(made)


def _prefixed(words: Words, sign: Token, operand: Operand) -> Operand:
    if sign.text == "-":
        return Operand(-1 * _number(words, operand), sign)
    made = {"!": negate, "[]": Always, "<>": Eventually}[sign.text](_formula(words, operand))
    return Operand(made, sign, operand.depth + 1)


def _joined(kind: type[And] | type[Or], one: tuple[Formula, int], two: tuple[Formula, int], begun: Token) -> Operand:
    """Chains stay flat, so that later walks are no deeper than they must be."""
    parts: list[Formula] = []
    depth = 0
    for part, own in (one, two):
        same = isinstance(part, kind) and bool(part.parts)
        parts += part.parts if same and isinstance(part, And | Or) else [part]
        depth = max(depth, own if same else own + 1)
    return Operand(kind(tuple(parts)), begun, depth)


def _apply(words: Words, sign: Token, one: Operand, two: Operand) -> Operand:
    if sign.text in ("->", "||", "&&"):
        a, b = _formula(words, one), _formula(words, two)
        left = negate(a) if sign.text == "->" else a
        return _joined(And if sign.text == "&&" else Or, (left, one.depth), (b, two.depth), one.begun)
    x, y = _number(words, one), _number(words, two)
    match sign.text:
        case "*":
            factor, scaled = (x.constant, y) if x.constant is not None else (y.constant, x)
            if factor is None:
                raise words.error("a product of two variables is not linear; one side must be a number", sign)
            return Operand(factor * scaled, one.begun)
        case "/":
            return Operand(_quotient(words, sign, x, y.constant), one.begun)
        case "+" | "-":
            return Operand(x + (y if sign.text == "+" else -1 * y), one.begun)
    try:
        return Operand(_compared(sign, x + -1 * y), one.begun)
    except ValueError:
        raise words.error("one comparison takes one quotient of what changes along a run; split it", sign) from None


def _quotient(words: Words, sign: Token, x: Number, by: int | None) -> Number:
    if by is None or by < 1 or x.over * by > LARGEST_DIVISOR:
        raise words.error(f"divide by a whole number from 1 to {LARGEST_DIVISOR:,}", sign)
    try:
        return x.divided(by)
    except ValueError:
        raise words.error("a sum of quotients of what changes along a run cannot be divided again", sign) from None


def _compared(sign: Token, difference: Number) -> Formula:
    one = Number(number(1))
    match sign.text:
        case "==":
            return _equal(difference)
        case "!=":
            return negate(_equal(difference))
        case ">=":
            return Atom(difference.at_least_zero())
        case "<=":
            return Atom((-1 * difference).at_least_zero())
        case ">":
            return Atom((difference + -1 * one).at_least_zero())
    return Atom((-1 * difference + -1 * one).at_least_zero())


def _equal(difference: Number) -> Formula:
    return And((Atom(difference.at_least_zero()), Atom((-1 * difference).at_least_zero())))


def _number(words: Words, operand: Operand) -> Number:
    if not isinstance(operand.value, Number):
        raise words.error("expected a number here, this is a condition", operand.begun)
    return operand.value


def _formula(words: Words, operand: Operand) -> Formula:
    value = operand.value
    if not isinstance(value, Number):
        return value
    if value.constant is None:
        raise words.error("expected a condition here, this is a number; compare it with something", operand.begun)
    return TRUE if value.constant else FALSE
