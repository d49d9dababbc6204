"""From text to shingles, from shingles to MinHash, from MinHash to a bitmap whose overlaps still tell far from farther.

A document is the set of its word 5-grams, each hashed to 32 bits. MinHash keeps, for each of K hash functions, the
least value over the set: two documents agree in a slot with probability J, the Jaccard similarity of their sets. The
bitmap forgets which slot a value came from: each value sets one of M bits. Unrelated documents agree in no slot at all,
and a graph of them has no slope to follow; their bitmaps still share a few bits by chance (about K²/M), more with some
and fewer with others, and that is slope enough.

>>> import numpy as np
>>> docs = sketched(["the quick brown fox jumps over the lazy dog", "the quick brown fox jumps over the lazy cat"])
>>> docs.counts.tolist(), float(jaccard(docs.shingles_of(0), docs.shingles_of(1)))
([5, 5], 0.6666666666666666)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from assay.data.engine.sorted_sets import common
from assay.data.fold.threads import in_threads
from assay.sim.compiled import njit
from assay.sim.streams import stream

WORDS = 5  # to a shingle
SLOTS = 112  # hash functions, K
BITS = 4096  # of a bitmap, the paper's M
_BITMAP_SEED = np.uint64(9173)
_U32 = np.uint32
_U64 = np.uint64


def _ones(typing: Any, word: Any) -> Any:
    """How many bits of a 64-bit word are set: one instruction."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


ones: Any = intrinsic(_ones)


@dataclass(frozen=True)
class Sketches:
    """A row a document: its shingles (sorted, each once, one behind the other), MinHash slots and bitmap."""

    counts: NDArray[np.int64]
    shingles: NDArray[np.uint32]
    slots: NDArray[np.uint32]
    bitmaps: NDArray[np.uint64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.concatenate(([0], np.cumsum(self.counts))))

    def __len__(self) -> int:
        return len(self.counts)

    def shingles_of(self, row: int) -> NDArray[np.uint32]:
        """One document's shingles."""
        starts: NDArray[np.int64] = self.starts  # type: ignore[attr-defined]
        return self.shingles[starts[row] : starts[row + 1]]


@cache
def multipliers(slots: int = SLOTS) -> NDArray[np.uint64]:
    """The odd numbers that make K hash functions out of one; the same everywhere, for indexes outlive programs."""
    return stream(0, "fold", "multipliers").integers(0, 2**63, slots, dtype=np.uint64) * _U64(2) + _U64(1)


