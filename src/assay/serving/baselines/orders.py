"""Who is admitted first: the orders that queues ship, as keys that are set once, smallest first.

A key that never changes is enough even for aging: waiting makes everybody older at the same rate, so the order of two
requests is settled when the second one joins. Shares are kept by start-time fair queueing tags, also set on joining.

>>> sorted(ORDERS)
['aging', 'edf', 'fair', 'fcfs', 'priority', 'sjf', 'weighted']
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from assay.serving.baselines.length_estimates import Quantiles
from assay.serving.interface import Finished, Request

TIERS = {"premium": 1, "standard": 2, "batch": 3}
SHARES = {"premium": 0.5, "standard": 0.3, "batch": 0.2}
DEADLINES = {"premium": 10.0, "standard": 30.0, "batch": 120.0}  # seconds from arrival to the last token

REMEMBERED = 65_536  # tags that a fair order keeps; a gateway's queue is much shorter

Estimate = Callable[[Request], float]
K = TypeVar("K", bound=Hashable)


class FirstCome:
    """First come, first served.

    >>> FirstCome().key(Request(0, arrival=3.0, prompt=10), now=3.5)
    3.0
    """

    name = "fcfs"

    def key(self, request: Request, now: float) -> float:
        """The arrival."""
        return request.arrival


@dataclass
class ShortestFirst:
    """Shortest job first, by an estimate of the answer's length.

    Without an estimate it learns the median per category and tenant from what finishes. Long jobs starve while short
    ones keep coming: see `Aging`.

    >>> order = ShortestFirst(estimate=lambda request: 2.0 * request.prompt)
    >>> order.key(Request(0, arrival=3.0, prompt=10), now=3.5)
    20.0
    """

    name = "sjf"
    estimate: Estimate | None = None
    lengths: Quantiles = field(default_factory=Quantiles)

    def key(self, request: Request, now: float) -> float:
        """Tokens that the answer is expected to take."""
        if self.estimate is not None:
            return self.estimate(request)
        return self.lengths.estimate((request.category, request.tenant))

    def finished(self, request: Request, done: Finished) -> None:
        """Learn from a finished answer."""
        self.lengths.learn((request.category, request.tenant), done.output)


@dataclass
class Priority:
    """Tiers, strictly: nobody of a lower tier while one of a higher waits. Within a tier, first come first.

    >>> order = Priority()
    >>> late, early = Request(0, 900.0, 10, tier="premium"), Request(1, 0.0, 10, tier="batch")
    >>> order.key(late, 900.0) < order.key(early, 900.0)
    True
    """

    name = "priority"
    tiers: Mapping[str, int] = field(default_factory=lambda: dict(TIERS))

    def key(self, request: Request, now: float) -> float:
        """The tier, then the arrival; a tier nobody named comes last."""
        return 1e9 * self.tiers.get(request.tier, max(self.tiers.values())) + request.arrival


@dataclass
class Aging:
    """The tier's rank minus `rate` times the seconds waited.

    A request of rank 3 overtakes a newcomer of rank 1 after 2 / rate seconds: 200 s with the default.

    >>> order = Aging(rate=0.01)
    >>> old, new = Request(0, 0.0, 10, tier="batch"), Request(1, 201.0, 10, tier="premium")
    >>> order.key(old, 0.0) < order.key(new, 201.0)
    True
    """

    name = "aging"
    rate: float = 0.01
    tiers: Mapping[str, int] = field(default_factory=lambda: dict(TIERS))

    def key(self, request: Request, now: float) -> float:
        """rank - rate (t - arrival), without the part that grows alike for all."""
        return self.tiers.get(request.tier, max(self.tiers.values())) + self.rate * request.arrival


@dataclass
class Weighted:
    """Shares of the service for each tier while all of them have work waiting: start-time fair queueing.

    A request's tag is the later of the virtual time and the tag at which its tier's last request ends; each request
    moves its tier by its cost over its share. The virtual time follows the tags of what finishes, so a tier that was
    away cannot claim the past. The cost is one a request, or tokens where an `estimate` is given.

    A request may never finish (the client left, the engine failed), and nobody says so. Its tag is forgotten once the
    virtual time has passed it, or when there are too many.

    >>> order = Weighted({"a": 0.5, "b": 0.25})
    >>> [order.key(Request(n, 0.0, 10, tier=tier), 0.0) for n, tier in enumerate("aab")]
    [0.0, 2.0, 0.0]

    Goyal, Vin and Cheng, SIGCOMM 1996.
    """

    name = "weighted"
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    estimate: Estimate | None = None

    def __post_init__(self) -> None:
        self._now = 0.0
        self._other = min(self.shares.values(), default=1.0)  # the share of whoever has none
        self._end: dict[str, float] = {}
        self._tags: dict[int | str, float] = {}

    def key(self, request: Request, now: float) -> float:
        """The start tag."""
        group = self.group(request)
        tag = max(self._now, self._end.get(group, 0.0))
        cost = 1.0 if self.estimate is None else self.estimate(request)
        self._end[group] = tag + cost / self.shares.get(group, self._other)
        self._tags[request.id] = tag
        if len(self._tags) > REMEMBERED:
            self._tags = _ahead(self._tags, self._now)
        if len(self._end) > REMEMBERED:
            self._end = _ahead(self._end, self._now)
        return tag

    def finished(self, request: Request, done: Finished) -> None:
        """Virtual time moves on."""
        self._now = max(self._now, self._tags.pop(request.id, 0.0))

    def group(self, request: Request) -> str:
        """Who has the share."""
        return request.tier


@dataclass
class Fair(Weighted):
    """Tenants get equal service while they have work waiting, however much each of them sends: `Weighted` by tenant.

    `shares` may give some of them more or less than the others' 1.

    >>> order = Fair()
    >>> [order.key(Request(n, 0.0, 10, tenant=tenant), 0.0) for n, tenant in enumerate("aaaab")]
    [0.0, 1.0, 2.0, 3.0, 0.0]
    """

    name = "fair"
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._other = 1.0

    def group(self, request: Request) -> str:
        """The tenant."""
        return request.tenant


def _ahead(tags: dict[K, float], passed: float) -> dict[K, float]:
    """The tags that virtual time has not reached, the farthest half where that is still too many."""
    left = {name: tag for name, tag in tags.items() if tag > passed}
    most = REMEMBERED // 2
    return left if len(left) <= most else dict(heapq.nlargest(most, left.items(), key=lambda item: item[1]))


@dataclass
class EarliestDeadline:
    """Earliest deadline first: arrival plus the tier's limit.

    >>> EarliestDeadline({"fast": 2.0}).key(Request(0, arrival=3.0, prompt=10, tier="fast"), now=3.5)
    5.0
    """

    name = "edf"
    limits: Mapping[str, float] = field(default_factory=lambda: dict(DEADLINES))

    def key(self, request: Request, now: float) -> float:
        """The deadline; a tier nobody named has the latest."""
        return request.arrival + self.limits.get(request.tier, max(self.limits.values()))


ORDERS: dict[str, type[Any]] = {
    order.name: order for order in (FirstCome, ShortestFirst, Priority, Weighted, Fair, Aging, EarliestDeadline)
}
