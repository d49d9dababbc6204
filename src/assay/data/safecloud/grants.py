"""Who may ask for which chunks, decided from signatures alone.

Beside the tree of keys runs one of access: its nodes are signing keys. A parent states, signed, which key its child
has; a grant is an envelope signed by the node whose range it opens. Whoever routes requests holds the root's public
key, walks the statements down and never sees a secret that opens anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Self

import msgspec

from assay.data.safecloud.keys import Link, Shape, delegate, derive
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FOREVER = 2**53


class Statement(msgspec.Struct, frozen=True):
    """A parent's signed word that a child's key is this one."""

    label: str
    public: bytes
    signature: bytes


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says and signs: all of its fields but the signature."""

    signature: bytes = b""

    def signed_part(self) -> bytes:
        """What the signature is over."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, signature=b""))

    def signed_by(self, secret: bytes) -> Self:
        """The same, signed."""
        return msgspec.structs.replace(self, signature=sign(secret, self.signed_part()))

    def is_from(self, public: bytes) -> bool:
        """Whether who has this key signed just this."""
        return signed(public, self.signed_part(), self.signature)


class Envelope(Signed, frozen=True):
    """What a router is shown: everything about a grant but its secret."""

    root: bytes
    link: str
    expires: float
    secret_digest: bytes
    chain: tuple[Statement, ...]

    def signed_part(self) -> bytes:
        """What the signature is over."""
        return msgspec.json.encode(msgspec.structs.replace(self, chain=(), signature=b""))


class Grant(msgspec.Struct, frozen=True):
    """An envelope and the secret of its node: this opens the node's chunks and nothing else."""

    envelope: Envelope
    secret: bytes

    @property
    def link(self) -> Link:
        """The node."""
        return Link.parse(self.envelope.link)


def public_key(secret: bytes) -> bytes:
    """The public half of a node's signing key."""
    return _signer(secret).public_key().public_bytes_raw()


def sign(secret: bytes, message: bytes) -> bytes:
    """A node's signature."""
    return _signer(secret).sign(message)


def signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether this key signed this message.

    >>> mine = public_key(bytes(32))
    >>> signed(mine, b"yes", sign(bytes(32), b"yes")), signed(mine, b"no", sign(bytes(32), b"yes"))
    (True, False)
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _signer(secret: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(derive(secret, "sign"))


def grant(access: bytes, root: bytes, link: Link, secret: bytes, expires: float = FOREVER) -> Grant:
    """Hand over a node: walk the access tree down to it, and sign there."""
    chain, here = [], access
    for label in link.labels("access."):
        below = delegate(here, label)
        public = public_key(below)
        chain.append(Statement(label, public, sign(here, _stated(root, label, public))))
        here = below
    bare = Envelope(root, str(link), expires, sha256(secret).digest(), tuple(chain))
    return Grant(bare.signed_by(here), secret)


def _stated(root: bytes, label: str, public: bytes) -> bytes:
    return b"safecloud.delegates\0" + root + label.encode() + b"\0" + public


def valid(envelope: Envelope, root: bytes, access_public: bytes, now: float) -> bool:
    """Whether the owner of this access key granted this, for this root, and it still runs."""
    if envelope.root != root or now > envelope.expires:
        return False
    labels = list(Link.parse(envelope.link).labels("access."))
    if [statement.label for statement in envelope.chain] != labels:
        return False
    here = access_public
    for statement in envelope.chain:
        if not signed(here, _stated(root, statement.label, statement.public), statement.signature):
            return False
        here = statement.public
    return envelope.is_from(here)


def allows(
    envelopes: Sequence[Envelope], root: bytes, access_public: bytes, shape: Shape, track: str, chunk: int, now: float
) -> bool:
    """Whether a router may serve a chunk to whoever shows these envelopes."""
    digits = shape.digits(chunk)
    for envelope in envelopes:
        link = Link.parse(envelope.link)
        inside = link.track == track and digits[: len(link.digits)] == link.digits
        if inside and valid(envelope, root, access_public, now):
            return True
    return False


class Capability(msgspec.Struct, frozen=True):
    """Grants and the file they are for: all that a grantee needs beside the store."""

    manifest: str
    start: int
    length: int
    grants: tuple[Grant, ...]

    def as_text(self) -> str:
        """A line that can be mailed."""
        return msgspec.json.encode(self).decode()


def from_text(text: str | bytes) -> Capability:
    """A capability from such a line; BadInput where it is none."""
    try:
        return msgspec.json.decode(text, type=Capability)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"this is no capability: {error}; ask its issuer for the whole line") from None
