"""The highest rate at which a fleet still keeps its promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec
from assay.serving.interface import SLO
from assay.workloads.requests import Requests


class Capacity(NamedTuple):
    """A rate in requests a second, the factor on the trace's own, and the run at that rate."""

    rate: float
    factor: float
    outcome: Outcome


def find(
    requests: Requests,
    fleet: FleetSpec,
    router: Callable[[], Any],
    slo: SLO | Mapping[str, SLO],
    *,
    attainment: float = 0.95,
    precision: float = 0.02,
    **options: Any,
) -> Capacity:
    """Bisect the factor on the trace's rate: the highest at which `attainment` of the requests meet their targets.

    `router` makes a fresh one for each run. A rate of zero says that not even a thousandth of the trace's is served.
    """

    def run(factor: float) -> Outcome:
        return simulate(requests.faster(factor), fleet, router(), **options)

    low, best = 0.0, None
    high = 1.0
    outcome = run(high)
    while outcome.attainment(slo) >= attainment and high < 1e4:
        low, best = high, outcome
        high *= 2
        outcome = run(high)
    while (high - low > precision * high) and high > 1e-3:
        middle = 0.5 * (low + high)
        outcome = run(middle)
        if outcome.attainment(slo) >= attainment:
            low, best = middle, outcome
        else:
            high = middle
    return Capacity(low * requests.rate, low, best or outcome)
