"""Reliable links over unreliable ones: node 0 sends a sequence, node 1 delivers it, in order and once each.

The alternating bit needs a link that keeps the order: a packet that was overtaken long ago may carry the bit that is
expected now. Numbers without end do without order, but not without a clean start. The stabilising link needs neither.
It knows only how many packets fit on the link: what was there before, whatever it says, cannot be seen more often than
that. So the receiver believes what it has seen once more, and the sender believes an acknowledgement likewise. From any
state of both nodes and of the link, two messages may be wrong and two lost; from then on all are right. This has its
price in packets.

Bartlett, Scantlebury and Wilkinson, CACM 1969. Dolev, Dubois, Potop-Butucaru and Tixeuil, Stabilizing Data-Link over
Non-FIFO Channels with Optimal Fault-Resilience, IPL 2011; labels and counts here are our own simplification of it.

>>> from assay.protocols.kernel.net import Net
>>> from assay.protocols.kernel.world import World
>>> lossy = Net(drop=0.3, fifo=True, room=3)
>>> for link in (AlternatingBit, NumberedLink, StabilisingLink):
...     outcome = World(n=2, node=link, inputs=[("a", "b", "c")], net=lossy).run("rounds", limit=400)
...     print(outcome.nodes[1].delivered, faithful(outcome.nodes[1].delivered, ["a", "b", "c"]))
['a', 'b', 'c'] True
['a', 'b', 'c'] True
['a', 'b', 'c'] True
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag

SENDER, RECEIVER = 0, 1
REMEMBERED = 1024
"""Different packets that a receiver counts at most."""


class Link(Node, ABC):
    """What the links share. The sender's input is the sequence; without one it sends 0, 1, 2, … for ever.

    After `patience` seconds (rounds, in rounds) without progress the sender sends again.
    """

    def __init__(self, patience: float = 4.0) -> None:
        if patience <= 0:
            raise ValueError(f"a link with patience {patience}; above 0 expected")
        self.patience = patience
        self.number = 0
        """Of the message that the sender is busy with."""
        self.label = 0
        self.sent = 0
        """Packets that this node has sent."""
        self.delivered: list[Any] = []

    def start(self, ctx: Ctx) -> None:
        """The sender begins."""
        if ctx.id == SENDER:
            self._begin(ctx)

    def _packet(self, ctx: Ctx) -> Message | None:
        """The packet of the present message; None after the last."""
        if ctx.input is None:
            return ("data", self.label, self.number)
        return ("data", self.label, ctx.input[self.number]) if self.number < len(ctx.input) else None

    def _begin(self, ctx: Ctx) -> None:
        """The first packets of a message, and the alarm for the case that they are lost."""
        if self._packet(ctx) is not None:
            self._transmit(ctx, self.window)
            ctx.timer(self.patience, self.number)

    @property
    def window(self) -> int:
        """Copies of a packet that are sent at once."""
        return 1

    def _transmit(self, ctx: Ctx, copies: int) -> None:
        packet = self._packet(ctx)
        for _ in range(copies if packet is not None else 0):
            self.sent += 1
            ctx.send(RECEIVER, packet)  # type: ignore[arg-type]

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """No progress: once more."""
        if tag == self.number:
            self._begin(ctx)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Data for the receiver, acknowledgements for the sender."""
        match msg:
            case ("data", int(label), payload) if ctx.id == RECEIVER and src == SENDER:
                self._data(ctx, label, payload)
            case ("ack", int(label)) if ctx.id == SENDER and src == RECEIVER:
                self._ack(ctx, label)

    @abstractmethod
    def _data(self, ctx: Ctx, label: int, payload: Any) -> None:
        """What a subclass does with it."""

    @abstractmethod
    def _ack(self, ctx: Ctx, label: int) -> None:
        """What a subclass does with it."""

    def _acknowledge(self, ctx: Ctx, label: int) -> None:
        self.sent += 1
        ctx.send(SENDER, ("ack", label))

    def _deliver(self, ctx: Ctx, payload: Any) -> None:
        ctx.decide(payload, len(self.delivered))
        self.delivered.append(payload)

    def _advance(self, ctx: Ctx) -> None:
        self.number += 1
        self.label = self._next()
        self._begin(ctx)

    def _next(self) -> int:
        return 1 - self.label


class NumberedLink(Link):
    """Every message has a number of its own: nothing can be mistaken, but numbers grow, and a wrong one stays wrong."""

    def _data(self, ctx: Ctx, label: int, payload: Any) -> None:
        if label == self.label:
            self.label += 1
            self._deliver(ctx, payload)
        if label < self.label:
            self._acknowledge(ctx, label)

    def _ack(self, ctx: Ctx, label: int) -> None:
        if label == self.label:
            self._advance(ctx)

    def _next(self) -> int:
        return self.label + 1


class AlternatingBit(Link):
    """One packet under way, marked with a bit that changes from message to message; right where order is kept."""

    def _data(self, ctx: Ctx, label: int, payload: Any) -> None:
        if label == self.label:
            self.label = self._next()
            self._deliver(ctx, payload)
        self._acknowledge(ctx, label)

    def _ack(self, ctx: Ctx, label: int) -> None:
        if label == self.label:
            self._advance(ctx)


class StabilisingLink(Link):
    """Right from any state on, where no more than `capacity` packets are ever under way in one direction."""

    def __init__(self, patience: float = 4.0, capacity: int = 3) -> None:
        super().__init__(patience)
        if capacity < 1:
            raise ValueError(f"a link on which {capacity} packets fit; at least 1 expected")
        self.capacity = capacity
        self.acks = 0
        self.last = 1
        """The label that the receiver delivered last."""
        self.copies: dict[tuple[int, Any], int] = {}

    @property
    def window(self) -> int:
        """As many as fit."""
        return self.capacity

    def _data(self, ctx: Ctx, label: int, payload: Any) -> None:
        if label not in (0, 1):
            return
        if label != self.last:
            packet = (label, payload)
            if len(self.copies) >= REMEMBERED:
                self.copies.clear()
            self.copies[packet] = self.copies.get(packet, 0) + 1
            if self.copies[packet] > self.capacity:
                self.copies.clear()
                self.last = label
                self._deliver(ctx, payload)
        self._acknowledge(ctx, self.last)

    def _ack(self, ctx: Ctx, label: int) -> None:
        if label != self.label:
            self._transmit(ctx, 1)
            return
        self.acks += 1
        if self.acks > self.capacity:
            self.acks = 0
            self._advance(ctx)
        else:
            self._transmit(ctx, 1)


def faithful(delivered: Sequence[Any], sent: Sequence[Any]) -> bool:
    """Whether what was delivered is the beginning of what was sent, in order and once each.

    >>> faithful([0, 1], [0, 1, 2]), faithful([0, 0], [0, 1, 2]), faithful([1], [0, 1])
    (True, False, False)
    """
    return list(delivered) == list(sent[: len(delivered)])
