"""The study's cases: generated graphs on real files, the same bytes for every method."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from assay.data.atlas.choosing import count_spills
from assay.data.atlas.gather import CACHES, gather_layer, in_memory
from assay.data.atlas.layers import Floats, Int32s, Layer, layers
from assay.data.atlas.run import infer, warm
from assay.data.atlas.tiers import POLICIES, Int64s
from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.record.timing import Gauge
from assay.sim.graphs import CSR
from assay.sim.memory import Peak, return_freed
from assay.sim.orderings import order_of, places
from assay.sim.random import stream
from assay.workloads.graph_generate import communities, rmat

OURS, AUTO, LRU, STATIC, MEMORY = "atlas", "atlas-auto", "gather-lru", "gather-static", "in-memory"
ROOMY = "atlas, room for all"
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


class Bench:
    """One graph, its reverse and its features on disk."""

    def __init__(self, folder: Path, graph: DiskGraph, features: Path) -> None:
        self.folder, self.graph, self.features = folder, graph, features

    @classmethod
    def made(cls, folder: Path, edges: Int64s, nodes: int, width: int, seed: int) -> Bench:
        """With random features."""
        folder.mkdir(exist_ok=True)
        random_rows(folder / "x.npy", nodes, width, seed)
        return cls(folder, DiskGraph.build(folder / "out", [edges], nodes), folder / "x.npy")

    @cached_property
    def incoming(self) -> DiskGraph:
        """The graph turned round: what gathers read."""
        return self.graph.reversed(self.folder / "in")

    @cached_property
    def out_degree(self) -> Int32s:
        """How many ask for each row."""
        return np.diff(self.graph.indptr.rows(0, self.graph.n + 1)).astype(np.int32)

    def atlas(self, model: Sequence[Layer], memory: int, policy: str) -> dict[str, Any]:
        """Stream every layer."""
        began = perf_counter()
        rows = infer(model, self.graph, self.features, self.folder / "y.npy", memory, policy=policy).layers
        read = sum(one.feature_bytes for one in rows)
        return {
            "seconds": perf_counter() - began, "read_ratio": read / self._input(model),
            "spilled_ratio": sum(one.spill_bytes for one in rows) / self._input(model),
            "evicted": sum(one.evicted for one in rows), "policy": rows[0].policy,
        }  # fmt: skip

    def gather(self, model: Sequence[Layer], memory: int, cache: str) -> dict[str, Any]:
        """Fetch neighbours' rows, layer by layer."""
        began = perf_counter()
        source, read, misses = self.features, 0, 0
        for i, layer in enumerate(model):
            target = self.folder / ("y.npy" if i == len(model) - 1 else f"gathered-{i}.npy")
            with DiskArray.open(source) as rows:
                ran = gather_layer(layer, self.incoming, self.out_degree, rows, target, memory, self.folder, cache)
            source, read, misses = target, read + ran.feature_bytes, misses + ran.evicted
        seconds = perf_counter() - began
        return {
            "seconds": seconds, "read_ratio": read / self._input(model), "spilled_ratio": 0.0, "evicted": misses,
            "policy": cache,
        }  # fmt: skip

    def memory(self, model: Sequence[Layer]) -> dict[str, Any]:
        """Everything at once, from file to file."""
        began = perf_counter()
        with DiskArray.open(self.features) as rows:
            x = rows.rows(0, len(rows)).astype(np.float32, copy=False)
        for layer in model:
            x = in_memory(layer, self.incoming, x)
        write_rows(self.folder / "y.npy", x)
        seconds = perf_counter() - began
        return {"seconds": seconds, "read_ratio": 1.0, "spilled_ratio": 0.0, "evicted": 0, "policy": ""}

    def _input(self, model: Sequence[Layer]) -> int:
        return sum(4 * self.graph.n * layer.in_width for layer in model)

    def compared(
        self, model: Sequence[Layer], memory: int, names: Sequence[str], turn: int
    ) -> dict[str, dict[str, Any]]:
        """Every method once, the first of them another one each turn, and how far its rows are from the last one's."""
        methods: dict[str, Callable[[], dict[str, Any]]] = {
            OURS: lambda: self.atlas(model, memory, "min-pending"),
            AUTO: lambda: self.atlas(model, memory, "auto"),
            LRU: lambda: self.gather(model, memory, "lru"),
            STATIC: lambda: self.gather(model, memory, "static"),
            MEMORY: lambda: self.memory(model),
        }
        _ = self.incoming, self.out_degree  # sorted before anybody is timed
        found, outputs = {}, {}
        at = turn % len(names)
        for name in (*names[at:], *names[:at]):
            found[name] = methods[name]()
            outputs[name] = np.load(self.folder / "y.npy", mmap_mode="r")
            (self.folder / "y.npy").unlink()
        right = outputs[names[-1]]
        scale = float(np.abs(right).max()) or 1.0
        return {
            name: found[name] | {"difference": float(np.abs(outputs[name] - right).max()) / scale} for name in names
        }


