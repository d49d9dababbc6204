"""A world: which nodes there are, how they are linked, what goes wrong. It runs in four ways.

>>> from assay.protocols.nodes.broadcast import Bracha
>>> world = World(n=4, f=1, node=Bracha, inputs=["hello"])
>>> world.run("timed").decided()
{0: 'hello', 1: 'hello', 2: 'hello', 3: 'hello'}

A faulty node lies inside its fault: what it sends, receives and does passes through the fault's hooks, and it does not
know.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag, Through
from assay.protocols.kernel.net import Net, neighbours
from assay.protocols.kernel.run import Outcome

Maker = type[Node] | Callable[[NodeId], Node]
Change = tuple[float, NodeId, bool]


@dataclass(frozen=True)
class World:
    """Everything that determines a run but the way of running it."""

    n: int
    node: Maker | Sequence[Node]
    """A class (or a partial of one), made anew for every node; a function of the id; or the nodes themselves."""
    f: int = 0
    inputs: Sequence[Any] | None = None
    clients: Sequence[Node] = ()
    """Further nodes, numbered from n on, that can reach all others and do not count as participants."""
    topology: Any = "complete"
    net: Net = field(default_factory=Net)
    faults: Mapping[NodeId, Fault] = field(default_factory=dict)
    churn: Sequence[Change] = ()
    """(time, node, up): the node leaves, or comes back without memory. Who is not named first as coming up is there."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"a world of {self.n} nodes; at least 1 expected")
        for node in self.faults:
            if not 0 <= node < self.n + len(self.clients):
                raise ValueError(f"a fault at node {node}, but there are nodes 0 to {self.n - 1} only")

    def make_nodes(self) -> list[Node]:
        """The nodes and clients, fresh, inside their faults."""
        return [self.make(node) for node in range(self.n + len(self.clients))]

    def make(self, node: NodeId) -> Node:
        """One node, fresh, inside its fault."""
        if node >= self.n:
            fresh = copy.deepcopy(self.clients[node - self.n])
        elif isinstance(self.node, (type, partial)):
            fresh = self.node()
        elif callable(self.node):
            fresh = self.node(node)
        else:
            fresh = copy.deepcopy(self.node[node])
        return Faulty(fresh, copy.deepcopy(self.faults[node])) if node in self.faults else fresh

    def neighbours(self) -> list[tuple[NodeId, ...]] | None:
        """Whom each node may send to; None: everybody."""
        return neighbours(self.topology, self.n)

    def run(
        self, mode: str = "timed", *, until: Callable[[Outcome], bool] | None = None, limit: float | None = None,
        **options: Any,
    ) -> Outcome:  # fmt: skip
        """Run in "rounds", in simulated time ("timed"), under a scheduler ("async"), or over sockets ("live").

        `until` is asked after every decision and every completed operation. `limit` counts rounds, seconds or
        deliveries. Further options are those of `rounds.run`, `timed.run`, `asynchronous.run` and `tcp.run`.
        """
        from assay.protocols.kernel import asynchronous, rounds, timed

        modes: dict[str, Callable[..., Outcome]] = {
            "rounds": rounds.run, "timed": timed.run, "async": asynchronous.run, "live": _live,
        }  # fmt: skip
        if mode not in modes:
            raise ValueError(f"no mode '{mode}'; one of {', '.join(modes)} expected")
        if limit is not None:
            options["limit"] = limit
        return modes[mode](self, until=until, **options)


def _live(world: World, **options: Any) -> Outcome:
    from assay.protocols import tcp

    return tcp.run(world, **options)


class _Shim(Through):
    """The context that the node inside sees: what it sends goes through the fault."""

    __slots__ = ("fault", "life")

    def __init__(self, under: Ctx, fault: Fault, life: int) -> None:
        super().__init__(under)
        self.fault, self.life = fault, life

    def timer(self, delay: float, tag: Tag) -> None:
        self.under.timer(delay, ("life", self.life, tag))

    def send(self, to: NodeId, msg: Message) -> None:
        for target, what in self.fault.on_send(self.under, to, msg):
            self.under.send(target, what)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        for target in (*self.under.peers, self.under.id) if to is None else to:
            self.send(target, msg)


class Faulty(Node):
    """A node and its fault, as one node."""

    def __init__(self, inner: Node, fault: Fault) -> None:
        self.inner, self.fault = inner, fault
        self.life = 0  # a crash loses the timers that were set before it
        self._unborn = copy.deepcopy(inner)

    @property
    def every_round(self) -> bool:  # type: ignore[override]
        """As the node inside."""
        return self.inner.every_round

    def start(self, ctx: Ctx) -> None:
        """First the fault, then the node."""
        self.fault.on_start(ctx)
        self.fault.on_step(ctx, lambda: self.inner.start(self._shim(ctx)))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """What the fault lets through."""
        shim = self._shim(ctx)

        def step() -> None:
            for sender, what in self.fault.on_recv(ctx, src, msg):
                self.inner.recv(shim, sender, what)

        self.fault.on_step(ctx, step)

    def tick(self, ctx: Ctx, inbox: list[tuple[NodeId, Message]]) -> None:
        """What the fault lets through of a round."""
        shim = self._shim(ctx)

        def step() -> None:
            kept = [pair for src, msg in inbox for pair in self.fault.on_recv(ctx, src, msg)]
            if kept or self.inner.every_round:
                self.inner.tick(shim, kept)

        self.fault.on_step(ctx, step)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The fault's own timers are for the fault."""
        if tag[0] == "fault":
            then = self.fault.on_timer(ctx, tag[1])
            if then is not None:
                self._restart(ctx, keep=then == "recover")
        elif tag[1] == self.life:
            self.fault.on_step(ctx, lambda: self.inner.timeout(self._shim(ctx), tag[2]))

    def _restart(self, ctx: Ctx, keep: bool) -> None:
        """The node comes back with what is on its disk, or with nothing."""
        fresh = copy.deepcopy(self._unborn)
        for name in self.inner.stable if keep else ():
            setattr(fresh, name, getattr(self.inner, name))
        self.inner, self.life = fresh, self.life + 1
        fresh.start(self._shim(ctx))

    def _shim(self, ctx: Ctx) -> _Shim:
        return _Shim(ctx, self.fault, self.life)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the node inside, for those who look at it from outside."""
        if name.startswith("__") or name in ("inner", "fault"):
            raise AttributeError(name)
        return getattr(self.inner, name)
