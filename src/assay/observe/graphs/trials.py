"""The measurements of `chakra`: a recorded job, the published samples, and generated jobs, each put to every use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.observe.graphs import record
from assay.observe.graphs.events import Profile, is_step
from assay.observe.graphs.generate import Job, device, generate
from assay.observe.graphs.link import linked
from assay.observe.graphs.replay import Link, Network, Plan, critical_path, longest_chain, replay
from assay.observe.graphs.resample import resample
from assay.record import traces
from assay.record.timing import interleave, median
from assay.record.types import NotMeasured
from assay.workloads import chakra, chakra_json
from assay.workloads.chakra import COLL, Graph

Rows = dict[str, dict[str, Any]]
REST, DELAY = 0.03, 0.03  # seconds a step that are slept, and by which a rank is late in half of the windows
NETWORK = Network(Link(2e-6, 450e9), Link(5e-6, 50e9), per_node=8)  # NVLink within a node, 400 Gb/s between


def recorded(windows: int, steps: int, seed: int) -> Rows:
    """A real job: does its replay take the time that was measured, and that of a run with a late rank?"""
    job = record.Job(steps=steps, rest=REST)
    late = record.Late(rank=1, seconds=DELAY)
    every = record.record(job, [late if i % 2 else None for i in range(2 * windows)])
    out: Rows = {}
    before, healthy = every[0], _link(every[0])
    for number, window in enumerate(every):
        measured = max(_span(profile) for profile in window.profiles)
        row = {"experiment": "step", "late": window.late is not None, "measured": measured / steps}
        if window.late is None:
            before, healthy = window, _link(window)
            predictions = _predictions(healthy)
        else:  # from the window before it, in which nobody was late
            told = max(_span(profile) for profile in before.profiles)
            predictions = _predictions(_delayed(healthy, before)) | {"end-to-end": told}
        for method, seconds in predictions.items():
            error = abs(seconds / measured - 1)
            out[f"{number} {method}"] = row | {"method": method, "predicted": seconds / steps, "error": error}
    out |= _uses("torch job", _link(every[0]))
    return out


def _link(window: record.Window) -> list[Graph]:
    return [linked(profile, host) for profile, host in zip(window.profiles, window.hosts, strict=True)]


def _span(profile: Profile) -> float:
    """Seconds from the first profiled step's start to the last one's end."""
    marked = [event for event in profile.events if event.ph == "X" and is_step(event.name)]
    return (max(e.ts + e.dur for e in marked) - min(e.ts for e in marked)) / 1e6


def _predictions(graphs: Sequence[Graph]) -> dict[str, float]:
    """The replay, beside what a timeline without dependencies says: every lane runs, nobody waits."""
    outcome = replay(graphs)
    plan = outcome.plan
    seconds = np.concatenate([graph.duration for graph in graphs])
    rank = np.repeat(np.arange(len(graphs)), [len(graph) for graph in graphs])
    lanes = np.unique(np.stack([rank, plan.lane]), axis=1, return_inverse=True)[1].reshape(-1)
    return {"replay": outcome.makespan, "timeline": float(np.bincount(lanes, seconds).max())}


def _delayed(graphs: Sequence[Graph], window: record.Window) -> list[Graph]:
    """The traces as if rank 1 had been late: the sleep is added to its first node of every step."""
    out = list(graphs)
    graph, profile = graphs[1], window.profiles[1]
    marked = sorted(event.ts for event in profile.events if event.ph == "X" and is_step(event.name))
    lane = graph.whole_numbers("tid")
    main = np.flatnonzero(lane == np.bincount(lane).argmax())
    duration = graph.duration.copy()
    for start in marked:
        at = main[np.searchsorted(graph.start_micros[main], round(start - marked[0]))]
        duration[at] += DELAY
    out[1] = graph.with_durations(duration)
    return out


# --------------------------------------------------------------------------------------------- every use, every source


def samples(seed: int) -> Rows:
    """The published traces, each put to every use; empty where they are not at hand."""
    try:
        folder = traces.find("chakra")
    except NotMeasured:
        return {}
    out: Rows = {}
    for path in sorted(folder.glob("*.tar.gz")):
        for graph in chakra.read_all(path):
            name = graph.source.rsplit("/", 1)[-1]
            out |= _uses(f"sample {name}", [graph])
    return out


def generated(ranks: int, layers: int, seed: int) -> Rows:
    """A job of this many ranks: how fast it is planned and replayed, and what the network does to its step."""
    job = Job(layers=layers, hidden=4096, heads=32, seq=2048, batch=1, tp=8, dp=ranks // 16, pp=2, microbatches=8)
    graphs = generate(job, device("h100"))
    nodes = sum(len(graph) for graph in graphs)
    replay(graphs[:1], NETWORK)  # compiled by now
    begin = time.perf_counter()
    plan = Plan.of(graphs)
    planned = nodes / (time.perf_counter() - begin)
    replayed = median(interleave({"replay": lambda: replay(plan, NETWORK)}, rounds=5)["replay"])
    out: Rows = {}
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
        step = replay(plan, NETWORK.scaled(bandwidth=factor)).makespan
        bound = longest_chain(plan, NETWORK.scaled(bandwidth=factor))
        out[f"bandwidth {factor}"] = {
            "experiment": "network", "method": "replay", "ranks": ranks, "nodes": nodes, "bandwidth": factor,
            "predicted": step, "bound": bound,
        }  # fmt: skip
    out["speed"] = {
        "experiment": "speed", "method": "replay", "ranks": ranks, "nodes": nodes,
        "nodes_per_second": nodes / replayed, "planned_per_second": planned,
    }  # fmt: skip
    return out | (_uses("generated", graphs) if ranks == 16 else {})


def _uses(source: str, graphs: Sequence[Graph]) -> Rows:
    """Whether a source's traces serve each use; every use is a check that can fail, not a call that returns."""
    uses: dict[str, Callable[[Sequence[Graph]], bool]] = {
        "store": _stores, "analyse": _analyses, "replay": _replays, "simulate": _simulates, "generate": _regenerates,
    }  # fmt: skip
    row = {"experiment": "use", "source": source, "layout": "json" if source.endswith(".json") else "protobuf"}
    return {f"{source} {use}": {**row, "method": use, "works": works(graphs)} for use, works in uses.items()}


