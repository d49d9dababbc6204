"""Small frames for the tests of detectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.sim.telemetry import Frame

MINUTE = 60 * 10**9


def waves(scrapes: int = 60, seed: int = 0) -> NDArray[np.float64]:
    """Eight machines that wave together, each with a level and noise of its own."""
    rng = np.random.default_rng(seed)
    together = 50 + 20 * np.sin(np.arange(scrapes) / 9)[:, None]
    return np.asarray(together + np.arange(8) + rng.normal(size=(scrapes, 8)))


def frame_of(values: NDArray[np.float64], metric: str = "heat") -> Frame:
    """A scrape a minute, a column a machine; what is missing is not there."""
    samples = [
        {"t": t * MINUTE, "entity": i, "metric": metric, "value": float(value)}
        for t, row in enumerate(values) for i, value in enumerate(row) if not np.isnan(value)
    ]  # fmt: skip
    return Frame.of([{"id": i, "kind": "node", "name": f"n{i}"} for i in range(values.shape[1])], samples)
