"""Which nodes to rent for all models together: a small integer program over the designs of their replicas.

Variables are whole numbers: how many replicas of each design. Every model's replicas must serve its demand, all models
together take no more nodes than there are, and the rent is least. Replicas that run already cost nothing to keep; a new
one costs `switch` of its hourly price once, for the time in which its weights load and it serves nobody. Where no plan
serves everything, the weighted served demand is made largest instead, and among such plans the rent small.

>>> from assay.serving.coral.replica_designs import Design
>>> small, large = Design(((0, 1),), rate=2.0), Design(((1, 1),), rate=9.0)
>>> rented = solve([[small, large]], price=[1.0, 4.0], available=[4, 9], demand=[10.0])
>>> rented.usd_per_hour, [(design.rate, count) for _, design, count in rented.replicas]
(5.0, [(2.0, 1), (9.0, 1)])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.serving.coral.replica_designs import BUDGET, Design, Part, Service, link_bandwidth, step_cost
from assay.serving.fleet import FleetSpec, Instance
from assay.sim.solvers import milp

Floats = NDArray[np.float64]
Choices = Sequence[Sequence[Design]]  # for each model, its designs

GAP = 1e-4  # of the optimum, at which the solver may stop
WORK = 20_000  # nodes of the search tree at most
TIE = 1e-5  # how much of all demand the whole market's rent weighs when demand is what counts
SWITCH = 0.1  # hours of rent that starting a replica costs: six minutes of loading


@dataclass(frozen=True)
class Rental:
    """Replicas as (number of the model, design, how many), their rent, and the demand they serve."""

    replicas: tuple[tuple[int, Design, int], ...]
    usd_per_hour: float
    demand: Floats  # requests a second of each model
    capacity: Floats  # of all replicas of each model
    status: str = "optimal"
    seconds: float = 0.0
    objective: float = 0.0  # what the program minimised

    @property
    def served(self) -> Floats:
        """Requests a second of each model that find capacity."""
        return np.minimum(self.demand, self.capacity)

    @property
    def complete(self) -> bool:
        """Whether all demand is served."""
        return bool((self.capacity >= self.demand * (1 - 1e-6)).all())

    def nodes(self, kinds: int) -> NDArray[np.int64]:
        """Nodes of each configuration."""
        held = np.zeros(kinds, np.int64)
        for _, design, count in self.replicas:
            for config, n in design.nodes:
                held[config] += n * count
        return held

    def fleet(self, services: Sequence[Service]) -> FleetSpec:
        """The instances of the plan, for the serving engine."""
        instances: list[Instance] = []
        for m, design, count in self.replicas:
            for part in design.parts:
                instances += [instance(services[m].model, part)] * (part.count * count)
        return FleetSpec(tuple(instances), bandwidth=network(design for _, design, _ in self.replicas), name="rental")

    def loads(self) -> Floats:
        """The requests on board that each instance of the fleet is planned for, in the fleet's order."""
        parts = [(part, part.count * count) for _, design, count in self.replicas for part in design.parts]
        return np.repeat([part.load for part, _ in parts], [n for _, n in parts])


def instance(name: str, part: Part) -> Instance:
    """One instance of a design's part, with the batch it is planned for as its limit."""
    cost = step_cost(part.layout)
    assert cost is not None, "a design that was enumerated fits"
    return Instance(
        cost, model=name, gpus=part.gpus, role=part.role, max_seqs=part.batch, max_tokens=BUDGET, name=part.layout
    )


def network(designs: Iterable[Design]) -> float:
    """Bytes a second at which KV is handed over: the slowest of the links in use, since the engine has one for all."""
    split = (design.parts for design in designs if len(design.parts) == 2)
    found = [link_bandwidth(a.layout.split(":")[0], b.layout.split(":")[0]) for a, b in split]
    return min(found, default=FleetSpec.bandwidth)


def solve(
    choices: Choices,
    price: ArrayLike,
    available: ArrayLike,
    demand: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    previous: Rental | None = None,
    switch: float = SWITCH,
    budget: float = np.inf,
    scarce: bool | None = None,
    gap: float = GAP,
    work: int = WORK,
    seconds: float = np.inf,
) -> Rental:
    """The cheapest replicas that serve the demand, or, where there are none, the most demand that can be served.

    Args:
        choices: for each model its designs; pruned or not, the value of the best plan is the same.
        price: of a node of each configuration, US dollars per hour.
        available: nodes of each configuration.
        demand: of each model, requests a second.
        weights: of a served request of each model, where not all can be served.
        previous: what runs now.
        switch: hours of rent that starting a replica costs; counts only where something runs.
        budget: US dollars per hour at most.
        scarce: serve the most (True), serve all or fail (False), or try the second, then the first (None).
        gap: how far from the optimum the solver may stop, as a share.
        work: nodes of the search tree at most.
        seconds: time at most; makes the answer depend on the machine.
    """
    began = perf_counter()
    prices, nodes, wanted = (np.asarray(given, np.float64) for given in (price, available, demand))
    program = _Program(choices, prices, nodes, wanted, previous, switch)
    limits = {"gap": gap, "work": work, "seconds": seconds}
    weigh = np.ones(len(choices)) if weights is None else np.asarray(weights, np.float64)
    found = None if scarce else program.cheapest(budget, limits)
    if found is None and scarce is not False:
        found = program.most(weigh, budget, limits)
    if found is None:
        return Rental((), np.inf, program.demand, np.zeros(len(choices)), "infeasible", perf_counter() - began)
    return replace(found, seconds=perf_counter() - began)


