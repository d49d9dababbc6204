"""One chunk: encrypted with the key of its leaf, named by the digest of what is stored.

The name is computed from ciphertext, so a node without any key can tell whether it still holds what it was given.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from assay.data.engine.version_log import Damaged
from assay.data.interface import Buffer
from assay.data.safecloud.keys import derive
from assay.data.safecloud.merkle import MerkleTree
from assay.record.errors import BadInput
from assay.record.extras import missing_module

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CHUNK = 256 * 1024  # bytes of plaintext
TAG = 16
BLOCK = 4096  # bytes that an audit may ask for: a disk reads no fewer
_CID = bytes([0x01, 0x55, 0x12, 0x20])  # CIDv1, raw bytes, SHA2-256, 32 bytes


def aead(key: bytes) -> AESGCM:
    """AES-256-GCM under a key."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("encryption", error)) from error
    return AESGCM(key)


def seal(leaf: bytes, index: int, data: Buffer) -> bytes:
    """A chunk's ciphertext. The same leaf must never seal two different chunks: the nonce is the leaf's."""
    return aead(derive(leaf, "safecloud.chunk.key.0")).encrypt(_nonce(leaf), data, _place(index))


def seal_into(leaf: bytes, index: int, data: Buffer, room: bytearray) -> memoryview:
    """The same into memory that is there: the pages of fresh memory for each chunk take longer than to encrypt it.

    >>> bytes(seal_into(bytes(32), 3, b"chunk", bytearray(100))) == seal(bytes(32), 3, b"chunk")
    True
    """
    stored = memoryview(room)[: memoryview(data).nbytes + TAG]
    aead(derive(leaf, "safecloud.chunk.key.0")).encrypt_into(_nonce(leaf), data, _place(index), stored)
    return stored


def unseal(leaf: bytes, index: int, stored: Buffer) -> bytes:
    """A chunk's plaintext; Damaged where a bit of it, its key or its place is not what it was."""
    from cryptography.exceptions import InvalidTag

    try:
        return aead(derive(leaf, "safecloud.chunk.key.0")).decrypt(_nonce(leaf), stored, _place(index))
    except InvalidTag:
        raise Damaged(f"chunk {index} does not open: damaged, moved, or sealed with another key") from None


def _nonce(leaf: bytes) -> bytes:
    return derive(leaf, "safecloud.chunk.iv.0", 12)


def _place(index: int) -> bytes:
    return f"safecloud.chunk:{index}".encode()


def cid(digest: bytes) -> str:
    """The content id (CIDv1) of a SHA-256 digest, as IPFS writes it.

    >>> cid(sha256(b"hello").digest())
    'bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq'
    """
    return "b" + base64.b32encode(_CID + digest).decode().lower().rstrip("=")


def pieces(data: Buffer, size: int = CHUNK) -> Sequence[memoryview]:
    """The chunks of a buffer; nothing has one chunk, an empty one.

    >>> [len(piece) for piece in pieces(bytes(10), 4)], [len(piece) for piece in pieces(b"", 4)]
    ([4, 4, 2], [0])
    """
    view = memoryview(data)
    return [view[first : first + size] for first in range(0, max(1, len(view)), size)]


def blocks(stored: Buffer) -> MerkleTree:
    """The tree over a stored chunk's blocks, against which single blocks can be audited."""
    view = memoryview(stored)
    return MerkleTree([sha256(view[at : at + BLOCK]).digest() for at in range(0, max(1, len(view)), BLOCK)], arity=16)
