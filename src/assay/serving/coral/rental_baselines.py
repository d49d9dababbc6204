"""How GPUs for several models are chosen without solving for designs and nodes of all models together.

Each rule sees the same designs, rates, prices and nodes as the joint program, and what it does decide it decides by the
same solver. All take the same arguments and return a `Rental`.

>>> from assay.workloads.gpu_market import Config
>>> choices = [[Design(((0, 1),), 2.0), Design(((1, 1),), 9.0)]]
>>> market = Offer((Config("l4", 1), Config("h100", 1)), np.array([1.0, 4.0]), np.array([9, 9]))
>>> single_type(choices, market, np.array([10.0])).usd_per_hour
5.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.serving.coral.gpu_rental import Choices, Rental, solve
from assay.serving.coral.replica_designs import Design
from assay.workloads.gpu_market import Offer

Floats = NDArray[np.float64]
Rule = Callable[..., Rental]


def joint(choices: Choices, offer: Offer, demand: Floats, **options: Any) -> Rental:
    """Designs and nodes for all models in one program."""
    return solve(choices, offer.price, offer.available, demand, **options)


def single_type(choices: Choices, offer: Offer, demand: Floats, **options: Any) -> Rental:
    """One device for everything, the best of them: nodes of any size and region, the best designs on it."""
    found = []
    for name in sorted({config.device for config in offer.configs}):
        able = {i for i, config in enumerate(offer.configs) if config.device == name}
        found.append(joint(_within(choices, able), offer, demand, **options))
    return _best(found, options.get("weights"))


def independent(choices: Choices, offer: Offer, demand: Floats, **options: Any) -> Rental:
    """Model by model, each the best it can with what those before it left; the one that costs most goes first."""
    alone = [
        solve([some], offer.price, offer.available, demand[m : m + 1], **_own(options, m))
        for m, some in enumerate(choices)
    ]
    left, parts = offer.available.copy(), dict[int, Rental]()
    for m in sorted(range(len(choices)), key=lambda m: -alone[m].usd_per_hour):
        parts[m] = solve([choices[m]], offer.price, left, demand[m : m + 1], **_own(options, m))
        left = left - parts[m].nodes(len(left))
    return _merged([parts[m] for m in range(len(choices))], demand)


def fixed_strategy(choices: Choices, offer: Offer, demand: Floats, *, every: Choices, **options: Any) -> Rental:
    """One way to cut each model, on whatever nodes: the fewest GPUs it fits on, or a whole node; how many is solved.

    `every` are the designs before pruning: what is fixed need not be the best.
    """
    found = []
    for pick in (min, max):
        fixed = [_template(some, pick) for some in every]
        found.append(joint(fixed, offer, demand, **options))
    return _best(found, options.get("weights"))


def fixed_allocation(choices: Choices, offer: Offer, demand: Floats, *, flops: Floats, **options: Any) -> Rental:
    """Nodes are dealt out first, by each model's share of all work; then each model makes the best of its own.

    `flops` is what a token of each model takes, up to a factor.
    """
    share = demand * flops / float(demand @ flops)
    parts = []
    dealt = np.stack([_deal(int(n), share) for n in offer.available], axis=1)
    for m, some in enumerate(choices):
        parts.append(solve([some], offer.price, dealt[m], demand[m : m + 1], **_own(options, m)))
    return _merged(parts, demand)


def _deal(nodes: int, share: Floats) -> NDArray[np.int64]:
    """Whole nodes by shares: rounded down, and what is left to those who lost most.

    >>> _deal(5, np.array([0.5, 0.3, 0.2])).tolist()
    [3, 1, 1]
    """
    exact = nodes * share
    whole = np.floor(exact).astype(np.int64)
    for m in np.argsort(whole - exact, kind="stable")[: nodes - int(whole.sum())]:
        whole[m] += 1
    return whole


def _within(choices: Choices, able: set[int]) -> list[list[Design]]:
    return [[design for design in some if all(c in able for c, _ in design.nodes)] for some in choices]


def _template(some: Sequence[Design], pick: Callable[..., Any]) -> list[Design]:
    """On one node of each configuration, prefill and decode together: the smallest or largest tensor parallelism."""
    plain = [d for d in some if len(d.parts) == 1 and len(d.nodes) == 1 and d.nodes[0][1] == 1]
    plain = [d for d in plain if " " not in d.parts[0].layout and ":pp" not in d.parts[0].layout]
    kinds = sorted({design.nodes for design in plain})
    return [pick((d for d in plain if d.nodes == kind), key=lambda d: d.parts[0].gpus) for kind in kinds]


def _own(options: dict[str, Any], m: int) -> dict[str, Any]:
    """The options of one model's own program."""
    weights, held = options.get("weights"), options.get("previous")
    own = {"weights": None if weights is None else np.asarray(weights)[m : m + 1]}
    if held is not None:
        mine = tuple((0, design, n) for which, design, n in held.replicas if which == m)
        own["previous"] = replace(held, replicas=mine)
    return {**options, **own}


def _merged(parts: Sequence[Rental], demand: Floats) -> Rental:
    replicas = tuple((m, design, n) for m, part in enumerate(parts) for _, design, n in part.replicas)
    rent = sum(part.usd_per_hour for part in parts if np.isfinite(part.usd_per_hour))
    capacity = np.array([float(part.capacity[0]) for part in parts])
    return Rental(replicas, rent, demand, capacity, "merged", sum(part.seconds for part in parts))


def _best(found: Sequence[Rental], weights: Any) -> Rental:
    """Who serves most, and of those who serve everything the cheapest."""
    weigh = np.ones(len(found[0].demand)) if weights is None else np.asarray(weights)
    seconds = sum(rental.seconds for rental in found)
    best = max(found, key=lambda r: (round(float(weigh @ r.served), 9), -r.usd_per_hour))
    complete = [rental for rental in found if rental.complete]
    return replace(min(complete, key=lambda r: r.usd_per_hour) if complete else best, seconds=seconds)
