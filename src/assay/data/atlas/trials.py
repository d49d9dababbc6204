"""The study's cases: generated graphs on real files, the same bytes for every method."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from assay.data.atlas.engine import count_spills
from assay.data.atlas.gather import CACHES, gather_layer, in_memory
from assay.data.atlas.layers import Floats, Layer, layers
from assay.data.atlas.run import infer, warm
from assay.data.atlas.tiers import POLICIES, Int64s
from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.sim.graphs import CSR
from assay.sim.memory import Peak
from assay.sim.orderings import order_of, places
from assay.sim.random import stream
from assay.workloads.graph_generate import communities, rmat

OURS, AUTO, LRU, STATIC, MEMORY = "atlas", "atlas-auto", "gather-lru", "gather-static", "in-memory"
COMMUNITY = 500  # nodes of one
MIXING = 0.1


def edges_of(graph: str, nodes: int, degree: int, seed: int) -> Int64s:
    """Edges of a kind of graph: R-MAT, communities whose numbers are shuffled, or the same in order of community."""
    if graph == "rmat":
        return rmat(int(np.log2(nodes)), degree, seed)
    edges = communities(nodes, max(nodes // COMMUNITY, 2), degree, MIXING, seed).edges
    if graph == "shuffled":
        return edges
    return places(order_of(CSR.from_edges(edges, nodes), "community"))[edges]


def model_of(kind: str, widths: tuple[int, ...], seed: int) -> list[Layer]:
    """A model with random weights, scaled so that rows stay of one size from layer to layer."""
    rng = stream(seed, "atlas-model", kind, *widths)

    def weight(out: int, into: int) -> Floats:
        drawn: Floats = rng.standard_normal((out, into), np.float32)
        return drawn * np.float32(into**-0.5)

    state: dict[str, Any] = {}
    for i in range(len(widths) - 1):
        into, out, name = widths[i], widths[i + 1], f"convs.{i}."
        if kind == "gin":
            state |= {f"{name}nn.0.weight": weight(out, into), f"{name}nn.0.bias": weight(out, 1)[:, 0]}
            state |= {f"{name}nn.2.weight": weight(out, out), f"{name}eps": np.zeros(1)}
        elif kind == "sage":
            state |= {f"{name}lin_l.weight": weight(out, into), f"{name}lin_l.bias": weight(out, 1)[:, 0]}
            state |= {f"{name}lin_r.weight": weight(out, into)}
        elif kind == "gat":
            heads = 4
            state |= {f"{name}lin.weight": weight(out, into), f"{name}bias": weight(out, 1)[:, 0]}
            state |= {f"{name}att_{end}": weight(heads, out // heads)[None] for end in ("src", "dst")}
        else:
            state |= {f"{name}lin.weight": weight(out, into), f"{name}bias": weight(out, 1)[:, 0]}
    return layers(state)


class _Bench:
    """One graph, its reverse and its features on disk."""

    def __init__(self, folder: Path, edges: Int64s, nodes: int, width: int, seed: int) -> None:
        self.folder, self.nodes = folder, nodes
        self.graph = DiskGraph.build(folder / "out", [edges], nodes)
        self.features = folder / "x.npy"
        self.nbytes = 4 * nodes * width
        writer = RowWriter(DiskArray.create(self.features, (nodes, width), np.float32))
        rng = stream(seed, "atlas-rows", nodes, width)
        for start in range(0, nodes, 1024):  # never all at once: what memory has held makes room for what comes
            writer.append(rng.standard_normal((min(1024, nodes - start), width), np.float32))
        writer.close()
        self.out_degree = np.diff(self.graph.indptr.rows(0, nodes + 1)).astype(np.int32)

    @cached_property
    def incoming(self) -> DiskGraph:
        """The graph turned round: what gathers read."""
        return self.graph.reversed(self.folder / "in")

    def atlas(self, model: list[Layer], memory: int, policy: str) -> dict[str, Any]:
        """Stream every layer."""
        began = perf_counter()
        ran = infer(model, self.graph, self.features, self.folder / "y.npy", memory, policy=policy)
        rows = ran.layers
        read = sum(one.feature_bytes for one in rows)
        return {
            "seconds": perf_counter() - began, "read_ratio": read / self._input(model),
            "spilled_ratio": sum(one.spill_bytes for one in rows) / self._input(model),
            "evicted": sum(one.evicted for one in rows), "policy": rows[0].policy,
        }  # fmt: skip

    def gather(self, model: list[Layer], memory: int, cache: str) -> dict[str, Any]:
        """Fetch neighbours' rows, layer by layer."""
        began = perf_counter()
        source, read, misses = self.features, 0, 0
        for i, layer in enumerate(model):
            target = self.folder / ("y.npy" if i == len(model) - 1 else f"gathered-{i}.npy")
            with DiskArray.open(source) as rows:
                ran = gather_layer(
                    layer, self.incoming, self.out_degree, rows, target, memory, self.folder, cache
                )  # fmt: skip
            source, read, misses = target, read + ran.feature_bytes, misses + ran.evicted
        seconds = perf_counter() - began
        return {"seconds": seconds, "read_ratio": read / self._input(model), "evicted": misses, "policy": cache}

    def memory(self, model: list[Layer]) -> dict[str, Any]:
        """Everything at once, from file to file."""
        began = perf_counter()
        with DiskArray.open(self.features) as rows:
            x = rows.rows(0, len(rows))
        for layer in model:
            x = in_memory(layer, self.incoming, x)
        write_rows(self.folder / "y.npy", x)
        return {"seconds": perf_counter() - began, "read_ratio": 1.0, "evicted": 0, "policy": ""}

    def _input(self, model: list[Layer]) -> int:
        return sum(4 * self.nodes * layer.in_width for layer in model)


