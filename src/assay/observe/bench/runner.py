"""Run base and head in turns: fresh processes for every pair, many short rounds within it.

A *pair* is two processes, one of each side, with the same hash seed, a coin says which goes first, and on the same
core where the work is of one thread: two cores of one machine differ by more than the changes looked for. They are
warmed up, then take turns for a millisecond each, the order reversed every round. The pair's answer is one number, the
median over its rounds of log(head / base); :mod:`assay.observe.bench.judge` tells why. For a command the process is
the measurement: a pair is one run of each side.

The judge looks after some pairs and stops when it knows. What cannot be run on one of the sides is an error with its
reason, never a pass and never a regression.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assay.observe.bench import instructions
from assay.observe.bench.checkouts import Checkout
from assay.observe.bench.config import Config
from assay.observe.bench.history import Measured
from assay.observe.bench.judge import UNDECIDED, Comparison, Judgement, Rule, judge
from assay.observe.bench.processes import Bench, DidNotRun, Worker, at_fault, run_command, workers
from assay.sim.random import stream

WARM_UP = 2  # rounds of every pair that are not counted
LAUNCHES = 10  # processes of one benchmark of a plain run
Progress = Callable[[int, int], None]


def rule(config: Config) -> Rule:
    """How a comparison of this configuration is judged: its error is shared by all benchmarks."""
    return Rule(config.min_change, config.false_alarms, config.pairs, max(1, len(config.benchmark)))


# ----------------------------------------------------------------------------------------------- pairs


@dataclass
class Pairs:
    """The measurements of a benchmark so far: a log ratio and two medians of seconds a pair."""

    log_ratios: list[float] = field(default_factory=list)
    base: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)
    calls: int = 0  # of one timed piece, found once and kept
    rounds: int = 0  # of a pair, as many as wished or as there is time for; 0: not known yet
    threaded: bool = False  # whether the work uses more than one core; then it is left to the system where it runs

    def add(self, base: list[float], head: list[float]) -> None:
        """Add a pair's rounds."""
        self.log_ratios.append(float(np.median(np.log(head) - np.log(base))))
        self.base.append(float(np.median(base)))
        self.head.append(float(np.median(head)))


def first_and_second(name: str, number: int) -> tuple[int, int]:
    """Which side of a pair is started and asked first: by a coin, which makes the law of equal code symmetric."""
    return (0, 1) if stream(number, "bench", "order", name).random() < 0.5 else (1, 0)


def pair(base: Bench, head: Bench, pairs: Pairs, number: int) -> None:
    """Measure one more pair."""
    sides = (base, head)
    seconds: tuple[list[float], list[float]] = ([], [])
    order = first_and_second(base.name, number)
    if base.benchmark.command is not None:
        for side in order:
            seconds[side].append(_positive(run_command(sides[side], number)[base.metric]))
        pairs.add(*seconds)
        return
    with workers(tuple(sides[side] for side in order), number) as started:
        asked = dict(zip(order, started, strict=True))
        if not pairs.calls:
            with at_fault(base):
                pairs.calls, taken, pairs.threaded = calibrate(asked[0], base.config.sample)
                pairs.rounds = rounds(base.config, taken, 2 * rule(base.config).looks[-1])
        if not pairs.threaded:
            for worker in started:
                worker.pin(number)
        for turn in range(WARM_UP + (pairs.rounds or base.config.rounds)):
            for side in order if turn % 2 == 0 else order[::-1]:
                with at_fault(sides[side]):
                    answer = asked[side].run(pairs.calls)[base.metric]
                if turn >= WARM_UP:
                    seconds[side].append(_positive(answer) / pairs.calls)
    pairs.add(*seconds)


def _positive(seconds: float) -> float:
    return max(seconds, 1e-9)  # a processor clock may stand still for a moment


def calibrate(worker: Worker, sample: float) -> tuple[int, float, bool]:
    """How many calls fill one sample, the seconds these take, and whether they keep more than one core busy."""
    worker.run(1)  # compiles, imports and fills caches: a first call says nothing of those to come
    calls = 1
    while (taken := worker.run(calls))["wall"] < sample and calls < 10**8:
        calls = max(calls + 1, math.ceil(calls * min(10.0, 1.1 * sample / max(taken["wall"], 1e-9))))
    return calls, taken["wall"], taken["cpu"] > 1.2 * taken["wall"] + 0.002  # a processor clock is coarse


