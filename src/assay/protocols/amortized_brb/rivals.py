"""Reliable broadcasts that send less than Bracha's: the rivals of the chained one. Each bears what its text says.

**Avid**: broadcast by erasure codes. Nobody but the sender ever sends the whole message, everybody forwards one
fragment. The sender cuts the message into n fragments of which f + 1 suffice, and sends each node its own, with a proof
that it hangs in the Merkle tree of all. A node echoes its fragment to everybody. n - f echoes under one root give the
message; it is encoded again, and only if the root is right does the node get ready for it. From there on it is
Bracha's, with the root for the message. About 3n|m| + n²κ log n bits.

Cachin and Tessaro, Asynchronous Verifiable Information Dispersal, SRDS 2005.

>>> from assay.protocols.kernel.world import World
>>> outcome = World(n=7, f=2, node=Avid, inputs=[b"hello"]).run("timed")
>>> set(outcome.decided().values()), outcome.meter.by_kind["echo"][0]
({b'hello'}, 42)

**HashedBracha**: Bracha's broadcast with the message sent once and only its digest echoed, n|m| + 2n²κ bits instead of
2n²|m|. A node that is to deliver a digest whose message it never got asks those who echoed it; f + 1 of them are
correct and have it. The baseline of every broadcast that claims to send less.

>>> outcome = World(n=4, f=1, node=HashedBracha, inputs=[b"hello"]).run("timed")
>>> outcome.decided()
{0: b'hello', 1: b'hello', 2: b'hello', 3: b'hello'}

**SampledBroadcast**: broadcast by samples. Quorums of everybody are replaced by random samples of O(log n) nodes, each
node has its own. Three layers. *Gossip*: whoever first sees the signed message passes it to a sample. *Echoes*: a node
hears an echo sample and moves on when enough of it echo one message. *Readies*: it is ready when its echoes, or enough
of a ready sample, say so, and delivers when enough of a delivery sample is ready. O(n log n) messages, the message
itself O(log n) times a node. The price: every property holds with high probability only, and the thresholds on samples
leave less room for faults than a third.

Guerraoui, Kuznetsov, Monti, Pavlovič and Seredinschi, Scalable Byzantine Reliable Broadcast, DISC 2019.
The sizes (`spread` times ln n) and thresholds (2/3, 1/3, 2/3 of a sample) here are ours.

>>> outcome = World(n=32, f=2, node=SampledBroadcast, inputs=[b"hello"], seed=1).run("rounds")
>>> set(outcome.decided().values()), len(outcome.decided())
({b'hello'}, 32)
"""

from __future__ import annotations

import math
from collections import defaultdict

from assay.protocols.amortized_brb import reed_solomon
from assay.protocols.amortized_brb.chained import DIGEST, as_bytes, digest
from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.protocols.kernel.signatures import Proof, belongs, tree


