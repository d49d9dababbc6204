"""The fault lab `ddp`: a real data-parallel training job on this machine, with faults on ranks that only the lab knows.

Each rank is a process; gradients are reduced by torch.distributed over gloo sockets. One launch runs a schedule of
stretches, some healthy, some with faults, because importing torch takes longer than a stretch. What the ranks
recorded (stage durations by their own clocks) comes back as windows; the truth stays with the schedule.

Healthy compute is mostly sleep (:mod:`assay.observe.stagefrontier.ddp_job` says why). Needs the extra `torch`.

A schedule can be a TOML file::

    ranks = 4
    [[stretch]]
    steps = 20
    [[stretch]]
    steps = 20
    faults = [{kind = "data", rank = 2, delay = 0.01}]

>>> job, schedule = parse("ranks = 2\\n[[stretch]]\\nsteps = 5\\nfaults = [{kind = 'forward', rank = 1, delay = 0.01}]")
>>> job.ranks, schedule[0].faults[0].kind, round(job.step, 3)
(2, 'forward', 0.02)
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.observe.frontier.collector import SYNC_STAGES
from assay.observe.frontier.vectors import Vectors, Window, frame
from assay.observe.stagefrontier import ddp_job
from assay.observe.stagefrontier.incidents import Incident, Truth
from assay.record.errors import BadInput
from assay.sim.ranks import RankFailed, Ranks
from assay.sim.scratch import scratch

SLOW = ("data", "forward", "backward", "optimizer", "checkpoint")  # faults that cost `delay` seconds a step
FATAL = ("stop", "kill", "absent", "mismatch")  # faults after which the job does not go on
MAX_RANKS, MAX_STEPS = 16, 100_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One rank's trouble. `kind` is the stage that gets slower by `delay` seconds in every step, or a fatal one.

    `stop` freezes the process, `kill` ends it, `absent` never enters the collective, `mismatch` enters another one.
    """

    kind: str
    rank: int
    delay: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in SLOW + FATAL:
            raise ValueError(f"no fault '{self.kind}'; there are {', '.join(SLOW + FATAL)}")
        if self.rank < 0 or not 0 <= self.delay <= 60:
            raise ValueError(f"fault '{self.kind}': a rank from 0 and a delay of 0 … 60 seconds, please")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some steps during which the same faults are there; with `profile`, PyTorch's profiler runs along."""

    steps: int
    faults: tuple[Fault, ...] = ()
    profile: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise ValueError(f"a stretch has 1 … {MAX_STEPS} steps, not {self.steps}")


@dataclass(frozen=True, slots=True)
class Job:
    """A training job: how many ranks, how long a healthy rank sleeps in each stage, and the real model beside it."""

    ranks: int = 4
    data: float = 0.003
    forward: float = 0.005
    backward: float = 0.008
    optimizer: float = 0.002
    checkpoint: float = 0.002
    width: int = 64
    batch: int = 4
    warm_up: int = 5
    patience: float = 30.0
    """Seconds after which gloo gives a collective up."""

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"a job has 2 … {MAX_RANKS} ranks, not {self.ranks}")
        times = (self.data, self.forward, self.backward, self.optimizer, self.checkpoint)
        if not all(0 <= seconds <= 10 for seconds in times) or not 0 < self.patience <= 600:
            raise ValueError("the seconds of a stage lie in 0 … 10, those of patience in 0 … 600")
        if not 1 <= self.width <= 4096 or not 1 <= self.batch <= 1024 or not 0 <= self.warm_up <= 1000:
            raise ValueError("width is 1 … 4096, batch 1 … 1024, warm_up 0 … 1000")

    @property
    def step(self) -> float:
        """What a healthy step takes at least."""
        return self.data + self.forward + self.backward + self.optimizer + self.checkpoint

    def slower(self, times: int) -> Job:
        """The same job with so many times as long stages.

        >>> round(Job().slower(3).step / Job().step, 9)
        3.0
        """
        stages = ("data", "forward", "backward", "optimizer", "checkpoint")
        return replace(self, **{name: times * getattr(self, name) for name in stages})


