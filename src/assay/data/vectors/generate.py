"""A stream of vectors whose clusters come one after another: what was a good entrance to an index grows old."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.sim.random import stream

Floats = npt.NDArray[np.float32]


class Drift(NamedTuple):
    """Vectors in the order of their arrival, and the cluster of each."""

    vectors: Floats
    cluster: npt.NDArray[np.int64]


def drifting(
    n: int, width: int, intrinsic: int = 16, clusters: int = 32, drift: float = 1.0, noise: float = 0.02, seed: int = 0
) -> Drift:
    """Gaussian clusters in `intrinsic` dimensions, laid into `width`, with a little noise in all of them.

    With `drift` 1 the clusters appear one by one, evenly over the stream, and later vectors come from those there are;
    with 0 all are there from the beginning.

    >>> made = drifting(1000, 32, clusters=10, seed=1)
    >>> made.vectors.shape, int(made.cluster[:100].max()) < int(made.cluster[-100:].max())
    ((1000, 32), True)
    """
    if not 1 <= intrinsic <= width or clusters < 1 or not 0 <= drift <= 1:
        raise ValueError(f"{intrinsic} of {width} dimensions, {clusters} clusters, drift {drift}; 0 to 1 expected")
    rng = stream(seed, "drifting", n, width, intrinsic, clusters, repr(float(drift)))
    basis = np.linalg.qr(rng.standard_normal((width, intrinsic)))[0].astype(np.float32)
    centres = 4 * rng.standard_normal((clusters, intrinsic), np.float32)
    spread = rng.uniform(0.3, 1.0, (clusters, intrinsic)).astype(np.float32)
    there = 1 + np.floor((clusters - 1) * (1 - drift + drift * np.arange(n) / max(n - 1, 1)))
    cluster = np.floor(rng.random(n) * there).astype(np.int64)
    inside = centres[cluster] + spread[cluster] * rng.standard_normal((n, intrinsic), np.float32)
    return Drift(inside @ basis.T + np.float32(noise) * rng.standard_normal((n, width), np.float32), cluster)
