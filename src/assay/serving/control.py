"""What a planner may do to a running fleet: stop instances between iterations, move their requests, lay them out anew.

Everything takes effect at the end of the iteration in flight, as in a real engine. Requests that are withdrawn either
keep their KV (it moves, and takes time) or are computed again where they go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.serving import state, world
from assay.serving.fleet import Instance
from assay.serving.instance import withdraw
from assay.serving.queues import pop

if TYPE_CHECKING:
    from assay.serving.engine import Simulation


@dataclass(frozen=True)
class Withdrawn:
    """A request taken off an instance: its number, the instance, and the context whose KV it could bring along."""

    request: int
    source: int
    context: int


class Control:
    """The hands of a planner."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._halting: list[tuple[set[int], Callable[[], None]]] = []

    @property
    def now(self) -> float:
        """The time."""
        return self._simulation.now

    def accepting(self, instance: int, yes: bool) -> None:
        """Whether routers may send new requests to an instance, and whether it admits those that wait."""
        self._simulation.world.instances[instance]["accepts"] = int(yes)

    def halt(self, instances: Sequence[int], then: Callable[[], None]) -> None:
        """Stop instances at the end of their iterations in flight; when all stand still, call `then`."""
        w = self._simulation.world
        groups = {int(w.instances[i]["group"]) for i in instances}
        pending = set()
        for g in groups:
            group = w.groups[g]
            if group["phase"] == state.SETTLE:
                self._interrupt(g)
                group["stop"] = 1
                pending.add(g)
            elif group["phase"] in (state.IDLE, state.PLAN):
                group["phase"], group["next"] = state.HALTED, np.inf
        if pending:
            self._halting.append((pending, then))
        else:
            then()

    def _interrupt(self, g: int) -> None:
        from assay.serving import core

        group = self._simulation.world.groups[g]
        core.cut(self._simulation.world.handle, g, self.now)
        assert group["next"] >= self.now

    def stopped(self, g: int) -> None:
        """The core reports that a group stands still."""
        self._simulation.world.groups[g]["next"] = np.inf
        due = []
        for item in list(self._halting):
            item[0].discard(g)
            if not item[0]:
                self._halting.remove(item)
                due.append(item[1])
        for then in due:
            then()

    def withdraw(self, instance: int, keep: bool) -> list[Withdrawn]:
        """Take every request off a halted instance: running ones oldest first, then the queue in its order."""
        w = self._simulation.world
        record, taken = w.instances[instance], []
        while record["oldest"] >= 0:
            r = int(record["oldest"])
            withdraw(w.handle, instance, r, keep)
            taken.append(Withdrawn(r, instance, int(w.requests[r]["ready"])))
        while record["waiting"] > 0:
            r = int(pop(w.handle, instance))
            record["uncomputed"] -= w.requests[r]["expected"]
            taken.append(Withdrawn(r, instance, int(w.requests[r]["ready"])))
        return taken

    def send(self, request: int, instance: int, at: float | None = None) -> None:
        """Put a withdrawn request into the queue of an instance, now or later."""
        from assay.serving.engine import SEND

        when = self.now if at is None else at
        self._simulation._later(when, SEND, request, instance)

    def route(self, request: int) -> int:
        """Where the fleet's router would send a request now."""
        simulation = self._simulation
        simulation._restrict(request, decode=bool(simulation.world.requests[request]["ready"]))
        return simulation._decide(simulation.router.route, simulation._request(request))

    def lay_out(self, instance: int, spec: Instance) -> None:
        """Give a halted, empty instance another cost, memory and way to batch. Its cache is lost."""
        s = self._simulation
        kind = s.kind(spec)
        record, cache = s.world.instances[instance], s.world.caches[instance]
        assert cache["active"] == 0, "withdraw its requests first"
        world.empty_cache(s.world, instance)
        world.configure(record, spec)
        record["kind"], record["changed"] = kind, 1
        cache["capacity"] = spec.room // s.fleet.block
        s.relabel(instance, spec)

    def resume(self, instances: Sequence[int], at: float) -> None:
        """Let halted instances go on at a time."""
        w = self._simulation.world
        for g in {int(w.instances[i]["group"]) for i in instances}:
            w.groups[g]["phase"], w.groups[g]["next"] = state.PLAN, at
