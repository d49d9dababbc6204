"""Regular languages: a regular expression, its smallest automaton, its syntactic monoid, and whether that is in DA.

A language is *unambiguous star-free* when its syntactic monoid lies in the variety DA. The same class has many names:
first-order logic with two variables and order, partially ordered two-way deterministic automata, Boolean combinations
of rankers. It is also what one-sided population protocols recognise when agents can compare positions.

>>> language("a.*b").in_da, language("(ab)*").in_da
(True, False)

- Schützenberger, "Sur le produit de concaténation non ambigu", Semigroup Forum 13, 1976.
- Tesson, Thérien, "Diamonds are forever: the variety DA", 2002.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

LARGEST = 2000  # states of an automaton, elements of a monoid

Node = tuple[str, tuple["Node", ...], str]  # kind, parts, letters


@dataclass(frozen=True)
class Automaton:
    """A complete deterministic automaton: ``step[state][i]`` reads letter ``alphabet[i]``; state 0 is the start."""

    alphabet: str
    step: tuple[tuple[int, ...], ...]
    accepting: frozenset[int]

    def accepts(self, word: str) -> bool:
        """Whether the word is in the language.

        >>> language("a.*b").automaton.accepts("aab")
        True
        """
        state = 0
        for letter in word:
            place = self.alphabet.find(letter)
            if place < 0:
                raise ValueError(f"the word {word!r} has the letter {letter!r}; the alphabet is {self.alphabet!r}")
            state = self.step[state][place]
        return state in self.accepting


@dataclass(frozen=True)
class Language:
    """A regular language with its smallest automaton."""

    name: str
    automaton: Automaton

    @property
    def alphabet(self) -> str:
        """Its letters."""
        return self.automaton.alphabet

    def __contains__(self, word: str) -> bool:
        return self.automaton.accepts(word)

    @cached_property
    def monoid(self) -> Monoid:
        """The syntactic monoid: what words do to the states of the smallest automaton."""
        return _monoid(self.automaton)

    @cached_property
    def in_da(self) -> bool:
        """Whether the syntactic monoid is in DA."""
        return self.witness is None

    @cached_property
    def witness(self) -> Witness | None:
        """Why the language is not in DA: None if it is."""
        return _witness(self)

    def words(self, shortest: int, longest: int) -> Iterator[str]:
        """All words over the alphabet of these lengths.

        >>> list(language("a|b").words(1, 1))
        ['a', 'b']
        """
        for length in range(shortest, longest + 1):
            for letters in product(self.alphabet, repeat=length):
                yield "".join(letters)


@dataclass(frozen=True)
class Witness:
    """Words that break the identity of DA: (xyz)ᵏ and (xyz)ᵏ y (xyz)ᵏ act differently, in this context, for all k ≥ 1.

    Exactly one of ``inside(k)`` and ``outside(k)`` is in the language: ``block`` = xyz acts as an idempotent.
    """

    block: str
    middle: str
    before: str
    after: str

    def inside(self, repeats: int) -> str:
        """The word without the middle."""
        return self.before + self.block * repeats + self.after

    def outside(self, repeats: int) -> str:
        """The word with it."""
        block = self.block * repeats
        return self.before + block + self.middle + block + self.after


# ---------------------------------------------------------------------------------- from an expression


def language(expression: str, alphabet: str = "") -> Language:
    """The language of a regular expression: letters, ``.``, ``[ab]``, ``|``, ``*``, ``+``, ``?`` and brackets.

    The alphabet is that of the expression, and what ``alphabet`` adds; ``.`` stands for any of it.

    >>> "aba" in language("a.*", alphabet="ab"), "" in language("a*")
    (True, True)
    >>> language("(a")
    Traceback (most recent call last):
    ValueError: the expression '(a' has no ')' for the '(' at place 1
    """
    letters = sorted({c for c in expression if c not in ".[]|*+?()"} | set(alphabet))
    for letter in letters:
        if not letter.isalnum():
            raise ValueError(f"the letter {letter!r} is not a letter or digit")
    parsed = _Parser(expression, "".join(letters)).whole()  # first: what is no expression lacks more than letters
    if not letters:
        raise ValueError(f"the expression {expression!r} names no letter; give an alphabet")
    nfa = _Nfa()
    start, end = nfa.build(parsed)
    return Language(expression, minimal(nfa.determinise(start, end, "".join(letters))))


class _Parser:
    """Recursive descent over an expression; a place in an error counts from 1."""

    def __init__(self, text: str, alphabet: str) -> None:
        self.text, self.alphabet, self.at = text, alphabet, 0

    def whole(self) -> Node:
        node = self.union()
        if self.at < len(self.text):
            raise ValueError(f"the expression {self.text!r} has a ')' without '(' at place {self.at + 1}")
        return node

    def union(self) -> Node:
        parts = [self.chain()]
        while self.at < len(self.text) and self.text[self.at] == "|":
            self.at += 1
            parts.append(self.chain())
        return ("union", tuple(parts), "")

    def chain(self) -> Node:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.repeated())
        return ("chain", tuple(parts), "")

    def repeated(self) -> Node:
        node = self.atom()
        while self.at < len(self.text) and self.text[self.at] in "*+?":
            node = (self.text[self.at], (node,), "")
            self.at += 1
        return node

    def atom(self) -> Node:
        opened, symbol = self.at, self.text[self.at]
        self.at += 1
        if symbol == "(":
            node = self.union()
            if self.at >= len(self.text):
                raise ValueError(f"the expression {self.text!r} has no ')' for the '(' at place {opened + 1}")
            self.at += 1
            return node
        if symbol == "[":
            end = self.text.find("]", self.at)
            letters = self.text[self.at : end]
            if end < 0 or not letters or not letters.isalnum():
                raise ValueError(f"the expression {self.text!r} needs letters and ']' after the '[' at {opened + 1}")
            self.at = end + 1
            return ("letters", (), letters)
        if symbol in "*+?]":
            raise ValueError(f"the expression {self.text!r} has a {symbol!r} with nothing before it at {opened + 1}")
        return ("letters", (), self.alphabet if symbol == "." else symbol)


class _Nfa:
    """Thompson's construction: every part has one start and one end."""

    def __init__(self) -> None:
        self.empty: list[set[int]] = []
        self.reads: list[list[tuple[str, int]]] = []

    def new(self) -> int:
        self.empty.append(set())
        self.reads.append([])
        return len(self.empty) - 1

    def build(self, node: Node) -> tuple[int, int]:
        kind, parts, letters = node
        start, end = self.new(), self.new()
        if kind == "letters":
            self.reads[start] += [(letter, end) for letter in letters]
        elif kind == "chain":
            at = start
            for part in parts:
                begin, stop = self.build(part)
                self.empty[at].add(begin)
                at = stop
            self.empty[at].add(end)
        else:
            for part in parts:
                begin, stop = self.build(part)
                self.empty[start].add(begin)
                self.empty[stop].add(end)
                if kind in "*+":
                    self.empty[stop].add(begin)
            if kind in ("*", "?"):
                self.empty[start].add(end)
        return start, end

    def closure(self, states: set[int]) -> frozenset[int]:
        found, todo = set(states), list(states)
        while todo:
            for follower in self.empty[todo.pop()] - found:
                found.add(follower)
                todo.append(follower)
        return frozenset(found)

    def determinise(self, start: int, end: int, alphabet: str) -> Automaton:
        first = self.closure({start})
        number, order, step = {first: 0}, [first], []
        for states in order:
            row = []
            for letter in alphabet:
                after = self.closure({to for s in states for read, to in self.reads[s] if read == letter})
                if after not in number:
                    number[after] = len(order)
                    order.append(after)
                row.append(number[after])
            step.append(tuple(row))
            if len(order) > LARGEST:
                raise ValueError(f"the expression needs more than {LARGEST} states; a smaller one expected")
        return Automaton(alphabet, tuple(step), frozenset(i for i, states in enumerate(order) if end in states))


