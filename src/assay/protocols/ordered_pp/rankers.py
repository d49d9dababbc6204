"""Rankers: places in a word that are found by walking, and which languages they tell apart.

A ranker is a chain of steps. ``>a`` walks to the nearest a on the right, ``<b`` to the nearest b on the left; the first
step comes in from the end of the word it walks away from. So ``>a<b`` is the last b before the first a. On a word it is
a place, or undefined. A language is in DA exactly if membership is a Boolean function of which rankers are defined.

>>> place((">a", "<b"), "cbcbcab"), place((">a", "<b"), "aab")
(3, None)
>>> decision = decide(language("a.*", "ab"))
>>> decision.rankers, decision.accepts("ab"), decision.accepts("ba")
((('>a',), ('>a', '<b')), True, False)

- Schwentick, Thérien, Vollmer, "Partially-ordered two-way automata: a new characterization of DA", DLT 2001.
- Weis, Immerman, "Structure theorem and strict alternation hierarchy for FO² on words", CSL 2007 (the name).

`compile_language` makes a population protocol of a language of DA: agents find the language's rankers together, by
watching one another.

Each agent has a letter of the word and a place in the row. For each step of each ranker it plays a role: it *claims* to
be the place, it is a *ghost* (it doubts that there is one), or none; and it believes to stand left of the place, right
of it, at it, or that there is none. A claim is given up to a better placed one and becomes a ghost when its ground is
gone; a ghost yields to a claim. Somebody always claims or haunts, so a lost claim can be made again. Only the observer
changes, and it sees no more than the other's role and on which side the other stands.

>>> from assay.protocols.ordered_pp.swarm_ordered import check
>>> protocol = compile_language(language("a.*", "ab"))
>>> [check(protocol.rule, protocol.row(word), protocol.output).output for word in ("ab", "ba", "bab")]
[True, False, False]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from assay.protocols.ordered_pp.languages import Language, language
from assay.protocols.ordered_pp.swarm_ordered import Rule, Table, check, one_sided

Ranker = tuple[str, ...]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

__all__ = ["Decision", "Ranker", "all_rankers", "decide", "defined", "language", "place"]

DEEPEST = 4
_DONE, _LOST = -1, -2  # how a walk may end besides leaving a prefix on the right


@lru_cache(maxsize=1 << 20)
def place(ranker: Ranker, word: str) -> int | None:
    """Where the ranker ends on the word, counted from 0."""
    at: int | None = None
    for step in ranker:
        right, letter = step[0] == ">", step[1]
        if right:
            at = word.find(letter, 0 if at is None else at + 1)
        else:
            at = word.rfind(letter, 0, len(word) if at is None else at)
        if at < 0:
            return None
    return at


def all_rankers(alphabet: str, depth: int) -> Iterator[Ranker]:
    """All rankers of at most so many steps, short ones first.

    >>> sum(1 for _ in all_rankers("ab", 2))
    20
    """
    steps = [side + letter for letter in alphabet for side in "><"]
    for length in range(1, depth + 1):
        yield from product(steps, repeat=length)


@dataclass(frozen=True)
class _Scan:
    """What a prefix of a word does to a walk: where it leaves from the start, and if it comes back from the right."""

    start: int
    returns: tuple[int, ...]


def _empty(ranker: Ranker) -> _Scan:
    return _Scan(0 if ranker[0][0] == ">" else _LOST, (_LOST,) * len(ranker))


@lru_cache(maxsize=1 << 16)
def _append(ranker: Ranker, scan: _Scan, letter: str) -> _Scan:
    """The same for the prefix and one more letter: the ranker as a two-way automaton, made one-way."""

    def land(step: int) -> int:
        """A walk that is at ``step`` stands on the new letter; with which step does it leave to the right?"""
        if ranker[step][1] == letter:
            step += 1
            if step == len(ranker):
                return _DONE
        if ranker[step][0] == ">":
            return step
        back = scan.returns[step]
        return back if back < 0 else land(back)

    start = scan.start if scan.start < 0 else land(scan.start)
    returns = tuple(land(i) if ranker[i][0] == "<" else _LOST for i in range(len(ranker)))
    return _Scan(start, returns)


def _is_defined(ranker: Ranker, scan: _Scan) -> bool:
    return (scan.start if ranker[0][0] == ">" else scan.returns[0]) == _DONE


def defined(ranker: Ranker, word: str) -> bool:
    """Whether the ranker is defined on the word, read once from left to right.

    >>> defined((">a", "<b"), "ba"), defined((">a", "<b"), "ab")
    (True, False)
    """
    scan = _empty(ranker)
    for letter in word:
        scan = _append(ranker, scan, letter)
    return _is_defined(ranker, scan)


# --------------------------------------------------------------------------- a language from its rankers


@dataclass(frozen=True)
class Decision:
    """Membership as a function of which rankers are defined; proved for all words, not for some."""

    language: Language
    rankers: tuple[Ranker, ...]
    accepted: frozenset[tuple[bool, ...]]

    def accepts(self, word: str) -> bool:
        """Membership by the rankers alone."""
        return tuple(place(ranker, word) is not None for ranker in self.rankers) in self.accepted


class TooDeepError(ValueError):
    """A language of DA whose rankers are longer than those that are tried."""


def decide(wanted: Language, deepest: int = DEEPEST) -> Decision:
    """A small set of rankers that decides a language of DA.

    Rankers are picked to tell apart the words seen so far, then the choice is checked on the product of all automata;
    a word on which it errs joins the words seen. Raises ValueError for a language outside DA, TooDeepError if it needs
    more than ``deepest`` steps.
    """
    if wanted.witness is not None:
        x = wanted.witness
        raise ValueError(
            f"{wanted.name!r} is not in DA, so no one-sided protocol with order recognises it: ({x.block})^k and "
            f"({x.block})^k {x.middle} ({x.block})^k differ in it for every k"
        )
    for depth in range(1, deepest + 1):
        found = _search(wanted, list(all_rankers(wanted.alphabet, depth)))
        if found is not None:
            return found
    raise TooDeepError(f"{wanted.name!r} needs rankers of more than {deepest} steps; a simpler language expected")


def _search(wanted: Language, candidates: list[Ranker]) -> Decision | None:
    seen = list(wanted.words(0, {1: 12, 2: 6, 3: 5}.get(len(wanted.alphabet), 3)))
    while True:
        chosen = _cover(wanted, candidates, seen)
        if chosen is None:
            return None
        conflict = _conflict(wanted, chosen)
        if isinstance(conflict, Mapping):
            accepted = frozenset(bits for bits, inside in conflict.items() if inside)
            return Decision(wanted, chosen, accepted)
        seen += conflict


def _cover(wanted: Language, candidates: list[Ranker], seen: list[str]) -> tuple[Ranker, ...] | None:
    """Few rankers with few steps that tell every seen word inside from every one outside."""
    bits = np.array([[place(ranker, word) is not None for word in seen] for ranker in candidates])
    inside = np.array([word in wanted for word in seen])
    few = _one_or_two(candidates, bits, inside)
    if few is not None:
        return few
    group = np.zeros(len(seen), np.int64)  # words that no chosen ranker tells apart
    chosen: list[Ranker] = []
    while not _separates(group, inside):
        split = _split(bits, group, inside)
        worth = split / [_steps((*chosen, ranker)) - _steps(chosen) or 1 for ranker in candidates]
        best = int(np.argmax(worth))
        if split[best] == 0:
            return None
        chosen.append(candidates[best])
        group = np.unique(2 * group + bits[best], return_inverse=True)[1]
    return tuple(_prune(chosen, dict(zip(candidates, bits.tolist(), strict=True)), inside.tolist()))


def _separates(group: Ints, inside: Bools) -> bool:
    """Whether no group has words inside and outside."""
    return not np.intersect1d(group[inside], group[~inside]).size


def _split(bits: Bools, group: Ints, inside: Bools) -> Ints:
    """How many pairs, one inside and one outside and not yet told apart, each ranker would tell apart."""
    member = (group[:, None] == np.arange(group.max() + 1)).astype(np.int64)
    ins, outs = bits[:, inside].astype(np.int64) @ member[inside], bits[:, ~inside].astype(np.int64) @ member[~inside]
    all_ins, all_outs = member[inside].sum(axis=0), member[~inside].sum(axis=0)
    found: Ints = (ins * (all_outs - outs) + (all_ins - ins) * outs).sum(axis=1)
    return found


def _one_or_two(candidates: list[Ranker], bits: Bools, inside: Bools) -> tuple[Ranker, ...] | None:
    """A single ranker or a pair that is enough, with the fewest steps; not looked for among very many."""
    if len(candidates) > 100:
        return None
    sets = [(i,) for i in range(len(candidates))] + list(combinations(range(len(candidates)), 2))
    for chosen in sorted(sets, key=lambda s: (_steps([candidates[i] for i in s]), len(s), s)):
        group = sum((2**place * bits[i] for place, i in enumerate(chosen)), np.zeros(inside.size, np.int64))
        if _separates(group, inside):
            return tuple(candidates[i] for i in chosen)
    return None


def _steps(rankers: Sequence[Ranker]) -> int:
    """How many steps their tree has: what a protocol must keep track of."""
    return len({ranker[:length] for ranker in rankers for length in range(1, len(ranker) + 1)})


def _prune(chosen: list[Ranker], bits: Mapping[Ranker, list[bool]], inside: list[bool]) -> list[Ranker]:
    for ranker in sorted(chosen, key=len, reverse=True):
        rest = [other for other in chosen if other != ranker]
        value: dict[tuple[bool, ...], bool] = {}
        if all(value.setdefault(tuple(bits[r][i] for r in rest), a) == a for i, a in enumerate(inside)):
            chosen = rest
    return sorted(chosen, key=lambda r: (len(r), r))


def _conflict(wanted: Language, chosen: tuple[Ranker, ...]) -> Mapping[tuple[bool, ...], bool] | list[str]:
    """The Boolean function, or two words with the same rankers defined of which one is in the language."""
    start = (0, tuple(_empty(ranker) for ranker in chosen))
    reached = {start: ""}
    value: dict[tuple[bool, ...], tuple[bool, str]] = {}
    todo = [start]
    for state, scans in todo:
        word = reached[state, scans]
        bits = tuple(_is_defined(ranker, scan) for ranker, scan in zip(chosen, scans, strict=True))
        inside = state in wanted.automaton.accepting
        known, example = value.setdefault(bits, (inside, word))
        if known != inside:
            return [word, example]
        for letter, follower in zip(wanted.alphabet, wanted.automaton.step[state], strict=True):
            after = follower, tuple(_append(ranker, scan, letter) for ranker, scan in zip(chosen, scans, strict=True))
            if after not in reached:
                reached[after] = word + letter
                todo.append(after)
    return {bits: inside for bits, (inside, _) in value.items()}


_NONE, _CLAIM, _GHOST = "nCG"
_LEFT, _RIGHT, _AT, _ABSENT = "LR=0"
State = tuple[str, str, str]  # the agent's letter, its roles, its beliefs: one character a step


@dataclass(frozen=True)
class Step:
    """One step of a ranker: the step it goes on from (-1: the end of the word), its direction, its letter."""

    parent: int
    right: bool
    letter: str


@dataclass(frozen=True)
class Protocol:
    """A one-sided protocol that compares positions, and the language it decides."""

    language: Language
    decision: Decision
    steps: tuple[Step, ...]
    ends: tuple[int, ...]
    """For each ranker of the decision the step it ends with."""

    @property
    def rule(self) -> Rule:
        """As the engines want it."""
        return one_sided(self.observe)

    def row(self, word: str) -> list[State]:
        """The agents at the start: those that could be a ranker's first step claim it, all else is doubt."""
        for letter in word:
            if letter not in self.language.alphabet:
                raise ValueError(f"the letter {letter!r} is not in the alphabet {self.language.alphabet!r}")
        return [_start(self.steps, letter) for letter in word]

    def observe(self, own: State, other: State, where: int) -> State:
        """What an agent becomes that sees another, standing right of it if ``where`` is positive."""
        return _observe(self.steps, own, other, where)

    def output(self, state: State) -> bool:
        """What an agent in this state says about the word."""
        return tuple(state[2][end] != _ABSENT for end in self.ends) in self.decision.accepted

    def decided(self, word: str) -> bool | None:
        """What all fair runs on the word agree on for ever; None if they do not.

        A ranker's steps depend on its own earlier steps only, so the protocol is a product of one small protocol for
        each ranker, under one schedule. A bottom component of the product projects onto a bottom component of each
        factor (it is closed under the factor's steps), so it is enough to explore the factors one by one.
        """
        self.row(word)
        bits = [ranker_bit(ranker, word) for ranker in self.decision.rankers]
        return None if None in bits else tuple(map(bool, bits)) in self.decision.accepted