@dataclass(frozen=True)
class Recording:
    """What the ranks recorded of a schedule, as far as they came."""

    schedule: tuple[Stretch, ...]
    durations: NDArray[np.int64]  # (steps, ranks, stages)
    reported: NDArray[np.int64]  # (ranks,): how many steps
    where: NDArray[np.int64]  # (ranks, 3): steps finished, stage it is in, signs of life
    failure: str = ""  # what ended the job early

    def window(self, number: int) -> Window:
        """The steps of one stretch, on all ranks."""
        first = sum(stretch.steps for stretch in self.schedule[:number])
        steps = np.arange(first, first + self.schedule[number].steps)
        valid = steps[:, None] < self.reported[None, :]
        ranks = tuple(range(self.durations.shape[1]))
        return Window(steps, ranks, SYNC_STAGES, self.durations[steps], valid)

    def incident(self, number: int) -> Incident:
        """The stretch as a labelled incident: each rank on its own clock, and what was done to the first of them."""
        window = self.window(number)
        vectors = [
            Vectors(r, int(window.steps[0]), window.stages, window.durations[window.valid[:, r], r], len(window.ranks))
            for r in window.ranks
        ]
        faults, steps = self.schedule[number].faults, window.steps
        truth = None
        if faults:
            fault = faults[0]
            stage = fault.kind if fault.kind in SLOW else "sync"
            truth = Truth(fault.kind, str(fault.rank), stage, int(steps[0]), int(steps[-1]) + 1, fault.delay)
        return Incident(frame(vectors), truth)


def record(job: Job, schedule: Sequence[Stretch], *, traces: Path | None = None, timeout: float = 600.0) -> Recording:
    """Run the job; profiler traces, if any stretch asks for them, are left in the folder `traces`.

    A rank that dies, hangs or is late does not raise: the recording holds what was there, and `failure` says why.
    """
    stretches = tuple(schedule)
    total = sum(stretch.steps for stretch in stretches)
    if not 1 <= total <= MAX_STEPS:
        raise BadInput(f"ddp: the schedule has {total} steps; 1 … {MAX_STEPS}, please")
    if any(fault.rank >= job.ranks for stretch in stretches for fault in stretch.faults):
        raise BadInput(f"ddp: a fault names a rank that is not in 0 … {job.ranks - 1}")
    shape = (job.ranks, total, len(SYNC_STAGES))
    arrays: dict[str, NDArray[Any]] = {
        "durations": np.zeros(shape, np.int64), "reported": np.zeros(job.ranks, np.int64),
        "where": np.zeros((job.ranks, 3), np.int64),
    }  # fmt: skip
    failure = ""
    with scratch() as folder:
        given = (job, stretches, str(folder))
        with Ranks(job.ranks, ddp_job.work, *given, arrays=arrays, imports=ddp_job.IMPORTS) as ranks:
            try:
                ranks.wait(timeout)
            except RankFailed as failed:
                failure = str(failed).splitlines()[0]
            found = {name: ranks.array(name).copy() for name in arrays}
        if traces is not None:
            for path in sorted(folder.glob("trace-*.json")):
                shutil.move(path, traces / path.name)
    durations = np.ascontiguousarray(found["durations"].transpose(1, 0, 2))
    return Recording(stretches, durations, found["reported"], found["where"], failure)


def parse(text: str, source: str = "ddp") -> tuple[Job, tuple[Stretch, ...]]:
    """A job and its schedule from TOML; BadInput says which field is wrong.

    >>> parse("ranks = 1000\\n[[stretch]]\\nsteps = 1")
    Traceback (most recent call last):
    ...
    assay.record.errors.BadInput: ddp: a job has 2 … 16 ranks, not 1000
    """
    try:
        fields = tomllib.loads(text)
        stretches = fields.pop("stretch", None)
        if not isinstance(stretches, list) or not stretches:
            raise BadInput(f"{source}: no [[stretch]]; a schedule has at least one")
        _known(fields, Job, "the job")
        for number, stretch in enumerate(stretches, 1):
            _known(stretch, Stretch, f"stretch {number}")
            faults = stretch.get("faults", [])
            for fault in faults if isinstance(faults, list) else [faults]:
                _known(fault, Fault, f"a fault of stretch {number}")
        job = msgspec.convert(fields, Job)
        schedule = msgspec.convert(stretches, tuple[Stretch, ...])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise BadInput(f"{source}: {error}") from None
    return job, schedule


def _known(given: Any, kind: type, what: str) -> None:
    names = [field.name for field in fields_of(kind)]
    if not isinstance(given, dict):
        raise ValueError(f"{what} is not a table of {', '.join(names)}")
    if odd := [name for name in given if name not in names]:
        raise ValueError(f"{what} has no field '{odd[0]}'; it has {', '.join(names)}")


def read(path: Path) -> tuple[Job, tuple[Stretch, ...]]:
    """A job and its schedule from a TOML file."""
    try:
        return parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from None
