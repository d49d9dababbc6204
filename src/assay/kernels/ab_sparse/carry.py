"""How rounding a block's summary is made to matter least to queries: what one number is off, others make up for.

A score is a product of what a query asks (`seen`) with a block's numbers, and a head's queries are much alike. So what
counts is not how far each number is off, but how far their sum is, weighed as queries weigh it: off' M off, with M the
mean of seen seen' over calibration queries. Numbers are rounded one after the other, and what one is off goes, in the
shares that make this least, to those not rounded yet (optimal brain surgery, as GPTQ does it for weights; here the
inputs are a head's queries). The form of the codes stays the same, and so do the kernels that read them.

Only NumPy is imported, so that `benchmarks/h200_ab_quality.py` can load this file without assay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DAMPING = 0.03  # of the mean weight, added to every number's: calibration queries are few


class Carry(NamedTuple):
    """The order in which the numbers of a summary are rounded, and what those behind take of what one is off.

    `shares` [numbers, numbers] are in that order, above the diagonal.
    """

    order: NDArray[np.int64]
    shares: NDArray[np.float32]


def seen(queries: Any, kind: str = "cuboid") -> NDArray[np.float32]:
    """What queries [queries, width] multiply a summary's numbers with: lower and upper corner, centre and radius, mean.

    >>> seen(np.array([[3.0, -4.0]])).tolist(), seen(np.array([[3.0, -4.0]]), "ball").tolist()
    ([[0.0, -4.0, 3.0, 0.0]], [[3.0, -4.0, 5.0]])
    """
    q = np.asarray(queries, np.float32)
    if kind == "cuboid":
        return np.concatenate([np.minimum(q, 0), np.maximum(q, 0)], 1)
    return np.column_stack([q, np.sqrt((q * q).sum(1))]) if kind == "ball" else q


def carry(moments: Any) -> Carry:
    """Order and shares for the second moments [numbers, numbers] of what queries multiply with.

    Two numbers that every query weighs alike: the second takes back all that the first is off, but for the damping.

    >>> carry(np.ones((2, 2))).shares.astype(float).round(2).tolist()
    [[0.0, -0.97], [0.0, 0.0]]
    """
    second = np.asarray(moments, np.float64)
    weights = np.diagonal(second)
    order = np.argsort(-weights, kind="stable")  # what weighs most is rounded while others can still make up for it
    damped = second + (DAMPING * weights.mean() + 1e-12) * np.eye(len(second))
    upper = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    shares = np.triu(upper / np.diagonal(upper)[:, None], 1)
    return Carry(order, np.ascontiguousarray(shares, np.float32))


def learnt(queries: Any, kind: str = "cuboid") -> Carry:
    """The same from calibration queries [queries, width] of a head."""
    rows = seen(queries, kind)
    return carry(rows.T.astype(np.float64) @ rows / len(rows))
