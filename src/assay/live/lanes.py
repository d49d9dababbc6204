"""Which engines can take a request: those that serve its model.

Engines say which models they have once they are up. One that is up and does not say may have any. A model that nobody
has is asked for at an engine that has not come up yet, if there is one: it may be what that one will serve. Else any
engine may say that there is no such model. What names no model goes to any engine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.live.engines import STARTING, UP, Engine

_LONGEST = 256  # letters of a name that is worth remembering
_NAMES = 1000  # that are remembered: clients can make up as many as they like

Mask = NDArray[np.bool_]


class Lane:
    """A set of engines. Requests that wait for the same set wait in one queue."""

    __slots__ = ("mask",)

    def __init__(self, mask: Mask | None) -> None:
        self.mask = mask  # by number; None for all

    def __contains__(self, engine: Engine) -> bool:
        return engine.number >= 0 and (self.mask is None or bool(self.mask[engine.number]))


class Lanes:
    """The lane of each model, found anew when engines come, go, or change what they serve."""

    def __init__(self, engines: list[Engine]) -> None:
        self._engines = engines
        self.everybody = Lane(None)
        self._lanes: dict[bytes, Lane] = {}
        self._by_model: dict[str, Lane] = {}

    def of(self, model: str) -> Lane:
        """The engines that can take a request for a model; one look-up for a model that was asked for before."""
        lane = self._by_model.get(model)
        if lane is None:
            lane = self._find(model)
            if len(model) <= _LONGEST:
                if len(self._by_model) > _NAMES:
                    self._by_model.clear()
                self._by_model[model] = lane
        return lane

    def changed(self) -> None:
        """Somebody came, went, or serves something else."""
        self._lanes.clear()
        self._by_model.clear()

    def _find(self, model: str) -> Lane:
        engines = self._engines
        if not model:
            return self.everybody
        has = [model in e.models or (not e.models and e.answered) for e in engines]
        if not any(has):
            has = [e.state == STARTING or (e.state == UP and not e.answered) for e in engines]
        if all(has) or not any(has):
            return self.everybody
        mask = np.array(has, np.bool_)
        return self._lanes.setdefault(mask.tobytes(), Lane(mask))
