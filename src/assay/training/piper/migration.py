"""Experts change places: now and then the busiest rank swaps an expert with the idlest, as long as that pays.

Every `period` steps the loads since the last time are added up. While the busiest rank has more than `threshold` times
the mean, it and the idlest rank swap the two experts of a layer whose exchange leaves the busier of both least busy;
a swap is made if what a step is shorter by, over the steps until the next look, exceeds the time to move the weights
and the optimizer of both experts.

>>> loads = np.array([[8, 7, 1, 2]])  # steps, experts: two ranks with two each
>>> follow(loads, ranks=2, rule=Rule(period=1), second_of=1.0, move=0.0).host.tolist()
[1, 0, 1, 0]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.sim.packing import lpt

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """When to look, from which unevenness on to act, and how many swaps a look may make at most."""

    period: int = 16
    threshold: float = 1.05
    most: int = 64


@dataclass(frozen=True)
class Followed:
    """What became of the loads: tokens of each rank in every step, the experts' last places, swaps and seconds."""

    load: Ints
    host: Ints
    swaps: int
    moving: float
    computing: float


def swaps(load: Floats, host: Ints, ranks: int, rule: Rule, second_of: float, move: float) -> Ints:
    """The places of the experts after the swaps of one look.

    Args:
        load: of each expert since the last look, which stands for as many steps to come.
        host: its rank now.
        ranks: how many.
        rule: the threshold.
        second_of: seconds that a token keeps a rank busy.
        move: seconds of a swap.
    """
    host = host.copy()
    for _ in range(rule.most):
        held = np.bincount(host, load, ranks)
        high, low = int(held.argmax()), int(held.argmin())
        if held[high] <= rule.threshold * held.mean():
            break
        ours, theirs = np.flatnonzero(host == high), np.flatnonzero(host == low)
        less = load[ours][:, None] - load[theirs][None, :]
        after = np.maximum(held[high] - less, held[low] + less)
        a, b = np.unravel_index(int(after.argmin()), after.shape)
        if after[a, b] >= held[high] or (held[high] - after[a, b]) * second_of <= move:
            break
        host[ours[a]], host[theirs[b]] = low, high
    return host


def follow(loads: Ints, ranks: int, rule: Rule, second_of: float, move: float, policy: str = "migration") -> Followed:
    """Steps of one layer under a policy: fixed places, migration, or all experts packed anew at every look.

    Args:
        loads: tokens of every expert in every step.
        ranks: over which the experts are dealt.
        rule: when to look.
        second_of: seconds that a token keeps a rank busy.
        move: seconds in which two experts change places; packing anew moves as many as it has to.
    """
    experts = loads.shape[1]
    host = np.repeat(np.arange(ranks), experts // ranks)
    found, count, moving = np.empty((len(loads), ranks), np.int64), 0, 0.0
    for step, load in enumerate(loads):
        found[step] = np.bincount(host, load, ranks)
        if policy == "fixed" or (step + 1) % rule.period:
            continue
        seen = loads[step + 1 - rule.period : step + 1].sum(axis=0).astype(float)
        chosen = swaps(seen, host, ranks, rule, second_of, move) if policy == "migration" else _packed(seen, ranks)
        pairs = -(-int((chosen != host).sum()) // 2)
        count, moving, host = count + pairs, moving + pairs * move, chosen
    return Followed(found, host, count, moving, float(found.max(axis=1).sum() * second_of))


def _packed(load: Floats, ranks: int) -> Ints:
    """Equally many experts a rank, the largest first to the rank with the least that has room."""
    return np.asarray(lpt(load, ranks, len(load) // ranks), np.int64)
