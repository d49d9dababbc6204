"""Product quantisation: a vector as a few bytes, and distances to it by table lookup.

Jégou, Douze and Schmid, "Product quantization for nearest neighbor search", TPAMI 2011. Columns are cut into as many
parts as there are bytes; each part is replaced by the number of its nearest centre among 256.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.data.vectors.kernels import squared
from assay.sim.compiled import njit
from assay.sim.random import stream

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ProductCode:
    """Centres of each part: (parts, 256, columns of a part), the last part filled up with zeros.

    >>> rows = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    >>> code = ProductCode.train(rows, parts=4, rounds=4)
    >>> code.encode(rows).shape, code.decode(code.encode(rows)).shape
    ((500, 4), (500, 8))
    """

    centres: Floats
    width: int

    @classmethod
    def train(cls, rows: Floats, parts: int, rounds: int = 12, centres: int = 256, seed: int = 0) -> ProductCode:
        """Lloyd's algorithm on each part; an empty centre takes the row that is farthest from its own."""
        n, width = rows.shape
        if not 1 <= parts <= width or not 1 <= centres <= min(256, n):
            raise ValueError(f"{parts} parts of {width} columns, {centres} centres of {n} rows; no more than there are")
        rng = stream(seed, "product-code", n, width, parts)
        cut = _parts(rows, parts)
        made = np.empty((parts, centres, cut.shape[2]), np.float32)
        for p in range(parts):
            some = np.ascontiguousarray(cut[:, p])
            made[p] = some[rng.permutation(n)[:centres]]
            for _ in range(rounds):
                label, far = _nearest(some, made[p])
                count = np.bincount(label, minlength=centres)
                total = np.zeros_like(made[p], dtype=np.float64)
                np.add.at(total, label, some)
                full = count > 0
                made[p][full] = (total[full] / count[full, None]).astype(np.float32)
                empty = np.flatnonzero(~full)
                made[p][empty] = some[np.argsort(-far, kind="stable")[: len(empty)]]
        return cls(made, width)

    def encode(self, rows: Floats) -> Codes:
        """A byte for each part: the nearest centre."""
        cut = _parts(rows, len(self.centres))
        codes = [_nearest(np.ascontiguousarray(cut[:, p]), self.centres[p])[0] for p in range(len(self.centres))]
        return np.stack(codes, axis=1).astype(np.uint8)

    def decode(self, codes: Codes) -> Floats:
        """The vectors that the codes stand for."""
        found = self.centres[np.arange(len(self.centres)), codes]
        return np.ascontiguousarray(found.reshape(len(codes), -1)[:, : self.width])

    def table(self, query: Floats) -> Floats:
        """Squared distances from the query's parts to all centres, (parts, 256)."""
        cut = _parts(query[None], len(self.centres))[0]
        table: Floats = ((self.centres - cut[:, None]) ** 2).sum(axis=2)
        return table

    def distances(self, table: Floats, codes: Codes) -> Floats:
        """Squared distances from a query, by its table, to what the codes stand for."""
        out: Floats = _look_up(table, codes)
        return out


def _parts(rows: Floats, parts: int) -> Floats:
    """(n, parts, columns), zeros behind the last column."""
    n, width = rows.shape
    columns = -(-width // parts)
    padded = np.zeros((n, parts * columns), np.float32)
    padded[:, :width] = rows
    return padded.reshape(n, parts, columns)


@njit(cache=True)
def _nearest(rows, centres):
    label, far = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    for i in range(len(rows)):
        best, at = np.float32(np.inf), 0
        for c in range(len(centres)):
            total = squared(rows[i], centres[c])
            if total < best:
                best, at = total, c
        label[i], far[i] = at, best
    return label, far


@njit(cache=True)
def _look_up(table, codes):
    out = np.empty(len(codes), np.float32)
    for i in range(len(codes)):
        total = np.float32(0)
        for p in range(codes.shape[1]):
            total += table[p, codes[i, p]]
        out[i] = total
    return out
