"""Small objects with a digest in front, so that a changed byte is told and not believed.

>>> unsealed("settings", sealed(b"tau 0.7"))
b'tau 0.7'
"""

from __future__ import annotations

from hashlib import blake2b

from assay.data.engine.version_log import Damaged
from assay.data.interface import Buffer

_MAGIC = b"SEALED1\n"
_DIGEST = 16


def sealed(content: Buffer) -> bytes:
    """The content behind its digest.

    >>> len(sealed(b"")), sealed(b"a")[:7]
    (24, b'SEALED1')
    """
    return _MAGIC + blake2b(content, digest_size=_DIGEST).digest() + bytes(content)


def unsealed(key: str, data: Buffer, *, bare: bool = False) -> bytes:
    """The content; Damaged where it is not what was sealed. `bare`: an earlier version wrote it without a digest.

    >>> unsealed("settings", b"tau 0.7", bare=True)
    b'tau 0.7'
    """
    whole = bytes(data)
    if bare and whole[: len(_MAGIC)] != _MAGIC:
        return whole
    digest, content = whole[len(_MAGIC) : len(_MAGIC) + _DIGEST], whole[len(_MAGIC) + _DIGEST :]
    if whole[: len(_MAGIC)] != _MAGIC or blake2b(content, digest_size=_DIGEST).digest() != digest:
        raise Damaged(f"{key} is damaged: its bytes are not those that were written; restore it from a copy")
    return content
