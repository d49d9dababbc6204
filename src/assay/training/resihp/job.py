"""A live job to detect on: torch processes over gloo, each with its own sequences of drawn lengths in every step.

Every rank runs a small attention block forward and backward over its sequences, one by one, and sums gradients with
the others. It times its own passes. The watcher is the parent: it sees times and lengths as steps end, feeds a detector
a rank, and at an alarm asks all ranks for a benchmark, which says who it is. It does not know the fault.

A rank gets slow by being frozen for a share of the time (SIGSTOP and SIGCONT in turns). With `clock="work"` a rank
counts the operations that it has done instead of seconds, and gets slow by doing more of them: the same whatever else
the machine does, for tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.timing import Gauge
from assay.record.types import NotMeasured
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.interface import Floats
from assay.training.resihp.beats import EVERY, IMPORTS, Heartbeats, beating
from assay.training.resihp.detector import Detector, validate

WIDTH, MEDIAN, SPREAD, SHORTEST, LONGEST = 64, 180.0, 0.7, 32, 640
BENCHMARK = 24  # products of a benchmark
PERIOD = 0.006  # seconds from one freezing to the next: a timed step should hold some of them
LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Live:
    """How long: steps to learn from, healthy steps after that, and at most so many with the fault."""

    ranks: int = 2
    warm_up: int = 50
    healthy: int = 40
    faulty: int = 20
    slow: int = 1  # the rank that gets slow
    times: float = 1.2  # as long
    clock: str = "seconds"
    seed: int = 0
    sequences: int = 3  # of a rank in a step

    @property
    def steps(self) -> int:
        """Of the whole job."""
        return self.warm_up + self.healthy + self.faulty


@dataclass
class Seen:
    """What the watcher saw: alarms by rank and step, who was named, and everybody's times."""

    alarms: list[tuple[int, int]] = field(default_factory=list)
    named: dict[int, float] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    seconds: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    lengths: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    losses: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    free: float = float("inf")


def lengths(live: Live) -> Floats:
    """Of every step's sequences, [steps, ranks, sequences]."""
    random = stream(live.seed, "resihp", "live")
    drawn = MEDIAN * np.exp(SPREAD * random.standard_normal((live.steps, live.ranks, live.sequences)))
    return np.clip(np.floor(drawn), SHORTEST, LONGEST)


