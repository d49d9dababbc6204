"""What people look at instead of a frontier: a figure for each stage, and the stage whose figure rose most.

Each takes a window, a healthy one and the stages' names, and ranks (rank, stage) suspects: stages by how much their
figure rose, and in a stage the rank whose own mean rose most, as somebody would who drills down.

>>> healthy = np.tile(np.array([10, 20, 40]), (5, 4, 1))
>>> stalled = healthy.copy()
>>> stalled[:, 2, 0] += 30            # rank 2 waits for its data
>>> stalled[:, [0, 1, 3], 2] += 30    # all others wait for rank 2, in their backward pass
>>> by_mean(stalled, healthy, ["data", "forward", "backward"]).suspects[0].indicator
'backward'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.observe.frontier.advances import synchronising_in
from assay.observe.interface import Diagnosis, Suspect

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Dashboard = Callable[[Ints, Ints, Sequence[str]], Diagnosis]


def by_mean(now: Ints, healthy: Ints, stages: Sequence[str]) -> Diagnosis:
    """The mean of each stage over steps and ranks."""
    return _ranked(now.mean((0, 1)) - healthy.mean((0, 1)), _risen(now, healthy), stages)


def by_max(now: Ints, healthy: Ints, stages: Sequence[str]) -> Diagnosis:
    """The slowest rank of each stage, on the mean over steps."""
    return _ranked(now.max(1).mean(0) - healthy.max(1).mean(0), _risen(now, healthy), stages)


def by_p95(now: Ints, healthy: Ints, stages: Sequence[str]) -> Diagnosis:
    """The 95th percentile of each stage over steps and ranks."""
    rise = np.percentile(now, 95, axis=(0, 1)) - np.percentile(healthy, 95, axis=(0, 1))
    return _ranked(rise, _risen(now, healthy), stages)


def by_slowest_rank(now: Ints, healthy: Ints, stages: Sequence[str]) -> Diagnosis:
    """The stages of the rank that took longest in each step, and that rank."""
    slowest = now.sum(2).argmax(1)
    rows = now[np.arange(len(now)), slowest]
    usual = healthy[np.arange(len(healthy)), healthy.sum(2).argmax(1)]
    votes = np.bincount(slowest, minlength=now.shape[1]).astype(float)
    return _ranked(rows.mean(0) - usual.mean(0), np.repeat(votes[:, None], len(stages), 1), stages)


def by_own_time(now: Ints, healthy: Ints, stages: Sequence[str]) -> Diagnosis:
    """The rank and stage whose own mean rose most, stages in which ranks wait left out: what an expert would do."""
    risen = _risen(now, healthy)
    risen[:, [stages.index(name) for name in synchronising_in(stages)]] = -np.inf
    order = np.argsort(-risen, axis=None, kind="stable")
    cells = [divmod(int(i), len(stages)) for i in order]
    return Diagnosis(tuple(Suspect(str(r), stages[s], float(risen[r, s]) / 1e9) for r, s in cells))


def _risen(now: Ints, healthy: Ints) -> Floats:
    return np.asarray(now.mean(0) - healthy.mean(0), float)


def _ranked(rise: Floats, ranks: Floats, stages: Sequence[str]) -> Diagnosis:
    order = np.argsort(-rise, kind="stable").tolist()
    return Diagnosis(tuple(Suspect(str(int(ranks[:, s].argmax())), stages[s], float(rise[s]) / 1e9) for s in order))


DASHBOARDS: dict[str, Dashboard] = {
    "mean": by_mean, "max": by_max, "p95": by_p95, "slowest rank": by_slowest_rank, "own time": by_own_time,
}  # fmt: skip