def _stores(graphs: Sequence[Graph]) -> bool:
    """Protobuf gives back every byte, JSON every field of every node."""
    for graph in graphs:
        content = chakra.encode(graph)
        if chakra.encode(chakra.decode(content)) != content:
            return False
        through = chakra.decode(chakra_json.encode(graph))
        if chakra.encode(replace(through, metadata=graph.metadata)) != content:  # JSON orders the header by type
            return False
    return True


def _analyses(graphs: Sequence[Graph]) -> bool:
    """All nodes are in the telemetry, and the critical path adds up to the step."""
    outcome = replay(graphs)
    path = float(critical_path(outcome)["seconds"].sum())
    return len(chakra.frame(graphs).spans) == outcome.plan.n and bool(np.isclose(path, outcome.makespan))


def _replays(graphs: Sequence[Graph]) -> bool:
    """Nothing starts too early, and the step is no shorter than its longest chain."""
    outcome = replay(graphs)
    plan = outcome.plan
    ordered = (outcome.start[plan.target] >= outcome.end[plan.source]).all()
    return bool(ordered) and outcome.makespan >= longest_chain(plan) * (1 - 1e-9)


def _simulates(graphs: Sequence[Graph]) -> bool:
    """Collectives wait for a producer, are priced by the network, and a slower one makes the step longer."""
    plan = Plan.of(graphs)
    net = Network(NETWORK.inside, NETWORK.outside, NETWORK.per_node, ranks=8)
    fast, slow = replay(plan, net), replay(plan, net.scaled(bandwidth=1e-4))
    fed = all((np.diff(graph.data_deps.at)[graph.type == COLL] > 0).any() for graph in graphs)
    return fed and fast.priced > 0 and slow.makespan > fast.makespan


def _regenerates(graphs: Sequence[Graph]) -> bool:
    """A resampled run replays, and none of the original names is in it."""
    again = resample(graphs)
    content = b"".join(chakra.encode(graph) for graph in again)
    words = {name for graph in graphs for name in graph.names if len(name) > 6}
    return replay(again).makespan > 0 and not any(word.encode("utf-8", "surrogateescape") in content for word in words)
