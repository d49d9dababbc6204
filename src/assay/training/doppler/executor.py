"""The real thing, small: blocked products on worker processes that take whatever operator of theirs is ready.

Every worker is a device. It looks for an operator of its own whose inputs are there, copies those that lie with another
worker, computes, and marks the result as done. Nobody tells it an order; it waits only where nothing is ready. The
first worker also holds the policy: it draws a placement, all of them run it, the time goes back as the reward (stage
III).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.training.doppler.graphs import OpGraph
from assay.training.interface import Ints

IMPORTS = ("torch", "assay.training.doppler.policy")
PATIENCE = 120.0  # seconds that a worker waits for another's result


def inputs(graph: OpGraph, block: int, seed: int) -> Any:
    """A store of one square block an operator, data filled in."""
    store = np.zeros((graph.nodes, block, block), np.float32)
    values = stream(seed, "doppler", "blocks").standard_normal((int(graph.data.sum()), block, block))
    store[graph.data] = values / np.sqrt(block)
    return store


def compute(kind: str, parts: list[Any]) -> Any:
    """One operator on its inputs."""
    if kind == "matmul":
        return parts[0] @ parts[1]
    if kind == "sum":
        return np.sum(parts, axis=0, dtype=np.float32)
    if kind == "relu":
        return np.maximum(parts[0], 0)
    raise ValueError(f"the executor knows matmul, sum and relu, not {kind}")


def in_one_process(graph: OpGraph, store: Any) -> Any:
    """The same in the graph's order, by one process: what every placement must give."""
    found = store.copy()
    for v in np.flatnonzero(~graph.data):
        found[v] = compute(graph.kind[v], [found[u] for u in graph.inputs[v]])
    return found


def _execute(rank: Rank, graph: OpGraph, place: Ints, run: int) -> float:
    """This worker's part of one run; seconds from when all of them began."""
    store, done = rank.array("store"), rank.array("done")
    mine = [int(v) for v in np.flatnonzero((place == rank.index) & ~graph.data)]
    waits = {v: [u for u in graph.inputs[v] if not graph.data[u]] for v in mine}
    rank.meet()
    began = time.perf_counter()
    while mine:
        ready = next((v for v in mine if all(done[u] == run for u in waits[v])), None)
        if ready is None:
            if time.perf_counter() - began > PATIENCE:
                raise TimeoutError(f"worker {rank.index} waited {PATIENCE:g} s for an input")
            time.sleep(2e-5)
            continue
        parts = [store[u] if place[u] == rank.index else store[u].copy() for u in graph.inputs[ready]]
        store[ready] = compute(graph.kind[ready], parts)
        done[ready] = run
        mine.remove(ready)
    rank.meet()
    return time.perf_counter() - began


def _job(rank: Rank, graph: OpGraph, places: list[Ints], rounds: int) -> list[list[float]]:
    """All placements in turn, so many times: seconds[round][placement]."""
    found, run = [], 0
    for _ in range(rounds):
        row = []
        for place in places:
            run += 1
            row.append(_execute(rank, graph, place, run))
        found.append(row)
    return found


def measure(graph: OpGraph, places: list[Ints], workers: int, block: int, rounds: int, seed: int) -> tuple[Any, Any]:
    """Seconds[round, placement] of real runs that take turns, and how far the last results are off."""
    store = inputs(graph, block, seed)
    shared = {"store": store, "done": np.zeros(graph.nodes, np.int64)}
    job = partial(_job, graph=graph, places=places, rounds=rounds)
    with Ranks(workers, job, arrays=shared, imports=IMPORTS) as running:
        answers = running.wait(timeout=300)
        found = running.array("store").copy()
    expected = in_one_process(graph, store)
    return np.max(answers, axis=0), float(np.abs(found - expected).max())


def _train(rank: Rank, graph: OpGraph, layers: dict[str, Any], episodes: int, tries: int, seed: int) -> dict[str, Any]:
    """Worker 0 learns from real runs, the others run; then placements from before and after take turns."""
    share, asked = rank.array("place"), rank.array("asked")
    if rank.index:
        while True:
            rank.meet(240)
            if not asked[0]:
                return {}
            _execute(rank, graph, share.copy(), int(asked[0]))
    from assay.training.doppler import policy

    def real(place: Ints, random: np.random.Generator) -> float:
        asked[0], share[:] = asked[1] + 1, place
        asked[1] += 1
        rank.meet(240)
        return _execute(rank, graph, place, int(asked[0]))

    learned = policy.Learned(policy.Policy(seed).restore(layers), policy.View(graph, rank.size), policy.DOPPLER)
    before = policy.placements(learned, tries, seed)
    policy.reinforce(learned, episodes, seed, real, rate=1e-3)
    after = policy.placements(learned, tries, seed)
    random = stream(seed, "doppler", "real")
    times = [[real(place, random) for place in some] for _ in range(3) for some in (before, after)]
    asked[0] = 0
    rank.meet(240)
    return {"before": float(np.median(times[0::2])), "after": float(np.median(times[1::2])), "runs": int(asked[1])}


def stage_three(
    graph: OpGraph, layers: dict[str, Any], workers: int, block: int, episodes: int, seed: int
) -> dict[str, Any]:
    """Learn from real runs; medians of real seconds of both policies' placements."""
    shared = {
        "store": inputs(graph, block, seed), "done": np.zeros(graph.nodes, np.int64),
        "place": np.zeros(graph.nodes, np.int64), "asked": np.zeros(2, np.int64),
    }  # fmt: skip
    job = partial(_train, graph=graph, layers=layers, episodes=episodes, tries=4, seed=seed)
    with Ranks(workers, job, arrays=shared, imports=IMPORTS) as running:
        answers: list[dict[str, Any]] = running.wait(timeout=500)
    return answers[0]
