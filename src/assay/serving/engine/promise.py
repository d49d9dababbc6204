"""At which rate a fleet still keeps its targets, and for whom it never can.

What a request misses even alone on an idle instance (`assay.serving.engine.alone`) no rate mends. So a capacity is the
highest rate at which 95 % of the *others* meet their targets; those that cannot are served all the same, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine import capacity, components
from assay.serving.engine.alone import Never, never, times_alone
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.engine.targets import Targets
from assay.serving.fleet import FleetSpec
from assay.serving.interface import SLO
from assay.workloads.more_sessions import fills_up, resampled, sustained
from assay.workloads.requests import Requests

SHARE, PRECISION = 0.95, 0.02
DRAWS, STUDENT = 6, 2.571  # resampled traces, and Student's t for their 95 %


@dataclass(frozen=True)
class Promise:
    """The targets of a trace on a fleet: whose count, and what is known of the rest."""

    requests: Requests
    fleet: FleetSpec
    targets: Targets
    counted: NDArray[np.bool_]
    misses: tuple[Never, ...]
    fill: float  # seconds until the fleet is as full as it gets

    @classmethod
    def of(cls, requests: Requests, fleet: FleetSpec, targets: Targets, prefix_cache: bool = True) -> Promise:
        """Find out who can meet the targets at all."""
        alone = times_alone(requests, fleet, prefix_cache)
        lost, misses = never(requests, alone, targets)
        ends = alone.e2e[np.isfinite(alone.e2e)]
        fill = max(fills_up(requests), 3 * float(np.quantile(ends, 0.99)) if len(ends) else 0.0)
        return cls(requests, fleet, targets, ~lost, tuple(misses), fill)

    @property
    def lost(self) -> int:
        """Requests that can never meet their targets."""
        return int((~self.counted).sum())

    def find(
        self, router: Callable[[], Any], options: dict[str, Any], start: float | None = None
    ) -> tuple[dict[str, float], Outcome]:
        """A policy's capacity, the rate above it that breaks the promise, and the run; zero where nobody keeps it."""
        if not self.counted.any():
            outcome = simulate(self.requests, self.fleet, router(), **options)
            return {"capacity": 0.0, "capacity_above": 0.0, "attainment_counted": 0.0}, outcome
        found = self._search(self.requests, router, options, start)
        kept = capacity.share_kept(found.outcome, self.targets, self.counted)
        return {"capacity": found.rate, "capacity_above": found.above, "attainment_counted": kept}, found.outcome

    def _search(
        self, requests: Requests, router: Callable[[], Any], options: dict[str, Any], start: float | None,
        precision: float = PRECISION,
    ) -> capacity.Capacity:  # fmt: skip
        return capacity.find(
            requests, self.fleet, router, self.targets, attainment=SHARE, counted=self.counted, start=start,
            fill=self.fill, precision=precision, **options,
        )  # fmt: skip

    def resolution(self, router: Callable[[], Any], options: dict[str, Any], rate: float) -> float:
        """By which share a capacity may be off: the bisection's step, and what other sessions of the kind would give.

        The trace is resampled by stretches of its time; the spread of the capacities of such traces, by Student's t,
        is how far a trace of its length can tell.
        """
        rates = [
            self._search(other, router, options, rate, 2 * PRECISION).rate
            for other in (resampled(self.requests, draw) for draw in range(DRAWS))
        ]
        if not all(rates):
            return math.inf
        spread = STUDENT * float(np.std(np.log(rates), ddof=1))
        return math.expm1(math.hypot(PRECISION, spread))

    def rivals(
        self,
        table: Sequence[Mapping[str, Any]],
        policies: Mapping[str, str],
        options: dict[str, Any],
        found: dict[str, Outcome],
    ) -> dict[str, Outcome]:
        """Everybody's run at the load of the highest capacity that anybody has: there attainment tells them apart."""
        best = max(table, key=lambda row: row["capacity"])
        if not best["capacity"]:
            return found
        most = found[best["policy"]].requests.rate  # what is asked there, though who waits longer asks less often
        load = sustained(self.requests, most, capacity.window(most, self.fill), self.fill)
        return {
            label: simulate(load, self.fleet, components.router(name), **options) for label, name in policies.items()
        }

    def facts(self, outcomes: Iterable[Outcome], resolution: float) -> dict[str, Any]:
        """What a capacity means here: over which window, and how exact it is."""
        windows = sorted({round(one.flow.seconds) for one in outcomes})
        told = f"{windows[0]:,}" + (f" to {windows[-1]:,}" if len(windows) > 1 else "")
        return {
            "means": f"the highest rate at which {100 * SHARE:.0f} % of the requests counted meet their targets and "
            f"completions keep up, over a steady window of {told} s with as many sessions as it takes",
            "window_seconds": float(windows[0]),
            "resolution": resolution if math.isfinite(resolution) else None,
            "counted": int(self.counted.sum()),
            "never": self.lost,
        }

    def rows(self) -> list[dict[str, Any]]:
        """By tier and target: who can never meet it."""
        rows = []
        for one in self.misses:
            row: dict[str, Any] = {} if isinstance(self.targets, SLO) else {"tier": one.tier or "no tier"}
            row |= {"target": f"{one.target}={one.seconds:g}", "requests": one.requests}
            row |= {"smallest_prompt": one.smallest_prompt, "its_output": one.its_output}
            rows.append(row | {"best": one.best if math.isfinite(one.best) else None})
        return rows

    def sentence(self) -> str:
        """Who can never meet the targets, in words; nothing where all can."""
        if not self.lost:
            return ""
        told = []
        for one in self.misses:
            of = f" of tier {one.tier}" if one.tier else ""
            best = f"takes {one.best:.3g} s" if math.isfinite(one.best) else "fits no instance"
            told.append(
                f"{one.requests:,}{of} miss {one.target}={one.seconds:g} (the shortest prompt among them has "
                f"{one.smallest_prompt:,} tokens, its answer {one.its_output:,}, and {best})"
            )
        all_of = len(self.requests)
        then = "so the capacity is zero" if self.lost == all_of else f"capacity counts the other {all_of - self.lost:,}"
        who = f"{self.lost:,} of {all_of:,} requests can never meet their targets, even alone on an idle instance"
        return f"{who}: {'; '.join(told)}; {then}. "

    def exactness(self, resolution: float) -> str:
        """How far another trace of the kind may be from these capacities, in words."""
        if not math.isfinite(resolution):
            return ""
        return (
            f" Another {len(self.requests):,} requests of the kind would give a capacity within "
            f"{100 * resolution:.0f} % of this one ({DRAWS} resampled traces)."
        )
