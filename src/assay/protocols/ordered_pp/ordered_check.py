"""What a protocol over ordered agents decides, for certain: all configurations, and where fair runs end up.

A fair run ends in a bottom component of the graph of configurations, and visits all of it for ever. So a row is decided
exactly if in every bottom component that can be reached all agents give the same output, and everywhere the same one.

>>> from assay.protocols.ordered_pp.swarm_ordered import one_sided
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

from assay.protocols.ordered_pp.swarm_ordered import Rule, Table
from assay.sim.compiled import njit
from assay.sim.random import bits

Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

LARGEST = 4_000_000  # configurations


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
            if count > LARGEST:
                raise ValueError(f"a row of {n} agents has over {LARGEST:,} configurations; a shorter one expected")
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
