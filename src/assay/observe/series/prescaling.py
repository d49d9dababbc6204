"""Scale ahead of a cycle: a real function on this machine, a real load that comes and goes, workers set by a forecast.

Threads of this process hash buffers (which lets go of the interpreter's lock) for requests that arrive at a steady
rate. Other processes burn processor time on a schedule: that is the cycle, a fraction of a second standing for a day.
More worker threads win a larger share of the processors from the burners, so their number is the resource. First the
latency is recorded with a fixed number; it is taken apart and forecast; then cycles with the fixed number, with a
number that follows the last latency seen, and with the forecast's schedule take turns. All three spend the same in
every cycle, `MEAN_WORKERS` on average, no more and no less: :func:`affordable` holds them to it.
"""

from __future__ import annotations

import hashlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import decompose, forecast
from assay.sim.random import stream
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
PHASES = 12  # of a cycle; the number of workers may change at each
MEAN_WORKERS, MOST_WORKERS = 2, 6
BURNERS = 3
BUFFER = bytes(1_000_000)
Policy = Callable[[float, int, int], int]  # of the last latency over the usual, and the budget and phases left
# A burner works while its part of the cycle lasts. It knows the schedule, nothing of the function beside it.
_BURNER = """
import sys, time
begin, cycle, start, stop, end = map(float, sys.argv[1:])
while (now := time.time()) < end:
    if start <= (now - begin) / cycle % 1.0 < stop:
        until = now + 0.002
        while time.time() < until:
            sum(range(200))
    else:
        time.sleep(0.002)
"""


@dataclass
class Pool:
    """Worker threads that hash for requests; only the first `allowed` of them take any."""

    allowed: int = MEAN_WORKERS
    done: list[tuple[float, float]] = field(default_factory=list)  # arrival, latency
    _requests: queue.SimpleQueue[float | None] = field(default_factory=queue.SimpleQueue)
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _stopping: bool = False

    def work(self, index: int, bytes_each: int) -> None:
        """One worker's life."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._stopping or index < self.allowed)
            if self._stopping:
                return
            try:
                arrival = self._requests.get(timeout=0.02)
            except queue.Empty:
                continue
            if arrival is None:
                return
            hashlib.blake2b(memoryview(BUFFER)[:bytes_each]).digest()
            self.done.append((arrival, time.time() - arrival))

    def scale(self, workers: int) -> None:
        """From now on so many may work."""
        with self._turn:
            self.allowed = workers
            self._turn.notify_all()

    def ask(self) -> None:
        """One request, now."""
        self._requests.put(time.time())

    def stop(self) -> None:
        """Let all workers go home."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()


@contextmanager
def _burning(begin: float, cycle: float, seconds: float) -> Iterator[None]:
    """Burners that overlap in the middle of the cycle: one, two, three, two, one, none."""
    end = begin + seconds
    spans = [(0.25 + 0.08 * k, 0.85 - 0.08 * k) for k in range(BURNERS)]
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", _BURNER, *map(str, (begin, cycle, *span, end))]) for span in spans
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def _working(bytes_each: int) -> Iterator[Pool]:
    pool = Pool()
    threads = [threading.Thread(target=pool.work, args=(i, bytes_each), daemon=True) for i in range(MOST_WORKERS)]
    for thread in threads:
        thread.start()
    try:
        yield pool
    finally:
        pool.stop()
        for thread in threads:
            thread.join(5.0)


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


