"""Every key from one secret, along a tree whose leaves are the chunks.

A node's secret gives those of its children and nothing about its parent or siblings, because each step is a one-way
function of the secret and the step's label. Handing over a node is therefore handing over its range of chunks.

The labels are those of the authors' implementation, so that keys made here are keys there.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

SECRET = 32  # bytes
_NO_CONTEXT = "{}"  # the root of the chunks' ids is not known while they are being encrypted


def derive(seed: bytes, label: str, size: int = SECRET, context: str = "") -> bytes:
    """HKDF-SHA256 (RFC 5869) with the context's digest as its salt.

    >>> derive(bytes(32), "a") == derive(bytes(32), "a"), derive(bytes(32), "a") == derive(bytes(32), "b")
    (True, False)
    >>> len(derive(bytes(32), "iv", 12))
    12
    """
    key = hmac.digest(sha256(context.encode()).digest(), seed, "sha256")
    made = block = b""
    while len(made) < size:
        block = hmac.digest(key, block + label.encode() + bytes([len(made) // SECRET + 1]), "sha256")
        made += block
    return made[:size]


def delegate(parent: bytes, label: str) -> bytes:
    """A child's secret: one step down the tree."""
    return derive(parent, "q.crypto.delegate." + label, context=_NO_CONTEXT)


def encryption_root(root_key: bytes) -> bytes:
    """Where the keys of a file's chunks begin."""
    return delegate(root_key, "safecloud.encryption.root")


def access_root(root_key: bytes) -> bytes:
    """Where the right to ask for chunks begins: of no use for reading them."""
    return delegate(root_key, "safecloud.access.root")


@dataclass(frozen=True)
class Shape:
    """A track's tree: its chunks are the first leaves of a full tree of this arity.

    >>> Shape(5).depth, Shape(5).digits(3), Shape(1).digits(0), Shape(82, 9).depth
    (3, (0, 1, 1), (0,), 3)
    """

    chunks: int
    arity: int = 2

    @property
    def depth(self) -> int:
        """Steps from the track to a chunk, at least one."""
        depth, reach = 1, self.arity
        while reach < self.chunks:
            depth, reach = depth + 1, reach * self.arity
        return depth

    def digits(self, chunk: int) -> tuple[int, ...]:
        """A chunk's path below its track."""
        found = []
        for _ in range(self.depth):
            chunk, digit = divmod(chunk, self.arity)
            found.append(digit)
        return tuple(reversed(found))

    def span(self, digits: Sequence[int]) -> range:
        """The chunks below a node.

        >>> Shape(5).span((0,)), Shape(5).span((1,)), Shape(5).span(())
        (range(0, 4), range(4, 5), range(0, 5))
        """
        first = 0
        for digit in digits:
            first = first * self.arity + digit
        width = self.arity ** (self.depth - len(digits))
        return range(min(first * width, self.chunks), min((first + 1) * width, self.chunks))

    def cover(self, first: int, last: int) -> list[tuple[int, ...]]:
        """The fewest nodes whose chunks are exactly first, …, last - 1.

        >>> Shape(8).cover(2, 8), Shape(8).cover(0, 8), Shape(8).cover(3, 3)
        ([(0, 1), (1,)], [()], [])
        """
        found: list[tuple[int, ...]] = []
        stack: list[tuple[int, ...]] = [()]
        while stack:
            node = stack.pop()
            below = self.span(node)
            if not below or below.stop <= first or below.start >= last:
                continue
            if first <= below.start and below.stop <= last:
                found.append(node)
            else:
                stack.extend((*node, digit) for digit in reversed(range(self.arity)))
        return found


@dataclass(frozen=True)
class Link:
    """A node of the tree: a track, and the way down from there.

    >>> Link.parse("audio/0/1"), str(Link("data", (1, 0)))
    (Link(track='audio', digits=(0, 1)), 'data/1/0')
    """

    track: str
    digits: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Link:
        """From its text form."""
        track, *digits = text.split("/")
        return cls(track, tuple(int(digit) for digit in digits))

    def __str__(self) -> str:
        return "/".join([self.track, *map(str, self.digits)])

    def labels(self, kind: str = "") -> Iterator[str]:
        """The label of each step; the access tree has its own."""
        yield f"safecloud.{kind}track.{self.track}"
        for digit in self.digits:
            yield f"safecloud.{kind}node.{digit}"


def node(root: bytes, link: Link, kind: str = "") -> bytes:
    """The secret at a link, walked down from a root."""
    secret = root
    for label in link.labels(kind):
        secret = delegate(secret, label)
    return secret


class Walk:
    """Leaves below one node, in any order; neighbours share most of the way, so walking forward costs O(1) each.

    >>> shape, owner = Shape(8), Walk(bytes(32), Shape(8))
    >>> right = Walk(delegate(bytes(32), "safecloud.node.1"), shape, (1,))
    >>> right.leaf(6) == owner.leaf(6)
    True
    >>> right.leaf(3)
    Traceback (most recent call last):
    LookupError: chunk 3 does not lie below this node
    """

    def __init__(self, secret: bytes, shape: Shape, below: Sequence[int] = ()) -> None:
        self.shape, self.below = shape, tuple(below)
        self._way: list[tuple[int, bytes]] = [(-1, secret)]
        self.steps = 0  # derivations so far

    def leaf(self, chunk: int) -> bytes:
        """The secret of a chunk's leaf."""
        if chunk not in self.shape.span(self.below):
            raise LookupError(f"chunk {chunk} does not lie below this node")
        digits = self.shape.digits(chunk)[len(self.below) :]
        shared = 0
        while shared < len(self._way) - 1 and self._way[shared + 1][0] == digits[shared]:
            shared += 1
        del self._way[shared + 1 :]
        for digit in digits[shared:]:
            self._way.append((digit, delegate(self._way[-1][1], f"safecloud.node.{digit}")))
            self.steps += 1
        return self._way[-1][1]
