"""What a run cost: messages, bits on the wire, rounds, asynchronous time, signatures; by kind and by node.

A message to oneself never leaves the node and is not counted. Bits are those of the frames of
:mod:`assay.protocols.kernel.wire`. Asynchronous time is the longest chain of messages of which each caused the next:
what remains of time when every delay is at most one and nothing else takes any.

The digest covers everything sent, in order: the same run has the same one in every process, and runs in which different
things were said have different ones.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

from assay.protocols.interface import Message
from assay.protocols.kernel import wire

_encode, _pack = wire.encode, struct.Struct("<qiI").pack
_AT_ONCE = 4096
_FLOAT = 0xCB
"""How a float begins on the wire; NaN is one."""
PLAIN = "tuples of plain values expected"


class Meter:
    """The counters of one run."""

    def __init__(self, nodes: int) -> None:
        self.rounds = 0
        self.depth = 0
        """Asynchronous time."""
        self.deliveries = self.dropped = 0
        self.signatures = self.checks = 0
        self.by_kind: dict[str, list[int]] = {}
        """Messages and bits of each kind."""
        self.by_node = [[0, 0] for _ in range(nodes)]
        """Messages and bits that each node sent."""
        self._hash = blake2b(digest_size=16)
        self._unhashed: list[bytes] = []
        self._body, self._last = b"", ()  # type: tuple[bytes, Message]

    @property
    def messages(self) -> int:
        """All that were sent."""
        return sum(messages for messages, _ in self.by_kind.values())

    @property
    def bits(self) -> int:
        """Their bits."""
        return sum(bits for _, bits in self.by_kind.values())

    def count(self, time: int, src: int, to: int, msg: Message) -> None:
        """A message was sent."""
        if msg is self._last:  # a broadcast in a loop: encoded once
            body = self._body
        else:
            try:
                hash(msg)  # a list or set, however deep, would be shared with the sender here, not over a socket
                body = _encode(msg)
                if _FLOAT in body:
                    wire.decode(body)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"message {msg!r} does not survive the wire ({error}); {PLAIN}") from None
            self._last, self._body = msg, body
        bits = 96 + 8 * len(body)
        kind = msg[0]
        if kind == "/":
            kind = kind_of(msg)
        try:
            entry = self.by_kind[kind]
        except KeyError:
            entry = self._first(kind, msg, body)
        entry[0] += 1
        entry[1] += bits
        sent = self.by_node[src]
        sent[0] += 1
        sent[1] += bits
        unhashed = self._unhashed
        unhashed.append(_pack(time, to, src))
        unhashed.append(body)
        if len(unhashed) >= _AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Hashing many pieces at once is cheaper than one after the other."""
        self._hash.update(b"".join(self._unhashed))
        self._unhashed.clear()

    def _first(self, kind: str, msg: Message, body: bytes) -> list[int]:
        """The first of a kind is looked at: what would arrive changed over a socket is refused in a simulation too."""
        if wire.decode(body) != msg:
            raise ValueError(f"message {msg!r} does not survive the wire; {PLAIN}")
        return self.by_kind.setdefault(kind, [0, 0])

    def note(self, *numbers: int) -> None:
        """Something else that belongs to the run's identity: a choice of the scheduler."""
        self._unhashed.append(struct.pack(f"<{len(numbers)}q", *numbers))
        if len(self._unhashed) >= _AT_ONCE:
            self._settle()

    def summary(self) -> dict[str, Any]:
        """The counters as plain values, to be sent and added up."""
        names = ("deliveries", "dropped", "signatures", "checks")
        return {name: getattr(self, name) for name in names} | {"by_kind": self.by_kind, "by_node": self.by_node}

    def add(self, summary: dict[str, Any]) -> None:
        """Another meter's counters on top."""
        for name, value in summary.items():
            if name == "by_kind":
                for kind, (messages, bits) in value.items():
                    entry = self.by_kind.setdefault(kind, [0, 0])
                    entry[0] += messages
                    entry[1] += bits
            elif name == "by_node":
                for entry, (messages, bits) in zip(self.by_node, value, strict=True):
                    entry[0] += messages
                    entry[1] += bits
            else:
                setattr(self, name, getattr(self, name) + value)

    @property
    def digest(self) -> str:
        """BLAKE2b over all that was sent, when, by whom and to whom."""
        self._settle()
        return self._hash.hexdigest()


def kind_of(msg: Message) -> str:
    """The kind under which a message is counted: a sub-protocol's own kind, not the envelope's.

    >>> kind_of(("/", ("brb", 3), ("echo", b"x"))), kind_of(("vote", 1))
    ('echo', 'vote')
    """
    while msg[0] == "/" and len(msg) == 3 and isinstance(msg[2], tuple) and msg[2]:
        msg = msg[2]
    return str(msg[0])
