"""What makes a message believable: signatures, and Merkle trees.

Signatures: an ideal scheme for simulations, Ed25519 where it has to be real. Both sign in 64 bytes.

The ideal scheme is a keyed hash whose keys only the kernel knows: nobody can sign for another node, because a node
reaches it through its context, which names the node.

>>> ideal = Ideal(seed=1)
>>> mark = ideal.sign(2, b"vote")
>>> ideal.verify(2, b"vote", mark), ideal.verify(3, b"vote", mark), len(mark)
(True, False, 64)

Merkle trees: one digest for many leaves, and a short proof that a leaf is one of them.

>>> leaves = [b"a", b"b", b"c"]
>>> root, proofs = tree(leaves)
>>> [belongs(root, place, leaf, proof, 3) for place, (leaf, proof) in enumerate(zip(leaves, proofs))]
[True, True, True]
>>> belongs(root, 0, b"b", proofs[1], 3)
False
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Protocol

from assay.sim.streams import stream

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Scheme(Protocol):
    """Who can sign and check."""

    def sign(self, who: int, data: bytes) -> bytes:
        """The node's signature."""

    def verify(self, who: int, data: bytes, signature: bytes) -> bool:
        """Whether it is the node's."""


class Ideal:
    """Signatures that nobody can forge, at the price of a hash."""

    def __init__(self, seed: int) -> None:
        self.key = stream(seed, "signatures").bytes(32)

    def sign(self, who: int, data: bytes) -> bytes:
        """The node's signature."""
        return blake2b(data, key=self.key, salt=who.to_bytes(8, "little"), digest_size=64).digest()

    def verify(self, who: int, data: bytes, signature: bytes) -> bool:
        """Whether it is the node's."""
        return compare_digest(self.sign(who, data), signature)


class Ed25519:
    """Real signatures. A process holds the private keys of its own nodes and everybody's public ones."""

    def __init__(self, private: dict[int, bytes], public: dict[int, bytes]) -> None:
        self._private, self._public = private, public
        self._signer = cache(self._load_private)
        self._checker = cache(self._load_public)

    def _load_private(self, who: int) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._private[who])

    def _load_public(self, who: int) -> Ed25519PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(self._public[who])

    def sign(self, who: int, data: bytes) -> bytes:
        """The node's signature."""
        return self._signer(who).sign(data)

    def verify(self, who: int, data: bytes, signature: bytes) -> bool:
        """Whether it is the node's."""
        from cryptography.exceptions import InvalidSignature

        if who not in self._public or not isinstance(signature, bytes):
            return False
        try:
            self._checker(who).verify(signature, data)
        except InvalidSignature:
            return False
        return True


def key_pairs(nodes: range, seed: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Private and public Ed25519 keys of the nodes; from the seed, so for experiments only."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw: Any = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    private = {node: stream(seed, "ed25519", node).bytes(32) for node in nodes}
    public = {
        node: Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes(*raw)
        for node, secret in private.items()
    }
    return private, public


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
