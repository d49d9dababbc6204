"""A row of agents that knows its neighbours can compute: a linear bounded automaton, run by meetings.

Every agent is a cell of the tape. Nobody knows at first who stands at an end, so all believe they stand at both, and
learn better when they meet a neighbour. A *wave* that starts at the left end wipes every cell and swallows every other
token on its way; at the right end it turns into a walk *home*, and there into the machine's *head*. Who learns that it
is not an end after all asks for a *restart*, which walks to the left end and becomes a new wave. A machine that accepts
sends *yes* along the row; one that rejects, or that guessed wrong, restarts. So in the long run there is one token, on
the true tape, and the row agrees on yes exactly when some run of the machine accepts: nondeterministic linear space.

>>> from assay.protocols.ordered_pp.swarm_ordered import check
>>> equal = Simulation(EQUAL_HALVES)
>>> [check(equal.rule, equal.row(word), equal.output).output for word in ("ab", "ba", "aab")]
[True, False, False]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from assay.protocols.ordered_pp.swarm_ordered import NEXT, PREVIOUS

Move = tuple[str, str, int]  # next state of the machine, symbol to write, -1 or 1
YES, NO = ("yes", "", 0), ("no", "", 0)


@dataclass(frozen=True)
class Machine:
    """A linear bounded automaton. ``step(state, symbol, first, last)`` gives its moves; several are a guess."""

    name: str
    alphabet: str
    start: str
    step: Callable[[str, str, bool, bool], list[Move]]
    member: Callable[[str], bool]
    """What it should decide, for those who check."""


@dataclass(frozen=True)
class Cell:
    """An agent: its letter, the symbol on its cell, what it believes about its place, its token, its output."""

    letter: str
    symbol: str
    first: bool = True
    last: bool = True
    token: tuple[str, str] = ("wave", "")
    output: bool = False


_NOTHING, _WAVE, _RESTART = ("", ""), ("wave", ""), ("restart", "")


@dataclass(frozen=True)
class Simulation:
    """The protocol of a machine: two-sided, and using the successor relation alone."""

    machine: Machine

    def row(self, word: str) -> list[Cell]:
        """The agents at the start."""
        for letter in word:
            if letter not in self.machine.alphabet:
                raise ValueError(f"the letter {letter!r} is not in the alphabet {self.machine.alphabet!r}")
        return [Cell(letter, letter) for letter in word]

    @staticmethod
    def output(cell: Cell) -> bool:
        """What an agent says."""
        return cell.output

    def rule(self, p: Cell, q: Cell, where: int) -> tuple[Cell, Cell] | None:
        """Neighbours meet; who takes the first step is the coin for the machine's guesses."""
        if where == NEXT:
            return self._meet(p, q, 0)
        if where == PREVIOUS:
            left, right = self._meet(q, p, 1)
            return right, left
        return None

    def _meet(self, x: Cell, y: Cell, coin: int) -> tuple[Cell, Cell]:
        """x stands left of y."""
        if x.last or y.first:
            token = _RESTART if x.last and x.token != _WAVE else x.token
            kept = _NOTHING if y.first and y.token == _WAVE else y.token
            return replace(x, last=False, token=token), replace(y, first=False, token=kept)
        if x.token == _WAVE:
            return replace(x, token=_NOTHING), _wiped(y)
        if y.token == _WAVE:
            return x, replace(y, token=("home", "")) if y.last else y
        if x.token != _NOTHING and y.token != _NOTHING:  # one of them is a leftover of a false start
            return replace(x, token=_RESTART), replace(y, token=_NOTHING)
        if x.token != _NOTHING:
            return self._from_left(x, y, coin)
        if y.token != _NOTHING:
            return self._from_right(x, y, coin)
        return x, y

    def _from_left(self, x: Cell, y: Cell, coin: int) -> tuple[Cell, Cell]:
        match x.token:
            case ("restart", _):
                return (_wiped(x) if x.first else x), y
            case ("home", _):
                return (replace(x, token=("head", self.machine.start)) if x.first else x), y
            case ("yes", "left"):
                return replace(x, token=("yes", "right") if x.first else x.token, output=True), y
            case ("yes", _):
                token = _NOTHING if y.last else x.token
                return replace(x, token=_NOTHING, output=True), replace(y, token=token, output=True)
        cell, moved = self._compute(x, coin, 1)
        return cell, replace(y, token=moved) if moved != _NOTHING else y

    def _from_right(self, x: Cell, y: Cell, coin: int) -> tuple[Cell, Cell]:
        match y.token:
            case ("restart" | "home", _):
                return replace(x, token=y.token), replace(y, token=_NOTHING)
            case ("yes", "left"):
                return replace(x, token=y.token, output=True), replace(y, token=_NOTHING, output=True)
            case ("yes", _):
                return x, y
        cell, moved = self._compute(y, coin, -1)
        return (replace(x, token=moved) if moved != _NOTHING else x), cell

    def _compute(self, cell: Cell, coin: int, side: int) -> tuple[Cell, tuple[str, str]]:
        """The head's step, if it goes to this side or nowhere; the cell after it, and the token that moves on."""
        moves = self.machine.step(cell.token[1], cell.symbol, cell.first, cell.last)
        state, symbol, step = moves[coin % len(moves)]
        if state == "yes":
            return replace(cell, token=("yes", "left")), _NOTHING
        if state == "no" or (step < 0 and cell.first) or (step > 0 and cell.last):
            return replace(cell, token=_RESTART), _NOTHING
        if step != side:
            return cell, _NOTHING
        return replace(cell, symbol=symbol, token=_NOTHING), ("head", state)


