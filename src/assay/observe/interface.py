"""What every component of the room speaks: a frame of telemetry goes in, a diagnosis comes out.

An :class:`Attributor` says which entity, and which of its indicators, a symptom should be blamed on; it does not act.
Suspects are ranked, best first; a split of the symptom (`accounting`) must add up to it.

>>> class Tallest(Attributor):
...     "Blames whoever has the highest sample: the simplest component of the room."
...     def explain(self, frame):
...         block = frame.block()
...         return Diagnosis.ranked(block.columns, block.values.max(0))
>>> from assay.sim.telemetry import Frame
>>> samples = [{"t": 0, "entity": i, "metric": "load", "value": v} for i, v in enumerate((1.0, 4.0, 2.0))]
>>> frame = Frame.of([{"id": i, "kind": "node", "name": f"n{i}"} for i in range(3)], samples)
>>> [(suspect.entity, suspect.indicator) for suspect in Tallest().explain(frame).suspects]
[('n1', 'load'), ('n2', 'load'), ('n0', 'load')]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from assay.sim.telemetry import Frame


@dataclass(frozen=True, slots=True)
class Suspect:
    """Somebody to look at, what about them, how strongly, and what kind of case it is.

    `label` is the component's own word for how sure it is; `next` says what to look at to make sure.
    """

    entity: str
    indicator: str | None
    score: float
    label: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Suspects, best first; the symptom split among indicators; or why there is no answer."""

    suspects: tuple[Suspect, ...] = ()
    accounting: Mapping[str, float] = field(default_factory=dict)
    total: float | None = None
    """What the accounting adds up to."""
    label: str = ""
    """What kind of case it is, in the component's own words."""
    why: str = ""
    """Where there are no suspects: what is missing."""

    @classmethod
    def ranked(cls, columns: Sequence[tuple[str, str]], scores: ArrayLike) -> Diagnosis:
        """Suspects from (entity, indicator) columns and their scores; columns without a score are left out."""
        values = np.asarray(scores, float)
        order = np.argsort(-values, kind="stable")
        found = [(columns[i], float(values[i])) for i in order if not math.isnan(values[i])]
        return cls(tuple(Suspect(entity, indicator, score) for (entity, indicator), score in found))

    def rank(self, entity: str, indicator: str | None = None) -> int | None:
        """The place of a suspect, from 1; None where it is not among them. Without an indicator, the entity's best.

        >>> Diagnosis.ranked([("a", "x"), ("b", "x")], [1.0, 2.0]).rank("a")
        2
        """
        for place, suspect in enumerate(self.suspects, 1):
            if suspect.entity == entity and indicator in (None, suspect.indicator):
                return place
        return None


class Attributor(ABC):
    """Blames a symptom on somebody."""

    @abstractmethod
    def explain(self, frame: Frame) -> Diagnosis:
        """Who, and what about them."""
