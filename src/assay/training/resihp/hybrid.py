"""A hybrid plan whose groups, stages and replicas may differ, and what its step takes on the engine.

`speed[replica, stage, member]` says how fast every device is: 1 as bought, 0 gone. A plan chooses members of every
tensor-parallel group, layers of every stage of every replica, and the replica of every microbatch. Computing takes as
long as the slowest member; exchanges do not get slower. A replica without layers takes no part.

>>> from assay.training.resihp.iterations import Training
>>> job = Training("llama-2-7b", "16xa100:ib200", Layout(tp=4, pp=2, dp=2), microbatches=4, tokens=4096)
>>> plan, speed, squares = whole(job), np.ones((2, 2, 4)), np.full(8, 4096.0**2 / 4)
>>> slow = speed.copy()
>>> slow[0, 1, 3] = 0.5
>>> bool(step(job, plan, slow, squares) > 1.3 * step(job, plan, speed, squares))
True
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.training.engine.cluster import usable
from assay.training.engine.compound import Ends, Passes, steps
from assay.training.engine.costs import StageCosts, microbatch_costs, parts
from assay.training.engine.schedules import B, F, OneFOneB, ZeroBubbleH1
from assay.training.interface import Floats, Ints, Layout, Plan, Schedule
from assay.training.resihp.iterations import Training

Bools = NDArray[np.bool_]
FIRST, MIDDLE, LAST = range(3)


@dataclass(frozen=True)
class Hybrid:
    """Which members work, [replica, stage, member]; layers, [replica, stage]; the replica of each microbatch.

    `passes`, where it is given, deals a stage's passes over its groups of all replicas, [replica, stage]; a column of
    zeros leaves each to its own.
    """

    members: Bools
    layers: Ints
    owner: Ints
    order: str = "1f1b"
    passes: Ints | None = None

    @property
    def alive(self) -> Bools:
        """The replicas that take part."""
        return np.asarray(self.layers.sum(axis=1) > 0)

    @property
    def degree(self) -> Ints:
        """How many devices each group has."""
        return np.asarray(self.members.sum(axis=2))


@dataclass(frozen=True)
class Eager(OneFOneB):
    """1F1B with so many more forward passes in flight, which takes up jitter between stages and costs memory."""

    key = "eager"
    extra: int = 2

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        warm = min(m, pp - stage - 1 + self.extra)
        rows = [(F, 0, i, 0) for i in range(warm)]
        for i in range(m - warm):
            rows += [(F, 0, warm + i, 0), (B, 0, i, 0)]
        return np.array(rows + [(B, 0, i, 0) for i in range(m - warm, m)], np.int64)


ORDERS: dict[str, Schedule] = {
    "1f1b": OneFOneB(),
    "zb-h1": ZeroBubbleH1(),
    "eager-2": Eager(extra=2),
    "eager-6": Eager(extra=6),
}
FLYING = {"1f1b": 0, "zb-h1": 0, "eager-2": 2, "eager-6": 6}  # microbatches in flight beside 1F1B's


def whole(training: Training) -> Hybrid:
    """The plan of the healthy job: all members, layers alike, microbatches in turn."""
    cut = training.layout
    layers = np.tile(parts(training.shape.layers, cut.pp), (cut.dp, 1))
    return Hybrid(np.ones((cut.dp, cut.pp, cut.tp), bool), layers, np.arange(cut.dp * training.microbatches) % cut.dp)


class Table(NamedTuple):
    """Of one tensor-parallel degree: what a first, a middle and a last stage of one layer each takes and keeps."""

    costs: StageCosts
    hop: Floats


@lru_cache(maxsize=64)
def _table(training: Training, degree: int, squares: bytes) -> Table:
    given = np.frombuffer(squares)
    tokens = np.full(len(given), float(training.tokens))
    plan = Plan(Layout(tp=degree, dp=training.layout.dp), recompute="selective")
    costs = microbatch_costs(training.shape, training.on, plan, (1, 1, 1), tokens, given / 2 / tokens)
    return Table(costs, training.section.passes(tokens, given / 2).sent[0])


def table(training: Training, degree: int, squares: Floats) -> Table:
    """Kept by the bytes of the squares."""
    return _table(training, degree, np.ascontiguousarray(squares, float).tobytes())


def per_stage(values: Floats, layers: Ints) -> Floats:
    """A replica's stages, [stages, ...]: so many layers each, embedding and head with its first and last layers."""
    found = layers.reshape(-1, *(1,) * (values.ndim - 1)) * values[MIDDLE]
    there = np.flatnonzero(layers)
    if len(there):
        found[there[0]] = found[there[0]] + values[FIRST] - values[MIDDLE]
        found[there[-1]] = found[there[-1]] + values[LAST] - values[MIDDLE]
    return np.asarray(found)


def paces(plan: Hybrid, speed: Floats) -> Floats:
    """How many times as long every group computes, [replica, stage]; infinite where a member is gone."""
    worst = np.where(plan.members, speed, np.inf).min(axis=2)
    with np.errstate(divide="ignore"):
        found = np.where(plan.members.any(axis=2), 1.0 / worst, np.inf)
    if plan.passes is not None:
        for stage in np.flatnonzero(plan.passes.any(axis=0)):
            mine = plan.passes[:, stage]
            late = np.where(mine > 0, mine * np.where(mine > 0, found[:, stage], 0.0), 0.0).max()
            found[:, stage] = late / (mine.sum() / len(mine))
    return np.asarray(found)


