"""A node inside a fault: what it sends, receives and does passes through the fault's hooks, and it does not know."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag, Through


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