def _wiped(cell: Cell) -> Cell:
    return replace(cell, symbol=cell.letter, token=_WAVE, output=False)


# ----------------------------------------------------------------------------------- three machines


def _equal_halves(state: str, symbol: str, first: bool, last: bool) -> list[Move]:
    """Cross out the leftmost a and the rightmost b, again and again."""
    match state, symbol:
        case "a?", "a":
            return [("right", "x", 1)]
        case "a?", "x":
            return [YES]
        case "right", "x":
            return [("b?", "x", -1)]
        case "right", _ if not last:
            return [("right", symbol, 1)]
        case (("right" | "b?"), "b"):
            return [("left", "x", -1)]
        case "left", "x":
            return [("a?", "x", 1)]
        case "left", _:
            return [("left", symbol, -1)]
    return [NO]


def _copy(state: str, symbol: str, first: bool, last: bool) -> list[Move]:
    """Guess where the second half begins (capitals mark it), then cross out equal letters of both, # and %."""
    end_of_mark = ("back", symbol.upper(), -1) if last else ("mark", symbol.upper(), 1)
    match state:
        case "guess":
            return [("guess", symbol, 1)] if first else [end_of_mark, NO if last else ("guess", symbol, 1)]
        case "mark":
            return [end_of_mark]
        case "back" if symbol == "#":
            return [("take", "#", 1)]
        case "back" if not first:
            return [("back", symbol, -1)]
        case "take" | "back":
            if symbol.islower():
                return [(symbol, "#", 1)]
            return [YES if last else ("verify", "%", 1)] if symbol == "%" else [NO]
        case "verify":
            return [YES if last else ("verify", "%", 1)] if symbol == "%" else [NO]
    if symbol.isupper():  # the state is the letter that is carried over
        return [("back", "%", -1)] if symbol.lower() == state else [NO]
    return [(state, symbol, 1)]


def _power_of_two(state: str, symbol: str, first: bool, last: bool) -> list[Move]:
    """Sweep and cross out every other a, until a sweep finds just the first one."""
    if state == "back":
        return [("one", symbol, 1)] if first else [("back", symbol, -1)]
    if first:
        return [("one", symbol, 1)]
    if symbol == "a":
        state, symbol = ("odd", "a") if state == "even" else ("even", "x")
    if not last:
        return [(state, symbol, 1)]
    return {"one": [YES], "even": [("back", symbol, -1)], "odd": [NO]}[state]


EQUAL_HALVES = Machine("aⁿbⁿ", "ab", "a?", _equal_halves, lambda w: w == "a" * (len(w) // 2) + "b" * (len(w) // 2))
COPY = Machine("ww", "ab", "guess", _copy, lambda w: len(w) % 2 == 0 and w[: len(w) // 2] == w[len(w) // 2 :])
POWER_OF_TWO = Machine("a^2ⁿ", "a", "one", _power_of_two, lambda w: len(w) & (len(w) - 1) == 0)
MACHINES = {"equal-halves": EQUAL_HALVES, "copy": COPY, "power-of-two": POWER_OF_TWO}
