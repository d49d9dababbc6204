"""Sets as sorted arrays without repeats, compared by walking both at once."""

from __future__ import annotations

from typing import Any

from assay.sim.compiled import njit


@njit(cache=True, nogil=True)
def common(a: Any, b: Any) -> int:
    """How many members two sorted sets share.

    >>> import numpy as np
    >>> common(np.array([1, 4, 6, 9]), np.array([2, 4, 9, 10]))
    2
    """
    i = j = both = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            both += 1
            i += 1
            j += 1
        elif a[i] < b[j]:
            i += 1
        else:
            j += 1
    return both
