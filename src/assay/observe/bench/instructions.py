"""Instructions as a companion of time: nearly free of noise, so a change of two per cent shows at once.

Counted by the processor (`perf stat`) where the machine lets us, else by Valgrind's cachegrind, which runs the program
some fifty times slower but gives the same number each time. A function's count is that of a process that calls it
some times, less that of its start: a process that calls it not at all (`perf`), or a child that it left behind just
before the calls (cachegrind, whose counts a child inherits: half the time). Both sides are counted with the same hash
seeds.

Where neither works :func:`counter` says why.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from assay.observe.bench import children
from assay.observe.bench.judge import Judgement, judge_counts
from assay.sim.scratch import scratch

if TYPE_CHECKING:
    from assay.observe.bench.processes import Bench

SEEDS = (0, 1)
SLOWER = 60  # how much longer a program takes under Valgrind, at most


class NotCounted(Exception):  # noqa: N818 - read as a sentence
    """There is no count; the text says why."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A way to count the instructions of a command; `why` there is none where `source` is empty."""

    source: str
    why: str = ""

    def count(self, command: Sequence[str], env: dict[str, str], cwd: Path, stdin: bytes, timeout: float) -> int:
        """Instructions in user mode of a command and all it starts."""
        with scratch() as folder:
            words, read = _WAYS[self.source]([str(word) for word in command], folder)
            _run(words, _within(folder, env), cwd, stdin, timeout)
            return read(folder)

    def calls(
        self, worker: Sequence[str], times: int, env: dict[str, str], cwd: Path, job: bytes, timeout: float
    ) -> int:
        """Instructions of so many calls of a worker's function."""

        def command(calls: int) -> list[str]:
            return [*worker, "--calls", str(calls)]

        if self.source == "perf":
            return self.count(command(times), env, cwd, job, timeout) - self.count(command(0), env, cwd, job, timeout)
        with scratch() as folder:
            words, read = _cachegrind(command(times), folder)
            said = _run(words, _within(folder, env), cwd, job, timeout)
            start = _summary(folder / f"count.{json.loads(said)['before']}")
            if not start:
                raise NotCounted("cachegrind wrote no summary of the start")
            return read(folder) - 2 * start  # the child's own, and what the worker itself began with


@cache
def counter() -> Counter:
    """The best counter that works here."""
    reasons = []
    for source in _WAYS:
        if shutil.which(source) is None:
            reasons.append(f"{source} is not installed")
            continue
        try:
            Counter(source).count(["/bin/true"], dict(os.environ), Path("/"), b"", 60)
        except NotCounted as error:
            reasons.append(f"{source}: {error}")
        else:
            return Counter(source)
    return Counter("", "; ".join(reasons))


def _perf(command: list[str], folder: Path) -> tuple[list[str], Callable[[Path], int]]:
    report = folder / "count"

    def read(_: Path) -> int:
        text = report.read_text(errors="replace") if report.exists() else ""
        if found := re.search(r"^(\d+),", text, re.MULTILINE):
            return int(found[1])
        raise NotCounted("the machine shows no instruction counter")

    return ["perf", "stat", "-x,", "-e", "instructions:u", "-o", str(report), "--", *command], read


def _cachegrind(command: list[str], folder: Path) -> tuple[list[str], Callable[[Path], int]]:
    def read(folder: Path) -> int:
        total = sum(map(_summary, folder.glob("count.*")))
        if not total:
            raise NotCounted("cachegrind wrote no summary")
        return total

    options = ["--tool=cachegrind", "--cache-sim=no", "--trace-children=yes", "--quiet", f"--log-file={folder}/log"]
    options.append("--vgdb=no")  # whose pipes would stay behind if it is killed
    return ["valgrind", *options, f"--cachegrind-out-file={folder}/count.%p", *command], read


def _summary(report: Path) -> int:
    """What a report of cachegrind counted; 0 where it holds nothing."""
    text = report.read_text(errors="replace") if report.exists() else ""
    found = re.search(r"^summary:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


_WAYS = {"perf": _perf, "valgrind": _cachegrind}


def _within(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """Where temporary files go with the folder: Valgrind killed as it begins leaves the program's command line."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return {**env, "TMPDIR": str(temporary)}


def _run(words: list[str], env: dict[str, str], cwd: Path, stdin: bytes, timeout: float) -> bytes:
    try:
        process = children.start(
            words, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise NotCounted(f"cannot start {words[0]}: {error.strerror}") from None
    try:
        said, _ = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NotCounted(f"did not end within {timeout:g} s under {words[0]}") from None
    finally:
        children.end(process)
    if process.returncode:
        raise NotCounted(f"ended with code {process.returncode} {said[-200:].decode(errors='replace').strip()}".strip())
    return said


# ------------------------------------------------------------------------------------- a benchmark's count


def of(bench: Bench, calls: int, hash_seed: int) -> float:
    """Instructions of one call of a benchmark's function, or of one run of its command."""
    how = counter()
    if not how.source:
        raise NotCounted(how.why)
    timeout = bench.timeout * SLOWER
    env = bench.env(hash_seed)
    if bench.benchmark.command is not None:
        return how.count(bench.benchmark.command, env, bench.checkout.root, b"", timeout)
    return how.calls(bench.worker(), calls, env, bench.checkout.root, bench.job(), timeout) / calls


def counts(benches: Sequence[Bench], calls: int, seeds: Iterable[int] = SEEDS) -> list[list[float]]:
    """The counts of each bench, one for each hash seed; two are taken at a time, for counts do not mind company."""
    chosen = list(seeds)
    orders = [(bench, seed) for bench in benches for seed in chosen]
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = list(pool.map(lambda order: of(order[0], calls, order[1]), orders))
    if min(found) <= 0:
        raise NotCounted("the calls cost less than what two starts of the process differ by")
    return [found[at : at + len(chosen)] for at in range(0, len(found), len(chosen))]


def compare(base: Bench, head: Bench, calls: int, seeds: Iterable[int] = SEEDS) -> Judgement:
    """Judge head against base by instructions."""
    before, after = counts((base, head), calls, seeds)
    return judge_counts(before, after, base.config.min_change)
