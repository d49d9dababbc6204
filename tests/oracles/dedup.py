"""Shingles, MinHash, bitmaps and deduplication, as one would explain them."""

from __future__ import annotations

from collections.abc import Sequence

import mmh3


def shingles(text: str) -> set[int]:
    words = text.split()
    if not words:
        return set()
    grams = [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))]
    return {mmh3.hash(gram.encode("utf-8", "replace"), signed=False) for gram in grams}


def slots(found: set[int], multipliers: Sequence[int]) -> list[int]:
    return [min((h * int(a) % 2**64) >> 32 for h in found) if found else 0 for a in multipliers]


def bitmap(values: Sequence[int], bits: int) -> set[int]:
    return {mmh3.hash64(int(v).to_bytes(4, "little"), seed=9173, signed=False)[0] % bits for v in values}


def jaccard(x: set[int], y: set[int]) -> float:
    return len(x & y) / len(x | y) if x | y else 1.0


def shared(slots: Sequence[Sequence[int]], bands: int, rows: int) -> list[dict[int, int]]:
    """For each document the earlier ones that agree with it in all slots of some band, and in how many bands."""
    found = []
    for d, mine in enumerate(slots):
        counts = [sum(mine[b * rows : (b + 1) * rows] == other[b * rows : (b + 1) * rows] for b in range(bands))
                  for other in slots[:d]]  # fmt: skip
        found.append({other: count for other, count in enumerate(counts) if count})
    return found


def kept(texts: Sequence[str], tau: float) -> list[bool]:
    """Each document is compared with every one that was kept before it."""
    sets: list[set[int]] = []
    keep = []
    for text in texts:
        found = shingles(text)
        keep.append(all(jaccard(found, other) < tau for other in sets))
        if keep[-1]:
            sets.append(found)
    return keep
