"""RL steps one after another: rollouts of a step beside the training of the one before, on a split that may change.

Libra looks at its history every ten steps (sooner where one side waits for the other), plans anew, and applies a plan
that saves at least a twentieth and more than its own fifteen seconds over the steps it is likely to hold for. Between
plans the hybrid pool lends whole instances to training where training lags, and takes them back: they join as further
replicas, whose gradients go over the network, so that nobody stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.sim.models import model
from assay.training.engine import cluster as clusters
from assay.training.engine.rollout import Rule, play
from assay.training.libra import planner
from assay.training.libra.planner import SIZES, Judged, Machine, Split
from assay.workloads.trajectories import Trajectories, joined

INTERVAL = 10  # steps between two plans
OBSERVED = 8  # trajectories without which nothing is planned
GAIN = 0.05  # that a plan has to promise
COST = 15.0  # seconds that applying one takes
UNEVEN = 1.25  # one side over the other, at which it plans before its time
KNOWN = 4  # steps whose returns the queue has learnt from
BORROW, RELEASE, PRESSURE = 1.15, 0.90, 0.80


@dataclass(frozen=True)
class Manner:
    """What of Libra is switched on."""

    rule: Rule = field(default_factory=lambda: Rule("learnt"))
    replan: bool = True
    elastic: bool = True


@dataclass
class Course:
    """What became of some steps."""

    seconds: float = 0.0
    tokens: int = 0
    finished: int = 0
    replans: int = 0
    lent: int = 0  # instance-steps that trained
    migrations: int = 0
    splits: list[Split] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Tokens written a second."""
        return self.tokens / self.seconds


def lent_gpus(split: Split, borrowed: int) -> int:
    """GPUs of the instances that train, the smallest first.

    >>> lent_gpus(Split(16, (2, 0, 1, 0)), 3)
    6
    """
    total = 0
    for size, count in zip(SIZES, split.counts, strict=True):
        taken = min(count, borrowed)
        total, borrowed = total + taken * size, borrowed - taken
    return total


def training(machine: Machine, split: Split, borrowed: int, work: Trajectories) -> float:
    """Seconds of training on these trajectories, lent instances included."""
    alone, _ = planner.training(machine, split.train, work)
    extra = lent_gpus(split, borrowed)
    if not extra:
        return alone
    network = clusters.read(f"{machine.gpus}x{machine.device}").outside.bandwidth
    gradients = 2.0 * model(machine.model).params / network / 8  # bf16, each rank of a node its share
    return alone * split.train / (split.train + extra) + gradients


def run(machine: Machine, parts: Sequence[Trajectories], first: Split, manner: Manner) -> Course:
    """All steps, from a first split; nothing is known of a step before it is done."""
    split, borrowed, course, since = first, 0, Course(), 0
    before: Trajectories | None = None
    for at, part in enumerate(parts):
        instances = sum(split.counts)
        places = planner.pool(machine, split, min(borrowed, instances - 1))
        past = joined(list(parts[max(0, at - KNOWN) : at])) if at else None
        rollout = play(part, places, manner.rule, past=past)
        train = training(machine, split, borrowed, before) if before is not None else 0.0
        course.seconds += max(rollout.makespan, train)
        course.tokens, course.finished = course.tokens + rollout.tokens, course.finished + rollout.finished
        course.migrations, course.lent = course.migrations + rollout.migrations, course.lent + borrowed
        course.splits.append(split)
        since, before = since + 1, part
        if manner.elastic and train:
            ratio = train / rollout.makespan
            if ratio > BORROW and rollout.busy < PRESSURE and borrowed < instances - 1:
                borrowed += 1
            elif ratio < RELEASE and borrowed:
                borrowed -= 1
        uneven = train and max(train / rollout.makespan, rollout.makespan / train) > UNEVEN
        if manner.replan and len(part) >= OBSERVED and (since >= INTERVAL or (uneven and since >= INTERVAL // 3)):
            since = 0
            better = worth(machine, part, split, manner.rule, min(INTERVAL, len(parts) - at - 1))
            if better is not None:
                split, borrowed = better.split, 0
                course.seconds, course.replans = course.seconds + COST, course.replans + 1
    assert before is not None
    course.seconds += training(machine, split, borrowed, before)
    return course


def worth(machine: Machine, work: Trajectories, now: Split, rule: Rule, horizon: int) -> Judged | None:
    """A split that saves enough over these steps, by the latest one."""
    train, _ = planner.training(machine, now.train, work)
    present = planner.played(machine, Judged(now, train, 0.0), work, rule)
    found = planner.best(machine, work, rule)[0]
    saved = present.step - found.step
    return found if saved >= GAIN * present.step and saved * horizon > COST else None
