"""A step as Chakra execution traces, one file a rank, which ASTRA-sim and other tools read; and back.

Computing is COMP nodes, activations and gradients between stages are pairs of SEND and RECV with tags, the others are
collectives of a named group with their bytes. The format keeps whole microseconds; what we read back also has each
node's exact `seconds` as an attribute of its own, which others skip.

>>> from assay.training.engine.step import simulate
>>> from assay.training.interface import Job, Layout, Plan
>>> outcome = simulate("llama-3-8b", "8xh100", Plan(Layout(tp=2, pp=2, dp=2)), Job(8, 2048))
>>> traces = traces_of(outcome)
>>> len(traces), end(traces) == outcome.step
(2, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.dag import Cyclic, Dag
from assay.training.engine.graph import COMP, KINDS, NORM, REDUCE, SEND, StepGraph
from assay.training.engine.schedules import NAMES
from assay.training.engine.step import Outcome
from assay.training.interface import Ints
from assay.workloads import chakra
from assay.workloads.chakra_graph import COLL, Graph
from assay.workloads.chakra_graph import COMP as COMPUTED
from assay.workloads.chakra_graph import RECV as RECEIVED
from assay.workloads.chakra_graph import SEND as SENT

GATHERED, REDUCED = 2, 7  # comm_type of all-gather and reduce-scatter


def traces_of(outcome: Outcome) -> list[Graph]:
    """One trace for each stage of the pipeline that stands for all: its ranks do the same.

    Raises:
        BadInput: pipelines differ, so none stands for all.
    """
    if outcome.graph.columns > 1:
        raise BadInput("ranks of this step differ: simulate it without stragglers and unequal work to write it")
    return [_stage(outcome, stage) for stage in range(outcome.graph.pp)]


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write `step.RANK.et` for the first rank of every stage; gives the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = outcome.plan.layout
    paths = [folder / f"step.{stage * layout.tp * layout.cp * layout.dp}.et" for stage in range(layout.pp)]
    for path, graph in zip(paths, traces_of(outcome), strict=True):
        chakra.write(graph, path)
    return paths


def _stage(outcome: Outcome, stage: int) -> Graph:
    """The nodes of one stage, numbered as in the step's graph; a transfer is a node of both its ends."""
    graph, seconds = outcome.graph, outcome.seconds
    target = _targets(graph)
    here = (graph.stage == stage) | ((graph.kind == SEND) & (target == stage)) | (graph.kind == NORM)
    after = np.repeat(np.arange(len(here)), np.diff(graph.dag.indptr))
    waits = after[(graph.kind[after] == REDUCE) & (graph.stage[graph.dag.indices] == stage)]  # of other copies, too
    here[waits] = True
    mine = np.flatnonzero(here)
    known = set(mine.tolist())
    deps = [
        [int(p) for p in graph.dag.indices[graph.dag.indptr[v] : graph.dag.indptr[v + 1]].tolist() if int(p) in known]
        for v in mine.tolist()
    ]
    sends = (graph.kind[mine] == SEND) & (graph.stage[mine] == stage)
    receives = (graph.kind[mine] == SEND) & ~sends
    other = [KINDS.index("gather"), KINDS.index("reduce"), NORM]
    types = np.where(np.isin(graph.kind[mine], other), COLL, COMPUTED)
    types = np.where(sends, SENT, np.where(receives, RECEIVED, types))
    wide = outcome.plan.layout.tp * outcome.plan.layout.cp * outcome.plan.layout.dp
    return Graph.of(
        mine, [_name(graph, v) for v in mine.tolist()], types, data_deps=deps,
        duration_micros=np.round(1e6 * seconds[mine]).astype(np.int64),
        attributes={
            "is_cpu_op": [False] * len(mine), "seconds": seconds[mine].tolist(),
            "kind": graph.kind[mine].tolist(),
            "comm_src": [int(graph.stage[v]) * wide if graph.kind[v] == SEND else None for v in mine],
            "comm_dst": [int(target[v]) * wide if graph.kind[v] == SEND else None for v in mine],
            "comm_tag": [int(v) if graph.kind[v] == SEND else None for v in mine],
            "comm_type": [{other[0]: GATHERED, other[1]: REDUCED, NORM: 0}.get(int(graph.kind[v])) for v in mine],
            "pg_name": ["dp" if graph.kind[v] in other else None for v in mine],
        },
        rank=stage * wide,
    )  # fmt: skip


def _targets(graph: StepGraph) -> Ints:
    """Where each transfer goes: the stage of whoever waits for it to compute."""
    after = np.repeat(np.arange(len(graph.kind)), np.diff(graph.dag.indptr))
    found = np.full(len(graph.kind), -1, np.int64)
    computing = (graph.kind[after] == COMP) & (graph.kind[graph.dag.indices] == SEND)
    found[graph.dag.indices[computing]] = graph.stage[after[computing]]
    return found


def _name(graph: StepGraph, v: int) -> str:
    if graph.kind[v] == COMP:
        return f"{NAMES[graph.what[v]]}{graph.mb[v]} part {graph.part[v]}"
    return KINDS[graph.kind[v]]


def end(traces: Sequence[Graph]) -> float:
    """When the last node of traces that we wrote ends: transfers are joined by their tags, the rest by numbers.

    Raises:
        BadInput: nodes that we did not write, or that wait for each other.
    """
    seconds: dict[int, float] = {}
    edges: set[tuple[int, int]] = set()
    for trace in traces:
        for i in range(len(trace)):
            said: dict[str, Any] = trace.attributes(i)
            if "seconds" not in said:
                raise BadInput(f"{trace.source or 'trace'}: {trace.label(i)} has no seconds: no step of ours")
            seconds[int(trace.id[i])] = float(said["seconds"])
            edges |= {(int(p), int(trace.id[i])) for p in trace.data_deps[i]}
    number = {v: at for at, v in enumerate(sorted(seconds))}
    try:
        dag = Dag.of(len(number), [(number[a], number[b]) for a, b in edges])
    except (KeyError, Cyclic) as error:
        raise BadInput(f"traces: a rank is missing, or nodes wait for each other ({error})") from error
    return float(dag.ends(np.array([seconds[v] for v in sorted(seconds)])).max())
