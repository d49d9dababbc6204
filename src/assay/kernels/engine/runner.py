"""Runs implementations of a kernel beside each other: right first, then how fast, then how near to what is possible.

The oracle runs once; every implementation is prepared (timed apart), run once unmeasured and checked; then all take
turns; the last results are checked again. A speed-up is told with its interval over the rounds, and not told at all
where that holds 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.kernels.engine import cuda
from assay.kernels.interface import Implementation, Kernel, Machine, Problem, Record
from assay.record import intervals
from assay.record.errors import BadInput
from assay.record.timing import interleave, median, too_busy
from assay.record.types import Estimate

QUIET = 0.8  # of a core that a process must get for times of several threads to mean anything


@dataclass(frozen=True)
class Outcome:
    """What the implementations did on one problem, fastest first, and why others did not run."""

    kernel: str
    records: tuple[Record, ...]
    skipped: dict[str, str]

    def __getitem__(self, name: str) -> Record:
        return next(record for record in self.records if record.implementation == name)


def measure(
    kernel: Kernel,
    problem: Problem,
    implementations: Sequence[Implementation],
    machine: Machine,
    rounds: int = 7,
    oracle: Any = None,
) -> Outcome:
    """Every implementation that can run here on one problem, interleaved.

    `oracle` is the right answer where the caller has it already.

    >>> from assay.kernels.interface import Cost, Match
    >>> def same(problem, out, right):
    ...     return Match(bool(out == right))
    >>> add = Kernel("sum", lambda p: float(sum(p)), same, lambda p: Cost(len(p), p.nbytes))
    >>> ways = [Implementation("numpy", "numpy", lambda p: p, np.sum)]
    >>> ways.append(Implementation("never", "cuda", id, id, lambda: "no GPU"))
    >>> here = Machine("m", "", {1: 1e10}, {"f32": 1e11}, {1: 1e9}, 1e-6)
    >>> outcome = measure(add, np.ones(1000), ways, here, rounds=3)
    >>> outcome["numpy"].match.right, outcome.skipped
    (True, {'never': 'no GPU'})
    """
    skipped = {one.name: why for one in implementations if (why := _missing(one))}
    able = [one for one in implementations if one.name not in skipped]
    if not able:
        raise BadInput(f"no implementation of {kernel.name} can run here: {'; '.join(map(': '.join, skipped.items()))}")
    right = kernel.oracle(problem) if oracle is None else oracle
    prepare, states, last, matches = {}, {}, {}, {}
    for one in able:
        begin = time.perf_counter()
        states[one.name] = one.prepare(problem)
        prepare[one.name] = time.perf_counter() - begin
        matches[one.name] = kernel.check(problem, one.run(states[one.name]), right)

    def turn(one: Implementation) -> Callable[[], None]:
        def go() -> None:
            last[one.name] = one.run(states[one.name])

        return go

    seconds = interleave({one.name: turn(one) for one in able}, rounds)
    cost = kernel.cost(problem)
    records = []
    for one in able:
        again = kernel.check(problem, last[one.name], right)
        match = again if matches[one.name].right else matches[one.name]
        limit, by = machine.limit(cost, one.threads)
        low, high = np.percentile(seconds[one.name], [10, 90])
        records.append(
            Record(one.name, one.backend, one.threads, prepare[one.name], median(seconds[one.name]), float(low),
                   float(high), tuple(seconds[one.name]), limit, by, match)
        )  # fmt: skip
    return Outcome(kernel.name, tuple(sorted(records, key=lambda record: record.run)), skipped)


def _missing(one: Implementation) -> str:
    """Why an implementation cannot run here: what it says itself, or that there is no GPU for CUDA."""
    return one.missing() or (cuda.missing() if one.backend == "cuda" else "")


def speedup(fast: Record, slow: Record) -> Estimate | None:
    """How many times as long `slow` takes as `fast`, over the rounds; None where the rounds leave open who is faster.

    >>> from assay.kernels.interface import Match
    >>> match = Match(True)
    >>> a, b = (Record(n, "numba", 1, 0.0, r[0], r[0], r[0], r, 1e-3, "memory", match) for n, r in
    ...         (("a", (1.0, 1.1, 1.0)), ("b", (2.0, 2.1, 2.2))))
    >>> speedup(a, b).value > 1.9, speedup(a, a)
    (True, None)
    """
    found = intervals.ratio(slow.rounds, fast.rounds)
    return None if found.low <= 1 <= found.high else found


def quiet_enough(granted: Sequence[float]) -> None:
    """Complain where this process did not get the cores it measured on: threads then wait for whoever has them.

    >>> quiet_enough([0.98, 1.0])
    """
    if (least := float(np.median(granted))) < QUIET:
        raise too_busy(f"{least:.0%} of a core".replace("%", " %"))


def break_even(ours: Record, peer: Record) -> float:
    """From how many runs on our preparation has paid: 1 at once, infinity never.

    >>> from assay.kernels.interface import Match
    >>> times = (("a", 9.0, 1.0), ("b", 0.0, 2.0))
    >>> a, b = (Record(n, "numba", 1, p, r, r, r, (r,), 1e-3, "memory", Match(True)) for n, p, r in times)
    >>> break_even(a, b), break_even(b, a)
    (9.0, 1.0)
    """
    if ours.prepare + ours.run <= peer.prepare + peer.run:
        return 1.0
    gain = peer.run - ours.run
    return float(math.ceil((ours.prepare - peer.prepare) / gain)) if gain > 0 else math.inf


def amortised(record: Record, runs: Sequence[int]) -> list[float]:
    """Seconds of the preparation and so many runs.

    >>> from assay.kernels.interface import Match
    >>> amortised(Record("a", "numba", 1, 9.0, 1.0, 1.0, 1.0, (1.0,), 1e-3, "memory", Match(True)), [1, 10])
    [10.0, 19.0]
    """
    return [record.prepare + count * record.run for count in runs]


def choose(
    problem: Problem, implementations: Sequence[Implementation], machine: Machine, repeated: bool = False
) -> tuple[Implementation, str]:
    """The implementation to use, and why: by what it is predicted to take; the best three are run if it is repeated.

    >>> here = Machine("m", "", {1: 1e10}, {"f32": 1e11}, {1: 1e9}, 1e-6)
    >>> taking = {"slow": lambda p, m: 2.0, "fast": lambda p, m: 1.0}
    >>> ways = [Implementation(name, "numba", id, id, predict=seconds) for name, seconds in taking.items()]
    >>> chosen, why = choose(None, ways, here)
    >>> chosen.name, why
    ('fast', 'fast is predicted to take 1 s, slow 2 s')
    """
    able = [one for one in implementations if not one.missing()]
    if not able:
        raise BadInput("; ".join(f"{one.name}: {one.missing()}" for one in implementations))
    guesses = {one.name: one.predict(problem, machine) if one.predict else math.inf for one in able}
    ranked = sorted(able, key=lambda one: guesses[one.name])
    if not repeated or len(ranked) == 1:
        told = [f"{one.name} {guesses[one.name]:.3g} s" for one in ranked[:3]]
        first = f"{ranked[0].name} is predicted to take {guesses[ranked[0].name]:.3g} s"
        return ranked[0], ", ".join([first, *told[1:]]) if len(told) > 1 else f"only {ranked[0].name} can run here"
    taken = {}
    for one in ranked[:3]:
        state = one.prepare(problem)
        one.run(state)
        begin = time.perf_counter()
        one.run(state)
        taken[one.name] = time.perf_counter() - begin
    best = min(ranked[:3], key=lambda one: taken[one.name])
    return best, "measured: " + ", ".join(f"{name} {seconds:.3g} s" for name, seconds in taken.items())
