"""Scale ahead of a cycle: a real function on this machine, real contention that comes and goes, workers by a forecast.

A client calls a function again and again. A call hashes a fixed amount (which lets go of the interpreter's lock), cut
into as many pieces as the function has worker threads at the time: more of them win a larger share of the processors,
as more memory does on a serverless platform. Other processes burn processor time on a schedule: that is the cycle, a
second or less standing for a day. First the latency is recorded with a fixed number of workers; it is taken apart and
forecast; then cycles with the fixed number, with a number that follows the last latencies seen, and with the forecast's
schedule take turns. All three spend the same in every cycle, `MEAN_WORKERS` on average, no more and no less:
:func:`affordable` holds them to it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import decompose, forecast
from assay.sim.random import stream
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
PHASES = 12  # of a cycle; the number of workers may change at each
MEAN_WORKERS, MOST_WORKERS = 2, 6
BURNERS = 3
WORK, PAUSE = 0.006, 0.001  # seconds of processor time a call takes, and between two calls on average
BUFFER = bytes(4_000_000)
WAYS = ("fixed", "reactive", "pre-scaled")
Policy = Callable[[float, int, int], int]  # of the last latency over the usual, and the budget and phases left
# A burner works while its part of the cycle lasts. It knows the schedule, nothing of the function beside it.
_BURNER = """
import sys, time
begin, cycle, start, stop, end = map(float, sys.argv[1:])
while (now := time.monotonic()) < end:
    if now >= begin and start <= (now - begin) / cycle % 1.0 < stop:
        until = now + 0.002
        while time.monotonic() < until:
            sum(range(200))
    else:
        time.sleep(0.001)
"""


@dataclass
class Function:
    """What is called: it hashes `size` bytes, cut into one piece for each of its workers."""

    size: int
    threads: ThreadPoolExecutor
    done: list[tuple[float, float]] = field(default_factory=list)  # when it was called, and how long that took

    def call(self, workers: int) -> None:
        """One call, with so many workers."""
        begin = time.monotonic()
        piece = memoryview(BUFFER)[: self.size // workers]
        for _ in self.threads.map(hashlib.blake2b, [piece] * workers):
            pass
        self.done.append((begin, time.monotonic() - begin))


@contextmanager
def _burning(begin: float, cycle: float, seconds: float) -> Iterator[None]:
    """Burners that overlap in the middle of the cycle: one, two, three, two, one, none."""
    spans = [(0.25 + 0.08 * k, 0.85 - 0.08 * k) for k in range(BURNERS)]
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", _BURNER, *map(str, (begin, cycle, *span, begin + seconds))])
        for span in spans
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def schedule(predicted: Floats, mean: int = MEAN_WORKERS, most: int = MOST_WORKERS) -> list[int]:
    """Workers for each phase: one each, then one more where the latency per worker is expected to be worst.

    >>> schedule(np.array([1.0, 1.0, 4.0, 2.0]))
    [1, 1, 4, 2]
    """
    workers = [1] * len(predicted)
    for _ in range((mean - 1) * len(predicted)):
        open_to = [i for i in range(len(predicted)) if workers[i] < most]
        worst = max(open_to, key=lambda i: float(predicted[i]) / workers[i])
        workers[worst] += 1
    return workers


def affordable(wanted: int, left: int, phases: int, most: int = MOST_WORKERS) -> int:
    """The number of workers nearest to the wanted one with which the rest of a cycle can spend just what is left.

    One worker at least must remain for every later phase, and no more than `most` can be used in any.

    >>> [affordable(6, left=8, phases=4), affordable(6, left=4, phases=4), affordable(1, left=12, phases=2)]
    [5, 1, 6]
    """
    return min(max(wanted, 1, left - most * (phases - 1)), most, left - (phases - 1))


def reactive(last: float, left: int, phases: int) -> int:
    """Workers in proportion to the last latency over the usual one, of an even share of what is left of the budget.

    Sharing out what is left, rather than asking for the same again and again, keeps workers for the end of a peak.

    >>> [reactive(1.0, left=24, phases=12), reactive(2.0, left=24, phases=12), reactive(2.0, left=4, phases=4)]
    [2, 4, 2]
    """
    return round(min(last * left / phases, MOST_WORKERS))


def compare(cycle: float, learn: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Record, take apart, forecast, and then let three ways of scaling take turns; a row for each cycle and way."""
    seconds = cycle * (learn + rounds * len(WAYS)) + 20.0  # planning takes its time; the burners go on meanwhile
    random = stream(seed, "prescaling")
    size, begin = _calibrated(), time.monotonic() + 0.2
    with ThreadPoolExecutor(MOST_WORKERS) as threads, _burning(begin, cycle, seconds):
        function = Function(size, threads)
        for k in range(learn):
            _drive(function, begin + k * cycle, cycle, random, _policy("fixed", ()))
        plan = schedule(_predicted(function.done, begin, cycle, learn))
        first = int((time.monotonic() - begin) / cycle) + 1
        rows: list[dict[str, Any]] = []
        for k in range(rounds):
            for way in map(str, random.permutation(WAYS)):  # in an order drawn anew
                start = begin + (first + len(rows)) * cycle
                used = _drive(function, start, cycle, random, _policy(way, plan))
                set_to = {"method": way, "turn": k, "workers": float(np.mean(used)), "most_workers": max(used)}
                rows.append({**set_to, **_measured(start, function.done, cycle)})
    return rows


