"""Population protocols over agents that stand in a row: a meeting may depend on who stands where.

In each step a uniformly random ordered pair of agents meets. The rule sees both states and where the second stands as
seen from the first: ``LEFT`` and ``RIGHT`` of it, or its neighbour (``PREVIOUS``, ``NEXT``). A rule is a function
``(p, q, where) -> (p', q')``, or None where nothing changes. Tables are filled as pairs of states turn up, so a
protocol may have far more states than a run ever visits.

>>> def swap(p, q, where):  # sort a row: the larger value moves right
...     return (q, p) if where > 0 and p > q else None
>>> run(swap, [3, 1, 2, 0], seed=1).final
[0, 1, 2, 3]

Cost: O(1) a meeting, some 10⁸ meetings in a few seconds; a row may have 10⁵ agents and more.

`check` says what a protocol decides, for certain: it looks at all configurations, and where fair runs end up.

A fair run ends in a bottom component of the graph of configurations, and visits all of it for ever. So a row is decided
exactly if in every bottom component that can be reached all agents give the same output, and everywhere the same one.

>>> verdict = check(one_sided(lambda p, q, where: max(p, q)), [0, 0, 1], output=bool)
>>> verdict.output, verdict.configurations
(True, 4)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.protocols.kernel.draws import Source, integer, source
from assay.sim.compiled import njit
from assay.sim.random import bits

Rule = Callable[[Any, Any, int], tuple[Any, Any] | None]
Ints = npt.NDArray[np.int32]

LEFT, PREVIOUS, NEXT, RIGHT = PLACES = (-2, -1, 1, 2)
LARGEST = 2048  # states in one table
MOST_ROWS = 4_000_000  # configurations that are checked one by one
_CHUNK = 1 << 24  # meetings between two looks at the keyboard


class TooManyStatesError(ValueError):
    """A rule whose states do not fit a table."""


def one_sided(observe: Callable[[Any, Any, int], Any]) -> Rule:
    """A rule in which only the first agent changes: it observes the second, which does not notice.

    >>> one_sided(lambda p, q, where: max(p, q))(1, 5, NEXT)
    (5, 5)
    """
    return lambda p, q, where: (observe(p, q, where), q)


class Table:
    """The outcomes of a rule for the states seen so far; ``first[place, p, q]`` is -1 where not yet asked for."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.states: list[Any] = []
        self.number: dict[Hashable, int] = {}
        self.first = np.full((4, 16, 16), -1, np.int32)
        self.second = np.full((4, 16, 16), -1, np.int32)

    def index(self, state: Hashable) -> int:
        """The number of a state, a new one if it is new."""
        if state not in self.number:
            if len(self.states) == LARGEST:
                raise TooManyStatesError(
                    f"a run of this rule visits more than {LARGEST} states; a smaller protocol expected"
                )
            self.number[state] = len(self.states)
            self.states.append(state)
            if len(self.states) > self.first.shape[1]:
                room = [(0, 0), *[(0, self.first.shape[1])] * 2]
                self.first, self.second = (np.pad(t, room, constant_values=-1) for t in (self.first, self.second))
        return self.number[state]

    def fill(self, p: int, q: int) -> None:
        """Ask the rule about two states, in all four places."""
        for slot, place in enumerate(PLACES):
            found = self.rule(self.states[p], self.states[q], place) or (self.states[p], self.states[q])
            after = self.index(found[0]), self.index(found[1])
            self.first[slot, p, q], self.second[slot, p, q] = after


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the states in the row, and after how many meetings the last change came."""

    final: list[Any]
    interactions: int
    silent: bool
    """Whether no meeting can change anything any more; else the cap came first."""

    @property
    def time(self) -> float:
        """Parallel time of the last change."""
        return self.interactions / len(self.final)


def run(
    rule: Rule | Table, row: Sequence[Hashable], *, seed: int = 0, replica: int = 0, max_time: float = 1e6
) -> Outcome:
    """Run the rule on a row of agents until it is silent or ``max_time`` (meetings per agent) has passed.

    >>> run(one_sided(lambda p, q, where: max(p, q)), [0] * 99 + [1], seed=3).final == [1] * 100
    True
    """
    n = len(row)
    if n < 2:
        raise ValueError(f"the row has {n} agents; at least 2 expected")
    table = rule if isinstance(rule, Table) else Table(rule)
    x = np.array([table.index(state) for state in row], np.int32)
    draw = source(seed, "swarm ordered", replica)
    cap = int(min(max_time * n, 2**62))
    done, changed, patience = 0, 0, 4 * n
    while done < cap:
        stop = min(cap, done + _CHUNK)
        done, changed, p, q = _advance(x, table.first, table.second, draw, done, changed, stop, patience)
        if p >= 0:
            table.fill(p, q)
        elif done - changed >= patience:
            if is_silent(table, x):
                return Outcome([table.states[i] for i in x], changed, True)
            patience = 2 * (done - changed)
    return Outcome([table.states[i] for i in x], changed, is_silent(table, x))


def is_silent(table: Table, x: Ints) -> bool:
    """Whether no meeting of two agents of this row can change anything."""
    present, where = np.unique(x, return_index=True)
    last = {int(p): x.size - 1 - int(np.argmax(x[::-1] == p)) for p in present}
    begin = dict(zip(present.tolist(), where.tolist(), strict=True))
    neighbours = set(zip(x[:-1].tolist(), x[1:].tolist(), strict=True))
    for p in begin:
        for q in begin:
            if table.first[0, p, q] < 0:
                table.fill(p, q)
            null = (table.first[:, p, q] == p) & (table.second[:, p, q] == q)
            left, right = begin[q] < last[p] - 1, begin[p] < last[q] - 1
            possible = (left, (q, p) in neighbours, (p, q) in neighbours, right)
            if any(can and not still for can, still in zip(possible, null.tolist(), strict=True)):
                return False
    return True


@njit(cache=True, nogil=True)
def _advance(
    x: Ints, first: Ints, second: Ints, draw: Source, done: int, changed: int, stop: int, patience: int
) -> tuple[int, int, int, int]:
    """Meetings until ``stop``, until nothing changed for long, or until two states meet that the table lacks."""
    n = x.size
    while done < stop and done - changed < patience:
        before = draw[1]
        a = integer(draw, n)
        b = integer(draw, n - 1)
        b += b >= a
        gap = b - a
        slot = (1 if gap == -1 else 0) if gap < 0 else (2 if gap == 1 else 3)
        p, q = x[a], x[b]
        p_next, q_next = first[slot, p, q], second[slot, p, q]
        if p_next < 0:
            draw[1] = before  # this meeting takes place once the table knows it
            return done, changed, p, q
        done += 1
        if p_next != p or q_next != q:
            x[a], x[b] = p_next, q_next
            changed = done
    return done, changed, -1, -1


Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Decided:
    """The answer for one row: ``output`` is None if fair runs disagree or never agree."""

    output: Any
    configurations: int
    bottoms: int


def check(rule: Rule | Table, row: Sequence[Hashable], output: Callable[[Any], Any]) -> Decided:
    """Explore everything that can happen to a row of agents, and read off what it decides.

    Raises ValueError where there are more than four million configurations.
    """
    table = rule if isinstance(rule, Table) else Table(rule)
    start = [table.index(state) for state in row]
    if not 2 <= len(start) <= 63 // _BITS:
        raise ValueError(f"the row has {len(start)} agents; 2 to {63 // _BITS} can be explored")
    codes, follow = _explore(table, start)
    bottoms = _bottoms(follow)
    outputs = [output(state) for state in table.states]
    numbers = {value: index for index, value in enumerate(dict.fromkeys(outputs))}
    said = np.array([numbers[value] for value in outputs])[_states(codes[bottoms >= 0], len(start))]
    agreed = said.min() == said.max()
    values = list(numbers)
    return Decided(values[int(said[0, 0])] if agreed else None, int(codes.size), int(bottoms.max()) + 1)


_BITS = 10  # a state's number in a code, so that a row of six fits in 63 bits


def _encode(states: npt.NDArray[np.int64]) -> Codes:
    shifts = _BITS * np.arange(states.shape[1])
    code: Codes = (states << shifts).sum(axis=1)
    return code


def _states(codes: Codes, n: int) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (codes[:, None] >> (_BITS * np.arange(n))) & ((1 << _BITS) - 1)
    return found


def _explore(table: Table, start: list[int]) -> tuple[Codes, Places]:
    """All reachable configurations, and for each the places of those that follow, one for each meeting."""
    n = len(start)
    meetings = np.array([(a, b, _slot(b - a)) for a in range(n) for b in range(n) if a != b])
    codes, follow = np.zeros(1 << 10, np.int64), np.zeros((1 << 10, len(meetings)), np.int32)
    codes[0] = _encode(np.array([start]))[0]
    index = _indexed(codes, 1)
    done, count = 0, 1
    while done < count:
        done, count, p, q = _expand(codes, follow, index, table.first, table.second, meetings, done, count)
        if p >= 0:
            table.fill(p, q)
            if len(table.states) > 1 << _BITS:
                raise ValueError(f"the protocol visits more than {1 << _BITS} states; too many to explore")
        elif done < count:  # no room
            if count > MOST_ROWS:
                raise ValueError(f"a row of {n} agents has over {MOST_ROWS:,} configurations; a shorter one expected")
            codes, follow = (np.concatenate([part, np.zeros_like(part)]) for part in (codes, follow))
            index = _indexed(codes, count)
    return codes[:count], follow[:count]


def _slot(gap: int) -> int:
    """The place of swarm_ordered.PLACES in which the second stands."""
    return (1 if gap == -1 else 0) if gap < 0 else (2 if gap == 1 else 3)


@njit(cache=True)
def _find(index: Places, codes: Codes, code: int) -> Any:
    """The slot of the hash table in which a configuration is, or would be."""
    mask = np.uint64(index.size - 1)
    at = bits(np.uint64(code), np.uint64(1)) & mask
    while index[at] > 0 and codes[index[at] - 1] != code:
        at = (at + np.uint64(1)) & mask
    return np.int64(at)


@njit(cache=True)
def _indexed(codes: Codes, count: int) -> Places:
    """A hash table from configurations to their places plus one; at most half full."""
    index = np.zeros(2 * codes.size, np.int32)
    for place in range(count):
        index[_find(index, codes, codes[place])] = place + 1
    return index


@njit(cache=True)
def _expand(
    codes: Codes, follow: Places, index: Places, first: Places, second: Places, meetings: Codes, done: int, count: int
) -> tuple[int, int, int, int]:
    """Follow configurations one by one, until all are done, room runs out, or the table lacks two states."""
    mask = (1 << _BITS) - 1
    while done < count and count + meetings.shape[0] <= codes.size:
        code = codes[done]
        for meeting in range(meetings.shape[0]):
            a, b, slot = meetings[meeting]
            p, q = (code >> (_BITS * a)) & mask, (code >> (_BITS * b)) & mask
            p_next, q_next = np.int64(first[slot, p, q]), np.int64(second[slot, p, q])
            if p_next < 0:
                return done, count, p, q
            after = code + ((p_next - p) << (_BITS * a)) + ((q_next - q) << (_BITS * b))
            at = _find(index, codes, after)
            if index[at] == 0:
                codes[count] = after
                count += 1
                index[at] = count
            follow[done, meeting] = index[at] - 1
        done += 1
    return done, count, -1, -1


def _bottoms(follow: Places) -> Codes:
    """For each configuration the number of its bottom component, -1 where it is in none."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    size, width = follow.shape
    entries = (np.ones(follow.size, np.int8), follow.ravel(), np.arange(0, follow.size + 1, width, dtype=np.int32))
    count, component = connected_components(csr_array(entries, shape=(size, size)), connection="strong")
    leaving = (component[follow] != component[:, None]).any(axis=1)
    bottom = np.setdiff1d(np.arange(count), component[leaving])
    number = np.full(count, -1)
    number[bottom] = np.arange(bottom.size)
    found: Codes = number[component]
    return found