def _start(steps: tuple[Step, ...], letter: str) -> State:
    claims = [step.parent < 0 and step.letter == letter for step in steps]
    roles = "".join(_CLAIM if claim else _GHOST for claim in claims)
    return letter, roles, "".join(_AT if claim else _ABSENT for claim in claims)


def _observe(steps: tuple[Step, ...], own: State, other: State, where: int) -> State:
    letter, roles, beliefs = own
    new_roles, new_beliefs = "", ""
    for index, step in enumerate(steps):
        ground = step.letter == letter and (
            step.parent < 0 or new_beliefs[step.parent] == (_RIGHT if step.right else _LEFT)
        )
        role = _role(roles[index], other[1][index], ground, better=(where > 0) == step.right, left=where < 0)
        new_roles += role
        new_beliefs += _belief(role, other[1][index], beliefs[index], where)
    return letter, new_roles, new_beliefs


def _role(role: str, other: str, ground: bool, *, better: bool, left: bool) -> str:
    """The observer's new role; ``better``: it is better placed than the other; ``left``: the other is on its left."""
    if role == _CLAIM and not ground:
        role = _GHOST
    if ground and role != _CLAIM and (role == _GHOST or other == _GHOST or (other == _CLAIM and better)):
        role = _CLAIM
    if role == _CLAIM and other == _CLAIM and not better:
        role = _NONE
    if role == _GHOST and (other == _CLAIM or (other == _GHOST and left)):
        role = _NONE
    return role


