"""All-to-alls of real processes that stand for the dies of a few nodes, over links that are slowed down.

A process sends its messages one after the other, through gloo; before a message is sent, it waits as long as the
message would take to start and to pass its link, which is ten times slower between "nodes" than within. So the ratio of
two algorithms is that of such a network, whatever the machine; what every rank ends with is checked byte by byte.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.interface import Ints
from assay.training.piper.exchanges import SCHEDULES, Messages
from assay.training.piper.machine import Machine

SLOWED = Machine(nodes=4, per_node=2, cards=2, group=2, inside=5e6, card=0.5e6, local=1e9, taper=1e4, start_inside=4e-3,
                 start_outside=40e-3, window=1)  # fmt: skip
IMPORTS = ("torch", "torch.distributed", __name__)  # once for all ranks
ALGORITHMS = ("flat", "two-level", "halo")  # a window of one message: streamed HALO would be the same


def ragged(ranks: int, mean: float, seed: int) -> Ints:
    """Bytes of every block: uneven, a tenth of them nothing at all.

    >>> sizes = ragged(8, 4096, seed=0)
    >>> sizes.shape, bool((sizes == 0).any())
    ((8, 8), True)
    """
    random = stream(seed, "piper", "ragged", ranks)
    sizes = random.lognormal(0.0, 0.8, (ranks, ranks)) * mean / np.exp(0.32)
    return np.where(random.random((ranks, ranks)) < 0.1, 0, sizes).astype(np.int64)


def block(source: int, target: int, size: int) -> Ints:
    """Bytes that tell where they come from, and where they belong."""
    return ((np.arange(size) * (source + 1) + 17 * target + source) % 251).astype(np.uint8)


def measured(machine: Machine, mean: float, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Of every round, in which the algorithms take turns: their seconds, those of the model, and wrong blocks."""
    if find_spec("torch") is None:  # it is the ranks that import it
        raise NotMeasured("real all-to-alls need the extra torch")
    sizes = ragged(machine.ranks, mean, seed)
    plans = {name: SCHEDULES[name](machine, [range(machine.ranks)]) for name in ALGORITHMS}
    with scratch() as folder:
        job = partial(_rounds, folder=str(folder), machine=machine, plans=plans, sizes=sizes, rounds=rounds)
        with Ranks(machine.ranks, job, imports=IMPORTS) as running:
            found = running.wait(timeout=240)
    seconds = {name: np.max([rank[name]["seconds"] for rank in found], axis=0) for name in plans}
    wrong = {"wrong": float(sum(rank[name]["wrong"] for rank in found for name in plans))}
    predicted = {f"{name}_predicted": plan.seconds(machine, sizes.astype(float)) for name, plan in plans.items()}
    return {
        f"round {turn}": {name: float(took[turn]) for name, took in seconds.items()} | predicted | wrong
        for turn in range(rounds)
    }


def _rounds(
    rank: Rank, folder: str, machine: Machine, plans: Mapping[str, Messages], sizes: Ints, rounds: int
) -> dict[str, dict[str, Any]]:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder) as dist:
        found: dict[str, dict[str, Any]] = {name: {"seconds": [], "wrong": 0} for name in plans}
        for _ in range(rounds):
            for name, plan in plans.items():
                held = {(rank.index, j): block(rank.index, j, int(sizes[rank.index, j])) for j in range(rank.size)}
                dist.barrier()
                begun = time.perf_counter()
                _performed(rank.index, machine, plan, sizes, held)
                found[name]["seconds"].append(time.perf_counter() - begun)
                right = [np.array_equal(held.get((i, rank.index), ()), block(i, rank.index, int(sizes[i, rank.index])))
                         for i in range(rank.size)]  # fmt: skip
                found[name]["wrong"] += right.count(False)
        dist.barrier()
        return found


def _performed(me: int, machine: Machine, plan: Messages, sizes: Ints, held: dict[Any, Any]) -> None:
    """Send this rank's messages in their order, each when what it waits for is here; receive all that is for it."""
    import torch
    import torch.distributed as dist

    nbytes = plan.nbytes(sizes.astype(float)).astype(np.int64).tolist()
    coming = {i: torch.empty(nbytes[i], dtype=torch.uint8) for i in range(len(plan)) if plan.dst[i] == me and nbytes[i]}
    under_way: dict[int, Any] = {i: dist.irecv(buffer, plan.src[i], tag=2 * i) for i, buffer in coming.items()}

    def arrive(number: int) -> None:
        if number in under_way:
            under_way.pop(number).wait()
            _unpacked(coming[number].numpy(), plan.blocks[number], sizes, held)

    sent: list[tuple[Any, Any]] = []
    free = time.perf_counter()
    for i in range(len(plan)):
        if plan.src[i] != me or not nbytes[i]:
            continue
        for before in plan.after[i]:
            arrive(before)
        near = plan.dst[i] // machine.per_node == me // machine.per_node
        start, rate = (machine.start_inside, machine.inside) if near else (machine.start_outside, machine.card)
        free = max(free, time.perf_counter()) + start + nbytes[i] / rate
        time.sleep(max(0.0, free - time.perf_counter()))
        packed = torch.from_numpy(np.concatenate([held[pair] for pair in plan.blocks[i]]))
        sent.append((dist.isend(packed, plan.dst[i], tag=2 * i), packed))
    for number in list(under_way):
        arrive(number)
    for work, _ in sent:
        work.wait()


def _unpacked(packed: Any, blocks: list[tuple[int, int]], sizes: Ints, held: dict[Any, Any]) -> None:
    at = 0
    for pair in blocks:
        held[pair] = packed[at : at + int(sizes[pair])].copy()
        at += int(sizes[pair])


def smaller(nodes: int) -> Machine:
    """The slowed machine with so many nodes."""
    return replace(SLOWED, nodes=nodes)
