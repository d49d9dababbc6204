"""Goldbach's conjecture checked on the CPU, 64 even numbers at a time, in segments that can be taken up again.

A segment is cut into tiles that fit the first cache. A tile's primes are bits; ORing them, shifted by each small prime
in turn, into the bits of the even numbers settles 64 of them at once, until a word is full. Each segment leaves a line:
how often each small prime was the least that served, as a digest. The lines are a certificate: anyone can redo them.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from assay.kernels.engine.arrays import team
from assay.kernels.goldbach import tables
from assay.record.errors import BadInput, unreadable
from assay.sim.compiled import njit

HEAD = 1 << 16  # numbers below are checked by a plain table
SEGMENT = 1 << 26  # numbers a line of the certificate stands for
TILE = 1024  # words of even numbers
BACK_WORDS = tables.BACK // 128
BEGINS = b'{"begin":'  # how each line does
LAST = 10**15  # beyond, the least primes of the smallest 16,384 would still do, but nobody would wait


@njit(cache=True)
def _ones(x):
    """How many bits of a word are set."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True)
def sieve(q_low, words, wheels, lengths, primes):
    """The primes among the odd numbers from q_low (1 modulo 128) on, a bit each; the wheels' own are left out."""
    n, first = len(words), (q_low - 1) // 128
    words[:] = 0
    at = 0
    for length in lengths:
        for w in range(n):
            words[w] |= wheels[at + (first + w) % length]
        at += length
    bits = 64 * n
    for p in primes:
        if p * p >= q_low + 2 * bits:
            break
        j = (p * p - q_low) // 2
        if j < 0:
            up = (p - q_low % p) % p
            j = (up + p if up & 1 else up) // 2
        while j < bits:
            words[j >> 6] |= np.uint64(1) << np.uint64(j & 63)
            j += p
    for w in range(n):
        words[w] = ~words[w]