def _compared(bench: _Bench, methods: dict[str, Callable[[], dict[str, Any]]], turn: int) -> dict[str, dict[str, Any]]:
    """Every method once, the first of them another one each turn, and how far its rows are from those in memory."""
    names = list(methods)
    names = names[turn % len(names) :] + names[: turn % len(names)]
    found, outputs = {}, {}
    for name in names:
        found[name] = methods[name]()
        outputs[name] = np.load(bench.folder / "y.npy")
    right = outputs[MEMORY]
    scale = float(np.abs(right).max()) or 1.0
    return {
        name: row | {"difference": float(np.abs(outputs[name] - right).max()) / scale} for name, row in found.items()
    }


def speed(
    graph: str, kind: str, nodes: int, width: int, degree: int, share: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Atlas and the gathers in `share` of the features' bytes, and all in memory."""
    model = model_of(kind, (width, width), seed)
    warm(model)
    with tempfile.TemporaryDirectory() as name:
        bench = _Bench(Path(name), edges_of(graph, nodes, degree, seed), nodes, width, seed)
        memory = int(share * bench.nbytes)
        _warm_gathers(model, Path(name))
        _ = bench.incoming  # sorted before anybody is timed
        return _compared(bench, {
            OURS: lambda: bench.atlas(model, memory, "min-pending"),
            AUTO: lambda: bench.atlas(model, memory, "auto"),
            LRU: lambda: bench.gather(model, memory, "lru"),
            STATIC: lambda: bench.gather(model, memory, "static"),
            MEMORY: lambda: bench.memory(model),
        }, seed)  # fmt: skip


def _warm_gathers(model: list[Layer], folder: Path) -> None:
    """Compile what the gathers and the reference in memory need, as `warm` does for atlas: all are timed alike."""
    (folder / "warm").mkdir()
    tiny = _Bench(folder / "warm", np.array([(0, 1), (1, 2), (2, 0)]), 3, model[0].in_width, 0)
    for cache in CACHES:
        tiny.gather(model, 1 << 20, cache)
    tiny.memory(model)


def fits(graph: str, nodes: int, width: int, degree: int, seed: int) -> dict[str, dict[str, Any]]:
    """Atlas with room for everything, beside all in memory."""
    model = model_of("gcn", (width, width), seed)
    warm(model)
    with tempfile.TemporaryDirectory() as name:
        bench = _Bench(Path(name), edges_of(graph, nodes, degree, seed), nodes, width, seed)
        methods = {
            OURS: lambda: bench.atlas(model, 4 * bench.nbytes + (64 << 20), "min-pending"),
            MEMORY: lambda: bench.memory(model),
        }
        _warm_gathers(model, Path(name))
        _ = bench.incoming
        rounds = [_compared(bench, methods, turn) for turn in range(3)]
        return {
            method: rounds[0][method] | {"seconds": float(np.median([one[method]["seconds"] for one in rounds]))}
            for method in methods
        }


def exact(kind: str, share: float, nodes: int, width: int, seed: int) -> dict[str, Any]:
    """How far atlas's rows are from those in memory, through two layers, in little memory."""
    model = model_of(kind, (width, width, width // 2), seed)
    with tempfile.TemporaryDirectory() as name:
        bench = _Bench(Path(name), edges_of("rmat", nodes, 8, seed), nodes, width, seed)
        ours = bench.atlas(model, int(share * bench.nbytes), "auto")
        got = np.load(bench.folder / "y.npy")
        bench.memory(model)
        right = np.load(bench.folder / "y.npy")
    return {"difference": float(np.abs(got - right).max() / np.abs(right).max()), "evicted": ours["evicted"]}


def policies(graph: str, nodes: int, degree: int, share: float, seed: int) -> dict[str, dict[str, Any]]:
    """Records spilled by each rule of eviction with accumulators for a share of the nodes: counted, no row moves."""
    arrive, targets = arrivals(edges_of(graph, nodes, degree, seed), nodes)
    found = {}
    for policy in POLICIES:
        spilled, returns, live = count_spills(arrive, targets, nodes, int(share * nodes), policy, seed=seed)
        found[policy] = {"spilled_per_node": spilled / nodes, "returns": returns, "live_ratio": live / nodes}
    return found


def arrivals(edges: Int64s, nodes: int) -> tuple[Int64s, Int64s]:
    """The stream of messages: (source, target) in the order of sources, each node's own first."""
    sources = np.concatenate([np.arange(nodes), edges[:, 0]])
    targets = np.concatenate([np.arange(nodes), edges[:, 1]])
    order = np.argsort(sources, kind="stable")
    return sources[order], targets[order]


def held(method: str, nodes: int, width: int, degree: int, share: float, seed: int) -> dict[str, Any]:
    """Memory that a new process really took, over the memory it was given."""
    words = map(str, (method, nodes, width, degree, share, seed))
    done = subprocess.run([sys.executable, "-c", _HELD, *words], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


_HELD = "import sys; from assay.data.atlas.trials import measure; measure(*sys.argv[1:])"


def measure(method: str, *sizes: str) -> None:
    """Print, as JSON, what one method took in this process."""
    nodes, width, degree, share, seed = (float(word) if "." in word else int(word) for word in sizes)
    model = model_of("gcn", (int(width), int(width)), int(seed))
    warm(model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if method != OURS:
            _warm_gathers(model, folder)
        bench = _Bench(folder, edges_of("rmat", int(nodes), int(degree), int(seed)), int(nodes), int(width), int(seed))
        memory = int(share * bench.nbytes)
        if method != OURS:
            _ = bench.incoming
        gc.collect()
        with Peak() as peak:
            if method == OURS:
                bench.atlas(model, memory, "auto")
            else:
                bench.gather(model, memory, method.removeprefix("gather-"))
    taken = peak.grown if peak.known else None
    print(json.dumps({"given": memory, "taken": taken, "taken_ratio": taken and taken / memory}))
