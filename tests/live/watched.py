"""A watched job that was made up: stage times, reports, and a gathering of them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st
from rich.console import Console

from assay.live.watch.gather import Gathering
from assay.live.watch.picture import frame
from assay.live.watch.summary import Summary
from assay.live.watch.wire import Report
from assay.observe.frontier.collector import STAGES, Vectors

HEALTHY = np.array([4, 10, 20, 3, 0, 1]) * 10**6  # of a step, by stage, ns
ELSEWHERE = "another-machine"


def times(steps: int, rank: int = 0, stall: int = 0, culprit: int = -1) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Stage times of a rank; where `culprit` stalls in its data, the others wait in their backward pass."""
    rows = np.tile(HEALTHY, (steps, 1))
    rows[:, 0 if rank == culprit else 2] += stall
    return rows


def report(rank: int = 0, first: int = 0, rows: Any = None, size: int = 4, start: int = 1, **more: Any) -> Report:
    block = b"" if rows is None else Vectors(rank, first, more.pop("stages", STAGES), rows, size).to_bytes()
    told: dict[str, Any] = {"host": ELSEWHERE, "pid": 7, "steps": first + (0 if rows is None else len(rows))}
    return Report(rank=rank, size=size, start=start, vectors=block, **(told | more))


def job(steps: int = 60, size: int = 4, stall: int = 0, culprit: int = -1, **settings: Any) -> Gathering:
    """A job all of whose ranks reported at time 0."""
    watched = Gathering(**settings)
    for rank in range(size):
        watched.take(report(rank, 0, times(steps, rank, stall, culprit), size), now=0.0)
    return watched


def states(watched: Gathering, now: float) -> dict[int, str]:
    return {one.rank: one.state for one in watched.ranks(now)}


REPORTS = st.builds(
    Report,
    rank=st.integers(0, 99), size=st.integers(100, 120), start=st.integers(0, 2**61),
    host=st.sampled_from(["", "node", "ü" * 64]), pid=st.integers(0, 2**31 - 1),
    steps=st.integers(0, 2**53), stage=st.sampled_from(["", *STAGES]), since=st.floats(0, 1e9), last=st.booleans(),
    deferred=st.booleans(), vectors=st.binary(max_size=100),
)  # fmt: skip


def drawn(seen: Summary, width: int = 120, height: int = 40) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(frame(seen, width, height, "127.0.0.1:9099"))
    return console.export_text()
