"""A live job to detect on: torch processes over gloo, each with its own sequences of drawn lengths in every step.

Every rank runs a small attention block forward and backward over its sequences, one by one, and sums gradients with
the others. It times its own passes. The watcher is the parent: it sees times and lengths as steps end, feeds a detector
a rank, and at an alarm asks all ranks for a benchmark, which says who it is. It does not know the fault. A job may have
several episodes, in each of which detectors learn anew and another rank gets slow.

A rank gets slow by being frozen for a share of the time (SIGSTOP and SIGCONT in turns). Passes are paced: after its
products a rank stays on the processor until it has had as much processor time as the operations take on a device of
constant speed. Processors that are shared with others' machines lose a quarter of theirs from one moment to the next,
which accelerators do not, and which is as large as what is to be found. Freezing is not hidden by it: who is frozen
gets no processor time. With `clock="work"` a rank counts the operations that it has done instead of seconds, and gets
slow by doing more of them: the same whatever else the machine does, for tests.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.timing import Gauge
from assay.record.types import NotMeasured
from assay.sim import turns
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.interface import Floats
from assay.training.resihp.beats import EVERY, IMPORTS, Heartbeats, beating
from assay.training.resihp.detector import Detector, fit, validate

WIDTH, MEDIAN, SPREAD, SHORTEST, LONGEST = 64, 180.0, 0.7, 32, 640
BENCHMARK = 2  # products of a benchmark
PERIOD = 0.006  # seconds from one freezing to the next: a timed step should hold some of them
PACE = 2.4  # times as long as passes take on this machine when nothing disturbs them
LOOKS = 100  # at a process that is being stopped, at most: two milliseconds
LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Live:
    """How long an episode is: steps to learn from, healthy steps after that, and so many with the fault."""

    ranks: int = 2
    warm_up: int = 50
    healthy: int = 40
    faulty: int = 20
    slow: int = 1  # the rank that gets slow; the next one in the next episode
    times: float = 1.2  # as long
    clock: str = "seconds"
    seed: int = 0
    sequences: int = 3  # of a rank in a step
    episodes: int = 1

    @property
    def episode(self) -> int:
        """Steps of one."""
        return self.warm_up + self.healthy + self.faulty

    @property
    def onset(self) -> int:
        """The first step of an episode with the fault."""
        return self.warm_up + self.healthy

    @property
    def steps(self) -> int:
        """Of the whole job."""
        return self.episodes * self.episode

    def victim(self, episode: int) -> int:
        """Who gets slow in it."""
        return (self.slow + episode) % self.ranks


@dataclass
class Seen:
    """What the watcher saw: alarms by rank and step, who was named in each episode, and everybody's times.

    `planted` is how many times as long the frozen rank really had to take, and `scatter` that of its healthy steps, as
    its detector learned it; both by episode.
    """

    alarms: list[tuple[int, int]] = field(default_factory=list)
    named: list[dict[int, float]] = field(default_factory=list)
    planted: list[float] = field(default_factory=list)
    scatter: list[float] = field(default_factory=list)
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
        "asked": np.zeros(1, np.int64), "answered": np.zeros(live.ranks, np.int64), "leave": np.zeros(1, np.int64),
        "bench": np.zeros((2 * live.episodes, live.ranks)), "more": np.ones(live.ranks),
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
    at, faults = 0, 0
    fit([1.0] * 4, [1.0, 2.0, 3.0, 4.0], [1.0] * 4)  # what it loads, it loads now
    with freezer(live, running) as fault:
        while at < live.steps:
            alive = (counts > 0).all()
            if alive and (gone := beats.look(counts.tolist())):
                seen.stopped = sorted(gone)
                return seen
            if kill is not None and at >= kill_at:
                running.kill(kill)
                kill = None
            if at % live.episode >= live.onset and faults == at // live.episode:
                fault.begin(live.victim(faults))
                faults += 1
            while at < int(done.min()):
                _judge(live, running, detectors, seen, given[at], seconds[at], at)
                at += 1
                if at % live.episode == 0:
                    seen.planted.append(fault.end())
                    seen.scatter.append(detectors[live.victim(at // live.episode - 1)].scatter)
                    detectors = [Detector(live.warm_up) for _ in range(live.ranks)]
            time.sleep(EVERY / 5)
    bench = running.array("bench")
    asked = zip(bench[::2], bench[1::2], strict=True)
    seen.named = [validate(now, healthy) if now.all() else {} for healthy, now in asked]
    return seen


def _judge(
    live: Live, running: Ranks, detectors: list[Detector], seen: Seen, given: Floats, took: Floats, at: int
) -> None:
    for rank, detector in enumerate(detectors):
        before = len(detector.alarms)
        detector.see(float(given[rank].sum()), float((given[rank] ** 2).sum()), float(took[rank]))
        if len(detector.alarms) > before:
            seen.alarms.append((rank, at))
            running.array("asked")[0] = 2 * (at // live.episode) + 2


class Fault:
    """Makes a rank slow from `begin` to `end`, and keeps the books: what it froze too long it does not freeze next."""

    def __init__(self, live: Live, running: Ranks) -> None:
        self.live, self.running = live, running
        self.over, self._begun = threading.Event(), threading.Event()
        self._victim = 0
        self._ran = self._frozen = 0.0

    def begin(self, rank: int) -> None:
        """It gets slow."""
        self._ran = self._frozen = 0.0
        self.running.array("more")[rank] = self.live.times
        self._victim = rank
        self._begun.set()

    def end(self) -> float:
        """Nobody is slow from here on; how many times as long it took meanwhile."""
        self._begun.clear()
        self.running.array("more")[:] = 1.0
        return 1 + self._frozen / self._ran if self._ran else self.live.times

    def cycle(self) -> None:
        """In a thread of its own: let the rank run for most of a period, and freeze it for what it is owed."""
        turns.ask()  # ranks have the processors, and a freezing that waits for one comes late
        while not self.over.is_set():
            if not self._begun.wait(EVERY):
                continue
            began, victim = time.perf_counter(), self._victim
            time.sleep(PERIOD / self.live.times)
            if (self.live.times - 1) * (self._ran + time.perf_counter() - began) <= self._frozen:
                self._ran += time.perf_counter() - began
                continue  # it was frozen for too long before
            self.running.stop(victim)
            self._until_still(victim)
            stopped = time.perf_counter()
            self._ran += stopped - began
            time.sleep(max(0.0, (self.live.times - 1) * self._ran - self._frozen))
            self.running.go_on(victim)
            self._frozen += time.perf_counter() - stopped

    def _until_still(self, rank: int) -> None:
        """The system takes a moment to stop a process that computes, in which it is not frozen yet."""
        stat = Path(f"/proc/{self.running.table[rank]['pid']}/stat")
        for _ in range(LOOKS):
            with suppress(OSError):
                if stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] not in "TtZX":
                    continue
            return


@contextmanager
def freezer(live: Live, running: Ranks) -> Iterator[Fault]:
    """What makes ranks slow; by the clock of work nobody is frozen."""
    fault = Fault(live, running)
    thread = threading.Thread(target=fault.cycle, daemon=True)
    if live.clock == "seconds":
        thread.start()
    try:
        yield fault
    finally:
        fault.over.set()
        if live.clock == "seconds":
            thread.join()


# ------------------------------------------------------------------------------------------------ a rank


def _work(rank: Rank, folder: str, live: Live) -> None:
    from assay.sim.gloo_ranks import joined

    over = threading.Event()
    leave = rank.array("leave")
    with joined(rank, folder, leave=False) as dist:
        _on_its_own(rank)
        thread = beating(rank.array("counts"), rank.index, over)  # there, too: on another's it would wait for a turn
        with suppress(RuntimeError):  # a peer is gone: live on until the watcher has seen who
            _train(rank, dist, live)
        while not leave[0]:
            time.sleep(EVERY)
    over.set()
    thread.join()


def _on_its_own(rank: Rank) -> None:
    """A processor for each rank's passes, as each has its device, where there are enough and the system lets us."""
    if hasattr(os, "sched_setaffinity") and len(cores := sorted(os.sched_getaffinity(0))) >= rank.size:
        os.sched_setaffinity(0, {cores[rank.index]})