def sketched(texts: Sequence[str], bits: int = BITS) -> Sketches:
    """The sketches of documents, in order; what is no UTF-8 is replaced."""
    encoded = [text.encode("utf-8", "replace") for text in texts]
    starts = np.concatenate(([0], np.cumsum([len(one) for one in encoded]))).astype(np.int64)
    data = np.frombuffer(b"".join(encoded) or b" ", np.uint8)
    room = starts // 2 + np.arange(len(starts))  # a document of n bytes has at most (n + 1) / 2 words
    loose = np.empty(int(room[-1]) + 1, np.uint32)
    counts = np.zeros(len(texts), np.int64)
    slots = np.zeros((len(texts), SLOTS), np.uint32)
    bitmaps = np.zeros((len(texts), bits // 64), np.uint64)
    by = multipliers()

    def some(first: int, last: int) -> None:
        _shingle(data, starts, room, first, last, loose, counts)
        _minhash(loose, room, counts, by, first, last, slots)
        _bitmap(slots, bits, first, last, bitmaps)

    in_threads(some, len(texts), least=64)
    return Sketches(counts, _packed(loose, room, counts), slots, bitmaps)


def bitmaps_of(slots: NDArray[np.uint32], bits: int = BITS) -> NDArray[np.uint64]:
    """The bitmaps that belong to MinHash slots."""
    found = np.zeros((len(slots), bits // 64), np.uint64)
    _bitmap(np.ascontiguousarray(slots), bits, 0, len(slots), found)
    return found


@njit(cache=True, nogil=True)
def _is_space(data: Any, at: int, end: int) -> int:
    """How many bytes of white space begin here, as `str.split` sees it; 0 where a word goes on."""
    c = data[at]
    if c == 32 or 9 <= c <= 13 or 28 <= c <= 31:
        return 1
    if c < 0xC2 or c > 0xE3:
        return 0
    if c == 0xC2:
        return 2 if at + 1 < end and (data[at + 1] == 0x85 or data[at + 1] == 0xA0) else 0
    if at + 2 >= end:
        return 0
    b, a = data[at + 1], data[at + 2]
    if c == 0xE1:
        return 3 if b == 0x9A and a == 0x80 else 0
    if c == 0xE2:
        thin = b == 0x80 and (0x80 <= a <= 0x8A or a == 0xA8 or a == 0xA9 or a == 0xAF)
        return 3 if thin or (b == 0x81 and a == 0x9F) else 0
    return 3 if c == 0xE3 and b == 0x80 and a == 0x80 else 0


@njit(cache=True, nogil=True)
def murmur32(data: Any, first: int, last: int) -> Any:
    """MurmurHash3 of bytes, 32 bits, seed 0."""
    h = _U32(0)
    blocks = (last - first) // 4
    for i in range(blocks):
        at = first + 4 * i
        k = _U32(data[at]) | _U32(data[at + 1]) << _U32(8) | _U32(data[at + 2]) << _U32(16)
        k = _U32(k | _U32(data[at + 3]) << _U32(24))
        k = _U32(k * _U32(0xCC9E2D51))
        k = _U32(k << _U32(15)) | _U32(k >> _U32(17))
        h = _U32(h ^ _U32(_U32(k) * _U32(0x1B873593)))
        h = _U32(_U32(h << _U32(13)) | _U32(h >> _U32(19)))
        h = _U32(_U32(h * _U32(5)) + _U32(0xE6546B64))
    k, at, left = _U32(0), first + 4 * blocks, (last - first) & 3
    for i in range(left):
        k = _U32(k | _U32(data[at + i]) << _U32(8 * i))
    if left:
        k = _U32(k * _U32(0xCC9E2D51))
        k = _U32(_U32(k << _U32(15)) | _U32(k >> _U32(17)))
        h = _U32(h ^ _U32(k * _U32(0x1B873593)))
    h = _U32(h ^ _U32(last - first))
    h = _U32(_U32(h ^ _U32(h >> _U32(16))) * _U32(0x85EBCA6B))
    h = _U32(_U32(h ^ _U32(h >> _U32(13))) * _U32(0xC2B2AE35))
    return _U32(h ^ _U32(h >> _U32(16)))


@njit(cache=True, nogil=True)
def _shingle(data: Any, starts: Any, room: Any, first: int, last: int, out: Any, counts: Any) -> None:
    """The hashed 5-grams of each document, sorted, each once; a shorter document is one shingle."""
    longest = 0
    for d in range(first, last):
        longest = max(longest, starts[d + 1] - starts[d])
    flat = np.empty(longest + 1, np.uint8)  # the words with one space between them
    begins = np.empty(longest // 2 + 2, np.int64)
    for d in range(first, last):
        words, size, at, end = 0, 0, starts[d], starts[d + 1]
        fresh = True
        while at < end:
            gap = _is_space(data, at, end)
            if gap:
                at += gap
                fresh = True
                continue
            if fresh:
                if words:
                    flat[size] = 32
                    size += 1
                begins[words] = size
                words += 1
                fresh = False
            flat[size] = data[at]
            size += 1
            at += 1
        begins[words] = size + 1
        if words == 0:
            continue
        n = max(1, words - WORDS + 1)
        mine = out[room[d] : room[d] + n]
        for w in range(n):
            mine[w] = murmur32(flat, begins[w], begins[min(words, w + WORDS)] - 1)
        mine.sort()
        kept = 1
        for w in range(1, n):
            if mine[w] != mine[kept - 1]:
                mine[kept] = mine[w]
                kept += 1
        counts[d] = kept


@njit(cache=True, nogil=True)
def _minhash(shingles: Any, room: Any, counts: Any, by: Any, first: int, last: int, slots: Any) -> None:
    k = len(by)
    low, high = np.empty(k, np.uint64), np.empty(k, np.uint32)
    for i in range(k):
        low[i], high[i] = by[i] & _U64(0xFFFFFFFF), _U32(by[i] >> _U64(32))
    least = np.empty(k, np.uint32)
    for d in range(first, last):
        if counts[d] == 0:
            continue
        least[:] = _U32(0xFFFFFFFF)
        for s in range(room[d], room[d] + counts[d]):
            h, narrow = _U64(shingles[s]), shingles[s]
            for i in range(k):  # the upper half of h · by[i] mod 2^64, in two products that fit a vector unit
                value = _U32(_U32((h * low[i]) >> _U64(32)) + _U32(narrow * high[i]))
                least[i] = min(least[i], value)
        slots[d] = least


@njit(cache=True, nogil=True)
def bit_of(value: Any, bits: int) -> int:
    """Which bit a slot's value sets: MurmurHash3 of its four bytes, the first of the two 64-bit halves."""
    k = _U64(value) * _U64(0x87C37B91114253D5)
    k = (k << _U64(31)) | (k >> _U64(33))
    h1 = _BITMAP_SEED ^ (k * _U64(0x4CF5AD432745937F))
    h1, h2 = h1 ^ _U64(4), _BITMAP_SEED ^ _U64(4)
    h1 = h1 + h2
    h2 = h2 + h1
    return int((_mixed(h1) + _mixed(h2)) & _U64(bits - 1))


@njit(cache=True, nogil=True)
def _mixed(h: Any) -> Any:
    h = (h ^ (h >> _U64(33))) * _U64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> _U64(33))) * _U64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> _U64(33))


@njit(cache=True, nogil=True)
def _bitmap(slots: Any, bits: int, first: int, last: int, bitmaps: Any) -> None:
    for d in range(first, last):
        for value in slots[d]:
            bit = bit_of(value, bits)
            bitmaps[d, bit >> 6] |= _U64(1) << _U64(bit & 63)


@njit(cache=True)
def _packed(loose: Any, room: Any, counts: Any) -> Any:
    found = np.empty(counts.sum(), np.uint32)
    at = 0
    for d in range(len(counts)):
        found[at : at + counts[d]] = loose[room[d] : room[d] + counts[d]]
        at += counts[d]
    return found


@njit(cache=True, nogil=True)
def jaccard(x: Any, y: Any) -> float:
    """The Jaccard similarity of two sorted sets; two empty documents are the same."""
    both = common(x, y)
    either = len(x) + len(y) - both
    return both / either if either else 1.0


@njit(cache=True, nogil=True)
def agreement(x: Any, y: Any) -> float:
    """The share of MinHash slots in which two documents agree: an estimate of their similarity."""
    same = 0
    for i in range(len(x)):
        same += x[i] == y[i]
    return same / len(x)
