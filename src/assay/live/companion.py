"""SGLang's hand-over: prompt and answer are asked for at once, and the two engines find each other in a room.

The engine that computes the prompt gets the request with its own bootstrap address and a random room; the engine that
decodes gets the same three fields, and fetches the prompt's KV there. The client hears the second one. What the first
one answers says only that it is done; until then it is a request on board there.
"""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING, Any

from assay.live.engines import Engine
from assay.live.http1 import ResponseHead
from assay.live.upstream import Pool, Upstream

if TYPE_CHECKING:
    from assay.live.relay import Relay

_ROOMS = SystemRandom()  # nobody may guess another's room


def room(engine: Engine) -> dict[str, Any]:
    """What both engines are told: where the prompt's KV will be."""
    bits = _ROOMS.getrandbits(63)
    return {"bootstrap_host": engine.address.host, "bootstrap_port": engine.bootstrap, "bootstrap_room": bits}


class Companion:
    """The half of a request that computes its prompt."""

    __slots__ = ("_message", "_relay", "_status", "_upstream", "due", "engine", "method", "new")

    def __init__(self, relay: Relay, engine: Engine, message: bytes) -> None:
        self._relay = relay
        self.engine, self.new, self.due = engine, relay.new, relay.deadline
        self.method = relay.method
        self._status = 0
        relay.gateway.companions.add(self)
        self._message = message
        self._upstream = engine.pool.ask(self, message, False)

    def connected(self, upstream: Upstream) -> bool:
        """A connection was opened for it; False where it is not wanted any more."""
        if self not in self._relay.gateway.companions:
            return False
        self._upstream = upstream
        return True

    def unreachable(self, pool: Pool, why: str) -> None:
        """No connection could be opened for it."""
        self.engine.errors += 1
        self._fail(why)
        self._relay.gateway.unreachable(self.engine, why)

    def answered(self, head: ResponseHead) -> None:
        """The head is there."""
        self.engine.answered = True
        self._status = head.status

    def payload(self, data: bytes) -> None:
        """What it says is of no use to anybody: the other half says it, too."""

    def complete(self) -> None:
        """The prompt is computed, or the engine would not."""
        self._upstream = None
        if self._status < 300:
            gateway, request = self._relay.gateway, self._relay.request
            if self.engine.number >= 0:
                gateway.fleet.began(self.engine.number, request, self.new, None)
            self.engine.failures, self.new = 0, 0
            self._off(request.prompt)
        else:
            self.broken(f"the engine that was to compute the prompt answered {self._status}", False)

    def broken(self, why: str, stale: bool) -> None:
        """It failed: unless the answer has begun, all of it is asked for anew."""
        self._upstream = None
        relay, gateway = self._relay, self._relay.gateway
        if self not in gateway.companions:
            return
        if stale:
            self._upstream = self.engine.pool.ask(self, self._message, True)
            return
        lost = self._status == 0
        if lost or self._status >= 500:
            relay.blame(self.engine, why)
        if lost or (self._status >= 500 and gateway.settings.spare_last):
            gateway.roster.when_known(self.engine, relay.placed, lambda: self._lost(why, lost))
        else:
            self._fail(why)

    def _fail(self, why: str) -> None:
        relay = self._relay
        if self._off(0) and not relay.exchange.started and relay.companion is self:
            relay.failed |= {self.engine}
            relay.anew(why)

    def abandon(self, why: str) -> None:
        """Its engine is down."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()
        self._relay.gateway.later(self._lost, why)

    def _lost(self, why: str, lost: bool = True) -> None:
        if self in self._relay.gateway.companions:
            self._relay.bereave(self.engine, lost)
        self._fail(why)

    def drop(self) -> None:
        """Nobody needs it any more."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()
        self._off(0)

    def _off(self, held: int) -> bool:
        """It is no longer on its engine; False where it was not."""
        gateway = self._relay.gateway
        if self not in gateway.companions:
            return False
        gateway.companions.remove(self)
        self.engine.aboard -= 1
        if self.engine.number >= 0:
            gateway.fleet.ended(self.engine.number, self._relay.request, held, self.new)
        gateway.later(gateway.placing.room, self.engine)
        return True
