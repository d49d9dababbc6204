"""Where a rank's time went, instant by instant: slow and obviously right."""

from __future__ import annotations

from collections.abc import Iterable

from tests.oracles.timeline import instants

Interval = tuple[int, int]


def parts(
    compute: Iterable[Interval], comm: Iterable[Interval], copies: Iterable[Interval], window: Interval
) -> dict[str, int]:
    """How many instants of the window belong to each part; each counts for the first that claims it."""
    all_of = set(range(*window))
    computing, talking, copying = (instants(some) & all_of for some in (compute, comm, copies))
    return {
        "total": len(all_of),
        "compute": len(computing),
        "exposed": len(talking - computing),
        "memcpy": len(copying - talking - computing),
        "idle": len(all_of - computing - talking - copying),
        "comm": len(talking),
        "overlapped": len(talking & computing),
    }
