"""Any store, holding only ciphertext: put it under a component and the component does not notice.

Every put has a secret of its own, derived from the owner's master secret, the object's key and a fresh salt, so that no
two contents ever share a key and nonce. Its bytes are sealed in chunks of one size; a range is read by fetching the
chunks that hold it. The head of an object (salt, length, authenticated) is kept in memory; where another writer has
replaced the object meanwhile, it no longer fits and is read again.

Not hidden: keys, lengths, times. Not detected: an older version of a whole object put back by whoever holds the store.

>>> import asyncio
>>> from assay.data.store.memory import MemStore
>>> below = MemStore()
>>> store = Encrypted(below, secret=bytes(32))
>>> asyncio.run(store.put("diary", b"dear diary")).size
10
>>> bytes(asyncio.run(store.get("diary", 5, 5))), b"diary" in below.objects["diary"]
(b'diary', False)
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from assay.data.engine.version_log import Damaged
from assay.data.interface import Buffer, Meta, OutOfRange, Span, Store, nbytes
from assay.data.safecloud.chunks import TAG, aead, pieces, seal, unseal
from assay.data.safecloud.keys import Shape, Walk, derive
from assay.record.errors import BadInput

T = TypeVar("T")
CHUNK = 16 * 1024  # small, for a range fetches whole chunks
_MAGIC = b"SEALED1\n"
_SALT = 16
HEAD = len(_MAGIC) + _SALT + 8 + TAG
_KNOWN = 4096  # heads kept


class _Sealed:
    """An object's head, opened: its secret and its length."""

    def __init__(self, secret: bytes, key: str, salt: bytes, size: int, chunk: int) -> None:
        self.size, self.chunk, self.salt = size, chunk, salt
        root = derive(secret, "file", context=f"{key}\0{salt.hex()}")
        self.head_key = derive(root, "head")
        self.walk = Walk(derive(root, "chunks"), Shape(max(1, -(-size // chunk))))

    @property
    def chunks(self) -> int:
        return self.walk.shape.chunks

    def span(self, start: int, length: int) -> tuple[int, int, int]:
        """The first chunk of a range, and where its ciphertext begins and how long it is."""
        first = min(start // self.chunk, self.chunks - 1)
        last = max(first, -(-(start + length) // self.chunk) - 1)
        stored = self.size + self.chunks * TAG
        begins = first * (self.chunk + TAG)
        return first, HEAD + begins, min((last + 1) * (self.chunk + TAG), stored) - begins


class Encrypted(Store):
    """A store around another that seals what it puts and opens what it gets."""

    def __init__(self, inner: Store, secret: bytes, *, chunk: int = CHUNK) -> None:
        if len(secret) < 16:
            raise BadInput("a master secret has at least 16 bytes; make one with: assay data vault key --out my.key")
        self.inner, self._secret, self.chunk = inner, secret, chunk
        self._heads: OrderedDict[str, _Sealed] = OrderedDict()  # newest last

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Seal and put; a fresh salt for every attempt."""
        whole = data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        salt = os.urandom(_SALT)
        sealed = _Sealed(self._secret, key, salt, nbytes(whole), self.chunk)
        length = aead(sealed.head_key).encrypt(bytes(12), sealed.size.to_bytes(8, "big"), _MAGIC)
        parts = [seal(sealed.walk.leaf(i), i, piece) for i, piece in enumerate(pieces(whole, self.chunk))]
        self._heads.pop(key, None)
        meta = await self.inner.put(key, [_MAGIC + salt + length, *parts], if_absent=if_absent)
        return Meta(key, sealed.size, meta.modified)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Open the chunks that hold the range."""
        if start == 0 and length is None:
            whole = memoryview(await self.inner.get(key))
            return self._open(key, self._head(key, whole[:HEAD], len(whole)), 0, whole[HEAD:])
        return await self._fresh(key, lambda sealed: self._range(key, sealed, start, length))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Each range by its chunks, in one request of several ranges."""
        return await self._fresh(key, lambda sealed: self._ranges(key, sealed, spans))

    async def head(self, key: str) -> Meta | None:
        """The inner one's, with the length of the plaintext."""
        meta = await self.inner.head(key)
        return None if meta is None else self._plain(meta)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """The inner one's, with the lengths of the plaintexts."""
        async for meta in self.inner.list(prefix, start_after):
            yield self._plain(meta)

    async def delete(self, *keys: str) -> None:
        """As below."""
        for key in keys:
            self._heads.pop(key, None)
        await self.inner.delete(*keys)

    def _plain(self, meta: Meta) -> Meta:
        body = max(0, meta.size - HEAD)
        chunks = max(1, -(-body // (self.chunk + TAG)))
        return Meta(meta.key, max(0, body - chunks * TAG), meta.modified)

    async def _range(self, key: str, sealed: _Sealed, start: int, length: int | None) -> Buffer:
        end = sealed.size if length is None else start + length
        if not 0 <= start <= end <= sealed.size:
            raise OutOfRange(f"{key} has {sealed.size} bytes, not {max(start, end)}")
        first, at, stored = sealed.span(start, end - start)
        try:
            found = await self.inner.get(key, at, stored)
        except OutOfRange:
            raise Damaged(f"{key} is damaged: it ends before the {sealed.size} bytes that its head names") from None
        opened = self._open(key, sealed, first, memoryview(found))
        return opened[start - first * self.chunk :][: end - start]

    async def _ranges(self, key: str, sealed: _Sealed, spans: Sequence[Span]) -> Sequence[Buffer]:
        for start, length in spans:
            if not 0 <= start <= start + length <= sealed.size:
                raise OutOfRange(f"{key} has {sealed.size} bytes, not {start + length}")
        places = [sealed.span(start, length) for start, length in spans]
        try:
            found = await self.inner.get_ranges(key, [(at, stored) for _, at, stored in places])
        except OutOfRange:
            raise Damaged(f"{key} is damaged: it ends before the {sealed.size} bytes that its head names") from None
        answers = []
        for (start, length), (first, _, _), part in zip(spans, places, found, strict=True):
            opened = self._open(key, sealed, first, memoryview(part))
            answers.append(opened[start - first * self.chunk :][:length])
        return answers

    async def _fresh(self, key: str, read: Callable[[_Sealed], Awaitable[T]]) -> T:
        """Read by the head that is known; where it no longer fits, by the one that is there now."""
        known = self._heads.get(key)
        if known is not None:
            try:
                return await read(known)
            except (Damaged, OutOfRange):
                pass  # replaced meanwhile, or really damaged: the object's own head decides
        head = memoryview(await self.inner.get(key, 0, HEAD))
        sealed = self._head(key, head, None)
        return await read(sealed)

    def _head(self, key: str, head: memoryview, stored: int | None) -> _Sealed:
        """An object's head, opened; Damaged where it is not what this secret's owner wrote for this key."""
        from cryptography.exceptions import InvalidTag

        if len(head) < HEAD or bytes(head[: len(_MAGIC)]) != _MAGIC:
            raise Damaged(f"{key} was not written through this encryption: it has no sealed head")
        salt = bytes(head[len(_MAGIC) : len(_MAGIC) + _SALT])
        guess = _Sealed(self._secret, key, salt, 0, self.chunk)
        try:
            size = aead(guess.head_key).decrypt(bytes(12), head[len(_MAGIC) + _SALT :], _MAGIC)
        except InvalidTag:
            raise Damaged(f"{key} does not open: damaged, moved, or sealed with another secret") from None
        sealed = _Sealed(self._secret, key, salt, int.from_bytes(size, "big"), self.chunk)
        if stored is not None and stored != HEAD + sealed.size + sealed.chunks * TAG:
            raise Damaged(f"{key} is damaged: it has {stored} bytes where its head names {sealed.size} of content")
        self._heads[key] = sealed
        if len(self._heads) > _KNOWN:
            self._heads.popitem(last=False)
        return sealed

    def _open(self, key: str, sealed: _Sealed, first: int, stored: memoryview) -> bytes:
        try:
            return b"".join(
                unseal(sealed.walk.leaf(first + i), first + i, piece)
                for i, piece in enumerate(pieces(stored, self.chunk + TAG))
            )
        except Damaged as error:
            raise Damaged(f"{key}: {error}") from None
