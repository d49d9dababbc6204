"""What a rank does: run a program under a directive, chunk by chunk, and say how long it took and how far off it is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from assay.sim import gloo_ranks, own_code, turns
from assay.sim.ranks import Rank
from assay.training.cuco.program import RANKS, Array, Lowered, Program, Stage, lower
from assay.training.cuco.wire import Card
from assay.training.engine.shaped import Link

LONGEST = 0.05  # seconds that a moment of waiting counts: whoever was frozen meanwhile did not wait
MEET = 300.0  # seconds that ranks wait for each other between runs
MOMENT = 1e-3  # seconds between two looks of a rank that dawdles
SWITCH = 1e-4  # seconds after which a thread lets another run: a card must not wait the usual 5 ms for its rank


@dataclass(frozen=True)
class Shot:
    """One run: on which inputs, checked or not, and who dawdles: it reads late, and what it sends comes late.

    Whoever overwrites what it has not read yet, or reads before it has sent, is seen to.
    """

    seed: int
    check: bool = False
    slow: int | None = None
    dawdle: float = 0.0


@dataclass(frozen=True)
class Job:
    """A directive and how often to run it."""

    directive: dict[str, Any]
    shots: tuple[Shot, ...]


class Stalled(RuntimeError):  # noqa: N818 - read as a sentence
    """A rank waited in vain."""


class Runner:
    """One run of a program on one rank."""

    def __init__(self, program: Program, me: int, low: Lowered, data: dict[str, Array], card: Card, patience: float):
        self.program, self.low, self.data, self.card, self.patience = program, low, data, card, patience
        self.stages = [stage for stage in program.stages if me in stage.ranks]
        self.wires = {stage.name for stage in program.stages if stage.wire}
        self.next = {stage.name: 0 for stage in program.stages}
        self.dawdle, self._failed = 0.0, ""
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._issuer = threading.Thread(target=self._issues, daemon=True) if low.issuer == "thread" else None

    def run(self) -> None:
        """All stages of this rank."""
        if self._issuer:
            self._issuer.start()
        (self._after if self.low.placement == "after" else self._inside)()
        self._jobs.put(None)
        if self._issuer:
            self._issuer.join()
        if self._failed:
            raise Stalled(self._failed)

    def _after(self) -> None:
        for stage in self.stages:
            while self.next[stage.name] < self.low.chunks:
                self._until(lambda stage=stage: self._ready(stage))  # type: ignore[misc]
                self._step(stage)

    def _inside(self) -> None:
        """Whatever is ready; transfers first, since handing over takes no time."""
        computes = [stage for stage in self.stages if not stage.wire]
        sequence = [stage for stage in self.stages if stage.wire]
        sequence += computes[::-1] if self.low.order == "deep" else computes
        while left := [stage for stage in sequence if self.next[stage.name] < self.low.chunks]:
            ready: list[Stage] = []

            def looked(left: list[Stage] = left, ready: list[Stage] = ready) -> bool:
                ready[:] = [stage for stage in left if self._ready(stage)][:1]
                return bool(ready)

            self._until(looked)
            self._step(ready[0])

    def _ready(self, stage: Stage) -> bool:
        chunk = self.next[stage.name]
        for first in self.low.feeds[stage.name]:
            if first in self.wires:
                if self.low.scope != "none" and not self.card.arrived(first, chunk):
                    return False
            elif self.next[first] <= chunk:
                return False
        alone = (
            self.low.issuer == "thread" and self.low.scope != "all"
        )  # the issuer waits for room, and we do not for it
        return not stage.wire or alone or self._room(stage, chunk)

    def _room(self, stage: Stage, chunk: int) -> bool:
        return self.low.scope in ("arrival", "none") or self.card.room(stage.name, chunk)

    def _step(self, stage: Stage) -> None:
        chunk = self.next[stage.name]
        tiles = slice(chunk * self.low.chunk, (chunk + 1) * self.low.chunk)
        if stage.wire:
            if self._issuer:
                self._jobs.put((stage, chunk, tiles))
            else:
                self._issue(stage, chunk, tiles)
            if self.low.scope == "all":
                self._until(lambda: self.card.delivered(stage.name, chunk))
        else:
            self._compute(stage, chunk, tiles)
        self.next[stage.name] += 1

    def _compute(self, stage: Stage, chunk: int, tiles: slice) -> None:
        came = [first for first in self.low.feeds[stage.name] if first in self.wires]
        if came and chunk == 0 and self.dawdle:
            self._dawdles(came)
        got = self.card.slot(came[0], chunk) if came else None
        getattr(self.program, stage.name)(self.data, tiles, got)
        for wire in came:
            self.card.read(wire)

    def _dawdles(self, came: list[str]) -> None:
        """Until all that nobody waits to send has come, and lies over what was not read; else for the given time."""
        until, last = time.perf_counter() + self.dawdle, self.low.chunks - 1
        while time.perf_counter() < until and not all(self.card.arrived(wire, last) for wire in came):
            time.sleep(MOMENT)

    def _issue(self, stage: Stage, chunk: int, tiles: slice) -> None:
        payload = self.data[stage.reads[0]][tiles]
        step = self.low.chunk if self.low.grain == "chunk" else 1
        for part in range(0, self.low.chunk, step):
            self.card.put(stage.name, chunk, part, payload[part : part + step])

    def _issues(self) -> None:
        """The issuer's thread."""
        try:
            while (job := self._jobs.get()) is not None:
                stage, chunk, tiles = job
                self._until(lambda stage=stage, chunk=chunk: self._room(stage, chunk))  # type: ignore[misc]
                self._issue(stage, chunk, tiles)
        except Exception as error:
            self._failed = str(error)  # for the rank's own thread to find

    def _until(self, test: Callable[[], bool]) -> None:
        if test():
            return
        waited, last = 0.0, time.monotonic()
        while not test():
            self.card.pause()
            last, before = time.monotonic(), last
            waited += min(last - before, LONGEST)
            if waited > self.patience or self._failed:
                raise Stalled(self._failed or f"nothing came in {self.patience:g} s")


