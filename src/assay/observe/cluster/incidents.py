"""Labelled incidents: what was recorded, and what was really done to the system meanwhile.

Whoever diagnoses gets the frame; whoever scores gets the truth. Substrates make incidents
(:mod:`assay.observe.stagefrontier.ddp` with real processes, :mod:`assay.observe.cluster.cluster504` by a model); a
study keeps the truth away from components.

>>> truth = Truth("data stall", "2", "data", start=10, end=20, severity=0.5)
>>> rank_of(truth, Diagnosis((Suspect("0", "backward", 2.0), Suspect("2", "data", 1.0))))
2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.observe.interface import Alarm, Diagnosis, Suspect
from assay.sim.telemetry import Frame

__all__ = ["Incident", "Suspect", "Truth", "accuracy_at", "average_at", "delays", "rank_of", "reciprocal_rank"]


@dataclass(frozen=True, slots=True)
class Truth:
    """What was injected: which fault, in whom, seen first in which indicator, when (ns or steps), how strongly."""

    fault: str
    entity: str
    indicator: str | None
    start: int
    end: int
    severity: float


@dataclass(frozen=True, slots=True)
class Incident:
    """A recording with its truth; `truth` is None for a healthy one."""

    frame: Frame
    truth: Truth | None


def rank_of(truth: Truth, diagnosis: Diagnosis) -> int | None:
    """The place at which the diagnosis names the true (entity, indicator); None where it does not."""
    return diagnosis.rank(truth.entity, truth.indicator)


def accuracy_at(k: int, ranks: Iterable[int | None]) -> float:
    """AC@k: the share of incidents whose truth is among the first k.

    >>> accuracy_at(2, [1, 3, None, 2])
    0.5
    """
    found = list(ranks)
    return sum(rank is not None and rank <= k for rank in found) / len(found)


def average_at(k: int, ranks: Iterable[int | None]) -> float:
    """Avg@k: the mean of AC@1 to AC@k.

    >>> average_at(2, [1, 2])
    0.75
    """
    found = list(ranks)
    return float(np.mean([accuracy_at(i, found) for i in range(1, k + 1)]))


def reciprocal_rank(ranks: Iterable[int | None]) -> float:
    """MRR: the mean of one over the place, nothing for those not found.

    >>> reciprocal_rank([1, 2, None])
    0.5
    """
    return float(np.mean([0.0 if rank is None else 1.0 / rank for rank in ranks]))


def delays(truths: Sequence[Truth], alarms: Sequence[Alarm]) -> tuple[list[int | None], list[Alarm]]:
    """For each incident the nanoseconds until the first alarm within it, None if there was none; and all false alarms.

    An alarm belongs to an incident of the same entity if it comes between its start and its end.

    >>> delays([Truth("hot", "n1", None, 10, 50, 1.0)], [Alarm(30, "n1", "temp", 5.0), Alarm(70, "n1", "temp", 5.0)])
    ([20], [Alarm(t=70, entity='n1', indicator='temp', score=5.0)])
    """
    first: list[int | None] = [None] * len(truths)
    false = []
    for alarm in sorted(alarms, key=lambda alarm: alarm.t):
        own = [i for i, t in enumerate(truths) if t.entity == alarm.entity and t.start <= alarm.t <= t.end]
        if not own:
            false.append(alarm)
        for i in own:
            if first[i] is None:
                first[i] = alarm.t - truths[i].start
    return first, false
