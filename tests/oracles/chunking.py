"""Content-defined cuts, said plainly: at every place a cut may be, hash the 32 elements before it from scratch."""

from __future__ import annotations

from collections.abc import Sequence

from assay.sim.chunking import _KEY, WINDOW
from assay.sim.random import bits

MASK = 2**64 - 1


def word(elements: Sequence[int]) -> int:
    total = 0
    for element in elements:
        total = (4 * total + int(bits(_KEY, element & MASK))) & MASK
    return total


def cuts(ids: Sequence[int], lo: int, avg: int, hi: int) -> list[int]:
    offsets = [0]
    while offsets[-1] < len(ids):
        start = offsets[-1]
        end = min(start + hi, len(ids))
        words = {p: word(ids[max(0, p - WINDOW) : p]) for p in range(start + lo, end + 1)}
        below = [p for p, value in words.items() if value < 2**64 // (avg - lo + 1)]
        if below:
            offsets.append(below[0])
        elif end == start + hi:
            offsets.append(min(words, key=lambda p: words[p]))
        else:
            offsets.append(end)
    return offsets
