"""Hash trees: one digest that commits to many, and short proofs that a leaf lies at its place.

A parent's digest names its level and the number of leaves below it, so a node never passes for a leaf, and a tree of
three leaves never for one of four.

>>> leaves = [sha256(bytes([n])).digest() for n in range(5)]
>>> tree = MerkleTree(leaves)
>>> proves(tree.root, leaves[3], 3, 5, tree.proof(3))
True
>>> proves(tree.root, leaves[3], 2, 5, tree.proof(3))
False
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

_NODE = b"assay.merkle\x01"


class MerkleTree:
    """A tree over digests; `arity` children to a node, the last node of a level may have fewer."""

    def __init__(self, leaves: Sequence[bytes], arity: int = 2) -> None:
        self.arity = arity
        self.levels = [list(leaves)]
        while len(self.levels[-1]) > 1:
            below, level = self.levels[-1], len(self.levels)
            self.levels.append([_parent(level, below[first : first + arity]) for first in range(0, len(below), arity)])

    @property
    def root(self) -> bytes:
        """What commits to all of it, and to how many leaves there are."""
        top = self.levels[-1][0] if self.levels[-1] else b""
        return _rooted(top, len(self.levels[0]), self.arity)

    def proof(self, leaf: int) -> list[list[bytes]]:
        """The siblings on the way up: a list a level, in order, without the one that is proved."""
        way, place = [], leaf
        for level in self.levels[:-1]:
            first = place - place % self.arity
            family = level[first : first + self.arity]
            way.append(family[: place - first] + family[place - first + 1 :])
            place //= self.arity
        return way


def proves(root: bytes, leaf: bytes, place: int, count: int, proof: Sequence[Sequence[bytes]], arity: int = 2) -> bool:
    """Whether the tree with this root has this leaf at this place of so many."""
    if not 0 <= place < count:
        return False
    node, width = leaf, count
    for level, siblings in enumerate(proof, 1):
        first = place - place % arity
        if width <= 1 or len(siblings) != min(arity, width - first) - 1:
            return False
        inside = place - first
        node = _parent(level, [*siblings[:inside], node, *siblings[inside:]])
        place, width = place // arity, -(-width // arity)
    return width == 1 and _rooted(node, count, arity) == root


def _parent(level: int, children: Sequence[bytes]) -> bytes:
    return sha256(_NODE + level.to_bytes(2, "big") + len(children).to_bytes(4, "big") + b"".join(children)).digest()


def _rooted(top: bytes, count: int, arity: int) -> bytes:
    return sha256(_NODE + b"root" + count.to_bytes(8, "big") + arity.to_bytes(4, "big") + top).digest()
