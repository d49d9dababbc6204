"""Chains of digests, and who vouches how far along them.

A sender's messages form a chain: the digest of a link covers its message and the digest of the link before. Whoever
vouches for a tip therefore vouches for every link behind it, with one digest. `Votes` counts, link by link, how many
nodes do; a node that moves on adds to the links it passes, and a node that changes sides is counted where it was first.

>>> chain = Links()
>>> first = chain.add(GENESIS, digest(b"one"))
>>> second = chain.add(first, digest(b"two"))
>>> votes = Votes()
>>> votes.move(7, second, chain) == [second, first]
True
>>> votes.count(first), chain.path(GENESIS, second) == [first, second]
(1, True)
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from assay.protocols.interface import NodeId

GENESIS = b""
"""The tip of the empty chain."""
DIGEST = 32
"""Bytes of a digest."""


def as_bytes(given: bytes | str) -> bytes:
    """What a sender was given to send: text travels as UTF-8.

    >>> as_bytes("hello")
    b'hello'
    """
    return given.encode() if isinstance(given, str) else given


def digest(message: bytes) -> bytes:
    """The digest of a message."""
    return blake2b(message, digest_size=DIGEST).digest()


class Link(NamedTuple):
    """A place in a chain; its name is the digest of all three."""

    place: int
    parent: bytes
    message: bytes
    """The digest of the message at this place."""


class Links:
    """The links a node knows; they form a tree, since a faulty sender may fork."""

    def __init__(self) -> None:
        self.known: dict[bytes, Link] = {GENESIS: Link(0, GENESIS, GENESIS)}

    def __contains__(self, tip: bytes) -> bool:
        return tip in self.known

    def name(self, parent: bytes, message: bytes) -> bytes:
        """The digest of the link that puts this message behind a known one."""
        place = (self.known[parent].place + 1).to_bytes(8, "little")
        return blake2b(parent + place + message, digest_size=DIGEST).digest()

    def add(self, parent: bytes, message: bytes) -> bytes:
        """Puts a message (its digest) behind a known link; the new link's digest."""
        tip = self.name(parent, message)
        self.known[tip] = Link(self.known[parent].place + 1, parent, message)
        return tip

    def index(self, tip: bytes) -> int:
        """How long the chain up to this known tip is."""
        return self.known[tip].place

    def path(self, start: bytes, tip: bytes) -> list[bytes] | None:
        """The links behind `start` up to `tip`, oldest first; None if `tip` does not lie behind `start`."""
        if start not in self.known or tip not in self.known:
            return None
        path, last = [], self.known[start].place
        while self.known[tip].place > last:
            path.append(tip)
            tip = self.known[tip].parent
        return path[::-1] if tip == start else None


class Votes:
    """How far each node vouches, and how many nodes vouch for each link."""

    def __init__(self) -> None:
        self.tips: dict[NodeId, bytes] = {}
        self.counts: dict[bytes, int] = {}

    def count(self, link: bytes) -> int:
        """Nodes that vouch for the link."""
        return self.counts.get(link, 0)

    def move(self, who: NodeId, tip: bytes, links: Links) -> list[bytes]:
        """A node vouches for a known tip: the links that gained a vote by it, newest first."""
        before = self.tips.get(who, GENESIS)
        if tip == before:
            return []
        known, counts = links.known, self.counts
        last = known[before].place
        gained, link = [], tip
        while known[link].place > last:
            gained.append(link)
            link = known[link].parent
        if link != before:  # an old message that was overtaken, or a node that changed sides
            return []
        for link in gained:
            counts[link] = counts.get(link, 0) + 1
        self.tips[who] = tip
        return gained
