"""A measured serving run beside its simulation: the same requests and the same plans, with predicted step times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from assay.serving.dooly.torch_engine import Outcome, replay


class Timed(Protocol):
    """Whatever says how long an iteration takes."""

    def seconds(self, b: int = 0, context: int = 0, chunks: Any = ()) -> float:
        """The time of `b` decodes with `context` KV tokens in all, and (chunk, tokens before) pairs."""


def errors(measured: Outcome, cost: Timed, limits: Mapping[str, int]) -> dict[str, float]:
    """How far simulated requests and predicted iterations are from the measured ones, as mean shares.

    >>> from assay.serving.dooly.torch_engine import Request
    >>> from assay.sim.llm_cost import StepCost
    >>> cost = StepCost(tokens=np.full(100, 0.010))
    >>> same = replay([Request(0.0, 8, 4), Request(0.01, 8, 4)], cost.seconds, pages=8)
    >>> errors(same, cost.scaled(1.1), {"pages": 8})["tpot_error"].__round__(6)
    0.1
    """
    simulated = replay(measured.requests, cost.seconds, **limits)
    steps = np.array([[cost.seconds(s.b, s.context, s.chunks), s.seconds] for s in measured.steps])
    several = np.isfinite(measured.tpot)

    def apart(mine: Any, real: Any) -> float:
        return float(np.mean(np.abs(mine / real - 1)))

    return {
        "ttft_error": apart(simulated.ttft, measured.ttft),
        # A first token waits for the iteration in flight, so a schedule shifted by milliseconds moves single requests
        # by a whole iteration; over the run these cancel.
        "ttft_run_error": abs(float(simulated.ttft.mean() / measured.ttft.mean()) - 1),
        "tpot_error": apart(simulated.tpot[several], measured.tpot[several]),
        "step_error": apart(steps[:, 0], steps[:, 1]),
        "ttft_mean": float(simulated.ttft.mean()),
        "ttft_measured": float(measured.ttft.mean()),
        "tpot_mean": float(np.nanmean(simulated.tpot)),
        "tpot_measured": float(np.nanmean(measured.tpot)),
    }
