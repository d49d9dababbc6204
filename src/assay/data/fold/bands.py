"""Bands of MinHash slots: documents that agree in all slots of some band are candidates.

Within a batch it is how FOLD finds duplicates; over everything kept (:class:`Bands`) it is FOLD's best rival, here in
flat tables of 12 bytes a band and document, grown in place and never scanned again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.fold.graph import Found
from assay.sim.compiled import njit

BANDS, ROWS = 14, 8  # the paper's, for within a batch: sure for copies, half of those at 0.7
_U64 = np.uint64
_LOOKED_AT = 64  # candidates, and documents of a band


@njit(cache=True, nogil=True)
def band_keys(slots: Any, bands: int, rows: int) -> Any:
    """A 64-bit key for each band of each document, odd so that 0 means none."""
    found = np.empty((len(slots), bands), np.uint64)
    for d in range(len(slots)):
        for b in range(bands):
            h = _U64(b + 1) * _U64(0x9E3779B97F4A7C15)
            for r in range(rows):
                h = (h ^ _U64(slots[d, b * rows + r])) * _U64(0xBF58476D1CE4E5B9)
                h = h ^ (h >> _U64(29))
            found[d, b] = h | _U64(1)
    return found


@njit(cache=True, nogil=True)
def _insert(table: Any, heads: Any, keys: Any, first: int, older: Any) -> None:
    """Put documents in front of the chains of their bands."""
    mask, bands = len(table) - 1, keys.shape[1]
    for d in range(len(keys)):
        for b in range(bands):
            key = keys[d, b]
            at = int(key >> _U64(1)) & mask
            while table[at] != 0 and table[at] != key:
                at = (at + 1) & mask
            older[first + d, b] = heads[at] if table[at] == key else -1
            table[at], heads[at] = key, first + d


@njit(cache=True, nogil=True)
def _chained(table: Any, heads: Any, keys: Any, older: Any, near: Any) -> None:
    """For each document the others of its bands, those first that share most of them; the newest of each band count."""
    mask, bands, most = len(table) - 1, keys.shape[1], near.shape[1]
    found, shared = np.empty(_LOOKED_AT, np.int32), np.empty(_LOOKED_AT, np.int64)
    for d in range(len(keys)):
        n = 0
        for b in range(bands):
            at = int(keys[d, b] >> _U64(1)) & mask
            while table[at] != 0 and table[at] != keys[d, b]:
                at = (at + 1) & mask
            other, steps = heads[at] if table[at] == keys[d, b] else -1, 0
            while other >= 0 and steps < _LOOKED_AT:
                i = 0
                while i < n and found[i] != other:
                    i += 1
                if i < n:
                    shared[i] += 1
                elif n < _LOOKED_AT:
                    found[n], shared[n] = other, 1
                    n += 1
                other = older[other, b]
                steps += 1
        order = np.argsort(-shared[:n], kind="mergesort")
        for i in range(most):
            near[d, i] = found[order[i]] if i < n else -1


class Bands:
    """Everything kept so far, by band; a look-up gives `most` candidates. Speaks as a graph does.

    >>> slots = np.arange(224, dtype=np.uint32).reshape(2, 112)
    >>> index = Bands(14, 8)
    >>> index.add(slots[:1], index.search(slots[:1]))
    >>> index.search(slots).ids[:, 0].tolist()
    [0, -1]
    """

    def __init__(self, bands: int, rows: int, *, most: int = 64) -> None:
        self.bands, self.rows, self.most, self.size = bands, rows, most, 0
        self._table, self._heads = np.zeros(1 << 14, np.uint64), np.zeros(1 << 14, np.int32)
        self._older = np.empty((0, bands), np.int32)

    def search(self, slots: NDArray[Any]) -> Found:
        """Possible duplicates of each document; how far they are, nobody knows yet."""
        out = np.empty((len(slots), self.most), np.int32)
        _chained(self._table, self._heads, band_keys(slots, self.bands, self.rows), self._older, out)
        return Found(out, np.where(out < 0, 2, 0).astype(np.float32))

    def add(self, slots: NDArray[Any], found: Found) -> None:
        """Documents that are kept, numbered as they come."""
        last = self.size + len(slots)
        if last > len(self._older):
            longer = np.empty((max(1024, last + last // 2), self.bands), np.int32)
            longer[: self.size] = self._older[: self.size]
            self._older = longer
        if 3 * last * self.bands > 2 * len(self._table):
            room = 1 << int(2 * last * self.bands).bit_length()
            table, heads = np.zeros(room, np.uint64), np.zeros(room, np.int32)
            _moved(self._table, self._heads, table, heads)
            self._table, self._heads = table, heads
        _insert(self._table, self._heads, band_keys(slots, self.bands, self.rows), self.size, self._older)
        self.size = last

    @property
    def nbytes(self) -> int:
        """Memory that holds something: the table is half empty on average, and half empty counts."""
        return self._table.nbytes + self._heads.nbytes + self.size * 4 * self.bands


@njit(cache=True, nogil=True)
def _moved(table: Any, heads: Any, to: Any, new: Any) -> None:
    mask = len(to) - 1
    for i in range(len(table)):
        if table[i] != 0:
            at = int(table[i] >> _U64(1)) & mask
            while to[at] != 0:
                at = (at + 1) & mask
            to[at], new[at] = table[i], heads[i]


def mates(slots: NDArray[np.uint32], bands: int = BANDS, rows: int = ROWS, most: int = 8) -> NDArray[np.int32]:
    """For each document of a batch the earlier ones that share a band with it, the earliest ones of each band first."""
    keys = band_keys(slots, bands, rows)
    found: NDArray[np.int32] = _earlier(keys, np.argsort(keys, axis=0, kind="stable"), most)
    return found


@njit(cache=True, nogil=True)
def _earlier(keys: Any, order: Any, most: int) -> Any:
    docs, bands = keys.shape
    out, counts = np.full((docs, most), -1, np.int32), np.zeros(docs, np.int64)
    for b in range(bands):
        begin = 0
        for i in range(1, docs + 1):
            if i < docs and keys[order[i, b], b] == keys[order[begin, b], b]:
                continue
            for later in range(begin + 1, i):
                d = order[later, b]
                for e in range(begin, min(later, begin + 4)):
                    other, known = order[e, b], False
                    for k in range(counts[d]):
                        known = known or out[d, k] == other
                    if not known and counts[d] < most:
                        out[d, counts[d]] = other
                        counts[d] += 1
            begin = i
    return out
