"""The highest rate at which a fleet still keeps its promises, for as long as one likes.

A rate is tried with as many of the trace's sessions as it takes (`assay.workloads.more_sessions`), over a steady window
whose length does not hang on the trace's. It is kept where enough of the requests sent in the window meet their targets
and completions keep up with what is offered: who promises nothing but an answer in the end is not served by a queue
that grows.
"""

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
from assay.workloads.more_sessions import fills_up, sustained
from assay.workloads.requests import Requests

SECONDS = 120.0  # of a window
LEAST, ENOUGH = 3000, 10_000  # requests that it holds at least, and needs at most
SHORTEST, MOST = 20.0, 300_000  # seconds of a window; what needs more requests than that for them is not tried
SLOWEST = 1e-3  # of the trace's rate: below it nobody looks


class Capacity(NamedTuple):
    """A rate in requests a second, the run at that rate, and where it was given up."""

    rate: float
    outcome: Outcome
    above: float  # the lowest rate at which the promise was seen to break; infinity: at none that was tried

    @property
    def window(self) -> float:
        """Seconds over which the rate was sustained."""
        return self.outcome.flow.seconds


def find(
    requests: Requests,
    fleet: FleetSpec,
    router: Callable[[], Any],
    slo: SLO | Mapping[str, SLO],
    *,
    attainment: float = 0.95,
    precision: float = 0.02,
    counted: NDArray[np.bool_] | None = None,
    start: float | None = None,
    fill: float | None = None,
    **options: Any,
) -> Capacity:
    """Bisect the rate: the highest sustained one at which `attainment` of the requests meet their targets.

    `router` makes a fresh one for each run. `counted` says whose targets count, where not all do: the others are
    served all the same. `start` is where to begin, `fill` how long the fleet takes to fill up. What is answered is
    never more than was offered in the window: people who wait longer ask less often than they would, and a window may
    be a quieter stretch of its trace. A rate of zero says that not even a thousandth of the trace's is served.
    """
    if not requests.seconds:
        raise BadInput("a capacity needs a trace that lasts some time: all its requests arrive at once")
    fill = fills_up(requests) if fill is None else fill

    def run(rate: float) -> Outcome:
        return simulate(sustained(requests, rate, window(rate, fill), fill), fleet, router(), **options)

    def kept(outcome: Outcome) -> bool:
        return outcome.flow.sustained and share_kept(outcome, slo, counted) >= attainment

    rate, low, high, best, step = start or requests.rate, 0.0, math.inf, None, 2.0 if start is None else 1.1
    while high == math.inf or not low:
        outcome = run(rate)
        if kept(outcome):
            low, best = rate, outcome
            if rate * step * SHORTEST > MOST:
                return Capacity(min(rate, outcome.flow.offered), outcome, math.inf)
            rate *= step
        else:
            high = rate
            if rate < SLOWEST * requests.rate:
                return Capacity(0.0, outcome, high)
            rate /= step
        step = min(step * step, 4.0) if start is not None else step
    while high > (1 + precision) * low:
        middle = math.sqrt(low * high)
        outcome = run(middle)
        if kept(outcome):
            low, best = middle, outcome
        else:
            high = middle
    assert best is not None
    offered = min(low, best.flow.offered)
    return Capacity(offered, best, offered * high / low)


def window(rate: float, fill: float) -> float:
    """Seconds of the steady window at a rate: enough to tell, and no more than can be simulated.

    >>> window(10.0, fill=20.0), window(0.5, fill=20.0), window(4000.0, fill=20.0)
    (300.0, 6000.0, 20.0)
    """
    return max(SHORTEST, min(max(SECONDS, LEAST / rate, fill), ENOUGH / rate), min(fill, MOST / rate))


def share_kept(outcome: Outcome, slo: SLO | Mapping[str, SLO], counted: NDArray[np.bool_] | None) -> float:
    """The share that met its targets, of those counted: by the row of the trace that each is a copy of."""
    origin = outcome.requests.origin
    return outcome.attainment(slo, counted if counted is None or origin is None else counted[origin])
