"""One decode step on the CPU over heads of different block sizes: estimate, choose, attend, without padding.

The summaries of all heads lie one after the other, with prefix sums saying where a head begins: a head of many small
blocks just has more of them. A byte holds both corners of a channel, four bits each. Scales and zeros go into the query
once for each group of blocks, so estimating is one product a channel and corner. What was chosen is read block by block
where it lies; the partial results carry their maximum and their sum, so that parts of a cache can be merged.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.kernels.ab_sparse import blocks
from assay.kernels.ab_sparse.allocation import SIZES
from assay.kernels.ab_sparse.blocks import GROUP, Floats, Frame, Ints
from assay.kernels.ab_sparse.carry import Carry, learnt
from assay.kernels.engine.arrays import number, plain, singles
from assay.record.errors import BadInput
from assay.sim.compiled import njit


@dataclass(frozen=True)
class Ragged:
    """Caches of equal length [caches, heads, tokens, width], summarised in blocks of each head's size, ready to decode.

    `summaries` are bytes of two codes [caches, blocks of all heads, width], or corners [.., 2, width] in single
    precision where `bits` is 32. `fold` holds scale and zero of both corners of each group of tokens
    [caches, heads, groups, 4, width].
    """

    keys: Floats
    values: Floats
    sizes: Ints
    first: Ints  # the first block of each head, and behind the last
    where: Frame
    bits: int
    summaries: NDArray[np.uint8] | Floats
    fold: NDArray[np.float16]

    @property
    def nbytes(self) -> int:
        """What the summaries take."""
        return self.summaries.nbytes + (self.fold.nbytes if self.bits == 4 else 0)


def prepare(
    keys: ArrayLike, values: ArrayLike, sizes: ArrayLike, bits: int = 4, queries: ArrayLike | None = None
) -> Ragged:
    """Summarise caches [caches, heads, tokens, width] in blocks of `sizes` [heads]; 4 bits a number, or 32.

    With `queries` [steps, query heads, width] of calibration texts, summaries are rounded so that it matters least to
    such queries.

    >>> k = np.random.default_rng(0).normal(size=(1, 2, 512, 16))
    >>> prepare(k, k, [8, 128]).summaries.shape
    (1, 51, 16)
    """
    k, v, each = singles(keys, "keys"), singles(values, "values"), plain(sizes, "sizes", "iu").astype(np.int64)
    if k.ndim != 4 or k.shape != v.shape or each.shape != (k.shape[1],):
        raise BadInput(f"keys {list(k.shape)}, values {list(v.shape)} and {each.size} sizes do not go together")
    if not (k.size and len(each)):
        raise BadInput(f"keys {list(k.shape)} are empty: there is nothing to attend to")
    if each.min() < 1 or each.max() > GROUP or (each & (each - 1)).any():
        raise BadInput(f"sizes must be powers of two up to {GROUP}, got {', '.join(map(str, each.tolist()))}")
    if bits not in (4, 32):
        raise BadInput(f"summaries here have 4 or 32 bits a number, not {bits}")
    where = blocks.frame(k.shape[2], max(int(each.max()), SIZES[-1]))
    first = np.concatenate([[0], np.cumsum(where.body // each)])
    shape = (len(k), int(first[-1]), k.shape[3])
    groups = max(-(-(where.body // size) // blocks.per_group(size)) for size in each.tolist())
    fold = np.zeros((*k.shape[:2], groups, 4, k.shape[3]), np.float16)
    stored = np.empty(shape, np.uint8) if bits == 4 else np.empty((*shape[:2], 2, shape[2]), np.float32)
    carries = _carries(queries, *k.shape[1::2]) if bits == 4 and queries is not None else [None] * len(each)
    for cache in range(len(k) if where.body else 0):
        for head, size in enumerate(each):
            cut = k[cache, head, where.sink : where.end].reshape(-1, size, shape[2])
            rows, both = slice(first[head], first[head + 1]), np.concatenate([cut.min(1), cut.max(1)], 1)
            if bits == 32:
                stored[cache, rows] = both.reshape(len(both), 2, -1)
                continue
            code, *steps = blocks.codes(both, 4, blocks.per_group(int(size)), carries[head])
            stored[cache, rows] = code[:, : shape[2]] | code[:, shape[2] :] << 4
            for i, x in enumerate(steps):  # scale and zero of the lower corner, then of the upper
                fold[cache, head, : len(x), i::2] = x.reshape(len(x), 2, -1)
    return Ragged(k, v, each, first, where, bits, stored, fold)


def _carries(queries: ArrayLike, heads: int, width: int) -> list[Carry | None]:
    """How to round for each head, by the calibration queries that share it."""
    q = singles(queries, "queries")
    if q.ndim != 3 or not q.size or q.shape[1] % heads or q.shape[2] != width:
        raise BadInput(f"calibration queries must be [steps, a multiple of {heads}, {width}], got {list(q.shape)}")
    each = q.reshape(len(q), heads, -1, width)
    return [learnt(each[:, head].reshape(-1, width)) for head in range(heads)]


def decode(cache: Ragged, queries: ArrayLike, budget: int) -> Floats:
    """Attention of queries [caches, query heads, width] over sink, window and `budget` tokens of the best blocks.

    >>> random = np.random.default_rng(0)
    >>> k, v = random.normal(size=(2, 1, 2, 600, 16))
    >>> out = decode(prepare(k, v, [8, 64]), random.normal(size=(1, 4, 16)), budget=128)
    >>> out.shape
    (1, 4, 16)
    """
    if not isinstance(cache, Ragged):
        raise BadInput(f"a cache of summarise_kv's expected, not {type(cache).__name__}")
    q, budget = singles(queries, "queries"), min(number(budget, "budget", 0), cache.where.body)
    heads, width = cache.keys.shape[1], cache.keys.shape[3]
    if q.ndim != 3 or len(q) != len(cache.keys) or q.shape[1] % heads or q.shape[2] != width:
        raise BadInput(f"queries must be [{len(cache.keys)}, a multiple of {heads}, {width}], got {list(q.shape)}")
    counts = budget // cache.sizes
    chosen, begin = choose(cache, q, counts)
    return attend(cache, q, np.arange(len(q)), chosen, begin)[0]


def choose(cache: Ragged, q: Floats, counts: Ints) -> tuple[Ints, Ints]:
    """The `counts` best blocks of each head, for every cache, one head behind the other; and where a head's begin."""
    begin = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.empty((len(q), int(begin[-1])), np.int64)
    scored = estimate(cache, q)
    blocks.choose(scored, cache.first, begin, chosen)
    return chosen, begin