def _train(rank: Rank, dist: Any, live: Live) -> None:
    import torch

    torch.manual_seed(live.seed)
    block = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(4)]
    weights = [each.requires_grad_() for each in block]
    given, asked, more = rank.array("lengths"), rank.array("asked"), rank.array("more")
    words = torch.randn(LONGEST, WIDTH, generator=torch.Generator().manual_seed(live.seed + 1))
    pace = torch.tensor([_learn_pace(weights, words, given[0, rank.index]) if live.clock == "seconds" else 0.0])
    dist.all_reduce(pace, op=dist.ReduceOp.MAX)  # all devices are alike
    for step in range(live.steps):
        began, mine = time.perf_counter(), given[step, rank.index]
        with paced(float(pace)) as does:
            loss, work = _passes(weights, words, mine, more[rank.index] if live.clock == "work" else 1.0)
            does(work)
        took = time.perf_counter() - began
        rank.array("seconds")[step, rank.index] = work if live.clock == "work" else took
        rank.array("losses")[step, rank.index] = loss
        episode, within = divmod(step, live.episode)
        wanted = torch.tensor([2.0 * episode + 1 if within + 1 == live.warm_up else float(asked[0])])
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)  # all ranks or none
        for weight in weights:
            dist.all_reduce(weight.grad)
            with torch.no_grad():
                weight -= LEARNING_RATE / live.ranks * weight.grad
            weight.grad = None
        if int(wanted) > int(rank.array("answered")[rank.index]):
            _benchmark(rank, live, int(wanted), more[rank.index], float(pace))
        rank.array("done")[rank.index] = step + 1


def _learn_pace(weights: list[Any], words: Any, mine: Floats) -> float:
    """Seconds of processor time for a million operations; libraries and allocators warm up on nobody's time."""
    least = float("inf")
    for _ in range(8):
        began = time.thread_time()
        _, work = _passes(weights, words, mine, 1.0)
        least = min(least, (time.thread_time() - began) / work)
    for weight in weights:
        weight.grad = None
    return PACE * least


@contextmanager
def paced(pace: float) -> Iterator[Callable[[float], None]]:
    """Stays until this thread has had as much processor time as the millions of operations that it tells take."""
    began, told = time.thread_time(), [0.0]
    yield told.append
    until = began + pace * told[-1]
    while time.thread_time() < until:
        pass


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


def _benchmark(rank: Rank, live: Live, number: int, times: float, pace: float) -> None:
    """A fixed amount of work, timed: the best of three."""
    import torch

    rows, best = torch.ones(LONGEST, WIDTH), float("inf")
    work = BENCHMARK * 4 * LONGEST**2 * WIDTH / 1e6
    for _ in range(3):
        began = time.perf_counter()
        with paced(pace) as does:
            for _ in range(BENCHMARK):
                _ = (rows @ rows.T).softmax(-1) @ rows
            does(work)
        took = time.perf_counter() - began
        best = min(best, work + _more(work * (times - 1)) if live.clock == "work" else took)
    rank.array("bench")[number - 1, rank.index] = best
    rank.array("answered")[rank.index] = number
