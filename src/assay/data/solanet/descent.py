"""A part's own graph: NN-descent whose threads never lock.

A round has two kernels. The first joins every point's sampled neighbours with each other and offers each pair to both
ends: an offer takes a slot of the end's small buffer by an atomic counter, and is dropped where the buffer is full.
The second merges each point's buffer into its sorted list; a list has one writer, so nobody waits for anybody. An
offer is one 64-bit word, the bits of its distance above the number, which sorts as the pair does. Rounds are cut into
blocks of points, and the buffers merged after each: small buffers then lose little.

- Dong, Moses and Li, "Efficient k-nearest neighbor graph construction for generic similarity measures", WWW 2011.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import cgutils
from numba.extending import intrinsic

from assay.data.vectors.graph import random_graph
from assay.data.vectors.kernels import offer, squared
from assay.sim.compiled import njit
from assay.sim.random import below, bits, key

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
LEAST_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Descended:
    """Neighbours by number, squared distances ascending, and what they took."""

    ids: Ids
    far: Floats
    distances: int
    rounds: int
    dropped: int  # offers that found a full buffer


def descend(
    rows: Floats, k: int, *, sample: float = 0.5, stop: float = 0.001, rounds: int = 20, threads: int = 1,
    seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None,
) -> Descended:  # fmt: skip
    """The k nearest of each row among the others, nearly all of them. One thread and one seed give one graph.

    >>> found = descend(np.arange(60, dtype=np.float32)[:, None], 4)
    >>> sorted(found.ids[30].tolist())
    [28, 29, 31, 32]
    """
    n = len(rows)
    if not 1 <= k < n:
        raise ValueError(f"{k} neighbours among {n} rows; 1 to {n - 1} expected")
    word = np.uint64(key(seed, "solanet", n, k))
    ids, far, fresh = random_graph(rows, k, word)
    most = max(int(sample * k), 1)
    buffer, taken = np.empty((n, max(k // 2, 8)), np.uint64), np.zeros(n, np.int32)
    samples = np.empty((2, n, 2 * most), np.int32)
    counts = np.empty((2, n, 2), np.int32)
    distances, dropped, turn, block = n * k, 0, 0, LEAST_BLOCK
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(1, rounds + 1):
            _sample(ids, fresh, samples, counts, word + np.uint64(turn))
            changed = start = 0
            while start < n:
                end = min(start + block, n)
                distances += _spread(pool, threads, start, end, _join, rows, ids, far, samples, counts, buffer, taken)
                lost = int(np.maximum(taken - buffer.shape[1], 0).sum())
                dropped += lost
                offered = int(taken.sum())
                changed += _spread(pool, threads, 0, n, _merge, ids, far, fresh, buffer, taken)
                if lost * 50 > offered:
                    block = max(block // 2, LEAST_BLOCK)
                elif lost * 200 <= offered:
                    block = min(2 * block, n)
                start = end
            progress(turn, rounds)
            if changed <= stop * n * k:
                break
    return Descended(ids, far, distances, turn, dropped)


def _spread(pool: ThreadPoolExecutor, threads: int, start: int, end: int, kernel: Any, *arrays: Any) -> int:
    """A kernel over a range of points, a thread to each piece of it; the sum of what the pieces return."""
    if threads == 1:
        return int(kernel(start, end, *arrays))
    cuts = np.linspace(start, end, threads + 1).astype(np.int64)
    return sum(pool.map(lambda i: int(kernel(cuts[i], cuts[i + 1], *arrays)), range(threads)))


@intrinsic
def _take_slot(typing, counts, place):
    """The counter at a place, which then is one more, at once for all threads."""

    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        at = cgutils.get_item_pointer(context, builder, kind, array, [arguments[1]], wraparound=False)
        return builder.atomic_rmw("add", at, context.get_constant(kind.dtype, 1), "monotonic")

    return counts.dtype(counts, place), generate


@njit(cache=True, nogil=True)
def _keep(lists, counts, way, u, v, word, draw):
    """Add v to one half of u's sample; a full one gives way by chance, each with the same."""
    half = lists.shape[1] // 2
    counts[u, way] += 1
    seen = counts[u, way]
    if seen <= half:
        lists[u, way * half + seen - 1] = v
    else:
        at = np.int64(below(bits(word, draw), seen))
        if at < half:
            lists[u, way * half + at] = v


