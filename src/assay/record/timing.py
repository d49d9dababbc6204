"""Timing as a comparison: the contenders take turns, so that a noisy moment hits all of them alike."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.record.types import NotMeasured

if TYPE_CHECKING:
    import polars as pl

ENOUGH = 0.8  # of the processors that something wants while it is timed by the clock


def interleave(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each contender in each round; every round runs all of them once, in a rotating order.

    `clock=time.process_time` leaves out the time in which others compute, for what only computes.

    The caller warms up (compiles) beforehand if warm times are wanted. The garbage collector is off meanwhile.

    >>> seconds = interleave({"short": lambda: sum(range(10)), "long": lambda: sum(range(10**5))}, rounds=5)
    >>> sorted(seconds), len(seconds["short"])
    (['long', 'short'], 5)
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect(1)  # the old generation is the process's own, and takes longer than many a contender
    gc.disable()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = clock()
                contenders[name]()
                seconds[name].append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return seconds


def median(seconds: list[float]) -> float:
    """The middle of the rounds: what a run takes when nothing else disturbs it much.

    >>> median([3.0, 1.0, 2.0])
    2.0
    """
    return float(np.median(seconds))


def granted(seconds: float = 0.02) -> float:
    """The share of a processor that this process gets if it wants all of one: near 1 on an idle machine.

    >>> 0.0 < granted(0.005) <= 1.01
    True
    """
    wall, own = time.perf_counter(), time.thread_time()
    while (passed := time.perf_counter() - wall) < seconds:
        pass
    return (time.thread_time() - own) / passed


class Gauge:
    """How many processors others left free while something was timed, as the system counts; infinite where it does not.

    What descends from this process is its own work, whoever started it: a pool's workers, a fork server and those it
    forked, alive or ended. Who is nice yields to who is not: to a process that is not nice itself, what nice ones
    compute is as good as free.

    >>> with Gauge() as gauge:
    ...     _ = sum(range(1000))
    >>> gauge.free >= 0.0
    True
    """

    free = math.inf

    def __enter__(self) -> Gauge:
        self._began = _processors()
        return self

    def __exit__(self, *error: object) -> None:
        ended = _processors()
        if self._began is None or ended is None:
            return
        idle, busy, own = (after - before for before, after in zip(self._began, ended, strict=True))
        if idle + busy > 0:
            others = max(busy - own, 0.0) / (idle + busy)
            self.free = (os.cpu_count() or 1) * (1.0 - others)


def _processors(stat: Path = Path("/proc/stat")) -> tuple[float, float, float] | None:
    """Seconds that all processors were idle, that they were busy, and what of that was this process's tree's."""
    try:
        ticks = [int(word) for word in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle, second = sum(ticks[3:5]) + (ticks[1] if os.nice(0) <= 0 else 0), os.sysconf("SC_CLK_TCK")
    return idle / second, (sum(ticks) - idle) / second, tree_seconds(os.getpid())


def tree_seconds(pid: int, proc: Path = Path("/proc")) -> float:
    """Processor seconds of a process, of those it waited for, and of all that live and descend from it.

    The system hands what a process spent to its parent where that waits for it, and a fork server waits for all that it
    forks: nothing is lost when one ends, and nobody has to tell. Zero where the system does not say.

    >>> tree_seconds(os.getpid()) >= 0.0
    True
    """
    spent: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*"):
        try:
            words = (path / "stat").read_bytes().rpartition(b")")[2].split()  # the name before may hold anything
            parent, spent[int(path.name)] = int(words[1]), sum(map(int, words[11:15]))
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        children.setdefault(parent, []).append(int(path.name))
    ticks, found = 0, [pid]
    while found:
        ticks += spent.get(one := found.pop(), 0)
        found += children.get(one, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def calm(table: pl.DataFrame, cores: float = 2.0) -> None:
    """Raise where others left fewer processors to what was timed than it wants: rows have a gauge's `free_cores`.

    >>> import polars as pl
    >>> calm(pl.DataFrame({"free_cores": [1.9, 2.0]}))
    """
    free = table["free_cores"].drop_nulls().mean() if "free_cores" in table.columns else None
    wanted = min(cores, os.cpu_count() or 1)
    if free is not None and float(free) < ENOUGH * wanted:  # type: ignore[arg-type]
        raise too_busy(f"others left {float(free):.1f} processors of {wanted:g}")  # type: ignore[arg-type]


def too_busy(noise: str) -> NotMeasured:
    """What a claim raises where the run's own gauge says that the machine did other work: no answer beats a wrong one.

    >>> str(too_busy("noise of 0.3 steps"))
    'the machine was too busy (noise of 0.3 steps): run it again when it is idle'
    """
    return NotMeasured(f"the machine was too busy ({noise}): run it again when it is idle")
