"""A profiler's trace of a data-parallel job cut into stages, by the marks that PyTorch itself leaves in it.

Nothing of the stage recorder is in such a trace: the loader, DistributedDataParallel and the optimizer annotate
themselves. A step lasts from one batch to the next. The profiler has no mark for the end of the backward pass, so
`backward` is what lies between the forward pass and the optimizer, the wait for the other ranks included; `other` is
the rest, checkpoints among it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame

Ints = NDArray[np.int64]
STAGES = ("data", "forward", "backward", "optimizer", "other")
_MARKS = {
    "data": r"^enumerate\(DataLoader\)#.*__next__$",
    "forward": r"^DistributedDataParallel\.forward$",
    "optimizer": r"^Optimizer\.step#",
}


def read(paths: Sequence[Path]) -> Ints:
    """Durations (steps, ranks, stages) from one trace for each rank; the last, unfinished step is left out."""
    from assay.workloads import kineto  # compiled code that only this needs

    ranks = [cut(kineto.read(path)) for path in paths]
    steps = min(len(rank) for rank in ranks)
    return np.stack([rank[:steps] for rank in ranks], axis=1)


def cut(trace: Frame) -> Ints:
    """The steps of one rank's trace."""
    marks = {stage: _spans(trace, pattern) for stage, pattern in _MARKS.items()}
    steps = min(map(len, marks.values()))
    if steps < 2:
        raise BadInput(f"{trace.source or 'trace'}: fewer than two steps are marked by loader, DDP and optimizer")
    data, forward, optimizer = (marks[stage][:steps] for stage in ("data", "forward", "optimizer"))
    begin, end = data[:-1, 0], data[1:, 0]
    step = {
        "data": data[:-1, 1] - begin,
        "forward": forward[:-1, 1] - data[:-1, 1],
        "backward": optimizer[:-1, 0] - forward[:-1, 1],
        "optimizer": optimizer[:-1, 1] - optimizer[:-1, 0],
        "other": end - optimizer[:-1, 1],
    }
    durations = np.stack([step[name] for name in STAGES], axis=1)
    if (durations < 0).any():
        raise BadInput(f"{trace.source or 'trace'}: loader, forward pass and optimizer do not follow one another")
    return durations


def _spans(trace: Frame, pattern: str) -> Ints:
    """Start and end of the spans with such a name, in order."""
    spans = trace.spans.filter(pl.col("name").cast(pl.String).str.contains(pattern)).sort("start")
    return np.stack([spans["start"].to_numpy(), (spans["start"] + spans["dur"]).to_numpy()], axis=1)


def reduced(durations: Ints, stages: Sequence[str]) -> Ints:
    """Recorded durations in the stages that a trace can be cut into.

    >>> reduced(np.array([[[1, 2, 3, 4]]]), ["data", "backward", "sync", "checkpoint"]).tolist()
    [[[1, 0, 5, 0, 4]]]
    """
    home = {"sync": "backward", "checkpoint": "other"}
    out = np.zeros((*durations.shape[:2], len(STAGES)), np.int64)
    for i, name in enumerate(stages):
        out[:, :, STAGES.index(home.get(name, name))] += durations[:, :, i]
    return out
