"""Blocks of a KV cache: what is kept of each to rank it by, in how many bits, and which tokens a query then reads.

The first tokens and the last ones are always read (attention sinks, and what was said just now). What lies between is
cut into blocks of a head's size. For ranking, a block is summarised:

- ``cuboid`` (Quest): the least and greatest of each channel of its keys; the score is the most that q·k could be.
- ``ball`` (ArkVale): their centre and the distance of the farthest; the score is the most that q·k could be.
- ``mean``: their mean.

All three are one thing, a pair of corners: score = Σ_c q_c · (upper_c where q_c > 0, else lower_c), over the key's
channels, for balls with one more, in which the query has its own length. They only rank, so attention stays exact on
what it reads.

Corners are stored in 16 bits, or in a few bits a number with a scale and a zero in half precision for each channel and
GROUP of tokens. A group's codes depend on nothing behind it, so that a growing cache codes each group once; and all
heads have equally many groups, so that equally many blocks are equally many bytes. Numbers are rounded to the nearest
step, or, where calibration queries are at hand, so that it matters least to those (`carry.py`).
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.kernels.ab_sparse.allocation import SIZES
from assay.kernels.ab_sparse.carry import Carry
from assay.record.errors import BadInput
from assay.sim.compiled import njit

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SINK = 16  # tokens at the beginning that are always read: a physical page
WINDOW = 16  # tokens at the end, at least
KINDS = ("cuboid", "ball", "mean")
GROUP = 2048  # tokens whose blocks share scales and zeros
HALF = float(np.finfo(np.float16).max)


class Frame(NamedTuple):
    """Where the blocks of a cache of `tokens` lie: behind the sink, as many whole largest blocks as the window leaves.

    >>> frame(4096)
    Frame(tokens=4096, sink=16, body=3968)
    >>> frame(100).body  # too short: all is read
    0
    """

    tokens: int
    sink: int
    body: int

    @property
    def end(self) -> int:
        """Where the window begins."""
        return self.sink + self.body


def frame(tokens: int, largest: int = SIZES[-1], sink: int = SINK, window: int = WINDOW) -> Frame:
    """Sink, body and window of a cache; the same for every block size, so that all read equally many tokens."""
    body = max(0, tokens - sink - window) // largest * largest
    return Frame(tokens, sink if body else 0, body)


class Corners(NamedTuple):
    """What ranks the blocks of one head: lower and upper corner of each [blocks, channels], and what they take."""

    lower: Floats
    upper: Floats
    nbytes: float


def summarise(keys: Floats, size: int, kind: str = "cuboid", bits: int = 16, carry: Carry | None = None) -> Corners:
    """Corners of the blocks of `keys` [body, channels], as they are after being stored in so many bits a number.

    >>> made = summarise(np.array([[1.0, 2.0], [3.0, 0.0]], np.float32), size=2)
    >>> made.lower.tolist(), made.upper.tolist(), made.nbytes
    ([[1.0, 0.0]], [[3.0, 2.0]], 8.0)
    """
    if kind not in KINDS:
        raise BadInput(f"summaries are {', '.join(KINDS)}, not '{kind}'")
    cut = keys.reshape(-1, size, keys.shape[-1])
    if kind == "cuboid":
        numbers = np.concatenate([cut.min(1), cut.max(1)], 1)
    else:
        numbers = cut.mean(1) if kind == "mean" else (cut.min(1) + cut.max(1)) / 2
        if kind == "ball":
            numbers = np.column_stack([numbers, np.sqrt(((cut - numbers[:, None]) ** 2).sum(2).max(1))])
    stored = rounded(numbers.astype(np.float32), bits, per_group(size), carry)
    nbytes = numbers.size * min(bits, 16) / 8
    if bits < 16:  # scale and zero
        nbytes += 4.0 * numbers.shape[1] * -(-len(numbers) // per_group(size))
    lower, upper = np.split(stored, 2, 1) if kind == "cuboid" else (stored, stored)
    return Corners(lower, upper, nbytes)


def per_group(size: int) -> int:
    """Blocks of a group.

    >>> per_group(8), per_group(128)
    (256, 16)
    """
    return max(1, GROUP // size)


def codes(
    numbers: Floats, bits: int, group: int, carry: Carry | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Each channel in steps of its own, anew for each `group` of blocks: codes, scales and zeros [groups, channels].

    zero + scale · code is nearest, or with a `carry` such that queries see least of what it is off.

    >>> code, scale, zero = codes(np.array([[0.0], [3.0], [15.0], [7.0]], np.float32), bits=4, group=3)
    >>> code.ravel().tolist(), scale.ravel().tolist(), zero.ravel().tolist()
    ([0, 3, 15, 0], [1.0, 0.0], [0.0, 7.0])
    """
    starts, most = np.arange(0, len(numbers), group), 2**bits - 1
    low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    zero = low.clip(-HALF, HALF).astype(np.float16)
    scale = ((high - low) / most).clip(0, HALF).astype(np.float16)
    z, s = zero.astype(np.float32), scale.astype(np.float32)
    if carry is None:
        z, s = (np.repeat(x, group, 0)[: len(numbers)] for x in (z, s))
        code = np.rint((numbers - z) / np.where(s > 0, s, 1)).clip(0, most).astype(np.uint8)
    else:
        code = np.empty(numbers.shape, np.uint8)
        in_turn = [np.ascontiguousarray(x[:, carry.order]) for x in (numbers, z, s)]
        code[:, carry.order] = _carried(*in_turn, group, carry.shares, np.float32(most))
    return code, scale, zero


