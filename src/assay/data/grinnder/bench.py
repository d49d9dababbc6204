"""A generated graph on real files, and every method on one cut of it with the same memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.disk.arrays import DiskArray, write_rows
from assay.data.grinnder.blocks import Blocks, CutGraph, cut
from assay.data.grinnder.layers import Int64s, Network
from assay.data.grinnder.plan import Plan, planned
from assay.data.grinnder.rivals import InMemory, Mapped, Snapshots
from assay.data.grinnder.trainer import Progress, Trainer, difference, gradients
from assay.data.grinnder.trials import CLASSES, MAPPED, MEMORY, OURS, SNAPSHOT, edges_of
from assay.sim.random import stream

TRAINERS: dict[str, type[Trainer]] = {OURS: Trainer, SNAPSHOT: Snapshots, MAPPED: Mapped}


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
    """Every method on one cut and memory, taking turns epoch by epoch; gradients beside those in memory."""
    graph, plan = planned(bench.folder, bench.edges, bench.n, bench.network, memory, parts)
    names = [*TRAINERS, *[MEMORY] * in_memory]
    plans = {name: Plan.of(bench.network, graph, memory, name != SNAPSHOT) for name in TRAINERS}  # the best of each
    ready = {
        name: bench.trainer(name, bench.cut(1), None)
        if name == MEMORY
        else bench.trainer(name, again(graph), plans[name])
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
            "parts": graph.parts, "amplification": graph.amplification, "mode": plans.get(name, plan).mode,
            "gradients_in_memory": plans.get(name, plan).gradients,
        }  # fmt: skip
        if name != MEMORY:
            ready[name].close()
    graph.close()
    return rows


def again(graph: CutGraph) -> CutGraph:
    """The same cut with files of its own: a trainer closes them."""
    return replace(graph, _read={})


def budget(bench: Bench, parts: int, share: float) -> int:
    """Memory that leaves `share` of the activations for rows and gradients once blocks have what they need."""
    graph = bench.cut(parts)
    plan = Plan.of(bench.network, graph, 1 << 40)
    graph.close()
    return plan.fixed + plan.work + int(share * activations(bench.network, bench.n))
