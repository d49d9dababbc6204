"""The study's cases: generated graphs on real files, the same cut and the same memory for every method."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from assay.data.disk.arrays import DiskArray, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.data.grinnder.blocks import Blocks, CutGraph, cut
from assay.data.grinnder.host import MODES
from assay.data.grinnder.layers import Int64s, Network
from assay.data.grinnder.partitioner import switch_aware
from assay.data.grinnder.plan import Plan, planned
from assay.data.grinnder.rivals import InMemory, Mapped, Snapshots
from assay.data.grinnder.trainer import Progress, Trainer, difference, gradients, warm
from assay.sim.graphs import CSR
from assay.sim.memory import Peak
from assay.sim.partitions import amplification, partition
from assay.sim.random import stream
from assay.sim.scratch import scratch
from assay.workloads.graph_generate import communities, rmat

OURS, SNAPSHOT, MAPPED, MEMORY = "grinnder", "snapshot", "mmap", "in-memory"
TRAINERS: dict[str, type[Trainer]] = {OURS: Trainer, SNAPSHOT: Snapshots, MAPPED: Mapped}
CLASSES = 8
GRAPHS = ("communities", "rmat")


def edges_of(graph: str, nodes: int, degree: int, seed: int) -> Int64s:
    """Undirected edges (both directions) of a kind of graph."""
    if graph == "rmat":
        one = rmat(int(np.log2(nodes)), degree // 2, seed)
    else:
        one = communities(nodes, max(nodes // 500, 2), degree / 2, 0.1, seed).edges
    return np.concatenate([one, one[:, ::-1]])


class Bench:
    """A graph, features and labels on disk, and a network."""

    def __init__(self, folder: Path, edges: Blocks, features: Path, labels: Int64s, network: Network) -> None:
        self.folder, self.edges, self.features, self.labels, self.network = folder, edges, features, labels, network
        self.n = len(labels)

    @classmethod
    def made(cls, folder: Path, graph: str, nodes: int, degree: int, network: Network, seed: int) -> Bench:
        """Generated."""
        rng = stream(seed, "grinnder", graph, nodes)
        write_rows(folder / "x.npy", rng.standard_normal((nodes, network.widths[0]), np.float32))
        labels, edges = rng.integers(0, CLASSES, nodes), edges_of(graph, nodes, degree, seed)
        return cls(folder, lambda: iter([edges]), folder / "x.npy", labels, network)

    def cut(self, parts: int) -> CutGraph:
        """Into so many parts."""
        return cut(self.folder / f"whole-{parts}", self.edges, self.n, parts, self.network.own_loops)

    def epochs(self, method: str, graph: CutGraph, plan: Plan | None, epochs: int) -> dict[str, Any]:
        """Gradients of the first epoch, and means of those after it."""
        train = self.labels >= 0
        with DiskArray.open(self.features) as rows:
            if plan is None:
                trainer: Any = InMemory(self.network, graph, rows, self.labels, train)
            else:
                trainer = TRAINERS[method](self.network, graph, plan, self.folder / method, self.labels, train)
                trainer.load(rows)
        first = trainer.epoch()
        found = gradients(self.network)
        later = [trainer.epoch() for _ in range(epochs)]
        cached = trainer.host.cache if plan is not None else None
        if plan is not None:
            trainer.close()
        return {
            "seconds": float(np.median([one.seconds for one in later])), "loss": first.loss, "gradients": found,
            "read_bytes": later[-1].read_bytes, "written_bytes": later[-1].written_bytes,
            "hits": None if cached is None else cached.hits, "misses": None if cached is None else cached.misses,
        }  # fmt: skip


def activations(network: Network, n: int) -> int:
    """Bytes of all layers' inputs and of their gradients, once each."""
    return 4 * n * (sum(network.widths[:-1]) + sum(network.widths[1:-1]))


