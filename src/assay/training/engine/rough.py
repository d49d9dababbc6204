"""A step of equal microbatches by closed forms, for searches over thousands of layouts: rank by it, solve the best.

1F1B fills, runs at the pace of its slowest stage, and drains; gradients and weights that hide behind passes are counted
with one layer's share. Steps of the engine's graph are within a few percent (a test holds it to 5 %).

>>> from assay.sim.models import model
>>> from assay.training.engine.cluster import read
>>> from assay.training.interface import Layout
>>> one = unit(Section(model("llama-3-8b"), read("8xh100"), Layout(tp=2, pp=2, dp=2)), tokens=4096.0, seen=2048.0)
>>> one.took.shape, filled(one, m=8) > filled(one, m=4)
((2,), True)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from assay.training.engine.compound import Section
from assay.training.engine.costs import microbatch_costs
from assay.training.interface import Floats, Plan


class Unit(NamedTuple):
    """Of one microbatch, every stage's: seconds forward and back, bytes kept and passing; state; what ends a step."""

    took: Floats
    kept: Floats
    passing: Floats
    state: Floats
    ends: Floats
    forward: Floats  # of the seconds it took, those forward


def unit(section: Section, tokens: float, seen: float) -> Unit:
    """Of a microbatch of so many tokens, each of which sees so many."""
    plan = Plan(section.layout, recompute=section.recompute, zero=section.zero)
    one = microbatch_costs(
        section.shape, section.cluster, plan, section.layers_of_stages(), np.array([tokens]), np.array([seen])
    )
    forward = (one.forward + one.wires_forward)[:, 0]
    if not section.trained:
        weights = one.gradient_bytes * section.cluster.precision.item / section.cluster.precision.gradient
        none = np.zeros_like(forward)
        return Unit(forward, none, none, weights, none, forward)
    took = forward + (one.inputs + one.weights + one.wires_backward)[:, 0]
    exposed = (one.gather + one.reduce) / one.layers + one.update
    return Unit(took, one.kept[:, 0], one.passing, one.state, exposed, forward)


def filled(one: Unit, m: int) -> float:
    """Seconds of `m` microbatches through the stages."""
    return float(one.took.sum() + (m - 1) * one.took.max() + one.ends.max())


def held(one: Unit, m: int) -> float:
    """Bytes of the fullest stage under 1F1B."""
    flying = np.minimum(m, len(one.took) - np.arange(len(one.took)))
    return float((one.state + one.passing + flying * one.kept).max())
