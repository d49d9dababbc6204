"""Timing as a comparison: the contenders take turns, so that a noisy moment hits all of them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.record.types import NotMeasured


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


def too_busy(noise: str) -> NotMeasured:
    """What a claim raises where the run's own gauge says that the machine did other work: no answer beats a wrong one.

    >>> str(too_busy("noise of 0.3 steps"))
    'the machine was too busy (noise of 0.3 steps): run it again when it is idle'
    """
    return NotMeasured(f"the machine was too busy ({noise}): run it again when it is idle")