def serve(
    rank: Rank, folder: str, source: str, sizes: dict[str, Any], link: Link, patience: float, ends: Sequence[Any]
) -> None:
    """Do jobs until there are no more; what a program raises is an answer."""
    end = ends[rank.index]
    sys.setswitchinterval(SWITCH)
    turns.ask()  # for gloo's threads, which begin now: a real card does not wait until the processor is free
    with gloo_ranks.joined(rank, folder, leave=False) as dist:
        turns.ask(turns.USUAL)
        program: Program = own_code.load(source)(**sizes)
        known: dict[int, tuple[list[dict[str, Array]], Array]] = {}
        while (job := end.recv()) is not None:
            low = lower(program, job.directive)
            try:
                shots = [shoot(rank, dist, program, low, link, shot, known, patience) for shot in job.shots]
                end.send(shots)
            except Exception as error:
                end.send(f"{type(error).__name__}: {error}")


def shoot(
    rank: Rank, dist: Any, program: Program, low: Lowered, link: Link, shot: Shot, known: dict[int, Any],
    patience: float,
) -> tuple[float, float, float]:  # fmt: skip
    """When the run began and ended, and how far the result is off the reference; not a number where not checked."""
    if shot.seed not in known:
        inputs = [program.inputs(shot.seed, who) for who in range(RANKS)]
        known[shot.seed] = inputs[rank.index], program.reference(inputs, rank.index)
    mine, right = known[shot.seed]
    data = {name: value.copy() for name, value in mine.items()}
    wires = [stage for stage in program.stages if stage.wire]
    card = Card(dist, rank, link, low, wires, {wire.name: data[wire.reads[0]].shape[1:] for wire in wires})
    runner = Runner(program, rank.index, low, data, card, patience)
    if shot.slow == rank.index:
        runner.dawdle, card.late = shot.dawdle, shot.dawdle / 2
    rank.meet(MEET)
    card.begin()
    began = time.perf_counter()
    runner.run()
    ended = time.perf_counter()
    off = float(error_of(program.result(data, rank.index), right)) if shot.check else float("nan")
    card.end()
    rank.meet(MEET)  # counters and windows are the next run's from here on
    return began, ended, off


def error_of(found: Array, right: Array) -> float:
    """The largest difference, in parts of the largest number that is right; infinite where something is none.

    >>> error_of(np.array([1.0, np.nan]), np.array([1.0, 2.0])), error_of(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    (inf, 0.0)
    """
    if found.shape != right.shape:
        return float("inf")
    apart = np.subtract(found, right, dtype=np.result_type(found, np.float32), casting="same_kind")
    off = float(np.abs(apart, out=apart).max(initial=0.0)) / max(float(right.max()), -float(right.min()), 1e-30)
    return off if np.isfinite(off) else float("inf")
