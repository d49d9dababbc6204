"""Jobs with replicas, started and ended: programs of this folder, or a script of the user's."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import AssayError, BadInput
from assay.sim.ranks import RankFailed
from assay.sim.scratch import scratch
from assay.training.engine import mpi

LIMIT = 240.0
IDLE = {"mpi_yield_when_idle": "1"}  # who waits lets others compute; costs nothing where nobody else is
SHARED = {"btl": "sm,self", **IDLE}  # plain MPI on one machine, as fast as it goes
Kill = tuple[int, str, int]  # process, point (call, send or recovery), how often it passed that point before


class Interrupted(AssayError):  # noqa: N818 - what happened to the job
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
    died: list[int] = field(default_factory=list)  # processes; not those that ended because their twin was done

    def result(self, at: int = 0) -> list[NDArray[Any]]:
        """A task's result as every process that lived found it."""
        return [report[f"result-{at}"] for report in self.reports.values()]

    def total(self, count: str) -> int:
        """Of one of the layer's counts, over all processes that lived."""
        return sum(report["counts"].get(count, 0) for report in self.reports.values())

    def seconds(self, at: int = 0) -> float:
        """Of the process that took longest."""
        return float(max(report["seconds"][at] for report in self.reports.values()))


def replicate(ranks: int, replicas: int, named: str = "") -> tuple[int, ...]:
    """Which ranks get a replica: the first ones, or those that are named.

    >>> replicate(4, 2), replicate(4, 0, "3,1")
    ((0, 1), (1, 3))
    """
    try:
        chosen = sorted({int(one) for one in named.split(",")}) if named else list(range(replicas))
    except ValueError:
        raise BadInput(f"{named}: ranks, with commas between, would be right") from None
    if chosen and not 0 <= chosen[0] <= chosen[-1] < ranks:
        raise BadInput(
            f"replicas of rank {chosen[-1]}: there are ranks 0 to {ranks - 1}, with one replica each at most"
        )
    return tuple(chosen)


def kill(word: str, processes: int) -> Kill:
    """A death as the command line says it: process and call.

    >>> kill("3:17", 6)
    (3, 'call', 17)
    """
    who, _, at = word.partition(":")
    if not (who.isdigit() and at.isdigit() and int(who) < processes):
        raise BadInput(f"--kill {word}: PROCESS:CALL, such as 0:25, with a process below {processes} would be right")
    return int(who), "call", int(at)


def run(
    tasks: Sequence[Task], ranks: int, twins: Sequence[int] = (), kills: Sequence[Kill] = (), *, plain: bool = False,
    both: bool = False, settings: dict[str, str] | None = None, limit: float = LIMIT, rounds: int = 1,
) -> Ran:  # fmt: skip
    """Programs one after the other in one job; `plain` runs them on mpi4py itself, `both` by turns.

    Raises:
        Interrupted: a rank died that had no replica left.
        NotMeasured: there is no Open MPI with ULFM here.
    """
    asked = {"tasks": [vars(task) for task in tasks], "rounds": rounds, "both": both}
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
        with mpi.Job(target, ranks + len(twins), asked, limit=limit, settings=settings or IDLE) as job:
            try:
                reports = job.survivors()
                return Ran(reports) if plain else _answers(folder, ranks, twins)
            except RankFailed as error:
                found = _answers(folder, ranks, twins)  # the last may have been killed when all was done
                if {report["rank"] for report in found.reports.values()} == set(range(ranks)):
                    return found
                for path in folder.glob("lost.*"):
                    word = json.loads(path.read_text())
                    raise Interrupted(word["rank"], word["why"]) from error
                for path in folder.glob("stuck.*"):
                    raise RankFailed(json.loads(path.read_text())["why"]) from error
                raise


def _answers(folder: Path, ranks: int, twins: Sequence[int]) -> Ran:
    """What processes left that came to the end, and who did not; nobody else writes into this folder."""
    answers, left = (
        {int(path.suffix[1:]): path for path in folder.glob(f"{name}.*") if path.suffix[1:].isdigit()}
        for name in ("answer", "left")
    )
    reports = {who: pickle.loads(path.read_bytes()) for who, path in sorted(answers.items())}
    return Ran(reports, sorted(set(range(ranks + len(twins))) - set(reports) - set(left)))


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
    seconds: dict[str, list[float]] = {"seconds": [], "plain_seconds": []}
    found, states = {}, hashlib.sha256()
    for turn in range(asked["rounds"]):
        for at, task in enumerate(asked["tasks"]):
            for name in ("plain_seconds", "seconds") if asked["both"] else ("seconds",):
                over = module.process.mpi if name == "plain_seconds" else module
                over.COMM_WORLD.Barrier()
                began = time.perf_counter()
                result, state = kernels.run(over, task["kernel"], task["size"], task["steps"], task["seed"])
                seconds[name].append(time.perf_counter() - began)
            found[f"result-{at}"] = result
            for name in sorted(state) if turn == 0 else ():
                states.update(np.ascontiguousarray(state[name]).tobytes())
    return _left(module, asked, {**found, **seconds, "state": states.hexdigest()})


