"""The study's cases: generated graphs, real functions on real files, requests counted, S3 and cold starts modelled."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from assay.data.graphflash.function import PAIR, VERTEX
from assay.data.graphflash.job import GRAPHLESS, ROTATING, Design
from assay.data.graphflash.parts import Network, network
from assay.data.graphflash.rivals import Igraph, InMemory, igraph_is_here, timed
from assay.data.graphflash.run import Ran, Task, perform, plan, processes, simulate
from assay.data.store.delayed import PROFILES
from assay.data.store.directory import DirStore
from assay.record.timing import Gauge
from assay.sim.graphs import torus
from assay.sim.random import stream
from assay.sim.scratch import scratch
from assay.workloads.graph_generate import communities, rmat

OURS, TURNS, VERTICES, KEYS = "graphflash", "graphflash-rotating", "graphless-like", "key-a-vertex"
ALONE, MEMORY, PEER = "one-function", "in-memory", "igraph"
DESIGNS = {
    OURS: Design(),
    TURNS: Design(ROTATING),
    VERTICES: GRAPHLESS,
    KEYS: Design(ROTATING, VERTEX, local=True, wake="all"),
}
# One thing at a time: what each of the paper's parts does to requests, calls and supersteps.
ABLATION = {
    TURNS: Design(ROTATING),
    "an object a pair": Design(ROTATING, PAIR),
    "an object a vertex": Design(ROTATING, VERTEX),
    "all are woken": Design(ROTATING, wake="all"),
    "a hop a superstep": Design(ROTATING, local=False),
    OURS: Design(),
}
SMALL = 256 << 20  # bytes of a function where resources are limited: half of what it has elsewhere
SQUARE = network([(0, 1), (1, 2), (2, 3), (3, 0)])
Row = dict[str, Any]


def graph_of(kind: str, nodes: int, degree: int, seed: int) -> Network:
    """R-MAT (hubs, hardly any order), `road` (a grid in which most is far away), `communities`; weights are drawn."""
    if kind == "rmat":
        edges = rmat(int(np.log2(nodes)), degree, seed)
    elif kind == "road":
        grid = torus(round(nodes**0.5))
        edges = np.stack([np.repeat(np.arange(grid.n), grid.degrees), grid.indices.astype(np.int64)], axis=1)
        nodes = grid.n
    else:
        edges = communities(nodes, max(nodes // 256, 2), degree, 0.1, seed).edges
    made = network(edges, n=nodes)
    return made._replace(weights=1.0 + stream(seed, "graphflash-weights", kind, nodes).random(len(made.edges)))


def _row(ran: Ran, right: Any) -> Row:
    return {
        "seconds": ran.seconds, "gb_seconds": ran.bill.gb_seconds, "usd": ran.usd(), "requests": ran.requests,
        "calls": ran.bill.calls, "steps": ran.steps, "messages": ran.messages, "same": _same(ran.values, right),
    }  # fmt: skip


def _same(found: Any, right: Any) -> bool:
    """Ranks to the tolerance, all else exactly."""
    if found.dtype.kind == "f" and np.isfinite(right).all() and abs(float(right.sum()) - 1) < 1e-9:
        return bool(np.abs(found - right).sum() < 1e-2)
    return bool(np.array_equal(found, right))


def side_by_side(
    graph: Network, program: str, workers: int, systems: tuple[str, ...], memory: int = 512 << 20, **options: Any
) -> dict[str, Row]:
    """Systems one after the other on the same files by the same processes, which have all run once before."""
    tasks = {name: plan(program, graph, design=DESIGNS[name], workers=workers, **options) for name in systems}
    whole = InMemory(plan(program, graph, workers=workers, **options))
    lone = plan(program, graph, **{**options, "workers": 1, "parts": 1})
    with Gauge() as gauge:
        seconds, right = timed(whole.run)
        again, _ = timed(whole.run)
        rows: dict[str, Row] = asyncio.run(_measured({**tasks, ALONE: lone}, right, workers, memory))
    nothing = dict.fromkeys(("gb_seconds", "usd", "requests", "calls", "messages"))
    rows[MEMORY] = {**nothing, "seconds": min(seconds, again), "steps": whole.steps, "same": True}
    if igraph_is_here() and program not in ("labels",):
        peer = Igraph(program, lone.graph, lone.params.root, lone.params.damping)
        took, found = timed(peer.run)
        same = _same(found, right) if program != "triangles" else int(found[0]) == int(right.sum())
        rows[PEER] = {**nothing, "seconds": took, "steps": None, "same": same}
    return {name: row | {"free_cores": gauge.free} for name, row in rows.items()}


async def _measured(tasks: dict[str, Task], right: Any, workers: int, memory: int) -> dict[str, Row]:
    with scratch() as folder:
        async with processes(workers, memory) as platform:
            for task in tasks.values():  # starts the processes and loads what is compiled: the same for all
                small = plan(task.program, SQUARE, design=task.design, workers=workers, tolerance=0.5)
                await perform(small, DirStore(folder, fsync=False), platform, url=str(folder))
            rows = {}
            for name, task in tasks.items():
                ran = await perform(task, DirStore(folder, fsync=False), platform, url=str(folder))
                rows[name] = _row(ran, right)
    return rows


def speed(graph: str, program: str, nodes: int, degree: int, workers: int, parts: int, seed: int) -> dict[str, Row]:
    """Seconds, gigabyte-seconds and dollars of functions that are real processes, on a local folder."""
    made = graph_of(graph, nodes, degree, seed)
    return side_by_side(made, program, workers, (OURS, TURNS, VERTICES, KEYS), tolerance=1e-2, parts=parts)


def limited(graph: str, program: str, nodes: int, degree: int, parts: int, seed: int) -> dict[str, Row]:
    """The same with a single small function, which takes one part after the other."""
    made = graph_of(graph, nodes, degree, seed)
    return side_by_side(made, program, 1, (TURNS, VERTICES), SMALL, tolerance=1e-2, parts=parts)


def large(graph: str, program: str, nodes: int, degree: int, workers: int, seed: int) -> dict[str, Row]:
    """A larger graph, beside what needs no functions."""
    return side_by_side(graph_of(graph, nodes, degree, seed), program, workers, (OURS,), tolerance=1e-2)


def counted(graph: str, program: str, nodes: int, degree: int, parts: int, seed: int) -> dict[str, Row]:
    """Requests, calls and supersteps with one part of the design changed at a time; no time passes."""
    made = graph_of(graph, nodes, degree, seed)
    options: dict[str, Any] = {"parts": parts, "workers": max(parts // 4, 1), "tolerance": 1e-2}
    right = InMemory(plan(program, made, **options)).run()
    return {
        name: _row(
            simulate(program, made, PROFILES["zero"], design=design, cold=(0.0, 0.0), pace=0.0, **options), right
        )
        for name, design in ABLATION.items()
    }


def modelled(
    graph: str, program: str, nodes: int, degree: int, workers: int, profile: str, seed: int
) -> dict[str, Row]:
    """More functions than this machine has cores, on a store with S3's latencies, with cold starts."""
    made = graph_of(graph, nodes, degree, seed)
    options: dict[str, Any] = {"workers": workers, "tolerance": 1e-2}
    right = InMemory(plan(program, made, **options)).run()
    return {
        name: _row(simulate(program, made, PROFILES[profile], design=DESIGNS[name], seed=seed, **options), right)
        for name in (OURS, TURNS, VERTICES)
    }


