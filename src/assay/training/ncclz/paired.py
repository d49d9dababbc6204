"""How much longer one of two ways takes, told from many short turns on a machine that does other things as well.

A sum on two busy cores takes one millisecond or four, as the system gives its threads their turn, and spells of either
last for a while. Means and medians of each way alone tell the spells apart and not the ways. So turns alternate in
fours, A B B A and then B A A B: both ways have the same places and follow each other equally often, and each turn is
compared with its neighbour only.

The answer is the median of the logarithms of these ratios. If both ways are the same, a ratio and its inverse are
equally likely, whatever the noise looks like, and the median is zero; a delay that hits every tenth turn moves a mean
by more than is asked about, and the median not at all. (Ratios of lower quartiles are as steady, and tell of the
luckiest turns only.) Its interval is a bootstrap of blocks of turns, as neighbours share a spell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.record.intervals import of_resampled
from assay.record.types import Estimate

Floats = NDArray[np.float64]
FOUR = 4  # turns that make up one comparison
BLOCK = 8  # fours that are drawn together: some tens of milliseconds
RESAMPLES = 1_000


def order(four: int) -> tuple[bool, bool, bool, bool]:
    """Whether it is the new way's turn, in the so many-th four.

    >>> order(0), order(1)
    ((False, True, True, False), (True, False, False, True))
    """
    odd = four % 2 == 1
    return odd, not odd, not odd, odd


def paired(seconds: Floats) -> tuple[Floats, Floats]:
    """Seconds of the new way and of the old, neighbours in the same place, two of every four: [fours, 2] each.

    >>> new, old = paired(np.array([[1.0, 2.0, 2.2, 1.1], [3.0, 1.0, 1.1, 3.3]]))
    >>> new.tolist(), old.tolist()
    ([[2.0, 2.2], [3.0, 3.3]], [[1.0, 1.1], [1.0, 1.1]])
    """
    turns = np.array([order(four) for four in range(len(seconds))])
    return seconds[turns].reshape(-1, 2), seconds[~turns].reshape(-1, 2)


def longer(seconds: Floats) -> Estimate:
    """By how much the new way takes longer than the old, 0.05 for 5 %; `seconds` are of turns in :func:`order`.

    >>> found = longer(np.tile([[1.0, 1.1, 1.1, 1.0], [2.2, 2.0, 2.0, 2.2]], (20, 1)))
    >>> round(found.value, 9), round(found.low, 9), round(found.high, 9)
    (0.1, 0.1, 0.1)
    """
    if seconds.ndim != 2 or seconds.shape[1] != FOUR or len(seconds) < 2 * BLOCK or not (seconds > 0).all():
        raise ValueError(f"needs positive seconds of {2 * BLOCK} fours or more, got an array of shape {seconds.shape}")
    new, old = paired(seconds)
    ratios = np.log(new / old)
    drawn = np.median(ratios[_blocks(len(ratios))].reshape(RESAMPLES, -1), axis=1)
    return of_resampled(float(np.expm1(np.median(ratios))), np.expm1(drawn), len(ratios) // BLOCK)


def more(seconds: Floats) -> float:
    """By how many seconds: the median of the same pairs' differences."""
    new, old = paired(seconds)
    return float(np.median(new - old))


def _blocks(fours: int) -> NDArray[np.int64]:
    """Which fours are drawn each time: runs of neighbours, the first following the last."""
    random = np.random.Generator(np.random.Philox(fours))
    first = random.integers(0, fours, (RESAMPLES, -(-fours // BLOCK)))
    return np.asarray((first[:, :, None] + np.arange(BLOCK)) % fours).reshape(RESAMPLES, -1)[:, :fours]
