"""Serve a trace with a fleet: the loop that lets components decide and the compiled core do the rest.

>>> import numpy as np
>>> from assay.serving.fleet import uniform
>>> from assay.serving.baselines.routers import RoundRobin
>>> from assay.sim.llm_cost import StepCost
>>> from assay.workloads.requests import Requests
>>> cost = StepCost(tokens=0.010 + 1e-5 * np.arange(9000), kv_tokens=100_000)
>>> trace = Requests.of(arrival=[0.0, 0.1, 0.2], prompt=[1000, 500, 200], output=[10, 10, 10])
>>> outcome = simulate(trace, uniform(2, cost), RoundRobin())
>>> [round(seconds, 6) for seconds in outcome.ttft.tolist()]
[0.02, 0.015, 0.012]
"""

from __future__ import annotations

import heapq
import math
import operator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.serving.engine import core, state
from assay.serving.engine.control import Control
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.seen import SimulatedFleet
from assay.serving.engine.state import World
from assay.serving.engine.world import build, cost_arrays, grown
from assay.serving.fleet import FleetSpec, Instance, check
from assay.serving.interface import CacheLayer, Finished, Fleet, Order, Planner, Request
from assay.workloads.closed_loop import closed, opened
from assay.workloads.requests import Requests

SEND, TICK, RELEASE, READ = range(4)
LOOPS = ("closed", "open")
STANDSTILL = 1000  # ticks of a planner in which nothing moves
PATIENCE = 1e-3  # seconds a decision may take, on average; a gateway that needs more holds up its clients


