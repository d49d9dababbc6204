"""How many GPUs train, how many roll out, and in instances of which size: Libra's two-level search.

Outside, every split of the GPUs; inside, the best training plan of the one part and all partitions of the other part
into instances of 1, 2, 4 and 8 GPUs. A partition is judged by allotment: requests of the latest steps, longest first,
each to the instance that would be done first. What looks best is then played through by the rollout engine, as the
published code hands its candidates to a simulator. Training and rollout overlap (one step off), so a step takes the
longer of the two.
"""

# Compiled functions take whatever types Numba infers.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.compiled import njit
from assay.sim.step_times import step_time
from assay.training.engine import cluster as clusters
from assay.training.engine import post_training
from assay.training.engine.rollout import Pool, Rule, play
from assay.workloads.trajectories import Trajectories

Floats = NDArray[np.float64]
SIZES = (1, 2, 4, 8)  # GPUs of an instance
LONG = 4  # and from which on it belongs to long trajectories
MIXED = 2  # partitions of several sizes that are played through, by training GPUs
ROWS = 256  # trajectories of the history that partitions are judged by


@dataclass(frozen=True)
class Machine:
    """A model on some GPUs of one kind.

    >>> Machine("qwen3-8b", "a800", 48).unit
    8
    """

    model: str
    device: str
    gpus: int

    @property
    def unit(self) -> int:
        """GPUs by which splits differ: a node, less where there are few, more where there are many."""
        return max(1, min(8, self.gpus // 4)) if self.gpus <= 128 else 8 * -(-self.gpus // 128)


@dataclass(frozen=True)
class Split:
    """GPUs that train, and how many instances of each size roll out.

    >>> Split(16, (8, 0, 2, 1)).rollout
    24
    """

    train: int
    counts: tuple[int, int, int, int]

    @property
    def rollout(self) -> int:
        """GPUs that roll out."""
        return sum(size * count for size, count in zip(SIZES, self.counts, strict=True))

    @property
    def name(self) -> str:
        """As it is printed."""
        parts = [f"{count}xtp{size}" for size, count in zip(SIZES, self.counts, strict=True) if count]
        return f"{self.train} train, {' + '.join(parts)}"


@dataclass(frozen=True)
class Judged:
    """A split and the seconds of a step: what training takes, what rollout takes."""

    split: Split
    train: float
    rollout: float
    plan: str = ""

    @property
    def step(self) -> float:
        """One step off: they overlap."""
        return max(self.train, self.rollout)


def sizes(machine: Machine, longest: int) -> list[int]:
    """The sizes of instance that hold the longest trajectory.

    Raises:
        BadInput: none does.
    """
    found = []
    for size in SIZES:
        try:
            cost = step_time(f"{machine.device}:{machine.model}:tp{size}").cost
        except BadInput:
            continue
        if cost.kv_tokens >= longest and size <= machine.gpus:
            found.append(size)
    if not found:
        raise BadInput(
            f"the longest trajectory has {longest} tokens: no instance of up to 8 {machine.device} holds "
            f"{machine.model} and that; take larger devices, or leave the trajectory out"
        )
    return found


def pool(machine: Machine, split: Split, borrowed: int = 0) -> Pool:
    """The instances of a split; `borrowed` of them, the smallest first, train instead."""
    parts = []
    for size, count in zip(SIZES, split.counts, strict=True):
        lent = min(count, borrowed)
        borrowed -= lent
        if count > lent:
            layout = f"{machine.device}:{machine.model}:tp{size}"
            parts.append(Pool.of(layout, count - lent, bucket=int(size >= LONG)))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# ----------------------------------------------------------------------------------------------------------- training


def training(machine: Machine, gpus: int, work: Trajectories) -> tuple[float, str]:
    """Seconds of a training step on these trajectories, and the plan; infinitely many where the model does not fit."""
    return post_training.seconds(machine.model, machine.device, gpus, work)


# ------------------------------------------------------------------------------------------------------------ rollout


@njit(cache=True)
def _allot(work, alone, rate, kind):
    """The end of a rollout: requests, longest first, each to the instance that would be done with it first."""
    busy = np.zeros(len(kind))
    last = 0.0
    for j in range(len(work)):
        chosen, lowest = 0, np.inf
        for w in range(len(kind)):
            end = max(busy[w] + work[j] / rate[kind[w]], alone[kind[w], j])
            if end < lowest:
                chosen, lowest = w, end
        busy[chosen] += work[j] / rate[kind[chosen]]
        last = max(last, lowest)
    return last


@dataclass(frozen=True)
class Demand:
    """The latest trajectories as an allotment sees them: what they write and what each takes alone, longest first."""

    work: Floats
    alone: Floats  # by size of instance
    rate: Floats  # tokens a second by size of instance


def demand(machine: Machine, work: Trajectories, rollout: int) -> Demand:
    """By the sizes of instance, with so many GPUs for all."""
    order = np.argsort(-work.written, kind="stable")[:: max(1, len(work) // ROWS)]
    written, length = work.written[order].astype(float), work.length[order].astype(float)
    env = np.add.reduceat(work.env, work.first[:-1])[order]
    scale = len(work) / len(order)
    alone, rate = np.full((len(SIZES), len(order)), np.inf), np.ones(len(SIZES))
    for at, size in enumerate(SIZES):
        if size not in sizes(machine, int(work.length.max())):
            continue
        cost = step_time(f"{machine.device}:{machine.model}:tp{size}").cost
        mean = float(length.mean())
        batch = int(np.clip(min(len(work) * size / rollout, cost.kv_tokens / mean), 1, 256))
        rate[at] = batch / cost.seconds(batch, int(batch * mean / 2)) / scale
        read = (length - written) * cost.seconds(0, 0, [(1024, 0)]) / 1024
        # the long ones run beside many at first, and beside few in the end
        token = (cost.seconds(1, int(mean)) + cost.seconds(batch, int(batch * mean / 2))) / 2
        alone[at] = written * token + env + read
    return Demand(written, alone, rate)


def partitions(gpus: int, allowed: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """All ways to cut so many GPUs into instances of these sizes.

    >>> len(list(partitions(8, [1, 2, 4, 8])))
    10
    """
    eights = range(gpus // 8 + 1) if 8 in allowed else range(1)
    for c8 in eights:
        left = gpus - 8 * c8
        for c4 in range(left // 4 + 1) if 4 in allowed else range(1):
            rest = left - 4 * c4
            for c2 in range(rest // 2 + 1) if 2 in allowed else range(1):
                c1 = rest - 2 * c2
                if c1 == 0 or 1 in allowed:
                    yield c1, c2, c4, c8


def coarse(gpus: int, allowed: list[int], most: int = 64) -> Iterator[tuple[int, int, int, int]]:
    """All ways, or where they are too many those that cut so many equal parts alike.

    >>> len(list(coarse(64, [1, 2, 4, 8]))), len(list(coarse(128, [1, 2, 4, 8])))
    (969, 969)
    """
    parts = next(n for n in range(min(most, gpus), 0, -1) if gpus % n == 0)
    for counts in partitions(parts, allowed):
        c1, c2, c4, c8 = (count * (gpus // parts) for count in counts)
        yield c1, c2, c4, c8


def estimate(needs: Demand, counts: tuple[int, ...]) -> float:
    """Seconds of a rollout on a partition, by allotment."""
    kind = np.repeat(np.arange(len(SIZES)), counts)
    return float(_allot(needs.work, needs.alone, needs.rate, kind))


# ------------------------------------------------------------------------------------------------------------- search


def splits(machine: Machine) -> list[int]:
    """GPUs that may train."""
    return list(range(machine.unit, machine.gpus, machine.unit))


def alike(rest: int, allowed: list[int]) -> list[tuple[int, int, int, int]]:
    """The partitions into instances of one size."""
    return [
        (rest // size if size == 1 else 0, rest // size if size == 2 else 0, rest // size if size == 4 else 0,
         rest // size if size == 8 else 0)
        for size in allowed
        if rest % size == 0
    ]  # fmt: skip


def candidates(machine: Machine, work: Trajectories) -> list[Judged]:
    """What is worth playing through: by training GPUs, the best partitions by allotment and those of one size.

    Raises:
        BadInput: on no number of GPUs does the model train, or none of the instances holds the longest trajectory.
    """
    allowed = sizes(machine, int(work.length.max()))
    found: list[Judged] = []
    for gpus in splits(machine):
        train, plan = training(machine, gpus, work)
        if math.isinf(train):
            continue
        rest = machine.gpus - gpus
        needs = demand(machine, work, rest)
        judged = [
            Judged(Split(gpus, counts), train, estimate(needs, counts), plan)
            for counts in {*coarse(rest, allowed), *alike(rest, allowed)}
        ]
        mixed = sorted(judged, key=lambda one: (one.step, one.rollout, one.split.counts))[:MIXED]
        found += mixed + [one for one in judged if one.split.counts in alike(rest, allowed) and one not in mixed]
    if not found:
        have = clusters.usable(clusters.read(f"1x{machine.device}").device) / 1e9
        raise BadInput(
            f"{machine.model} does not train on {machine.gpus} {machine.device} of {have:.0f} GB beside a rollout: use "
            "more GPUs"
        )
    return sorted(found, key=lambda one: (one.step, one.rollout))


def played(machine: Machine, judged: Judged, work: Trajectories, rule: Rule) -> Judged:
    """The same with the seconds that the rollout engine comes to, where a rule that learns has seen a step like it."""
    return replace(judged, rollout=play(work, pool(machine, judged.split), rule, past=work).makespan)


def best(machine: Machine, work: Trajectories, rule: Rule | None = None) -> list[Judged]:
    """Libra's plan: the best by allotment, played through, shortest step first; what trains too long is left out.

    >>> from assay.workloads.trajectories import draw
    >>> found = best(Machine("qwen3-8b", "a800", 16), draw(100, seed=0))[0]
    >>> found.split.train + found.split.rollout
    16
    """
    found: list[Judged] = []
    shortest = math.inf
    for one in sorted(candidates(machine, work), key=lambda one: one.train):
        if one.train < shortest:
            found.append(played(machine, one, work, rule or Rule("learnt")))
            shortest = min(shortest, found[-1].step)
    return sorted(found, key=lambda one: (one.step, one.rollout))


def homogeneous(machine: Machine, work: Trajectories, rule: Rule | None = None) -> list[Judged]:
    """Every split with instances of one size, played through: what one would set by hand, tuned."""
    allowed = sizes(machine, int(work.length.max()))
    found: list[Judged] = []
    for gpus in splits(machine):
        train, plan = training(machine, gpus, work)
        if not math.isinf(train):
            for counts in alike(machine.gpus - gpus, allowed):
                one = Judged(Split(gpus, counts), train, math.nan, plan)
                found.append(played(machine, one, work, rule or Rule()))
    return sorted(found, key=lambda one: (one.step, one.rollout))
