"""A placed graph on work-conserving devices: nobody idles who has a ready operator, and results travel meanwhile.

A result that another device needs is sent there once, by a port of its device that sends one at a time. Operators and
messages that are ready go in an order that nobody planned: it is drawn, and durations are a little off what was
estimated, anew for every run. The event loop is the engine's (:mod:`assay.sim.ready_queues`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.sim import ready_queues
from assay.sim.compiled import njit
from assay.sim.dag import Dag
from assay.training.doppler.graphs import OpGraph
from assay.training.interface import Floats, Ints

JITTER = 0.05  # of every duration, one standard deviation (assumed)


@dataclass(frozen=True)
class Run:
    """When operators and messages start and end, and on which device or port (ports come after devices)."""

    device: Ints
    starts: Floats
    ends: Floats
    dag: Dag

    @property
    def seconds(self) -> float:
        """The end of the last."""
        return float(self.ends.max())


def play(graph: OpGraph, place: Ints, devices: int, random: np.random.Generator | None = None) -> Run:
    """One run; without `random` durations are as estimated, and ready operators go by their number.

    >>> from assay.training.doppler.graphs import chainmm
    >>> graph = chainmm(2)
    >>> bool(np.isclose(play(graph, np.zeros(graph.nodes, int), 4).seconds, graph.seconds.sum()))
    True
    """
    whole, where, took = _placed(graph, place, devices)
    return _run(whole, where, took, random)


def seconds(graph: OpGraph, place: Ints, devices: int, runs: int, random: np.random.Generator) -> float:
    """The mean of several runs."""
    whole, where, took = _placed(graph, place, devices)
    return float(np.mean([_run(whole, where, took, random).seconds for _ in range(runs)]))


def _placed(graph: OpGraph, place: Ints, devices: int) -> tuple[Dag, Ints, Floats]:
    """Operators and messages, the device or port of each, and the seconds it is thought to take."""
    dag = graph.dag
    count, target, source = _messages(dag.indptr, dag.indices, place, devices)
    indptr, indices = _joined(dag.indptr, dag.indices, place, devices, target, source, count)
    where = np.concatenate([place, devices + place[source]])
    took = np.concatenate([graph.seconds, graph.sending[source]])
    return Dag(indptr, indices, np.arange(len(where))), where, took


def _run(whole: Dag, where: Ints, took: Floats, random: np.random.Generator | None) -> Run:
    first = np.zeros(len(where))
    if random is not None:
        took = took * np.maximum(0.2, 1 + JITTER * random.standard_normal(len(took)))
        first = random.random(len(where))
    starts, ends = ready_queues.run(whole, where, took, first)
    return Run(where, starts, ends, whole)


@njit(cache=True, nogil=True)
def _messages(indptr: Any, indices: Any, place: Any, devices: int) -> Any:
    """One message for each result and each other device that reads it: its number by (result, device)."""
    n = len(place)
    number = np.full((n, devices), -1, np.int64)
    source = np.empty(n * devices, np.int64)
    count = 0
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if place[u] != place[v] and number[u, place[v]] < 0:
                number[u, place[v]] = count
                source[count] = u
                count += 1
    return count, number, source[:count]


@njit(cache=True, nogil=True)
def _joined(indptr: Any, indices: Any, place: Any, devices: int, number: Any, source: Any, count: int) -> Any:
    """The graph with messages as operators of their own, behind the others."""
    n = len(place)
    start = np.empty(n + count + 1, np.int64)
    start[: n + 1] = indptr
    for m in range(count):
        start[n + m + 1] = start[n + m] + 1
    before = np.empty(len(indices) + count, np.int64)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            before[e] = u if place[u] == place[v] else n + number[u, place[v]]
    for m in range(count):
        before[start[n + m]] = source[m]
    return start, before
