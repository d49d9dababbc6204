"""Shared prefixes by comparing lists: slow and obviously right."""

from __future__ import annotations

from collections.abc import Sequence

Chain = Sequence[int]


def shared_blocks(one: Chain, other: Chain) -> int:
    """Leading blocks that two chains have in common."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def hit_ratio(chains: Sequence[Chain], lengths: Sequence[int]) -> float:
    """Share of blocks whose whole prefix an earlier chain had; `lengths` counts the blocks of every prompt."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for chain in chains:
        prefixes = [tuple(chain[: k + 1]) for k in range(len(chain))]
        hits += sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    return hits / sum(lengths) if sum(lengths) else 0.0


def walkers(chains: Sequence[Chain]) -> dict[tuple[int, ...], frozenset[int]]:
    """For every prefix, who has it."""
    found: dict[tuple[int, ...], set[int]] = {}
    for r, chain in enumerate(chains):
        for k in range(len(chain)):
            found.setdefault(tuple(chain[: k + 1]), set()).add(r)
    return {prefix: frozenset(who) for prefix, who in found.items()}


def segment_count(chains: Sequence[Chain]) -> int:
    """Maximal runs of blocks that the same chains walk."""
    who = walkers(chains)
    return sum(len(prefix) == 1 or who[prefix[:-1]] != who[prefix] for prefix in who)