def minimal(automaton: Automaton) -> Automaton:
    """The smallest automaton of the same language (Moore's refinement); unreachable states are dropped first.

    >>> len(minimal(language("a*|a*a*").automaton).step)
    1
    """
    seen, order = {0}, [0]
    for state in order:
        for follower in automaton.step[state]:
            if follower not in seen:
                seen.add(follower)
                order.append(follower)
    block = {state: int(state in automaton.accepting) for state in order}
    while True:
        signature = {state: (block[state], *(block[f] for f in automaton.step[state])) for state in order}
        numbers: dict[tuple[int, ...], int] = {}
        refined = {state: numbers.setdefault(signature[state], len(numbers)) for state in order}
        if len(numbers) == len(set(block.values())):
            break
        block = refined
    step: dict[int, tuple[int, ...]] = {}
    for state in order:
        step.setdefault(refined[state], tuple(refined[f] for f in automaton.step[state]))
    accepting = frozenset(refined[state] for state in order if state in automaton.accepting)
    return Automaton(automaton.alphabet, tuple(step[i] for i in range(len(step))), accepting)


# ------------------------------------------------------------------------------------------ the monoid


@dataclass(frozen=True)
class Monoid:
    """A transition monoid: maps of states, each with its shortest word; element 0 is the identity."""

    elements: tuple[tuple[int, ...], ...]
    words: tuple[str, ...]
    number: Mapping[tuple[int, ...], int]

    def times(self, a: int, b: int) -> int:
        """First a, then b."""
        first, second = self.elements[a], self.elements[b]
        return self.number[tuple(second[state] for state in first)]

    def is_idempotent(self, a: int) -> bool:
        """Whether a·a = a."""
        return self.times(a, a) == a


