"""Records of the user's own files, in batches, so that a producer can go on where it stopped.

Lines of text, JSON lines (plain or gzip), rows of parquet as JSON; any other file is one record: an image, say.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec

from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module

LINES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv")
_PROBE = 1 << 16  # bytes at either end of what was read by which a file is known again
Records = list[bytes]


def pack(records: Sequence[bytes]) -> bytes:
    """Records as a slice.

    >>> unpack(pack([b"one", b"two"]))
    [b'one', b'two']
    """
    return msgspec.msgpack.encode(records)


def unpack(data: bytes | bytearray | memoryview) -> Records:
    """The records of a slice; BadInput where it holds something else."""
    try:
        return msgspec.msgpack.decode(data, type=list[bytes])
    except msgspec.DecodeError as error:
        raise BadInput(
            f"this plane's slices are no lists of records ({error}); read it in Python, as it was written"
        ) from error


def found(paths: Sequence[Path]) -> list[Path]:
    """The files, those of folders in order of their names; BadInput where one is not there."""
    files = []
    for path in paths:
        if not path.exists():
            raise unreadable(path)
        files += sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"no files in {', '.join(map(str, paths))}")
    return files


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, in order; what was cut or is damaged is told when it is reached, in one line."""
    kinds = path.suffixes[-2:]
    try:
        if path.suffix == ".parquet":
            yield from _rows(path)
        elif path.suffix in LINES:
            with path.open("rb") as file:
                yield from (line.rstrip(b"\r\n") for line in file)
        elif kinds[-1:] == [".gz"] and kinds[:-1] and kinds[0] in LINES:
            with gzip.open(path) as file:
                yield from (line.rstrip(b"\r\n") for line in file)
        else:
            yield path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(f"{path} ends early or is damaged: {error}; what came before it is in the plane") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _rows(path: Path) -> Iterator[bytes]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("reading parquet", error)) from error
    try:
        for part in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from (json.dumps(row, default=str, ensure_ascii=False).encode() for row in part.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is no parquet file, or was cut: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Source:
    """Batch after batch of `size` records, every `of`-th of them beginning with `part`; cut into slices.

    Its cursor tells how many batches were taken and what the files looked like, so that files that changed since are
    noticed before anything is published twice or never. Files that only grew are read on.
    """

    files: Sequence[Path]
    size: int
    slices: int
    part: int = 0
    of: int = 1
    convert: Callable[[bytes], bytes] = bytes

    def __call__(self, cursor: Any) -> Iterator[tuple[list[bytes], Any]]:
        """The slices of each further batch, and the cursor behind it."""
        taken, seen = (cursor["batches"], cursor["files"]) if cursor else (0, {})
        self._unchanged(seen)
        looks = {str(path): look(path) for path in self.files}
        every = (record for path in self.files for record in records(path))
        number = 0
        while batch := list(islice(every, self.size)):
            if number >= taken and number % self.of == self.part:
                cut = [len(batch) * i // self.slices for i in range(self.slices + 1)]
                made = [self._prepared(record, number * self.size + i) for i, record in enumerate(batch)]
                yield [pack(made[a:b]) for a, b in pairwise(cut)], {
                    "batches": number + 1, "files": looks,
                }  # fmt: skip
            number += 1

    def _prepared(self, record: bytes, number: int) -> bytes:
        try:
            made = self.convert(record)
        except Exception as error:  # the user's own code
            said = " ".join(str(error).split())
            raise BadInput(f"record {number} could not be prepared: {type(error).__name__}: {said}") from error
        if not isinstance(made, bytes):
            raise BadInput(f"record {number} was prepared as {type(made).__name__}; bytes expected")
        return made

    def _unchanged(self, seen: dict[str, list[Any]]) -> None:
        for path, (size, marks) in seen.items():
            if not any(str(file) == path for file in self.files):
                raise BadInput(f"{path} was read before and is not named now; name the same files, or another producer")
            now = Path(path)
            if not now.exists() or now.stat().st_size < size or look(now, size)[1] != marks:
                raise BadInput(f"{path} changed since its records were published; publish it as another producer")


def look(path: Path, size: int | None = None) -> list[Any]:
    """A file's size and a digest of its two ends, by which a change of what was read is noticed."""
    size = path.stat().st_size if size is None else size
    with path.open("rb") as file:
        head = file.read(min(size, _PROBE))
        file.seek(max(0, size - _PROBE))
        tail = file.read(min(size, _PROBE))
    return [size, blake2b(head + tail, digest_size=12).hexdigest()]
