"""Broadcast by samples: quorums of everybody are replaced by random samples of O(log n) nodes, each node has its own.

Three layers. *Gossip*: whoever first sees the signed message passes it to a sample. *Echoes*: a node hears an echo
sample and moves on when enough of it echo one message. *Readies*: it is ready when its echoes, or enough of a ready
sample, say so, and delivers when enough of a delivery sample is ready. O(n log n) messages, the message itself O(log n)
times a node. The price: every property holds with high probability only, and the thresholds on samples leave less room
for faults than a third.

Guerraoui, Kuznetsov, Monti, Pavlovič and Seredinschi, Scalable Byzantine Reliable Broadcast, DISC 2019.
The sizes (`spread` times ln n) and thresholds (2/3, 1/3, 2/3 of a sample) here are ours.

>>> from assay.protocols.kernel.world import World
>>> outcome = World(n=32, f=2, node=SampledBroadcast, inputs=[b"hello"], seed=1).run("rounds")
>>> set(outcome.decided().values()), len(outcome.decided())
({b'hello'}, 32)
"""

from __future__ import annotations

import math

from assay.protocols.amortized_brb.vouching import DIGEST, as_bytes, digest
from assay.protocols.interface import Ctx, Message, Node, NodeId

LAYERS = ("echo", "ready", "delivery")


class SampledBroadcast(Node):
    """One broadcast of bytes. The sender's input is what it sends; every node decides what it delivers."""

    def __init__(self, sender: NodeId = 0, spread: float = 4.0) -> None:
        self.sender, self.spread = sender, spread
        self.body: bytes | None = None
        self.ready: bytes | None = None
        self.delivered = False
        self.samples: dict[str, frozenset[NodeId]] = {}
        self.heard: dict[str, dict[NodeId, bytes]] = {layer: {} for layer in LAYERS}
        self.subscribers: dict[str, set[NodeId]] = {layer: set() for layer in LAYERS}

    def start(self, ctx: Ctx) -> None:
        """Everybody subscribes to its samples; the sender speaks."""
        for layer in LAYERS:
            self.samples[layer] = frozenset(self._sample(ctx))
            ctx.broadcast(("subscribe", layer), to=sorted(self.samples[layer]))
        if ctx.id == self.sender and ctx.input is not None:
            body = as_bytes(ctx.input)
            self._gossip(ctx, body, ctx.sign(digest(body)))

    def _sample(self, ctx: Ctx) -> list[NodeId]:
        size = min(len(ctx.peers), math.ceil(self.spread * math.log(ctx.n)))
        chosen = ctx.rng.choice(len(ctx.peers), size, replace=False, shuffle=False)
        return [ctx.peers[place] for place in chosen.tolist()]

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Gossip, subscriptions and votes."""
        match msg:
            case ("gossip", bytes(body), bytes(signature)) if self.body is None:
                if ctx.verify(self.sender, digest(body), signature):
                    self._gossip(ctx, body, signature)
            case ("subscribe", str(layer)) if layer in LAYERS:
                self.subscribers[layer].add(src)
                said = self._said(layer)
                if said is not None:
                    ctx.send(src, (layer, said))
            case (str(layer), bytes(value)) if layer in LAYERS and len(value) == DIGEST:
                if src in self.samples[layer] and src not in self.heard[layer]:
                    self.heard[layer][src] = value
                    self._advance(ctx)

    def _said(self, layer: str) -> bytes | None:
        if layer == "echo":
            return None if self.body is None else digest(self.body)
        return self.ready

    def _gossip(self, ctx: Ctx, body: bytes, signature: bytes) -> None:
        self.body = body
        ctx.broadcast(("gossip", body, signature), to=self._sample(ctx))
        ctx.broadcast(("echo", digest(body)), to=sorted(self.subscribers["echo"]))
        self._advance(ctx)

    def _enough(self, layer: str, share: float) -> bytes | None:
        """What at least this share of the sample says."""
        need = math.ceil(share * len(self.samples[layer]))
        values = list(self.heard[layer].values())
        return next((value for value in sorted(set(values)) if values.count(value) >= need), None)

    def _advance(self, ctx: Ctx) -> None:
        if self.body is None:
            return
        own = digest(self.body)
        if self.ready is None:
            echoed = self._enough("echo", 2 / 3)
            pushed = self._enough("ready", 1 / 3)
            self.ready = echoed if echoed == own else pushed
            if self.ready is not None:
                for layer in ("ready", "delivery"):
                    ctx.broadcast((layer, self.ready), to=sorted(self.subscribers[layer]))
        if not self.delivered and self._enough("delivery", 2 / 3) == own:
            self.delivered = True
            ctx.decide(self.body)
