"""The fleet as policies see it in simulation."""

from __future__ import annotations

import operator
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine import state
from assay.serving.engine.own_books import prompts_with, with_board
from assay.serving.engine.prefix_cache import match_all
from assay.serving.interface import Fleet, Request

if TYPE_CHECKING:
    from assay.serving.engine.simulator import Simulation


class SimulatedFleet(Fleet):
    """Views on what the core last looked at."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        w, spec = simulation.world, simulation.fleet
        old = simulation.age > 0.0  # else what the core writes is what is seen
        self._gauges, self._signals = (w.gauges.copy(), w.signals.copy()) if old else (w.gauges, w.signals)
        self.running, self.waiting, self.prefill_tokens, self.kv_tokens = self._gauges
        self.kv_free, self.itl, self.ttft = self._signals
        self.age = np.zeros(len(spec))
        self.read = 0.0  # when the instances were last asked
        self.tp = np.array([instance.tp for instance in spec.instances])
        self.slots = np.array([instance.max_seqs for instance in spec.instances])
        self.costs = [instance.cost for instance in spec.instances]
        self.hits = np.zeros(len(spec), np.int64)
        self.matched = -1
        self.prompts = np.zeros(len(spec), np.int64)
        self.boarded = -1
        self._unanswered: NDArray[np.int64] = w.books[state.UNANSWERED]

    def match(self, request: Request) -> NDArray[np.int64]:
        """Leading prompt tokens that each instance has in its cache."""
        r = operator.index(request.id)  # type: ignore[arg-type]
        if r != self.matched and len(self._simulation.world.path):  # else nobody shares anything
            match_all(self._simulation.world.handle[0], r, self.hits)
            self.matched = r
        return self.hits

    @property
    def unanswered(self) -> NDArray[np.int64]:
        """Prompt tokens not cached when they were sent, of requests without a token yet. Never old."""
        return self._unanswered

    def prompt_tokens(self, request: Request) -> NDArray[np.int64]:
        """Tokens of the prompts on board, this one's with them: full blocks, each once. Never old."""
        r, simulation = operator.index(request.id), self._simulation  # type: ignore[arg-type]
        if not len(simulation.world.board):
            began = perf_counter()
            simulation.world, self.boarded = with_board(simulation.world), r
            prompts_with(simulation.world.handle[0], r, self.prompts)
            simulation.policy_seconds -= perf_counter() - began  # compiling is not the policy's time
        elif r != self.boarded:
            prompts_with(simulation.world.handle[0], r, self.prompts)
            self.boarded = r
        return self.prompts

    def refresh(self) -> None:
        """Read what the instances say now."""
        w = self._simulation.world
        self._gauges[:], self._signals[:] = w.gauges, w.signals
        self.read = self._simulation.now
