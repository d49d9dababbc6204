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
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.protocols.kernel.draws import Source, integer, source
from assay.sim.compiled import njit

Rule = Callable[[Any, Any, int], tuple[Any, Any] | None]
Ints = npt.NDArray[np.int32]

LEFT, PREVIOUS, NEXT, RIGHT = PLACES = (-2, -1, 1, 2)
LARGEST = 2048  # states in one table
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
