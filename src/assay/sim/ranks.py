"""A handful of real processes that work on one job: started fresh, sharing arrays, killed for sure at the end.

Each rank runs `target(rank, *arguments)`, a top-level function, in a process of its own with one computing thread.
Where `imports` names modules that take long to load, ranks are forked from a process that loaded them and did nothing
else; it is kept for the next ranks. Ranks meet at a barrier and share arrays by name. Any of them may be killed or
stopped from outside, which is what studies of failures are about; whatever happens, no rank is left running and nothing
allocated after the block.

>>> import numpy as np
>>> with Ranks(2, fill, arrays={"out": np.zeros(2)}) as ranks:
...     answers = ranks.wait(timeout=60)
...     ranks.array("out").tolist()
[1.0, 2.0]
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Read when a library is imported, which may be before a rank exists: one computing thread, and no word of torch's
# recorders on standard error.
ENVIRONMENT = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")} | {
    "TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99",
}  # fmt: skip
Spec = tuple[str, tuple[int, ...], str]  # the block's name, shape and dtype


class RankFailed(RuntimeError):  # noqa: N818 - what happened to a rank, often on purpose
    """A rank raised, was killed, or did not answer in time."""


@dataclass
class Rank:
    """What a process knows: its number, how many there are, the arrays, and where to meet."""

    index: int
    size: int
    _specs: dict[str, Spec]
    _barrier: Any
    _blocks: dict[str, SharedMemory] = field(default_factory=dict)

    def array(self, name: str) -> NDArray[Any]:
        """A shared array; writes are seen by all."""
        block, shape, dtype = self._specs[name]
        if name not in self._blocks:
            self._blocks[name] = SharedMemory(name=block)
        return np.ndarray(shape, dtype, buffer=self._blocks[name].buf)

    def meet(self, timeout: float = 60.0) -> None:
        """Wait until all ranks are here."""
        try:
            self._barrier.wait(timeout)
        except threading.BrokenBarrierError:
            raise RankFailed(f"rank {self.index} waited for the others in vain") from None


def fill(rank: Rank) -> int:
    """The smallest job, for examples and tests: write one's number, meet, answer."""
    rank.array("out")[rank.index] = rank.index + 1
    rank.meet()
    return rank.index


def prepare(imports: Sequence[str]) -> None:
    """Begin to load what ranks to come import, in the process that they are forked from, while this one goes on.

    It is heeded before the first ranks of this process; a module that is not there is left to them.
    """
    if _forks():
        from multiprocessing import forkserver  # not everywhere

        multiprocessing.get_context("forkserver").set_forkserver_preload(list(imports))
        with environment():
            forkserver.ensure_running()


def _forks() -> bool:
    return "forkserver" in multiprocessing.get_all_start_methods()


