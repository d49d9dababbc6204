"""What every search among vectors does in its innermost loop: a distance, and a place in a sorted list."""

# Compiled functions take whatever types Numba infers.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.sim.compiled import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums may be taken in any order, in wide registers; nothing else changes


@njit(cache=True, fastmath=FAST)
def squared(a, b):
    """Squared Euclidean distance.

    >>> float(squared(np.array([0, 3], np.float32), np.array([4, 0], np.float32)))
    25.0
    """
    total = np.float32(0)
    for j in range(len(a)):
        d = a[j] - b[j]
        total += d * d
    return total


@njit(cache=True)
def enter(ids, far, flags, count, node, distance):
    """Put a node into an ascending list of `count`, its flag down; ties by number. The last of a full list gives way.

    Returns where it went (the list's room: nowhere), and the new count.

    >>> ids, far = np.array([5, 7, 0], np.int32), np.array([1, 4, 0], np.float32)
    >>> enter(ids, far, np.ones(3, np.bool_), 2, 6, np.float32(2)), ids.tolist()
    ((1, 3), [5, 6, 7])
    """
    most = len(ids)
    if count == most and (distance, node) >= (far[count - 1], ids[count - 1]):
        return most, count
    at = count if count < most else count - 1
    while at > 0 and (far[at - 1], ids[at - 1]) > (distance, node):
        far[at], ids[at], flags[at] = far[at - 1], ids[at - 1], flags[at - 1]
        at -= 1
    far[at], ids[at], flags[at] = distance, node, False
    return at, min(count + 1, most)


@njit(cache=True)
def offer(ids, far, fresh, u, v, distance):
    """Offer v to u's full list: 1 where it was nearer than the last and not there, and so went in, fresh."""
    last = ids.shape[1] - 1
    if (distance, v) >= (far[u, last], ids[u, last]):
        return 0
    for j in range(last + 1):
        if ids[u, j] == v:
            return 0
    at, _ = enter(ids[u], far[u], fresh[u], last + 1, v, distance)
    fresh[u, at] = True
    return 1
