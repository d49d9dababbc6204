"""The same crashes in real processes on real files: each ends by `os._exit` at its change, so no cleanup hides a bug.

A process of our own imports the component once and forks a child for every life. What callers were promised goes to a
file as it is promised, and survives the child.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from assay.data.crash.faulty import DEATHS, SURVIVED, Fault, Faulty
from assay.data.crash.lab import Case, Finding, life, recorded
from assay.data.interface import Crashable, StoreError, Violation
from assay.data.store.directory import DirStore
from assay.record.errors import StudyFailed
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.own_code import load
from assay.sim.scratch import scratch
from assay.sim.streams import stream

KILLED = 137
KINDS = (*DEATHS, *SURVIVED)  # a request cannot outlive the process that makes it on a local folder


def examine_processes(
    name: str, ops: int, points: int, *, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[int, list[Finding]]:
    """Crash `module:Class` in real processes at up to so many points; returns how many, and what broke."""
    command = [sys.executable, "-m", "assay.data.crash.processes", name, str(ops), str(points), str(seed)]
    findings, done = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        for line in child.stdout:
            told = json.loads(line)
            done += 1
            progress(done, told["of"])
            if told["violations"]:
                case = Case(ops, seed, (Fault.parse(told["fault"]),))
                findings.append(Finding(case, tuple(Violation(*wrong) for wrong in told["violations"])))
        errors = child.stderr.read()
    if child.returncode:
        last = (errors.strip().splitlines() or ["no word"])[-1]
        raise StudyFailed(f"the processes of the crash lab ended with {child.returncode}: {last}")
    return done, findings


class Promised(list[Any]):
    """A list whose appended items are in a file before the caller goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            json.loads(line) for line in path.read_text().splitlines()
        ) if path.exists() else super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, item: Any) -> None:
        """Write, then append."""
        os.write(self._file, json.dumps(item).encode() + b"\n")
        super().append(item)

    def extend(self, items: Any) -> None:
        """One after the other."""
        for item in items:
            self.append(item)


def _forked(body: Callable[[], int]) -> int:
    """The exit status of a child that runs the body and ends without any cleanup."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = body()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _one_life(make: Callable[[], Crashable], folder: Path, ops: int, seed: int, fault: Fault | None) -> int:
    store = Faulty(DirStore(folder / "store"), fault, die=lambda: os._exit(KILLED))
    promised = Promised(folder / "promised")
    try:
        # Virtual time from now on: the scenario's pauses cost nothing, and the files' times can be compared with it.
        run_virtual(life(make(), store, ops, promised, seed, clock=VirtualClock()), start=time.time())
    except StoreError:
        return 3
    return 0


def _finished(make: Callable[[], Crashable], folder: Path, ops: int, seed: int) -> int:
    return _one_life(make, folder, ops, seed, None)


def _judged(make: Callable[[], Crashable], folder: Path, ops: int, seed: int) -> int:
    async def main() -> Sequence[Violation]:
        judge = make()
        await judge.open(DirStore(folder / "store"), clock=VirtualClock(), seed=seed)
        return await judge.check(list(Promised(folder / "promised")))

    wrong = run_virtual(main(), start=time.time())
    (folder / "verdict").write_text(json.dumps([[one.rule, one.detail] for one in wrong]))
    return 0


def crash_once(make: Callable[[], Crashable], folder: Path, ops: int, seed: int, fault: Fault) -> list[list[str]]:
    """A life with a fault, a judge, a life that finishes, a judge again, each a process; the rules that broke."""
    first = _forked(lambda: _one_life(make, folder, ops, seed * 1000, fault))
    if first not in (0, 3, KILLED):
        return [["only the store's errors reach the caller", f"the process ended with {first}"]]
    for number, body in enumerate((_judged, _finished, _judged), 1):
        if ended := _forked(partial(body, make, folder, ops, seed * 1000 + number)):
            return [["recovery works", f"the process ended with {ended}"]]
        found: list[list[str]] = json.loads((folder / "verdict").read_text())
        if found:
            return found
    return []


def main(name: str, ops: str, points: str, seed: str) -> None:
    """Say of every point, as a line of JSON, what broke."""
    make = load(name)
    changes = len(recorded(make, int(ops), int(seed)))
    every = [Fault(at, kind) for at in range(changes) for kind in KINDS]
    some = stream(int(seed), "process crashes").permutation(len(every))[: int(points)]
    with scratch() as folder:
        for number in some:
            fault = every[int(number)]
            place = folder / "case"
            place.mkdir()
            wrong = crash_once(make, place, int(ops), int(seed), fault)
            shutil.rmtree(place)
            print(json.dumps({"fault": str(fault), "violations": wrong, "of": len(some)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
