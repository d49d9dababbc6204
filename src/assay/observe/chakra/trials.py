"""The measurements of `chakra`: a recorded job, the published samples, and generated jobs, each put to every use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.observe.chakra import record
from assay.observe.chakra.resample import resample
from assay.observe.graphs.events import Profile, is_step
from assay.observe.graphs.generate import Job, device, generate
from assay.observe.graphs.link import linked
from assay.observe.graphs.replay import Link, Network, Plan, critical_path, longest_chain, replay
from assay.record import traces
from assay.record.timing import interleave, median
from assay.record.types import NotMeasured
from assay.sim.random import stream
from assay.workloads import chakra, chakra_json
from assay.workloads.chakra import COLL, Graph

Rows = dict[str, dict[str, Any]]
REST = 0.03  # seconds a step that are slept in place of compute
LATE = (0.02, 0.08)  # seconds between which a rank is late in half of the windows
NETWORK = Network(Link(2e-6, 450e9), Link(5e-6, 50e9), per_node=8)  # NVLink within a node, 400 Gb/s between


def recorded(windows: int, steps: int, seed: int) -> Rows:
    """A real job: does its replay take the time that was measured, and that of a run whose ranks are late in turn?

    In every other window a rank is late in each step, all as often; which and by how much is drawn, and told.
    """
    random = stream(seed, "chakra", "late")
    job = record.Job(steps=steps, rest=REST, seed=seed)
    turns = np.tile(np.arange(steps) % job.ranks, (windows, 1))
    who, when = random.permuted(turns, axis=1).tolist(), random.uniform(*LATE, (windows, steps)).tolist()
    late = [record.Late(tuple(ranks), tuple(seconds)) for ranks, seconds in zip(who, when, strict=True)]
    every = record.record(job, [one for some in late for one in (None, some)])
    out: Rows = {}
    first = _link(every[0])
    before, healthy = every[0], first
    for number, window in enumerate(every):
        measured = max(_span(profile) for profile in window.profiles)
        row = {"experiment": "step", "late": window.late is not None, "measured": measured / steps}
        if window.late is None:
            before, healthy = window, _link(window) if number else first
            predictions = _predictions(healthy)
        else:  # from the window before it, in which nobody was late
            told = max(_span(profile) for profile in before.profiles)
            predictions = _predictions(_delayed(healthy, before, window.late)) | {"end-to-end": told}
        for method, seconds in predictions.items():
            error = abs(seconds / measured - 1)
            out[f"{number} {method}"] = row | {"method": method, "predicted": seconds / steps, "error": error}
    out |= _uses("torch job", first, seed)
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


def _delayed(graphs: Sequence[Graph], window: record.Window, late: record.Late) -> list[Graph]:
    """The traces as if ranks had been late: the sleep of a step is added to that rank's first node of it."""
    out = []
    for rank, (graph, profile) in enumerate(zip(graphs, window.profiles, strict=True)):
        marked = sorted(event.ts for event in profile.events if event.ph == "X" and is_step(event.name))
        lane = graph.whole_numbers("tid")
        main = np.flatnonzero(lane == np.bincount(lane).argmax())
        duration = graph.duration.copy()
        for start, seconds in zip(marked, late.of(rank), strict=True):
            at = main[np.searchsorted(graph.start_micros[main], round(start - marked[0]))]
            duration[at] += seconds
        out.append(graph.with_durations(duration))
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
            out |= _uses(f"sample {name}", [graph], seed)
    return out


def generated(ranks: int, seed: int) -> Rows:
    """A job of this many ranks, its model and its cut drawn: how fast it is planned and replayed, and every use."""
    graphs = generate(drawn(ranks, seed), device("h100"))
    nodes = sum(len(graph) for graph in graphs)
    replay(graphs[:1], NETWORK)  # compiled by now
    begin = time.perf_counter()
    plan = Plan.of(graphs)
    planned = nodes / (time.perf_counter() - begin)
    replayed = median(interleave({"replay": lambda: replay(plan, NETWORK)}, rounds=5)["replay"])
    speed = {
        "experiment": "speed", "method": "replay", "nodes": nodes, "nodes_per_second": nodes / replayed,
        "planned_per_second": planned,
    }  # fmt: skip
    return {"speed": speed} | (_uses("generated", graphs, seed) if ranks <= 16 else {})


def drawn(ranks: int, seed: int) -> Job:
    """A transformer of some size, cut over so many ranks (16 or more, a power of two) in some way.

    >>> job = drawn(64, seed=7)
    >>> job.ranks, job == drawn(64, seed=7), job == drawn(64, seed=8)
    (64, True, False)
    """
    random = stream(seed, "chakra", "generated", ranks)
    tp, pp = (int(random.choice(degrees)) for degrees in ((2, 4, 8), (1, 2)))
    dp, hidden = ranks // (tp * pp), int(random.choice((2048, 4096, 8192)))
    experts = int(random.choice((0, 8)))
    return Job(
        layers=int(random.choice((8, 16, 24))), hidden=hidden, heads=hidden // 128,
        seq=int(random.choice((1024, 2048, 4096))), batch=1, tp=tp, dp=dp, pp=pp, ep=min(8, dp) if experts else 1,
        experts=experts, microbatches=int(random.choice((4, 8))),
    )  # fmt: skip


MARKS = {
    "AMD": ("Cijk_", "__amd_rocclr", "rocblas", "miopen"),
    "NVIDIA": ("cudnn", "cutlass", "cublas", "sm80_", "sm90_"),
}


def vendor(graphs: Sequence[Graph]) -> str | None:
    """Whose accelerator a trace comes from, by the names of its kernels; None where none is in it.

    >>> [vendor([Graph.of([1], [name], 4, data_deps=[[]])]) for name in ("cudnn_infer_maxwell_scudnn", "aten::mm")]
    ['NVIDIA', None]
    """
    names = [name for graph in graphs for name in graph.names]
    return next((who for who, marks in MARKS.items() if any(m in name for name in names for m in marks)), None)


def _uses(source: str, graphs: Sequence[Graph], seed: int) -> Rows:
    """Whether a source's traces serve each use; every use is a check that can fail, not a call that returns."""
    uses: dict[str, Callable[[Sequence[Graph]], bool]] = {
        "store": _stores, "analyse": _analyses, "replay": _replays, "simulate": _simulates,
        "generate": lambda graphs: _regenerates(graphs, seed),
    }  # fmt: skip
    layout = "json" if source.endswith(".json") else "protobuf"
    row = {"experiment": "use", "source": source, "layout": layout, "vendor": vendor(graphs)}
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


def _regenerates(graphs: Sequence[Graph], seed: int) -> bool:
    """A resampled run replays, and none of the original names is in it."""
    again = resample(graphs, seed)
    content = b"".join(chakra.encode(graph) for graph in again)
    words = {name for graph in graphs for name in graph.names if len(name) > 6}
    return replay(again).makespan > 0 and not any(word.encode("utf-8", "surrogateescape") in content for word in words)
