"""RL as a service: threads for rollout, environments and training, and tenants that pass them at their own pace.

Every tenant is a state machine: its step is written, judged by its environment, trained on, and its next version is
published. A step t is always written by version t - s (s: staleness), neither older nor newer: while step t is judged
and trained, step t + 1 is written. So what a tenant learns does not depend on when its turn comes, and training beside
others gives the weights of training alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.marlaas import policy
from assay.training.marlaas.policy import Adapter, Batch, Task

PATIENCE = 120.0  # seconds without any news after which something is broken


@dataclass
class Tenant:
    """Where a tenant stands."""

    task: Task
    adapter: Adapter
    versions: dict[int, dict[str, Any]]  # snapshots that rollouts may still need
    asked: int = 0  # steps handed to the rollout engine
    trained: int = 0
    rewards: list[float] = field(default_factory=list)
    lag: int = 0  # of the oldest policy that was trained on


@dataclass(frozen=True)
class Trained:
    """What became of a tenant."""

    weights: dict[str, NDArray[Any]]
    rewards: list[float]
    lag: int


def train(
    tasks: Sequence[Task], steps: int, seed: int, *, staleness: int = 1, latency: Mapping[str, float] | None = None,
    workers: int = 4,
) -> dict[str, Trained]:  # fmt: skip
    """Train every task's adapter for so many steps, all beside one another.

    `latency` are seconds that a task's environment takes for a step; nobody else waits for it.

    >>> found = train(policy.TASKS[:2], steps=3, seed=0)
    >>> alone = train(policy.TASKS[1:2], steps=3, seed=0)["odd"]
    >>> all((found["odd"].weights[name] == weight).all() for name, weight in alone.weights.items())
    True
    """
    import torch

    torch.set_num_threads(1)
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        raise ValueError(f"tasks need names of their own: {', '.join(names)}")
    return _Service(tasks, steps, seed, staleness, dict(latency or {}), workers).run()


class _Service:
    def __init__(
        self, tasks: Sequence[Task], steps: int, seed: int, staleness: int, latency: dict[str, float], workers: int
    ) -> None:
        self.steps, self.seed, self.staleness, self.latency = steps, seed, staleness, latency
        self.shared = policy.base(seed)
        self.tenants: dict[str, Tenant] = {}
        for task in tasks:
            own = policy.adapter(task.name, seed)
            self.tenants[task.name] = Tenant(task, own, {0: _snapshot(own)})
        self.to_roll: queue.Queue[tuple[str, int] | None] = queue.Queue()
        self.to_train: queue.Queue[tuple[str, int, Batch, NDArray[np.float64]] | None] = queue.Queue()
        self.news: queue.Queue[BaseException | str] = queue.Queue()
        self.pool = ThreadPoolExecutor(workers)

    def run(self) -> dict[str, Trained]:
        threads = [threading.Thread(target=self._kept, args=(work,), daemon=True) for work in (self._roll, self._train)]
        for thread in threads:
            thread.start()
        for name in self.tenants:
            self._ask(name)
        try:
            left = len(self.tenants) if self.steps else 0
            while left:
                told = self.news.get(timeout=PATIENCE)
                if isinstance(told, BaseException):
                    raise told
                left -= told == "done"
        finally:
            self.to_roll.put(None)
            self.to_train.put(None)
            self.pool.shutdown(cancel_futures=True)
            for thread in threads:
                thread.join(PATIENCE)
        return {name: Trained(one.adapter.bits(), one.rewards, one.lag) for name, one in self.tenants.items()}

    def _kept(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.news.put(error)

    def _ask(self, name: str) -> None:
        """Hand on every step whose version is there; called at the start and by the trainer only."""
        tenant = self.tenants[name]
        while tenant.asked < self.steps and tenant.asked - self.staleness <= tenant.trained:
            self.to_roll.put((name, tenant.asked))
            tenant.asked += 1

    def _roll(self) -> None:
        """Whoever is ready goes into one batch."""
        while (one := self.to_roll.get()) is not None:
            ready = [one]
            while not self.to_roll.empty():
                other = self.to_roll.get()
                if other is None:
                    return
                ready.append(other)
            versions = [max(0, step - self.staleness) for _, step in ready]
            asked = [
                (name, step, self.tenants[name].versions[version], version)
                for (name, step), version in zip(ready, versions, strict=True)
            ]
            for (name, step), batch in zip(ready, policy.roll(self.shared, asked, self.seed), strict=True):
                self.pool.submit(self._kept, lambda n=name, s=step, b=batch: self._judge(n, s, b))

    def _judge(self, name: str, step: int, batch: Batch) -> None:
        task = self.tenants[name].task
        if self.latency.get(name):
            time.sleep(self.latency[name])
        rewards = [task.reward(p, o) for p, o in zip(batch.prompts.tolist(), batch.outputs.tolist(), strict=True)]
        self.to_train.put((name, step, batch, np.array(rewards, dtype=float)))

    def _train(self) -> None:
        """One update at a time, a tenant's own in order."""
        early: dict[tuple[str, int], tuple[Batch, NDArray[np.float64]]] = {}
        while (one := self.to_train.get()) is not None:
            name, step, batch, rewards = one
            early[name, step] = batch, rewards
            tenant = self.tenants[name]
            while (name, tenant.trained) in early:
                batch, rewards = early.pop((name, tenant.trained))
                policy.update(self.shared, tenant.adapter, batch, rewards)
                tenant.lag = max(tenant.lag, tenant.trained - batch.version)
                tenant.rewards.append(float(rewards.mean()))
                tenant.trained += 1
                tenant.versions[tenant.trained] = _snapshot(tenant.adapter)
                tenant.versions.pop(tenant.trained - self.staleness - 2, None)
                self._ask(name)
                if tenant.trained == self.steps:
                    self.news.put("done")


def _snapshot(adapter: Adapter) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in adapter.weights.items()}
