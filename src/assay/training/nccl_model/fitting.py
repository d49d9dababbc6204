"""Models of a collective's time fitted to measured times, as logarithms, so that every size counts alike.

Each model is a function of a few positive numbers and the sizes. They are fitted on some sizes and judged on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim import collectives
from assay.sim.collectives import Link
from assay.sim.nccl import NcclModel

FAR = 4.0  # logarithms that a number may move from where it starts: about fifty times
Floats = NDArray[np.float64]
Model = Callable[[Floats, Floats], Floats]  # of its numbers and of sizes


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model with its numbers, and how far it is off: on the sizes of the fit, and on those held back."""

    numbers: Floats
    predicted: Floats  # at all sizes
    fit_error: float
    held_error: float
    held_worst: float


def fit(
    model: Model, starts: Sequence[Sequence[float]], sizes: Floats, seconds: Floats, used: NDArray[np.bool_]
) -> Fitted:
    """The numbers for the `used` sizes, from the best of several starts; errors are |predicted / measured - 1|."""
    from scipy.optimize import least_squares

    def off(logs: Floats) -> Floats:
        return np.log(model(np.exp(logs), sizes[used])) - np.log(seconds[used])

    # A size at which something disturbed the measurement pulls only in proportion, not by the square.
    robust: dict[str, Any] = {"method": "trf", "loss": "soft_l1", "f_scale": 0.1}
    found = []
    for start in np.log(np.asarray(starts, np.float64)):
        near = (start - FAR, start + FAR)  # a launch of nothing would be no launch
        found.append(least_squares(off, start, bounds=near, diff_step=np.full(start.size, 1e-3), **robust))
    numbers = np.exp(min(found, key=lambda f: float(f.cost)).x)
    predicted = model(numbers, sizes)
    errors = np.abs(predicted / seconds - 1)
    held = errors[~used] if (~used).any() else np.full(1, np.nan)
    return Fitted(numbers, predicted, float(errors[used].mean()), float(held.mean()), float(held.max()))


def every_other(count: int) -> NDArray[np.bool_]:
    """Which sizes to fit on: the first, every second, and the last.

    >>> every_other(6).tolist()
    [True, False, True, False, True, True]
    """
    used = np.arange(count) % 2 == 0
    used[-1] = True
    return np.asarray(used)


def of_nccl(model: NcclModel, op: str, ranks: int) -> Model:
    """NCCL's plans with its launches, its hops and its links scaled: three numbers."""
    group = range(ranks)

    def seconds(numbers: Floats, sizes: Floats) -> Floats:
        launch, latency, bandwidth = numbers
        return replace(model, launch=launch, latency=latency, bandwidth=bandwidth).seconds(op, group, sizes)

    return seconds


def hockney(numbers: Floats, sizes: Floats) -> Floats:
    """A start and a rate: two numbers.

    >>> hockney(np.array([1e-5, 1e9]), np.array([1e6])).tolist()
    [0.00101]
    """
    return np.asarray(numbers[0] + sizes / numbers[1])


def of_nested(op: str, nodes: int, per_node: int, inside: Link, outside: Link) -> Model:
    """Rings within nodes and between them, one after the other, with a start and scaled links: three numbers."""
    ranks = nodes * per_node

    def seconds(numbers: Floats, sizes: Floats) -> Floats:
        start, latency, bandwidth = numbers
        near, far = (Link(link.latency * latency, link.bandwidth * bandwidth) for link in (inside, outside))
        part = sizes if op == "all_gather" else sizes / ranks
        if op == "all_reduce":
            found = collectives.nested_all_reduce(ranks, per_node, sizes, near, far)
        elif op == "all_to_all":
            found = collectives.nested_all_to_all(ranks, per_node, sizes, near, far)
        elif nodes == 1:
            found = collectives.all_gather(ranks, part, near)
        else:
            within = collectives.all_gather(per_node, part * nodes, near)
            found = collectives.all_gather(nodes, part, far) + within
        return np.asarray(start + found)

    return seconds


def interpolated(sizes: Floats, seconds: Floats, used: NDArray[np.bool_]) -> Fitted:
    """Straight lines between the measured points on logarithmic axes: no model, and no answer for another cluster."""
    predicted = np.exp(np.interp(np.log(sizes), np.log(sizes[used]), np.log(seconds[used])))
    errors = np.abs(predicted / seconds - 1)
    held = errors[~used] if (~used).any() else np.full(1, np.nan)
    return Fitted(np.empty(0), predicted, 0.0, float(held.mean()), float(held.max()))
