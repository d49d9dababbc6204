"""Many tenants on one fleet, in the rollout engine: who waits for whom, and how busy GPUs are.

A tenant's step is written (turns alternate with its environment, which holds no GPU), then trained on, one tenant's
batch at a time. `asynchronous` lets every tenant pass at its own pace, one step off. Rivals: `sequential`, one tenant
after another, each as asynchronous as alone it can be; `lockstep`, all tenants' rollouts together, then all their
updates; `partition`, an engine of its own for each, in as many waves as it takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from assay.training.engine import post_training
from assay.training.engine.rollout import Pool, Rollout, Rule
from assay.workloads.trajectories import Trajectories, draw, joined

MODEL, DEVICE = "qwen3-8b", "a800"
ROLLOUT, TRAINING = 4, 4  # GPUs
ADAPTER = 60e-6  # seconds that an iteration takes for every adapter in it
LORA = 2 / 3  # of a full step: weights of the base model get no gradients


@dataclass(frozen=True)
class Fleet:
    """Seconds until all tenants are done, the share of GPU time used, and each tenant's end."""

    seconds: float
    used: float
    ends: list[float]
    lag: int
    shares: list[float]  # tokens each tenant got until the first one ended, of an equal share or of all it needs


def tenants(count: int, steps: int, batch: int, env: float, seed: int) -> list[list[Trajectories]]:
    """Each tenant's steps: tasks differ in how long their turns are."""
    found = []
    for at in range(count):
        stretch = 0.6 + 0.8 * ((at * 7) % 8) / 7
        found.append([draw(batch, seed * 1000 + at, step=step, env=env, stretch=stretch) for step in range(steps)])
    return found


@lru_cache(maxsize=1)
def _per_token() -> float:
    work = draw(64, seed=0)
    return post_training.seconds(MODEL, DEVICE, TRAINING, work)[0] / float(work.length.sum())


def update_seconds(work: Trajectories) -> float:
    """Of one tenant's update."""
    return LORA * _per_token() * float(work.length.sum())


def asynchronous(
    work: Sequence[Sequence[Trajectories]], staleness: int = 1, gpus: int = ROLLOUT, shortest: bool = False
) -> Fleet:  # fmt: skip
    """Every tenant at its own pace; the trainer takes batches as they come, or the shortest first."""
    steps = len(work[0])
    run, first = _engine(work, gpus)
    asked, trained, written = ([0] * len(work) for _ in range(3))
    waiting: deque[int] = deque()
    busy, ends = 0.0, [math.nan] * len(work)
    shares: list[float] = []
    lags = [0]
    training, until = -1, math.inf

    def ask(tenant: int, now: float) -> None:
        # a step begins when the one before is written and its version is published
        while asked[tenant] < steps and asked[tenant] <= min(written[tenant], trained[tenant] + staleness):
            lags.append(asked[tenant] - trained[tenant])
            group = tenant * steps + asked[tenant]
            run.submit(np.arange(first[group], first[group + 1]), now)
            asked[tenant] += 1

    for tenant in range(len(work)):
        ask(tenant, 0.0)
    while any(done < steps for done in trained):
        for group in run.until(until):
            tenant = group // steps
            written[tenant] += 1
            waiting.append(tenant)
            ask(tenant, run.now)
        if training >= 0 and run.now >= until:
            trained[training] += 1
            if trained[training] == steps:
                ends[training] = until
                shares = shares or _shares(run, work)
            ask(training, until)
            training, until = -1, math.inf
        if training < 0 and waiting:
            training = min(waiting, key=lambda t: update_seconds(work[t][trained[t]])) if shortest else waiting[0]
            waiting.remove(training)
            seconds = update_seconds(work[training][trained[training]])
            until, busy = run.now + seconds, busy + seconds
    total = max(ends)
    used = (float(run.busy.sum()) + busy * TRAINING) / ((gpus + TRAINING) * total)
    return Fleet(total, used, ends, max(lags), shares)


def sequential(work: Sequence[Sequence[Trajectories]], staleness: int = 1) -> Fleet:
    """One tenant after another, each with the whole fleet."""
    each = [asynchronous([one], staleness) for one in work]
    ends = np.cumsum([one.seconds for one in each])
    used = sum(one.used * one.seconds for one in each) / float(ends[-1])
    return Fleet(float(ends[-1]), used, ends.tolist(), staleness, [1.0] + [0.0] * (len(work) - 1))


def lockstep(work: Sequence[Sequence[Trajectories]]) -> Fleet:
    """All tenants' rollouts of a step together, then all their updates."""
    steps = len(work[0])
    run, first = _engine(work, ROLLOUT)
    now = busy = 0.0
    for step in range(steps):
        left = set()
        for tenant in range(len(work)):
            group = tenant * steps + step
            run.submit(np.arange(first[group], first[group + 1]), now)
            left.add(group)
        while left:
            left -= set(run.until())
        updates = sum(update_seconds(one[step]) for one in work)
        now, busy = run.now + updates, busy + updates
    used = (float(run.busy.sum()) + busy * TRAINING) / ((ROLLOUT + TRAINING) * now)
    return Fleet(now, used, [now] * len(work), 0, [1.0] * len(work))


def partition(work: Sequence[Sequence[Trajectories]], staleness: int = 1) -> Fleet:
    """An engine of one GPU and an equal share of training for each, as many at once as there are rollout GPUs."""
    total, used = 0.0, 0.0
    ends: list[float] = []
    for at in range(0, len(work), ROLLOUT):
        wave = [asynchronous([one], staleness, gpus=1) for one in work[at : at + ROLLOUT]]
        # updates of tenants that run beside each other queue at one trainer: at least their sum
        updates = sum(update_seconds(part) for one in work[at : at + ROLLOUT] for part in one)
        seconds = max([one.seconds for one in wave] + [updates])
        used += sum(one.used * (1 + TRAINING) * one.seconds for one in wave)
        total += seconds
        ends += [total] * len(wave)
    return Fleet(total, used / ((ROLLOUT + TRAINING) * total), ends, staleness, [1.0] * len(work))


def _shares(run: Rollout, work: Sequence[Sequence[Trajectories]]) -> list[float]:
    served = run.state.served.astype(float)
    total = np.array([sum(int(part.length.sum()) for part in one) for one in work], dtype=float)
    return [float(x) for x in served / np.minimum(total, served.mean())]


def _engine(work: Sequence[Sequence[Trajectories]], gpus: int) -> tuple[Rollout, np.ndarray]:
    parts = [part for one in work for part in one]
    first = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    group = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rule = Rule(per_task=ADAPTER)
    pool = Pool.of(f"{DEVICE}:{MODEL}", gpus)
    return Rollout(joined(parts), pool, rule, task=group // len(work[0]), group=group), first
