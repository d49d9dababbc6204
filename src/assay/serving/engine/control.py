"""What a planner may do to a running fleet: stop instances between iterations, move their requests, lay them out anew.

Everything takes effect at the end of the iteration in flight, as in a real engine. Requests that are withdrawn either
keep their KV (it moves, and takes time) or are computed again where they go; either way they keep their turn.

A switch, start to end: `halt` the instances; when they stand still `withdraw` what they hold, `lay_out` the new
layout, say who is `accepting`, `send` the requests on, `resume` at the time the switch is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine import state, world
from assay.serving.engine.batch import withdraw
from assay.serving.engine.own_books import depart
from assay.serving.engine.prefix_cache import clear
from assay.serving.engine.queues import pop
from assay.serving.fleet import Instance

if TYPE_CHECKING:
    from assay.serving.engine.simulator import Simulation


@dataclass(frozen=True)
class Withdrawn:
    """A request taken off an instance.

    >>> Withdrawn(request=7, source=0, context=1200, kept=True).context
    1200
    """

    request: int
    source: int
    context: int  # tokens of KV it held
    kept: bool  # the KV goes along; else it is computed again


class Control:
    """The hands of a planner."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._halting: list[tuple[set[int], Callable[[], None]]] = []
        self.moved: set[int] = set()  # requests that were ever withdrawn

    @property
    def now(self) -> float:
        """The time."""
        return self._simulation.now

    # ------------------------------------------------------------------------------------- who takes what

    def accepting(self, instance: int, yes: bool) -> None:
        """Whether routers may send new requests to an instance, and whether it admits those that wait."""
        self._simulation.world.instances[instance]["accepts"] = int(yes)
        if yes:
            self._wake(instance)

    def limit(self, instance: int, max_seqs: int, max_tokens: int = 0) -> None:
        """Bound the sequences an instance runs at once (0: it admits nobody), and the tokens of its iterations."""
        w = self._simulation.world
        if max_seqs > w.chunks.shape[1]:
            raise ValueError(f"a layout for at most {w.chunks.shape[1]} sequences was foreseen, not {max_seqs}")
        record = w.instances[instance]
        record["max_seqs"] = max_seqs
        if max_tokens:
            record["max_tokens"] = record["chunk_limit"] = max(max_tokens, int(record["decodes"]) + 1)
        self._wake(instance)  # a lower bound, too, holds from the next iteration on

    def _wake(self, instance: int) -> None:
        """Let an instance look at its queue again, after the iteration in flight: someone may be let in now."""
        from assay.serving.engine import core

        w = self._simulation.world
        g = int(w.instances[instance]["group"])
        group = w.groups[g]
        if group["phase"] == state.SETTLE:
            core.cut(w.handle[0], g, self.now)
        elif group["phase"] == state.IDLE and w.instances[instance]["waiting"]:
            group["phase"], group["next"] = state.PLAN, self.now

    @property
    def roles(self) -> NDArray[np.str_]:
        """What each instance does: both, prefill or decode."""
        starts, ends = self._simulation._prefills, self._simulation._decodes
        return np.where(starts & ends, "both", np.where(starts, "prefill", "decode"))

    def holds(self, request: int) -> NDArray[np.bool_]:
        """Which instances have a request's model and room for it, whether or not they accept it now."""
        simulation = self._simulation
        room: NDArray[np.bool_] = simulation._capacity >= simulation._blocks[request]
        names = simulation.requests.model
        if simulation._by_model and names is not None:
            room &= simulation._models == simulation.requests.models[names[request]]
        return room

    def takes(self, request: int, instance: int) -> bool:
        """Whether an instance would take a request that is sent to it now."""
        simulation = self._simulation
        simulation._restrict(request, decode=self._decodes(request))
        eligible = simulation.view.eligible
        return eligible is None or bool(eligible[instance])

    def route(self, request: int) -> int:
        """Where the fleet's router would send a request now."""
        from assay.serving.engine import core
        from assay.serving.engine.simulator import _least_loaded

        simulation, decode = self._simulation, self._decodes(request)
        core.look(simulation.world.handle[0], self.now)
        simulation.view.matched = simulation.view.boarded = -1
        simulation._restrict(request, decode=decode)
        route = simulation.router.route if not decode else getattr(simulation.router, "route_decode", _least_loaded)
        return simulation._decide(route, simulation._request(request))

    def _decodes(self, request: int) -> bool:
        return bool(self._simulation.world.requests[request]["ready"])

    # ------------------------------------------------------------------------------------ stopping, going on

    def halt(self, instances: Sequence[int], then: Callable[[], None]) -> None:
        """Stop instances at the end of their iterations in flight; when all stand still, call `then`."""
        from assay.serving.engine import core

        w, pending = self._simulation.world, set()
        for g in {int(w.instances[i]["group"]) for i in instances}:
            group = w.groups[g]
            if group["phase"] == state.SETTLE:
                core.cut(w.handle[0], g, self.now)
                group["stop"] = 1
                pending.add(g)
            else:
                group["phase"], group["next"] = state.HALTED, np.inf
        if pending:
            self._halting.append((pending, then))
        else:
            then()

    def stopped(self, g: int) -> None:
        """The core reports that a group stands still."""
        self._simulation.world.groups[g]["next"] = np.inf
        for item in list(self._halting):
            item[0].discard(g)
            if not item[0]:
                self._halting.remove(item)
                item[1]()

    def resume(self, instances: Sequence[int], at: float) -> None:
        """Let halted instances go on at a time."""
        w = self._simulation.world
        for g in {int(w.instances[i]["group"]) for i in instances}:
            group = w.groups[g]
            assert group["phase"] == state.HALTED and at >= self.now, "only what stands still goes on, and not earlier"
            group["phase"], group["next"] = state.PLAN, at
            group["done"] = group["valid"] = 0  # the line it followed belongs to the time before the halt

    # ------------------------------------------------------------------------------------- moving requests

    def withdraw(self, instance: int, keep: bool) -> list[Withdrawn]:
        """Take every request off a halted instance: running ones oldest first, then the queue in its order.

        With `keep` a decode brings its KV along; a prompt under way is always computed again.
        """
        w = self._simulation.world
        record, taken = w.instances[instance], []
        while record["oldest"] >= 0:
            r = int(record["oldest"])
            request = w.requests[r]
            decoding = bool(request["state"] == state.DECODING)
            context = int(request["context0"] + record["k"] - request["begun"]) if decoding else int(request["pre"])
            withdraw(w.handle[0], instance, r, keep)
            depart(w.handle[0], instance, r)
            kept = bool(request["ready"] > 0)
            request["preemptions"] += not kept
            taken.append(Withdrawn(r, instance, context, kept))
        while record["waiting"] > 0:
            r = int(pop(w.handle[0], instance))
            depart(w.handle[0], instance, r)
            record["uncomputed"] -= w.requests[r]["expected"]
            if not keep:
                w.requests[r]["ready"] = 0
            ready = int(w.requests[r]["ready"])
            taken.append(Withdrawn(r, instance, ready, ready > 0))
        for item in taken:
            w.requests[item.request]["state"] = state.HANDED
            self.moved.add(item.request)
        return taken

    def send(self, request: int, instance: int, at: float | None = None) -> None:
        """Put a withdrawn request into the queue of an instance, now or later."""
        from assay.serving.engine.simulator import SEND

        self._simulation._later(self.now if at is None else at, SEND, request, instance)

    def refuse(self, request: int) -> None:
        """Give up a request that is nowhere on board: it counts as one that fitted nowhere, and its user goes on."""
        self._simulation.fits[request] = False
        self._simulation._follow(request, self.now)

    # ------------------------------------------------------------------------------------------- layouts

    def lay_out(self, instance: int, spec: Instance) -> None:
        """Give a halted, empty instance another cost, memory and way to batch. Its cache is lost."""
        simulation = self._simulation
        kind = simulation.kind(spec)
        w = simulation.world
        assert w.caches[instance]["active"] == 0, "withdraw its requests first"
        if spec.max_seqs > w.chunks.shape[1]:
            raise ValueError(f"a layout for at most {w.chunks.shape[1]} sequences was foreseen, not {spec.max_seqs}")
        clear(w.handle[0], instance)
        world.configure(w.instances[instance], spec)
        w.instances[instance]["kind"], w.instances[instance]["changed"] = kind, 1
        w.caches[instance]["capacity"] = spec.room // simulation.fleet.block
        simulation.relabel(instance, spec)
