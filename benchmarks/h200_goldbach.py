"""Goldbach's conjecture to 10^12 on one GPU, checked by another method, beside a thread a number.

python3 benchmarks/h200_goldbach.py                 # NVIDIA GPU with NumPy and CuPy; no assay
"""

# mypy: ignore-errors
# ruff: noqa: D102, F821

from __future__ import annotations

import hashlib
import time

import cupy as cp
import numpy as np

import h200_common as common
from h200_common import module, timed

common.packages("assay.kernels.goldbach")

from assay.kernels.goldbach import tables as sieve  # noqa: E402

tell = None


class Sieving:
    """The arguments of the kernels for numbers below a limit, on the device."""

    def __init__(self, limit, words, threads, blocks_per_sm):
        self.words, self.threads = words, threads
        self.blocks = 132 * blocks_per_sm
        t = sieve.tables(limit, words)
        self.small = t.small
        self.module = module("goldbach/goldbach.cu", WORDS=words, BACK=sieve.BACK)
        self.args = (
            cp.asarray(t.wheels),
            cp.asarray(t.lengths),
            np.int32(len(t.lengths)),
            cp.asarray(t.primes),
            cp.asarray(t.inverses),
            np.int32(t.by_warp),
            np.int32(len(t.primes)),
        )
        self.small_gpu = cp.asarray(t.small)
        self.answered = words - sieve.BACK // 64 - 1

    def function(self, name):
        found = self.module.get_function(name)
        if 4 * self.words > 40_000:
            found.max_dynamic_shared_size_bytes = 4 * self.words
        return found

    def verify(self, begin, end, first=None):
        histogram = cp.zeros(len(self.small), cp.uint64)
        first = cp.full(len(self.small), 2**64 - 1, cp.uint64) if first is None else first
        left = cp.zeros(1 + sieve.MOST_LEFT, cp.uint64)
        self.function("goldbach")(
            (self.blocks,),
            (self.threads,),
            (
                np.uint64(begin),
                np.uint64(end),
                *self.args,
                self.small_gpu,
                np.int32(len(self.small)),
                np.int32(sieve.CAREFUL),
                histogram,
                first,
                left,
                np.int32(sieve.MOST_LEFT),
            ),
            shared_mem=4 * self.words,
        )
        return histogram, first, left

    def per_number(self, begin, end, segment=None):
        words = (end - begin + sieve.BACK) // 64 + 2
        segment = cp.empty(words, cp.uint32) if segment is None else segment
        histogram, left = cp.zeros(len(self.small), cp.uint64), cp.zeros(1 + sieve.MOST_LEFT, cp.uint64)
        self.function("sieve_segment")(
            (-(-words // self.words),),
            (self.threads,),
            (np.uint64(begin - sieve.BACK + 1), np.uint64(words), *self.args, segment),
            shared_mem=4 * self.words,
        )
        numbers = (end - begin) // 2
        self.function("per_number")(
            (-(-numbers // 256),),
            (256,),
            (
                np.uint64(begin),
                np.uint64(numbers),
                segment,
                self.small_gpu,
                np.int32(len(self.small)),
                histogram,
                left,
                np.int32(sieve.MOST_LEFT),
            ),
        )
        return histogram, left


def head(limit):
    """Even numbers 4..limit by a plain table: the least prime of each."""
    prime = np.zeros(limit + 1, np.bool_)
    prime[sieve.primes_below(limit + 1)] = True
    n = np.arange(4, limit + 1, 2)
    least = np.zeros(len(n), np.int64)
    least[0] = 2
    for p in sieve.primes_below(limit)[1:]:
        rest = np.flatnonzero(least == 0)
        if not len(rest):
            break
        fits = n[rest] - p
        hit = (fits >= 2) & prime[np.maximum(fits, 0)]
        least[rest[hit]] = p
    return n, least


def goldbach():
    top, piece = 10**12, 64 * 10**7
    reach = top + 10**7
    found = {}
    for words, threads, per_sm in (
        (49152, 1024, 1),
        (24576, 1024, 2),
        (24576, 512, 2),
        (12288, 512, 4),
        (16384, 512, 3),
    ):
        try:
            kernel = Sieving(reach, words, threads, per_sm)
            begin = (top - 8 * piece) // 64 * 64
            kernel.verify(begin, begin + piece)
            cp.cuda.Device().synchronize()
            start = time.perf_counter()
            kernel.verify(begin, begin + 4 * piece)
            cp.cuda.Device().synchronize()
            found[words, threads, per_sm] = seconds = time.perf_counter() - start
            tell("goldbach-tune", words=words, threads=threads, per_sm=per_sm, numbers=4 * piece, seconds=seconds)
        except Exception as error:
            tell("goldbach-tune", words=words, threads=threads, per_sm=per_sm, error=str(error)[:300])
    words, threads, per_sm = min(found, key=found.get)
    kernel = Sieving(reach, words, threads, per_sm)
    # The same range by the paper's thread a number, and by another tile: every count equal.
    begin = (top - 8 * piece) // 64 * 64
    ours, _, left = kernel.verify(begin, begin + piece)
    other, other_left = kernel.per_number(begin, begin + piece)
    third, _, _ = Sieving(reach, 12288, 512, 2).verify(begin, begin + piece)
    tell(
        "goldbach-check",
        same=bool((ours == other).all()),
        same_tile=bool((ours == third).all()),
        counted=int(ours.sum()),
        numbers=piece // 2,
        left=int(left[0]),
        other_left=int(other_left[0]),
    )
    segment = cp.empty((piece + sieve.BACK) // 64 + 2, cp.uint32)
    seconds = timed(
        {
            "tiles": lambda: kernel.verify(begin, begin + piece),
            "thread a number": lambda: kernel.per_number(begin, begin + piece, segment),
        },
        7,
    )
    for name, values in seconds.items():
        tell("goldbach-rival", method=name, numbers=piece, seconds=values, at=begin)
    del segment
    for exponent in (9, 10, 11, 12):
        cp.get_default_memory_pool().free_all_blocks()
        begun = time.perf_counter()
        limit = 10**exponent
        start = 1 << 20
        n, least = head(start - 2)
        firsts, counts = {}, {}
        for p in np.unique(least):
            firsts[int(p)], counts[int(p)] = int(n[np.argmax(least == p)]), int((least == p).sum())
        kernel = Sieving(limit + 10**7, words, threads, per_sm)
        step = 64 * (10**10 // 64)
        segments, left_over, chain = [], 0, hashlib.sha256()
        least_n = cp.full(len(kernel.small), 2**64 - 1, cp.uint64)
        for a in range(start, limit + 2, step):
            b = min(a + step, limit + 2)
            histogram, _, left = kernel.verify(a, b, least_n)
            histogram = histogram.get()
            left_over += int(left[0])
            chain.update(histogram.astype("<u8").tobytes())
            segments.append(
                {
                    "begin": a,
                    "end": b,
                    "counted": int(histogram.sum()),
                    "sha256": hashlib.sha256(histogram.astype("<u8").tobytes()).hexdigest()[:16],
                }
            )
            for i in np.flatnonzero(histogram):
                p = int(kernel.small[i])
                counts[p] = counts.get(p, 0) + int(histogram[i])
        for p, at in zip(kernel.small.tolist(), least_n.get().tolist(), strict=True):
            if at != 2**64 - 1:
                firsts[p] = min(firsts.get(p, at), at)
        seconds = time.perf_counter() - begun
        records, most = [], 0
        for at, p in sorted((at, p) for p, at in firsts.items()):
            if p > most:
                records.append((at, p))
                most = p
        tell(
            "goldbach",
            limit=limit,
            seconds=seconds,
            left=left_over,
            checked=sum(s["counted"] for s in segments) + len(n),
            most=most,
            records=records,
            chain=chain.hexdigest(),
            memory=cp.get_default_memory_pool().total_bytes(),
            words=words,
            threads=threads,
            histogram=sorted(counts.items())[:40],
            segments=segments if exponent == 12 else len(segments),
        )


PARTS = {"goldbach": goldbach}

if __name__ == "__main__":
    tell = common.Answers("h200_goldbach")
    tell.run(PARTS)
