"""What every component of the serving room speaks.

A component sees a `Request` and a `Fleet`, and decides one thing: a `Router` where a request goes, a `BatchRouter`
which of the held-back requests go where, an `Order` who is admitted first, a `CacheLayer` what else than a prefix can
be reused, a `Planner` how the fleet should be laid out. Any of them combine. The same objects run in simulation and
in front of real engines; output lengths are not in a `Request`, because nobody knows them there either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

if TYPE_CHECKING:
    from assay.serving.engine.control import Control
    from assay.sim.llm_cost import StepCost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SLO(NamedTuple):
    """Targets of a request, in seconds; infinity where there is none."""

    ttft: float = float("inf")
    tpot: float = float("inf")
    e2e: float = float("inf")


@dataclass(slots=True)
class Request:
    """A request as a policy sees it."""

    id: int | str
    arrival: float
    prompt: int  # tokens
    session: int | str | None = None
    tier: str = ""
    tenant: str = ""
    model: str = ""
    category: str = ""
    max_tokens: int | None = None
    text: str | None = None  # live, or where the trace has text


@dataclass(slots=True)
class Finished:
    """What became of a request, for components that learn."""

    output: int  # tokens
    ttft: float
    e2e: float
    cached: int
    instance: int


@njit(cache=True)
def _alone(score: Any) -> int:
    """Where the smallest score is, or -1 if there are several of it."""
    least, at, times = score[0], 0, 1
    for i in range(1, len(score)):
        if score[i] < least:
            least, at, times = score[i], i, 1
        elif score[i] == least:
            times += 1
    return at if times == 1 else -1


class Fleet(ABC):
    """The instances as a policy sees them: one array entry each.

    In simulation and live alike. `age` says how old the remote part of the signals is, in seconds.
    """

    now: float = 0.0
    running: Ints  # sequences admitted
    waiting: Ints  # sequences in the queue
    prefill_tokens: Ints  # prompt tokens accepted and not computed yet
    kv_tokens: Ints  # tokens of KV that running sequences hold
    kv_free: Floats  # share of the KV memory that nobody holds
    itl: Floats  # moving average of the time between tokens
    ttft: Floats  # moving average of the time to first token
    age: Floats
    tp: Ints
    eligible: NDArray[np.bool_] | None = None  # None: all are; else who may take the present request
    costs: Sequence[StepCost] = ()  # empty where nothing is known

    _turn: int = 0

    def __len__(self) -> int:
        return len(self.running)

    @abstractmethod
    def match(self, request: Request) -> Ints:
        """Leading prompt tokens that each instance has in its cache."""

    def new_prefill_tokens(self, request: Request) -> Ints:
        """Prompt tokens each instance would have to compute; an engine always computes at least the last one."""
        return np.maximum(request.prompt - self.match(request), 1)

    @property
    def unanswered(self) -> Ints:
        """Prompt tokens not cached when they were sent, of requests without a token yet, as a gateway counts them."""
        return self.prefill_tokens

    def prompt_tokens(self, request: Request) -> Ints:
        """Tokens of the prompts on board, running and waiting, this one's with them.

        In simulation, full blocks, each counted once, whoever shares it. A fleet that keeps no such book answers with
        what running sequences hold and others will have to compute.
        """
        return self.kv_tokens + self.unanswered + request.prompt

    @property
    def batch_size(self) -> Ints:
        """Requests on board: running and waiting."""
        return self.running + self.waiting

    def argmin(self, score: Any, *ties: Any, alone: int = -1) -> int:
        """The eligible instance with the smallest score; ties by the next score, and then in rotation.

        `alone` is where the smallest score of all is, if the caller knows that no other is as small.
        """
        if self.eligible is not None:
            score = np.where(self.eligible, score, np.inf)
        elif alone >= 0:
            return alone
        elif type(score) is np.ndarray and score.dtype == np.int64:  # as most are: one call finds a clear case
            alone = _alone(score)
            if alone >= 0:
                return int(alone)
        # Lists: for the fleets there are, a reduction of an array costs more than it saves.
        values = score if isinstance(score, list) else np.asarray(score).tolist()
        least = min(values)
        if values.count(least) == 1:
            return int(values.index(least))
        best = [i for i, value in enumerate(values) if value == least]
        for tie in ties:
            values = np.asarray(tie).tolist()
            least = min([values[i] for i in best])
            best = [i for i in best if values[i] == least]
            if len(best) == 1:
                return best[0]
        self._turn += 1
        begin = self._turn % len(self)
        return next((i for i in best if i >= begin), best[0])


class Cacheless(Fleet):
    """Instances without a prefix cache, their signals set by hand: to ask a policy what it would do.

    >>> fleet = Cacheless()
    >>> fleet.running, fleet.waiting = np.array([3, 1]), np.array([0, 0])
    >>> fleet.argmin(fleet.new_prefill_tokens(Request(0, 0.0, prompt=100)) * (fleet.batch_size + 1))
    1
    """

    def match(self, request: Request) -> Ints:
        """Nothing, anywhere."""
        return np.zeros(len(self), np.int64)


class Router(Protocol):
    """Who serves a request."""

    def route(self, request: Request, fleet: Fleet) -> int:
        """The number of an instance."""
        ...


class BatchRouter(Protocol):
    """Holds requests back, and assigns some whenever an instance is between two iterations."""

    def assign(self, queue: Sequence[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        """Which of the queue (oldest first) go where now."""
        ...


class Order(Protocol):
    """In which order an instance admits."""

    def key(self, request: Request, now: float) -> float:
        """Smallest first; set when the request joins the queue."""
        ...


class Hit(NamedTuple):
    """Prompt tokens that need not be computed, and the seconds that making them usable takes."""

    tokens: int
    seconds: float = 0.0


class CacheLayer(Protocol):
    """What can be reused beyond a prefix."""

    def lookup(self, request: Request, instance: int, prefix: int) -> Hit:
        """What the layer supplies on this instance after the first `prefix` tokens; called once, when routed."""
        ...


class Planner(Protocol):
    """The slow loop: looks at the fleet every `period` seconds and may change its layout."""

    period: float

    def plan(self, fleet: Fleet, control: Control) -> None:
        """Act through `control`."""
        ...
