"""What a rank of a training job records: how long each stage of each step took, by its own clock, and nothing else.

A step is cut into stages in a fixed order. Every instant of a step belongs to exactly one of them: a nested stage takes
its time out of the one around it, a repeated one (micro-batches) is summed into its slot, and what no stage covers
goes to the last, `other`. So a row of durations adds up to the rank's step time, to the nanosecond.

The job never waits: rows go into a preallocated ring of windows, :meth:`Collector.take` hands a finished window over
or gives None, and a window that nobody fetched in time is overwritten and counted in `lost`.

>>> collector = Collector(rank=0, size=4, window=2)
>>> for _ in range(2):
...     with collector.stage("data"):
...         batch = list(range(10))
...     with collector.stage("forward"):
...         loss = sum(batch)
...     collector.step()
>>> vectors = collector.take()
>>> vectors.first_step, vectors.durations.shape, Vectors.from_bytes(vectors.to_bytes()).stages == STAGES
(0, (2, 6), True)
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from assay.observe.frontier.vectors import MAX_NAME, MAX_RANK, MAX_STAGES, MAX_STEPS, Vectors, frame, gather
from assay.record.errors import BadInput

__all__ = ["STAGES", "SYNC_STAGES", "Collector", "Stage", "Vectors", "frame", "gather"]

STAGES = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
# With the wait for the gradients apart from the backward work, a slow backward pass names its rank too.
SYNC_STAGES = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "other")

_KEPT = 4  # finished windows kept for a slow reader
_DEEP = 16  # stages open at a step's end beyond which they were begun and never ended


class Stage:
    """One stage of a collector, as a context manager. It is made once and used again in every step."""

    __slots__ = ("_begin", "_end", "_index")

    def __init__(self, collector: Collector, index: int) -> None:
        self._begin, self._end, self._index = collector.begin, collector.end, index

    def __enter__(self) -> None:
        self._begin(self._index)

    def __exit__(self, *error: object) -> None:
        self._end(self._index)


class Collector:
    """The durations of a rank's stages, step by step.

    Stages of a rank are serial: any thread may begin or end one (a hook on a gradient runs in autograd's), but never
    two at once. `take` may be called from yet another thread.
    """

    def __init__(self, rank: int, size: int, stages: Sequence[str] = STAGES, window: int = 50) -> None:
        _check(rank, size, stages, window)
        self.rank, self.size, self.stages, self.window = rank, size, tuple(stages), window
        self.steps = 0
        self.lost = 0
        self._places = {name: Stage(self, index) for index, name in enumerate(self.stages)}
        self._ring = np.zeros((_KEPT, window, len(self.stages)), np.int64)
        self._taken = 0  # steps handed over
        self._rest = len(self.stages) - 1
        self._open: list[int] = []
        self._row = [0] * len(self.stages)
        self._current = self._rest
        self._since = perf_counter_ns()

    def stage(self, name: str) -> Stage:
        """The stage to be entered: `with collector.stage("forward"): …`."""
        return self._places[name]

    def index(self, name: str) -> int:
        """The number under which `begin` and `end` know a stage."""
        return self.stages.index(name)

    def begin(self, index: int) -> None:
        """Enter a stage; what was open until now waits."""
        now = perf_counter_ns()
        self._row[self._current] += now - self._since
        self._since = now
        self._open.append(index)
        self._current = index

    def end(self, index: int) -> None:
        """Leave a stage, and whatever was left open inside it. A stage that is not open is not left."""
        now = perf_counter_ns()
        self._row[self._current] += now - self._since
        self._since = now
        opened = self._open
        if opened and opened[-1] == index:
            opened.pop()
        elif index in opened:
            while opened.pop() != index:
                pass
        self._current = opened[-1] if opened else self._rest

    def now(self) -> tuple[int, int]:
        """Where the rank is: the steps it has finished, and the number of the stage it is in."""
        return self.steps, self._current

    def doing(self) -> tuple[str, float]:
        """The stage the rank is in, empty outside all of them, and for how many seconds.

        Another thread may ask; the answer is a moment old at worst.
        """
        current = self._current
        since = max(perf_counter_ns() - self._since, 0) / 1e9
        return ("" if current == self._rest else self.stages[current]), since

    def start(self) -> None:
        """Forget the unfinished step: what came before the first step, or between two epochs, is no step's time."""
        self._row = [0] * len(self.stages)
        self._since = perf_counter_ns()

    def step(self) -> None:
        """End a step. A stage that is still open goes on in the next one."""
        now = perf_counter_ns()
        self._row[self._current] += now - self._since
        self._since = now
        window, place = divmod(self.steps, self.window)
        self._ring[window % _KEPT, place] = self._row
        self._row = [0] * len(self.stages)
        self.steps += 1
        if len(self._open) > _DEEP:
            self._open.clear()
            self._current = self._rest

    def take(self) -> Vectors | None:
        """The oldest finished window that was not taken yet, or None. Never blocks."""
        while (window := self._taken // self.window) < self.steps // self.window:
            first, end = self._taken, (window + 1) * self.window
            block = self._ring[window % _KEPT, first - window * self.window :].copy()
            self._taken = end
            # The job may have come round while we copied, or long before.
            if self.steps < (window + _KEPT) * self.window:
                return Vectors(self.rank, first, self.stages, block, self.size)
            self.lost += 1
        return None

    def rest(self) -> Vectors | None:
        """The steps so far of the window that is not finished, as when a job ends; None if there are none."""
        window, end = divmod(self.steps, self.window)
        begin = self._taken - window * self.window
        if begin < 0 or begin == end:  # finished windows come first
            return None
        self._taken = self.steps
        block = self._ring[window % _KEPT, begin:end].copy()
        return Vectors(self.rank, self.steps - len(block), self.stages, block, self.size)


def _check(rank: int, size: int, stages: Sequence[str], window: int) -> None:
    if not 0 <= rank < size <= MAX_RANK:
        raise BadInput(f"collector: rank {rank} of {size}; a rank is 0 … size − 1")
    if not 1 <= len(stages) <= MAX_STAGES or len(set(stages)) != len(stages):
        raise BadInput(f"collector: {len(stages)} stages; they are 1 … {MAX_STAGES} different names")
    if bad := [name for name in stages if not 1 <= len(name.encode()) <= MAX_NAME]:
        raise BadInput(f"collector: the stage name {bad[0]!r} is not 1 … {MAX_NAME} bytes long")
    if not 1 <= window <= MAX_STEPS:
        raise BadInput(f"collector: a window of {window} steps; it has 1 … {MAX_STEPS}")
