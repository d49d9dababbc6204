"""What a rank of a training job records: how long each stage of each step took, by its own clock, and nothing else.

A step is cut into stages in a fixed order. Every instant of a step belongs to exactly one of them: a nested stage takes
its time out of the one around it, a repeated one (micro-batches) is summed into its slot, and what no stage covers
goes to the last, `other`. So a row of durations adds up to the rank's step time, to the nanosecond.

The job only notes when it passed which boundary, into a bounded queue; whoever reads adds the durations up. The caches
are cold at a boundary, after megabytes of somebody's tensors, so a line of Python costs ten times what it does in a
loop. What is not read in time is pushed out, and the steps it belonged to are counted in `lost`.

>>> collector = Collector(rank=0, size=4)
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

from collections import deque
from collections.abc import Sequence
from threading import Lock
from time import perf_counter_ns

import numpy as np

from assay.observe.frontier.vectors import MAX_NAME, MAX_RANK, MAX_STAGES, Vectors, frame, gather
from assay.record.errors import BadInput

__all__ = ["STAGES", "SYNC_STAGES", "Collector", "Stage", "Vectors", "frame", "gather"]

STAGES = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
# With the wait for the gradients apart from the backward work, a slow backward pass names its rank too.
SYNC_STAGES = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "other")

MARKS = 1 << 15  # boundaries that wait to be read
STEPS = 4096  # finished steps that wait to be taken
_DEEP = 16  # stages open at a step's end beyond which they were begun and never ended
# What a mark says: a stage's number is entered, its complement is left, and step n has ended from here on.
_START = MAX_STAGES
_ENDED = MAX_STAGES + 1


class Stage:
    """One stage of a collector, as a context manager. It is made once and used again in every step."""

    __slots__ = ("_enter", "_leave", "_mark")

    def __init__(self, collector: Collector, index: int) -> None:
        self._mark, self._enter, self._leave = collector.mark, index, ~index

    def __enter__(self) -> None:
        self._mark((self._enter, perf_counter_ns()))

    def __exit__(self, *error: object) -> None:
        self._mark((self._leave, perf_counter_ns()))


class Collector:
    """The durations of a rank's stages, step by step.

    Stages of a rank are serial: any thread may begin or end one (a hook on a gradient runs in autograd's), but never
    two at once. What has been recorded may be asked for by any thread.
    """

    def __init__(self, rank: int, size: int, stages: Sequence[str] = STAGES) -> None:
        _check(rank, size, stages)
        self.rank, self.size, self.stages = rank, size, tuple(stages)
        self.steps = 0
        self.lost = 0  # steps
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS)
        self.mark = self._marks.append
        self._places = {name: Stage(self, index) for index, name in enumerate(self.stages)}
        # The reader's side: what the marks read so far amount to.
        self._reading = Lock()
        self._rows: deque[tuple[int, list[int]]] = deque()
        self._next = 0  # the step whose end comes next
        self._torn = False  # marks of the unfinished step were pushed out
        self._rest = len(self.stages) - 1
        self._open: list[int] = []
        self._row = [0] * len(self.stages)
        self._current = self._rest
        self._since = perf_counter_ns()

    # ------------------------------------------------------------------------------------ the job's side

    def stage(self, name: str) -> Stage:
        """The stage to be entered: `with collector.stage("forward"): …`."""
        return self._places[name]

    def index(self, name: str) -> int:
        """The number under which `begin` and `end` know a stage."""
        return self.stages.index(name)

    def begin(self, index: int) -> None:
        """Enter a stage; what was open until now waits."""
        self.mark((index, perf_counter_ns()))

    def end(self, index: int) -> None:
        """Leave a stage, and whatever was left open inside it. A stage that is not open is not left."""
        self.mark((~index, perf_counter_ns()))

    def start(self) -> None:
        """Forget the unfinished step: what came before the first step, or between two epochs, is no step's time."""
        self.mark((_START, perf_counter_ns()))

    def step(self) -> None:
        """End a step. A stage that is still open goes on in the next one."""
        self.mark((_ENDED + self.steps, perf_counter_ns()))
        self.steps += 1

    # ------------------------------------------------------------------------------------ the reader's side

    def now(self) -> tuple[int, int]:
        """Where the rank is: the steps it has finished, and the number of the stage it is in."""
        with self._reading:
            self._read()
            return self.steps, self._current

    def doing(self) -> tuple[str, float]:
        """The stage the rank is in, empty outside all of them, and for how many seconds."""
        with self._reading:
            self._read()
            since = max(perf_counter_ns() - self._since, 0) / 1e9
            return ("" if self._current == self._rest else self.stages[self._current]), since

    def take(self, most: int = STEPS) -> Vectors | None:
        """The oldest finished steps that were not taken yet and follow one another, or None."""
        with self._reading:
            self._read()
            rows = self._rows
            taken: list[list[int]] = []
            first = rows[0][0] if rows else 0
            while rows and len(taken) < most and rows[0][0] == first + len(taken):
                taken.append(rows.popleft()[1])
        return Vectors(self.rank, first, self.stages, np.array(taken, np.int64), self.size) if taken else None

    def _read(self) -> None:
        """Add up what has been marked since."""
        marks, full = self._marks, MARKS - 1
        self._torn |= len(marks) >= full  # the job may have pushed out what comes next
        for _ in range(len(marks)):
            what, at = marks.popleft()
            self._row[self._current] += at - self._since
            self._since = at
            if what >= _ENDED:
                self._ended(what - _ENDED)
            elif what == _START:
                self._row = [0] * len(self.stages)
            elif what >= 0:
                self._open.append(what)
            else:
                self._leave(~what)
            self._current = self._open[-1] if self._open else self._rest
            self._torn |= len(marks) >= full

    def _leave(self, index: int) -> None:
        if index in self._open:
            while self._open.pop() != index:
                pass

    def _ended(self, number: int) -> None:
        if self._torn:
            self.lost += number + 1 - self._next
            self._open.clear()
            self._torn = False
        else:
            self._rows.append((number, self._row))
            if len(self._rows) > STEPS:
                self._rows.popleft()
                self.lost += 1
        self._next = number + 1
        self._row = [0] * len(self.stages)
        if len(self._open) > _DEEP:
            self._open.clear()


def _check(rank: int, size: int, stages: Sequence[str]) -> None:
    if not 0 <= rank < size <= MAX_RANK:
        raise BadInput(f"collector: rank {rank} of {size}; a rank is 0 … size − 1")
    if not 1 <= len(stages) <= MAX_STAGES or len(set(stages)) != len(stages):
        raise BadInput(f"collector: {len(stages)} stages; they are 1 … {MAX_STAGES} different names")
    if bad := [name for name in stages if not 1 <= len(name.encode()) <= MAX_NAME]:
        raise BadInput(f"collector: the stage name {bad[0]!r} is not 1 … {MAX_NAME} bytes long")