def step(training: Training, plan: Hybrid, speed: Floats, squares: Floats) -> float:
    """Seconds of a step with devices of these speeds; infinite where a device it needs is gone."""
    found = stage_passes(training, plan, speed, squares)
    if found is None:
        return float("inf")
    return float(steps(ORDERS[plan.order], found, _ends(training, plan, squares)).max())


def stage_passes(training: Training, plan: Hybrid, speed: Floats, squares: Floats) -> Passes | None:
    """Every replica's passes as a column of its own, [stages, 1, microbatches, replicas]; None: somebody is gone."""
    alive, pace = np.flatnonzero(plan.alive), paces(plan, speed)
    if not len(alive) or not np.isin(plan.owner, alive).all():
        return None
    counts = np.bincount(plan.owner, minlength=len(plan.layers))
    stages = plan.layers.shape[1]
    found = {name: np.zeros((stages, 1, int(counts.max()), len(alive))) for name in ("F", "I", "W", "sent")}
    for column, replica in enumerate(alive):
        mine, layers = np.flatnonzero(plan.owner == replica), plan.layers[replica]
        if not np.isfinite(pace[replica][layers > 0]).all():
            return None
        for size, here in _sizes(training, plan, replica):
            group = table(training, size, squares)
            one, times, at = group.costs, pace[replica][here, None], (here, 0, slice(len(mine)), column)
            forward, inputs, weights, wires, back = (
                per_stage(each[:, mine], layers)[here]
                for each in (one.forward, one.inputs, one.weights, one.wires_forward, one.wires_backward)
            )
            found["F"][at], found["I"][at], found["W"][at] = (
                forward * times + wires,
                inputs * times + back,
                weights * times,
            )
            found["sent"][at] = group.hop[mine]
    return Passes(found["F"], found["I"], found["W"], 0 * found["F"], found["sent"], np.zeros(stages))


def _sizes(training: Training, plan: Hybrid, replica: Any) -> list[tuple[int, Ints]]:
    """A replica's stages with layers, by their groups' size; passes of a lost group run on others like it."""
    degree = np.where(plan.degree[replica] > 0, plan.degree[replica], training.layout.tp)
    there = plan.layers[replica] > 0
    return [(size, np.flatnonzero(there & (degree == size))) for size in np.unique(degree[there]).tolist()]


def _ends(training: Training, plan: Hybrid, squares: Floats) -> Ends:
    """What follows the passes: of every stage that of the replica with the most to do."""
    alive = np.flatnonzero(plan.alive)
    each = np.zeros((3, len(alive), plan.layers.shape[1]))
    for row, replica in enumerate(alive):
        layers = plan.layers[replica]
        for size, here in _sizes(training, plan, replica):
            costs = table(training, size, squares).costs
            for column, values in enumerate((costs.gather, costs.reduce, costs.update)):
                each[column, row, here] = per_stage(values, layers)[here]
    gather, reduce, update = each.max(axis=1)
    return Ends(gather, reduce, update, np.maximum(plan.layers[plan.alive].max(axis=0), 1).astype(float))


def held(training: Training, plan: Hybrid, replica: int, stage: int, degree: int, squares: Floats) -> float:
    """Bytes of a device of one group at its fullest, if the group had this degree."""
    costs, layers = table(training, degree, squares).costs, plan.layers[replica]
    mine = int((plan.owner == replica).sum())
    flying = min(mine, plan.layers.shape[1] - stage + FLYING[plan.order])
    there = np.flatnonzero(layers)
    kept, state = layers[stage] * costs.kept[MIDDLE], layers[stage] * costs.state[MIDDLE]
    for end, place in ((FIRST, there[0]), (LAST, there[-1])):
        if stage == place:
            kept = kept + costs.kept[end] - costs.kept[MIDDLE]
            state = state + costs.state[end] - costs.state[MIDDLE]
    return float(state + kept.max() * flying + costs.passing.max())


def memory(training: Training, plan: Hybrid, squares: Floats) -> Floats:
    """Bytes of the fullest device of every group, [replica, stage]; nothing where no layers are."""
    found, stages = np.zeros(plan.layers.shape), plan.layers.shape[1]
    for replica in np.flatnonzero(plan.alive):
        layers, mine = plan.layers[replica], int((plan.owner == replica).sum())
        flying = np.minimum(mine, stages - np.arange(stages) + FLYING[plan.order])
        for size, here in _sizes(training, plan, replica):
            costs = table(training, size, squares).costs
            kept, state = (per_stage(each, layers)[here] for each in (costs.kept, costs.state))
            found[replica, here] = state + kept.max(axis=1) * flying[here] + costs.passing.max()
    return found


def fits(training: Training, plan: Hybrid, squares: Floats) -> bool:
    """Whether every device has the memory."""
    return bool(memory(training, plan, squares).max() <= usable(training.on.device))


def without(plan: Hybrid, lost: Bools) -> Hybrid | None:
    """The same plan without some replicas, their microbatches dealt to the others in turn; None: nobody is left."""
    keep = plan.alive & ~lost
    if not keep.any():
        return None
    owner, left = plan.owner.copy(), np.flatnonzero(keep)
    orphans = np.flatnonzero(~keep[owner])
    owner[orphans] = left[np.arange(len(orphans)) % len(left)]
    return replace(plan, layers=np.where(keep[:, None], plan.layers, 0), owner=owner)
