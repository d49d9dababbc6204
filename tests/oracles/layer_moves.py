"""All ways to deal layers to stages, tried one by one."""

from __future__ import annotations

from itertools import product


def slowest(unit: list[float], more: list[float], layers: int, most: list[int]) -> float | None:
    """The least time of the slowest stage, each with at least one layer and at most so many."""
    ways = product(*(range(1, cap + 1) for cap in most))
    ends = [
        max(count * each + extra for count, each, extra in zip(way, unit, more, strict=True))
        for way in ways if sum(way) == layers
    ]  # fmt: skip
    return min(ends, default=None)


def least_end(seconds: list[list[float]]) -> float:
    """Of items dealt to places in all ways, `seconds[place][item]`: when the last place ends at the soonest."""
    places, items = range(len(seconds)), range(len(seconds[0]))
    return min(
        max(sum(seconds[place][item] for item in items if way[item] == place) for place in places)
        for way in product(places, repeat=len(items))
    )
