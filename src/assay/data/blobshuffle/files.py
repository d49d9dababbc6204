"""The user's records: JSON lines (packed or not) and parquet, by key to partitions as Kafka's clients choose them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from assay.data.engine.inputs import TABLES, Bad, kind, opened, refused
from assay.record.errors import BadInput, unreadable

LINES = 4096  # to a batch
ROWS = 65_536
HEAD = 1 << 16  # bytes by which a file is known again


class Batch(NamedTuple):
    """Records with their partitions, and the input's offset behind them (lines or rows)."""

    partitions: list[int]
    records: list[bytes]
    offset: int
    lines: Sequence[bytes] = ()  # also those that were left out


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Kafka's clients put keys on partitions with (MurmurHash2 with Kafka's seed).

    >>> murmur2(b"21") - (1 << 32), murmur2(b"foobar") - (1 << 32)  # of the tests of Kafka's own client
    (-973932308, -790332482)
    """
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@lru_cache(maxsize=1 << 20)
def partition_of(key: bytes, parts: int) -> int:
    """The partition of a key.

    >>> 0 <= partition_of(b"ada", 64) < 64
    True
    """
    return (murmur2(key) & 0x7FFFFFFF) % parts


def is_parquet(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in (".parquet", ".pq")


def read(path: Path, key: str, parts: int, start: int = 0, bad: Bad = refused) -> Iterator[Batch]:
    """A file's records behind an offset, batch by batch; BadInput names the line where something is wrong."""
    if kind(path) in TABLES:
        raise BadInput(f"{path} is CSV; JSON lines or parquet expected")
    return _rows(path, key, parts, start) if is_parquet(path) else _lines(path, key, parts, start, bad)


def _opened(path: Path) -> Any:
    cure = "what was committed before stays, mend the file and run it again"
    return opened(path, "JSON lines, packed or not, or parquet expected", cure)


def _lines(path: Path, key: str, parts: int, start: int, bad: Bad) -> Iterator[Batch]:
    """Only the key is parsed; the rest of a line travels as it is."""
    names = key.split(".")
    shape: Any = Any
    for name in reversed(names):
        shape = msgspec.defstruct("Line", [("found", shape)], rename={"found": name})
    decode = msgspec.json.Decoder(shape).decode
    partitions: list[int] = []
    records: list[bytes] = []
    number = 0
    every: list[bytes] = []
    with _opened(path) as (file, _):
        for number, line in enumerate(file, 1):
            torn = not line.endswith(b"\n")
            if number <= start or not (line := line.rstrip(b"\r\n")):
                continue
            try:
                found = decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                if bad is refused and records:
                    yield Batch(partitions, records, number - 1, every)
                bad(f"{path}:{number}", f": {error}; JSON with '{key}' expected")
                if torn:  # perhaps somebody is still writing it: it is looked at again
                    number -= 1
                    break  # what came behind it since begins in its middle
                every.append(line)
                continue
            for _ in names:
                found = found.found
            partitions.append(partition_of(_key(found), parts))
            records.append(line)
            every.append(line)
            if torn:
                break
            if len(records) == LINES:
                yield Batch(partitions, records, number, every)
                partitions, records, every = [], [], []
    if records or number > start:
        yield Batch(partitions, records, number, every)


def _key(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value, sort_keys=True).encode()


def _rows(path: Path, key: str, parts: int, start: int) -> Iterator[Batch]:
    """Rows travel together: one record holds all rows of a batch that go to a partition."""
    try:
        if not path.is_file():
            raise unreadable(path, None, "JSON lines, .gz or .parquet expected")
        scan = pl.scan_parquet(path)
        columns = scan.collect_schema().names()
        if key not in columns:
            raise BadInput(f"{path} has no column '{key}'; it has {', '.join(columns[:12])}")
        total = scan.select(pl.len()).collect().item()
        for first in range(start, total, ROWS):
            frame = scan.slice(first, ROWS).collect()
            target = [partition_of(_key(value), parts) for value in frame[key].to_list()]
            split = frame.with_columns(pl.Series("\0partition", target)).partition_by(
                "\0partition", maintain_order=True, as_dict=True, include_key=False
            )
            yield Batch([int(part[0]) for part in split], [_ipc(one) for one in split.values()], first + frame.height)
    except (pl.exceptions.PolarsError, OSError) as error:
        why = " ".join(str(error).split())[:160]
        raise BadInput(f"{path} cannot be read as parquet: {why}; it may be cut") from error


def _ipc(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_ipc_stream(out)
    return out.getvalue()


class PartitionFile:
    """A partition's file in the making; there is none until :meth:`close`, and a whole one from then on."""

    def __init__(self, path: Path) -> None:
        self.path, self._aside, self.count = path, path.with_name(f".{path.name}.new"), 0
        self._frames: list[pl.DataFrame] = []
        self._file = self._aside.open("wb")

    def add(self, records: Sequence[bytes]) -> None:
        """More of its records."""
        if is_parquet(self.path):
            self._frames += [pl.read_ipc_stream(io.BytesIO(record)) for record in records]
        else:
            self._file.writelines(part for record in records for part in (record, b"\n"))
            self.count += len(records)

    def close(self) -> int:
        """Put it in its place; how many records or rows it has. Parquet without a row has no columns: no file then."""
        if self._frames:
            whole = pl.concat(self._frames)
            self.count = whole.height
            whole.write_parquet(self._file)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self.count or not is_parquet(self.path):
            self._aside.replace(self.path)
        else:
            self._aside.unlink()
            self.path.unlink(missing_ok=True)
        return self.count


def chained(path: Path, offset: int) -> Any:
    """A digest, to go on with, of the records before an offset; of parquet, whose files do not grow, of all of it."""
    chain = blake2b(digest_size=16)
    with _opened(path) as (file, _):
        if is_parquet(path):
            while block := file.read(1 << 20):
                chain.update(block)
        for line in islice(file, offset):
            if line := line.rstrip(b"\r\n"):
                chain.update(line + b"\n")
    return chain


def chains(path: Path, offsets: Collection[int]) -> dict[int, str]:
    """What :func:`chained` gives at several offsets, as far as lines can be read."""
    chain, found = blake2b(digest_size=16), {}
    with suppress(BadInput), _opened(path) as (file, _):
        for number, line in enumerate(islice(file, max(offsets)), 1):
            if line := line.rstrip(b"\r\n"):
                chain.update(line + b"\n")
            if number in offsets:
                found[number] = chain.hexdigest()
    return found


def fingerprint(path: Path, limit: int | None = None) -> tuple[int, str]:
    """A file's size, and the digest of its beginning, as far as it reached when it was first seen."""
    try:
        with path.open("rb") as file:
            head = file.read(min(HEAD, HEAD if limit is None else limit))
        return path.stat().st_size, blake2b(head, digest_size=16).hexdigest()
    except OSError as error:
        raise unreadable(path, error, "JSON lines, .gz or .parquet expected") from error


def begins(path: Path, size: int, head: str) -> bool:
    """Whether a file begins as one of this size and head did; parquet does not grow."""
    now, beginning = fingerprint(path, size)
    return beginning == head and (now == size if is_parquet(path) else now >= size)
