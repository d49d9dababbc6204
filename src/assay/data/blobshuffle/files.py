"""The user's records: JSON lines (plain or gzip) and parquet, by key to partitions as Kafka's clients choose them."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from assay.record.errors import BadInput, unreadable

LINES = 4096  # to a batch
ROWS = 65_536
HEAD = 1 << 16  # bytes by which a file is known again


class Batch(NamedTuple):
    """Records with their partitions, and the input's offset behind them (lines or rows)."""

    partitions: list[int]
    records: list[bytes]
    offset: int


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
    return path.suffix in (".parquet", ".pq")


def read(path: Path, key: str, parts: int, start: int = 0) -> Iterator[Batch]:
    """A file's records behind an offset, batch by batch; BadInput names the line where something is wrong."""
    return _rows(path, key, parts, start) if is_parquet(path) else _lines(path, key, parts, start)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        cure = "what was committed before stays, mend the file and run it again"
        raise BadInput(f"{path} ends early or is no gzip: {error}; {cure}") from error
    except OSError as error:
        raise unreadable(path, error, "JSON lines, .gz or .parquet expected") from error


def _lines(path: Path, key: str, parts: int, start: int) -> Iterator[Batch]:
    """Only the key is parsed; the rest of a line travels as it is."""
    names = key.split(".")
    shape: Any = Any
    for name in reversed(names):
        shape = msgspec.defstruct("Line", [("found", shape)], rename={"found": name})
    decode = msgspec.json.Decoder(shape).decode
    partitions: list[int] = []
    records: list[bytes] = []
    number = 0
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if number <= start or not (line := line.rstrip(b"\r\n")):
                continue
            try:
                found = decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                if records:
                    yield Batch(partitions, records, number - 1)
                raise BadInput(f"{path}:{number}: {error}; JSON with '{key}' expected") from error
            for _ in names:
                found = found.found
            partitions.append(partition_of(_key(found), parts))
            records.append(line)
            if len(records) == LINES:
                yield Batch(partitions, records, number)
                partitions, records = [], []
    if records or number > start:
        yield Batch(partitions, records, number)


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


def fingerprint(path: Path, limit: int | None = None) -> tuple[int, str]:
    """A file's size, and the digest of its beginning, as far as it reached when it was first seen."""
    try:
        with path.open("rb") as file:
            head = file.read(min(HEAD, HEAD if limit is None else limit))
        return path.stat().st_size, blake2b(head, digest_size=16).hexdigest()
    except OSError as error:
        raise unreadable(path, error, "JSON lines, .gz or .parquet expected") from error
