"""Sessions as closed loops: a turn is sent when the answer before it has ended and somebody has thought about it.

A trace says when each turn came on the system it was recorded on. On another, slower or busier one the same turn would
come later: its prompt holds an answer that has to be there first. So a turn is kept as the request it waits for
(`Requests.after`) and the seconds from that one's end until it is sent (`Requests.think`); only openings keep their
arrivals. Sessions still begin as often as they did, so over a long run as many requests a second are asked for as
before, as long as the system keeps up (a "partly open" loop: Schroeder, Wierman and Harchol-Balter, NSDI 2006).

The think time is the gap that the trace shows, less the time that the answer took: the recorded one where the trace
has it (a gateway's log, BurstGPT's elapsed time), else its tokens at :data:`PACE`. Where recorded times show that a
turn was sent before the one before it had ended, it did not wait for that one, but for the latest that had ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.sim.compiled import njit
from assay.workloads.prefixes import turns
from assay.workloads.requests import Ints, Requests

PACE = 50.0  # tokens a second that an answer is taken to have come at, where the trace does not say


def closed(requests: Requests, service: ArrayLike | None = None, before: Ints | None = None) -> Requests:
    """The same requests, each later turn waiting for the one before it; `service` is what each took, where recorded.

    `before` says which earlier request each continues; by default it is what :func:`assay.workloads.prefixes.turns`
    finds: the one before in the session or, where there are no sessions, the one whose prompt begins this one's.

    >>> trace = Requests.of([0.0, 9.0, 20.0], [100, 300, 500], [50, 50, 50], session=np.array([0, 0, 0], np.int32))
    >>> loop = closed(trace)
    >>> loop.after.tolist(), loop.think.tolist()
    ([-1, 0, 1], [0.0, 8.0, 10.0])
    >>> closed(trace, service=[2.0, 30.0, 1.0]).after.tolist()  # the third was sent while the second was under way
    [-1, 0, 0]
    """
    if before is None:
        before = turns(requests)
    took = requests.output / PACE
    if service is not None:
        took = np.asarray(service, np.float64)
        before = np.asarray(_ended_before(before, requests.arrival, took), np.int32)
    gap = requests.arrival - requests.arrival[before] - took[before]
    think = np.where(before >= 0, np.maximum(gap, 0.0), 0.0)
    return replace(requests, after=before, think=np.asarray(think, np.float64))


def opened(requests: Requests) -> Requests:
    """The same requests, each at its recorded arrival, whatever became of the turn before it.

    >>> opened(closed(Requests.of([0.0, 9.0], [100, 300], [5, 5]))).after is None
    True
    """
    return replace(requests, after=None, think=None)


@njit(cache=True, nogil=True)
def _ended_before(before: Any, arrival: Any, service: Any) -> Any:
    """Of the turns before each, the latest that had ended when it was sent; -1: none had."""
    found = np.full(len(before), -1, np.int32)
    for r in range(len(before)):
        b = before[r]
        while b >= 0 and arrival[b] + service[b] > arrival[r]:
            b = before[b]
        found[r] = b
    return found
