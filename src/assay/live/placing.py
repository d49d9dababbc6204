"""Who gets a request: the engine that the policy chooses among those that can take it, or a place in the queue."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.live.admission import Queue
from assay.live.engines import STARTING, UP, Engine, LiveFleet
from assay.live.guard import Guard
from assay.live.lanes import Lane, Lanes
from assay.live.prefix_index import PrefixIndex
from assay.live.relay import NOBODY, RETRY, Relay
from assay.live.settings import Settings
from assay.serving.engine import components
from assay.serving.interface import Request

if TYPE_CHECKING:
    from assay.live.gateway import Gateway

_LOOK_BACK = 64  # decisions that the view shows
_EVERY = 60.0  # seconds between two complaints about a policy
_HANDED_OVER = ("chat", "completion")  # endpoints whose prompts one engine can compute for another
_WARM = 60.0  # seconds that a policy may take to load


class Placing:
    """The policy, the queue, and the pool of a policy that chooses from one."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._fleet = gateway.fleet
        self.router: Any = None
        self.order: Any = None
        self._learners: list[Any] = []
        self.batch = False  # whether the policy chooses from a pool
        self.use(components.router(settings.policy), components.order(settings.order) if settings.order else None)
        self.lanes = Lanes(gateway.fleet.engines)
        self.queue: Queue[Relay] = Queue(settings.queue)
        self.held: dict[int | str, Relay] = {}  # of a router that chooses from a pool
        self.decisions: deque[dict[str, Any]] = deque(maxlen=_LOOK_BACK)
        self.guard = Guard(settings.policy_time)
        self.error = ""  # of the policy, the last one
        self._told = float("-inf")  # when standard error last heard of one

    def use(self, router: Any, order: Any) -> None:
        """Decide with these from now on."""
        self.router, self.order = router, order
        self.batch = hasattr(router, "assign")
        self._learners = [part for part in (router, order) if hasattr(part, "finished")]

    def learners(self, canary: bool) -> list[Any]:
        """The components that are told what became of a request."""
        if not canary or self._gateway.canary is None:
            return self._learners
        return [part for part in (self._gateway.canary.router, self.order) if hasattr(part, "finished")]

    def best(self, names: tuple[str, ...]) -> str:
        """Of several models the first that some engine has and is up."""
        for name in names:
            if any(e.state == UP and name in e.models for e in self._fleet.engines):
                return name
        return names[0]

    def fall_back(self, relay: Relay) -> bool:
        """Whether one of its other models can answer a request; then that one is asked for from now on."""
        if not relay.names or relay.keeper is not None:  # what one engine keeps no other model's can go on from
            return False
        left = relay.names[relay.names.index(relay.request.model) + 1 :]
        best = self.best(left) if left else ""
        if not any(e.state == UP and best in e.models for e in self._fleet.engines):
            return False
        relay.request.model = best
        relay.failed = NOBODY
        return True

    def renew(self, router: Any, order: Any, settings: Settings) -> None:
        """Decide as the settings say now; who waits for the old policy is decided about by the new one."""
        self.queue.limit, self.guard.seconds = settings.queue, settings.policy_time
        self.use(router, order)
        held, self.held = list(self.held.values()), {}
        for relay in held:
            self.admit(relay, again=True)
        self.changed()

    def warm(self) -> None:
        """Let a policy like this one decide once: what it has to load or compile is no part of a decision."""
        fleet = LiveFleet(PrefixIndex(self._gateway.index.block))
        for engine in self._fleet.engines:
            fleet.add(replace(engine))
        fleet.slots[:] = 1
        bound, self.guard.seconds = self.guard.seconds, _WARM
        with contextlib.suppress(Exception):  # it will say so when it counts
            router, request = components.router(self._gateway.settings.policy), Request(-1, 0.0, 64, text="", model="")
            if hasattr(router, "assign"):
                self.guard.call(lambda: list(router.assign([request], fleet)))
            else:
                self.guard.call(router.route, request, fleet)
        self.guard.seconds = bound

    @property
    def waiting(self) -> int:
        """Requests that no engine has yet."""
        return len(self.queue) + len(self.held)

    # ------------------------------------------------------------------------------------------ coming

    def admit(self, relay: Relay, again: bool = False) -> None:
        """Place a request, or let it wait, or turn it away."""
        if self._gateway.draining and not again:
            relay.give_up(503, "the gateway is about to stop", RETRY)
            return
        now = self._gateway.now()
        if self.order is not None and not again:
            relay.key = self._order_key(relay.request, now)
        self._fleet.paths[relay.request.id] = relay.path
        if self.lanes.roles and not again:
            relay.stage = self.stage(relay)
        if relay.full == "refuse" and not again and self._full(relay):
            relay.give_up(429, f"every engine of the model {relay.request.model} has enough to do", RETRY)
        elif self.batch and relay.endpoint != "other":
            self._hold(relay, now)
        elif (not again and len(self.queue) and self.queue.waits(self.lane(relay))) or not self.place(relay):
            self._fleet.cache_changed()  # when it has its turn, blocks may have grown too old
            relay.due = self._patience(relay, now)
            away = self.queue.join(relay, relay.key, self.lane(relay))
            if away is not None:
                away.give_up(429, "too many requests wait here", RETRY)

    def _full(self, relay: Relay) -> bool:
        """Whether engines that are up could take it, and none has room."""
        mask = self._eligible(relay)
        return mask is not None and not mask.any() and self.able(relay)

    def lane(self, relay: Relay) -> Hashable:
        """What all requests have in common that the same engines can take."""
        lane = self._lane(relay)
        return (lane, relay.failed, relay.lost > 0, relay.bereft) if relay.failed or relay.lost else lane

    def _lane(self, relay: Relay) -> Lane:
        """The engines that can take it: of all models that may answer it, where they stand in for each other."""
        if relay.keeper is not None:
            return self.lanes.only(relay.keeper)
        if self._spreads(relay):
            return self.lanes.any(relay.names)
        return self.lanes.of(relay.request.model, relay.stage)

    def _spreads(self, relay: Relay) -> bool:
        """Whether it goes to the next of its models where the first is full."""
        return relay.full == "overflow" and relay.keeper is None and not relay.stage and not self.batch

    def able(self, relay: Relay, bereft: bool = False) -> bool:
        """Whether there is an engine that could take it, now or when others are done; if its own were dead, too."""
        lane = self._lane(relay)
        able = (e for e in self._fleet.engines if e.state == UP and e in lane and e not in relay.failed)
        return any(self._may(relay, e, bereft) for e in able)

    def spares(self, relay: Relay, bereft: bool = False) -> bool:
        """Whether it must not be sent to the last engine of a model that is up: one died while it had it."""
        return self._gateway.settings.spare_last and (relay.bereft or bereft)

    def _may(self, relay: Relay, engine: Engine, bereft: bool = False) -> bool:
        """Whether it may be sent to an engine at all."""
        return not self.spares(relay, bereft) or (not engine.dead and bool(self._others(engine)))

    def _others(self, engine: Engine) -> list[Engine]:
        """Who lives and can answer whatever an engine can: without any of them it is the last of some model."""
        mine = set(engine.models)
        alike = [e for e in self._fleet.engines if e is not engine and not e.dead and e.role == engine.role]
        return [e for e in alike if not e.models or mine <= set(e.models)]

    def _trusted(self, relay: Relay, engine: Engine) -> bool:
        """Whether an engine may have it now, since others failed with it.

        What kills an engine is to be told from what was there when it died: so they come one by one. Where the last one
        is spared, another one stays that has none of them: two may be more than their engines can bear.
        """
        if len(engine.doubted) >= engine.trust or not self._may(relay, engine):
            return False
        return not self.spares(relay) or any(not e.doubted for e in self._others(engine))

    def another(self, relay: Relay) -> bool:
        """Whether there is an engine that could take it now and was not tried."""
        lane = self._lane(relay)
        whole = self.lanes.of(relay.request.model) if relay.stage else lane
        tried = {*relay.failed, relay.engine}
        left = (e for e in self._fleet.engines if e.open and (e in lane or e in whole) and e not in tried)
        return any(self._may(relay, e) for e in left)

    def stage(self, relay: Relay) -> str:
        """What a request begins with: its prompt on an engine of its own, where there are engines for both."""
        if relay.endpoint not in _HANDED_OVER:
            return ""
        up = [e for e in self._fleet.engines if e.state == UP and e not in relay.failed and self._may(relay, e)]
        lanes = [self.lanes.of(relay.request.model, stage) for stage in ("prefill", "decode")]
        return "prefill" if all(any(e in lane for e in up) for lane in lanes) else ""

    def starting(self, relay: Relay) -> bool:
        """Whether some engine that may be able to take it has never answered, and still may."""
        lane = self._lane(relay)
        return any(e.state == STARTING and e in lane for e in self._fleet.engines)

    def _patience(self, relay: Relay, now: float) -> float:
        """Until when it may wait: for its turn as long as it likes, for an engine that starts until that is given up,
        for one that is down only so long."""
        waits = self.able(relay) or self.starting(relay)
        return relay.deadline if waits else min(relay.deadline, now + self._gateway.settings.wait)

    def _order_key(self, request: Request, now: float) -> float:
        try:
            return float(self.guard.call(self.order.key, request, now))
        except Exception as error:
            self.complain(error, request)
            return request.arrival

    def complain(self, error: Exception, request: Request) -> None:
        """A component failed; the request is served all the same. Standard error hears of it once a minute."""
        gateway = self._gateway
        gateway.counters.policy_errors += 1
        self.error = f"{type(error).__name__}: {error}"
        now = gateway.now()
        if now - self._told >= _EVERY:
            self._told = now
            print(
                f"assay: a component failed on request {gateway.named(request)} ({request.prompt} tokens, model "
                f"'{request.model[:80]}'): {self.error[:300]}; the least loaded engine takes it "
                f"({gateway.counters.policy_errors} times so far)", file=sys.stderr, flush=True,
            )  # fmt: skip

    # ------------------------------------------------------------------------------------------ choosing

    def place(self, relay: Relay) -> bool:
        """Send it to the engine that the policy chooses; False where none has room."""
        if not self._fleet.engines:
            return False
        overflows = relay.full == "overflow" and self._spreads(relay)
        mask = self._overflow(relay) if overflows else self._eligible(relay)
        if mask is not None and not mask.any():
            return False
        fleet = self._fleet
        now = fleet.now = self._gateway.now()
        fleet.eligible = mask
        fleet.scores = None  # of another request
        i = self._decide(relay, mask) if relay.endpoint != "other" else self._least(mask)
        self._send(relay, i, now)
        return True

    def _overflow(self, relay: Relay) -> NDArray[np.bool_] | None:
        """It asks for the first of its models that has room; who can take it then."""
        mask = None
        for name in relay.names:
            relay.request.model = name
            if (mask := self._eligible(relay)) is None or mask.any():
                return mask
        relay.request.model = self.best(relay.names)
        return mask

    def _eligible(self, relay: Relay) -> NDArray[np.bool_] | None:
        engines = self._fleet.engines
        served = (
            self.lanes.of(relay.request.model, relay.stage).mask if relay.keeper is None else self._lane(relay).mask
        )
        if served is None and not relay.failed and not relay.lost and _all_open(engines):
            return None
        mask = np.array([e.open and e not in relay.failed for e in engines], np.bool_)
        if relay.lost:
            mask &= [self._trusted(relay, e) for e in engines]
        return mask if served is None else mask & served

    def _least(self, mask: NDArray[np.bool_] | None) -> int:
        """For what is no prompt: the policy is not asked, so that a list of models does not cost a prompt its turn."""
        engines = [e for e in self._fleet.engines if mask is None or mask[e.number]]
        return min(engines, key=lambda engine: engine.aboard).number

    def _decide(self, relay: Relay, mask: NDArray[np.bool_] | None) -> int:
        """Ask the policy; where it fails, the least loaded engine takes it, and the failure is counted."""
        fleet, request, router = self._fleet, relay.request, self.router
        canary = self._gateway.canary
        if canary is not None and canary.takes(relay):
            relay.arm, router = True, canary.router
        began = perf_counter()
        try:
            i = int(self.guard.call(router.route, request, fleet))
            if not 0 <= i < len(fleet) or (mask is not None and not mask[i]):
                raise IndexError(f"it chose {i}")
        except Exception as error:
            self.complain(error, request)
            i = fleet.argmin(fleet.batch_size)
        self._gateway.counters.policy.observe(perf_counter() - began)
        return i

    def _send(self, relay: Relay, i: int, now: float) -> None:
        gateway, fleet, request = self._gateway, self._fleet, relay.request
        engine = fleet.engines[i]
        relay.tries += 1
        first = relay.tries == 1 and relay.stage != "decode"
        both = relay.stage == "prefill" and engine.bootstrap  # then the next decision is made before this call is over
        if not both:  # somebody waits for it, and for nothing that is written down below
            relay.ask(engine, now)
        hits = fleet.match(request).item(i) if len(relay.path) else 0
        relay.matched, relay.known = hits, fleet.known(hits)
        relay.new = max(request.prompt - hits, 1) if relay.transfer is None else 1
        if gateway.log.on:
            relay.load = (int(fleet.running[i]), int(fleet.kv_tokens[i]), int(fleet.prefill_tokens[i]))
        decision = (
            {"request": request.id, "engine": engine.name, "prompt": request.prompt, "matched": relay.matched,
             "scores": fleet.scores,
             "engines": fleet.names, "eligible": fleet.eligible, "at": now, "shadow": None, "canary": relay.arm}
        )  # fmt: skip
        self.decisions.append(decision)
        if first:
            gateway.counters.queueing.observe(now - relay.arrival)
        fleet.sent(i, request, relay.new)
        if relay.lost:
            engine.doubted.add(relay)
        engine.aboard += 1
        engine.requests += 1
        engine.prompt += request.prompt
        engine.matched += relay.matched
        if both:
            relay.ask(engine, now)
        if gateway.shadow is not None and first and relay.endpoint != "other":
            gateway.shadow.see(relay, fleet, decision)

    # ------------------------------------------------------------------------------------------ waiting

    def _hold(self, relay: Relay, now: float) -> None:
        if len(self.held) >= max(self.queue.limit, 1):
            relay.give_up(429, "too many requests wait here", RETRY)
            return
        relay.due = self._patience(relay, now)
        self.held[relay.request.id] = relay
        self.assign()

    def assign(self) -> None:
        """Let a router that chooses from a pool assign what it will: one pool for what the same engines can take."""
        pools: dict[Hashable, list[Relay]] = {}
        for relay in self.held.values():
            if relay.full == "overflow" and relay.keeper is None and not relay.stage:
                self._overflow(relay)
            pools.setdefault(self.lane(relay), []).append(relay)
        for pool in pools.values():
            self._assign(pool)

    def _assign(self, pool: list[Relay]) -> None:
        fleet, mask = self._fleet, self._eligible(pool[0])
        if not fleet.engines or (mask is not None and not mask.any()):
            return
        fleet.now, fleet.eligible = self._gateway.now(), mask
        fleet.slots[:] = [e.limit if mask is None or mask[e.number] else 0 for e in fleet.engines]
        chosen: list[tuple[Request, int | None]]
        try:
            requests = [relay.request for relay in pool]
            chosen = self.guard.call(lambda: list(self.router.assign(requests, fleet)))
        except Exception as error:
            self.complain(error, pool[0].request)
            chosen = [(relay.request, None) for relay in pool]
        for request, i in chosen:
            relay = self.held.get(request.id)
            if i is not None and (not 0 <= i < len(fleet) or (mask is not None and not mask[i])):
                self.complain(IndexError(f"it chose {i}"), request)
                i = None
            engine = fleet.engines[fleet.argmin(fleet.batch_size) if i is None else int(i)]
            trusted = not pool[0].lost or self._trusted(pool[0], engine)
            if relay is not None and engine.open and trusted:  # it may be full by now
                del self.held[request.id]
                self._send(relay, engine.number, fleet.now)

    def left(self, relay: Relay) -> None:
        """It waits no longer, if it did."""
        self.queue.leave(relay)
        self.held.pop(relay.request.id, None)
        self._fleet.paths.pop(relay.request.id, None)

    def room(self, engine: Engine | None = None) -> None:
        """An engine has room again, or any of them may have: those who can use it are served."""
        if len(self.queue):
            if engine is None:
                self.queue.serve(self.place)
            elif engine.open:
                self.queue.serve(self.place, lambda key: _usable(key, engine))
        if self.held:
            self.assign()

    def changed(self) -> None:
        """Engines came, went, or changed what they serve."""
        self.lanes.changed()
        now = self._gateway.now()
        for relay in (*self.queue, *self.held.values()):
            if not self.able(relay) and not self.fall_back(relay):
                relay.due = min(relay.due, self._patience(relay, now))
        if len(self.queue):
            self.queue.sort(self.lane)
        self.room()


def _usable(key: Hashable, engine: Engine) -> bool:
    """Whether an engine can take the requests of a lane."""
    lane, failed, *_ = key if isinstance(key, tuple) else (key, ())
    assert isinstance(lane, Lane)
    return engine in lane and engine not in failed


def _all_open(engines: list[Engine]) -> bool:
    for engine in engines:  # noqa: SIM110 - on every request's path, and a generator costs twice as much
        if engine.state != UP or engine.aboard >= engine.room:  # as `open` says
            return False
    return True