class Avid(Node):
    """One broadcast of bytes. The sender's input is what it sends; every node decides what it delivers."""

    def __init__(self, sender: NodeId = 0) -> None:
        self.sender = sender
        self.echoed = self.ready = self.delivered = False
        self.fragments: defaultdict[bytes, dict[NodeId, bytes]] = defaultdict(dict)
        self.readies: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.whole: dict[bytes, bytes | None] = {}
        """By root: the message, or None where the sender's fragments were none of one message."""

    def start(self, ctx: Ctx) -> None:
        """The sender deals out the fragments."""
        if ctx.id == self.sender and ctx.input is not None:
            fragments = reed_solomon.encode(as_bytes(ctx.input), ctx.n, ctx.f + 1)
            root, proofs = tree(fragments)
            for node in range(ctx.n):
                ctx.send(node, ("send", root, fragments[node], proofs[node]))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Echo one's own fragment once, get ready once, deliver once."""
        match msg:
            case ("send", bytes(root), bytes(fragment), tuple(proof)) if src == self.sender and not self.echoed:
                if self._fits(ctx, root, ctx.id, fragment, proof):
                    self.echoed = True
                    ctx.broadcast(("echo", root, fragment, proof))
            case ("echo", bytes(root), bytes(fragment), tuple(proof)) if src not in self.fragments[root]:
                if self._fits(ctx, root, src, fragment, proof):
                    self.fragments[root][src] = fragment
                    if len(self.fragments[root]) == ctx.n - ctx.f and self._message(ctx, root) is not None:
                        self._get_ready(ctx, root)
                    self._deliver(ctx, root)
            case ("ready", bytes(root)):
                self.readies[root].add(src)
                if len(self.readies[root]) > ctx.f:
                    self._get_ready(ctx, root)
                self._deliver(ctx, root)

    def _fits(self, ctx: Ctx, root: bytes, place: int, fragment: bytes, proof: Proof) -> bool:
        sound = all(isinstance(one, bytes) for one in proof)
        return sound and belongs(root, place, fragment, proof, ctx.n)

    def _message(self, ctx: Ctx, root: bytes) -> bytes | None:
        """The message under a root; the same for every node, whichever fragments it has."""
        if root not in self.whole:
            try:
                message: bytes | None = reed_solomon.decode(self.fragments[root], ctx.f + 1)
            except ValueError:
                message = None
            if message is not None and tree(reed_solomon.encode(message, ctx.n, ctx.f + 1))[0] != root:
                message = None
            self.whole[root] = message
        return self.whole[root]

    def _get_ready(self, ctx: Ctx, root: bytes) -> None:
        if not self.ready:
            self.ready = True
            ctx.broadcast(("ready", root))

    def _deliver(self, ctx: Ctx, root: bytes) -> None:
        enough = len(self.readies[root]) > 2 * ctx.f and len(self.fragments[root]) > ctx.f
        if enough and not self.delivered and (message := self._message(ctx, root)) is not None:
            self.delivered = True
            ctx.decide(message)


class HashedBracha(Node):
    """One broadcast of bytes. The sender's input is what it sends; every node decides what it delivers."""

    def __init__(self, sender: NodeId = 0) -> None:
        self.sender = sender
        self.echoed = self.ready = self.delivered = False
        self.bodies: dict[bytes, bytes] = {}
        self.echoes: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.readies: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.missing: bytes | None = None
        self.asked: set[NodeId] = set()
        self.served: set[NodeId] = set()

    def start(self, ctx: Ctx) -> None:
        """The sender speaks."""
        if ctx.id == self.sender and ctx.input is not None:
            ctx.broadcast(("send", as_bytes(ctx.input)))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Echo once, get ready once, deliver once."""
        if len(msg) != 2 or not isinstance(msg[1], bytes):
            return
        kind, value = msg
        if kind == "send" and src == self.sender and not self.echoed:
            self.echoed = True
            self._have(ctx, value)
            ctx.broadcast(("echo", digest(value)))
        elif kind == "body":
            self._have(ctx, value)
        elif len(value) != DIGEST:
            return
        elif kind == "echo":
            self.echoes[value].add(src)
            if len(self.echoes[value]) > (ctx.n + ctx.f) // 2:
                self._get_ready(ctx, value)
            if value == self.missing:
                self._ask(ctx)
        elif kind == "ready":
            self.readies[value].add(src)
            if len(self.readies[value]) > ctx.f:
                self._get_ready(ctx, value)
            self._deliver(ctx, value)
        elif kind == "want" and value in self.bodies and src not in self.served:
            self.served.add(src)
            ctx.send(src, ("body", self.bodies[value]))

    def _have(self, ctx: Ctx, body: bytes) -> None:
        name = digest(body)
        if name == self.missing or not self.bodies:
            self.bodies[name] = body
            self._deliver(ctx, name)

    def _get_ready(self, ctx: Ctx, value: bytes) -> None:
        if not self.ready:
            self.ready = True
            ctx.broadcast(("ready", value))

    def _deliver(self, ctx: Ctx, value: bytes) -> None:
        if self.delivered or len(self.readies[value]) <= 2 * ctx.f:
            return
        if value in self.bodies:
            self.delivered = True
            ctx.decide(self.bodies[value])
        elif self.missing is None:
            self.missing = value
            self._ask(ctx)

    def _ask(self, ctx: Ctx) -> None:
        """Ask everyone who echoed what is missing, f + 1 at most: one of them is correct and has it."""
        assert self.missing is not None
        for other in sorted(self.echoes[self.missing] - self.asked - {ctx.id}):
            if len(self.asked) <= ctx.f and not self.delivered:
                self.asked.add(other)
                ctx.send(other, ("want", self.missing))


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
