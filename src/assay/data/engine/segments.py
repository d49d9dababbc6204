"""Many segments in one object: cheap to write (one request), cheap to read in part (a range each).

Segments lie one behind the other, large ones on page boundaries; behind them a footer says of each its key, place, rows
and BLAKE3 digest; the last 48 bytes say where the footer is. A reader that has the footer's row needs one range request
a segment, and nobody has to trust a byte that was not checked.

>>> from assay.data.store.memory import MemStore
>>> import asyncio
>>> blob = SegmentBlob()
>>> blob.add("rank0", b"slice of rank 0", rows=2).offset
0
>>> blob.add("rank1", b"slice of rank 1").offset
64
>>> store = MemStore()
>>> _ = asyncio.run(store.put("blob", blob.parts()))
>>> read = asyncio.run(open_blob(store, "blob"))
>>> bytes(asyncio.run(read.get("rank1")))
b'slice of rank 1'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from assay.data.engine.version_log import Damaged
from assay.data.interface import Buffer, NotFound, Store, nbytes
from assay.record.errors import BadInput
from assay.record.extras import missing_module

PAGE = 4096
CHECKSUM = 16  # bytes
_LINE = 64  # where small segments begin: arrays read from there are aligned for any dtype
_MAGIC = b"SEGBLOB1"
_TRAILER = 48  # magic, footer's offset and length, first 24 bytes of its digest
_GUESS = 1 << 16  # bytes read from the end in the hope that they hold the footer


@cache
def _blake3() -> Any:
    try:
        from blake3 import blake3
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("checking bytes", error)) from error
    return blake3


@cache
def _xxh3() -> Any:
    try:
        from xxhash import xxh3_128_digest
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("checking bytes", error)) from error
    return xxh3_128_digest


def checksum(data: Buffer) -> bytes:
    """XXH3 of bytes, 128 bits, as fast as memory is read: it finds any damage, and is no proof against a forger.

    >>> checksum(b"").hex()
    '99aa06d3014798d86001c324468d497f'
    """
    found: bytes = _xxh3()(data)
    return found


def digest(data: Buffer) -> bytes:
    """BLAKE3 of bytes, gigabytes a second.

    >>> digest(b"").hex()[:16]
    'af1349b9f5f9a1a6'
    """
    found: bytes = _blake3()(data).digest()
    return found


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A row of the footer."""

    key: str
    offset: int
    length: int
    rows: int
    digest: bytes


class SegmentBlob:
    """An object in the making. Buffers are kept as they are, without a copy, until the blob is put.

    >>> blob = SegmentBlob()
    >>> blob.add("a", bytes(100_000)).offset, blob.add("b", bytes(100_000)).offset  # large: on a page
    (0, 102400)
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.size = 0
        self._parts: list[Buffer] = []

    def add(
        self, key: str, data: Buffer, *, rows: int = 0, known: bytes | None = None, follows: bool = False
    ) -> Segment:
        """Append a segment; `known` is its digest, where the caller has it; `follows`: right behind the last one."""
        size = nbytes(data)
        if not follows:
            self._pad(PAGE if size >= PAGE else _LINE)
        segment = Segment(key, self.size, size, rows, known if known is not None else digest(data))
        self.segments.append(segment)
        self._push(data)
        return segment

    def parts(self) -> Sequence[Buffer]:
        """All there is to put: the segments and the footer."""
        footer = msgspec.msgpack.encode(self.segments)
        place = self.size.to_bytes(8, "little") + len(footer).to_bytes(8, "little")
        return [*self._parts, footer, _MAGIC + place + digest(footer)[:24]]

    def _pad(self, to: int) -> None:
        if gap := -self.size % to:
            self._push(bytes(gap))

    def _push(self, data: Buffer) -> None:
        self._parts.append(data)
        self.size += nbytes(data)


@dataclass(frozen=True)
class OpenBlob:
    """A blob whose footer was read."""

    store: Store
    key: str
    segments: dict[str, Segment]

    async def get(self, segment: str) -> Buffer:
        """A segment's bytes, checked."""
        if segment not in self.segments:
            raise NotFound(f"{self.key} has no segment '{segment}'")
        row = self.segments[segment]
        return checked(await self.store.get(self.key, row.offset, row.length), row.digest, f"{self.key}:{segment}")


def checked(data: Buffer, expected: bytes, name: str) -> Buffer:
    """The bytes, if their digest (32 bytes) or checksum (16) is the expected one; Damaged says whose is not."""
    if (checksum(data) if len(expected) == CHECKSUM else digest(data)) != expected:
        raise Damaged(f"{name} is damaged: its bytes are not those that were written; restore it from a copy")
    return data


async def open_blob(store: Store, key: str) -> OpenBlob:
    """Read a blob's footer: one request for what it is, one for its end, one more where the footer is long."""
    meta = await store.head(key)
    if meta is None:
        raise NotFound(f"there is no {key}")
    start = max(0, meta.size - _GUESS)
    end = bytes(await store.get(key, start, meta.size - start))
    trailer = end[-_TRAILER:]
    offset, length = int.from_bytes(trailer[8:16], "little"), int.from_bytes(trailer[16:24], "little")
    if len(end) < _TRAILER or trailer[:8] != _MAGIC or offset + length + _TRAILER > meta.size:
        raise Damaged(f"{key} is no blob of segments, or lost its end: {meta.size} bytes")
    footer = end[offset - start : offset - start + length] if offset >= start else await store.get(key, offset, length)
    if digest(footer)[:24] != trailer[24:48]:
        raise Damaged(f"{key} is damaged: its footer is not the one that was written; restore it from a copy")
    rows = msgspec.msgpack.decode(footer, type=list[Segment])
    return OpenBlob(store, key, {row.key: row for row in rows})
