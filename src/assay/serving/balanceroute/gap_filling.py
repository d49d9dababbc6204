"""Which waiting request goes to which worker, so that the fullest stays the fullest: the compiled part of BalanceRoute.

>>> lengths = np.array([100.0, 400.0, 900.0])
>>> loads = np.array([[5000.0, 4550.0, 4080.0]])
>>> nobody, now, slots, room, aboard = np.empty(0, int), np.zeros(1), np.full(3, 8), np.full(3, 1e6), np.full(3, 2)
>>> chosen, worker = fill(lengths, nobody, now, np.ones(1), loads, slots, room, aboard, -np.inf)
>>> chosen.tolist(), worker.tolist()
([2, 1], [2, 1])
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.serving.engine.prefix_cache import JIT
from assay.sim.compiled import njit


@njit(**JIT)
def gain(x, margin, workers):
    """By how much the group's imbalance falls when a worker `margin` below the fullest is given load x.

    The imbalance is what all workers together lack to the fullest. Up to the margin, x fills a gap; beyond it, x
    raises the fullest and every other worker waits.

    >>> gain(300.0, 500.0, 16), gain(600.0, 500.0, 16)
    (300.0, -1000.0)
    """
    return x if x <= margin else margin - (workers - 1) * (x - margin)


@njit(**JIT)
def _total_gain(x, state, g):
    """The gain over the steps ahead, each with its weight."""
    steps, weights, tops, loads = state
    total = 0.0
    for h in range(len(steps)):
        total += weights[h] * gain(x + steps[h], tops[h] - loads[h, g], loads.shape[1])
    return total


@njit(**JIT)
def _peak(state, g):
    """The length with the largest gain on worker g: a sum of tents is concave, so its peak is that of one of them."""
    steps, _, tops, loads = state
    best, peak = -np.inf, 0.0
    for h in range(len(steps)):
        x = tops[h] - loads[h, g] - steps[h]
        value = _total_gain(x, state, g)
        if value > best:
            best, peak = value, x
    return peak


@njit(**JIT)
def _put(x, state, g, slots, room, running):
    steps, _, tops, loads = state
    for h in range(len(steps)):
        loads[h, g] += x + steps[h]
        tops[h] = max(tops[h], loads[h, g])
    slots[g] -= 1
    room[g] -= x
    running[g] += 1


@njit(**JIT)
def _best_worker(x, state, slots, room):
    """Where a request of length x does most good, or least harm."""
    best, chosen = -np.inf, -1
    for g in range(len(slots)):
        if slots[g] > 0 and room[g] >= x:
            value = _total_gain(x, state, g)
            if value > best:
                best, chosen = value, g
    return chosen


@njit(**JIT)
def _emptiest(state, slots, closed):
    """The open worker with the largest margin over the steps ahead."""
    _, weights, _, loads = state
    least, chosen = np.inf, -1
    for g in range(len(slots)):
        if slots[g] > 0 and not closed[g]:
            load = 0.0
            for h in range(len(weights)):
                load += weights[h] * loads[h, g]
            if load < least:
                least, chosen = load, g
    return chosen


@njit(**JIT)
def _best_length(lengths, kept, state, g, room):
    """The position of the waiting request that fits worker g best: one of the two around the peak, by bisection."""
    aim = min(_peak(state, g), room)
    low, high = 0, kept
    while low < high:
        middle = (low + high) // 2
        if lengths[middle] <= aim:
            low = middle + 1
        else:
            high = middle
    best, pick = -np.inf, -1
    for position in range(max(low - 1, 0), min(low + 1, kept)):
        if lengths[position] <= room:
            value = _total_gain(lengths[position], state, g)
            if value > best:
                best, pick = value, position
    return pick, best


@njit(**JIT)
def fill(lengths, urgent, steps, weights, loads, slots, room, running, allowed):
    """Who goes where: positions in `lengths` (ascending) and their workers. All arrays but the weights are used up.

    `urgent` are positions that go first, oldest first. `loads` is [step ahead, worker]. `allowed` is how much a
    request without a positive gain may raise the fullest worker by. A worker with nothing to do takes what there is.
    """
    tops = np.empty(len(steps))
    for h in range(len(steps)):
        tops[h] = loads[h].max()
    state = (steps, weights, tops, loads)
    chosen, target, count = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64), 0
    taken, closed = np.zeros(len(lengths), np.bool_), np.zeros(len(slots), np.bool_)
    for position in urgent:
        g = _best_worker(lengths[position], state, slots, room)
        if g >= 0:
            _put(lengths[position], state, g, slots, room, running)
            chosen[count], target[count], taken[position] = position, g, True
            count += 1
    place, kept = np.empty(len(lengths), np.int64), 0
    for position in range(len(lengths)):
        if not taken[position]:
            lengths[kept], place[kept] = lengths[position], position
            kept += 1
    while kept > 0:
        g = _emptiest(state, slots, closed)
        if g < 0:
            break
        pick, value = _best_length(lengths, kept, state, g, room[g])
        if pick < 0 or (value <= 0.0 and running[g] > 0 and loads[0, g] + lengths[pick] - tops[0] > allowed):
            closed[g] = True
            continue
        _put(lengths[pick], state, g, slots, room, running)
        chosen[count], target[count] = place[pick], g
        count, kept = count + 1, kept - 1
        for position in range(pick, kept):
            lengths[position], place[position] = lengths[position + 1], place[position + 1]
    return chosen[:count], target[:count]
