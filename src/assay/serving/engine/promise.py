"""At which rate a fleet still keeps its targets, and for whom it never can.

What a request misses even alone on an idle instance (`assay.serving.engine.alone`) no rate mends. So a capacity is the
highest rate at which 95 % of the *others* meet their targets; those that cannot are served all the same, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from assay.workloads.requests import Requests

SHARE = 0.95


@dataclass(frozen=True)
class Promise:
    """The targets of a trace on a fleet: whose count, and what is known of the rest."""

    requests: Requests
    fleet: FleetSpec
    targets: Targets
    counted: NDArray[np.bool_]
    misses: tuple[Never, ...]

    @classmethod
    def of(cls, requests: Requests, fleet: FleetSpec, targets: Targets, prefix_cache: bool = True) -> Promise:
        """Find out who can meet the targets at all."""
        lost, misses = never(requests, times_alone(requests, fleet, prefix_cache), targets)
        return cls(requests, fleet, targets, ~lost, tuple(misses))

    @property
    def lost(self) -> int:
        """Requests that can never meet their targets."""
        return int((~self.counted).sum())

    def find(self, router: Callable[[], Any], options: dict[str, Any]) -> tuple[dict[str, float], Outcome]:
        """A policy's capacity, the rate above it that breaks the promise, and the run; zero where nobody keeps it."""
        if not self.counted.any():
            outcome = simulate(self.requests, self.fleet, router(), **options)
            return {"capacity": 0.0, "capacity_above": 0.0, "attainment_counted": 0.0}, outcome
        found = capacity.find(
            self.requests, self.fleet, router, self.targets, attainment=SHARE, counted=self.counted, **options
        )
        kept = found.outcome.attainment(self.targets, self.counted)
        return {"capacity": found.rate, "capacity_above": found.above, "attainment_counted": kept}, found.outcome

    def rivals(
        self,
        table: Sequence[Mapping[str, Any]],
        policies: Mapping[str, str],
        options: dict[str, Any],
        found: dict[str, Outcome],
    ) -> dict[str, Outcome]:
        """Everybody's run at the highest capacity that anybody has: there attainment tells the policies apart."""
        most = max(row["capacity"] for row in table)
        if not most:
            return found
        faster = self.requests.faster(most / self.requests.rate)
        return {
            label: simulate(faster, self.fleet, components.router(name), **options) for label, name in policies.items()
        }

    def facts(self) -> dict[str, Any]:
        """What a capacity means here."""
        return {
            "means": f"the highest rate at which {100 * SHARE:.0f} % of the requests counted meet their targets",
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