def rounded(numbers: Floats, bits: int, group: int, carry: Carry | None = None) -> Floats:
    """Numbers [blocks, channels] as they come back from `bits` each: 32 and 16 are floats, fewer are steps."""
    if bits >= 16:
        return numbers if bits == 32 else to_bfloat16(numbers)
    code, scale, zero = codes(numbers, bits, group, carry)
    s, z = (np.repeat(x.astype(np.float32), group, 0)[: len(numbers)] for x in (scale, zero))
    return np.asarray(z + s * code, np.float32)


@njit(cache=True)
def _carried(rows, zero, scale, group, shares, most):
    """Codes of rows, rounded number by number; what one is off goes to those behind it. `rows` are used up."""
    code = np.empty(rows.shape, np.uint8)
    for block in range(len(rows)):
        row, z, s = rows[block], zero[block // group], scale[block // group]
        for c in range(len(row)):
            steps = np.rint((row[c] - z[c]) / s[c]) if s[c] > 0 else np.float32(0)
            steps = min(max(steps, np.float32(0)), most)
            code[block, c] = np.uint8(steps)
            off = row[c] - (z[c] + s[c] * steps)
            for other in range(c + 1, len(row)):
                row[other] -= off * shares[c, other]
    return code


def to_bfloat16(x: Floats) -> Floats:
    """The nearest numbers with eight bits of mantissa.

    >>> to_bfloat16(np.array([1.00390625, 3.0], np.float32)).tolist()
    [1.0, 3.0]
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.asarray(((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32))


def scores(queries: Floats, corners: Corners) -> Floats:
    """How much a block could matter to each query [queries, blocks].

    >>> box = Corners(np.array([[-1.0, 0.0]], np.float32), np.array([[2.0, 1.0]], np.float32), 0)
    >>> scores(np.array([[1.0, -1.0]], np.float32), box).tolist()
    [[2.0]]
    """
    if corners.lower.shape[1] == queries.shape[1] + 1:  # a ball: the last channel holds the radius
        queries = np.column_stack([queries, np.sqrt((queries**2).sum(1))]).astype(np.float32)
    if corners.lower is corners.upper:
        return np.asarray(queries @ corners.upper.T)
    return np.asarray(np.maximum(queries, 0) @ corners.upper.T + np.minimum(queries, 0) @ corners.lower.T)


def best(scored: Floats, count: int) -> Ints:
    """The `count` best blocks of each row, in rising order; equal ones by place.

    >>> best(np.array([[1.0, 3.0, 3.0, 2.0]], np.float32), 2).tolist()
    [[1, 2]]
    """
    chosen = np.empty((len(scored), count), np.int64)
    choose(np.ascontiguousarray(scored), np.array([0, scored.shape[1]]), np.array([0, count]), chosen)
    return chosen


def picks(queries: Floats, corners: Corners, count: int, group: int = 1) -> Ints:
    """The blocks that each group of queries reads: [queries / group, count]; a block counts as its best query says."""
    scored = scores(queries, corners)
    return best(scored.reshape(-1, group, scored.shape[1]).max(1), count)


def kept(where: Frame, chosen: Ints, size: int) -> NDArray[np.bool_]:
    """Which tokens are read [rows, tokens]: sink, window and the chosen blocks.

    >>> kept(Frame(8, 1, 6), np.array([[2]]), size=2).astype(int).tolist()
    [[1, 0, 0, 0, 0, 1, 1, 1]]
    """
    rows = np.zeros((len(chosen), where.body // size), bool)
    np.put_along_axis(rows, chosen, True, axis=1)
    found = np.ones((len(chosen), where.tokens), bool)
    found[:, where.sink : where.end] = np.repeat(rows, size, axis=1)
    return found


def attention(queries: Floats, keys: Floats) -> Floats:
    """The full softmax [queries, tokens] of one head: what recall is measured in."""
    logits = (queries @ keys.T) / np.float32(np.sqrt(keys.shape[1]))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def recall(weights: Floats, chosen: Ints, where: Frame, size: int) -> Floats:
    """The share of each row's attention that lies on what is read."""
    sums = weights[:, where.sink : where.end].reshape(len(weights), -1, size).sum(2)
    always = weights[:, : where.sink].sum(1) + weights[:, where.end :].sum(1)
    return np.asarray(always + np.take_along_axis(sums, chosen, 1).sum(1))


def budget(where: Frame, share: float, largest: int = SIZES[-1]) -> int:
    """Tokens that the chosen blocks of a head have: so many that with sink and window it is at most `share` of all.

    At least one largest block, so that every size reads equally many.

    >>> budget(frame(8192), 0.04), budget(frame(1024), 0.04)
    (128, 128)
    """
    always = where.tokens - where.body
    return min(where.body, max(largest, int(share * where.tokens - always) // largest * largest))


@njit(cache=True)
def _kth(values, k):
    """The k-th largest, by partitioning in place."""
    left, right, want = 0, len(values) - 1, k - 1
    while left < right:
        pivot = values[(left + right) // 2]
        i, j = left, right
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if want <= j:
            right = j
        elif want >= i:
            left = i
        else:
            break
    return values[want]


@njit(cache=True)
def choose(scored, first, begin, chosen):
    """The best blocks of each head, in the order they lie; of equal ones the first."""
    for cache in range(len(scored)):
        for head in range(len(first) - 1):
            count = begin[head + 1] - begin[head]
            if count == 0:
                continue
            row = scored[cache, first[head] : first[head + 1]]
            bound = _kth(row.copy(), count)
            above = 0
            for x in row:
                above += x > bound
            equal, at = count - above, begin[head]
            for block in range(len(row)):
                if row[block] > bound or (row[block] == bound and equal > 0):
                    equal -= row[block] == bound
                    chosen[cache, at] = block
                    at += 1


def checked(keys: Any, values: Any, queries: Any) -> tuple[Floats, Floats, Floats]:
    """Keys and values [heads, tokens, width] and queries [steps, query heads, width], or one clear complaint."""
    found = []
    for name, array, axes in (
        ("keys", keys, "heads, tokens, width"),
        ("values", values, "heads, tokens, width"),
        ("queries", queries, "steps, query heads, width"),
    ):
        x = np.asarray(array)
        if x.ndim != 3 or x.dtype.kind not in "fiu" or not x.size:
            raise BadInput(f"'{name}' must be numbers [{axes}], got {x.dtype} {list(x.shape)}")
        if not np.isfinite(x).all():
            raise BadInput(f"'{name}' holds numbers that are not finite")
        found.append(np.ascontiguousarray(x, np.float32))
    k, v, q = found
    if k.shape[:2] != v.shape[:2] or k.shape != v.shape:
        raise BadInput(f"keys {list(k.shape)} and values {list(v.shape)} must have the same shape")
    if q.shape[2] != k.shape[2] or q.shape[1] % len(k):
        raise BadInput(
            f"queries {list(q.shape)} do not go with keys {list(k.shape)}: equal width, and a multiple of "
            f"{len(k)} query heads"
        )
    return k, v, q
