"""The processes of a benchmark: a worker that calls a function when it is asked to, or a command run once.

Each is a session of its own and is killed with all it started, whether it answered, failed, or never came back.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.observe.bench import children
from assay.observe.bench.checkouts import Checkout
from assay.observe.bench.config import Benchmark, Config

WORKER = Path(__file__).with_name("worker.py")
LARGEST_ANSWER = 1_000_000  # bytes of one line of a worker
Seconds = dict[str, float]  # "wall" and "cpu"


class DidNotRun(Exception):  # noqa: N818 - read as a sentence
    """A benchmark gave no measurement; the text says why."""


@dataclass(frozen=True)
class Bench:
    """One benchmark in one checkout: all that is needed to run it."""

    name: str
    benchmark: Benchmark
    config: Config
    checkout: Checkout
    folder: Path  # of the session
    interpreter: str = field(default=sys.executable)

    @property
    def timeout(self) -> float:
        """Seconds a process may take to answer."""
        return self.benchmark.timeout or self.config.timeout

    @property
    def metric(self) -> str:
        """`wall` or `cpu`."""
        return self.benchmark.metric or self.config.metric

    def job(self) -> bytes:
        """The worker's first line."""
        job = {
            "root": str(self.checkout.root), "path": [".", "src", *self.config.path], "call": self.benchmark.call,
            "setup": self.benchmark.setup, "args": self.benchmark.args,
        }  # fmt: skip
        return json.dumps(job).encode() + b"\n"

    def worker(self) -> list[str]:
        """The command of a worker: a copy alone in its folder, so that Python finds nothing else beside it."""
        alone = self.folder / "worker" / "serve.py"
        if not alone.exists():
            alone.parent.mkdir(exist_ok=True)
            shutil.copyfile(WORKER, alone)
        return [self.config.python or self.interpreter, str(alone)]

    def env(self, hash_seed: int) -> dict[str, str]:
        """The environment of a process, the same on both sides of a pair."""
        return {**os.environ, "PYTHONHASHSEED": str(hash_seed), **self.config.env}


# --------------------------------------------------------------------------------------------- processes


class Worker:
    """A process that runs a benchmark's function as often as it is asked to."""

    def __init__(self, bench: Bench, hash_seed: int) -> None:
        self.bench = bench
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        try:
            self.process = children.start(
                bench.worker(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
                env=bench.env(hash_seed), bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise DidNotRun(f"cannot start {bench.worker()[0]}: {error.strerror}") from None
        self.send(bench.job())

    def send(self, line: bytes) -> None:
        """Write a line; a process that is gone is noticed when its answer is missing."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(line)

    def answer(self) -> dict[str, Any]:
        """The next answer; `DidNotRun` if there is none in time, or if it is an error."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + self.bench.timeout
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise DidNotRun(f"no answer within {self.bench.timeout:g} s")
            piece = os.read(self.process.stdout.fileno(), 65_536)
            if not piece or len(line) > LARGEST_ANSWER:
                raise DidNotRun(f"its process ended with code {self.process.wait(5)}{self._last_words()}")
            line += piece
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DidNotRun(str(answer["error"]))
        return answer

    def run(self, calls: int) -> Seconds:
        """Seconds of so many calls."""
        self.send(b"%d\n" % calls)
        return self.answer()

    def pin(self, number: int) -> None:
        """Keep the process on one of the cores we may use; where the system has no such thing, it stays free."""
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            with suppress(OSError):
                os.sched_setaffinity(self.process.pid, {cores[number % len(cores)]})

    def _last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def close(self) -> None:
        """End the process and all it started."""
        children.end(self.process)
        for stream in (self.process.stdin, self.process.stdout, self.said):
            if stream is not None:
                stream.close()


@contextmanager
def workers(benches: tuple[Bench, ...], hash_seed: int) -> Iterator[list[Worker]]:
    """One worker for each bench, ready to be asked; the one at fault is named if one is not."""
    started: list[Worker] = []
    try:
        started.extend(Worker(bench, hash_seed) for bench in benches)
        for worker in started:
            with at_fault(worker.bench):
                worker.answer()
        yield started
    finally:
        for worker in started:
            worker.close()


@contextmanager
def at_fault(bench: Bench) -> Iterator[None]:
    """Say at which commit something did not run."""
    try:
        yield
    except DidNotRun as error:
        raise DidNotRun(f"at {bench.checkout}: {error}") from None


def run_command(bench: Bench, hash_seed: int) -> Seconds:
    """Run a command once in its checkout: seconds on the wall, and of the processor for it and its children."""
    words = bench.benchmark.command
    assert words is not None
    with tempfile.TemporaryFile() as said, at_fault(bench):
        begun = time.perf_counter()
        try:
            process = children.start(
                words, cwd=bench.checkout.root, env=bench.env(hash_seed), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
        except OSError as error:
            raise DidNotRun(f"cannot start '{words[0]}': {error.strerror}") from None
        try:
            status, used = _wait(process, bench.timeout)
            wall = time.perf_counter() - begun
        finally:
            children.end(process)
        if status:
            said.seek(0)
            lines = said.read()[-4000:].decode(errors="replace").strip().splitlines()
            raise DidNotRun(f"'{words[0]}' ended with code {status}" + (f": {lines[-1][:300]}" if lines else ""))
    return {"wall": wall, "cpu": used}


def _wait(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, float]:
    """The exit code and the processor seconds; everything is killed once the time is over."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        children.kill(process)

    timer = threading.Timer(timeout, stop)
    timer.daemon = True  # an interruption may come while it starts, before anybody could cancel it
    try:
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if late.is_set():
        raise DidNotRun(f"did not end within {timeout:g} s")
    return process.returncode, usage.ru_utime + usage.ru_stime
