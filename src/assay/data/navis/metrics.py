"""Cosine and inner product by Euclidean distance, which the graph and its codes are made for.

Vectors of length one are nearest where their cosine is largest. For the inner product each vector gets one number more,
so that all are as long as the longest (Bachrach et al., "Speeding up the Xbox recommender system", RecSys 2014); of
queries it is zero. How long that is, is fixed when the index is built.

>>> rows = np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)
>>> inward(rows, "ip", 5.0).tolist()
[[3.0, 4.0, 0.0], [0.0, 1.0, 4.898979663848877]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from assay.record.errors import BadInput

METRICS = ("l2", "cosine", "ip")
Floats = npt.NDArray[np.float32]


def length(rows: Floats) -> npt.NDArray[np.float64]:
    """Of each row."""
    found: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return found


def inward(rows: Floats, metric: str, longest: float) -> Floats:
    """Vectors as the index keeps them.

    Raises:
        BadInput: one has no direction, or is longer than the longest.
    """
    if metric == "l2":
        return rows
    long = length(rows)
    if metric == "cosine":
        if len(rows) and not long.min():
            raise BadInput(f"vector {int(long.argmin())} is all zeros, and has no cosine; leave it out")
        return np.ascontiguousarray(rows / long[:, None], np.float32)
    if len(rows) and long.max() > longest * (1 + 1e-6):
        raise BadInput(
            f"vector {int(long.argmax())} is {long.max():.6g} long, and this index takes up to {longest:.6g} (an inner "
            "product needs a bound); build it anew with a larger --longest"
        )
    rest = np.sqrt(np.maximum(longest**2 - long**2, 0))
    return np.concatenate([rows, rest[:, None]], axis=1, dtype=np.float32)


def asked(queries: Floats, metric: str, longest: float) -> Floats:
    """Queries as the index takes them: their length changes no order, so under the inner product they are as long."""
    if metric == "l2":
        return queries
    long = length(queries)[:, None]
    directed = queries / np.where(long, long, 1)
    if metric == "cosine":
        return np.ascontiguousarray(directed, np.float32)
    return np.pad(directed * longest, ((0, 0), (0, 1))).astype(np.float32)


def outward(far: Any, queries: Floats, metric: str, longest: float) -> Floats:
    """Squared distances as what was asked for: these, cosines, or inner products; none is -infinity, or infinity."""
    if metric == "l2":
        found: Floats = far
        return found
    cosine = 1 - far.astype(np.float64) / 2
    if metric == "ip":
        cosine = (1 - far.astype(np.float64) / (2 * longest**2)) * longest * length(queries)[:, None]
    return np.asarray(cosine, np.float32)
