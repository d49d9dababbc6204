"""Ways to encrypt a file into chunks, side by side: what is stored, what sharing a range takes and what it opens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from assay.data.interface import Buffer
from assay.data.safecloud.chunks import CHUNK, TAG, aead, blocks, pieces, seal, seal_into
from assay.data.safecloud.keys import SECRET, Shape, Walk, derive


@dataclass(frozen=True)
class Sealed:
    """A file's chunks as they are stored, and the seconds of the processor it took to make them."""

    names: list[bytes]
    sizes: list[int]
    seconds: float

    @property
    def stored(self) -> int:
        """Bytes, equal chunks once."""
        return sum(dict(zip(self.names, self.sizes, strict=True)).values())


def _timed(parts: Iterable[Buffer]) -> Sealed:
    """Draw the parts, each gone when the next one comes, as it is on the way to a store."""
    began = time.process_time()
    found = [(sha256(part).digest(), memoryview(part).nbytes) for part in parts]
    seconds = time.process_time() - began
    return Sealed([name for name, _ in found], [size for _, size in found], seconds)


def _room(size: int) -> bytearray:
    """Memory to encrypt into, whose pages are there: everybody's is made before the clock starts."""
    return bytearray(b"\1" * (size + TAG))


def _leaves(data: Buffer, chunk: int, secret: bytes) -> Iterator[tuple[int, bytes, memoryview]]:
    parts = pieces(data, chunk)
    walk = Walk(secret, Shape(len(parts)))
    return ((i, walk.leaf(i), part) for i, part in enumerate(parts))


def position(data: Buffer, chunk: int, secret: bytes) -> Sealed:
    """Safecloud: a key from each chunk's place in the tree."""
    room = _room(chunk)
    return _timed(seal_into(leaf, i, part, room) for i, leaf, part in _leaves(data, chunk, secret))


def audited(data: Buffer, chunk: int, secret: bytes) -> Sealed:
    """The same, and the roots that spot audits need."""
    room, roots = _room(chunk), list[bytes]()

    def parts() -> Iterator[memoryview]:
        for i, leaf, part in _leaves(data, chunk, secret):
            stored = seal_into(leaf, i, part, room)
            roots.append(blocks(stored).root)
            yield stored

    return _timed(parts())


def content(data: Buffer, chunk: int, secret: bytes) -> Sealed:
    """A key from each chunk's content and the owner's secret, sealed under the key of its place."""
    room = _room(chunk)

    def parts() -> Iterator[memoryview]:
        for i, leaf, part in _leaves(data, chunk, secret):
            own = derive(secret, "content", context=sha256(part).hexdigest())
            seal(leaf, i, own)
            yield seal_into(own, 0, part, room)

    return _timed(parts())


def _encrypted(key: bytes, nonce: bytes, data: Buffer, room: bytearray) -> memoryview:
    stored = memoryview(room)[: memoryview(data).nbytes + TAG]
    aead(key).encrypt_into(nonce, data, b"", stored)
    return stored


def one_key(data: Buffer, chunk: int, secret: bytes) -> Sealed:
    """One key and one nonce for the whole file."""
    room = _room(memoryview(data).nbytes)
    return _timed(_encrypted(secret, os.urandom(12), data, room) for _ in range(1))


def key_table(data: Buffer, chunk: int, secret: bytes) -> Sealed:
    """A random key for every chunk, in a table."""
    room = _room(chunk)
    return _timed(_encrypted(os.urandom(32), bytes(12), part, room) for part in pieces(data, chunk))


DESIGNS: dict[str, Callable[[Buffer, int, bytes], Sealed]] = {
    "safecloud": position, "safecloud, auditable": audited, "safecloud, by content": content,
    "one key a file": one_key, "a table of keys": key_table,
}  # fmt: skip


def handed(design: str, chunks: int, first: int, last: int) -> tuple[int, int]:
    """The bytes that open the chunks first, …, last - 1, and how many chunks they open in all."""
    if design == "one key a file":
        return SECRET, chunks
    if design == "a table of keys":
        return SECRET * (last - first), last - first
    cover = Shape(chunks).cover(first, last)
    return SECRET * len(cover), sum(len(Shape(chunks).span(node)) for node in cover)


def side_by_side(data: Buffer, secret: bytes, *, chunk: int = CHUNK, rounds: int = 3) -> dict[str, dict[str, Any]]:
    """Each design on the same bytes, in turns: speed, what is stored, and the price of sharing a tenth of it.

    >>> rows = side_by_side(bytes(4096), bytes(32), chunk=64, rounds=1)
    >>> rows["one key a file"]["opened_beyond"], rows["safecloud"]["opened_beyond"]
    (58, 0)
    >>> rows["a table of keys"]["handed"] > rows["safecloud"]["handed"]
    True
    """
    best: dict[str, Sealed] = {}
    for _ in range(rounds):
        for name, design in DESIGNS.items():
            made = design(data, chunk, secret)
            if name not in best or made.seconds < best[name].seconds:
                best[name] = made
    size = memoryview(data).nbytes
    chunks = len(pieces(data, chunk))
    first = chunks // 3
    last = min(chunks, first + max(1, chunks // 10))
    rows = {}
    for name, made in best.items():
        given, opened = handed(name, chunks, first, last)
        rows[name] = {
            "MB_per_s": size / 1e6 / max(made.seconds, 1e-9), "stored_ratio": made.stored / max(1, size),
            "handed": given, "opened_beyond": opened - (last - first),
        }  # fmt: skip
    return rows
