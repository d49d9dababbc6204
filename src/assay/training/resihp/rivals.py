"""Other resilient systems on the same engine, each with the same estimates of speeds.

- Greyhound: microbatches are dealt to replicas by their pace; a replica that lost a device leaves.
- Adaptra: another order of passes where that helps and fits; a replica that lost a device leaves.
- ReCycle: passes of a lost group are done by the groups of the same stage in other replicas, whole passes each.
- Oobleck: a replica that lost groups goes on as a pipeline with fewer stages; microbatches are dealt by pace.

ReCycle and Oobleck do not know slow devices, and Oobleck gives a whole node up. `recycle+` deals a stage's passes by
speed as well; `oobleck+` gives up groups alone, and slow ones where that is faster. Idealised in their
favour: passes done elsewhere cost no transfer, gradients of pipelines cut otherwise no more than others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.training.engine.costs import parts
from assay.training.interface import Floats, Ints
from assay.training.resihp.hybrid import ORDERS, Bools, Hybrid, fits, step, whole, without
from assay.training.resihp.iterations import Training
from assay.training.resihp.mending import COSTS, Repaired, deal

SLOW = 0.95  # of its speed, below which a group counts as slow


def _gone(speed: Floats) -> Bools:
    """Groups that lost a member, [replica, stage]."""
    return np.asarray((speed <= 0).any(axis=2))


def _ready(training: Training, plan: Hybrid | None, speed: Floats, squares: Floats, cost: float) -> Repaired | None:
    if plan is None or not fits(training, plan, squares):
        return None
    return Repaired(plan, step(training, plan, speed, squares), cost)


def _left(training: Training, speed: Floats) -> Hybrid | None:
    return without(whole(training), np.asarray(_gone(speed).any(axis=1)))


def greyhound(training: Training, speed: Floats, squares: Floats) -> Repaired | None:
    """Microbatches by pace."""
    plan = _left(training, speed)
    if plan is not None:
        plan = replace(plan, owner=deal(training, plan, speed, squares))
    return _ready(training, plan, speed, squares, COSTS["microbatches"])


def adaptra(training: Training, speed: Floats, squares: Floats) -> Repaired | None:
    """The order of passes with the shortest step, of those that fit."""
    plan = _left(training, speed)
    if plan is None:
        return None
    tried = [replace(plan, order=name) for name in ORDERS]
    able = [one for one in tried if fits(training, one, squares)]
    best = min(able, key=lambda one: step(training, one, speed, squares), default=None)
    return _ready(training, best, speed, squares, COSTS["microbatches"])


def recycle(training: Training, speed: Floats, squares: Floats, known: bool = False) -> Repaired | None:
    """Passes of lost groups dealt over those of their stage that are left; `known`: by their speeds."""
    plan, gone = whole(training), _gone(speed)
    if gone.all(axis=0).any():
        return None
    pace = np.where(gone, 0.0, speed.min(axis=2) if known else 1.0)
    dealt = np.zeros(plan.layers.shape, np.int64)
    for stage in range(plan.layers.shape[1]):
        if gone[:, stage].any() or (known and pace[:, stage].min() < SLOW):
            dealt[:, stage] = _dealt(pace[:, stage], len(plan.owner))
    members = np.where(gone[:, :, None], False, plan.members)
    moved = replace(plan, members=members, passes=dealt)
    return _ready(training, moved, speed, squares, COSTS["groups"] if gone.any() else COSTS["microbatches"])


def _dealt(pace: Floats, total: int) -> Ints:
    """So many passes dealt so that the last is done soonest.

    >>> _dealt(np.array([1.0, 0.5, 0.0]), 6).tolist()
    [4, 2, 0]
    """
    found = np.zeros(len(pace), np.int64)
    with np.errstate(divide="ignore"):
        seconds = 1.0 / pace
    for _ in range(total):
        found[int(np.where(pace > 0, (found + 1) * seconds, np.inf).argmin())] += 1
    return found


def oobleck(training: Training, speed: Floats, squares: Floats, known: bool = False) -> Repaired | None:
    """Fewer stages where groups are lost, or, where speeds are `known`, slow and better left out."""
    gone = _gone(speed) if known else _nodes(training, _gone(speed))
    slowest = np.where(gone, 0.0, speed.min(axis=2))
    seen = speed if known else np.where(speed > 0, 1.0, 0.0)
    bounds = (SLOW, 0.8, 0.65, 0.5, 0.0) if known else (0.0,)
    tried = [_cut(training, gone | (slowest < bound), seen, squares) for bound in bounds]
    able = [one for one in tried if one is not None and fits(training, one, squares)]
    best = min(able, key=lambda one: step(training, one, seen, squares), default=None)
    return _ready(training, best, speed, squares, COSTS["groups"] if gone.any() else COSTS["layers"])


def _nodes(training: Training, gone: Bools) -> Bools:
    """All groups of the nodes that lost one: neighbours in the order tp, replica, stage."""
    each = max(1, training.on.per_node // training.layout.tp)
    flat = gone.T.ravel()
    hit = np.flatnonzero(flat) // each
    return np.asarray(np.isin(np.arange(len(flat)) // each, hit).reshape(gone.T.shape).T)


def _cut(training: Training, out: Bools, speed: Floats, squares: Floats) -> Hybrid | None:
    """Every replica as a pipeline of the groups that are not left out, layers alike, microbatches by pace."""
    plan, layers = whole(training), np.zeros_like(whole(training).layers)
    for replica, left in enumerate(~out):
        if left.any():
            layers[replica, left] = parts(training.shape.layers, int(left.sum()))
    there = without(plan, np.asarray(out.all(axis=1)))
    if there is None:
        return None
    there = replace(there, layers=layers)
    return replace(there, owner=deal(training, there, speed, squares))


Rival = Callable[[Training, Floats, Floats], Repaired | None]
RIVALS: dict[str, Rival] = {
    "greyhound": greyhound, "adaptra": adaptra, "recycle": recycle, "oobleck": oobleck,
    "recycle+": lambda training, speed, squares: recycle(training, speed, squares, known=True),
    "oobleck+": lambda training, speed, squares: oobleck(training, speed, squares, known=True),
}  # fmt: skip
MEANT = {
    "fail-slow": ("greyhound", "adaptra"), "fail-stop": ("recycle", "oobleck"),
    "mixed": ("recycle+", "oobleck+"),
}  # fmt: skip