def _monoid(automaton: Automaton) -> Monoid:
    letters = [tuple(row[i] for row in automaton.step) for i in range(len(automaton.alphabet))]
    identity = tuple(range(len(automaton.step)))
    elements, words, number = [identity], [""], {identity: 0}
    for index, element in enumerate(elements):  # grows as it goes
        for letter, act in zip(automaton.alphabet, letters, strict=True):
            after = tuple(act[state] for state in element)
            if after not in number:
                number[after] = len(elements)
                elements.append(after)
                words.append(words[index] + letter)
                if len(elements) > LARGEST:
                    raise ValueError(f"the syntactic monoid has more than {LARGEST} elements; a smaller one expected")
    return Monoid(tuple(elements), tuple(words), number)


def _below(monoid: Monoid, letters: list[int], top: int) -> dict[int, tuple[str, str]]:
    """All x·top·z, each with words for some x and z."""
    found = {top: ("", "")}
    todo = [top]
    for element in todo:
        before, after = found[element]
        for letter in letters:
            for new, context in (
                (monoid.times(letter, element), (monoid.words[letter] + before, after)),
                (monoid.times(element, letter), (before, after + monoid.words[letter])),
            ):
                if new not in found:
                    found[new] = context
                    todo.append(new)
    return found


def _witness(language: Language) -> Witness | None:
    """The identity (xyz)^ω y (xyz)^ω = (xyz)^ω, tried for each y and each idempotent that y divides."""
    monoid = language.monoid
    letters = [monoid.number[tuple(row[i] for row in language.automaton.step)] for i in range(len(language.alphabet))]
    for y in range(len(monoid.elements)):
        for e, (x, z) in _below(monoid, letters, y).items():
            if not monoid.is_idempotent(e):
                continue
            back = monoid.times(monoid.times(e, y), e)
            if back != e:
                before, after = _context(language, monoid.elements[e], monoid.elements[back])
                return Witness(x + monoid.words[y] + z, monoid.words[y], before, after)
    return None


def _context(language: Language, one: tuple[int, ...], other: tuple[int, ...]) -> tuple[str, str]:
    """Words around two different elements such that only one of the two results is in the language."""
    automaton = language.automaton
    reach = {0: ""}
    for state in list(_closure(automaton, reach)):
        if one[state] != other[state]:
            return reach[state], _apart(automaton, one[state], other[state])
    raise AssertionError("two different maps of reachable states agree on all of them")


def _closure(automaton: Automaton, reach: dict[int, str]) -> dict[int, str]:
    todo = list(reach)
    for state in todo:
        for letter, follower in zip(automaton.alphabet, automaton.step[state], strict=True):
            if follower not in reach:
                reach[follower] = reach[state] + letter
                todo.append(follower)
    return reach


def _apart(automaton: Automaton, p: int, q: int) -> str:
    """A word that is accepted from exactly one of two states of a minimal automaton."""
    seen = {(p, q): ""}
    todo = [(p, q)]
    for a, b in todo:
        if (a in automaton.accepting) != (b in automaton.accepting):
            return seen[a, b]
        for i, letter in enumerate(automaton.alphabet):
            pair = automaton.step[a][i], automaton.step[b][i]
            if pair not in seen:
                seen[pair] = seen[a, b] + letter
                todo.append(pair)
    raise AssertionError("two states of a minimal automaton accept the same words")