def held(nodes: int, degree: int, parts: int, seed: int) -> dict[str, Row]:
    """Bytes that a function takes beyond what it took for a small graph, over those of its parts and their state."""
    made = graph_of("communities", nodes, degree, seed)

    async def main(design: Design) -> Row:
        with scratch() as folder:
            async with processes(1) as platform:
                store = DirStore(folder, fsync=False)
                small = plan("components", graph_of("communities", 512, 4, seed), design=design, workers=1)
                before = (await perform(small, store, platform, url=str(folder))).bill.peak
                task = plan("components", made, design=design, workers=1, parts=parts, how="range")
                ran = await perform(task, store, platform, url=str(folder))
        grown = max(ran.bill.peak - before, 0)
        return {"grown": grown, "held_ratio": grown / ran.largest, "held": ran.largest, "seconds": ran.seconds}

    return {name: asyncio.run(main(design)) for name, design in ((OURS, Design()), (TURNS, Design(ROTATING)))}


def crashes(ops: int, mixes: int, seed: int) -> Row:
    """The crash lab on two analyses."""
    from assay.data.crash.lab import examine
    from assay.data.graphflash.crashing import Analyst

    report = examine(Analyst, ops, seed=seed, mixes=mixes)
    return {"changes": report.changes, "cases": report.cases, "kept": report.cases - len(report.findings)}
