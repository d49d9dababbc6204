"""Records of the user's own files.

Lines of text, JSON lines, CSV (plain or packed), rows of parquet as JSON; any other file is one record: an image, say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from assay.data.engine.inputs import kind, opened, readable
from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module

LINES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv")
JSON_LINES = (".jsonl", ".ndjson")
CURE = "what came before it is in the plane"
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
    """The files, each once and by its full name, those of folders in order; BadInput where one is not there."""
    files = []
    for path in paths:
        if not path.exists():
            raise unreadable(path)
        files += sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"no files in {', '.join(map(str, paths))}")
    return list(dict.fromkeys(path.resolve() for path in files))


def records(path: Path, unfinished: Callable[[], bool] = lambda: True) -> Iterator[bytes]:
    """The records of a file, in order; what was cut or is damaged is told when it is reached, in one line.

    `unfinished` is asked at a last line that has no end, and might go on, whether it is a record.
    """
    if kind(path) == ".parquet":
        yield from _rows(path)
    elif kind(path) in LINES:
        with opened(path, cure=CURE) as (file, _):
            for line in file:
                if line.endswith(b"\n"):
                    yield line.rstrip(b"\r\n")
                    continue
                if (kind(path) in JSON_LINES and _whole(path, line)) or unfinished():
                    yield line.rstrip(b"\r\n")
                return  # what somebody has written behind it since begins in its middle
    else:
        readable(path)
        try:
            yield path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error


def _whole(path: Path, line: bytes) -> bool:
    """Refuse a last line that somebody is still writing: half of it would be a record for ever.

    A number is whole after each of its digits.
    """
    try:
        return not isinstance(msgspec.json.decode(line), int | float)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput(f"{path} ends in the middle of a line; {CURE}, run it again when the line is whole") from None


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