@dataclass
class _Program:
    """The columns are all designs of all models; the rows configurations, models, and one for the budget."""

    choices: Choices
    price: Floats
    available: Floats
    demand: Floats
    previous: Rental | None
    switch: float

    def __post_init__(self) -> None:
        from scipy.sparse import csr_array

        self.columns = [(m, design) for m, some in enumerate(self.choices) for design in some]
        entries = [(c, j, n) for j, (_, design) in enumerate(self.columns) for c, n in design.nodes]
        rows, cols, counts = (np.array([entry[i] for entry in entries]) for i in range(3))
        shape = (len(self.price), len(self.columns))
        self.uses = csr_array((counts.astype(float), (rows, cols)) if entries else shape, shape=shape)
        model, rate = np.array([m for m, _ in self.columns]), np.array([design.rate for _, design in self.columns])
        shape = (len(self.choices), len(self.columns))
        self.serves = csr_array((rate, (model, np.arange(len(rate)))) if entries else shape, shape=shape)
        self.rent = np.asarray(self.uses.T @ self.price)
        held = {} if self.previous is None else {(m, d): n for m, d, n in self.previous.replicas}
        self.held = np.array([held.get(column, 0) for column in self.columns], np.float64)
        self.most_of = np.full(len(self.columns), np.inf)
        if entries:
            np.minimum.at(self.most_of, cols, self.available[rows] // counts)

    def cheapest(self, budget: float, limits: dict[str, Any]) -> Rental | None:
        """Serve all at the least rent; None where that cannot be."""
        from scipy.sparse import csr_array, vstack

        if not self.columns:
            return None
        start = self._start_costs()
        rows = vstack(
            [self._wide(self.uses), self._wide(self.serves), self._kept(), csr_array([self._padded(self.rent)])]
        )
        kept = np.flatnonzero(self.held)
        low = [np.full(len(self.price), -np.inf), self.demand, np.full(len(kept), -np.inf), [-np.inf]]
        high = [self.available, np.full(len(self.demand), np.inf), self.held[kept], [budget]]
        costs = np.concatenate([self.rent + np.where(self.held > 0, 0.0, start), start[kept]])
        return self._answer(costs, rows, low, high, self._padded(self.most_of, np.inf), limits)

    def most(self, weights: Floats, budget: float, limits: dict[str, Any]) -> Rental | None:
        """Serve the most; the last variables are what each model is served."""
        from scipy.sparse import block_array, csr_array, eye_array

        models = len(self.demand)
        if not self.columns:
            return Rental((), 0.0, self.demand, np.zeros(models), "optimal")
        start, kept = self._start_costs(), np.flatnonzero(self.held)
        rows = block_array(
            [
                [self._wide(self.uses), None],
                [self._wide(self.serves), -eye_array(models)],
                [self._kept(), csr_array((len(kept), models))],
                [csr_array([self._padded(self.rent)]), csr_array((1, models))],
            ],
            format="csr",
        )
        low = [np.full(len(self.price), -np.inf), np.zeros(models), np.full(len(kept), -np.inf), [-np.inf]]
        high = [self.available, np.full(models, np.inf), self.held[kept], [budget]]
        everything = float(self.price @ self.available)
        tie = TIE * float(weights @ self.demand) / max(everything, 1e-9)
        rent = np.concatenate([self.rent + np.where(self.held > 0, 0.0, start), start[kept]])
        costs = np.concatenate([tie * rent, -weights])
        bounds = np.concatenate([self._padded(self.most_of, np.inf), self.demand])
        return self._answer(costs, rows, low, high, bounds, limits)

    def _start_costs(self) -> Floats:
        return self.rent * (0.0 if self.previous is None else self.switch)

    def _wide(self, rows: Any) -> Any:
        """Columns for the replicas that are started beyond those held."""
        from scipy.sparse import csr_array, hstack

        return hstack([rows, csr_array((rows.shape[0], int((self.held > 0).sum())))], format="csr")

    def _kept(self) -> Any:
        """x - started <= held, for every design that runs."""
        from scipy.sparse import csr_array, eye_array, hstack

        kept = np.flatnonzero(self.held)
        picks = csr_array((np.ones(len(kept)), (np.arange(len(kept)), kept)), shape=(len(kept), len(self.columns)))
        return hstack([picks, -eye_array(len(kept))], format="csr") if len(kept) else picks

    def _padded(self, values: Floats, rest: float = 0.0) -> Floats:
        return np.concatenate([values, np.full(int((self.held > 0).sum()), rest)])

    def _answer(
        self, costs: Floats, rows: Any, low: Sequence[Any], high: Sequence[Any], most: Floats, limits: dict[str, Any]
    ) -> Rental | None:
        whole = np.arange(len(costs)) < len(self.columns)
        lo, hi = np.concatenate(low), np.concatenate(high)
        found = milp(costs, rows, lo, hi, whole, most=most, **limits)
        if found.x is None:
            return None
        x = found.x[: len(self.columns)]
        chosen = tuple((*self.columns[j], int(x[j])) for j in np.flatnonzero(x))
        rent, capacity = float(self.rent @ x), np.asarray(self.serves @ x)
        return Rental(chosen, rent, self.demand, capacity, found.status, objective=found.value)


def started(now: Rental, before: Rental | None) -> list[tuple[int, Design, int]]:
    """Replicas of a plan that did not run before.

    >>> one = Design(((0, 1),), 1.0)
    >>> plans = [Rental(((0, one, n),), 1.0, np.ones(1), np.ones(1)) for n in (2, 5)]
    >>> [count for _, _, count in started(plans[1], plans[0])]
    [3]
    """
    held = {} if before is None else {(m, design): n for m, design, n in before.replicas}
    fresh = [(m, design, n - held.get((m, design), 0)) for m, design, n in now.replicas]
    return [(m, design, n) for m, design, n in fresh if n > 0]
