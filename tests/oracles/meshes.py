"""Groups of ranks as Megatron-core forms them, by looking at every pair of ranks.

A rank's place on an axis is its number divided by the sizes of all axes before it, modulo the axis' own size. Two ranks
are in one group if they differ on no axis but the group's. Groups come in the order of their first ranks.
"""

from __future__ import annotations

from collections.abc import Mapping


def groups(sizes: Mapping[str, int], *names: str) -> list[list[int]]:
    """`sizes` of the axes, the fastest first; ranks of a group in ascending order."""
    ranks = 1
    for size in sizes.values():
        ranks *= size
    found: list[list[int]] = []
    for rank in range(ranks):
        for group in found:
            if all(_at(sizes, rank, axis) == _at(sizes, group[0], axis) for axis in sizes if axis not in names):
                group.append(rank)
                break
        else:
            found.append([rank])
    return found


def _at(sizes: Mapping[str, int], rank: int, axis: str) -> int:
    for name, size in sizes.items():
        if name == axis:
            return rank % size
        rank //= size
    raise KeyError(axis)
