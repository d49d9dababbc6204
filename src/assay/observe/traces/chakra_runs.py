"""Chakra traces for `assay trace`: they hold dependencies, so times, path and what-ifs come from a replay of them.

A collective keeps its recorded duration (no network is known here); a what-if shortens it and replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assay.observe.graphs.replay import Outcome, break_cycles, critical_path, replay
from assay.observe.traces.path_sums import summed
from assay.observe.traces.what_if import Answer
from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import chakra

LONGEST = 1e9  # seconds of a replay, thirty years: beyond it nanoseconds do not fit
_COMM = (chakra.COLL, chakra.SEND, chakra.RECV)
_KINDS = {"COMP": "kernel", "COMM_COLL": "comm", "COMM_SEND": "comm", "COMM_RECV": "comm",
          "MEM_LOAD": "memcpy", "MEM_STORE": "memcpy"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Replayed:
    """Traces and when a replay runs what; `removed` says which dependencies were taken out first."""

    graphs: Sequence[chakra.Graph]
    outcome: Outcome
    frame: Frame
    removed: Sequence[str] = ()


def read(paths: Sequence[Path], without_cycles: bool = False) -> Replayed:
    """Read and replay the traces of one run. Cycles are refused by name, or (`without_cycles`) broken and listed."""
    graphs = chakra.read_all(paths)
    removed: list[str] = []
    if without_cycles:
        for i, graph in enumerate(graphs):
            graphs[i], edges = break_cycles(graph)
            removed += [
                f"removed: {row['waits']} ({row['waits_name']}) waits for {row['for']} ({row['for_name']})"
                for row in edges.iter_rows(named=True)
            ]
    outcome = replay(graphs)
    if outcome.makespan > LONGEST:
        raise BadInput(f"{graphs[0].source}: its durations add up to {outcome.makespan:.3g} s; are they microseconds?")
    return Replayed(graphs, outcome, _timed(chakra.frame(graphs), outcome), removed)


def _timed(frame: Frame, outcome: Outcome) -> Frame:
    """The frame with the replay's times, which are those of one clock, and its pairing of collectives.

    A rank is in a collective from when it is ready, as a profiler records it: who spends least time there came last.
    """
    start = np.round(outcome.ready * 1e9).astype(np.int64)
    length = np.round(outcome.end * 1e9).astype(np.int64) - start
    meetings = outcome.plan.meetings
    number = np.full(outcome.plan.n, -1, np.int64)
    number[meetings.nodes] = np.repeat(np.arange(len(meetings)), np.diff(meetings.at))
    number[np.concatenate([graph.type for graph in outcome.plan.graphs]) != chakra.COLL] = -1  # joins two ranks only
    seq = pl.Series(number).set(pl.Series(number < 0), None)
    spans = frame.spans.with_columns(start=pl.Series(start), dur=pl.Series(length), seq=seq)
    return replace(frame, spans=spans, entities=frame.entities.with_columns(clock=pl.lit("replay")))


def path(outcome: Outcome) -> dict[str, Any]:
    """The replay's critical path in the words of :mod:`assay.observe.traces.report`."""
    kind = pl.col("type").replace_strict(_KINDS, default="host")
    pieces = critical_path(outcome).with_columns(kind=kind, rank=pl.col("rank").cast(pl.String))
    named = pieces.group_by("name", "kind").agg(pieces=pl.len().cast(pl.Int64), seconds=pl.col("seconds").sum())
    host = named.filter(pl.col("kind") == "host").sort("seconds", "name", descending=[True, False])
    return summed(pieces, named, outcome.makespan) | {"host": host.select("name", "seconds").head(10).to_dicts()}


def what_if(replayed: Replayed, *, bandwidth: float = 1.0, stragglers: bool = True) -> Answer:
    """The replay with collectives so many times as fast, or with every rank as fast as the median.

    Of an even number of ranks the slowest is left out: half of its delay would stay where there are two.
    """
    graphs = list(replayed.graphs)
    durations = [graph.duration.copy() for graph in graphs]
    recorded, note = round(replayed.outcome.makespan * 1e9), ""
    if not stragglers:
        if len(graphs) == 1 or len({graph.type.tobytes() for graph in graphs}) > 1:
            return Answer(recorded, None, "one rank only" if len(graphs) == 1 else "ranks run different programs")
        middle = np.median(np.stack([durations[i] for i in _odd(replayed.outcome)]), axis=0)
        durations = [np.where(np.isin(graphs[0].type, _COMM), own, middle) for own in durations]
    if bandwidth != 1.0:
        if not any(np.isin(graph.type, _COMM).any() for graph in graphs):
            return Answer(recorded, None, "no communication is recorded")
        note = "all of a transfer counts as bandwidth"
        for graph, own in zip(graphs, durations, strict=True):
            own[np.isin(graph.type, _COMM)] /= bandwidth
    changed = replay(replayed.outcome.plan, took=np.concatenate(durations))
    return Answer(recorded, round(changed.makespan * 1e9), note)


def _odd(outcome: Outcome) -> list[int]:
    """The traces to take the median of; the slowest rank is the one that waits least for the others."""
    waited = np.add.reduceat(outcome.waited, outcome.plan.first[:-1])
    slowest = int(waited.argmin()) if len(waited) % 2 == 0 and waited.any() else -1
    return [i for i in range(len(waited)) if i != slowest]
