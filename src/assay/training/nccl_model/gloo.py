"""Real rings and trees: the sends of a collective performed by processes over gloo, timed, and fitted.

The very sends that the model is made of are performed: each process walks through its own in order, adds what arrives
or takes it over, and starts to send as soon as it may. Needs the extra `torch`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.sim import gloo_ranks
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.sim.sends import Sends, chain, ring_sends, tree_sends

WORD = 4  # bytes of a float32
ALGORITHMS = ("ring", "tree")


def lowered(algorithm: str, ranks: int, nbytes: int) -> Sends:
    """An all-reduce of float32 round a ring, or up a chain (a tree of so few) and down."""
    count = nbytes // WORD
    if algorithm == "ring":
        return ring_sends("all_reduce", ranks, count)
    return tree_sends("all_reduce", [chain(ranks)], count)


def measured(sizes: Sequence[int], rounds: int, ranks: int = 2) -> dict[str, dict[int, float]]:
    """Seconds of an all-reduce by algorithm and size: the least of all rounds, as other work only adds to it.

    Raises:
        RankFailed: a rank raised, or a sum was wrong.
    """
    with scratch() as where, Ranks(ranks, work, str(where), list(sizes), rounds, imports=("torch",)) as started:
        found = started.wait(240.0)
    return {
        name: {size: float(np.min(np.max([one[name][size] for one in found], axis=0))) for size in sizes}
        for name in ALGORITHMS
    }


def work(rank: Rank, where: str, sizes: Sequence[int], rounds: int) -> dict[str, dict[int, list[float]]]:
    """One rank: check every size once, then time them in turns."""
    with gloo_ranks.joined(rank, where) as dist:
        import torch

        spare = torch.empty(max(sizes) // WORD)
        jobs = {(name, size): lowered(name, rank.size, size) for name in ALGORITHMS for size in sizes}
        vectors = {size: torch.empty(size // WORD) for size in sizes}
        for (name, size), sends in jobs.items():
            vectors[size].copy_(torch.arange(size // WORD) % 7 + rank.index)
            perform(sends, rank.index, vectors[size], spare, dist)
            right = rank.size * (torch.arange(size // WORD) % 7) + rank.size * (rank.size - 1) / 2
            if not torch.equal(vectors[size], right):
                raise ValueError(f"the {name} summed {size} bytes wrongly")
        seconds: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in ALGORITHMS}
        for _ in range(rounds):
            for (name, size), sends in jobs.items():
                vectors[size].zero_()
                rank.meet()
                for again in range(1 + min(16, 2**20 // size)):
                    began = time.perf_counter()
                    perform(sends, rank.index, vectors[size], spare, dist)
                    if again or size > 2**20:  # a small one still waits for who left the meeting late
                        seconds[name][size].append(time.perf_counter() - began)
        return seconds


def perform(sends: Sends, me: int, vector: Any, spare: Any, dist: Any) -> None:
    """This rank's part of a collective, on its vector."""
    leaving = []
    for i in np.flatnonzero((sends.src == me) | (sends.dst == me)).tolist():
        part = vector[int(sends.start[i]) : int(sends.start[i] + sends.size[i])]
        if sends.src[i] == me:
            leaving.append(dist.isend(part, int(sends.dst[i])))
            continue
        into = spare[: part.numel()] if sends.adds[i] else part
        dist.recv(into, int(sends.src[i]))
        if sends.adds[i]:
            part += into
    for one in leaving:
        one.wait()