def _left(module: Any, asked: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A process's answer: kept by the layer, or returned to the starter of a plain job."""
    if not asked["seat"]:
        return {"counts": {}, "rank": module.COMM_WORLD.Get_rank(), **answer}
    module.process.finish(answer)
    return {}


# ---------------------------------------------------------------------------------------------- checkpoint and restart


@dataclass(frozen=True)
class Restarted:
    """A plain job that saved its state now and then, and began anew from there after a death."""

    result: NDArray[Any]
    computed: int  # steps, those computed again included
    starts: int
    step: float  # seconds
    saving: float  # seconds of a checkpoint


def checkpointed(
    task: Task, ranks: int, every: int, kill: tuple[int, int] | None = None, limit: float = LIMIT
) -> Restarted:
    """A program on plain MPI, its state saved by every rank after so many steps; a rank may die before a step."""
    with scratch() as folder:
        for starts in range(1, 100):
            asked = {
                "task": vars(task), "every": every, "folder": str(folder), "kill": kill if starts == 1 else None,
                "start": starts,
            }  # fmt: skip
            with mpi.Job("assay.training.partreper.launch:saving", ranks, asked, limit=limit, settings=IDLE) as job:
                if _watched(job, folder, ranks):
                    (first, *_) = job.survivors().values()
                    break
        computed = [
            max(int(path.read_text() or 0) for path in folder.glob(f"computed-{start}-*"))
            for start in range(1, starts + 1)
        ]
    return Restarted(first["result"], sum(computed), starts, first["step"], first["saving"])


def _watched(job: mpi.Job, folder: Path, ranks: int) -> bool:
    """Until all ranks are done, or one is gone: what a batch system sees."""
    clock = mpi.Clock(job.limit)
    while len(list(folder.glob("ended-*"))) < ranks:
        if clock.over():
            raise RankFailed(f"not done within {job.limit:g} s")
        for pid in job.pids.values():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return False
        time.sleep(0.02)
    return True


def saving(asked: dict[str, Any]) -> dict[str, Any]:
    """One rank of a plain job: goes on from the newest checkpoint that all ranks have."""
    from mpi4py import MPI

    from assay.training.partreper.kernels import KERNELS

    task, folder, comm = Task(**asked["task"]), Path(asked["folder"]), MPI.COMM_WORLD
    kernel = KERNELS[task.kernel]
    state = kernel.start(MPI, comm, task.size, task.seed)
    have = [int(path.stem.split("-")[2]) for path in folder.glob(f"saved-{comm.rank}-*.npz")]
    first = min(comm.allgather(max(have, default=0)))
    if first:
        with np.load(folder / f"saved-{comm.rank}-{first}.npz") as found:
            state = {name: found[name] for name in found.files}
    steps, saves = [0.0], [0.0]
    for step in range(first, task.steps):
        if asked["kill"] == [comm.rank, step]:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.perf_counter()
        kernel.step(MPI, comm, state, step)
        steps.append(time.perf_counter() - began)
        (folder / f"computed-{asked['start']}-{comm.rank}").write_text(str(step + 1 - first))
        if (step + 1) % asked["every"] == 0:
            began = time.perf_counter()
            _save(folder / f"saved-{comm.rank}-{step + 1}.npz", state)
            saves.append(time.perf_counter() - began)
    result = kernel.result(MPI, comm, state)
    (folder / f"ended-{comm.rank}").touch()
    return {
        "result": result,
        "step": float(np.median(steps[1:] or steps)),
        "saving": float(np.median(saves[1:] or saves)),
    }


def _save(path: Path, state: dict[str, NDArray[Any]]) -> None:
    """Whole or not at all, and on the disk."""
    aside = path.with_suffix(".part")
    with aside.open("wb") as out:
        np.savez(out, **state)  # type: ignore[arg-type]
        out.flush()
        os.fsync(out.fileno())
    aside.rename(path)


# ------------------------------------------------------------------------------------------------------ a user's script


@dataclass(frozen=True)
class Script:
    """What became of a user's script."""

    printed: list[str]  # by rank, from a carrier that came to the end
    died: list[int]  # processes
    counts: dict[str, int]
    recovery: float  # seconds that the longest took
    seconds: float
    calls: int  # of the process that made most: where one may be told to die


def script(
    line: Sequence[str], ranks: int, twins: Sequence[int], kills: Sequence[Kill] = (), *, plain: bool = False,
    limit: float = 3600.0,
) -> Script:  # fmt: skip
    """A user's script on so many ranks, some of them replicated: what each rank printed, and what became of the job.

    Raises:
        BadInput: the script failed, or was not done in time.
        Interrupted: a rank died that had no replica left.
    """
    if not Path(line[0]).is_file():
        raise BadInput(f"{line[0]}: no such script")
    settings = SHARED if plain else None
    try:
        ran = _job(
            "assay.training.partreper.launch:user", {"line": list(line)}, ranks, twins, kills, plain, settings, limit
        )
    except RankFailed as error:
        raise BadInput(f"{line[0]}: {error}") from error
    spoken = {report["rank"]: report["printed"] for report in ran.reports.values()}
    calls = max((report["points"].get("call", 0) for report in ran.reports.values() if "points" in report), default=0)
    counts = {name: ran.total(name) for name in ("sent", "collective", "control", "resent", "replayed")}
    mended = [one for report in ran.reports.values() for one in report.get("mending", ())]
    seconds = max(report["seconds"] for report in ran.reports.values())
    return Script([spoken[rank] for rank in sorted(spoken)], ran.died, counts, max(mended, default=0.0), seconds, calls)


def user(asked: dict[str, Any]) -> dict[str, Any]:
    """One process that runs the script as `python script.py` would. What it prints is kept: a twin prints it, too."""
    module = connected(asked["seat"])
    kept = io.StringIO()
    path, *arguments = asked["line"]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    began = time.perf_counter()
    with contextlib.redirect_stdout(kept):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"exit code {end.code}") from end
    seconds = time.perf_counter() - began
    return _left(module, asked, {"printed": kept.getvalue(), "seconds": seconds})
