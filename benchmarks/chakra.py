"""A million nodes of Chakra traces: read, planned, replayed on one core; beside protobuf's own Python library.

.venv/bin/python benchmarks/chakra.py [nodes]

Two shapes: one rank's long trace (a chain with side branches on four streams, a collective every tenth node, attributes
and tensors as PyTorch's have them), and 1,024 ranks of a generated training step. The peer reads the same file into its
message objects, as the published tools do, and its replay is the plain event loop of the tests on a small part.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from assay.observe.graphs.generate import Job, device, generate
from assay.observe.graphs.replay import Link, Network, Plan, critical_path, replay
from assay.sim.random import stream
from assay.workloads import chakra
from assay.workloads.chakra import COLL, COMP, Graph, Interned, Rows
from assay.workloads.chakra_attributes import sized

sys.path.insert(0, str(Path(__file__).parents[1]))
NETWORK = Network(Link(2e-6, 450e9), Link(5e-6, 50e9), per_node=8, ranks=8)


def long_trace(n: int) -> Graph:
    """One rank: every node waits for the one before it on its stream and, one in three, for one of another stream."""
    random = stream(0, "bench", "chakra")
    collective = np.arange(n) % 10 == 9
    lane = random.integers(0, 4, n)
    other = np.maximum(np.arange(n) - random.integers(1, 50, n), 0)
    counts = 1 + (random.random(n) < 1 / 3)
    counts[0] = 0
    at = np.concatenate([[0], np.cumsum(counts)])
    values = np.zeros(at[-1], np.uint64)
    values[at[1:-1]] = np.arange(n - 1)
    second = np.flatnonzero(counts == 2)
    values[at[second] + 1] = other[second]
    names = [f"aten::op{i}" for i in range(200)]
    absent = np.where(collective, 0, -1).astype(np.int32)
    io = sized(8, sized(1, b"[[4, 5, 0, 25690112, 4, 'cuda:0'], true]"))
    return Graph.of(
        np.arange(n), Interned(random.integers(0, 200, n).astype(np.int32), names), np.where(collective, COLL, COMP),
        data_deps=Rows(at.astype(np.int64), values), duration_micros=random.integers(1, 200, n),
        start_micros=np.cumsum(random.integers(1, 100, n)), io=[io] * n,
        attributes={
            "is_cpu_op": Interned(np.zeros(n, np.int32), [False]),
            "stream": Interned(lane.astype(np.int32), [7, 8, 9, 20]), "comm_type": Interned(absent, [0]),
            "comm_size": Interned(absent, [1 << 20]), "pg_name": Interned(absent, ["0"]),
        },
        rank=0,
    )  # fmt: skip


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, and what it gives."""
    begin = time.perf_counter()
    value = function()
    return time.perf_counter() - begin, value


def report(what: str, took: float, nodes: int) -> None:
    """One line."""
    print(f"  {what:<34}{took:>9.2f} s{nodes / took / 1e6:>10.2f} M nodes/s")


def ours(path: Path, n: int) -> None:
    took, graph = seconds(lambda: chakra.read(path))
    report("read", took, n)
    took, plan = seconds(lambda: Plan.of(graph))
    report("plan (order, lanes, meetings)", took, n)
    took, outcome = seconds(lambda: replay(plan, NETWORK))
    report("replay", took, n)
    report("critical path", seconds(lambda: critical_path(outcome))[0], n)
    took, _ = seconds(lambda: chakra.write(graph, path.with_suffix(".copy.et")))
    report("write", took, n)
    same = path.with_suffix(".copy.et").read_bytes() == path.read_bytes()
    print(f"  written back byte for byte: {same}; step {outcome.makespan:.3f} s; {outcome.priced} collectives priced")


def peer(path: Path, n: int) -> None:
    """The same file by protobuf's library, compiled from the list of fields."""
    try:
        from tests.oracles import chakra as oracle

        took, (_, nodes) = seconds(lambda: oracle.read(path.read_bytes()))
    except ImportError:
        print("  protobuf is not installed: pip install protobuf")
        return
    report("protobuf's library: read", took, n)
    took, _ = seconds(lambda: [(m.id, m.type, list(m.data_deps), m.duration_micros) for m in nodes])
    report("protobuf's library: take columns", took, n)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.0.et"
        chakra.write(long_trace(1000), small)
        replay(chakra.read(small), NETWORK)  # compile
        path = Path(folder) / "long.0.et"
        chakra.write(long_trace(n), path)
        print(f"one rank, {n:,} nodes, {path.stat().st_size / 1e6:.0f} MB")
        ours(path, n)
        peer(path, n)
    job = Job(layers=32, hidden=8192, heads=64, seq=4096, batch=1, tp=8, dp=32, pp=4, microbatches=16)
    took, graphs = seconds(lambda: generate(job, device("h100")))
    nodes = sum(len(graph) for graph in graphs)
    print(f"{job.ranks} ranks, {nodes:,} nodes")
    report("generate", took, nodes)
    took, plan = seconds(lambda: Plan.of(graphs))
    report("plan (order, lanes, meetings)", took, nodes)
    took, outcome = seconds(lambda: replay(plan, NETWORK))
    report("replay, first network", took, nodes)
    report("replay, another network", seconds(lambda: replay(plan, NETWORK.scaled(bandwidth=2.0)))[0], nodes)
    print(f"  step {outcome.makespan:.3f} s")


if __name__ == "__main__":
    main()