def estimate(cache: Ragged, q: Floats) -> Floats:
    """The score of every block [caches, blocks of all heads]: the largest over the queries that share its head."""
    scored = np.empty((len(q), int(cache.first[-1])), np.float32)
    if cache.bits == 4:
        _estimate_codes(q, cache.summaries, cache.fold.astype(np.float32), cache.sizes, cache.first, scored)
    else:
        _estimate_corners(q, cache.summaries, cache.first, scored)
    return scored


def attend(cache: Ragged, q: Floats, which: Ints, chosen: Ints, begin: Ints) -> tuple[Floats, Floats, Floats]:
    """Attention of each row of queries on cache `which[row]` over what was chosen, with maxima and sums for merging."""
    out = np.empty_like(q)
    most, total = np.empty(q.shape[:2], np.float32), np.empty(q.shape[:2], np.float32)
    where = cache.where
    _attend(
        q, cache.keys, cache.values, which, chosen, begin, cache.sizes, where.sink, where.end, where.tokens, out,
        most, total,
    )  # fmt: skip
    return out, most, total


# ------------------------------------------------------------------------------------------ compiled


@njit(cache=True, fastmath=True)
def _folded(q, scale, low, high, base):
    """Scales and zeros of a group of blocks, multiplied into the queries of a head."""
    for g in range(len(q)):
        total = np.float32(0)
        for c in range(q.shape[1]):
            down, up = min(q[g, c], np.float32(0)), max(q[g, c], np.float32(0))
            low[g, c], high[g, c] = down * scale[0, c], up * scale[2, c]
            total += down * scale[1, c] + up * scale[3, c]
        base[g] = total


