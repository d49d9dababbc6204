"""The best way to put language work off, by trying all of them: for a handful of samples."""

from __future__ import annotations

from itertools import product
from typing import Any


def best(work: Any, held: Any, first: Any, m: int, buffer: float) -> float:
    """The least sum of squares of both columns of `work` over microbatches, the buffer kept."""
    return min(
        squares(work, at, m)
        for at in product(*(range(begin, m) for begin in first))
        if kept(held, first, at, m, buffer)
    )


def squares(work: Any, at: Any, m: int) -> float:
    """Of sums over microbatches."""
    total = 0.0
    for mb in range(m):
        for column in range(2):
            total += sum(float(work[i][column]) for i in range(len(at)) if at[i] == mb) ** 2
    return total


def kept(held: Any, first: Any, at: Any, m: int, buffer: float) -> bool:
    """Whether what waits at any time fits."""
    return all(
        sum(float(held[i]) for i in range(len(at)) if first[i] <= mb < at[i]) <= buffer + 1e-9 for mb in range(m)
    )
