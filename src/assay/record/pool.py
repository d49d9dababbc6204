"""Independent cases in parallel: on this machine's cores, or on a Ray cluster.

A task names its function (`module:function`) instead of carrying it, so that a worker imports only what the task
needs. Every task brings its own seed; where it runs cannot change what it returns. Workers use one thread each:
linear algebra and compiled loops then sum in the same order everywhere.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput, StudyFailed
from assay.record.extras import missing_module

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")} | {
    "POLARS_MAX_THREADS": "1"
}

SOCKET_PATH = 107  # bytes of one, at most
_RAY_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


@dataclass(frozen=True, slots=True)
class Task:
    """One case with one seed: a function by name and its keyword arguments."""

    function: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.arguments.items())


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a worker, as text: not every exception can be sent to another process."""

    kind: str
    message: str
    where: str
    missing: str | None
    trace: str


def perform(task: Task) -> Any:
    """Run a task here and now; an exception becomes a `Failure`.

    >>> perform(Task("math:gcd_of_nothing", {})).kind
    'AttributeError'
    """
    try:
        module, name = task.function.split(":")
        return plain(getattr(importlib.import_module(module), name)(**task.arguments))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        missing = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else None
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Failure(type(error).__name__, str(error), where, missing, traceback.format_exc())


def plain(value: Any) -> Any:
    """NumPy scalars and arrays as the plain numbers and lists that JSON knows; what is not finite is None there.

    >>> import numpy as np
    >>> plain({"steps": np.int64(3), "seconds": [np.float32(0.5), float("inf")]})
    {'steps': 3, 'seconds': [0.5, None]}
    """
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def raise_failure(failure: Failure, key: str, task: Task) -> None:
    """Turn a worker's failure into the one line a person reads."""
    if os.environ.get("ASSAY_TRACEBACK"):
        print(failure.trace, file=sys.stderr)  # standard output is the answer's
    if failure.missing:
        raise BadInput(missing_module(key, ModuleNotFoundError(name=failure.missing)))
    reason = f"{failure.kind}: {failure.message}".splitlines()[0].rstrip(": ")
    raise StudyFailed(f"{key} failed at {task}: {reason} ({failure.where}; ASSAY_TRACEBACK=1 shows more)")


class Crew:
    """Worker processes on this machine: started when they are first needed, and kept from one experiment to the next.

    What a worker imports and compiles takes seconds, and a study asks for several tables.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._free: list[tuple[Any, Any]] = []  # pipe, process

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        while self._free:
            _end(self._free.pop()[1])

    def run(self, tasks: Sequence[Task], most: int | None = None, new: bool = False) -> Iterator[tuple[int, Any]]:
        """Run tasks, at most so many at once; yields (position, outcome) as they finish.

        With `new` no worker has worked before; afterwards they are kept like others, as many as there are to be.
        """
        waiting = list(range(len(tasks)))[::-1]
        busy: dict[Any, tuple[Any, int]] = {}
        try:
            for _ in range(min(most or self.workers, self.workers, len(tasks))):
                pipe, process = self._worker(new)
                busy[pipe] = process, waiting.pop()
                pipe.send(tasks[busy[pipe][1]])
            while busy:
                ready: list[Any] = connection.wait(list(busy))
                for pipe in ready:
                    process, position = busy[pipe]
                    outcome = _heard(pipe, process, tasks[position])
                    if waiting:
                        busy[pipe] = process, waiting.pop()
                        pipe.send(tasks[busy[pipe][1]])
                    else:
                        del busy[pipe]
                        self._keep(pipe, process)
                    yield position, outcome
        finally:
            for process, _ in busy.values():  # interrupted: what they would say nobody waits for
                _end(process)

    def _keep(self, pipe: Any, process: Any) -> None:
        if len(self._free) < self.workers:
            self._free.append((pipe, process))
        else:
            _end(process)

    def _worker(self, new: bool) -> tuple[Any, Any]:
        while self._free and not new:
            pipe, process = self._free.pop()
            if process.is_alive():
                return pipe, process
        context = get_context("spawn")  # a forked child would inherit locks of Numba's and Polars' threads
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return ours, process


def local(tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Any]]:
    """Run tasks in `workers` new processes; yields (position, outcome) as they finish. No workers: in this process."""
    if workers < 1:
        yield from ((position, perform(task)) for position, task in enumerate(tasks))
        return
    with Crew(workers) as crew:
        yield from crew.run(tasks)


def _heard(pipe: Any, process: Any, task: Task) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        process.join(5)
        raise StudyFailed(f"the process of case {task} died ({_cause(process)})") from None


def _end(process: Any) -> None:
    process.kill()
    process.join()


def _cause(process: Any) -> str:
    code = process.exitcode
    return f"killed by {signal.Signals(-code).name}, out of memory?" if code and code < 0 else f"exit code {code}"


def _work(pipe: Any) -> None:
    os.environ.update(ONE_THREAD)  # before anything that reads it is imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(perform(task))


def _end_with_parent() -> None:
    """A parent killed with -9 cannot end its workers; they notice by its sentinel."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def on_ray(tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Any]]:
    """Run tasks on Ray: `ray` for this machine (or the cluster it belongs to), `ray://HOST:PORT` for another."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("--on ray", error)) from error
    remote = address.startswith("ray://")
    # A cluster runs this very code, not whichever assay it may have installed.
    ship = {"env_vars": ONE_THREAD, "py_modules": [str(Path(__file__).parents[1])]}
    with _ray_folder() as folder, _set_for_children(ONE_THREAD):
        place: dict[str, Any] = {"include_dashboard": False, "_temp_dir": folder}
        if remote:
            place = {"address": address, "runtime_env": ship}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **place)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            hint = "; is it up, and does RAY_AUTH_MODE (token or disabled) match the cluster's?" if remote else ""
            raise BadInput(f"cannot reach Ray at '{address}': {str(error).splitlines()[0]}{hint}") from error
        try:
            yield from _ray_tasks(ray, tasks)
        finally:
            ray.shutdown()


@contextmanager
def _set_for_children(values: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started meanwhile have these in their environment.

    Ray would set them, too, but starts such workers by a shell, which takes a space in a path for the end of a word.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _ray_folder() -> Iterator[str | None]:
    """Where Ray on this machine keeps its sockets: where it wants to, unless it could not name or open them there."""
    usual = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if usual.isascii() and len(usual + _RAY_SOCKET) <= SOCKET_PATH:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="assay-ray-", dir="/tmp", ignore_cleanup_errors=True) as short:
        yield short


def _ray_tasks(ray: Any, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
    submit: Callable[..., Any] = ray.remote(num_cpus=1, max_retries=2)(perform).remote
    pending = {submit(task): position for position, task in enumerate(tasks)}
    while pending:
        for reference in ray.wait(list(pending), num_returns=1)[0]:
            position = pending.pop(reference)
            try:
                yield position, ray.get(reference)
            except ray.exceptions.RayError as error:
                first = str(error).splitlines()[0]
                raise StudyFailed(f"the Ray task of case {tasks[position]} died: {first}") from None
