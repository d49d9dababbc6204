"""BalanceRoute's choice by trying everything: slow, and obviously what the text says."""

from __future__ import annotations

from typing import Any

import numpy as np


def imbalance(loads: Any) -> float:
    """What all workers together lack to the fullest."""
    return float((max(loads) - np.asarray(loads)).sum())


def gain(loads: Any, worker: int, x: float) -> float:
    """By how much the imbalance falls when the worker gets x more."""
    after = np.array(loads, dtype=float)
    after[worker] += x
    return imbalance(loads) - imbalance(after)


def total_gain(loads: Any, steps: Any, weights: Any, worker: int, x: float) -> float:
    return sum(w * gain(row, worker, x + h) for row, h, w in zip(loads, steps, weights, strict=True))


def fill(
    lengths: Any, urgent: Any, steps: Any, weights: Any, loads: Any, slots: Any, room: Any, running: Any, allowed: float
) -> list[tuple[float, int]]:
    """(length, worker) in the order of the decisions."""
    loads, slots, room, running = (np.array(values, dtype=float) for values in (loads, slots, room, running))
    pool, sent, closed = list(enumerate(lengths)), [], set()

    def put(x: float, g: int) -> None:
        for h, step in enumerate(steps):
            loads[h, g] += x + step
        slots[g] -= 1
        room[g] -= x
        running[g] += 1
        sent.append((float(x), g))

    for position in urgent:
        x = lengths[position]
        able = [g for g in range(len(slots)) if slots[g] > 0 and room[g] >= x]
        if able:
            put(x, max(able, key=lambda g: total_gain(loads, steps, weights, g, x)))
            pool.remove((position, x))
    while pool:
        able = [g for g in range(len(slots)) if slots[g] > 0 and g not in closed]
        if not able:
            break
        g = min(able, key=lambda g: float(np.dot(weights, loads[:, g])))
        fitting = [(position, x) for position, x in pool if x <= room[g]]
        best = max(fitting, key=lambda item: total_gain(loads, steps, weights, g, item[1]), default=None)
        if best is None:
            closed.add(g)
            continue
        x = best[1]
        good = total_gain(loads, steps, weights, g, x) > 0
        if not (good or running[g] == 0 or loads[0, g] + x - loads[0].max() <= allowed):
            closed.add(g)
            continue
        put(x, g)
        pool.remove(best)
    return sent
