"""How many watts a GPU draws, and what a power cap or a locked clock does to them.

A step of work needs `mem` seconds of HBM, `compute` seconds of the multiprocessors at full clock, and `fixed` seconds
of neither (launches, the host). Memory keeps its own clock, so only the second part reacts to the SM clock f, until
the multiprocessors are too slow to ask for the memory's bytes, at `issue` of the full clock:

    t(f) = max(mem, max(compute, issue mem) f_max/f) + fixed
    P(f) = idle + hbm mem/t + (waiting busy/t + sm compute (f_max/f)/t) (f/f_max)^alpha

where busy = t − fixed: multiprocessors that wait for memory still tick. A power cap is not a power setting: the
firmware lowers the clock only while P would exceed the cap, so below the cap nothing happens at all. A locked clock
always acts.

>>> gpu = GpuPower(idle=75, hbm=150, waiting=120, sm=400, limit=700)
>>> decode = Load(mem=10e-3, compute=1e-3, fixed=1e-3)
>>> gpu.capped(decode, cap=500)  # far above what decode draws: the clock stays where it was
1980000000.0
>>> slower = gpu.joules(decode, 1.2e9) / gpu.joules(decode, gpu.f_max)
>>> bool(slower < 0.9), bool(gpu.seconds(decode, 1.2e9) == gpu.seconds(decode, gpu.f_max))
(True, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """One step of work, by what bounds it; seconds at full clock. Fields may be arrays of one length."""

    mem: Any
    compute: Any
    fixed: Any = 0.0


@dataclass(frozen=True, slots=True)
class GpuPower:
    """One GPU's watts by what it does, and the clocks it may be locked to."""

    idle: float
    hbm: float  # at full memory bandwidth
    waiting: float  # multiprocessors that hold work but wait, at full clock
    sm: float  # multiprocessors that compute all the time, at full clock, beside `waiting`
    limit: float  # the board's power limit as delivered
    alpha: float = 2.2  # watts grow as the clock to this power: voltage rises with it
    issue: float = 0.5  # share of the full clock that keeps HBM busy (assumed; a sweep of clocks would show it)
    f_max: float = 1.98e9
    f_min: float = 0.345e9
    f_step: float = 15e6

    @property
    def clocks(self) -> Array:
        """The clocks that can be locked, lowest first.

        >>> GpuPower(75, 150, 120, 400, 700).clocks[[0, -1]].tolist()
        [345000000.0, 1980000000.0]
        """
        steps = int((self.f_max - self.f_min) / self.f_step + 1e-9)
        return self.f_max - self.f_step * np.arange(steps, -1, -1.0)

    def seconds(self, load: Load, clock: Any) -> Any:
        """The step's time at this clock.

        >>> GpuPower(75, 150, 120, 400, 700, f_max=2e9).seconds(Load(mem=1.0, compute=0.8), 1e9).item()
        1.6
        """
        cycles = np.maximum(load.compute, self.issue * load.mem)
        return np.maximum(load.mem, cycles * (self.f_max / clock)) + load.fixed

    def watts(self, load: Load, clock: Any) -> Any:
        """The mean power over the step if nothing caps it."""
        t = self.seconds(load, clock)
        ratio = clock / self.f_max
        active = self.waiting * (t - load.fixed) / t + self.sm * load.compute / ratio / t
        return self.idle + self.hbm * load.mem / t + active * ratio**self.alpha

    def joules(self, load: Load, clock: Any) -> Any:
        """The step's energy."""
        return self.watts(load, clock) * self.seconds(load, clock)

    def capped(self, load: Load, cap: float) -> Any:
        """The clock at which the firmware settles under a cap: full, or the highest that keeps the draw within it.

        >>> gpu = GpuPower(idle=75, hbm=150, waiting=120, sm=400, limit=700)
        >>> prefill = Load(mem=2e-3, compute=10e-3)
        >>> gpu.capped(prefill, 400) < gpu.capped(prefill, 600) < gpu.f_max
        True
        """
        clocks = self.clocks
        each = Load(*(np.asarray(part)[..., None] for part in (load.mem, load.compute, load.fixed)))
        within = self.watts(each, clocks) <= cap
        highest = within.shape[-1] - 1 - np.argmax(within[..., ::-1], axis=-1)
        found = np.where(within.any(axis=-1), clocks[highest], clocks[0])  # a cap out of reach: the floor
        return float(found) if found.ndim == 0 else found

    def acts(self, load: Load, cap: float) -> Any:
        """Whether the cap changes anything.

        >>> gpu = GpuPower(idle=75, hbm=150, waiting=120, sm=400, limit=700)
        >>> bool(gpu.acts(Load(mem=10e-3, compute=1e-3), 400)), bool(gpu.acts(Load(mem=10e-3, compute=1e-3), 250))
        (False, True)
        """
        return self.watts(load, self.f_max) > cap


@dataclass(frozen=True, slots=True)
class Fit:
    """A power model and how far it is from what it was fitted to, as shares of the measured watts."""

    gpu: GpuPower
    error_mean: float
    error_max: float
    points: int
    alpha_fitted: bool  # False: the clock hardly varied, so alpha is assumed


def fit(base: GpuPower, loads: Load, clocks: Sequence[float] | Array, seconds: Array, watts: Array) -> Fit:
    """Least squares over measured steps: `hbm`, `waiting` and `sm` (none negative), and alpha if the clock varied.

    `base` gives idle power, limit and clocks. `seconds` are the measured step times, so that an error of the time
    model does not become one of the power model.

    >>> truth = GpuPower(idle=75, hbm=150, waiting=120, sm=300, limit=700, alpha=2.4)
    >>> loads = Load(np.array([10e-3, 10e-3, 1e-3, 1e-3]), np.array([1e-3, 8e-3, 9e-3, 9e-3]), np.zeros(4))
    >>> clocks = np.array([1.98e9, 1.5e9, 1.98e9, 1.2e9])
    >>> found = fit(GpuPower(75, 0, 0, 0, 700), loads, clocks, truth.seconds(loads, clocks), truth.watts(loads, clocks))
    >>> round(found.gpu.hbm), round(found.gpu.sm), round(found.gpu.alpha, 1), found.error_max < 1e-6
    (150, 300, 2.4, True)
    """
    clocks, watts = np.asarray(clocks, float), np.asarray(watts, float)
    mem, compute, fixed = (
        np.broadcast_to(np.asarray(x, float), watts.shape) for x in (loads.mem, loads.compute, loads.fixed)
    )
    ratio = clocks / base.f_max
    varied = float(np.ptp(ratio)) > 0.2
    best: tuple[float, Array, float] | None = None
    for alpha in np.arange(1.0, 3.55, 0.1) if varied else [base.alpha]:
        lift = ratio**alpha
        busy, used = np.maximum(seconds - fixed, 0.0) / seconds, np.minimum(compute / ratio / seconds, 1.0)
        columns = np.stack([np.minimum(mem / seconds, 1.0), busy * lift, used * lift], axis=1) / watts[:, None]
        weights, error = nnls(columns, (watts - base.idle) / watts)
        if best is None or error < best[0]:
            best = error, (columns @ weights * watts + base.idle) / watts - 1, float(alpha)
            chosen = weights
    assert best is not None
    _, residual, alpha = best
    gpu = replace(base, hbm=float(chosen[0]), waiting=float(chosen[1]), sm=float(chosen[2]), alpha=round(alpha, 3))
    return Fit(gpu, float(np.abs(residual).mean()), float(np.abs(residual).max()), len(watts), varied)
