"""How long the sequences of a training batch are: drawn from a lognormal with a cut tail.

>>> batch = lognormal(tokens=100_000, seed=0)
>>> int(batch.sum()), bool(batch.max() <= LONGEST)
(100000, True)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream

MEDIAN, SPREAD = 4096, 1.6  # of the lognormal (assumed): a mean of 15 thousand tokens
SHORTEST, LONGEST = 128, 512 * 1024


def lognormal(
    tokens: int, seed: int, *, median: float = MEDIAN, spread: float = SPREAD, longest: int = LONGEST
) -> NDArray[np.int64]:
    """Sequences of so many tokens together; the last one is cut to fit."""
    random, found, left = stream(seed, "lengths", tokens), [], tokens
    while left > 0:
        drawn = int(np.clip(median * np.exp(spread * random.standard_normal()), SHORTEST, longest))
        found.append(min(drawn, left))
        left -= found[-1]
    return np.array(found, np.int64)
