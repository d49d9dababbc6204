"""MLA decode on a CPU: the same walk over shares of blocks, one thread a worker, every latent read once for all heads.

A block's latents are multiplied with all heads while they are in the cache (S^T = K Q^T, tokens outside, heads inside),
then once more for O. With `rounded` the weights of the softmax are rounded to bfloat16 before the second product, where
a GPU rounds them: so the error of half precision can be told without one.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import prange

from assay.kernels.engine.arrays import plain, team
from assay.kernels.etap_mla.plan import Plan, plan
from assay.record.errors import BadInput
from assay.sim.compiled import njit

LATENT, WIDTH, BLOCK = 512, 576, 64
LOOSE = {"reassoc", "contract", "nsz"}  # sums in any order; infinities stay what they are


@dataclass(frozen=True)
class Problem:
    """One step of decoding: a query a sequence, and a paged cache of latents."""

    query: Any  # [batch, heads, 576]
    cache: Any  # [pages, page, 576]
    table: Any  # int32 [batch, pages of the longest]
    lengths: Any  # int32 [batch]
    scale: float

    @property
    def tokens(self) -> int:
        """All tokens that are looked at."""
        return int(self.lengths.sum())

    def latents(self, sequence: int) -> Any:
        """A sequence's latents side by side, without what lies after its end."""
        length, page = int(self.lengths[sequence]), self.cache.shape[1]
        pages = self.table[sequence, : -(-length // page)]
        return self.cache[pages].reshape(-1, WIDTH)[:length]


@njit(cache=True, fastmath=LOOSE)
def _scores(query, cache, pages, first, count, page, scale, score):
    """S^T of a block: four heads at a time for every token."""
    heads = query.shape[0]
    for i in range(count):
        row = cache[pages[(first + i) // page], (first + i) % page]
        h = 0
        while h + 4 <= heads:
            q0, q1, q2, q3 = query[h], query[h + 1], query[h + 2], query[h + 3]
            a = b = c = d = np.float32(0)
            for j in range(576):
                x = row[j]
                a += x * q0[j]
                b += x * q1[j]
                c += x * q2[j]
                d += x * q3[j]
            score[h, i], score[h + 1, i], score[h + 2, i], score[h + 3, i] = a * scale, b * scale, c * scale, d * scale
            h += 4
        while h < heads:
            q0, a = query[h], np.float32(0)
            for j in range(576):
                a += row[j] * q0[j]
            score[h, i] = a * scale
            h += 1


@njit(cache=True, fastmath=LOOSE)
def _softmax(score, count, top, total, out, rounded):
    """The block's share of a softmax that is not finished; what was summed before fades."""
    bits = score.view(np.uint32)
    for h in range(score.shape[0]):
        new = top[h]
        for i in range(count):
            new = max(new, score[h, i])
        fade, added = np.exp2(top[h] - new), np.float32(0)
        for i in range(count):
            score[h, i] = np.exp2(score[h, i] - new)
            added += score[h, i]
            if rounded:
                bits[h, i] = (bits[h, i] + np.uint32(0x7FFF) + ((bits[h, i] >> 16) & np.uint32(1))) & np.uint32(
                    0xFFFF0000
                )
        top[h], total[h] = new, total[h] * fade + added
        for j in range(512):
            out[h, j] *= fade


@njit(cache=True, fastmath=LOOSE)
def _sums(score, cache, pages, first, count, page, out):
    """O += P V of a block: four tokens at a time for every head. V is the latent, which is still in the cache."""
    i = 0
    while i + 4 <= count:
        r0 = cache[pages[(first + i) // page], (first + i) % page]
        r1 = cache[pages[(first + i + 1) // page], (first + i + 1) % page]
        r2 = cache[pages[(first + i + 2) // page], (first + i + 2) % page]
        r3 = cache[pages[(first + i + 3) // page], (first + i + 3) % page]
        for h in range(score.shape[0]):
            p0, p1, p2, p3, o = score[h, i], score[h, i + 1], score[h, i + 2], score[h, i + 3], out[h]
            for j in range(512):
                o[j] += p0 * r0[j] + p1 * r1[j] + p2 * r2[j] + p3 * r3[j]
        i += 4
    while i < count:
        r0 = cache[pages[(first + i) // page], (first + i) % page]
        for h in range(score.shape[0]):
            p0, o = score[h, i], out[h]
            for j in range(512):
                o[j] += p0 * r0[j]
        i += 1


@njit(cache=True, parallel=True, fastmath=LOOSE)
def _walk(query, cache, table, lengths, workers, pieces, scale, block, rounded, partial, weight):
    heads, page = query.shape[1], cache.shape[1]
    for worker in prange(len(workers) - 1):
        score = np.empty((heads, block), np.float32)
        for piece in range(workers[worker], workers[worker + 1]):
            sequence, first, last = pieces[piece]
            top, total = np.full(heads, -np.inf, np.float32), np.zeros(heads, np.float32)
            out = partial[piece]
            out[:] = 0
            for b in range(first, last):
                count = min(block, lengths[sequence] - b * block)
                _scores(query[sequence], cache, table[sequence], b * block, count, page, scale, score)
                _softmax(score, count, top, total, out, rounded)
                _sums(score, cache, table[sequence], b * block, count, page, out)
            for h in range(heads):
                weight[piece, h] = top[h] + np.log2(total[h])
                out[h] /= total[h]


@njit(cache=True)
def _combine(partial, weight, sequences, result):
    """Pieces of a sequence, weighed by their shares of its softmax."""
    for s in range(len(sequences) - 1):
        for h in range(result.shape[1]):
            top, total = -np.inf, 0.0
            for piece in range(sequences[s], sequences[s + 1]):
                top = max(top, weight[piece, h])
            for piece in range(sequences[s], sequences[s + 1]):
                share = np.exp2(weight[piece, h] - top)
                total += share
                result[s, h] += np.float32(share) * partial[piece, h]
            if total > 0:
                result[s, h] /= np.float32(total)


def decode(problem: Problem, made: Plan, rounded: bool = False) -> Any:
    """What attention gives for each sequence and head, float32 [batch, heads, 512]; zeros where there are no tokens."""
    batch, heads, _ = problem.query.shape
    partial = np.empty((len(made.pieces), heads, LATENT), np.float32)
    weight, result = np.empty((len(made.pieces), heads), np.float32), np.zeros((batch, heads, LATENT), np.float32)
    scale = np.float32(problem.scale / math.log(2))
    if len(made.pieces):
        _walk(problem.query, problem.cache, problem.table, problem.lengths, made.workers, made.pieces, scale,
              made.block, rounded, partial, weight)  # fmt: skip
        _combine(partial, weight, made.sequences, result)
    return result


def problem(query: Any, latent: Any, lengths: Any = None, scale: float | None = None, page: int = 64) -> Problem:
    """A problem from latents that lie side by side, [batch, length, 576], cut into pages in order."""
    query, latent = plain(query, "the query"), plain(latent, "the latents")
    if latent.ndim != 3 or latent.shape[2] != WIDTH or not latent.size:
        raise BadInput(f"the latents should be [batch, length, {WIDTH}] and not empty, not {list(latent.shape)}")
    if query.ndim != 3 or query.shape[::2] != (len(latent), WIDTH) or not query.size:
        raise BadInput(f"the query should be [{len(latent)}, heads, {WIDTH}], not {list(query.shape)}")
    if query.dtype.kind != "f" or latent.dtype.kind != "f":
        raise BadInput(f"query and latents should be floats, not {query.dtype} and {latent.dtype}")
    batch, longest, _ = latent.shape
    lengths = np.full(batch, longest) if lengths is None else plain(lengths, "the lengths")
    if lengths.shape != (batch,) or lengths.dtype.kind not in "iu" or lengths.min() < 0 or lengths.max() > longest:
        raise BadInput(f"the lengths should be {batch} whole numbers from 0 to {longest}")
    scale = WIDTH**-0.5 if scale is None else float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise BadInput(f"the scale should be a number above 0, not {scale}")
    each = -(-longest // page)
    cache = np.zeros((batch, each * page, WIDTH), np.float32)
    with np.errstate(over="ignore"):  # what single precision does not hold is noticed below
        cache[:, :longest], single = latent, query.astype(np.float32)
    live = np.arange(longest) < lengths[:, None]
    if not (np.isfinite(single).all() and np.isfinite(np.where(live[..., None], cache[:, :longest], 0)).all()):
        raise BadInput("query and latents before a sequence's end should be finite in single precision")
    table = np.arange(batch * each, dtype=np.int32).reshape(batch, each)
    return Problem(single, cache.reshape(-1, page, WIDTH), table, lengths.astype(np.int32), scale)


def mla_decode(query: Any, latent: Any, lengths: Any = None, scale: float | None = None, threads: int = 0) -> Any:
    """Attention of one new token over a cache of MLA latents, absorbed form: [batch, heads, 512], float32.

    `query` is [batch, heads, 576], `latent` [batch, length, 576] (the latent's 512 entries, then 64 rotated ones);
    what lies after a sequence's length is not looked at. `scale` is 576 ** -0.5 unless told.

    >>> q, c = np.ones((1, 2, 576), np.float32), np.ones((1, 3, 576), np.float32)
    >>> mla_decode(q, c, lengths=[2]).shape, float(mla_decode(q, c, lengths=[2]).max())
    ((1, 2, 512), 1.0)
    """
    asked = problem(query, latent, lengths, scale)
    return decode(asked, plan(asked.lengths, team(threads), BLOCK))
