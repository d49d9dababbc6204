"""The study's cases: generated graphs on real files, the same cut and the same memory for every method.

Whoever only hands the cases out does not load torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.record.timing import Gauge
from assay.sim.graphs import CSR
from assay.sim.memory import Peak
from assay.sim.partitions import amplification, partition
from assay.sim.scratch import scratch
from assay.workloads.graph_generate import communities, rmat

if TYPE_CHECKING:
    from assay.data.grinnder.layers import Int64s

OURS, SNAPSHOT, MAPPED, MEMORY = "grinnder", "snapshot", "mmap", "in-memory"
CLASSES = 8
CLEAR = 1e-6  # of the root mean square: float32's sums differ by less, mostly
DRAWS = 40  # of networks: of a million numbers, every second one or so is clear of kinks
GRAPHS = ("communities", "rmat")


def edges_of(graph: str, nodes: int, degree: int, seed: int) -> Int64s:
    """Undirected edges (both directions) of a kind of graph."""
    if graph == "rmat":
        one = rmat(int(np.log2(nodes)), degree // 2, seed)
    else:
        one = communities(nodes, max(nodes // 500, 2), degree / 2, 0.1, seed).edges
    return np.concatenate([one, one[:, ::-1]])


def trained(table: str, seed: int, **case: Any) -> dict[str, dict[str, Any]]:
    """A case of one of the tables for which networks are trained in this process."""
    cases: dict[str, Callable[..., dict[str, dict[str, Any]]]] = {"speed": speed, "exact": exact}
    return cases[table](**case, seed=seed)


def speed(
    graph: str, kind: str, nodes: int, width: int, degree: int, parts: int, epochs: int, shares: str, seed: int
) -> dict[str, dict[str, Any]]:
    """All methods where memory for rows is a share of the activations, beside what blocks need: one row for each."""
    import torch

    from assay.data.grinnder.bench import Bench, budget, compared
    from assay.data.grinnder.layers import Network
    from assay.data.grinnder.trainer import warm

    torch.set_num_threads(1)
    network = Network(kind, (width, width, width, CLASSES), seed=seed)
    warm(kind)
    rows: dict[str, dict[str, Any]] = {}
    with scratch() as folder:
        bench = Bench.made(folder, graph, nodes, degree, network, seed)
        for share in map(float, shares.split()):
            with Gauge() as gauge:
                found = compared(bench, budget(bench, parts, share), parts, epochs, seed)
            told = {"share": share, "free_cores": gauge.free}
            rows |= {f"{share:g} {name}": told | {"method": name} | row for name, row in found.items()}
    return rows


def exact(kind: str, parts: int, nodes: int, width: int, seed: int) -> dict[str, dict[str, Any]]:
    """How far gradients and losses are from those in memory, for every way to hold rows.

    Of a network that comes near a kink, where gradients jump with the order of a sum, another one is drawn.
    """
    from assay.data.grinnder.bench import Bench, again
    from assay.data.grinnder.host import MODES
    from assay.data.grinnder.layers import Network
    from assay.data.grinnder.plan import Plan
    from assay.data.grinnder.trainer import difference, gradients

    found = {}
    with scratch() as folder:
        for draw in range(DRAWS):
            network = Network(kind, (width, width, width, CLASSES), seed=seed + 1000 * draw)
            bench = Bench.made(folder, "rmat", nodes, 8, network, seed)
            whole = bench.trainer(MEMORY, bench.cut(1), None)
            if (kink := whole.nearest_kink()) >= CLEAR:
                break
        loss = whole.epoch().loss
        right = gradients(network)
        graph = bench.cut(parts)
        for mode in MODES:
            room = {"layers": 1 << 30, "parts": 5 * nodes * width}.get(mode, nodes * width)
            ours = bench.trainer(OURS, again(graph), Plan(0, 0, room, mode != "rows", mode))
            ours.epoch()
            last = ours.epoch()  # nothing of the first one is left in it
            ours.close()
            found[mode] = {
                "mode": mode, "draws": draw + 1, "kink": kink, "difference": difference(gradients(network), right),
                "loss_difference": abs(last.loss - loss) / loss,
                "hits": ours.host.cache.hits, "misses": ours.host.cache.misses, "written_bytes": last.written_bytes,
            }  # fmt: skip
    return found


def cuts(graph: str, nodes: int, degree: int, parts: int, seed: int) -> dict[str, dict[str, Any]]:
    """Rows that all parts gather together, by each partitioner, over the nodes."""
    from assay.data.disk.graphs import DiskGraph
    from assay.data.grinnder.partitioner import switch_aware

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
    import torch

    from assay.data.disk.arrays import DiskArray
    from assay.data.grinnder.bench import Bench, activations
    from assay.data.grinnder.layers import Network
    from assay.data.grinnder.plan import planned
    from assay.data.grinnder.rivals import InMemory
    from assay.data.grinnder.trainer import Trainer, warm

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
            right = InMemory(network, one, rows, bench.labels, train).epoch().loss
    known = peak.known
    return {
        "given": memory, "ours": peak.grown if known else None, "whole": all_.grown if known else None,
        "difference": abs(ours[-1] - right) / right,
    }  # fmt: skip


if __name__ == "__main__":
    given = sys.argv
    print(json.dumps(_measure(given[1], int(given[2]), int(given[3]), int(given[4]), float(given[5]), int(given[6]))))
