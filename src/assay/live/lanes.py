"""Which engines can take a request: those that serve its model.

Engines say which models they have once they are up. One that is up and does not say may have any. A model that nobody
has is asked for at an engine that has not come up yet, if there is one: it may be what that one will serve. Else any
engine may say that there is no such model. What names no model goes to any engine.

Where engines have roles, a request has stages: its prompt is computed by one that prefills, its answer by one that
decodes. What goes to one engine as a whole goes to none that only prefills.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.live.engines import STARTING, Engine

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
        self._staged: dict[tuple[str, str], Lane] = {}
        self._any: dict[tuple[str, ...], Lane] = {}
        self.models: set[str] = set()  # all that engines say they have
        self.roles = False  # whether some engine has one

    def of(self, model: str, stage: str = "") -> Lane:
        """The engines that can take a request for a model; one look-up for a model that was asked for before."""
        lane = self._staged.get((model, stage)) if stage else self._by_model.get(model)
        if lane is None:
            lane = self._find(model, stage)
            if len(model) <= _LONGEST:
                if len(self._by_model) + len(self._staged) > _NAMES:
                    self._by_model.clear()
                    self._staged.clear()
                if stage:
                    self._staged[model, stage] = lane
                else:
                    self._by_model[model] = lane
        return lane

    def only(self, engine: Engine) -> Lane:
        """One engine, whatever it serves; nobody where it is gone."""
        mask = np.array([e is engine for e in self._engines], np.bool_)
        return self._lanes.setdefault(mask.tobytes(), Lane(mask))

    def any(self, names: tuple[str, ...]) -> Lane:
        """The engines that can take a request that several models may answer."""
        lane = self._any.get(names)
        if lane is None:
            masks = [self.of(name).mask for name in names if name in self.models] or [self.of(names[0]).mask]
            known = [mask for mask in masks if mask is not None]
            lane = self.everybody
            if len(known) == len(masks) and not (mask := np.logical_or.reduce(known)).all():
                lane = self._lanes.setdefault(mask.tobytes(), Lane(mask))
            self._any[names] = lane
        return lane

    def changed(self) -> None:
        """Somebody came, went, or serves something else."""
        self._lanes.clear()
        self._by_model.clear()
        self._staged.clear()
        self._any.clear()
        self.models = {name for e in self._engines for name in e.models}
        self.roles = any(e.role for e in self._engines)

    def _find(self, model: str, stage: str) -> Lane:
        fit = [e.role == stage if stage else e.role != "prefill" for e in self._engines]
        has = [model in e.models or (not e.models and e.answered) for e in self._engines]
        if not any(has):
            has = [e.state == STARTING for e in self._engines]
        if not model or not any(has):
            has = [True] * len(fit)
        mask = np.array(has, np.bool_) & np.array(fit, np.bool_)
        if mask.all():
            return self.everybody
        return self._lanes.setdefault(mask.tobytes(), Lane(mask))
