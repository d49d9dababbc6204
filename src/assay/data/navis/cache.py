"""What memory keeps of the edge lists: a list at a time, those near the entries first; or pages, the latest used first.

A walk passes the lists around its entry points every time, and those far from them once. So a list counts for its uses
halved for every hop from the entry (`aware`); one that is far is let in when it is asked for the second time. The
rival (`lru`) keeps whole pages by when they were last used. Both evict the least of a random sixteen.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.data.navis.seek import CACHED, READ, STEPS, WORDS, Array, Geometry, Scratch, View
from assay.sim.compiled import njit
from assay.sim.random import below, bits

NEAR = 4  # hops within which a list is let in at once
SAMPLE = 16
_TICK, _FILLED = 0, 1


class ListCache:
    """A pool of lists or pages in so many bytes.

    >>> from assay.data.navis.seek import geometry
    >>> ListCache(geometry(768, 64, False, False), 26000, True).rows, ListCache(geometry(768, 64, True, True), 26000).rows
    (100, 6)
    """  # noqa: E501

    def __init__(self, geo: Geometry, nbytes: int, aware: bool = False, seed: int = 0) -> None:
        words = geo.span * WORDS if geo.by_page else geo.degree + 1
        self.geo, self.aware, self.rows = geo, aware, max(nbytes // (4 * words), 1)
        self.pool = np.zeros((self.rows, words), np.int32)
        self.row_of = np.empty(0, np.int32)
        self._asked = np.empty(0, np.uint8)
        self._unit_of = np.full(self.rows, -1, np.int64)
        self._uses, self._hop = np.zeros(self.rows, np.int32), np.zeros(self.rows, np.int16)
        self._state, self._word = np.zeros(2, np.int64), np.uint64(seed + 1)

    def grow(self, units: int) -> None:
        """Make room for the numbers of more lists, or pages."""
        more = max(units - len(self.row_of), 0)
        self.row_of = np.concatenate([self.row_of, np.full(more, -1, np.int32)])
        self._asked = np.concatenate([self._asked, np.zeros(more, np.uint8)])

    def learn(self, view: View, walk: Scratch) -> None:
        """Count what a walk used, and keep what it read if that is worth more than what must go."""
        _learn(
            view.slots, self.row_of, self._asked, self._unit_of, self._uses, self._hop, self._state, self.pool, walk,
            self.geo, self.aware, self._word,
        )  # fmt: skip

    def tag(self, nodes: Array, hop: int) -> None:
        """These lists are so near to an entry now; those that were never on disk are not here."""
        rows = self.row_of[nodes[nodes < len(self.row_of)]] if not self.geo.by_page else np.empty(0, np.int32)
        rows = rows[rows >= 0]
        self._hop[rows] = np.minimum(self._hop[rows], hop)

    def renew(self, units: Array, contents: Array) -> None:
        """These changed on disk."""
        rows = self.row_of[units]
        self.pool[rows[rows >= 0]] = contents[rows >= 0]


@njit(cache=True)
def _worth(aware, uses, hop):
    return np.float64(uses) / 2.0 ** min(hop, 40) if aware else np.float64(uses)


@njit(cache=True)
def _learn(slots, row_of, asked, unit_of, uses, hop, state, pool, x, geo, aware, word):
    for step in range(x.tally[STEPS]):
        if x.source[step] != CACHED and x.source[step] != READ:
            continue
        node = np.int64(x.expanded[step])
        unit = np.int64(slots[node]) // geo.per if geo.by_page else node
        state[_TICK] += 1
        row, near = row_of[unit], x.expanded_hop[step]
        if row < 0 and x.source[step] == READ:
            asked[unit] = min(asked[unit] + 1, 255)
            worth = _worth(aware, asked[unit], near)
            if aware and near > NEAR and asked[unit] < 2:
                continue
            row = _victim(state, unit_of, uses, hop, aware, word, worth)
            if row < 0:
                continue
            if unit_of[row] >= 0:
                row_of[unit_of[row]] = -1
            row_of[unit], unit_of[row], uses[row], hop[row] = row, unit, asked[unit] - 1, near
            if geo.by_page:
                begin = x.vector_row[step] * WORDS
                pool[row] = x.pages[begin : begin + geo.span * WORDS]
            else:
                pool[row] = x.lists[step]
        if row >= 0:
            uses[row] = uses[row] + 1 if aware else state[_TICK]
            hop[row] = min(hop[row], near)
        if aware and state[_TICK] % (64 * len(uses)) == 0:  # what was used long ago counts for less
            for i in range(len(uses)):
                uses[i] //= 2
            for i in range(len(asked)):
                asked[i] //= 2


@njit(cache=True)
def _victim(state, unit_of, uses, hop, aware, word, worth):
    if state[_FILLED] < len(unit_of):
        state[_FILLED] += 1
        return state[_FILLED] - 1
    least, at = np.inf, -1
    for i in range(SAMPLE):
        row = np.int64(below(bits(word, np.uint64(state[_TICK] * SAMPLE + i)), len(unit_of)))
        other = _worth(aware, uses[row], hop[row])
        if other < least:
            least, at = other, row
    return at if not aware or least < worth else -1
