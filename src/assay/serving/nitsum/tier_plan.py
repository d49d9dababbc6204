"""Cut a pool of GPUs into groups for tiers: an integer programme over roles, tensor-parallel widths and tiers.

A group has a role, a width and a level: the strictest tier it is held to. Its batch is kept small enough for that
tier, so it may also serve every more relaxed one, at that smaller batch. Variables are how many groups of each sort
there are, and how many groups' worth of time each tier gets of them; what is maximised is the rate of requests that
meet both targets, then spare capacity for bursts.

>>> from assay.serving.interface import SLO
>>> targets = {"chat": SLO(1.0, 0.015), "batch": SLO(30.0, 0.2)}
>>> demand = {"chat": Demand(4.0, 1000, 0.5, 200), "batch": Demand(1.0, 1000, 0.5, 200)}
>>> plan = best_plan("h200:qwen3-32b", 8, targets, demand)
>>> sum(group.width * count for group, count in plan.groups.items())
8
>>> max(group.width for group in plan.groups) > 1  # one GPU alone cannot give a token every 15 ms
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from assay.serving.engine import steady_state
from assay.serving.interface import SLO
from assay.serving.nitsum.tiers import MARGIN, Demand, chunk, strict_first, sustained
from assay.sim.solvers import milp

WIDTHS = (1, 2, 4, 8)
ROLES = ("both", "prefill", "decode")
SPARE = 0.5  # capacity beyond the demand that is worth having, as a share of the demand
SPARE_WORTH = 0.05  # of a request served
SEATS = 512  # sequences of one group at most
BUDGET = 8192  # tokens of an iteration at most


class Sort(NamedTuple):
    """A sort of group: what it does, over how many GPUs, held to which tier's targets (its rank, 0 the strictest)."""

    role: str
    width: int
    level: int


@dataclass(frozen=True)
class Plan:
    """How many groups of each sort, and the rate of requests that they are expected to serve in time."""

    groups: Mapping[Sort, int]
    served: float
    asked: float

    @property
    def kinds(self) -> dict[tuple[str, int], int]:
        """Groups by role and width alone: what a switch would have to change."""
        found: dict[tuple[str, int], int] = {}
        for sort, count in self.groups.items():
            found[sort.role, sort.width] = found.get((sort.role, sort.width), 0) + count
        return found


def name_of(layout: str, width: int) -> str:
    """The layout's name at a width."""
    return layout if width == 1 else f"{layout}:tp{width}"


def fits(layout: str, width: int) -> bool:
    """Whether the model fits this many GPUs."""
    from assay.record.errors import BadInput
    from assay.sim.roofline import layout as cost

    try:
        cost(name_of(layout, width))
    except BadInput:
        return False
    return True


@lru_cache(maxsize=20_000)
def capacity(layout: str, role: str, width: int, demand: Demand, target: SLO, tpot: float) -> float:
    """Requests a second of a kind that one group serves in time, with its batch held to `tpot`."""
    from assay.sim.roofline import layout as cost

    return sustained(cost(name_of(layout, width)), role, demand, target, tpot=tpot, max_seqs=SEATS, max_tokens=BUDGET)


def best_plan(
    layout: str,
    gpus: int,
    targets: Mapping[str, SLO],
    demand: Mapping[str, Demand],
    *,
    roles: tuple[str, ...] = ROLES,
    widths: tuple[int, ...] = WIDTHS,
    kinds: Mapping[tuple[str, int], int] | None = None,
) -> Plan:
    """The plan that serves the most in time; with `kinds` only levels are chosen, roles and widths stay."""
    frozen = tuple(sorted(kinds.items())) if kinds is not None else None
    asked = tuple((name, demand[name]) for name in strict_first(targets) if name in demand)
    ordered = tuple((name, targets[name]) for name in strict_first(targets))
    return _best_plan(layout, gpus, ordered, asked, roles, widths, frozen)


@lru_cache(maxsize=4096)
def _best_plan(
    layout: str,
    gpus: int,
    targets: tuple[tuple[str, SLO], ...],
    demand: tuple[tuple[str, Demand], ...],
    roles: tuple[str, ...],
    widths: tuple[int, ...],
    kinds: tuple[tuple[tuple[str, int], int], ...] | None,
) -> Plan:
    rank = {name: level for level, (name, _) in enumerate(targets)}
    wide = [width for width in widths if width <= gpus and fits(layout, width)]
    sorts = [Sort(r, w, level) for r in roles for w in wide for level in range(len(targets) if r != "prefill" else 1)]
    uses = []  # (sort, tier, requests a second of a whole group)
    for s, sort in enumerate(sorts):
        for t, (name, wanted) in enumerate(demand):
            if sort.role != "prefill" and rank[name] < sort.level:
                continue  # a batch held to a relaxed tier is too large for a strict one
            tpot = targets[sort.level][1].tpot if sort.role != "prefill" else float("inf")
            worth = capacity(layout, sort.role, sort.width, replace(wanted, rate=1.0), targets[rank[name]][1], tpot)
            if worth > 0:
                uses.append((s, t, worth))
    return _solve(gpus, sorts, uses, demand, kinds)


