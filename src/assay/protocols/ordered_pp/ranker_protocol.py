"""A population protocol for a language of DA: agents find the language's rankers together, by watching one another.

Each agent has a letter of the word and a place in the row. For each step of each ranker it plays a role: it *claims* to
be the place, it is a *ghost* (it doubts that there is one), or none; and it believes to stand left of the place, right
of it, at it, or that there is none. A claim is given up to a better placed one and becomes a ghost when its ground is
gone; a ghost yields to a claim. Somebody always claims or haunts, so a lost claim can be made again. Only the observer
changes, and it sees no more than the other's role and on which side the other stands.

>>> from assay.protocols.ordered_pp.rankers import decide, language
>>> from assay.protocols.ordered_pp.ordered_check import check
>>> protocol = compile_language(language("a.*", "ab"))
>>> [check(protocol.rule, protocol.row(word), protocol.output).output for word in ("ab", "ba", "bab")]
[True, False, False]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from assay.protocols.ordered_pp.languages import Language
from assay.protocols.ordered_pp.ordered_check import check
from assay.protocols.ordered_pp.rankers import Decision, Ranker, decide
from assay.protocols.ordered_pp.swarm_ordered import Rule, Table, one_sided

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
