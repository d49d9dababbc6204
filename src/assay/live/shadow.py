"""A second policy that sees all traffic and touches none: what it would have done, beside what was done.

It keeps books of its own, as if its choices had been followed: who has which request, whose cache holds which prompt.
Times it cannot know; loads and hits it can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.live.engines import Engine, LiveFleet
from assay.live.prefix_index import PrefixIndex
from assay.live.settings import Settings

if TYPE_CHECKING:
    from assay.live.relay import Relay


@dataclass(slots=True)
class _Place:
    """Where a request would be, as `LiveFleet` counts it."""

    engine: int
    new: int  # prompt tokens to compute, until the first token
    held: int = 0  # tokens of KV, from then on
    known: int = 0  # blocks of its prompt that were there before


class Shadow:
    """The books of a policy that nobody follows."""

    def __init__(self, router: Any, settings: Settings) -> None:
        self.router = router
        self.name = settings.shadow
        self.fleet = LiveFleet(PrefixIndex(settings.block, settings.blocks, settings.ttl))
        self.decisions = self.agreed = self.errors = 0
        self.prompt = self.matched = self.followed = 0  # tokens: in all, found by the shadow, found by the real policy
        self._spread = self._spread_real = 0.0
        self._where: dict[int | str, _Place] = {}

    def add(self, engine: Engine, blocks: int | None) -> None:
        """One more engine."""
        self.fleet.add(replace(engine), blocks)

    def drop(self, number: int) -> None:
        """One engine less."""
        self.fleet.drop(self.fleet.engines[number])
        self._where = {name: place for name, place in self._where.items() if place.engine != number}
        for place in self._where.values():
            place.engine -= place.engine > number

    def see(self, relay: Relay, real: LiveFleet, decision: dict[str, Any]) -> None:
        """A request was sent somewhere; where would this policy have sent it?"""
        fleet, request = self.fleet, relay.request
        fleet.now, fleet.eligible, fleet.scale = real.now, real.eligible, real.scale
        fleet.kv_free = real.kv_free
        for name in ("itl", "ttft"):
            getattr(fleet, name)[:] = getattr(real, name)
        fleet.paths[request.id] = relay.path
        try:
            if not hasattr(self.router, "route"):
                raise TypeError("it chooses from a pool, which a shadow does not have")
            i = int(self.router.route(request, fleet))
            matched = int(fleet.match(request)[i])
        except Exception:
            self.errors += 1
            fleet.paths.pop(request.id, None)
            return
        new = max(request.prompt - matched, 1)
        fleet.sent(i, request, new)
        self._where[request.id] = _Place(i, new, known=fleet.known(matched))
        self.decisions += 1
        self.agreed += fleet.engines[i].name == decision["engine"]
        self.prompt += request.prompt
        self.matched += matched
        self.followed += relay.matched
        self._spread += _spread(fleet)
        self._spread_real += _spread(real)
        decision["shadow"] = fleet.engines[i].name

    def began(self, relay: Relay) -> None:
        """The real request's first token is there."""
        place = self._where.get(relay.request.id)
        if place is not None and place.new:
            self.fleet.began(place.engine, relay.request, place.new, None)
            place.new, place.held = 0, relay.request.prompt

    def streamed(self, relay: Relay, tokens: int, gap: float) -> None:
        """More of the real request's tokens are there."""
        place = self._where.get(relay.request.id)
        if place is not None and place.held:
            self.fleet.streamed(place.engine, tokens, gap)
            place.held += tokens

    def ended(self, relay: Relay) -> None:
        """The real request is over."""
        self.fleet.paths.pop(relay.request.id, None)
        place = self._where.pop(relay.request.id, None)
        if place is not None and place.new and relay.status != 499:
            self.fleet.paths[relay.request.id] = relay.path
            self.fleet.refused(place.engine, relay.request, place.known)
            self.fleet.paths.pop(relay.request.id, None)
        if place is not None:
            self.fleet.ended(place.engine, relay.request, place.held, place.new)

    def report(self) -> dict[str, Any]:
        """What it would have done, in numbers."""
        n = max(self.decisions, 1)
        return {
            "policy": self.name, "decisions": self.decisions, "agreement": self.agreed / n, "errors": self.errors,
            "match_ratio": self.matched / max(self.prompt, 1), "match_ratio_real": self.followed / max(self.prompt, 1),
            "load_spread": self._spread / n, "load_spread_real": self._spread_real / n,
            "aboard": {engine.name: int(self.fleet.batch_size[i]) for i, engine in enumerate(self.fleet.engines)},
        }  # fmt: skip


def _spread(fleet: LiveFleet) -> float:
    """The fullest engine's load over the mean."""
    load = fleet.batch_size
    mean = float(load.mean()) if len(load) else 0.0
    return float(np.max(load)) / mean if mean else 1.0
