"""Sets of time as Python sets of single instants: slow and obviously right."""

from __future__ import annotations

from collections.abc import Iterable


def instants(intervals: Iterable[tuple[int, int]]) -> set[int]:
    """Every whole instant that one of the intervals covers."""
    return {t for start, end in intervals for t in range(start, end)}
