"""Repair a hybrid plan, level by level: smaller groups without who is slow, other layers, other microbatches.

A level is accepted only where the engine predicts a gain over the horizon that is worth its interruption. Speeds are
estimates: whoever calls has measured them (`detector.validate`); nothing here knows what was done to whom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assay.training.engine.cluster import usable
from assay.training.interface import Floats, Ints
from assay.training.resihp.hybrid import (
    Bools,
    Hybrid,
    fits,
    held,
    paces,
    per_stage,
    stage_passes,
    step,
    table,
    whole,
    without,
)
from assay.training.resihp.iterations import Training

LEVELS = ("groups", "layers", "microbatches")
COSTS = {"groups": 30.0, "layers": 20.0, "microbatches": 1.0}  # seconds in which nobody computes (assumed)
HORIZON = 1800.0  # seconds until the next fault (assumed)


@dataclass(frozen=True)
class Repaired:
    """A plan, its predicted step, the seconds of interruption, and which levels it took."""

    plan: Hybrid
    step: float
    cost: float
    taken: tuple[str, ...] = ()

    def throughput(self, real: float, horizon: float = HORIZON) -> float:
        """Steps a second over the horizon, where a step really takes so long."""
        return max(0.0, horizon - self.cost) / horizon / real


def repair(
    training: Training, speed: Floats, squares: Floats, *, levels: tuple[str, ...] = LEVELS, horizon: float = HORIZON
) -> Repaired | None:
    """The plan that goes on with devices of these estimated speeds; None where no replica can.

    Each level proposes from what the levels before it left, and the proposal that brings the most steps over the
    horizon is taken, none of them included: a level more never makes it worse.

    >>> from assay.training.interface import Layout
    >>> job = Training("llama-2-7b", "16xa100:ib200", Layout(tp=4, pp=2, dp=2), microbatches=4, tokens=4096)
    >>> speed = np.ones((2, 2, 4))
    >>> speed[0, 1, 3] = 0.0  # gone
    >>> found = repair(job, speed, np.full(8, 4096.0**2 / 4))
    >>> found.plan.degree.tolist(), found.taken
    ([[4, 2], [4, 4]], ('groups', 'layers', 'microbatches'))
    """
    start = whole(training)
    tried: list[tuple[Hybrid | None, tuple[str, ...]]] = [(start, ())]
    if "groups" in levels:
        tried += [(one, ("groups",)) for one in _groups(training, start, speed, squares)]
    stand = [(without(plan, _broken(plan, speed)), taken) for plan, taken in tried if plan is not None]
    plans = [(plan, taken) for plan, taken in stand if plan is not None and fits(training, plan, squares)]
    if "layers" in levels:
        moved = [(one, (*taken, "layers")) for plan, taken in plans for one in _layers(training, plan, speed, squares)]
        plans += [(plan, taken) for plan, taken in moved if fits(training, plan, squares)]
    if "microbatches" in levels:
        plans += [
            (replace(plan, owner=deal(training, plan, speed, squares)), (*taken, "microbatches"))
            for plan, taken in plans
        ]
    done = [
        Repaired(plan, step(training, plan, speed, squares), sum(COSTS[level] for level in taken), taken)
        for plan, taken in plans if fits(training, plan, squares)
    ]  # fmt: skip
    return max(done, key=lambda one: one.throughput(one.step, horizon), default=None)


def _broken(plan: Hybrid, speed: Floats) -> Bools:
    pace = paces(plan, speed)
    return np.asarray((~np.isfinite(pace) & (plan.layers > 0)).any(axis=1))


# ------------------------------------------------------------------------------------------------ groups


def degrees(training: Training) -> list[int]:
    """How many devices a group may have: what divides the heads."""
    return [size for size in range(training.layout.tp, 0, -1) if training.shape.heads % size == 0]


def _groups(training: Training, plan: Hybrid, speed: Floats, squares: Floats) -> list[Hybrid | None]:
    """Groups with those of their members with which they are fastest: all groups, or only those that lost somebody."""
    seconds = {size: _seconds(training, size, squares) for size in degrees(training)}
    room = usable(training.on.device)
    members = {"all": plan.members.copy(), "lost": plan.members.copy()}
    none = np.zeros(len(plan.layers), bool)
    touched = np.argwhere((speed < 1.0).any(axis=2) & (plan.layers > 0)).tolist()
    for replica, stage in touched:
        own = speed[replica, stage]
        by_speed = np.argsort(-own, kind="stable")
        options = {
            size: computing / own[by_speed[size - 1]] + wires
            for size, (computing, wires) in seconds.items()
            if own[by_speed[size - 1]] > 0 and held(training, plan, replica, stage, size, squares) <= room
        }
        none[replica] |= not options
        best = min(options, key=lambda size: options[size], default=0)
        for which in ("all", "lost") if own.min() <= 0 else ("all",):
            members[which][replica, stage] = False
            members[which][replica, stage, by_speed[:best]] = True
    return [without(replace(plan, members=each), none) for each in members.values()]


def _seconds(training: Training, size: int, squares: Floats) -> tuple[float, float]:
    """Of a middle layer in a group of this size, both passes: computing, and exchanges."""
    costs = table(training, size, squares).costs
    computing = costs.forward[1] + costs.inputs[1] + costs.weights[1]
    return float(computing.mean()), float((costs.wires_forward[1] + costs.wires_backward[1]).mean())


# ------------------------------------------------------------------------------------------------ layers


def _layers(training: Training, plan: Hybrid, speed: Floats, squares: Floats) -> list[Hybrid]:
    """Layers moved between stages, alike in all replicas: by each stage's slowest group, or by its mean one."""
    alive = np.flatnonzero(plan.alive)
    each, ends, slow = [], [], paces(plan, speed)
    for replica in alive:
        units, more = [], []
        for stage in range(plan.layers.shape[1]):
            costs = table(training, int(plan.degree[replica, stage]), squares).costs
            took = (costs.forward + costs.inputs + costs.weights).mean(axis=1) * slow[replica, stage]
            took = took + (costs.wires_forward + costs.wires_backward).mean(axis=1)
            units.append(took[1])
            more.append((took[0] - took[1], took[2] - took[1]))
        each.append(units)
        ends.append(more)
    most = _most_layers(training, plan, squares)
    found = []
    for how in (np.max, np.mean):
        unit, extra = how(np.array(each), axis=0), how(np.array(ends), axis=0)
        more_each = np.zeros(len(unit))
        more_each[0] += extra[0, 0]
        more_each[-1] += extra[-1, 1]
        counts = partition(unit, more_each, training.shape.layers, most)
        if counts is not None:
            found.append(replace(plan, layers=np.where(plan.alive[:, None], counts, 0)))
    return found


