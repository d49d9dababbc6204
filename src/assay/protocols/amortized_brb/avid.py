"""Broadcast by erasure codes: nobody but the sender ever sends the whole message, everybody forwards one fragment.

The sender cuts the message into n fragments of which f + 1 suffice, and sends each node its own, with a proof that it
hangs in the Merkle tree of all. A node echoes its fragment to everybody. n - f echoes under one root give the message;
it is encoded again, and only if the root is right does the node get ready for it. From there on it is Bracha's, with
the root for the message. About 3n|m| + n²κ log n bits.

Cachin and Tessaro, Asynchronous Verifiable Information Dispersal, SRDS 2005.

>>> from assay.protocols.kernel.world import World
>>> outcome = World(n=7, f=2, node=Avid, inputs=[b"hello"]).run("timed")
>>> set(outcome.decided().values()), outcome.meter.by_kind["echo"][0]
({b'hello'}, 42)
"""

from __future__ import annotations

from collections import defaultdict

from assay.protocols.amortized_brb import reed_solomon
from assay.protocols.amortized_brb.vouching import as_bytes
from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.protocols.nodes import merkle


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
            root, proofs = merkle.tree(fragments)
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

    def _fits(self, ctx: Ctx, root: bytes, place: int, fragment: bytes, proof: merkle.Proof) -> bool:
        sound = all(isinstance(one, bytes) for one in proof)
        return sound and merkle.belongs(root, place, fragment, proof, ctx.n)

    def _message(self, ctx: Ctx, root: bytes) -> bytes | None:
        """The message under a root; the same for every node, whichever fragments it has."""
        if root not in self.whole:
            try:
                message: bytes | None = reed_solomon.decode(self.fragments[root], ctx.f + 1)
            except ValueError:
                message = None
            if message is not None and merkle.tree(reed_solomon.encode(message, ctx.n, ctx.f + 1))[0] != root:
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
