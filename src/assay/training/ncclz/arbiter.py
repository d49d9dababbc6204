"""Which coder for this frame, and is coding worth it at all: a look at a few symbols, and a price for each choice.

A frame of a pipeline costs whichever takes longer, its wire or its coding. Bits a symbol are estimated from runs of the
frame, at most 64 KiB of it. Whatever is chosen, the symbols that arrive are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.training.ncclz import coders

RUNS = 16  # of a block each, spread over the frame: 16 KiB of symbols
SPARE = 0.03  # bits a symbol that Huffman's code is above the entropy
SURE = 1.2  # times as long must raw floats be expected to take: links are measured in a moment, and speeds differ


@dataclass(frozen=True)
class Speeds:
    """Seconds a symbol: to encode and decode by each coder, and for the way from floats to codes and back."""

    raw: float
    fixed: float
    huffman: float
    interface: float

    @property
    def coders(self) -> tuple[float, float, float]:
        """By a coder's number."""
        return self.raw, self.fixed, self.huffman


# What a ring on one core of an AMD EPYC spends; the same everywhere, as ranks must not differ in whether they code.
SPEEDS = Speeds(3e-10, 2e-9, 4.3e-9, 1.3e-9)


@njit(cache=True, nogil=True)
def _looked_at(symbols):  # type: ignore[no-untyped-def]
    """Bits a symbol, packed and by Huffman's code, and bytes of its table, as a few runs let one expect."""
    count, block = len(symbols), coders.BLOCK
    runs = min(RUNS, count // block)
    if runs == 0:
        runs, block = 1, count
    some = np.empty(runs * block, np.int32)
    packed = 0.0
    for r in range(runs):
        start = r * ((count - block) // max(1, runs - 1))
        low = high = symbols[start]
        for i in range(block):
            symbol = symbols[start + i]
            some[r * block + i] = symbol
            low, high = min(low, symbol), max(high, symbol)
        span, width = np.int64(high) - np.int64(low), 0
        while span >> width:
            width += 1
        packed += width + 40.0 / block
    base, size = coders.window_of(some)
    counts = np.zeros(size + 1, np.int64)
    for symbol in some:
        k = np.int64(symbol) - base
        counts[k if 0 <= k < size else size] += 1
    n, entropy, kinds = len(some), 0.0, 0
    for k in range(size + 1):
        if counts[k]:
            entropy -= counts[k] / n * math.log2(counts[k] / n)
            kinds += 1
    entropy += (kinds - 1) / (2 * n * math.log(2.0))  # few symbols see too little of it (Miller and Madow)
    return packed / runs, max(1.0, entropy + SPARE) + 32.0 * counts[size] / n, size / 2.0 + 90.0


def estimate(symbols: NDArray[np.int32]) -> NDArray[np.float64]:
    """Bytes of the frame by coder: raw, fixed, Huffman.

    >>> estimate(np.arange(4096, dtype=np.int32) % 4).astype(int).tolist()
    [16392, 1112, 1139]
    """
    count = len(symbols)
    raw = coders.HEAD + 4.0 * count
    if count == 0:
        return np.full(3, raw)
    packed, coded, table = _looked_at(symbols)
    return np.minimum([raw, coders.HEAD + count * packed / 8, coders.HEAD + table + count * coded / 8], raw)


@dataclass(frozen=True)
class Arbiter:
    """Chooses for a link of so many bytes a second, where about so many `frames` follow one another.

    `hops` is how often a rank sends each symbol, `word` the bytes of a number that is not coded.
    """

    bandwidth: float
    speeds: Speeds
    frames: int = 4
    hops: float = 1.0
    word: int = 4

    def choose(self, symbols: NDArray[np.int32]) -> int:
        """The coder that gets the frame through soonest.

        >>> slow, quick = (Arbiter(rate, Speeds(1e-10, 2e-9, 4e-9, 2e-9)) for rate in (1e8, 1e11))
        >>> symbols = np.arange(100_000, dtype=np.int32) % 16
        >>> coders.NAMES[slow.choose(symbols)], coders.NAMES[quick.choose(symbols)]
        ('fixed', 'raw')
        """
        wire, beside = estimate(symbols) / self.bandwidth, self.speeds.interface / self.hops
        each = zip(wire, self.speeds.coders, strict=True)
        return int(np.argmin([self.piped(w, len(symbols) * (s + beside)) for w, s in each]))

    def piped(self, wire: float, coding: float) -> float:
        """Seconds of a frame among others: the longer of both, and its share of the pipe's filling."""
        return float(max(wire, coding) + min(wire, coding) / self.frames)

    @property
    def hopeless(self) -> bool:
        """Whether raw floats would be there before frames of no length at all were coded, or not long after."""
        coding = self.speeds.interface + self.hops * self.speeds.fixed
        return SURE * coding > self.hops * self.word / self.bandwidth