def compare(cycle: float, learn: int, rounds: int, seed: int) -> list[dict[str, float | str | int]]:
    """Record, take apart, forecast, and then let three ways of scaling take turns; a row for each cycle and way."""
    bytes_each, rate = _calibrated()
    ways = ("fixed", "reactive", "pre-scaled")
    seconds = cycle * (learn + rounds * len(ways)) + 20.0  # planning takes its time; the burners go on meanwhile
    random = stream(seed, "prescaling")
    with _working(bytes_each) as pool:
        begin = time.time() + 0.2
        with _burning(begin, cycle, seconds):
            for k in range(learn):
                _drive(pool, begin + k * cycle, cycle, rate, random, _policy("fixed", ()))
            plan = schedule(_predicted(pool, begin, cycle, learn))
            first = int((time.time() - begin) / cycle) + 1
            rows: list[dict[str, float | str | int]] = []
            for k in range(rounds * len(ways)):
                way = ways[(k + k // len(ways)) % len(ways)]  # the order rotates
                start = begin + (first + k) * cycle
                used = _drive(pool, start, cycle, rate, random, _policy(way, plan))
                rows.append({"method": way, "cycle": k // len(ways), "start": start, "workers": used})
            _drained(pool)
    return [_measured(row, pool.done, cycle) for row in rows]


def _calibrated() -> tuple[int, float]:
    """A buffer that takes about two milliseconds alone, and the rate that keeps six tenths of a processor busy."""
    hashlib.blake2b(BUFFER).digest()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        hashlib.blake2b(BUFFER).digest()
        times.append(time.perf_counter() - start)
    alone = float(np.min(times))
    size = int(min(len(BUFFER), max(4096, len(BUFFER) * 0.002 / alone)))
    return size, 0.6 / (alone * size / len(BUFFER))


def _policy(way: str, plan: Sequence[int]) -> Policy:
    if way == "pre-scaled":
        return lambda last, left, phases: plan[PHASES - phases]
    if way == "fixed":
        return lambda last, left, phases: MEAN_WORKERS
    return reactive


def _drive(
    pool: Pool, start: float, cycle: float, rate: float, random: np.random.Generator, policy: Policy
) -> float:  # fmt: skip
    """One cycle of requests; the number of workers is set at each phase, within the budget. Gives the mean number."""
    used: list[int] = []
    time.sleep(max(0.0, start - time.time()))
    usual = float(np.median([latency for _, latency in pool.done[-400:]])) if pool.done else 1.0
    for phase in range(PHASES):
        seen = len(pool.done)
        recent = [latency for _, latency in pool.done[max(0, seen - 10) :]]
        last = float(np.mean(recent)) / usual if recent else 1.0
        left, phases = MEAN_WORKERS * PHASES - sum(used), PHASES - phase
        used.append(affordable(policy(last, left, phases), left, phases))
        pool.scale(used[-1])
        until = start + cycle * (phase + 1) / PHASES
        while (now := time.time()) < until:
            time.sleep(min(until - now, float(random.exponential(1 / rate))))
            pool.ask()
    return float(np.mean(used))


def _predicted(pool: Pool, begin: float, cycle: float, learn: int) -> Floats:
    """The latency of each phase of the next cycle, forecast from the recorded ones. Seconds stand for days here."""
    step = cycle / PHASES
    values = np.full(learn * PHASES, np.nan)
    done = list(pool.done)
    bins = np.array([int((arrival - begin) / step) for arrival, _ in done])
    latency = np.array([latency for _, latency in done])
    for k in range(len(values)):
        if (bins == k).any():
            values[k] = float(latency[bins == k].mean())
    made = decompose.automatic(Grid("latency", 0.0, step, values))
    return forecast.forecast(made, PHASES).median


def _drained(pool: Pool, patience: float = 5.0) -> None:
    """Wait until everything asked for is answered."""
    pool.scale(MOST_WORKERS)
    until = time.time() + patience
    while not pool._requests.empty() and time.time() < until:
        time.sleep(0.01)
    time.sleep(0.05)


def _measured(
    row: dict[str, float | str | int], done: Sequence[tuple[float, float]], cycle: float
) -> dict[str, float | str | int]:
    """The spread of the latency over the phases of a cycle, and its worst."""
    start = float(row["start"])
    inside = [(arrival - start, latency) for arrival, latency in done if start <= arrival < start + cycle]
    bins = np.array([int(when / cycle * PHASES) for when, _ in inside])
    latency = np.array([latency for _, latency in inside])
    if not inside:
        raise RuntimeError("no request was answered in a whole cycle: the machine is too busy to measure on")
    means = np.array([latency[bins == k].mean() for k in range(PHASES) if (bins == k).any()])
    kept: dict[str, float | str | int] = {name: row[name] for name in ("method", "cycle", "workers")}
    return kept | {
        "latency_cv": float(means.std() / means.mean()),
        "latency_max": float(latency.max()),
        "latency_mean": float(latency.mean()),
        "requests": len(latency),
    }
