"""Sets of time, as sorted arrays of starts and ends: what was busy, what was covered, what was left idle.

A set is a pair of int64 arrays (starts, ends) of half-open intervals that neither touch nor overlap, in order.
Everything is a sort and a running count; nothing loops in Python.

>>> comm = union([0, 10], [5, 30])
>>> compute = union([3, 4, 20], [12, 8, 25])
>>> total(comm), total(intersect(comm, compute)), total(subtract(comm, compute))
(25, 9, 16)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.int64]
Set = tuple[Times, Times]


def union(starts: ArrayLike, ends: ArrayLike) -> Set:
    """All time that any of the intervals covers; those that are empty or end before they start count for nothing.

    >>> [part.tolist() for part in union([0, 4, 9], [5, 6, 9])]
    [[0], [6]]
    """
    begin, end = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    some = end > begin
    begin, end = begin[some], end[some]
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.concatenate([np.flatnonzero(fresh)[1:] - 1, [len(begin) - 1]])
    return begin[fresh], reached[last]


def total(one: Set) -> int:
    """How much time it is.

    >>> total(union([0, 3], [2, 5]))
    4
    """
    return int((one[1] - one[0]).sum())


def _sweep(one: Set, other: Set, wanted: int) -> Set:
    """Where a count of (in one) + 2·(in other) equals `wanted`."""
    times = np.concatenate([one[0], one[1], other[0], other[1]])
    steps = np.repeat([1, -1, 2, -2], [len(one[0]), len(one[1]), len(other[0]), len(other[1])])
    order = np.argsort(times, kind="stable")
    times, count = times[order], np.cumsum(steps[order])
    inside = count[:-1] == wanted
    return union(times[:-1][inside], times[1:][inside])


def intersect(one: Set, other: Set) -> Set:
    """What is in both.

    >>> [part.tolist() for part in intersect(union([0], [5]), union([3], [9]))]
    [[3], [5]]
    """
    return _sweep(one, other, 3)


def subtract(one: Set, other: Set) -> Set:
    """What is in the first but not in the second.

    >>> [part.tolist() for part in subtract(union([0], [9]), union([3], [5]))]
    [[0, 5], [3, 9]]
    """
    return _sweep(one, other, 1)


def clip(one: Set, start: int, end: int) -> Set:
    """What lies between two instants.

    >>> [part.tolist() for part in clip(union([0, 8], [5, 12]), 4, 10)]
    [[4, 8], [5, 10]]
    """
    return intersect(one, union([start], [end]))


def gaps(one: Set, start: int, end: int) -> Set:
    """What it leaves of the time between two instants.

    >>> [part.tolist() for part in gaps(union([2], [4]), 0, 10)]
    [[0, 4], [2, 10]]
    """
    return subtract(union([start], [end]), one)


def covered(one: Set, starts: ArrayLike, ends: ArrayLike) -> Times:
    """Of each of many intervals, how much the set covers: a binary search each.

    >>> covered(union([0, 10], [5, 20]), [3, 4, 30], [12, 6, 40]).tolist()
    [4, 1, 0]
    """
    before = np.concatenate([[0], np.cumsum(one[1] - one[0])])

    def until(when: Times) -> Times:
        index = np.searchsorted(one[0], when, side="right")
        if not len(one[0]):
            return np.zeros(len(when), np.int64)
        at = np.maximum(index - 1, 0)
        over = np.maximum(one[1][at] - np.maximum(when, one[0][at]), 0)
        return np.where(index > 0, before[index] - over, 0)

    return until(np.asarray(ends, np.int64)) - until(np.asarray(starts, np.int64))
