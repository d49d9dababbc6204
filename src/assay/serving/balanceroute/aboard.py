"""Who is aboard which worker and how far each answer has got, from what a gateway sees."""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.serving.baselines.length_estimates import Survival
from assay.serving.engine.prefix_cache import JIT
from assay.serving.interface import Fleet, Floats, Ints, Request
from assay.sim.compiled import njit


class Aboard:
    """The requests that a router has sent and that are not finished, with how far each has got.

    A gateway sees KV tokens by worker, not by request. But all sequences of a worker grow by one token a step, so one
    count of steps per worker explains the sum: it is solved for, and a request's tokens are the steps since it came.
    """

    def __init__(self, workers: int) -> None:
        self.prompt, self.begun = np.zeros(1024), np.zeros(1024)
        self.worker, self.ids = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
        self.steps = np.zeros(workers)
        self._row: dict[int | str, int] = {}
        self._names: list[int | str] = []

    def send(self, request: Request, worker: int) -> None:
        """A request was sent to a worker."""
        row = len(self._names)
        if row == len(self.prompt):
            for name in ("prompt", "begun", "worker", "ids"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        # the next step computes the last of its prompt; it grows from the one after that
        self.prompt[row], self.begun[row], self.worker[row] = request.prompt, self.steps[worker] + 1, worker
        self.ids[row] = request.id if isinstance(request.id, int) else -1
        self._row[request.id] = row
        self._names.append(request.id)

    def drop(self, name: int | str) -> None:
        """A request is finished: the last one takes its row."""
        row = self._row.pop(name, None)
        if row is None:
            return
        last = len(self._names) - 1
        for column in (self.prompt, self.begun, self.worker, self.ids):
            column[row] = column[last]
        moved = self._names.pop()
        if row != last:
            self._names[row] = moved
            self._row[moved] = row

    def expected(self, fleet: Fleet, survival: Survival, steps: Ints) -> Floats:
        """[step ahead, worker]: the KV tokens that are still there, by the estimator."""
        n = len(self._names)
        worker, prompt = self.worker[:n], self.prompt[:n]
        self._count_steps(fleet, worker, prompt)
        generated = np.maximum(self.steps[worker] - self.begun[:n], 0.0)
        alive = survival.survive(generated.astype(np.int64), prompt.astype(np.int64), steps, self.ids[:n])
        loads: Floats = _by_worker(worker, prompt + generated, alive, steps, len(fleet))
        return loads

    def _count_steps(self, fleet: Fleet, worker: Ints, prompt: Floats) -> None:
        """kv = sum of (prompt + steps - begun): solve for steps, where all that was sent is admitted."""
        count = np.bincount(worker, minlength=len(fleet))
        known = (count > 0) & (count == fleet.running) & (fleet.waiting == 0)
        if known.any():
            older = np.bincount(worker, self.begun[: len(worker)] - prompt, len(fleet))
            before = self.steps.copy()
            self.steps[known] = (fleet.kv_tokens[known] + older[known]) / count[known]
            self.steps[~known] += max((self.steps - before)[known].max(), 0.0)  # in lock-step, all count alike


@njit(**JIT)
def _by_worker(worker, context, alive, steps, workers):
    loads = np.zeros((len(steps), workers))
    for r in range(len(worker)):
        for h in range(len(steps)):
            loads[h, worker[r]] += alive[r, h] * (context[r] + steps[h])
    return loads