@contextmanager
def environment() -> Iterator[None]:
    """What processes inherit that start meanwhile."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


class Ranks:
    """`n` processes at work on `target`; use it in a `with` block."""

    def __init__(
        self, n: int, target: Callable[..., Any], *arguments: Any, arrays: Mapping[str, NDArray[Any]] | None = None,
        imports: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.n = n
        self._imports = list(imports)
        self._target, self._arguments = target, arguments
        self._given = dict(arrays or {})
        self._blocks: dict[str, SharedMemory] = {}
        self._specs: dict[str, Spec] = {}
        self._processes: list[Any] = []
        self._answers: list[Connection] = []
        self._barrier: Any = None

    def __enter__(self) -> Ranks:
        forked = bool(self._imports) and _forks()
        context: Any = multiprocessing.get_context("forkserver" if forked else "spawn")
        if forked:
            context.set_forkserver_preload(self._imports)  # heeded by the first ranks of this process
        try:
            for name, values in self._given.items():
                block = SharedMemory(create=True, size=max(1, values.nbytes))
                self._blocks[name] = block
                self._specs[name] = block.name, values.shape, values.dtype.str
                self.array(name)[...] = values
            self._barrier = context.Barrier(self.n)  # kept: a collected semaphore is gone before a rank opens it
            with environment():
                for index in range(self.n):
                    ours, theirs = context.Pipe(duplex=False)
                    rank = Rank(index, self.n, self._specs, self._barrier)
                    process = context.Process(target=_work, args=(rank, theirs, self._target, self._arguments))
                    process.start()
                    theirs.close()
                    self._processes.append(process)
                    self._answers.append(ours)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()  # SIGKILL also ends a stopped process
        for process in self._processes:
            process.join()
        for answer in self._answers:
            answer.close()
        for block in self._blocks.values():
            block.close()
            block.unlink()
        self._blocks.clear()

    def array(self, name: str) -> NDArray[Any]:
        """A shared array, as the ranks see it."""
        _, shape, dtype = self._specs[name]
        return np.ndarray(shape, dtype, buffer=self._blocks[name].buf)

    def wait(self, timeout: float = 60.0) -> list[Any]:
        """What every rank returned, in order.

        Raises:
            RankFailed: one of them raised, died or was late; the message says which.
        """
        found: dict[int, Any] = {}
        end = time.monotonic() + timeout
        while len(found) < self.n:
            waiting = {self._answers[i]: i for i in range(self.n) if i not in found}
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                raise RankFailed(f"no answer from rank {', '.join(map(str, waiting.values()))} in {timeout:g} s")
            for connection in ready:
                index = waiting[connection]  # type: ignore[index]
                try:
                    failed, value = self._answers[index].recv()
                except (EOFError, OSError):  # before its answer, or within it
                    self._processes[index].join()
                    raise RankFailed(f"rank {index} died with code {self._processes[index].exitcode}") from None
                if failed:
                    raise RankFailed(f"rank {index}: {value}")
                found[index] = value
        return [found[i] for i in range(self.n)]

    def survivors(self, timeout: float = 60.0, gone: Callable[[int], None] | None = None) -> dict[int, Any]:
        """What those ranks returned that lived to do so; `gone` is told of the others as they die.

        Raises:
            RankFailed: one of them raised or was late.
        """
        found: dict[int, Any] = {}
        waiting: dict[Any, int] = {answer: index for index, answer in enumerate(self._answers)}
        end = time.monotonic() + timeout
        while waiting:
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                raise RankFailed(f"no answer from rank {', '.join(map(str, waiting.values()))} in {timeout:g} s")
            for connection in ready:
                index = waiting.pop(connection)
                try:
                    failed, value = self._answers[index].recv()
                except (EOFError, OSError):  # before its answer, or within it
                    if gone:
                        gone(index)
                    continue
                if failed:
                    raise RankFailed(f"rank {index}: {value}")
                found[index] = value
        return dict(sorted(found.items()))

    def kill(self, index: int) -> None:
        """End a rank at once, as a crash would."""
        self._processes[index].kill()

    def stop(self, index: int) -> None:
        """Freeze a rank, as a hang would."""
        os.kill(self._processes[index].pid, signal.SIGSTOP)

    def go_on(self, index: int) -> None:
        """Let a frozen rank continue."""
        os.kill(self._processes[index].pid, signal.SIGCONT)

    def reason(self, index: int) -> str:
        """Why a rank is gone: what it raised, or the code it ended with."""
        try:
            if self._answers[index].poll():
                failed, value = self._answers[index].recv()
                return str(value) if failed else "it had finished"
        except (EOFError, OSError):
            pass  # it left no word
        self._processes[index].join(1.0)
        return f"it ended with code {self._processes[index].exitcode}"

    @property
    def table(self) -> list[dict[str, Any]]:
        """Which ranks there are, and how they fare."""
        return [
            {"rank": index, "pid": process.pid, "alive": process.is_alive(), "exit": process.exitcode}
            for index, process in enumerate(self._processes)
        ]


def _work(rank: Rank, answer: Connection, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        result = False, target(rank, *arguments)
    except Exception as error:
        result = True, f"{type(error).__name__}: {error}"
    answer.send(result)
    answer.close()
