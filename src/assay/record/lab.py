"""The lab: what a study is given to measure with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from assay.record import machine, pool, traces
from assay.record.errors import StudyFailed
from assay.record.journal import Journal
from assay.record.types import NotMeasured

T = TypeVar("T")
Progress = Callable[[int, int], None]
Finished = Callable[[Mapping[str, Any], float], None]  # a case, and the seconds since the one before


@dataclass(frozen=True)
class Lab:
    """The size, the seeds, the workers and the shelves of one run of a study.

    >>> lab = Lab("demo", seeds=(7, 11))
    >>> lab.pick(quick=10, full=1000)
    10
    """

    key: str
    size: str = "quick"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    on: str = "local"
    workers: int = 0  # 0: in this process
    journal: Journal | None = None
    artefacts: Path = Path()
    progress: Progress = lambda done, total: None
    crew: pool.Crew | None = None  # workers that are kept between the calls of `run`
    machine: dict[str, Any] = field(default_factory=machine.facts)
    used: set[int] = field(default_factory=set)  # the seeds that cases really ran with
    lacking: set[str] = field(default_factory=set)  # the traces that a study went without
    finished: Finished = lambda case, seconds: None
    cases: set[str] = field(default_factory=set)  # the columns that say which case a row is; the others are measured

    def pick(self, quick: T, full: T) -> T:
        """The value for this run's size. Both sizes run the same code."""
        return full if self.size == "full" else quick

    def with_seeds(self, quick: int, full: int) -> Lab:
        """This lab with the first so many of its seeds, for an experiment whose cases are dear.

        >>> Lab("demo", seeds=(7, 11, 13)).with_seeds(quick=2, full=10).seeds
        (7, 11)
        """
        return replace(self, seeds=self.seeds[: self.pick(quick=quick, full=full)])

    def trace(self, name: str) -> Path:
        """A public trace by file name; raises NotMeasured with the cure where it is not at hand."""
        return traces.find(name)

    def trace_or_none(self, name: str) -> Path | None:
        """A public trace by file name; None where it is not at hand.

        The study measures what it can without it. A claim that then finds nothing in the table is not measured, and
        says how to get the trace.
        """
        try:
            return traces.find(name)
        except NotMeasured:
            self.lacking.add(name)
            return None

    def run(
        self,
        function: Callable[..., Any],
        cases: Sequence[Mapping[str, Any]],
        *,
        per: str | None = None,
        alone: bool = False,
    ) -> pl.DataFrame:
        """Call `function(**case, seed=seed)` for every case and seed, and lay the outcomes out as a table.

        The function returns a dict of measurements. With `per="method"` it returns one such dict for each method it
        compared side by side, and each becomes a row. Columns: the case, `per`, `seed`, then the measurements.
        `alone`: one case at a time, because it is timed. Finished cases are kept if the run is interrupted.
        """
        name = f"{function.__module__}:{function.__qualname__}"
        tasks = [pool.Task(name, {**case, "seed": seed}) for case in cases for seed in self.seeds]
        self.used.update(self.seeds if tasks else ())
        self.cases.update(*cases, [per] if per else [])
        outcomes: list[Any] = [self.journal.get(_identity(task)) if self.journal else None for task in tasks]
        waiting = [position for position, outcome in enumerate(outcomes) if outcome is None]
        done = len(tasks) - len(waiting)
        self.progress(done, len(tasks))
        clock = time.monotonic()
        for index, outcome in self._perform([tasks[position] for position in waiting], alone):
            position = waiting[index]
            if isinstance(outcome, pool.Failure):
                pool.raise_failure(outcome, self.key, tasks[position])
            outcomes[position] = outcome
            if self.journal:
                self.journal.put(_identity(tasks[position]), outcome)
            done += 1
            clock, before = time.monotonic(), clock
            self.finished(tasks[position].arguments, clock - before)
            self.progress(done, len(tasks))
        rows = [row for task, outcome in zip(tasks, outcomes, strict=True) for row in _rows(task, outcome, per)]
        return pl.from_dicts(rows, infer_schema_length=None) if rows else pl.DataFrame()

    def _perform(self, tasks: Sequence[pool.Task], alone: bool) -> Iterator[tuple[int, Any]]:
        if not tasks:
            return iter(())
        if self.on != "local" and not alone:
            return pool.on_ray(tasks, self.on)
        workers = min(self.workers, 1) if alone else self.workers
        if self.crew is not None and workers:
            # What is timed runs in a new process: one that has worked before has other memory.
            return self.crew.run(tasks, workers, new=alone)
        return pool.local(tasks, workers)


def _identity(task: pool.Task) -> str:
    return json.dumps([task.function, task.arguments], sort_keys=True)


def _rows(task: pool.Task, outcome: Any, per: str | None) -> Iterator[dict[str, Any]]:
    case = {name: value for name, value in task.arguments.items() if name != "seed"}
    parts = {None: outcome} if per is None else outcome
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        raise StudyFailed(f"{task.function} must return a dict of measurements{' for each ' + per if per else ''}")
    for name, part in parts.items():
        yield case | ({per: name} if per else {}) | {"seed": task.arguments["seed"]} | part