def waited_for_processor() -> float:
    """Seconds that this thread could have run and did not, since others did; 0 where the system does not say.

    >>> waited_for_processor() >= 0.0
    True
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


class PolicyFailed(BadInput):
    """A component raised, chose what is not there, or is too slow."""


@dataclass
class Simulation:
    """One run. `simulate` is the way in; planners and tests use the object."""

    requests: Requests
    fleet: FleetSpec
    router: Any  # Router or BatchRouter
    order: Order | None = None
    cache: CacheLayer | None = None
    planner: Planner | None = None
    mode: str = "macro"
    prefix_cache: bool = True
    record: bool = True
    loop: str = "closed"  # a turn waits for the end of the one before it; "open": it comes when the trace says
    age: float = 0.0  # seconds between two readings of the instances' signals; 0: a policy sees them as they are
    patience: float = PATIENCE
    now: float = 0.0
    policy_seconds: float = 0.0
    decisions: int = 0
    held: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.mode not in ("macro", "step"):
            raise BadInput(f"unknown mode '{self.mode}'; there are macro and step")
        if self.loop not in LOOPS:
            raise BadInput(f"unknown loop '{self.loop}'; there are {' and '.join(LOOPS)}")
        if not 0.0 <= self.age < math.inf:
            raise BadInput(f"signals cannot be {self.age:g} seconds old; give 0 or more")
        check(self.fleet)
        if self.loop == "open":
            self.requests = opened(self.requests)
        elif self.requests.after is None and self.requests.session is not None:
            self.requests = closed(self.requests)
        self._followers = _followers(self.requests)
        self.world: World = build(
            self.requests, self.fleet, prefix_cache=self.prefix_cache, step=self.mode == "step", record=self.record
        )
        self.view = SimulatedFleet(self)
        self._agenda: list[tuple[float, int, int, int, int]] = []
        self._outbox: tuple[int, int, float] | None = None
        self._sequence = self._told = self._followed = self._standing = self._readings = 0
        self._slowest, self._spared = (0.0, -1), 0.0
        self._batch = hasattr(self.router, "assign")
        parts = (self.router, self.order, self.cache, self.planner)
        self._learners: list[Any] = [part for part in parts if hasattr(part, "finished")]
        self.world.counts[state.EACH_FINISH] = bool(self._learners or self._followers)
        self._columns = _Columns(self.requests)
        self._costs = list({id(instance.cost): instance.cost for instance in self.fleet.instances}.values())
        self._links = np.zeros(len(self.fleet))
        # Columns of the records, which stay where they are: a record of its own costs more than what is read of it.
        self._keys, self._preemptions = self.world.requests["key"], self.world.requests["preemptions"]
        self._instances, self._plain = len(self.fleet), self.order is None and self.cache is None
        self.control = Control(self)
        self._set_eligibility()

    # ------------------------------------------------------------------------------------------- the loop

    def run(self) -> Outcome:
        """Serve every request that fits somewhere."""
        began = perf_counter()
        if self.planner is not None:
            if hasattr(self.planner, "begin"):
                self.planner.begin(self.view, self.control)
            self._later(self.planner.period, TICK)
        arrivals = self.requests.arrival.tolist()
        for refused in np.flatnonzero(self._opens & ~self.fits).tolist() if self._followers else ():
            self._follow(refused, arrivals[refused])
        count, r = len(arrivals), self._next_opening(-1)
        if self.age and count:
            self._later(arrivals[0], READ)
        while True:
            t_arrival = arrivals[r] if r < count else math.inf
            scheduled = bool(self._agenda) and self._agenda[0][0] <= t_arrival
            t = self._agenda[0][0] if scheduled else t_arrival
            if r == count and scheduled and self._agenda[0][2] in (TICK, READ) and self._over():
                break
            if not self._advance_to(t, -1 if scheduled or r == count else r):
                continue  # something was scheduled on the way, and may come first
            if t == math.inf:
                break
            self._set_clock(t)
            if scheduled:
                self._do(heapq.heappop(self._agenda))
            else:
                self._arrive(r)
                r = self._next_opening(r)
        return Outcome.of(self, perf_counter() - began)

    def _set_clock(self, t: float) -> None:
        self.now = self.view.now = t
        if self.age:
            self.view.age[:] = t - self.view.read

    def _over(self) -> bool:
        """Whether what is on the agenda only repeats itself, and everybody is served or nobody ever will be."""
        if len(self._agenda) > (self.planner is not None) + (self.age > 0.0):
            return False
        if int(self.world.counts[state.FINISHED_COUNT]) == int(self.fits.sum()):
            return True
        moving = self._outbox is not None or np.isfinite(self.world.groups["next"]).any()
        return self.planner is None and not moving

    def _next_opening(self, r: int) -> int:
        """The next request that fits somewhere and waits for no other."""
        r += 1
        if self._all_open:
            return r
        while r < len(self.fits) and not (self.fits[r] and self._opens[r]):
            r += 1
        return r

    def _advance_to(self, t: float, upcoming: int) -> bool:
        """Let the core run up to time t, and see to what it stops for; False where that put something on the agenda."""
        send, self._outbox = self._outbox, None
        i, r, now = send if send else (-1, -1, 0.0)
        while True:
            view, w = self.view, self.world
            view.matched = view.boarded = upcoming
            why = core.deliver(w.handle, i, r, now, t, upcoming, view.hits, view.prompts)
            if why == state.REACHED:
                break
            i, r = -1, -1
            scheduled = self._sequence
            self._see_to(why)
            if self._sequence > scheduled:
                return False
        if self._learners:
            self._tell()
        return True

    def _see_to(self, why: int) -> None:
        w = self.world
        if why == state.ROOM:
            self.world = grown(w)
            return
        self.view.matched = self.view.boarded = -1
        group = int(w.counts[state.AT])
        self._set_clock(float(w.groups[group]["next"]))
        if why == state.STOPPED:
            self.control.stopped(group)
        if w.counts[state.HANDED_COUNT]:
            self._hand_over()
        if self._learners:
            self._tell()
        if self._followers:
            self._release()
        if self.held and why != state.STOPPED:  # the core stops once a boundary, also where it had another reason
            core.look(w.handle[0], self.now)
            self._assign()

    # ------------------------------------------------------------------------------------------ decisions

    def _request(self, r: int) -> Request:
        return self._columns.request(r)

    def _arrive(self, r: int) -> None:
        request = self._request(r)
        self._restrict(r, decode=False)
        if self._keeps and self.planner.arrived(request, self.view, self.control):  # type: ignore[union-attr]
            return
        if self._batch:
            self.held.append(request)
            self._assign()
            return
        i = self._decide(self.router.route, request)
        if self._plain:
            self._keys[r] = self.now
            self._post(i, r)
        else:
            self.send(r, i, request)

    def _decide(self, route: Any, request: Request) -> int:
        """Ask a policy, and trust nothing about its answer."""
        began = perf_counter()
        try:
            chosen = operator.index(route(request, self.view))
        except Exception as error:
            raise PolicyFailed(self._complaint(request, f"{type(error).__name__}: {error}")) from error
        self._clock(perf_counter() - began, request)
        if not 0 <= chosen < self._instances:
            raise PolicyFailed(self._complaint(request, f"it chose instance {chosen} of a fleet of {self._instances}"))
        if self.view.eligible is not None and not self.view.eligible[chosen]:
            raise PolicyFailed(
                self._complaint(request, f"it chose instance {chosen}, which cannot take it; see fleet.eligible")
            )
        return chosen

    def _complaint(self, request: Request, what: str) -> str:
        name = getattr(self.router, "key", type(self.router).__name__)
        which = f"request {request.id} (arrival {request.arrival:.3f} s, {request.prompt} prompt tokens)"
        return f"policy '{name}' failed on {which}: {what}"

    def _clock(self, seconds: float, request: Request) -> None:
        """Count a decision's time. A policy is too slow by its own time, not by what others took from it meanwhile."""
        if not self.decisions:
            self._spared = seconds - waited_for_processor()  # the first one also loads and compiles what it needs
        self.policy_seconds += seconds
        self.decisions += 1
        if seconds > self._slowest[0]:
            self._slowest = (seconds, int(request.id))
        allowed = 1.0 + self.patience * (self.decisions if self.decisions > 1000 else 1000)
        if self.policy_seconds - self._spared > allowed:
            own = self.policy_seconds - self._spared - waited_for_processor()
            if own > allowed:
                raise PolicyFailed(
                    self._complaint(
                        request,
                        f"it is too slow: {own / self.decisions:.2g} s a decision over {self.decisions} decisions, "
                        f"{self._slowest[0]:.2g} s for request {self._slowest[1]}; allowed are {self.patience:g} s",
                    )
                )

    def send(self, r: int, i: int, request: Request | None = None) -> None:
        """Put request r into the queue of instance i, now."""
        record = self.world.requests[r]
        if self._preemptions[r] == 0 and r not in self.control.moved:  # else it keeps the turn it had
            self._keys[r] = self.now if self.order is None else self.order.key(request or self._request(r), self.now)
        if self.cache is not None and not record["ready"]:
            prefix = int(self.view.match(self._request(r))[i])
            hit = self.cache.lookup(request or self._request(r), i, prefix)
            record["reuse"], record["extra"] = hit.tokens, hit.seconds
        self._post(i, r)

    def _post(self, i: int, r: int) -> None:
        """Request r goes to instance i with the next call of the core."""
        if self._outbox:
            waiting, first, when = self._outbox
            core.enqueue(self.world.handle[0], waiting, first, when)
        self._outbox = (i, r, self.now)

    def _assign(self) -> None:
        if self.held:
            began = perf_counter()
            try:
                chosen = self.router.assign(self.held, self.view)
            except Exception as error:
                raise PolicyFailed(self._complaint(self.held[0], f"{type(error).__name__}: {error}")) from error
            self._clock(perf_counter() - began, self.held[0])
            gone = set()
            for request, i in chosen:
                if not 0 <= operator.index(i) < len(self.fleet):
                    raise PolicyFailed(
                        self._complaint(request, f"it chose instance {i} of a fleet of {len(self.fleet)}")
                    )
                self.send(int(request.id), operator.index(i), request)
                gone.add(request.id)
            if gone:
                self.held = [request for request in self.held if request.id not in gone]
            self._flush()
        self.world.counts[state.HOLD] = bool(self.held)

    def _flush(self) -> None:
        if self._outbox:
            i, r, when = self._outbox
            core.enqueue(self.world.handle[0], i, r, when)
            self._outbox = None

    # -------------------------------------------------------------------------- hand-overs, ticks, learning

    def _hand_over(self) -> None:
        """Requests whose prompt is computed go on to an instance that decodes, with their KV."""
        w = self.world
        core.look(w.handle[0], self.now)
        for r in w.handed[: w.counts[state.HANDED_COUNT]].tolist():
            request = self._request(r)
            if self._stranded(r, decode=True):
                continue
            route = getattr(self.router, "route_decode", None) or _least_loaded
            i = self._decide(route, request)
            record, source = w.requests[r], int(w.requests[r]["prefilled_by"])
            fresh = max(int(record["ready"]) - int(self.view.match(request)[i]), 0)
            cost = self.fleet.instances[source].cost
            seconds = fresh * cost.kv_bytes * (1.0 - self.fleet.overlap) / self.fleet.bandwidth
            begin = max(self.now, float(self._links[source]))  # one transfer at a time leaves an instance
            self._links[source] = begin + seconds
            self._later(begin + seconds + self.fleet.latency, SEND, r, i)
        w.counts[state.HANDED_COUNT] = 0

    def _stranded(self, r: int, decode: bool) -> bool:
        """Whether nobody is left who takes a request under way: then it goes back to the planner, without its KV."""
        self._restrict(r, decode)
        give_back = getattr(self.planner, "stranded", None)
        if give_back is None or self.view.eligible is None or self.view.eligible.any():
            return False
        record = self.world.requests[r]
        record["preemptions"] += record["ready"] > 0
        record["ready"] = 0
        self.control.moved.add(r)
        give_back(self._request(r), self.view, self.control)
        return True

    def _later(self, time: float, kind: int, r: int = -1, i: int = -1) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (time, self._sequence, kind, r, i))

    def _do(self, item: tuple[float, int, int, int, int]) -> None:
        _, _, kind, r, i = item
        if kind == SEND:
            if self._changes and not self.control.takes(r, i):  # the fleet changed while it was under way
                if self._stranded(r, decode=bool(self.world.requests[r]["ready"])):
                    return
                i = self.control.route(r)
            self.send(r, i)
        elif kind == RELEASE:
            self.world.requests[r]["arrival"] = self._columns.arrival[r] = self.now
            self._arrive(r)
        elif kind == READ:
            self.view.refresh()
            self._readings += 1
            self._later(float(self.requests.arrival[0]) + self._readings * self.age, READ)
        elif self.planner is not None:
            self._flush()
            self.planner.plan(self.view, self.control)
            self._notice_standstill()
            self._later(self.now + self.planner.period, TICK)

    def _release(self) -> None:
        """Whoever waited for a request that finished since is sent when the think time is over."""
        w = self.world
        for r in w.finished[self._followed : w.counts[state.FINISHED_COUNT]].tolist():
            self._follow(r, float(w.requests[r]["finish"]))
        self._followed = int(w.counts[state.FINISHED_COUNT])

    def _follow(self, ended: int, when: float) -> None:
        """Let those who waited for a request think. One that fits nowhere ends when it is refused: its user goes on."""
        over = [(ended, when)]
        for before, moment in over:
            for r, think in self._followers.get(before, ()):
                if self.fits[r]:
                    self._later(moment + think, RELEASE, r)
                else:
                    self.world.requests[r]["arrival"] = moment + think
                    over.append((r, moment + think))

    def _notice_standstill(self) -> None:
        """A planner that leaves requests where nobody serves them would let the clock tick for ever."""
        arriving = bool(self.now < self.requests.arrival[self._opens][-1])
        expected = len(self._agenda) > (self.age > 0.0)
        moving = arriving or expected or self._over() or np.isfinite(self.world.groups["next"]).any()
        self._standing = 0 if moving else self._standing + 1
        if self._standing > STANDSTILL:
            left = int(self.fits.sum()) - int(self.world.counts[state.FINISHED_COUNT])
            name = getattr(self.planner, "key", type(self.planner).__name__)
            raise PolicyFailed(f"planner '{name}' leaves {left} requests unserved: all instances stand still")

    def _tell(self) -> None:
        """Tell those who learn what became of the requests that finished since."""
        w = self.world
        for r in w.finished[self._told : w.counts[state.FINISHED_COUNT]].tolist():
            record = w.requests[r]
            done = Finished(
                int(record["output"]), float(record["first"] - record["arrival"]),
                float(record["finish"] - record["arrival"]), int(record["cached"]), int(record["instance"]),
            )  # fmt: skip
            for part in self._learners:
                part.finished(self._request(r), done)
        self._told = int(w.counts[state.FINISHED_COUNT])

    # ----------------------------------------------------------------------------------- who may take what

    def _set_eligibility(self) -> None:
        """Which requests fit anywhere, and whether anybody needs to be told who is eligible."""
        spec, block = self.fleet.instances, self.fleet.block
        self._blocks = -(-(self.requests.prompt.astype(np.int64) + self.requests.output) // block) + 1
        self._capacity = np.array([instance.room // block for instance in spec])
        self._prefills = np.array([instance.role != "decode" for instance in spec])
        self._decodes = np.array([instance.role != "prefill" for instance in spec])
        self._models = np.array([instance.model for instance in spec], dtype=object)
        self._same = bool((self._capacity == self._capacity[0]).all() and (self._prefills & self._decodes).all())
        self._by_model = self.requests.model is not None
        if self._by_model:
            assert self.requests.model is not None
            anywhere = self._largest(np.ones(len(spec), np.bool_))  # found by -1: the request names no model
            largest = np.array([*(self._largest(self._models == name) for name in self.requests.models), anywhere])
            self.fits = self._blocks <= largest[self.requests.model]
        else:
            self.fits = self._blocks <= self._largest(np.ones(len(spec), np.bool_))
        after = self.requests.after
        self._opens = np.ones(len(self.requests), np.bool_) if after is None else after < 0
        self._all_open = bool(self.fits.all() and self._opens.all())
        self._changes = self.planner is not None
        self._keeps = hasattr(self.planner, "arrived")

    def _largest(self, among: NDArray[np.bool_]) -> int:
        """Blocks of the largest request that can be both prefilled and decoded somewhere."""
        starts = self._capacity[among & self._prefills].max(initial=0)
        fixed = min(starts, self._capacity[among & self._decodes].max(initial=0))
        return max(int(fixed), getattr(self.planner, "room", 0) // self.fleet.block)  # of what a planner can form

    def kind(self, spec: Instance) -> int:
        """The row of the cost tables that an instance of this kind uses; a new one is added."""
        known = [cost is spec.cost for cost in self._costs]
        if not any(known):
            self._costs.append(spec.cost)
            changed = self.world._replace(**cost_arrays(self._costs))  # type: ignore[arg-type]
            self.world = changed._replace(handle=state.handle_of(changed))
            return len(self._costs) - 1
        return known.index(True)

    def relabel(self, instance: int, spec: Instance) -> None:
        """Let routers see what an instance has become."""
        self._capacity[instance] = spec.room // self.fleet.block
        self._prefills[instance], self._decodes[instance] = spec.role != "decode", spec.role != "prefill"
        self._models[instance] = spec.model
        self.view.tp[instance], self.view.costs[instance] = spec.tp, spec.cost  # type: ignore[index]

    def _restrict(self, r: int, decode: bool) -> None:
        """Say which instances may take request r."""
        if self._same and not self._by_model and not self._changes:
            return
        mask = (
            (self._decodes if decode else self._prefills)
            & (self._capacity >= self._blocks[r])
            & (self.world.instances["accepts"] == 1)
        )
        if self._by_model:
            assert self.requests.model is not None
            if (asked := self.requests.model[r]) >= 0:
                mask &= self._models == self.requests.models[asked]
        self.view.eligible = mask


@dataclass
class _Columns:
    """The columns of a trace, read row by row."""

    requests: Requests

    def __post_init__(self) -> None:
        trace = self.requests
        self.arrival, self._prompt = trace.arrival.tolist(), trace.prompt.tolist()
        self._session = trace.session.tolist() if trace.session is not None else None
        self._labels = [
            (name, getattr(trace, name).tolist(), getattr(trace, words))
            for name, words in (
                ("tier", "tiers"),
                ("tenant", "tenants"),
                ("model", "models"),
                ("category", "categories"),
            )
            if getattr(trace, name) is not None
        ]

    def request(self, r: int) -> Request:
        """Request r as a policy may see it."""
        request = Request(r, self.arrival[r], self._prompt[r])
        if self._session is not None and self._session[r] >= 0:
            request.session = self._session[r]
        for name, codes, words in self._labels:
            if codes[r] >= 0:
                setattr(request, name, words[codes[r]])
        return request


def _followers(requests: Requests) -> dict[int, list[tuple[int, float]]]:
    """By request: who waits for its end, and the seconds each of them thinks then."""
    found: dict[int, list[tuple[int, float]]] = {}
    if requests.after is None or requests.think is None:
        return found
    later = np.flatnonzero(requests.after >= 0)
    if (requests.after[later] >= later).any() or not (requests.think[later] >= 0).all():
        raise BadInput("a request waits for an earlier one, and thinks for at least 0 seconds")
    for r, before, think in zip(
        later.tolist(), requests.after[later].tolist(), requests.think[later].tolist(), strict=True
    ):
        found.setdefault(before, []).append((r, think))
    return found


def _least_loaded(request: Request, fleet: Fleet) -> int:
    return fleet.argmin(fleet.batch_size, fleet.kv_tokens)


def simulate(requests: Requests, fleet: FleetSpec, router: Any, **options: Any) -> Outcome:
    """Serve a trace with a fleet and one line of components: `order=`, `cache=`, `planner=`, `mode="step"`.

    Sessions are closed loops: a turn is sent when the one before it has ended and its think time is over
    (:mod:`assay.workloads.closed_loop`). With `loop="open"` every request comes when the trace says. With `age=0.5`
    policies see the instances as they were at the last of readings 0.5 seconds apart, as a gateway does that asks its
    engines now and then; what their caches hold is known at once, as by KV events.
    """
    return Simulation(requests, fleet, router, **options).run()


def warm() -> None:
    """Load the compiled core, or compile it where this version has never run, so that no run is timed with it."""
    from assay.serving.baselines.routers import Dynamo  # asks for everything that is compiled
    from assay.serving.fleet import uniform
    from assay.sim.llm_cost import StepCost

    cost = StepCost(np.full(20, 0.01), kv_tokens=256)
    simulate(Requests.of([0.0], [4], [2]), uniform(1, cost, max_tokens=16, max_seqs=2), Dynamo())
