"""Which layout of a model on at most so many GPUs serves a trace within its targets for the least money.

A layout is a number of equal replicas (`6xh200:qwen3-32b:tp2`), or some replicas that prefill and others that decode.
Replicas are cut by tensor, pipeline and expert parallelism in powers of two. The search

1. leaves out what cannot hold the model,
2. counts what the cost model alone forbids (`layout_bounds`): targets that an idle replica misses, work that so few
   replicas cannot do in the time there is,
3. simulates what is left, cheapest kinds first, and bisects the number of replicas, which takes for granted that one
   more replica serves no worse. Of split fleets the end that prefills is first tried beside decodes that are never
   short, and the end that decodes beside the least of the former; from what each needs there, but for luck, pairs are
   tried in the order of their price.

All GPUs being alike, the cheapest layout is the one of the fewest GPUs; of several such the one that most requests are
served in time by.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Any, NamedTuple

import numpy as np

from assay.record.errors import BadInput
from assay.serving.engine import bill, components
from assay.serving.engine import layout_bounds as bounds
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.own_trace import served_here
from assay.serving.engine.simulator import simulate
from assay.serving.engine.targets import Targets
from assay.serving.fleet import FleetSpec, Instance, check, parse
from assay.sim.layouts import Layout, read_layout
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests

NO_COST = StepCost(np.zeros(1))  # where only the model counts
ENDS = ("prefill", "decode")
AMPLE = 2  # times all GPUs, as replicas of an end that is never short
LUCK = 0.03  # of the requests: what an end may miss beside such a one and still be tried, as routers break ties by luck


class Pool(NamedTuple):
    """Equal replicas of one cut with one role."""

    size: int
    kind: str  # device:model:tp…
    role: str = "both"

    @property
    def text(self) -> str:
        """As `--fleet` takes it."""
        return f"{self.size}x{self.kind}" + ("" if self.role == "both" else f":{self.role}")


class Tried(NamedTuple):
    """A layout that was simulated."""

    pools: tuple[Pool, ...]
    gpus: int
    attainment: float
    outcome: Outcome

    @property
    def text(self) -> str:
        """As `--fleet` takes it."""
        return "+".join(pool.text for pool in self.pools)


@dataclass
class Found:
    """What a search came to: the layouts that serve in time, cheapest first, and what became of the others."""

    meets: list[Tried]
    misses: list[Tried]  # those that do not, the best first
    cannot_hold: dict[str, str]  # by cut: why
    forbidden: dict[str, str]  # by cut: which bound
    kinds: int  # cuts that hold the model
    simulated: int
    roles: int  # cuts times roles that were bounded
    complete: bool = True  # False: the most that may be simulated was reached first

    @property
    def nearest(self) -> Tried | None:
        """Of those that do not serve enough in time, the one that serves the most."""
        return self.misses[0] if self.misses else None


@dataclass
class Search:
    """One question: the trace, the targets, the GPUs, and how a fleet is run."""

    requests: Requests
    slo: Targets
    gpus: int
    layout: str  # device:model[:dtype], uncut
    policy: str  # key of a router
    attainment: float = 0.95
    most: int = 400  # simulations
    block: int = 16
    cost: str = "measured"
    split: bool = True
    admission: str | None = None  # instead of the engine's default
    price: str | None = None  # instead of list prices, as `bill.priced` reads it
    order: str | None = None  # key of an order
    options: dict[str, Any] = field(default_factory=dict)  # of `simulate`
    progress: Callable[[int, int], None] = lambda done, total: None

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise BadInput(f"--gpus {self.gpus}: give at least 1")
        components.router(self.policy)  # a wrong name is refused before anything runs
        one = FleetSpec((Instance(NO_COST, model=read_layout(self.layout).model.name),))
        self.requests = served_here(self.requests, one)
        self._runs: dict[tuple[Pool, ...], Tried] = {}
        self._best = self.gpus + 1  # GPUs of the cheapest that serves in time
        self._tasks = 1

    @property
    def limits(self) -> tuple[bounds.Floats, bounds.Floats, bounds.Floats]:
        """The targets of each request."""
        return bounds.per_request(self.slo, self.requests)

    # ------------------------------------------------------------------------------------------- running

    def fleet(self, pools: Sequence[Pool]) -> FleetSpec:
        """The pools as a fleet."""
        found = parse("+".join(pool.text for pool in pools), block=self.block, cost=self.cost)
        if self.admission is not None:
            found = replace(found, instances=tuple(replace(one, admission=self.admission) for one in found.instances))
        return found if self.price is None else bill.priced(found, self.price)

    def simulate(self, fleet: FleetSpec) -> Outcome:
        """Run a fleet with a fresh router and a fresh order: they may learn."""
        order = {} if self.order is None else {"order": components.order(self.order)}
        router = components.router(self.policy)
        return simulate(self.requests, fleet, router, record=False, **order, **self.options)

    def run(self, pools: tuple[Pool, ...]) -> Tried:
        """Simulate a layout; what was simulated is known."""
        if pools not in self._runs:
            if len(self._runs) >= self.most:
                raise _Exhausted
            fleet = self.fleet(pools)
            outcome = self.simulate(fleet)
            self._runs[pools] = Tried(pools, fleet.gpus, outcome.attainment(self.slo), outcome)
            self.progress(min(len(self._runs), self._tasks - 1), self._tasks)
        return self._runs[pools]

    def meets(self, *pools: Pool) -> bool:
        """Whether the layout serves enough in time; where it does and GPUs suffice, none that costs more is sought."""
        tried = self.run(pools)
        if tried.attainment < self.attainment:
            return False
        self._best = min(self._best, tried.gpus)
        return True

    # ------------------------------------------------------------------------------------------ searching

    def search(self) -> Found:
        """Everything, or as much as `most` simulations allow."""
        kinds, cannot_hold = cuts(self.layout, self.gpus, self.block, self.cost)
        if not kinds:
            raise BadInput(f"{self.layout} fits no cut of {self.gpus} GPUs: {next(iter(cannot_hold.values()))}")
        roles = ("both", *ENDS) if self.split and self.gpus > 1 else ("both",)
        least: dict[tuple[str, str], int] = {}
        forbidden: dict[str, str] = {}
        for kind, role in product(kinds, roles):
            one = replace(kinds[kind], role=role)
            limit = bounds.Limits.of(one, self.requests, self.slo, self.block, self._cached)
            least[kind, role] = needed = limit.replicas(self.attainment)
            if needed * kinds[kind].gpus > self.gpus:
                forbidden[f"{kind} ({role})"] = limit.reason(self.attainment)
        self._tasks = 8 * len(kinds) * len(roles)
        complete = True
        try:
            self._replicas(kinds, least)
            if len(roles) > 1:
                self._splits(kinds, least)
        except _Exhausted:
            complete = False
        return self._found(cannot_hold, forbidden, len(kinds), len(least), complete)

    @property
    def _cached(self) -> bool:
        return bool(self.options.get("prefix_cache", True))

    def _found(
        self, cannot_hold: dict[str, str], forbidden: dict[str, str], kinds: int, roles: int, complete: bool
    ) -> Found:
        within = [tried for tried in self._runs.values() if tried.gpus <= self.gpus]
        meets = [tried for tried in within if tried.attainment >= self.attainment]
        meets.sort(key=lambda tried: (tried.gpus, -tried.attainment, float(tried.outcome.ttft.mean()), tried.text))
        misses = [tried for tried in within if tried.attainment < self.attainment]
        misses.sort(key=lambda tried: (-tried.attainment, tried.gpus, tried.text))
        return Found(meets, misses, cannot_hold, forbidden, kinds, len(self._runs), roles, complete)

    def _replicas(self, kinds: dict[str, Instance], least: dict[tuple[str, str], int]) -> None:
        """Equal replicas, the kinds first that the bounds let be cheapest."""
        for kind in sorted(kinds, key=lambda kind: (least[kind, "both"] * kinds[kind].gpus, kinds[kind].gpus)):
            each, low = kinds[kind].gpus, least[kind, "both"]
            high = min(self._best, self.gpus) // each  # as cheap as the best is of interest, dearer is not
            self._fewest(low, high, lambda n, kind=kind: self.meets(Pool(n, kind)))  # type: ignore[misc]

    @staticmethod
    def _fewest(low: int, high: int, meets: Callable[[int], bool]) -> int:
        """The fewest replicas from `low` to `high` that meet the targets; high + 1 where none do."""
        if low > high or not meets(high):
            return high + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle + 1, high)
        return low

    def _splits(self, kinds: dict[str, Instance], least: dict[tuple[str, str], int]) -> None:
        """Some replicas prefill and others decode: pairs of kinds, in the order of what they cost at least."""
        prefill, decode = ENDS
        ample = Pool(AMPLE * self.gpus, self._fastest(kinds), decode)
        room = self.gpus - min(least[kind, decode] * kinds[kind].gpus for kind in kinds)
        first = self._ends(kinds, least, prefill, lambda pool: (pool, ample), room)
        if not first:
            return
        # A faster first end would bring its requests all at once: the second is tried beside the least that suffices.
        spare = min(first, key=lambda kind: first[kind] * kinds[kind].gpus)
        beside = Pool(first[spare], spare, prefill)
        room = self.gpus - first[spare] * kinds[spare].gpus
        second = self._ends(kinds, least, decode, lambda pool: (beside, pool), room)
        self._pairs(kinds, first, second)

    def _ends(
        self, kinds: dict[str, Instance], least: dict[tuple[str, str], int], role: str,
        whole: Callable[[Pool], tuple[Pool, ...]], room: int,
    ) -> dict[str, int]:  # fmt: skip
        """By kind the fewest replicas that suffice as one end of the whole; kinds of which too few fit are left out."""
        found = {}
        for kind in sorted(kinds, key=lambda kind: least[kind, role] * kinds[kind].gpus):
            high = min(room, self._best - (self.gpus - room)) // kinds[kind].gpus

            def enough(n: int, kind: str = kind) -> bool:
                return self.run(whole(Pool(n, kind, role))).attainment >= self.attainment - LUCK

            found[kind] = self._fewest(least[kind, role], high, enough)
            if found[kind] > high:
                del found[kind]
        return found

    def _pairs(self, kinds: dict[str, Instance], prefill: dict[str, int], decode: dict[str, int]) -> None:
        """Pairs from what each end needs at least, upwards, cheapest first, until one is as dear as the best."""
        turn = count()
        heap = [
            (n * kinds[first].gpus + m * kinds[second].gpus, next(turn), n, m, first, second)
            for first, n in prefill.items()
            for second, m in decode.items()
        ]  # fmt: skip
        heapq.heapify(heap)
        seen = {item[2:] for item in heap}
        while heap and heap[0][0] <= min(self._best, self.gpus):
            cost, _, n, m, first, second = heapq.heappop(heap)
            if self.meets(Pool(n, first, ENDS[0]), Pool(m, second, ENDS[1])):
                continue
            for more, price in (((n + 1, m), kinds[first].gpus), ((n, m + 1), kinds[second].gpus)):
                item = (*more, first, second)
                if item not in seen:
                    seen.add(item)
                    heapq.heappush(heap, (cost + price, next(turn), *item))

    def _fastest(self, kinds: dict[str, Instance]) -> str:
        """The kind that decodes quickest alone."""
        prompt = int(self.requests.prompt.mean())
        return min(kinds, key=lambda kind: kinds[kind].cost.seconds(1, prompt))


class _Exhausted(Exception):  # noqa: N818  it is no error, and leaves this module never
    """As many simulations as may be run were run."""


def cuts(layout: str, gpus: int, block: int = 16, cost: str = "measured") -> tuple[dict[str, Instance], dict[str, str]]:
    """The cuts of a model that fit at most so many GPUs, by name; and those that cannot hold it, with the reason.

    >>> fit, not_fit = cuts("h100:llama-3-70b", 2)
    >>> sorted(fit), sorted(not_fit)
    (['h100:llama-3-70b:pp2', 'h100:llama-3-70b:tp2'], ['h100:llama-3-70b'])
    """
    whole = read_layout(layout)
    found: dict[str, Instance] = {}
    refused: dict[str, str] = {}
    for cut in _all_cuts(whole, gpus):
        try:
            fleet = parse(f"1x{cut.name}", block=block, cost=cost)
            check(fleet)
            found[cut.name] = fleet.instances[0]
        except BadInput as error:
            refused[cut.name] = str(error)
    return found, refused


def _all_cuts(whole: Layout, gpus: int) -> Iterator[Layout]:
    """Powers of two that divide what they cut."""
    powers = [2**n for n in range(gpus.bit_length()) if 2**n <= gpus]
    experts = powers if whole.model.experts else [1]
    for tp, pp, ep in product(powers, powers, experts):
        try:
            cut = replace(whole, tp=tp, pp=pp, ep=ep)
        except BadInput:
            continue
        if cut.ranks <= gpus and (ep == 1 or ep >= tp):
            yield cut
