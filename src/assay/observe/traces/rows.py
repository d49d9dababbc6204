"""A benchmark row as evidence: a folder with the traces of all ranks and the workload card beside them.

:func:`load` reads such a folder; metrics are computed from it later, by :mod:`assay.observe.traces.metrics`, and never
change it. A folder without a card gets one drafted from what its traces say of themselves.

Beside the frame a row holds what the frame has no column for: the grid of every kernel, and the device's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from assay.observe.traces import breakdown, cards
from assay.observe.traces.cards import Card
from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame
from assay.workloads import kineto
from assay.workloads.kineto_file import Recording, phases, read_file

OPERATIONS = {
    "all_reduce": r"(?i)all_?reduce", "all_gather": r"(?i)all_?gather", "reduce_scatter": r"(?i)reduce_?scatter",
    "all_to_all": r"(?i)all_?to_?all", "broadcast": r"(?i)broadcast", "send": r"(?i)send_?recv|:send$|:recv$",
}  # fmt: skip
Metric = Callable[["Row"], float]


class NotApplicable(Exception):  # noqa: N818 - an answer with its reason, not a failure
    """Raised by a metric whose evidence is not in the row; the text says what is missing."""


@dataclass(frozen=True)
class Details:
    """What one file says beyond its spans."""

    rank: int | None
    ranks: int | None  # of the whole job
    backend: str
    device: str
    multiprocessors: int | None
    kernels: pl.DataFrame  # name, dur (ns), blocks


@dataclass(frozen=True)
class Row:
    """Card and traces of one run."""

    card: Card
    frame: Frame
    details: tuple[Details, ...] = ()
    name: str = ""

    @cached_property
    def device(self) -> pl.DataFrame:
        """What ran on each rank's device, and the collectives that its host carried: kernel, comm or memcpy.

        >>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0},
        ...             {"id": 2, "kind": "thread", "name": "9", "parent": 0}]
        >>> spans = [{"entity": 1, "name": "gemm", "cat": "kernel", "start": 0, "dur": 60},
        ...          {"entity": 2, "name": "gloo:all_reduce", "cat": "comm", "start": 40, "dur": 50}]
        >>> Row(Card(), Frame.of(entities, spans=spans)).device["cat"].to_list()
        ['kernel', 'comm']
        """
        return breakdown.device_spans(self.frame)

    @cached_property
    def split(self) -> pl.DataFrame:
        """Where each rank's time went, over all and step by step (:func:`assay.observe.traces.breakdown.split`)."""
        return breakdown.split(self.frame, self.device)

    @property
    def steps(self) -> pl.DataFrame:
        """Each rank's time in each step, or over all where no step is marked."""
        marked = self.split.filter(pl.col("step").is_not_null() & (pl.col("total") > 0))
        return marked if len(marked) else self.split.filter(pl.col("step").is_null())


def operation(name: str) -> str | None:
    """Which collective a kernel or an annotation is.

    >>> operation("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(…)"), operation("gloo:all_gather"), operation("gemm")
    ('reduce_scatter', 'all_gather', None)
    """
    found = pl.Series([name])
    return next((word for word, pattern in OPERATIONS.items() if found.str.contains(pattern)[0]), None)


# ------------------------------------------------------------------------------------------------------ reading


def trace_files(folder: Path) -> list[Path]:
    """The traces of a folder: `.json` and `.json.gz`, by name."""
    if not folder.exists():
        raise unreadable(folder)
    if not folder.is_dir():
        raise BadInput(f"{folder}: not a folder; one with the profiler's traces and a card would be right")
    found = [path for path in sorted(folder.iterdir()) if path.name.endswith((".json", ".json.gz"))]
    if not found:
        raise BadInput(f"{folder}: no trace in it; files .json or .json.gz of the profiler would be")
    return found


def load(folder: Path, progress: Callable[[int, int], None] | None = None) -> Row:
    """Read a row. Without a card in the folder one is drafted from the traces."""
    paths = trace_files(folder)
    recordings = [read_file(path, progress, detailed=True) for path in paths]
    frame = kineto.frame(recordings)
    known = tuple(details(recording) for recording in recordings)
    at = cards.find(folder)
    card = cards.read(at) if at is not None else draft(frame, known)
    return Row(card, frame, known, folder.name)


def draft(frame: Frame, known: tuple[Details, ...] = ()) -> Card:
    """A card with what the traces themselves say: devices, ranks, backend. The rest is for its author.

    >>> draft(Frame.of([{"id": i, "kind": "rank", "name": str(i)} for i in range(2)])).executor.plan.dp_replicate
    2
    """
    here = len(frame.entities.filter(pl.col("kind") == "rank"))
    ranks = max([here, *(one.ranks or 0 for one in known)])
    device = next((one.device for one in known if one.device), "")
    backend = next((one.backend for one in known if one.backend), "")
    steps = breakdown.steps(frame)["step"].n_unique()
    model = cards.Model(granularity="model_fwd_bwd_pass", iteration=float(steps) if steps else None)
    xpu = cards.Xpu(
        type="GPU" if device else "CPU", model=device.lower().replace(" ", "_") or "cpu", total_count=ranks,
        count_per_node=ranks,
    )  # fmt: skip
    return Card(
        description=f"drafted from {frame.source or 'a trace'}: check every line",
        workload=cards.Workload(model=model, hardware=cards.Hardware(xpu_spec=xpu)),
        executor=cards.Executor(plan=cards.Plan(dp_replicate=ranks), library=cards.Library(name=backend)),
        metric_source=cards.Source(traces=("json",)),
    )


def details(recording: Recording) -> Details:
    """What a file that was read with all its details says beyond its spans."""
    about, devices = (recording.about.get(name) for name in ("distributedInfo", "deviceProperties"))
    about = about if isinstance(about, dict) else {}
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    rank, size, count = about.get("rank"), about.get("world_size"), first.get("numSms")
    return Details(
        rank if isinstance(rank, int) else None, size if isinstance(size, int) and size > 0 else None,
        str(about.get("backend") or ""), str(first.get("name") or ""),
        count if isinstance(count, int) and count > 0 else None, _kernels(recording),
    )  # fmt: skip


def _kernels(recording: Recording) -> pl.DataFrame:
    strings = recording.strings
    kernel = np.array([*(text == "kernel" for text in strings), False])
    blocks = np.array([*(_blocks(text) for text in strings), -1], np.int64)[recording["grid"]]
    rows = np.flatnonzero(phases(recording, "X") & kernel[recording["cat"]] & (blocks >= 0))
    names = pl.Series([*strings, ""], dtype=pl.String).gather(recording["name"][rows] % (len(strings) + 1))
    return pl.DataFrame({"name": names, "dur": np.maximum(recording["dur"][rows], 0), "blocks": blocks[rows]})


def _blocks(text: str) -> int:
    """How many blocks a grid written as `[64, 2, 1]` has; -1 for any other text."""
    found = re.fullmatch(r"\[\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\]", text)
    sides = [int(side) for side in found.groups()] if found else []
    return math.prod(sides) if found and max(sides) < 1 << 31 and math.prod(sides) < 1 << 62 else -1
