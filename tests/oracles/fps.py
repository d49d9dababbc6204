"""Farthest point sampling as its definition reads: no index, no pruning, no early end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def squared(cloud: NDArray[Any], sample: int) -> NDArray[Any]:
    """Squared distances of all points to one of them, in the cloud's own type, each operation rounded by itself."""
    with np.errstate(over="ignore", under="ignore"):
        dx, dy, dz = (cloud - cloud[sample]).T
        return (dx * dx + dy * dy) + dz * dz


def sample(cloud: NDArray[Any], k: int, start: int = 0) -> list[int]:
    """The start; then, again and again, the unsampled point farthest from the samples, the first of equals."""
    picks = [start]
    distance = squared(cloud, start)
    while len(picks) < k:
        free = np.setdiff1d(np.arange(len(cloud)), picks)  # ascending, and argmax takes the first of equals
        picks.append(int(free[np.argmax(distance[free])]))
        distance = np.minimum(distance, squared(cloud, picks[-1]))
    return picks