@njit(cache=True, parallel=True)
def _verified(begin, end, wheels, lengths, primes, small, threads):
    """Of the even numbers in [begin, end): how many need each small prime, the first that does, what none settles."""
    span = 128 * TILE
    tiles = (end - begin + span - 1) // span
    counts = np.zeros((threads, len(small)), np.int64)
    firsts = np.full((threads, len(small)), np.int64(2**62))
    left = np.zeros((threads, 64), np.int64)
    for t in prange(threads):
        words = np.empty(TILE + BACK_WORDS + 1, np.uint64)
        for tile in range(tiles * t // threads, tiles * (t + 1) // threads):
            low = begin + tile * span
            sieve(low - tables.BACK + 1, words, wheels, lengths, primes)
            for w in range(TILE):
                n = low + 128 * w
                if n >= end:
                    break
                unsettled = ~np.uint64(0)
                if n + 128 > end:
                    unsettled = (np.uint64(1) << np.uint64((end - n) // 2)) - np.uint64(1)
                for i in range(len(small)):
                    shift = (tables.BACK - 1 - small[i]) >> 1
                    by, at = np.uint64(shift & 63), w + (shift >> 6)
                    prime = words[at] >> by
                    if by:
                        prime |= words[at + 1] << (np.uint64(64) - by)
                    fresh = unsettled & prime
                    if fresh:
                        counts[t, i] += _ones(fresh)
                        if firsts[t, i] == 2**62:
                            bit = 0
                            while not (fresh >> np.uint64(bit)) & np.uint64(1):
                                bit += 1
                            firsts[t, i] = n + 2 * bit
                        unsettled &= ~prime
                        if unsettled == 0:
                            break
                if unsettled and left[t, 0] < 63:
                    left[t, 0] += 1
                    left[t, left[t, 0]] = n
    return counts.sum(axis=0), firsts, left


@dataclass(frozen=True)
class Segment:
    """What one segment showed."""

    begin: int
    end: int
    counts: dict[int, int]  # how many even numbers have this prime as their least
    first: dict[int, int]  # the least even number that needs it
    digest: str

    @property
    def checked(self) -> int:
        """Even numbers of the segment that are sums of two primes."""
        return sum(self.counts.values())

    def line(self) -> str:
        """As a line of the certificate."""
        row = {"begin": self.begin, "end": self.end, "digest": self.digest, "counts": self.counts, "first": self.first}
        return json.dumps(row, separators=(",", ":")) + "\n"


def _segment(begin: int, end: int, counts: dict[int, int], first: dict[int, int]) -> Segment:
    text = ",".join(f"{p}:{count}" for p, count in sorted(counts.items()))
    return Segment(begin, end, counts, first, hashlib.sha256(f"{begin}-{end};{text}".encode()).hexdigest()[:32])


def head(end: int) -> Segment:
    """Even numbers from 4 to below `end`, by a plain table."""
    prime = np.zeros(end + 1, np.bool_)
    prime[tables.primes_below(end)] = True
    counts: dict[int, int] = {}
    first: dict[int, int] = {}
    open_ = np.arange(4, end, 2)
    for p in tables.primes_below(end).tolist():
        if not len(open_):
            break
        rest = open_ - p
        hit = (rest >= 2) & prime[np.maximum(rest, 0)]
        if hit.any():
            counts[p], first[p] = int(hit.sum()), int(open_[hit][0])
            open_ = open_[~hit]
    if len(open_):
        raise AssertionError(f"{open_[0]} is no sum of two primes")
    return _segment(4, end, counts, first)


@cache
def _constants(root: int) -> tuple[Any, ...]:
    groups = [tables.wheel(group, 64) for group in tables.WHEELS]
    lengths = np.array([len(group) for group in groups])
    every = tables.primes_below(max(root + 1, tables.BACK))
    above = tables.WHEELS[-1][-1]
    return np.concatenate(groups), lengths, every[every > above], every[(every > 2) & (every < tables.BACK)]


def check(begin: int, end: int, threads: int | None = None) -> Segment:
    """Even numbers in [begin, end), begin a multiple of 128 above 16,384."""
    wheels, lengths, primes, small = _constants(1 << math.isqrt(end).bit_length())
    cores = max(1, min(team(threads), (end - begin) // (128 * TILE)))
    counts, firsts, left = _verified(begin, end, wheels, lengths, primes, small, cores)
    if left[:, 0].any():
        n = int(left[left[:, 0] > 0][0, 1])
        raise AssertionError(
            f"an even number from {n} to {n + 126} has no prime below {tables.BACK} that serves: look further"
        )
    used = np.flatnonzero(counts)
    least = firsts.min(axis=0)
    return _segment(
        begin, end, {int(small[i]): int(counts[i]) for i in used}, {int(small[i]): int(least[i]) for i in used}
    )


@dataclass(frozen=True)
class Checked:
    """Every even number from 4 to `limit` is a sum of two primes; and what was seen on the way."""

    limit: int
    segments: tuple[Segment, ...]

    @property
    def checked(self) -> int:
        """How many even numbers."""
        return sum(segment.checked for segment in self.segments)

    @property
    def counts(self) -> dict[int, int]:
        """How many even numbers have each prime as the least of a pair."""
        total: dict[int, int] = {}
        for segment in self.segments:
            for p, count in segment.counts.items():
                total[p] = total.get(p, 0) + count
        return dict(sorted(total.items()))

    @property
    def records(self) -> list[tuple[int, int]]:
        """Even numbers whose least prime is larger than that of any before, with it."""
        first: dict[int, int] = {}
        for segment in self.segments:
            for p, n in segment.first.items():
                first[p] = min(n, first.get(p, n))
        found: list[tuple[int, int]] = []
        for n, p in sorted((n, p) for p, n in first.items()):
            if not found or p > found[-1][1]:
                found.append((n, p))
        return found

    @property
    def digest(self) -> str:
        """Of all segments' digests."""
        return hashlib.sha256("".join(segment.digest for segment in self.segments).encode()).hexdigest()


def _spans(limit: int) -> Iterator[tuple[int, int]]:
    yield 4, min(HEAD, limit + 2)
    for begin in range(HEAD, limit + 2, SEGMENT):
        yield begin, min(begin + SEGMENT, limit + 2)


def goldbach(limit: int, certificate: str | Path | None = None, threads: int | None = None) -> Checked:
    """Check every even number from 4 to `limit`; a certificate is a file that keeps segments, and is taken up again.

    >>> found = goldbach(100_000)
    >>> found.checked, found.records[-1]
    (49999, (63274, 293))
    """
    try:
        limit = operator.index(limit)
    except TypeError:
        raise BadInput(f"limit must be a whole number, got {limit!r}") from None
    if not 4 <= limit <= LAST:
        raise BadInput(f"limit must lie in 4..{LAST:.0e}, got {limit}")
    limit -= limit % 2
    certificate = None if certificate is None else Path(certificate)
    known = {(one.begin, one.end): one for one in _taken_up(certificate)} if certificate else {}
    done = []
    for begin, end in _spans(limit):
        segment = known.get((begin, end)) or (head(end) if begin == 4 else check(begin, end, threads))
        if certificate and (begin, end) not in known:
            with certificate.open("a", encoding="utf-8") as file:
                file.write(segment.line())
                file.flush()
                os.fsync(file.fileno())
        done.append(segment)
    return Checked(limit, tuple(done))


def _taken_up(certificate: Path) -> list[Segment]:
    """The segments so far. What a crash left behind the last whole line goes, or the next line would join it."""
    found = read(certificate) if certificate.exists() else []
    try:
        certificate.open("ab").close()  # now, and not after the first segment
    except OSError as error:
        raise BadInput(f"cannot write {certificate}: {error.strerror}") from None
    with certificate.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    return found


def read(certificate: Path) -> list[Segment]:
    """The segments of a certificate, each with the digest of its counts; a last line that was cut off is left out."""
    found: list[Segment] = []
    try:
        text = certificate.read_bytes()
        whole = text.rfind(b"\n") + 1
        lines, torn = text[:whole].decode("ascii").splitlines(), text[whole:].rstrip(b"\0")
    except OSError as error:
        raise unreadable(certificate, error) from None
    except UnicodeDecodeError as error:
        number = text[: error.start].count(b"\n") + 1
        raise BadInput(f"{certificate}:{number}: no line of a certificate") from None
    if not (torn.startswith(BEGINS) or BEGINS.startswith(torn)):
        raise BadInput(f"{certificate}:{len(lines) + 1}: no line of a certificate")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            counts, first = ({int(p): int(n) for p, n in row[name].items()} for name in ("counts", "first"))
            segment = _segment(int(row["begin"]), int(row["end"]), counts, first)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{certificate}:{number}: no line of a certificate") from None
        if segment.digest != row["digest"]:
            raise BadInput(f"{certificate}:{number}: the digest is not that of the counts")
        found.append(segment)
    return found


def redo(certificate: Path, which: int) -> bool:
    """Whether a segment of a certificate comes out the same again."""
    one = read(certificate)[which]
    again = head(one.end) if one.begin == 4 else check(one.begin, one.end)
    return again == one


def primes_among(q_low: int, words: int) -> NDArray[np.int64]:
    """The primes that the sieve finds from q_low on; for tests."""
    wheels, lengths, primes, _ = _constants(1 << math.isqrt(q_low + 128 * words).bit_length())
    found = np.empty(words, np.uint64)
    sieve(q_low, found, wheels, lengths, primes)
    bits = np.unpackbits(found.view(np.uint8), bitorder="little")
    return q_low + 2 * np.flatnonzero(bits).astype(np.int64)
