"""The rule of a population protocol as a table: which states two agents leave a meeting with.

A rule is a dict ``{(p, q): (p', q')}`` or a function of two states; the first agent is the initiator. An outcome may be
random: a dict ``{(p', q'): probability}``. States are anything hashable. What a rule does not name changes nothing.

>>> table = tabulate({("A", "B"): ("U", "U"), ("A", "U"): ("A", "A"), ("B", "U"): ("B", "B")}, ["A", "B"])
>>> table.states, int(table.reactive.sum())
(('A', 'B', 'U'), 6)

`census` is the rival of agents that see order: all that blind meetings can find out is how often a letter occurs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

State = Hashable
Rule = Mapping[tuple[Any, Any], Any] | Callable[[Any, Any], Any]
Pair = tuple[State, State]

LARGEST = 600  # states; the table has a row for every ordered pair

#: Angluin, Aspnes, Eisenstat, "A simple population protocol for fast robust approximate majority", DISC 2007.
APPROXIMATE_MAJORITY = {("A", "B"): ("U", "U"), ("A", "U"): ("A", "A"), ("B", "U"): ("B", "B")}

MOST = 2
"""How far a census counts: it tells none, one and more apart."""
Census = tuple[tuple[int, int], ...]
"""For each letter, the part of the count that the agent holds, and how many it knows of."""


def enrolled(letter: str, alphabet: str) -> Census:
    """How an agent with this letter begins."""
    return tuple((int(letter == other), int(letter == other)) for other in alphabet)


def census(p: Census, q: Census) -> tuple[Census, Census]:
    """Agents that meet blindly count every letter up to `MOST`: one hands its part to the other, both know the larger.

    >>> alice, bob = enrolled("a", "ab"), enrolled("a", "ab")
    >>> census(alice, bob)[1], census(alice, enrolled("b", "ab"))[1]
    (((0, 2), (0, 0)), ((0, 1), (1, 1)))
    """
    first, second = [], []
    for (mine, known), (yours, heard) in zip(p, q, strict=True):
        both = min(MOST, max(known, heard, mine + yours))
        if both == MOST:  # nothing is left to count
            mine = yours = 0
        elif mine and yours:
            mine, yours = mine + yours, 0
        first.append((mine, both))
        second.append((yours, both))
    return tuple(first), tuple(second)


@dataclass(frozen=True, eq=False)
class Table:
    """A rule over numbered states. Outcomes ``start[p * q + …]`` onwards belong to the ordered pair (p, q)."""

    states: tuple[Any, ...]
    reactive: npt.NDArray[np.bool_]
    """Whether the meeting of two states can change anything; square."""
    start: npt.NDArray[np.int64]
    first: npt.NDArray[np.int32]
    second: npt.NDArray[np.int32]
    chance: npt.NDArray[np.float64]

    def counts(self, counts: Mapping[Any, int] | npt.ArrayLike) -> npt.NDArray[np.int64]:
        """How many agents are in each state, from a dict or from an array in the order of ``states``.

        >>> tabulate(APPROXIMATE_MAJORITY, "AB").counts({"A": 3, "B": 2}).tolist()
        [3, 2, 0]
        """
        size = len(self.states)
        if isinstance(counts, Mapping):
            number = {state: index for index, state in enumerate(self.states)}
            for state in counts:
                if state not in number:
                    raise ValueError(f"counts name the state {state!r}, which the table does not have")
            values = np.zeros(size, np.int64)
            for state, count in counts.items():
                values[number[state]] = count
        else:
            given = np.asarray(counts)
            if given.dtype.kind not in "iu" or given.shape != (size,):
                raise ValueError(f"counts have shape {given.shape}; {size} integers, one a state, expected")
            values = given.astype(np.int64)
        if (values < 0).any():
            raise ValueError(f"a count is negative: {int(values.min())}")
        if not 2 <= values.sum() < 2**62:
            raise ValueError(f"counts add up to {int(values.sum())}; at least 2 agents expected")
        return values


def tabulate(rule: Rule, states: Iterable[Any], *, symmetric: bool = True) -> Table:
    """The table of a rule, over all states that can appear when agents start in ``states``.

    With ``symmetric`` a pair that the rule does not name behaves as its mirror image, if that is named.

    >>> tabulate(lambda a, b: (min(a, b), max(a, b)), [2, 1, 0]).states
    (2, 1, 0)
    """
    known = list(dict.fromkeys(states))
    number = {state: index for index, state in enumerate(known)}
    outcomes: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    done = 0
    while done < len(known):  # every pair that involves a state not yet looked at
        for other in range(done + 1):
            for pair in {(done, other), (other, done)}:
                results = []
                for (p, q), chance in _outcomes(rule, known[pair[0]], known[pair[1]], symmetric):
                    for state in (p, q):
                        if state not in number:
                            number[state] = len(known)
                            known.append(state)
                    results.append((number[p], number[q], chance))
                outcomes[pair] = results
        done += 1
        if len(known) > LARGEST:
            raise ValueError(f"the rule reaches more than {LARGEST} states; a smaller protocol expected")
    return _assemble(known, outcomes)


def _assemble(known: list[Any], outcomes: Mapping[tuple[int, int], list[tuple[int, int, float]]]) -> Table:
    size = len(known)
    reactive = np.zeros((size, size), bool)
    start = np.zeros(size * size + 1, np.int64)
    rows: list[tuple[int, int, float]] = []
    for index in range(size * size):
        pair = divmod(index, size)
        results = outcomes[pair]
        rows += results
        reactive[pair] = any((p, q) != pair for p, q, _ in results)
        start[index + 1] = len(rows)
    first, second, chance = zip(*rows, strict=True) if rows else ((), (), ())
    return Table(
        tuple(known), reactive, start,
        np.array(first, np.int32), np.array(second, np.int32), np.array(chance, np.float64),
    )  # fmt: skip


def _outcomes(rule: Rule, p: State, q: State, symmetric: bool) -> list[tuple[Pair, float]]:
    """The outcomes of (p, q) with their probabilities, which add up to 1."""
    found, mirrored = _look(rule, p, q), False
    if found is None and symmetric:
        found, mirrored = _look(rule, q, p), True
    if found is None:
        return [((p, q), 1.0)]
    chances = dict(found) if isinstance(found, Mapping) else {found: 1.0}
    for outcome, chance in chances.items():
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise ValueError(f"the rule gives {outcome!r} for ({p!r}, {q!r}); a pair of states expected")
        if not 0 <= chance <= 1:
            raise ValueError(f"the rule gives ({p!r}, {q!r}) -> {outcome!r} the probability {chance}; 0 to 1 expected")
    total = math.fsum(chances.values())
    if total > 1 + 1e-9:
        raise ValueError(f"the probabilities of ({p!r}, {q!r}) add up to {total}; at most 1 expected")
    results = [((b, a) if mirrored else (a, b), float(chance)) for (a, b), chance in chances.items() if chance > 0]
    if total < 1 - 1e-9:
        results.append(((p, q), 1 - total))
    return results


def _look(rule: Rule, p: State, q: State) -> Any:
    return rule.get((p, q)) if isinstance(rule, Mapping) else rule(p, q)