def _belief(role: str, other: str, belief: str, where: int) -> str:
    if role == _CLAIM:
        return _AT
    if role == _GHOST or other == _GHOST:
        return _ABSENT
    if other == _CLAIM:
        return _LEFT if where > 0 else _RIGHT
    return belief


def compile_language(language: Language) -> Protocol:
    """The protocol of a language; ValueError if it is not in DA."""
    decision = decide(language)
    prefixes = sorted(set(_prefixes(decision.rankers)), key=lambda r: (len(r), r))
    number = {prefix: index for index, prefix in enumerate(prefixes)}
    steps = tuple(Step(number.get(p[:-1], -1), p[-1][0] == ">", p[-1][1]) for p in prefixes)
    return Protocol(language, decision, steps, tuple(number[ranker] for ranker in decision.rankers))


def _prefixes(rankers: Iterable[Ranker]) -> Iterable[Ranker]:
    return (ranker[:length] for ranker in rankers for length in range(1, len(ranker) + 1))


@lru_cache(maxsize=1 << 14)
def _factor(ranker: Ranker) -> tuple[tuple[Step, ...], Table]:
    steps = tuple(Step(index - 1, step[0] == ">", step[1]) for index, step in enumerate(ranker))
    return steps, Table(one_sided(lambda own, other, where: _observe(steps, own, other, where)))


def ranker_bit(ranker: Ranker, word: str) -> bool | None:
    """Whether all agents end up believing that the ranker is defined (or not); None if that is not certain.

    >>> ranker_bit((">a", "<b"), "ba"), ranker_bit((">a", "<b"), "ab")
    (True, False)
    """
    letters = {step[1] for step in ranker}  # all others are alike to it
    return _ranker_bit(ranker, "".join(letter if letter in letters else "_" for letter in word))


@lru_cache(maxsize=1 << 14)
def _ranker_bit(ranker: Ranker, word: str) -> bool | None:
    steps, table = _factor(ranker)
    row = [_start(steps, letter) for letter in word]
    found: bool | None = check(table, row, lambda state: state[2][-1] != _ABSENT).output
    return found
