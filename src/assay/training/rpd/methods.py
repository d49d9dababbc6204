"""Ways to train by blocks in the same number of slots: PipeDream, its randomised model, and those without old weights.

Weights are `[step size, weight]`: every method runs with all step sizes of a grid at once and is judged by its best.
The mixed model of a microbatch, each block as it was at that stage's forward pass, is all that PipeDream's stash
amounts to: the gradient of a block is that of the loss at the mixed model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from assay.sim.random import stream
from assay.training.interface import Floats, Ints
from assay.training.rpd.objectives import Objective
from assay.training.rpd.slots import delays, timeline

GRID = tuple(2.0**-k for k in range(-3, 12))  # over the smoothness
LOCAL_STEPS, FLUSHES = (1, 2, 5), (4, 8, 16)  # of which the best counts


def _slices(objective: Objective) -> list[slice]:
    edges = [0, *objective.cuts, len(objective.start)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _begin(objective: Objective, rates: Floats) -> Floats:
    return np.tile(objective.start, (len(rates), 1))


def _order(objective: Objective, count: int, seed: int) -> Ints:
    """Which microbatches, epoch by epoch, each in an order of its own."""
    random = stream(seed, "rpd", "order")
    epochs = -(-count // objective.microbatches)
    return np.concatenate([random.permutation(objective.microbatches) for _ in range(epochs)])[:count]


def pipedream(objective: Objective, rates: Floats, slots: int, seed: int) -> Floats:
    """1F1B without a flush: every stage goes on with the weights it has."""
    parts = _slices(objective)
    w, stages = _begin(objective, rates), len(parts)
    plan = timeline(stages, slots // 2)[:slots]
    order = _order(objective, slots // 2, seed)
    mixed: dict[int, Floats] = {}
    found: dict[int, Floats] = {}
    for row in plan:
        for s in np.flatnonzero(row):
            m, part = abs(int(row[s])) - 1, parts[s]
            if row[s] > 0:
                mixed.setdefault(m, np.empty_like(w))[:, part] = w[:, part]
                if s == stages - 1:
                    found[m] = objective.gradient(mixed.pop(m), int(order[m]))
            else:
                w[:, part] -= rates[:, None] * found[m][:, part]
                if s == 0:
                    del found[m]
    return w


def randomised(objective: Objective, rates: Floats, slots: int, seed: int, delta: int | None = None) -> Floats:
    """RPD: a drawn block, a drawn microbatch, and every block as old as drawn, up to `delta` updates."""
    parts = _slices(objective)
    stages = len(parts)
    plan = timeline(stages, slots // 2)[:slots]
    delta = delays(timeline(stages, 8 * stages)).steady() if delta is None else delta
    random = stream(seed, "rpd", "randomised")
    w = _begin(objective, rates)
    history = np.tile(w, (delta + 1, 1, 1))  # a ring of the last versions
    for k in range(int((plan < 0).sum())):
        ages = random.integers(0, min(delta, k) + 1, stages)
        s, m = int(random.integers(stages)), int(random.integers(objective.microbatches))
        mixed = np.concatenate(
            [history[(k - age) % (delta + 1)][:, part] for age, part in zip(ages, parts, strict=True)], axis=1
        )
        w[:, parts[s]] -= rates[:, None] * objective.gradient(mixed, m)[:, parts[s]]
        history[(k + 1) % (delta + 1)] = w
    return w


def local(objective: Objective, rates: Floats, slots: int, seed: int, steps: int = 5) -> Floats:
    """LocalSGD-1F1B: a copy of the model for every stage, none sees old weights; they drain and are averaged."""
    stages = len(objective.cuts) + 1
    round_slots = 2 * stages * steps + 2 * (stages - 1)
    w, rounds = _begin(objective, rates), slots // round_slots
    order = iter(_order(objective, max(1, rounds * stages * steps), seed).tolist())
    for _ in range(rounds):
        total = np.zeros_like(w)
        for _ in range(stages):
            own = w.copy()
            for _ in range(steps):
                own -= rates[:, None] * objective.gradient(own, next(order))
            total += own
        w = total / stages
    return w


def flushed(objective: Objective, rates: Floats, slots: int, seed: int, microbatches: int = 8) -> Floats:
    """GPipe: so many microbatches go through, the pipeline drains, one step by their mean."""
    stages = len(objective.cuts) + 1
    w, steps = _begin(objective, rates), slots // (2 * (microbatches + stages - 1))
    order = iter(_order(objective, max(1, steps * microbatches), seed).tolist())
    for _ in range(steps):
        w -= rates[:, None] * sum(objective.gradient(w, next(order)) for _ in range(microbatches)) / microbatches
    return w


def synchronous(objective: Objective, rates: Floats, slots: int, seed: int) -> Floats:
    """One microbatch at a time through all stages and back."""
    return flushed(objective, rates, slots, seed, microbatches=1)


METHODS: dict[str, list[Callable[[Objective, Floats, int, int], Floats]]] = {
    "pipedream": [pipedream],
    "rpd": [randomised],
    "local-sgd": [partial(local, steps=steps) for steps in LOCAL_STEPS],
    "gpipe": [partial(flushed, microbatches=count) for count in FLUSHES],
    "synchronous": [synchronous],
}


def best(name: str, objective: Objective, slots: int, seed: int, smoothness: float) -> tuple[float, float]:
    """The lowest loss over the grid of step sizes and the method's own settings, and the step size it came with."""
    rates = np.array(GRID) / smoothness
    with np.errstate(all="ignore"):  # a step size that is too large ends in infinity, and loses
        losses = np.stack([objective.loss(method(objective, rates, slots, seed)) for method in METHODS[name]])
    at = int(np.argmin(losses.min(axis=0)))
    return float(losses[:, at].min()), float(rates[at])
