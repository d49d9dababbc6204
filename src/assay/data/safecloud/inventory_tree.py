"""A set of digests as a tree whose shape depends on nothing but the set: equal sets have equal roots.

Nodes end where a digest's own bits say so (a prolly tree), about every 32 entries, so that a change moves few borders
and two versions share all nodes but those on the way to what changed. Comparing them costs as much as what changed.

>>> many = [bytes([n]) * 32 for n in range(200)]
>>> one, two = InventoryTree(many), InventoryTree(many[:199])
>>> one.root == two.root, [digest[0] for digest in one.minus(two)]
(False, [199])
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import sha256

_MASK = 31


class InventoryTree:
    """An immutable set of 32-byte digests under one root."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self.nodes: dict[bytes, tuple[bytes, ...]] = {}
        self.leaves = sorted(digests)
        level, self.height = self._grouped(self.leaves, 0), 1
        while len(level) > 1:
            level, self.height = self._grouped(level, self.height), self.height + 1
        self.root = level[0]

    def __contains__(self, digest: bytes) -> bool:
        at = bisect_left(self.leaves, digest)
        return at < len(self.leaves) and self.leaves[at] == digest

    def _grouped(self, entries: Sequence[bytes], level: int) -> list[bytes]:
        found, group = [], []
        for entry in entries:
            group.append(entry)
            if sha256(entry).digest()[0] & _MASK == 0:
                found.append(self._node(level, group))
                group = []
        if group or not found:
            found.append(self._node(level, group))
        return found

    def _node(self, level: int, children: Sequence[bytes]) -> bytes:
        name = sha256(b"assay.inventory" + level.to_bytes(2, "big") + b"".join(children)).digest()
        self.nodes[name] = tuple(children)
        return name

    def minus(self, other: InventoryTree) -> list[bytes]:
        """What is in this set and not in the other: only nodes that the other has not are opened."""
        found: list[bytes] = []
        stack = [(self.root, self.height)]
        while stack:
            node, height = stack.pop()
            if node in other.nodes:
                continue
            if height == 1:
                found += [digest for digest in self.nodes[node] if digest not in other]
            else:
                stack += [(child, height - 1) for child in self.nodes[node]]
        return sorted(found)
