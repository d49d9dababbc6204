"""Which block size each head gets: the most recall that a given number of blocks can buy, exactly.

Every head picks one size; the blocks of all heads together must not be more than at the uniform size, so summaries take
no more bytes. That is a knapsack with one choice a head. Sizes are powers of two, so a head's blocks are a whole number
of the largest blocks, and a table over "heads so far, blocks so far" finds the optimum in H · H · |sizes| steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.kernels.engine.arrays import plain
from assay.record.errors import BadInput

SIZES = (8, 16, 32, 64, 128)
MEAN = 32  # the uniform size whose number of blocks may be spent
_GRAIN = 2.0**50  # recalls are added up as whole numbers: sums are then exact and ties are ties

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def allocate(recall: ArrayLike, sizes: Sequence[int] = SIZES, mean: int = MEAN) -> Ints:
    """Each head's block size that makes the sum of `recall[head, size]` largest, with at most H/mean blocks a token.

    Of several best answers the one with fewest blocks; of those the one with larger blocks in earlier heads.

    >>> allocate([[0.9, 0.2, 0.1], [0.9, 0.9, 0.9]], sizes=(8, 16, 32), mean=16).tolist()
    [16, 32]
    >>> allocate([[0.9, 0.2, 0.1], [0.9, 0.9, 0.9]], sizes=(8, 16, 32), mean=12).tolist()
    Traceback (most recent call last):
    assay.record.errors.BadInput: mean 12 is none of the sizes 8, 16, 32
    >>> allocate([[0.9, 0.2, 0.1, 0.1], [0.9, 0.9, 0.9, 0.9]], sizes=(8, 16, 32, 64), mean=16).tolist()
    [16, 64]
    """
    gains, costs, room = _problem(recall, sizes, mean)
    heads = len(gains)
    # best[b]: the most that the heads from here on reach with b units left. From the last head to the first, so that
    # walking back settles ties in the order of the heads.
    best = np.zeros((heads + 1, room + 1), np.int64)
    best[:heads] = -1
    for head in range(heads - 1, -1, -1):
        for gain, cost in zip(gains[head], costs, strict=True):
            if cost > room:
                continue
            after = best[head + 1, : room + 1 - cost]
            fits = np.where(after < 0, -1, after + gain)
            best[head, cost:] = np.maximum(best[head, cost:], fits)
    left = int(np.flatnonzero(best[0] == best[0, room])[0])  # the fewest blocks that reach the optimum
    chosen = np.empty(heads, np.int64)
    for head in range(heads):
        for choice in range(len(sizes) - 1, -1, -1):  # larger blocks first
            rest = left - int(costs[choice])
            reached = best[head + 1, rest] if rest >= 0 else -1
            if reached >= 0 and reached + gains[head, choice] == best[head, left]:
                chosen[head], left = sizes[choice], rest
                break
    return chosen


def greedy(recall: ArrayLike, sizes: Sequence[int] = SIZES, mean: int = MEAN) -> Ints:
    """All heads begin with the largest blocks; the step of the best gain for its blocks is taken while one fits.

    >>> greedy([[0.9, 0.2, 0.1, 0.1], [0.9, 0.9, 0.9, 0.9]], sizes=(8, 16, 32, 64), mean=16).tolist()
    [16, 64]
    """
    gains, costs, room = _problem(recall, sizes, mean)
    at = np.full(len(gains), len(sizes) - 1)
    left = room - int(costs[at].sum())
    while True:
        steps = [
            ((gains[h, c] - gains[h, at[h]]) / (costs[c] - costs[at[h]]), -h, c)
            for h, c in itertools.product(range(len(gains)), range(len(sizes)))
            if c < at[h] and costs[c] - costs[at[h]] <= left and gains[h, c] > gains[h, at[h]]
        ]
        if not steps:
            chosen: Ints = np.array(sizes, np.int64)[at]
            return chosen
        _, h, choice = max(steps)
        left -= int(costs[choice] - costs[at[-h]])
        at[-h] = choice


def total(recall: ArrayLike, chosen: ArrayLike, sizes: Sequence[int] = SIZES) -> float:
    """The mean recall over heads of a choice.

    >>> total([[1.0, 0.5], [1.0, 0.0]], [8, 16], sizes=(8, 16))
    0.5
    """
    found = np.asarray(recall, np.float64)
    column = np.searchsorted(sizes, np.asarray(chosen))
    return float(found[np.arange(len(found)), column].mean())


def _problem(recall: ArrayLike, sizes: Sequence[int], mean: int) -> tuple[Ints, Ints, int]:
    """Gains as whole numbers, what each size costs in largest blocks, and how many there are to spend."""
    found = plain(recall, "recall", "biuf").astype(np.float64)
    sizes = plain(sizes, "sizes", "iu").ravel().tolist()
    if sizes != sorted(set(sizes)) or any(size < 1 or size & (size - 1) for size in sizes):
        raise BadInput(f"sizes must rise and be powers of two, got {', '.join(map(str, sizes))}")
    if mean not in sizes:
        raise BadInput(f"mean {mean} is none of the sizes {', '.join(map(str, sizes))}")
    if found.ndim != 2 or found.shape[1] != len(sizes) or not len(found):
        raise BadInput(f"recall must be [heads, {len(sizes)} sizes], got {found.shape}")
    if not np.isfinite(found).all() or found.min() < 0 or found.max() > 1:
        raise BadInput("recalls must be shares between 0 and 1")
    costs = np.array([sizes[-1] // size for size in sizes], np.int64)
    return np.rint(found * _GRAIN).astype(np.int64), costs, len(found) * sizes[-1] // mean
