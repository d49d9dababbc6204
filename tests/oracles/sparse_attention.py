"""Block sparse attention and the choice of block sizes, done the slow and obvious way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np


def best_sizes(recall: Any, sizes: Sequence[int], mean: int) -> tuple[Fraction, tuple[int, ...]]:
    """The largest sum of recalls over every combination of sizes with at most as many blocks, in exact fractions."""
    heads = len(recall)
    found: tuple[Fraction, tuple[int, ...]] = (Fraction(-1), ())
    for choice in itertools.product(range(len(sizes)), repeat=heads):
        if sum(Fraction(1, sizes[c]) for c in choice) <= Fraction(heads, mean):
            value = sum((Fraction(float(recall[h][c])) for h, c in enumerate(choice)), Fraction(0))
            found = max(found, (value, tuple(sizes[c] for c in choice)), key=lambda one: one[0])
    return found


def block_score(queries: Any, keys: Any) -> float:
    """Quest's: the most that a query's product with any point of the keys' cuboid can be; the best query counts."""
    low, high = keys.min(0), keys.max(0)
    return max(float(sum(max(x * a, x * b) for x, a, b in zip(q, low, high, strict=True))) for q in queries)


def decode(keys: Any, values: Any, queries: Any, size: int, budget: int, sink: int, end: int) -> tuple[Any, list[int]]:
    """One head: rank blocks, keep the best, softmax over what is kept; and which blocks those were."""
    tokens = len(keys)
    starts = list(range(sink, end, size))
    scores = [block_score(queries, keys[s : s + size]) for s in starts]
    picked = sorted(sorted(range(len(starts)), key=lambda b: (-scores[b], b))[: budget // size])
    read = [*range(sink), *range(end, tokens)]
    for block in picked:
        read += range(starts[block], starts[block] + size)
    out = []
    for q in queries:
        logits = np.array([float(q @ keys[t]) for t in read]) / np.sqrt(keys.shape[1])
        weights = np.exp(logits - logits.max())
        out.append((weights / weights.sum()) @ values[read])
    return np.array(out), picked


def codes(numbers: Any, scale: Any, zero: Any, bits: int, group: int, carry: Any) -> Any:
    """Codes number by number: the nearest step; with a carry, of what is left after what others were off."""
    found = np.zeros(numbers.shape, int)
    for block, row in enumerate(np.array(numbers, float)):
        order = range(len(row)) if carry is None else carry.order.tolist()
        for i, c in enumerate(order):
            z, step = float(zero[block // group, c]), float(scale[block // group, c])
            found[block, c] = min(max(round((row[c] - z) / step), 0), 2**bits - 1) if step else 0
            for j in range(i + 1, len(row) if carry is not None else 0):
                row[order[j]] -= (row[c] - z - step * found[block, c]) * float(carry.shares[i, j])
    return found
