"""The central registry: node 0 keeps every record, all others ask it. One round trip, and one node to lose."""

from __future__ import annotations

from typing import Any, ClassVar

from assay.protocols.interface import Ctx, Message, NodeId
from assay.protocols.nodes.overlay import KEY_BYTES, Overlay, Then, is_record

REGISTRY: NodeId = 0


class Registry(Overlay):
    """A client of the registry, or (node 0) the registry itself."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Overlay.shapes,
        "get": (str, int, bytes), "got": (str, int, tuple), "put": (str, int, bytes, tuple), "done": (str, int),
    }  # fmt: skip

    def join(self, ctx: Ctx, gateway: NodeId) -> None:
        """Nothing to do: the registry's address is known."""
        self.enter(ctx)

    def resolve(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        """Ask the registry."""
        if ctx.id == REGISTRY:
            if kind == "put":
                self.keep(ctx, key, payload)
            self.resolved(ctx, then, 0, ctx.id, self.records(ctx, key))
        else:
            body = (key, payload) if kind == "put" else (key,)
            self.call(ctx, REGISTRY, kind, body, ("registry", kind, key, payload, then, deadline))

    def on_get(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody looks a name up."""
        _, number, key = msg
        ctx.send(src, ("got", number, self.records(ctx, key)))

    def on_put(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody publishes."""
        _, number, key, record = msg
        if len(key) == KEY_BYTES and is_record(record):
            self.keep(ctx, key, record)
            ctx.send(src, ("done", number))

    def on_got(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The registry answered."""
        asked = self.answered(src, msg[1])
        if asked is not None:
            self.resolved(ctx, asked[4], 1, src, msg[2] if msg[0] == "got" else ())

    on_done = on_got

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """Once more, until the deadline."""
        _, kind, key, payload, wanted, deadline = then
        if ctx.now < deadline:
            self.resolve(ctx, kind, key, payload, wanted, deadline)
        else:
            self.resolved(ctx, wanted, None, -1, ())