def _most_layers(training: Training, plan: Hybrid, squares: Floats) -> Ints:
    """How many layers each stage has memory for, in the replica with the least."""
    room, stages = usable(training.on.device), plan.layers.shape[1]
    found = np.full(stages, training.shape.layers)
    for replica in np.flatnonzero(plan.alive):
        for stage in range(stages):
            costs = table(training, int(plan.degree[replica, stage]), squares).costs
            layer = costs.state[1] + costs.kept[1].max() * (stages - stage)
            beside = per_stage(costs.state, np.ones(stages, np.int64))[stage] - costs.state[1]
            head = (costs.kept[2] - costs.kept[1]).max() if stage == stages - 1 else 0.0
            found[stage] = min(found[stage], int((room - beside - head - costs.passing.max()) // layer))
    return found


def partition(unit: Floats, more: Floats, layers: int, most: Ints) -> Ints | None:
    """Layers of each stage, at least one, so that the slowest stage is least; `unit` seconds a layer, `more` a stage.

    Exact: the least bound under which enough layers fit is one stage's own time with some number of layers. None where
    memory has no room for all of them.

    >>> partition(np.array([1.0, 2.0, 1.0]), np.zeros(3), 10, np.full(3, 10)).tolist()
    [4, 2, 4]
    """
    if most.min() < 1 or most.sum() < layers or len(unit) > layers:
        return None
    bounds = np.unique(unit[:, None] * np.arange(1, layers + 1) + more[:, None])

    def room(bound: float) -> Ints:
        slack = (bound - more) / unit
        return np.minimum(np.floor(slack * (1 + 1e-12) + 1e-12), most).astype(np.int64)

    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        held = room(float(bounds[middle]))
        low, high = (low, middle) if held.min() >= 1 and held.sum() >= layers else (middle + 1, high)
    counts = room(float(bounds[low]))
    while counts.sum() > layers:  # what is not needed leaves the slowest stage that can spare it
        seconds = np.where(counts > 1, counts * unit + more, -np.inf)
        counts[int(seconds.argmax())] -= 1
    return counts


# ------------------------------------------------------------------------------------------------ microbatches


def deal(training: Training, plan: Hybrid, speed: Floats, squares: Floats) -> Ints:
    """A replica for every microbatch so that all finish at once: the longest first, each where it would end soonest."""
    alive = np.flatnonzero(plan.alive)
    seconds, fill = np.zeros((len(alive), len(squares))), np.zeros(len(alive))
    for place, replica in enumerate(alive):
        alone = replace(plan, owner=np.full(len(squares), replica), layers=np.where(
            np.arange(len(plan.layers))[:, None] == replica, plan.layers, 0))  # fmt: skip
        found = stage_passes(training, alone, speed, squares)
        assert found is not None
        took = (found.forward + found.backward)[:, 0, :, 0]
        seconds[place] = took.max(axis=0)
        fill[place] = took.mean(axis=1).sum() - took.mean(axis=1).max()
    return alive[longest_first(seconds, fill)]


def longest_first(seconds: Floats, start: Floats) -> Ints:
    """The place of each item, `seconds[place, item]`: longest first, where it ends soonest; places begin at `start`.

    >>> longest_first(np.array([[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]), np.zeros(2)).tolist()
    [0, 0, 1]
    """
    ends, found = start.copy(), np.zeros(seconds.shape[1], np.int64)
    for item in np.argsort(-seconds.mean(axis=0), kind="stable"):
        place = int((ends + seconds[:, item]).argmin())
        found[item] = place
        ends[place] += seconds[place, item]
    return found
