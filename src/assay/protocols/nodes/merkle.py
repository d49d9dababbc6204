"""Merkle trees: one digest for many leaves, and a short proof that a leaf is one of them.

>>> leaves = [b"a", b"b", b"c"]
>>> root, proofs = tree(leaves)
>>> [belongs(root, place, leaf, proof, 3) for place, (leaf, proof) in enumerate(zip(leaves, proofs))]
[True, True, True]
>>> belongs(root, 0, b"b", proofs[1], 3)
False
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

Proof = tuple[bytes, ...]


def _leaf(value: bytes) -> bytes:
    return blake2b(value, digest_size=32, person=b"leaf").digest()


def _inner(left: bytes, right: bytes) -> bytes:
    return blake2b(left + right, digest_size=32, person=b"inner").digest()


def tree(leaves: Sequence[bytes]) -> tuple[bytes, list[Proof]]:
    """The root over the leaves, and each leaf's proof. A level of odd length repeats its last digest."""
    level = [_leaf(value) for value in leaves]
    proofs: list[list[bytes]] = [[] for _ in leaves]
    places = list(range(len(leaves)))
    while len(level) > 1:
        if len(level) % 2:
            level.append(level[-1])
        for leaf, place in enumerate(places):
            proofs[leaf].append(level[place ^ 1])
        level = [_inner(level[place], level[place + 1]) for place in range(0, len(level), 2)]
        places = [place // 2 for place in places]
    return level[0], [tuple(proof) for proof in proofs]


def belongs(root: bytes, place: int, leaf: bytes, proof: Proof, count: int) -> bool:
    """Whether the leaf stands at this place among so many leaves."""
    if not 0 <= place < count or len(proof) != (count - 1).bit_length():
        return False
    value = _leaf(leaf)
    for other in proof:
        value = _inner(other, value) if place % 2 else _inner(value, other)
        place //= 2
    return value == root