def random_rows(path: Path, nodes: int, width: int, seed: int) -> None:
    """Features of nobody: what a layer costs does not hang on values."""
    writer = RowWriter(DiskArray.create(path, (nodes, width), np.float32))
    rng = stream(seed, "atlas-rows", nodes, width)
    for start in range(0, nodes, 1024):  # never all at once: what memory has held makes room for what comes
        writer.append(rng.standard_normal((min(1024, nodes - start), width), np.float32))
    writer.close()


def warm_all(model: Sequence[Layer], gathers: bool = True) -> None:
    """Compile what atlas, the gathers and the reference in memory need, so that all are timed alike."""
    warm(model)
    if not gathers:
        return
    with tempfile.TemporaryDirectory() as name:
        tiny = Bench.made(Path(name), np.array([(0, 1), (1, 2), (2, 0)]), 3, model[0].in_width, 0)
        for cache in CACHES:
            tiny.gather(model, 1 << 20, cache)
        tiny.memory(model)


def speed(
    graph: str, kind: str, nodes: int, width: int, degree: int, share: float, gathers: str, seed: int
) -> dict[str, dict[str, Any]]:
    """Atlas and these gathers in `share` of the features' bytes; atlas with room for everything, and all in memory."""
    model = model_of(kind, (width, width), seed)
    warm_all(model)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench.made(Path(name), edges_of(graph, nodes, degree, seed), nodes, width, seed)
        room = 16 * nodes * width + (64 << 20)
        with Gauge() as gauge:
            names = (OURS, AUTO, *gathers.split(), MEMORY)
            found = bench.compared(model, int(share * 4 * nodes * width), names, seed)
            rounds = [bench.compared(model, room, (OURS, MEMORY), turn) for turn in range(3)]
    for method, of in ((ROOMY, OURS), (MEMORY, MEMORY)):
        middle = float(np.median([one[of]["seconds"] for one in rounds]))
        found[method] = rounds[0][of] | {"seconds": middle}
    return {name: row | {"free_cores": gauge.free} for name, row in found.items()}


def exact(kind: str, share: float, policy: str, nodes: int, width: int, seed: int) -> dict[str, Any]:
    """How far atlas's rows are from those in memory, through two layers, in little memory."""
    model = model_of(kind, (width, width, width // 2), seed)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench.made(Path(name), edges_of("rmat", nodes, 8, seed), nodes, width, seed)
        ours = bench.atlas(model, int(share * 4 * nodes * width), policy)
        got = np.load(bench.folder / "y.npy")
        bench.memory(model)
        right = np.load(bench.folder / "y.npy")
    return {"difference": float(np.abs(got - right).max() / np.abs(right).max()), "evicted": ours["evicted"]}


def policies(graph: str, nodes: int, degree: int, share: float, seed: int) -> dict[str, dict[str, Any]]:
    """Records spilled by each rule of eviction with accumulators for a share of the nodes: counted, no row moves."""
    arrive, targets = arrivals(edges_of(graph, nodes, degree, seed), nodes)
    found = {}
    for policy in POLICIES:
        spilled, returns, live, _ = count_spills(arrive, targets, nodes, int(share * nodes), policy, seed=seed)
        found[policy] = {"spilled_per_node": spilled / nodes, "returns": returns, "live_ratio": live / nodes}
    return found


def arrivals(edges: Int64s, nodes: int) -> tuple[Int64s, Int64s]:
    """The stream of messages: (source, target) in the order of sources, each node's own first."""
    sources = np.concatenate([np.arange(nodes), edges[:, 0]])
    targets = np.concatenate([np.arange(nodes), edges[:, 1]])
    order = np.argsort(sources, kind="stable")
    return sources[order], targets[order]


def held(methods: str, nodes: int, width: int, degree: int, share: float, seed: int) -> dict[str, dict[str, Any]]:
    """Memory that each method really took in a new process, over the memory it was given."""
    words = map(str, (methods, nodes, width, degree, share, seed))
    done = subprocess.run([sys.executable, "-c", _HELD, *words], check=True, capture_output=True, text=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


_HELD = "import sys; from assay.data.atlas.trials import measure; measure(*sys.argv[1:])"


def measure(methods: str, *sizes: str) -> None:
    """Print, as JSON, what methods took in this process, one after the other."""
    nodes, width, degree, share, seed = (float(word) if "." in word else int(word) for word in sizes)
    model = model_of("gcn", (int(width), int(width)), int(seed))
    gathers = any(not method.startswith(OURS) for method in methods.split())
    warm_all(model, gathers)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        edges = edges_of("rmat", int(nodes), int(degree), int(seed))
        bench = Bench.made(Path(name), edges, int(nodes), int(width), int(seed))
        memory = int(share * 4 * nodes * width)
        if gathers:
            _ = bench.incoming, bench.out_degree
        del edges
        for method in methods.split():
            gc.collect()
            return_freed()  # what was done before leaves no room for what is measured
            with Peak() as peak:
                if method.startswith(OURS):
                    bench.atlas(model, memory, "auto" if method == AUTO else "min-pending")
                else:
                    bench.gather(model, memory, method.removeprefix("gather-"))
            taken = peak.grown if peak.known else None
            found[method] = {"given": memory, "taken": taken, "taken_ratio": taken and taken / memory}
    print(json.dumps(found))
