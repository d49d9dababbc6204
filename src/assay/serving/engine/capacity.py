"""The highest rate at which a fleet still keeps its promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec
from assay.serving.interface import SLO
from assay.workloads.requests import Requests

MOST = 1e4  # times the trace's rate: beyond it nobody looks


class Capacity(NamedTuple):
    """A rate in requests a second, the factor on the trace's own, the run at that rate, and where it was given up."""

    rate: float
    factor: float
    outcome: Outcome
    above: float  # the lowest rate at which the promise was seen to break; infinity: at none that was tried


def find(
    requests: Requests,
    fleet: FleetSpec,
    router: Callable[[], Any],
    slo: SLO | Mapping[str, SLO],
    *,
    attainment: float = 0.95,
    precision: float = 0.02,
    counted: NDArray[np.bool_] | None = None,
    **options: Any,
) -> Capacity:
    """Bisect the factor on the trace's rate: the highest at which `attainment` of the requests meet their targets.

    `router` makes a fresh one for each run. `counted` says whose targets count, where not all do: the others are
    served all the same. A rate of zero says that not even a thousandth of the trace's is served.
    """
    if not requests.seconds:
        raise BadInput("a capacity needs a trace that lasts some time: all its requests arrive at once")

    def run(factor: float) -> Outcome:
        return simulate(requests.faster(factor), fleet, router(), **options)

    def kept(outcome: Outcome) -> bool:
        return outcome.attainment(slo, counted) >= attainment

    low, best = 0.0, None
    high = 1.0
    outcome = run(high)
    while kept(outcome) and high < MOST:
        low, best = high, outcome
        high *= 2
        outcome = run(high)
    if kept(outcome):
        return Capacity(high * requests.rate, high, outcome, math.inf)
    while (high - low > precision * high) and high > 1e-3:
        middle = 0.5 * (low + high)
        outcome = run(middle)
        if kept(outcome):
            low, best = middle, outcome
        else:
            high = middle
    return Capacity(low * requests.rate, low, best or outcome, high * requests.rate)
