"""What a patient reader would keep: the first of any two documents whose shingle sets are 70 % alike, found exactly.

Two sets with Jaccard similarity of at least tau share one of the rarest (1 − tau)·n + 1 shingles of either, so it is
enough to look those up (prefix filtering). It needs the frequency of every shingle beforehand, which nobody has who
reads a stream: it is the judge here, and no contestant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.fold.sketch import jaccard
from assay.sim.compiled import njit


def exact(
    counts: NDArray[np.int64], shingles: NDArray[np.uint32], tau: float = 0.7
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each document: the earlier kept one it is most like, if by tau or more, else −1; and how much alike.

    >>> import numpy as np
    >>> of, alike = exact(np.array([4, 4, 2]), np.array([1, 2, 3, 4, 1, 2, 3, 4, 1, 9], np.uint32))
    >>> of.tolist(), alike.tolist()
    ([-1, 0, -1], [0.0, 1.0, 0.0])
    """
    names, index, frequency = np.unique(shingles, return_inverse=True, return_counts=True)
    rank = np.empty(len(names), np.int64)
    rank[np.lexsort((names, frequency))] = np.arange(len(names))  # rarest first
    ranks = rank[index]
    of, alike = _join(counts, ranks, len(names), tau)
    return of, alike


@njit(cache=True, nogil=True)
def _join(counts: Any, ranks: Any, names: int, tau: float) -> Any:
    docs = len(counts)
    starts = np.zeros(docs + 1, np.int64)
    for d in range(docs):
        starts[d + 1] = starts[d] + counts[d]
        ranks[starts[d] : starts[d + 1]].sort()
    head = np.full(names + 1, -1, np.int64)  # the newest posting of each shingle; the last is that of no shingle
    following, posted = np.empty(len(ranks) + docs, np.int64), np.empty(len(ranks) + docs, np.int64)
    postings = 0
    seen = np.full(docs, -1, np.int64)
    of, alike = np.full(docs, -1, np.int64), np.zeros(docs)
    for d in range(docs):
        mine = ranks[starts[d] : starts[d + 1]]
        prefix = len(mine) - int(np.ceil(tau * len(mine) - 1e-9)) + 1 if len(mine) else 1
        for i in range(prefix):
            at = head[mine[i] if len(mine) else names]
            while at >= 0:
                other = posted[at]
                at = following[at]
                if seen[other] == d:
                    continue
                seen[other] = d
                if min(counts[d], counts[other]) < tau * max(counts[d], counts[other]) - 1e-9:
                    continue
                found = jaccard(mine, ranks[starts[other] : starts[other + 1]])
                if found >= tau and (found > alike[d] or of[d] < 0):
                    of[d], alike[d] = other, found
        if of[d] < 0:
            for i in range(prefix):
                name = mine[i] if len(mine) else names
                following[postings], posted[postings] = head[name], d
                head[name] = postings
                postings += 1
    return of, alike
