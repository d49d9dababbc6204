"""Jobs with replicas, started and ended: programs of this folder, or a script of the user's."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.ranks import RankFailed
from assay.sim.scratch import scratch
from assay.training.engine import mpi

LIMIT = 240.0
SHARED = {"btl": "sm,self"}  # plain MPI on one machine, as fast as it goes
Kill = tuple[int, str, int]  # process, point (call, send or recovery), how often it passed that point before


class Interrupted(RuntimeError):  # noqa: N818 - what happened to the job
    """A rank died that nobody else carried."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(why)
        self.rank = rank


@dataclass(frozen=True)
class Task:
    """One program with its size."""

    kernel: str
    size: int = 64
    steps: int = 6
    seed: int = 0


@dataclass
class Ran:
    """What came of a job: the report of every process that lived, by its number."""

    reports: dict[int, dict[str, Any]] = field(default_factory=dict)

    def result(self, at: int = 0) -> list[NDArray[Any]]:
        """A task's result as every process that lived found it."""
        return [report[f"result-{at}"] for report in self.reports.values()]

    def total(self, count: str) -> int:
        """Of one of the layer's counts, over all processes that lived."""
        return sum(report["counts"].get(count, 0) for report in self.reports.values())

    def seconds(self, at: int = 0) -> float:
        """Of the process that took longest."""
        return max(report["seconds"][at] for report in self.reports.values())


def replicate(ranks: int, replicas: int) -> tuple[int, ...]:
    """Which ranks get one: the first ones."""
    if not 0 <= replicas <= ranks:
        raise BadInput(f"{replicas} replicas of {ranks} ranks: from none to one for each would be right")
    return tuple(range(replicas))


def run(
    tasks: Sequence[Task], ranks: int, twins: Sequence[int] = (), kills: Sequence[Kill] = (), *, plain: bool = False,
    settings: dict[str, str] | None = None, limit: float = LIMIT, rounds: int = 1,
) -> Ran:  # fmt: skip
    """Programs one after the other in one job; `plain` runs them on mpi4py itself.

    Raises:
        Interrupted: a rank died that had no replica left.
        NotMeasured: there is no Open MPI with ULFM here.
    """
    asked = {"tasks": [vars(task) for task in tasks], "rounds": rounds}
    return _job("assay.training.partreper.launch:programs", asked, ranks, twins, kills, plain, settings, limit)


def _job(
    target: str, asked: dict[str, Any], ranks: int, twins: Sequence[int], kills: Sequence[Kill], plain: bool,
    settings: dict[str, str] | None, limit: float,
) -> Ran:  # fmt: skip
    with scratch() as folder:
        seat = {
            "ranks": ranks, "twins": list(twins), "folder": str(folder), "kills": list(kills), "patience": limit,
        }  # fmt: skip
        asked = {**asked, "seat": None if plain else json.dumps(seat)}
        with mpi.Job(target, ranks + len(twins), asked, limit=limit, settings=settings) as job:
            try:
                return Ran(job.survivors())
            except RankFailed as error:
                for path in folder.glob("lost.*"):
                    word = json.loads(path.read_text())
                    raise Interrupted(word["rank"], word["why"]) from error
                for path in folder.glob("stuck.*"):
                    raise RankFailed(json.loads(path.read_text())["why"]) from error
                raise


def connected(seat: str | None) -> Any:
    """The module `MPI` of a process that was told its seat, or mpi4py's own."""
    from assay.training.partreper import face

    if seat is not None:
        os.environ[face.VARIABLE] = seat
    return face.connected()


def programs(asked: dict[str, Any]) -> dict[str, Any]:
    """One process: all tasks, so often; what they found, how long each took, and a digest of the last states."""
    from assay.training.partreper import kernels

    module = connected(asked["seat"])
    seconds, found, states = [], {}, hashlib.sha256()
    for turn in range(asked["rounds"]):
        for at, task in enumerate(asked["tasks"]):
            module.COMM_WORLD.Barrier()
            began = time.perf_counter()
            found[f"result-{at}"], state = kernels.run(module, task["kernel"], *(task[x] for x in ("size", "steps", "seed")))
            seconds.append(time.perf_counter() - began)
            for name in sorted(state) if turn == 0 else ():
                states.update(np.ascontiguousarray(state[name]).tobytes())
    report = module.process.finish() if asked["seat"] else {"counts": {}}
    return {**report, **found, "seconds": seconds, "state": states.hexdigest()}