@njit(cache=True, fastmath=True)
def _estimate_codes(q, codes, fold, sizes, first, scored):
    width, heads = q.shape[2], len(first) - 1
    group = q.shape[1] // heads
    low, high = np.empty((group, width), np.float32), np.empty((group, width), np.float32)
    base = np.empty(group, np.float32)
    lower, upper = np.empty(width, np.float32), np.empty(width, np.float32)
    for cache in range(len(q)):
        for head in range(heads):
            each = max(1, GROUP // sizes[head])
            for part in range(fold.shape[2]):
                _folded(q[cache, head * group : (head + 1) * group], fold[cache, head, part], low, high, base)
                begin = first[head] + part * each
                for block in range(begin, min(begin + each, first[head + 1])):
                    row = codes[cache, block]
                    for c in range(width):
                        lower[c] = np.float32(row[c] & np.uint8(15))
                        upper[c] = np.float32(row[c] >> np.uint8(4))
                    most = np.float32(-np.inf)
                    for g in range(group):
                        total = base[g]
                        for c in range(width):
                            total += low[g, c] * lower[c] + high[g, c] * upper[c]
                        most = max(most, total)
                    scored[cache, block] = most


@njit(cache=True, fastmath=True)
def _estimate_corners(q, corners, first, scored):
    width, heads = q.shape[2], len(first) - 1
    group = q.shape[1] // heads
    for cache in range(len(q)):
        for head in range(heads):
            for block in range(first[head], first[head + 1]):
                lower, upper = corners[cache, block, 0], corners[cache, block, 1]
                most = np.float32(-np.inf)
                for g in range(group):
                    x = q[cache, head * group + g]
                    total = np.float32(0)
                    for c in range(width):
                        total += max(x[c] * lower[c], x[c] * upper[c])
                    most = max(most, total)
                scored[cache, block] = most


@njit(cache=True, fastmath=True)
def _some(q, keys, values, begin, end, scale, logits, out, most, total):
    """Tokens begin..end of one head into the running results of a group of queries."""
    group, width = q.shape
    for g in range(group):
        top = most[g]
        for t in range(begin, end):
            dot = np.float32(0)
            for c in range(width):
                dot += q[g, c] * keys[t, c]
            logits[t - begin] = dot * scale
            top = max(top, logits[t - begin])
        shrink = np.exp(most[g] - top) if total[g] > 0 else np.float32(0)
        total[g] *= shrink
        for c in range(width):
            out[g, c] *= shrink
        for t in range(begin, end):
            weight = np.exp(logits[t - begin] - top)
            total[g] += weight
            for c in range(width):
                out[g, c] += weight * values[t, c]
        most[g] = top


@njit(cache=True)
def _attend(q, keys, values, which, chosen, begin, sizes, sink, end, tokens, out, most, total):
    heads = len(sizes)
    group, width = q.shape[1] // heads, q.shape[2]
    scale = np.float32(1 / np.sqrt(width))
    logits = np.empty(max(sink, tokens - end, sizes.max()), np.float32)
    for row in range(len(q)):
        for head in range(heads):
            k, v = keys[which[row], head], values[which[row], head]
            mine = slice(head * group, (head + 1) * group)
            x, o, m, s = q[row, mine], out[row, mine], most[row, mine], total[row, mine]
            o[:], m[:], s[:] = 0, np.float32(-1e30), 0
            if sink:
                _some(x, k, v, 0, sink, scale, logits, o, m, s)
            for at in range(begin[head], begin[head + 1]):
                start = sink + chosen[row, at] * sizes[head]
                _some(x, k, v, start, start + sizes[head], scale, logits, o, m, s)
            _some(x, k, v, end, tokens, scale, logits, o, m, s)
            for g in range(group):
                for c in range(width):
                    o[g, c] /= s[g]
