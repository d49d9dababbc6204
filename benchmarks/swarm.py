"""Interactions per second of the voting rules, on one core; and a plain Python loop beside them.

.venv/bin/python benchmarks/swarm.py
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from assay.protocols import vote
from assay.protocols.div import RULES
from assay.record.timing import interleave, median
from assay.sim.graphs import Graph, complete, random_regular
from assay.sim.random import stream

GRAPHS: dict[str, Graph] = {
    "8-regular, n = 4,096": random_regular(4096, 8),
    "8-regular, n = 100,000": random_regular(100_000, 8),
    "complete, n = 100,000": complete(100_000),
}
STEPS = 10_000_000


def rate(graph: Graph, rule: str, opinions: NDArray[np.int64]) -> float:
    """Interactions per second until agreement or the cap."""
    done: list[int] = []

    def run() -> None:
        done.append(int(vote(graph, opinions, rule=rule, max_steps=STEPS).steps.sum()))

    run()
    return done[0] / median(interleave({rule: run}, rounds=5)[rule])


def loop_rate(steps: int = 200_000) -> float:
    """What a per-step Python loop does, for scale."""
    graph = random_regular(4096, 8)
    opinions = stream(0, "bench").integers(0, 1000, 4096).tolist()
    rows = graph.indices.reshape(-1, 8).tolist()
    random = stream(0, "bench", "loop")
    nodes, slots = random.integers(0, 4096, steps).tolist(), random.integers(0, 8, steps).tolist()
    start = time.perf_counter()
    for u, slot in zip(nodes, slots, strict=True):
        own, other = opinions[u], opinions[rows[u][slot]]
        opinions[u] = own + (other > own) - (other < own)
    return steps / (time.perf_counter() - start)


def main() -> None:
    print(f"{'graph':<24}" + "".join(f"{rule:>15}" for rule in RULES) + "   million interactions/s")
    for name, graph in GRAPHS.items():
        opinions = stream(0, "bench", name).integers(0, 1000, graph.n)
        rates = [rate(graph, rule, opinions) / 1e6 for rule in RULES]
        print(f"{name:<24}" + "".join(f"{value:>15.1f}" for value in rates))
    print(f"{'python loop, n = 4,096':<24}{loop_rate() / 1e6:>15.1f}")


if __name__ == "__main__":
    main()
