"""Content-defined chunking: cut where the content says so, so that an insertion moves cuts and does not change them.

Fixed-size blocks counted from the start all change when one element is put in front. A content-defined cut looks only
at the last 32 elements: a gear hash rolls over them (shift by two bits, add a random word for the element, so that
what is older has left the 64-bit word), and where it falls below a threshold the chunk ends. `lo` and `hi` bound the
chunk; where no place up to `hi` is below the threshold, the one nearest to it is taken, so that even this cut is the
content's. Behind an edit the cuts fall into step with the old ones after a chunk or two. The elements may be bytes,
token ids or any integers.

- Muthitacharoen, Chen and Mazières, A Low-Bandwidth Network File System, SOSP 2001 (the idea).
- Xia et al., FastCDC, USENIX ATC 2016 (gear hash, skipping the minimum).

>>> import numpy as np
>>> ids = np.arange(1000) ** 2 % 977
>>> old, new = cuts(ids), cuts(np.concatenate([[7, 7, 7], ids]))
>>> old.tolist()
[0, 112, 176, 257, 331, 375, 526, 819, 1000]
>>> (new - 3).tolist()
[-3, 112, 176, 257, 331, 375, 526, 819, 1000]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.compiled import njit
from assay.sim.random import bits

WINDOW = 32  # elements a cut depends on: 64 bits, two shifted out per element
_KEY = np.uint64(0xA55A9E3779B97F4A)
_2 = np.uint64(2)


@njit(cache=True, nogil=True)
def _cuts(ids: Any, lo: int, hi: int, threshold: Any) -> Any:
    offsets = [0]
    start = 0
    n = len(ids)
    while start < n:
        end = min(start + hi, n)
        # What the window forgets by the first place a cut may be need not be hashed.
        at = min(max(start + lo - WINDOW, 0), end)
        word, least, best = np.uint64(0), ~np.uint64(0), end
        while at < end:
            word = (word << _2) + bits(_KEY, np.uint64(ids[at]))
            at += 1
            if at >= start + lo and word < least:
                least, best = word, at
                if word < threshold:
                    break
        if at == start + hi:
            at = best
        start = at
        offsets.append(start)
    return np.array(offsets)


def cuts(ids: ArrayLike, lo: int = 32, avg: int = 128, hi: int = 512) -> NDArray[np.int64]:
    """Offsets of the chunks of an integer array: 0, each cut, the length. No chunk but the last is shorter than `lo`.

    `avg` is the mean length that random content gets where `hi` does not interfere.

    >>> cuts([]).tolist(), cuts(np.frombuffer(b"where to cut, a text itself will say. " * 4, np.uint8)).tolist()
    ([0], [0, 40, 78, 116, 152])
    """
    if not 0 < lo < avg <= hi:
        raise ValueError(f"chunk sizes must satisfy 0 < lo < avg <= hi, not {lo}, {avg}, {hi}")
    elements = np.ascontiguousarray(ids)
    if elements.ndim != 1 or (elements.size and elements.dtype.kind not in "iu"):
        raise ValueError(f"chunking takes a flat array of integers, not {elements.dtype} of shape {elements.shape}")
    if not elements.size:
        return np.zeros(1, np.int64)
    offsets: NDArray[np.int64] = _cuts(elements, lo, hi, np.uint64(2**64 // (avg - lo + 1)))
    return offsets
