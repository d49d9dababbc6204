"""A run as a Chrome trace, which Perfetto and chrome://tracing open: spans of every instance, and its counters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from assay.record.store import write_whole
from assay.serving.engine.outcome import Outcome


def write(outcome: Outcome, path: Path) -> None:
    """Write the spans and counters of a run, in microseconds as the format asks."""
    write_whole(path, msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": list(events(outcome))}))


def events(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """One complete event per span, one counter event beside it."""
    for i, spec in enumerate(outcome.fleet.instances):
        name = f"instance {i}{' ' + spec.name if spec.name else ''}"
        yield {"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": name}}
    for row in outcome.spans:
        m = int(row["iterations"])
        seconds = m * row["alpha"] + row["gamma"] * (0.5 * m * (m - 1))
        b, n, i = int(row["decodes"]), int(row["tokens"]), int(row["instance"])
        kind = "decode" if n == b else "prefill" if b == 0 else "mixed"
        start = float(row["start"]) * 1e6
        figures = {"iterations": m, "decodes": b, "tokens an iteration": n, "waiting": int(row["waiting"])}
        yield {
            "ph": "X", "pid": 0, "tid": i, "ts": start, "dur": float(seconds) * 1e6,
            "name": f"{kind} x{m}", "cat": kind, "args": figures,
        }  # fmt: skip
        counters = {"decodes": b, "waiting": int(row["waiting"]), "kv_blocks": int(row["kv_blocks"])}
        yield {"ph": "C", "pid": 0, "ts": start, "name": f"instance {i}", "args": counters}