def _calibrated() -> int:
    """Bytes that take `WORK` seconds of one processor's time to hash."""
    hashlib.blake2b(BUFFER)
    times = []
    for _ in range(5):
        start = time.thread_time()
        hashlib.blake2b(BUFFER)
        times.append(time.thread_time() - start)
    return int(min(len(BUFFER), max(4096, len(BUFFER) * WORK / min(times))))


def _policy(way: str, plan: Sequence[int]) -> Policy:
    if way == "pre-scaled":
        return lambda last, left, phases: plan[PHASES - phases]
    if way == "fixed":
        return lambda last, left, phases: MEAN_WORKERS
    return reactive


def _drive(
    function: Function, start: float, cycle: float, random: np.random.Generator, policy: Policy
) -> list[int]:  # fmt: skip
    """One cycle of calls; the number of workers is set at each phase, within the budget. Gives the numbers."""
    used: list[int] = []
    time.sleep(max(0.0, start - time.monotonic()))
    usual = float(np.median([latency for _, latency in function.done[-400:]])) if function.done else 1.0
    for phase in range(PHASES):
        recent = [latency for _, latency in function.done[-3:]]
        last = float(np.mean(recent)) / usual if recent else 1.0
        left, phases = MEAN_WORKERS * PHASES - sum(used), PHASES - phase
        used.append(affordable(policy(last, left, phases), left, phases))
        until = start + cycle * (phase + 1) / PHASES
        while (now := time.monotonic()) < until:
            function.call(used[-1])
            time.sleep(max(0.0, min(until - now, float(random.exponential(PAUSE)))))
    return used


def _predicted(done: Sequence[tuple[float, float]], begin: float, cycle: float, learn: int) -> Floats:
    """The latency of each phase of the next cycle, forecast from the recorded ones. Seconds stand for days here."""
    step = cycle / PHASES
    values = _phase_means(done, begin, step, learn * PHASES)
    made = decompose.automatic(Grid("latency", 0.0, step, values))
    return forecast.forecast(made, PHASES).median


def _phase_means(done: Sequence[tuple[float, float]], begin: float, step: float, phases: int) -> Floats:
    """The mean latency of the calls of each phase; NaN where there was none."""
    called = np.array([(when - begin) / step for when, _ in done])
    latency = np.array([took for _, took in done])
    inside = [latency[(called >= k) & (called < k + 1)] for k in range(phases)]
    return np.array([part.mean() if len(part) else np.nan for part in inside])


def _measured(start: float, done: Sequence[tuple[float, float]], cycle: float) -> dict[str, float]:
    """The spread of the latency over the phases of a cycle, and its worst."""
    latency = [took for when, took in done if start <= when < start + cycle]
    if not latency:
        raise RuntimeError("no call was answered in a whole cycle: the machine is too busy to measure on")
    means = _phase_means(done, start, cycle / PHASES, PHASES)
    return {
        "latency_cv": float(np.nanstd(means) / np.nanmean(means)),
        "latency_max": max(latency),
        "latency_mean": float(np.mean(latency)),
        "requests": len(latency),
    }