def rounds(config: Config, piece: float, processes: int) -> int:
    """As many rounds as wished, or as leave time for so many processes: of slow work rather few rounds than few pairs.

    >>> config = Config(rounds=30, seconds=120.0)
    >>> rounds(config, 0.001, 120), rounds(config, 0.1, 120), rounds(config, 5.0, 120)
    (30, 8, 1)
    """
    return max(1, min(config.rounds, round(config.seconds / processes / piece) - WARM_UP))


# -------------------------------------------------------------------------------------------- comparison


def compare(name: str, config: Config, base: Checkout, head: Checkout, folder: Path, progress: Progress) -> Comparison:
    """Compare one benchmark on two checkouts. `progress` is told the pairs done, and at most to come."""
    begun = time.monotonic()
    benches = [Bench(name, config.benchmark[name], config, checkout, folder) for checkout in (base, head)]
    pairs = Pairs()
    try:
        judgement, note = _decide(benches[0], benches[1], pairs, progress, begun)
    except DidNotRun as error:
        return Comparison(name, None, None, None, error=str(error), seconds=time.monotonic() - begun)
    counted: Judgement | None = None
    wanted = config.instructions == "always" or (config.instructions == "auto" and judgement.decision == UNDECIDED)
    if wanted:
        try:
            counted = instructions.compare(benches[0], benches[1], pairs.calls or 1)
        except instructions.NotCounted as error:
            note = "; ".join(filter(None, (note, f"instructions not counted: {error}")))
    medians = float(np.median(pairs.base)), float(np.median(pairs.head))
    return Comparison(name, *medians, judgement, counted, seconds=time.monotonic() - begun, note=note)


def _decide(base: Bench, head: Bench, pairs: Pairs, progress: Progress, begun: float) -> tuple[Judgement, str]:
    how = rule(base.config)
    judgement = judge([], how)
    for look in how.looks:
        while len(pairs.log_ratios) < look:
            pair(base, head, pairs, len(pairs.log_ratios))
            progress(len(pairs.log_ratios), how.looks[-1])
            if time.monotonic() - begun > base.config.seconds and len(pairs.log_ratios) < look:
                done = f"{len(pairs.log_ratios)} of {look} pairs"
                note = f"stopped after {base.config.seconds:g} s with {done}; a larger 'seconds' allows more"
                return judgement if judgement.pairs else _unjudged(pairs, how), note
        judgement = judge(pairs.log_ratios, how)
        if judgement.decided:
            break
    return judgement, ""


def _unjudged(pairs: Pairs, how: Rule) -> Judgement:
    """Too few pairs for any decision: the centre alone."""
    found = judge(pairs.log_ratios, how)
    return Judgement(UNDECIDED, found.change, -1.0, math.inf, found.pairs, found.resolvable)


# -------------------------------------------------------------------------------------------- plain run


def measure(name: str, config: Config, checkout: Checkout, folder: Path, progress: Progress) -> Measured:
    """Measure one benchmark of one checkout: the median of each of some processes."""
    bench = Bench(name, config.benchmark[name], config, checkout, folder)
    medians: list[float] = []
    calls, turns, threaded = 0, config.rounds, False
    begun = time.monotonic()
    try:
        for number in range(LAUNCHES):
            if bench.benchmark.command is not None:
                medians.append(_positive(run_command(bench, number)[bench.metric]))
            else:
                with workers((bench,), number) as (worker,), at_fault(bench):
                    if not calls:
                        calls, piece, threaded = calibrate(worker, config.sample)
                        turns = rounds(config, piece, LAUNCHES)
                    if not threaded:
                        worker.pin(number)
                    taken = [worker.run(calls)[bench.metric] for _ in range(WARM_UP + turns)]
                    medians.append(_positive(float(np.median(taken[WARM_UP:]))) / calls)
            progress(number + 1, LAUNCHES)
            if time.monotonic() - begun > config.seconds:
                break
    except DidNotRun as error:
        return Measured(metric=bench.metric, error=str(error))
    counted = None
    if config.instructions == "always":
        try:
            counted = instructions.of(bench, calls or 1, 0)
        except instructions.NotCounted:
            counted = None
    return Measured(medians, bench.metric, counted)
