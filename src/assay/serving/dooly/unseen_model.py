"""The step time of a model that nobody ran: its operations from the profile, the engine's overheads from another model.

How far that is off is known for the models that did run: each is predicted as if it had not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from assay.serving.dooly import h200
from assay.serving.dooly.replayed import Timed, errors
from assay.serving.dooly.torch_model import CONFIGS, Shape, shape_of
from assay.sim.cost_fit import fit_engine
from assay.sim.llm_cost import StepCost
from assay.sim.models import Model
from assay.sim.profile_db import ProfileDB, step_cost
from assay.sim.roofline import roofline

BACKEND, DTYPE = "paged", "bfloat16"
CALIBRATED = tuple(h200.NEAREST)  # models whose iterations were measured, too


@dataclass(frozen=True)
class Overheads:
    """What an engine adds to its operations, per layer where the host launches them."""

    factor: float
    fixed: float
    seq: float
    chunk: float
    launch: tuple[float, float, float]

    @classmethod
    def between(cls, bare: StepCost, fitted: StepCost, layers: int) -> Overheads:
        """What `fit_engine` added to the operations of a model with so many layers."""
        factor = fitted.decode_kv / bare.decode_kv
        return cls(
            factor, float(fitted.tokens[1] - factor * bare.tokens[1]) / layers,
            fitted.decode_seq - factor * bare.decode_seq, fitted.prefill_fixed - factor * bare.prefill_fixed,
            (fitted.launch_alone / layers, fitted.launch_mixed / layers, fitted.launch / layers),
        )  # fmt: skip

    def on(self, bare: StepCost, layers: int) -> StepCost:
        """The same on another model's operations."""
        base = bare.scaled(self.factor)
        alone, mixed, once = (layers * part for part in self.launch)
        return replace(
            base, tokens=base.tokens + self.fixed * layers, decode_seq=base.decode_seq + self.seq,
            prefill_fixed=base.prefill_fixed + self.chunk, launch=once, launch_alone=alone, launch_mixed=mixed,
        )  # fmt: skip


@lru_cache(maxsize=1)
def database() -> ProfileDB:
    """The operations that were timed on an H200."""
    return h200.database()


def bare_cost(used: Mapping[str, int]) -> StepCost:
    """What operations take, without the engine around them."""
    padded = h200.padded_sizes(h200.FOLDER, BACKEND)
    return step_cost(database(), dict(used), h200.MACHINE, max_tokens=h200.MOST, padded=padded)


@lru_cache(maxsize=4)
def overheads(name: str) -> Overheads:
    """Of a model whose iterations were measured."""
    bare = bare_cost(database().operations(name, BACKEND))
    return Overheads.between(
        bare, fit_engine(bare, h200.observed(h200.FOLDER, "steps", name, BACKEND)), shape_of(name).layers
    )


def closest(shape: Shape, among: Iterable[str], but: str = "") -> str:
    """The model among these, experts like experts, whose number of parameters is closest and not the very same."""
    others = {name: shape_of(name) for name in among if name != but}
    alike = [name for name, other in others.items() if (other.experts > 0) == (shape.experts > 0)]
    apart = {name: abs(math.log(others[name].parameters / shape.parameters)) for name in alike or others}
    return min(apart, key=lambda name: apart[name] or math.inf)


def predicted(shape: Shape, model: Model, used: Mapping[str, int], but: str = "") -> dict[str, Timed]:
    """A model's step time in three ways, as for one that never ran: `but` names one that must not be looked at."""
    near, added = closest(shape, CONFIGS, but), overheads(closest(shape, CALIBRATED, but))
    scaled = bare_cost(database().operations(near, BACKEND)).scaled(shape.parameters / shape_of(near).parameters)
    found: dict[str, Timed] = {"dooly": added.on(bare_cost(used), shape.layers)} if used else {}
    return found | {"nearest": added.on(scaled, shape.layers), "roofline": roofline(model, "h200")}


def runs() -> list[tuple[str, str, str]]:
    """The measured serving runs: model, backend, workload."""
    return [run for run in h200.served() if run[1] == BACKEND]


@lru_cache(maxsize=1)
def transferred() -> dict[str, list[tuple[float, float, float]]]:
    """Errors (mean of both, first token, a token) on each measured run, of predictions that had not seen its model."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name, backend, workload in runs():
        measured = h200.measured_run(h200.FOLDER, name, backend, workload)
        used = database().operations(name, BACKEND)
        for method, cost in predicted(shape_of(name), Model.from_hf(CONFIGS[name], name), used, but=name).items():
            off = errors(measured, cost, h200.LIMITS)
            both = 0.5 * (off["ttft_error"] + off["tpot_error"])
            found.setdefault(method, []).append((both, off["ttft_error"], off["tpot_error"]))
    return found