def _solve(
    gpus: int,
    sorts: list[Sort],
    uses: list[tuple[int, int, float]],
    demand: tuple[tuple[str, Demand], ...],
    kinds: tuple[tuple[tuple[str, int], int], ...] | None,
) -> Plan:
    """Columns: groups of each sort; time of each use; per tier: served, spare, served over two groups."""
    n, m, tiers = len(sorts), len(uses), len(demand)
    columns = n + m + 3 * tiers
    served, spare, split = n + m, n + m + tiers, n + m + 2 * tiers
    rows: list[tuple[np.ndarray, float, float]] = []

    def row(low: float, high: float, *entries: tuple[int, float]) -> None:
        line = np.zeros(columns)
        for column, value in entries:
            line[column] += value
        rows.append((line, low, high))

    row(gpus, gpus, *((s, float(sort.width)) for s, sort in enumerate(sorts)))
    for s in range(n):
        row(-np.inf, 0.0, (s, -1.0), *((n + u, 1.0) for u, use in enumerate(uses) if use[0] == s))
    for t in range(tiers):
        by_role = {
            role: [(n + u, -worth) for u, (s, k, worth) in enumerate(uses) if k == t and sorts[s].role == role]
            for role in ("both", "prefill", "decode")
        }
        row(-np.inf, 0.0, (served + t, 1.0), (spare + t, 1.0), (split + t, -1.0), *by_role["both"])
        row(-np.inf, 0.0, (split + t, 1.0), *by_role["prefill"])
        row(-np.inf, 0.0, (split + t, 1.0), *by_role["decode"])
    if kinds is not None:
        count = dict(kinds)
        for kind in sorted({(sort.role, sort.width) for sort in sorts}):
            wanted = float(count.get(kind, 0))
            row(wanted, wanted, *((s, 1.0) for s, sort in enumerate(sorts) if (sort.role, sort.width) == kind))
    cost, most = np.zeros(columns), np.full(columns, np.inf)
    cost[served : served + tiers] = [
        -1.0 - 0.01 * (tiers - t) for t in range(tiers)
    ]  # the stricter where all else is equal
    cost[spare : spare + tiers] = -SPARE_WORTH
    most[:n] = [gpus // sort.width for sort in sorts]
    rates = np.array([wanted.rate for _, wanted in demand])
    most[served : served + tiers], most[spare : spare + tiers] = rates, SPARE * rates
    whole = np.arange(columns) < n
    lines, low, high = (np.array([item[part] for item in rows]) for part in range(3))
    found = milp(cost, lines, low, high, whole, most=most, work=1000, gap=0.01)
    if found.x is None:  # nothing fits: all GPUs for the whole
        return Plan({Sort("both", max(sort.width for sort in sorts), 0): 1}, 0.0, float(rates.sum()))
    groups = {sort: int(found.x[s]) for s, sort in enumerate(sorts) if found.x[s] > 0.5}
    return Plan(groups, float(found.x[served : served + tiers].sum()), float(rates.sum()))


class Batch(NamedTuple):
    """How a group batches: sequences at once, and tokens of an iteration."""

    seats: int
    tokens: int


def batch(layout: str, sort: Sort, targets: Mapping[str, SLO], demand: Mapping[str, Demand]) -> Batch:
    """The largest batch of a group that keeps the time between tokens of its level, prompts' chunks included."""
    name = strict_first(targets)[sort.level]
    if sort.role == "prefill":
        return Batch(SEATS, BUDGET)
    wanted = demand.get(name) or next(iter(demand.values()), Demand(1.0, 1000.0, 1.0, 200.0))
    return _batch(layout, sort, targets[name].tpot, replace(wanted, rate=1.0))


@lru_cache(maxsize=4096)
def _batch(layout: str, sort: Sort, gap: float, wanted: Demand) -> Batch:
    from assay.sim.roofline import layout as cost

    one = cost(name_of(layout, sort.width))
    share = (
        wanted.prompt / max(wanted.output, 1.0) if sort.role == "both" else 0.0
    )  # prompt tokens that come with a decode

    def works(sequences: float) -> bool:
        time = steady_state.iteration(one, sequences, wanted.prompt, wanted.output, sequences * share)
        return sequences <= SEATS and time <= MARGIN * gap

    seats = int(np.clip(steady_state.largest(works), 1, SEATS))
    if sort.role == "decode":
        return Batch(seats, BUDGET)
    fresh = chunk(one, seats, wanted, gap, BUDGET)
    return Batch(seats, int(np.clip(seats + fresh, 2 * seats, BUDGET)))
