"""What the kernels room speaks: a kernel with one slow, obviously right answer, and several implementations of it.

An implementation is two functions: `prepare` turns a problem into whatever its `run` wants to have (a layout, a plan);
only `run` is repeated. They are timed apart, so that a conversion is neither hidden nor charged to every call.

>>> import numpy as np
>>> def same(problem, out, right):
...     return Match(bool(out == right))
>>> total = Kernel("sum", lambda p: p.sum(), same, lambda p: Cost(p.size, p.nbytes))
>>> quick = Implementation("numpy", "numpy", lambda p: p, np.sum)
>>> total.check(np.ones(3), quick.run(quick.prepare(np.ones(3))), 3.0).right
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Problem = Any  # whatever the kernel's implementations take: an array, a matrix


@dataclass(frozen=True)
class Cost:
    """The least that any implementation must do for a problem."""

    flops: float = 0.0
    bytes: float = 0.0  # each input read once, each output written once
    serial_steps: float = 0.0  # of a chain that cannot be shortened: each waits for the one before
    gathers: float = 0.0  # reads at places that depend on data
    dtype: str = "f32"


class Match(NamedTuple):
    """Whether a result is right, and how far off it is."""

    right: bool
    error: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Kernel:
    """A problem with its oracle, how results are checked against it, and the least work it takes."""

    name: str
    oracle: Callable[[Problem], Any]
    check: Callable[[Problem, Any, Any], Match]
    cost: Callable[[Problem], Cost]


def _here() -> str:
    return ""


@dataclass(frozen=True)
class Implementation:
    """One way to compute a kernel. `missing` says in a few words why it cannot run here, or nothing."""

    name: str
    backend: str  # numpy, numba, c, torch, triton, cuda
    prepare: Callable[[Problem], Any]
    run: Callable[[Any], Any]
    missing: Callable[[], str] = _here
    threads: int = 1
    # What it would take here: seconds from what it moves, to choose among many without running all.
    predict: Callable[[Problem, Machine], float] | None = None


@dataclass(frozen=True)
class Machine:
    """What a machine can do, measured: the denominators of every fraction.

    Rates are a second. `bandwidth` and `gathers` are by number of threads (0 stands for a GPU as a whole).
    """

    name: str
    fingerprint: str
    bandwidth: dict[int, float]
    peaks: dict[str, float]  # FLOP/s by dtype
    gathers: dict[int, float]
    sync: float  # seconds until all threads (or a kernel launch) have begun and are waited for
    measured: str = ""  # when, and by what
    more: dict[str, float] = field(default_factory=dict)

    def limit(self, cost: Cost, threads: int | None = None) -> tuple[float, str]:
        """The least seconds that a cost takes here, and what bounds it.

        >>> m = Machine("m", "", {1: 1e10}, {"f32": 1e11}, {1: 1e9}, 1e-6)
        >>> m.limit(Cost(flops=1e9, bytes=1e9))
        (0.1, 'memory')
        """
        usable = [rate for count, rate in self.bandwidth.items() if threads is None or count <= threads]
        bounds = {
            "memory": cost.bytes / max(usable),
            "arithmetic": cost.flops / self.peaks.get(cost.dtype, max(self.peaks.values())),
            "serial": cost.serial_steps * self.sync,
        }
        by = max(bounds, key=lambda name: bounds[name])
        return bounds[by], by


@dataclass(frozen=True)
class Record:
    """One implementation on one problem: its times, what the machine could do, and whether the result is right."""

    implementation: str
    backend: str
    threads: int
    prepare: float
    run: float  # the median of the rounds
    low: float  # a tenth of the rounds are faster
    high: float
    rounds: tuple[float, ...]
    limit: float
    bound_by: str
    match: Match

    @property
    def fraction(self) -> float:
        """The share of what the machine could do."""
        return self.limit / self.run if self.run else 0.0