def run(live: Live, kill: int | None = None, kill_at: int = 0) -> Seen:
    """The job and its watcher; `kill` ends that rank after `kill_at` steps, and the watcher has to notice."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise NotMeasured("a live job needs the extra torch: pip install 'assay[torch]'") from error
    shape = (live.steps, live.ranks)
    arrays: dict[str, NDArray[Any]] = {
        "lengths": lengths(live), "seconds": np.zeros(shape), "losses": np.zeros(shape),
        "done": np.zeros(live.ranks, np.int64), "counts": np.zeros(live.ranks, np.int64),
        "asked": np.zeros(1, np.int64), "bench": np.zeros((2, live.ranks)), "answered": np.zeros(live.ranks, np.int64),
        "leave": np.zeros(1, np.int64), "more": np.ones(live.ranks),
    }  # fmt: skip
    with Gauge() as gauge, scratch() as folder:
        target = partial(_work, folder=str(folder), live=live)
        with Ranks(live.ranks, target, arrays=arrays, imports=IMPORTS) as running:
            seen = _watch(live, running, kill, kill_at)
            running.array("leave")[0] = 1
            seen.seconds, seen.losses = running.array("seconds").copy(), running.array("losses").copy()
            seen.lengths = lengths(live)
            if kill is None:
                running.wait(timeout=900)
    seen.free = gauge.free
    return seen


# ------------------------------------------------------------------------------------------------ the watcher


def _watch(live: Live, running: Ranks, kill: int | None, kill_at: int) -> Seen:
    seen, detectors = Seen(), [Detector(live.warm_up) for _ in range(live.ranks)]
    given, seconds, done = (running.array(name) for name in ("lengths", "seconds", "done"))
    counts, beats = running.array("counts"), Heartbeats(live.ranks)
    at, onset, slowing = 0, live.warm_up + live.healthy, False
    with _duty(live, running) as freeze:
        while at < live.steps:
            alive = (counts > 0).all()
            if alive and (gone := beats.look(counts.tolist())):
                seen.stopped = sorted(gone)
                return seen
            if kill is not None and at >= kill_at:
                running.kill(kill)
                kill = None
            if at >= onset and not slowing:
                slowing = True
                running.array("more")[live.slow] = live.times
                freeze.set()
            while at < int(done.min()):
                _judge(live, running, detectors, seen, given[at], seconds[at], at)
                at += 1
            time.sleep(EVERY / 5)
    if running.array("answered").min() > 1:
        bench = running.array("bench")
        seen.named = validate(bench[1], bench[0])
    return seen


def _judge(
    live: Live, running: Ranks, detectors: list[Detector], seen: Seen, given: Floats, took: Floats, at: int
) -> None:
    for rank, detector in enumerate(detectors):
        before = len(detector.alarms)
        detector.see(float(given[rank].sum()), float((given[rank] ** 2).sum()), float(took[rank]))
        if len(detector.alarms) > before:
            seen.alarms.append((rank, at))
            running.array("asked")[0] = 2


@contextmanager
def _duty(live: Live, running: Ranks) -> Iterator[threading.Event]:
    """Freezes the slow rank for a share of the time once the event is set; by the clock of work nothing is frozen."""
    begin, over = threading.Event(), threading.Event()
    still = PERIOD * (1 - 1 / live.times)

    def cycle() -> None:
        while not begin.wait(0.05):
            if over.is_set():
                return
        while not over.is_set():
            running.stop(live.slow)
            time.sleep(still)
            running.go_on(live.slow)
            time.sleep(PERIOD - still)

    thread = threading.Thread(target=cycle, daemon=True)
    if live.clock == "seconds":
        thread.start()
    try:
        yield begin
    finally:
        over.set()
        if live.clock == "seconds":
            thread.join()
            running.go_on(live.slow)


# ------------------------------------------------------------------------------------------------ a rank


def _work(rank: Rank, folder: str, live: Live) -> None:
    from assay.sim.gloo_ranks import joined

    over = threading.Event()
    leave = rank.array("leave")
    with joined(rank, folder, leave=False) as dist:
        thread = beating(rank.array("counts"), rank.index, over)
        with suppress(RuntimeError):  # a peer is gone: live on until the watcher has seen who
            _train(rank, dist, live)
        while not leave[0]:
            time.sleep(EVERY)
    over.set()
    thread.join()


def _train(rank: Rank, dist: Any, live: Live) -> None:
    import torch

    torch.manual_seed(live.seed)
    block = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(4)]
    weights = [each.requires_grad_() for each in block]
    given, asked, more = rank.array("lengths"), rank.array("asked"), rank.array("more")
    words = torch.randn(LONGEST, WIDTH, generator=torch.Generator().manual_seed(live.seed + 1))
    for _ in range(3):  # libraries and allocators warm up on nobody's time
        _passes(weights, words, given[0, rank.index], 1.0)
    for step in range(live.steps):
        began, mine = time.perf_counter(), given[step, rank.index]
        loss, work = _passes(weights, words, mine, more[rank.index] if live.clock == "work" else 1.0)
        took = time.perf_counter() - began
        rank.array("seconds")[step, rank.index] = work if live.clock == "work" else took
        rank.array("losses")[step, rank.index] = loss
        wanted = torch.tensor([1.0 if step + 1 == live.warm_up else float(asked[0])])
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)  # all ranks or none
        for weight in weights:
            dist.all_reduce(weight.grad)
            with torch.no_grad():
                weight -= LEARNING_RATE / live.ranks * weight.grad
            weight.grad = None
        if int(wanted) > int(rank.array("answered")[rank.index]):
            _benchmark(rank, live, int(wanted), more[rank.index])
        rank.array("done")[rank.index] = step + 1


def _passes(weights: list[Any], words: Any, mine: Floats, times: float) -> tuple[float, float]:
    """Forward and backward over every sequence; the loss, and operations done in millions, those in excess included."""
    query, key, value, out = weights
    total, work = 0.0, 0.0
    for length in mine.astype(int).tolist():
        rows = words[:length]
        mixed = ((rows @ query) @ (rows @ key).T / WIDTH**0.5).softmax(-1) @ (rows @ value)
        loss = ((mixed @ out - rows) ** 2).mean()
        loss.backward()
        total += float(loss.detach())
        work += 6 * (4 * length * WIDTH**2 + 2 * length**2 * WIDTH) / 1e6
    for weight in weights:
        weight.grad /= len(mine)
    return total / len(mine), work + _more(work * (times - 1))


def _more(millions: float) -> float:
    """So many operations for nothing."""
    import torch

    square, done = torch.ones(WIDTH, WIDTH), 0.0
    while done < millions:
        square = square @ square / WIDTH
        done += 2 * WIDTH**3 / 1e6
    return min(done, max(millions, 0.0))


def _benchmark(rank: Rank, live: Live, number: int, times: float) -> None:
    """A fixed amount of work, timed: the best of three."""
    import torch

    rows, best = torch.ones(LONGEST, WIDTH), float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(BENCHMARK):
            _ = (rows @ rows.T).softmax(-1) @ rows
        took = time.perf_counter() - began
        work = BENCHMARK * 4 * LONGEST**2 * WIDTH / 1e6
        best = min(best, work + _more(work * (times - 1)) if live.clock == "work" else took)
    rank.array("bench")[number - 1, rank.index] = best
    rank.array("answered")[rank.index] = number
