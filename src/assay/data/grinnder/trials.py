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

    def trainer(self, method: str, graph: CutGraph, plan: Plan | None) -> Any:
        """One that is ready to run; without a plan, in memory."""
        train = self.labels >= 0
        with DiskArray.open(self.features) as rows:
            if plan is None:
                return InMemory(self.network, graph, rows, self.labels, train)
            made = TRAINERS[method](self.network, graph, plan, self.folder / method, self.labels, train)
            made.load(rows)
            return made


def activations(network: Network, n: int) -> int:
    """Bytes of all layers' inputs and of their gradients, once each."""
    return 4 * n * (sum(network.widths[:-1]) + sum(network.widths[1:-1]))


def compared(
    bench: Bench, memory: int, parts: int | None, epochs: int, turn: int, in_memory: bool = True,
    progress: Progress = lambda done, total: None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Every method on one cut and plan, taking turns epoch by epoch; gradients beside those in memory."""
    graph, plan = planned(bench.folder, bench.edges, bench.n, bench.network, memory, parts)
    names = [*TRAINERS, *[MEMORY] * in_memory]
    ready = {
        name: bench.trainer(name, bench.cut(1), None) if name == MEMORY else bench.trainer(name, _again(graph), plan)
        for name in names
    }
    first, found, seconds = {}, {}, {name: list[float]() for name in names}
    for name in names:
        first[name], found[name] = ready[name].epoch(), gradients(bench.network)
    for number in range(epochs):
        at = (turn + number) % len(names)
        for name in names[at:] + names[:at]:
            last = ready[name].epoch()
            seconds[name].append(last.seconds)
            first[name] = replace(last, loss=first[name].loss)
        progress(number + 1, epochs)
    rows = {}
    for name in names:
        cache = None if name == MEMORY else ready[name].host.cache
        rows[name] = {
            "seconds": float(np.median(seconds[name])), "loss": first[name].loss,
            "read_bytes": first[name].read_bytes, "written_bytes": first[name].written_bytes,
            "difference": difference(found[name], found[names[-1]]),
            "hits": None if cache is None else cache.hits, "misses": None if cache is None else cache.misses,
            "parts": graph.parts, "amplification": graph.amplification, "mode": plan.mode,
            "gradients_in_memory": plan.gradients,
        }  # fmt: skip
        if name != MEMORY:
            ready[name].close()
    graph.close()
    return rows


def _again(graph: CutGraph) -> CutGraph:
    """The same cut with files of its own: a trainer closes them."""
    return replace(graph, _read={})


def speed(
    graph: str, kind: str, nodes: int, width: int, degree: int, parts: int, epochs: int, shares: str, seed: int
) -> dict[str, dict[str, Any]]:
    """All methods where memory for rows is a share of the activations, beside what blocks need: one row for each."""
    torch.set_num_threads(1)
    network = Network(kind, (width, width, width, CLASSES), seed=seed)
    warm(kind)
    rows: dict[str, dict[str, Any]] = {}
    with scratch() as folder:
        bench = Bench.made(folder, graph, nodes, degree, network, seed)
        for share in map(float, shares.split()):
            found = compared(bench, _budget(bench, parts, share), parts, epochs, seed)
            rows |= {f"{share:g} {name}": {"share": share, "method": name} | row for name, row in found.items()}
    return rows


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
        loss = bench.trainer(MEMORY, bench.cut(1), None).epoch().loss
        right = gradients(network)
        graph = bench.cut(parts)
        for mode in MODES:
            room = {"layers": 1 << 30, "parts": 5 * nodes * width}.get(mode, nodes * width)
            ours = bench.trainer(OURS, _again(graph), Plan(0, 0, room, mode != "rows", mode))
            ours.epoch()
            last = ours.epoch()  # nothing of the first one is left in it
            ours.close()
            found[mode] = {
                "difference": difference(gradients(network), right), "loss_difference": abs(last.loss - loss) / loss,
                "hits": ours.host.cache.hits, "misses": ours.host.cache.misses, "written_bytes": last.written_bytes,
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


def held(kind: str, nodes: int, width: int, degree: int, share: float, seed: int) -> dict[str, Any]:
    """Memory that a new process really took: ours over what it was given, and then all in memory."""
    asked = [sys.executable, "-m", "assay.data.grinnder.trials", *map(str, (kind, nodes, width, degree, share, seed))]
    taken = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    given, ours, whole = taken["given"], taken["ours"], taken["whole"]
    if ours is None:
        return {"given": given, "taken_ratio": None, "in_memory_ratio": None, "trained": None}
    fits = ours <= 1.1 * given < whole and taken["difference"] < 1e-4
    return {"given": given, "taken_ratio": ours / given, "in_memory_ratio": whole / given, "trained": fits}


def _measure(kind: str, nodes: int, width: int, degree: int, share: float, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    network = Network(kind, (width, width, width, CLASSES), seed=seed)
    warm(kind)
    memory = int(share * activations(network, nodes))
    with scratch() as folder:
        bench = Bench.made(folder, "communities", nodes, degree, network, seed)
        train = bench.labels >= 0
        rows = DiskArray.open(bench.features)
        with Peak() as peak:
            graph, plan = planned(folder, bench.edges, nodes, network, memory, None)
            trainer = Trainer(network, graph, plan, folder / "rows", bench.labels, train)
            trainer.load(rows)
            ours = [trainer.epoch().loss for _ in range(2)]
            trainer.close()
        del trainer
        one = bench.cut(1)
        with Peak() as all_:  # what the first one left to the allocator is not counted again: if anything, too little
            whole = InMemory(network, one, rows, bench.labels, train)
            right = [whole.epoch().loss for _ in range(2)]
    known = peak.known
    return {
        "given": memory, "ours": peak.grown if known else None, "whole": all_.grown if known else None,
        "difference": abs(ours[-1] - right[-1]) / right[-1],
    }  # fmt: skip


if __name__ == "__main__":
    given = sys.argv
    print(json.dumps(_measure(given[1], int(given[2]), int(given[3]), int(given[4]), float(given[5]), int(given[6]))))