def compared(
    bench: Bench, memory: int, parts: int | None, epochs: int, turn: int, in_memory: bool = True,
    progress: Progress = lambda done, total: None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Every method on one cut and plan, the first of them another one each turn; gradients beside those in memory."""
    graph, plan = planned(bench.folder, bench.edges, bench.n, bench.network, memory, parts)
    names = [*TRAINERS, *[MEMORY] * in_memory]
    found: dict[str, dict[str, Any]] = {}
    for done, name in enumerate(names[turn % len(names) :] + names[: turn % len(names)]):
        if name == MEMORY:
            found[name] = bench.epochs(name, bench.cut(1), None, epochs)
        else:
            found[name] = bench.epochs(name, _again(graph), plan, epochs)
        progress(done + 1, len(names))
    graph.close()
    about = {"parts": graph.parts, "amplification": graph.amplification, "mode": plan.mode,
             "gradients_in_memory": plan.gradients}  # fmt: skip
    right = found[names[-1]]["gradients"]
    rows = {}
    for name in names:
        row = found[name]
        rows[name] = row | {"difference": difference(row["gradients"], right)} | about
        del rows[name]["gradients"]
    return rows


def _again(graph: CutGraph) -> CutGraph:
    """The same cut with files of its own: a trainer closes them."""
    return replace(graph, _read={})


def speed(
    graph: str, kind: str, nodes: int, width: int, degree: int, parts: int, share: float, epochs: int, seed: int
) -> dict[str, dict[str, Any]]:
    """All methods where memory for rows is `share` of the activations, beside what blocks need."""
    torch.set_num_threads(1)
    network = Network(kind, (width, width, width, CLASSES), seed=seed)
    warm(kind)
    with scratch() as folder:
        bench = Bench.made(folder, graph, nodes, degree, network, seed)
        return compared(bench, _budget(bench, parts, share), parts, epochs, seed)


def _budget(bench: Bench, parts: int, share: float) -> int:
    """Memory that leaves `share` of the activations for rows and gradients once blocks have what they need."""
    graph = bench.cut(parts)
    plan = Plan.of(bench.network, graph, 1 << 40)
    graph.close()
    return plan.fixed + plan.work + int(share * activations(bench.network, bench.n))


def exact(kind: str, parts: int, nodes: int, width: int, seed: int) -> dict[str, dict[str, Any]]:
    """How far gradients and losses are from those in memory, for every way to hold rows."""
    network = Network(kind, (width, width, width, CLASSES), seed=seed)
    found = {}
    with scratch() as folder:
        bench = Bench.made(folder, "rmat", nodes, 8, network, seed)
        right = bench.epochs(MEMORY, bench.cut(1), None, 1)
        graph = bench.cut(parts)
        for mode in MODES:
            plan = Plan(
                0, 0, {"layers": 1 << 30, "parts": 5 * nodes * width}.get(mode, nodes * width), mode != "rows", mode
            )
            ours = bench.epochs(OURS, _again(graph), plan, 1)
            found[mode] = {
                "difference": difference(ours["gradients"], right["gradients"]),
                "loss_difference": abs(ours["loss"] - right["loss"]) / right["loss"],
                "hits": ours["hits"], "misses": ours["misses"], "written_bytes": ours["written_bytes"],
            }  # fmt: skip
    return found


def cuts(graph: str, nodes: int, degree: int, parts: int, seed: int) -> dict[str, dict[str, Any]]:
    """Rows that all parts gather together, by each partitioner, over the nodes."""
    edges = edges_of(graph, nodes, degree, seed)
    csr = CSR.from_edges(edges, nodes)
    found = {}
    with scratch() as folder:
        began = perf_counter()
        disk = DiskGraph.build(folder / "g", [edges], nodes)
        label = switch_aware(disk, parts).astype(np.int64)
        seconds = perf_counter() - began
        disk.close()
        found["switch-aware"] = {"amplification": amplification(csr, label), "seconds": seconds}
    for how in ("metis", "spinner", "hash"):
        began = perf_counter()
        label = partition(csr, parts, how, seed)
        seconds = perf_counter() - began
        found[how] = {"amplification": amplification(csr, label), "seconds": seconds}
    return found


def held(nodes: int, width: int, degree: int, share: float, seed: int) -> dict[str, Any]:
    """Memory that new processes really took: ours over what it was given, and all in memory."""
    taken = {}
    for method in (OURS, MEMORY):
        asked = [sys.executable, "-m", "assay.data.grinnder.trials", method]
        asked += map(str, (nodes, width, degree, share, seed))
        taken[method] = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    given, ours, whole = taken[OURS]["given"], taken[OURS]["taken"], taken[MEMORY]["taken"]
    if ours is None:
        return {"given": given, "taken_ratio": None, "in_memory_ratio": None, "trained": None}
    off = abs(taken[OURS]["loss"] - taken[MEMORY]["loss"]) / taken[MEMORY]["loss"]
    fits = ours <= 1.1 * given < whole and off < 1e-4
    return {"given": given, "taken_ratio": ours / given, "in_memory_ratio": whole / given, "trained": fits}


def _measure(method: str, nodes: int, width: int, degree: int, share: float, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    network = Network("gcn", (width, width, width, CLASSES), seed=seed)
    warm("gcn")
    memory = int(share * activations(network, nodes))
    with scratch() as folder:
        bench = Bench.made(folder, "communities", nodes, degree, network, seed)
        train = bench.labels >= 0
        rows = DiskArray.open(bench.features)
        with Peak() as peak:
            if method == MEMORY:
                trainer: Any = InMemory(network, bench.cut(1), rows, bench.labels, train)
            else:
                graph, plan = planned(folder, bench.edges, nodes, network, memory, None)
                trainer = Trainer(network, graph, plan, folder / "rows", bench.labels, train)
                trainer.load(rows)
            losses = [trainer.epoch().loss for _ in range(2)]
    return {"given": memory, "taken": peak.grown if peak.known else None, "loss": losses[-1]}


if __name__ == "__main__":
    given = sys.argv
    print(json.dumps(_measure(given[1], int(given[2]), int(given[3]), int(given[4]), float(given[5]), int(given[6]))))
