"""Documents out of people's files: text, JSON lines, CSV (packed or not), parquet, folders of any of them.

A reader never believes a file: one that ends early or is something else gives one line that says where.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from assay.data.engine.inputs import LINES, TABLES, Bad, kind, opened, refused
from assay.record.errors import BadInput, unreadable

FIELDS = ("text", "contents", "content", "raw_content", "body")
IDS = ("id", "doc_id", "int_id_column", "_id", "url")
_ROWS = 4096  # of a parquet file at a time


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its name, its text, the line that goes out if it is kept, and how far into the file it ends."""

    name: str
    text: str
    line: bytes
    at: int


def files(inputs: Sequence[Path]) -> list[Path]:
    """The files that are meant: folders stand for all they hold, in order of name; hidden ones are left out.

    >>> files([Path(__file__)])[0].name
    'corpus.py'
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = (one for one in sorted(path.rglob("*")) if one.is_file())
            found += [one for one in inside if not any(part.startswith(".") for part in one.relative_to(path).parts)]
        elif path.exists():
            found.append(path)
        else:
            raise unreadable(path, right="files or folders of txt, jsonl, csv or parquet expected")
    if not found:
        raise BadInput(f"there is no file in {', '.join(map(str, inputs))}; nothing to deduplicate")
    return list(dict.fromkeys(found))


def documents(
    path: Path, field: str | None = None, *, lines: bool = False, bad: Bad = refused,
    unfinished: Callable[[], bool] = lambda: True,
) -> Iterator[Document]:  # fmt: skip
    """The documents of one file. Text files are one document each, or with `lines` one a line.

    What is wrong with a row goes to `bad`; if that raises nothing, the next row is read. `unfinished` is asked at a
    last line that has no end, and might go on, whether it is a document.
    """
    if kind(path) == ".parquet":
        yield from _parquet(path, field, bad)
        return
    with opened(path) as (stream, raw):
        if kind(path) in LINES:
            yield from _json_lines(path, stream, raw, field, bad)
        elif kind(path) in TABLES:
            yield from _table(path, stream, raw, field, bad, unfinished)
        else:
            yield from _texts(path, stream, raw, lines, unfinished)


def _json_lines(path: Path, stream: IO[bytes], raw: IO[bytes], field: str | None, bad: Bad) -> Iterator[Document]:
    decoder = msgspec.json.Decoder()
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            bad(where, f": {error}; one JSON object a line expected")
            if not line.endswith(b"\n"):  # what somebody has written behind it since begins in its middle
                break
            continue
        if not isinstance(row, dict):
            bad(where, f": one JSON object a line expected, not {type(row).__name__}")
        elif (text := _text(row, field, where, bad)) is not None:
            yield Document(_name(row, f"{path.name}:{number}"), text, line.rstrip(b"\r\n"), raw.tell())
        if not line.endswith(b"\n"):
            break


class _Lines:
    """The lines of a text, and whether the last one that was given has an end."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text, self.ended, self.over = text, True, False

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self.ended = line.endswith(("\n", "\r"))
            yield line
            if not self.ended:  # what somebody has written behind it since begins in its middle
                break
        self.over = True


def _table(
    path: Path, stream: IO[bytes], raw: IO[bytes], field: str | None, bad: Bad, unfinished: Callable[[], bool]
) -> Iterator[Document]:
    """Rows of CSV, under the names that its first line gives."""
    text = _Lines(io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline=""))
    rows = csv.DictReader(iter(text), delimiter=TABLES[kind(path)], restkey="", strict=True)
    try:
        for number, row in enumerate(rows, 1):
            where = f"{path}, row {number}"
            if not text.ended and not unfinished():
                return
            if "" in row or None in row.values():
                bad(where, " has more or fewer fields than the first line names")
                continue
            try:
                line = msgspec.json.encode(row)
            except UnicodeEncodeError:
                bad(where, " is no UTF-8")
                continue
            if (found := _text(row, field, where, bad)) is not None:
                yield Document(_name(row, f"{path.name}:{number}"), found, line, raw.tell())
    except csv.Error as error:
        if text.over and not unfinished():  # within quotes
            return
        raise BadInput(f"{path}, line {rows.line_num}: {error}; rows of CSV expected") from None


def _text(row: dict[str, Any], field: str | None, where: str, bad: Bad) -> str | None:
    name = field or next((one for one in FIELDS if one in row), None)
    found = row.get(name) if name else None
    if isinstance(found, str):
        return found
    has = ", ".join(list(row)[:8]) or "nothing"
    wanted = f"'{field}'" if field else f"any of {', '.join(FIELDS)}"
    bad(where, f" has no text in {wanted} (it has {has}); name the field with --field")
    return None


def _name(row: dict[str, Any], otherwise: str) -> str:
    for one in IDS:
        if isinstance(row.get(one), str | int) and row[one] != "":
            return str(row[one])
    return otherwise


def _texts(
    path: Path, stream: IO[bytes], raw: IO[bytes], lines: bool, unfinished: Callable[[], bool]
) -> Iterator[Document]:
    if not lines:
        text = stream.read().decode("utf-8", "replace")
        if "\0" not in text and text.strip():  # what has NULs is no text
            yield Document(str(path), text, _line(str(path), text), raw.tell())
        return
    for number, line in enumerate(io.TextIOWrapper(stream, "utf-8", "replace", newline="\n"), 1):
        text, ended = line.rstrip("\r\n"), line.endswith("\n")
        if text.strip() and (ended or unfinished()):
            name = f"{path.name}:{number}"
            yield Document(name, text, _line(name, text), 0)
        if not ended:
            return


def _line(name: str, text: str) -> bytes:
    return msgspec.json.encode({"id": name, "text": text.encode("utf-8", "replace").decode()})


def _parquet(path: Path, field: str | None, bad: Bad) -> Iterator[Document]:
    import polars as pl

    try:
        lazy = pl.scan_parquet(path)
        total = lazy.select(pl.len()).collect().item()
        size = path.stat().st_size
        for first in range(0, total, _ROWS):
            for number, row in enumerate(lazy.slice(first, _ROWS).collect().iter_rows(named=True), first + 1):
                if (text := _text(row, field, f"{path}, row {number}", bad)) is None:
                    continue
                line = msgspec.json.encode(row, enc_hook=str)
                yield Document(_name(row, f"{path.name}:{number}"), text, line, size * number // total)
    except pl.exceptions.PolarsError as error:
        said = " ".join(str(error).split())[:120]
        raise BadInput(f"{path} is no whole parquet file: {said}; fetch it again") from error
