"""Importing this loads every compiled kernel of a rank, so that ranks forked behind it have them at once."""

from __future__ import annotations

import numpy as np

from assay.data.solanet import search
from assay.data.solanet.descent import descend


def load_kernels() -> int:
    """Run each kernel on forty points, with the types that a rank gives them; how many distances were computed.

    >>> load_kernels() > 0
    True
    """
    rows = np.arange(80, dtype=np.float32).reshape(40, 2)
    made = descend(rows, 4)
    ids, far, fresh = made.ids.copy(), made.far.copy(), np.zeros((40, 4), np.bool_)
    order, back = search.walk_order(made.ids), search.reverse(made.ids, 3)
    hits, first, word = np.full((40, search.HITS), -1, np.int32), np.int32(40), np.uint64(1)
    computed = search.search_part(
        order, rows, made.ids, back, ids, far, fresh, rows, made.ids, first, hits, 16, 3, 16, word
    )
    points, table = np.arange(40), np.full((40, search.SEEN), -1, np.int32)
    to_point, to_node = np.empty(160, np.int32), np.empty(160, np.int32)
    n = search.follow(points, points, made.ids, 0, 1, 0, table, to_point, to_node)
    where, kept = to_node[:n].astype(np.int64), np.zeros(n, np.bool_)
    search.judge(to_point[:n], to_node[:n], where, rows, rows, ids, far, fresh, kept)
    return int(made.distances + computed + n)


load_kernels()