@njit(cache=True, nogil=True)
def _sample(ids, fresh, samples, counts, word):
    """Draw new (0) and old (1) neighbours of each point, forward (0) and reverse (1)."""
    n, k = ids.shape
    half = samples.shape[2] // 2
    counts[:] = 0
    draw = np.uint64(0)
    for u in range(n):
        for j in range(k):
            v, old = ids[u, j], 0 if fresh[u, j] else 1
            draw += np.uint64(2)
            if old == 0:
                if counts[0, u, 0] == half:
                    continue  # it stays new, for a later round
                fresh[u, j] = False
            _keep(samples[old], counts[old], 0, u, v, word, draw)
            _keep(samples[old], counts[old], 1, v, u, word, draw + np.uint64(1))


@njit(cache=True, nogil=True)
def _listed(ids, far, u, v, distance):
    """Is v in u's list, given its distance?"""
    low, high = 0, ids.shape[1]
    while low < high:
        middle = (low + high) // 2
        if far[u, middle] < distance:
            low = middle + 1
        else:
            high = middle
    while low < ids.shape[1] and far[u, low] == distance:
        if ids[u, low] == v:
            return True
        low += 1
    return False


@njit(cache=True, nogil=True)
def _offer(ids, far, buffer, taken, u, v, distance):
    if not _listed(ids, far, u, v, distance):
        slot = _take_slot(taken, u)
        if slot < buffer.shape[1]:
            buffer[u, slot] = (np.uint64(np.float32(distance).view(np.uint32)) << np.uint64(32)) | np.uint64(v)


@njit(cache=True, nogil=True)
def _members(samples, counts, u, found):
    """One kind of sample without gaps and repeats; how many."""
    half, size = samples.shape[1] // 2, 0
    for way in range(2):
        for i in range(min(counts[u, way], half)):
            v, known = samples[u, way * half + i], False
            for j in range(size):
                known = known or found[j] == v
            if not known:
                found[size] = v
                size += 1
    return size


@njit(cache=True, nogil=True)
def _join(start, end, rows, ids, far, samples, counts, buffer, taken):
    """Offer all pairs of new neighbours, and of new and old ones, of the points of a range; distances computed."""
    width = samples.shape[2]
    who = np.empty(2 * width, np.int32)
    near = np.empty((2 * width, rows.shape[1]), np.float32)  # their rows side by side, in the nearest cache
    worst = np.empty(2 * width, np.float32)
    computed = 0
    for u in range(start, end):
        new = _members(samples[0], counts[0], u, who)
        size = new + _members(samples[1], counts[1], u, who[new:]) if new else 0
        for i in range(size):
            near[i], worst[i] = rows[who[i]], far[who[i], -1]
        for i in range(new):
            for j in range(i + 1, size):
                d = squared(near[i], near[j])
                if d < worst[i] and who[i] != who[j]:
                    _offer(ids, far, buffer, taken, who[i], who[j], d)
                if d < worst[j] and who[i] != who[j]:
                    _offer(ids, far, buffer, taken, who[j], who[i], d)
            computed += size - i - 1
    return computed


@njit(cache=True, nogil=True)
def _merge(start, end, ids, far, fresh, buffer, taken):
    """Move the offers of a range of points into their lists; how many went in."""
    went = 0
    for u in range(start, end):
        for slot in range(min(taken[u], buffer.shape[1])):
            pair = buffer[u, slot]
            d = np.uint32(pair >> np.uint64(32)).view(np.float32)
            went += offer(ids, far, fresh, u, np.int32(pair & np.uint64(0xFFFFFFFF)), d)
        taken[u] = 0
    return went
