"""A step as a Chrome trace, which Perfetto and chrome://tracing open: a row a stage and wire, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.record.store import write_whole
from assay.training.engine.graph import COMP, KINDS, SEND
from assay.training.engine.schedules import NAMES
from assay.training.engine.step import Outcome

ROWS = {COMP: 0, SEND: 1}  # and everything else that moves data is the third row of a stage


def write(outcome: Outcome, path: Path) -> None:
    """Write every operation of the step, in microseconds as the format asks."""
    write_whole(path, msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": list(events(outcome))}))


def events(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """One complete event an operation."""
    graph, seconds = outcome.graph, outcome.seconds
    ends = graph.dag.ends(seconds)
    starts = graph.dag.starts(ends)
    for stage in range(graph.pp):
        for row, name in enumerate(("compute", "sends", "data parallel")):
            yield {"ph": "M", "pid": stage, "tid": row, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": stage, "tid": 0, "name": "process_name", "args": {"name": f"stage {stage}"}}
    for node in np.flatnonzero((seconds > 0) & (graph.stage >= 0) & (graph.column <= 0)).tolist():
        kind = int(graph.kind[node])
        label = KINDS[kind] if kind != COMP else f"{NAMES[graph.what[node]]}{graph.mb[node]}"
        yield {
            "ph": "X", "pid": int(graph.stage[node]), "tid": ROWS.get(kind, 2), "ts": float(starts[node]) * 1e6,
            "dur": float(ends[node] - starts[node]) * 1e6, "name": label, "cat": KINDS[kind],
            "args": {"part": int(graph.part[node])},
        }  # fmt: skip
