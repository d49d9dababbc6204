"""Labelled incidents: what was recorded, and what was really done to the system meanwhile.

Whoever diagnoses gets the frame; whoever scores gets the truth.

>>> truth = Truth("data stall", "2", "data", start=10, end=20, severity=0.5)
>>> rank_of(truth, Diagnosis((Suspect("0", "backward", 2.0), Suspect("2", "data", 1.0))))
2
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.observe.interface import Diagnosis, Suspect
from assay.sim.telemetry import Frame

__all__ = ["Incident", "Suspect", "Truth", "rank_of"]


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
