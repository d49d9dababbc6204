"""Any telemetry that people have on disk, opened by what is in it: Prometheus, OTLP, profiler traces, dumps, tables.

The names of files do not matter, but for `.et`: protobuf does not say what it holds. In a folder what people write
beside their telemetry is skipped, and `repairs` of the frame names it: hidden files, `README*`, `*.md`, and a `*.txt`
that holds no telemetry.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder, "anything.dat")
...     _ = file.write_text('up{instance="n1"} 1 1700000000000\\n')
...     kind_of(file), read(file).samples["value"].to_list()
('prometheus', [1.0])
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame

Kind = Literal["prometheus", "otlp", "kineto", "chakra", "nsight", "flight recorder", "benchmarks", "series"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RIGHT = f"one of {', '.join(KINDS)} would be right"
_HEAD = 1 << 18
_COMMITS = {"commit", "hash", "sha", "revision", "commit_hash", "benchmark"}
_JSON: tuple[tuple[Kind, re.Pattern[bytes]], ...] = (
    ("prometheus", re.compile(rb'^\s*\{\s*"status"\s*:\s*"(?:success|error)"')),
    ("otlp", re.compile(rb'"resource(?:Spans|Metrics|Logs)"')),
    ("chakra", re.compile(rb'"workload_graph"|"ctrl_?[dD]eps"')),
    ("kineto", re.compile(rb'"traceEvents"|"distributedInfo"|"schemaVersion"\s*:|"ph"\s*:\s*"')),
    ("flight recorder", re.compile(rb'"pg_config"|"collective_seq_id"|"pg_status"')),
    ("benchmarks", re.compile(rb'"benchmarks"\s*:|"commit_hash"\s*:|"commit_info"\s*:')),
    ("prometheus", re.compile(rb'"resultType"|^\s*\{\s*"[^"]*"\s*[,}]')),
)


class UnknownFormat(BadInput):
    """A file that can be read, but holds no telemetry of a known format."""


def read(paths: Path | str | Sequence[Path | str]) -> Frame:
    """The telemetry of a file, of all files in a folder, or of several files of one kind.

    Raises:
        BadInput: no known format, formats mixed, or a file that its reader refuses; the line says which.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    kinds: dict[Path, Kind] = {}
    skipped: list[str] = []
    for path in given:
        _collect(path, kinds, skipped)
    if not kinds:
        beside = f"no telemetry in it, only {_few(skipped)}" if skipped else "no file in it"
        raise BadInput(f"{', '.join(map(str, given))}: {beside}; {RIGHT}")
    first, kind = next(iter(kinds.items()))
    for file, other in kinds.items():
        if other != kind:
            raise BadInput(f"{first} is {kind}, {file} is {other}: read one kind at a time")
    frame = _READERS[kind](list(kinds))
    return replace(frame, repairs={**frame.repairs, **{f"{name} skipped: no telemetry": 1 for name in skipped}})


def kind_of(path: Path, right: str = RIGHT) -> Kind:
    """Which format a file has, told by its first bytes; `right` ends the line of a refusal.

    Raises:
        UnknownFormat: none of those known.
        BadInput: it cannot be read, or is empty.
    """
    head, whole = _head(path, right)
    start = head.lstrip()[:1]
    if not start:
        raise BadInput(f"{path}: empty; {right}")
    if head.startswith(b"SQLite format 3\0"):
        return "nsight"
    if head[257:262] == b"ustar" or re.search(r"\.et(\.gz)?$", path.name):
        return "chakra"
    if head[:1] == b"\x80":
        return "flight recorder"  # a pickle, which is read without executing anything
    if start in (b"{", b"["):
        for kind, mark in _JSON:
            if mark.search(head):
                return kind
        raise UnknownFormat(f"{path}: JSON of an unknown kind; {right}")
    if head[:1] in (b"\x0a", b"\x00") and _is_binary(head):
        return _protobuf(path, head, whole)
    return _text(path, head, right)


def _head(path: Path, right: str) -> tuple[bytes, bool]:
    """The first bytes, unpacked, and whether they are all."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            whole = len(head) < _HEAD
    except OSError as error:
        raise unreadable(path, error, right) from None
    if head[:2] == b"\x1f\x8b":
        try:
            head, whole = zlib.decompressobj(wbits=31).decompress(head, _HEAD), False
        except zlib.error as error:
            raise BadInput(f"{path}: damaged gzip data: {error}") from None
    return head, whole


def _is_binary(head: bytes) -> bool:
    return any(byte < 9 or 13 < byte < 32 for byte in head[:4096])


def _protobuf(path: Path, head: bytes, whole: bool) -> Kind:
    from assay.workloads import otlp_wire
    from assay.workloads.prometheus_text import unpacked

    if otlp_wire.looks_like(head if whole else unpacked(path)):
        return "otlp"
    # A Chakra stream starts with the length of its metadata, whose first field is a version of that many letters.
    version = re.match(rb"[\x03-\x7f]\n([\x01-\x20])[0-9.]+", head)
    return "chakra" if version and len(version[0]) >= 3 + version[1][0] else "otlp"


def _text(path: Path, head: bytes, right: str) -> Kind:
    from assay.workloads import prometheus_text

    if prometheus_text.looks_like(head):
        return "prometheus"
    columns = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").strip().lower().split(",")
    if len(columns) < 2 or _is_binary(head):
        raise UnknownFormat(f"{path}: none of the formats known; {right}")
    return "benchmarks" if _COMMITS & {column.strip().strip('"') for column in columns} else "series"


# --------------------------------------------------------------------------------------------------- folders


def _collect(path: Path, kinds: dict[Path, Kind], skipped: list[str]) -> None:
    """Add a file that was named, or what lies below a folder, with its kind; or to what is skipped."""
    if not path.is_dir():
        kinds[path] = kind_of(path)
        return
    for file in sorted(path.iterdir()):
        if file.name.startswith(".") or (file.is_file() and _is_note(file)):
            skipped.append(str(file))  # a hidden folder too, as a whole
        elif file.is_dir() and not file.is_symlink():  # which may lead in a circle
            _collect(file, kinds, skipped)
        elif file.is_file():
            kinds[file] = kind_of(file)


def _is_note(file: Path) -> bool:
    """Whether a file of a folder is written for people: by its name, and a `.txt` by its content."""
    name = file.name.lower()
    if name.startswith("readme") or name.endswith(".md"):
        return True
    if not name.endswith(".txt"):
        return False
    head, _ = _head(file, RIGHT)
    if _is_binary(head):
        return False
    try:
        kind = kind_of(file)
    except UnknownFormat:
        return True
    except BadInput:
        return not head.strip()
    # A sentence with a comma would pass for the names of columns; the rows below it would not.
    return kind in ("series", "benchmarks") and head.lstrip()[:1] not in (b"{", b"[") and not _is_table(head)


def _is_table(head: bytes) -> bool:
    """Whether the first lines have as many columns each, and are two at least."""
    lines = head.decode("utf-8", "replace").splitlines()
    lines = lines[: min(20, len(lines) - (len(head) >= _HEAD))]  # the last one may be cut
    try:
        widths = [len(row) for row in csv.reader(lines) if row]
    except csv.Error:
        return False
    return len(widths) > 1 and len(set(widths)) == 1


def _few(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# ------------------------------------------------------------------------------------------------- the readers


def _prometheus(files: list[Path]) -> Frame:
    from assay.workloads import prometheus_text

    return prometheus_text.read(files)


def _otlp(files: list[Path]) -> Frame:
    from assay.workloads import otlp

    return otlp.read(files)


def _kineto(files: list[Path]) -> Frame:
    from assay.workloads import kineto

    return kineto.read(files)


def _chakra(files: list[Path]) -> Frame:
    from assay.workloads import chakra

    return chakra.frame(chakra.read_all(files))


def _nsight(files: list[Path]) -> Frame:
    from assay.workloads import nsight

    return nsight.read(files)


def _flight_recorder(files: list[Path]) -> Frame:
    from assay.workloads import flight_recorder

    ranks = {file: flight_recorder.rank_of(file) for file in files}
    if len(files) > 1 and None in ranks.values():
        odd = next(file for file, rank in ranks.items() if rank is None)
        raise BadInput(f"{odd}: whose dump is it? A name that ends in the rank, such as rank_3, would be right")
    parts = []
    for file, rank in ranks.items():
        try:
            parts.append(flight_recorder.parse(file.read_bytes(), rank or 0, str(file)))
        except OSError as error:
            raise unreadable(file, error) from None
    return flight_recorder.merge(parts, ", ".join(map(str, files[:3]))).frame()


def _benchmarks(files: list[Path]) -> Frame:
    from assay.workloads import benchmark_series

    return benchmark_series.read(files)


def _series(files: list[Path]) -> Frame:
    """Tables of several files side by side: the same name in two of them is two series."""
    from assay.workloads import long_series

    frames = [long_series.read(file) for file in files]
    if len(frames) == 1:
        return frames[0]
    entities: list[pl.DataFrame] = []
    samples: list[pl.DataFrame] = []
    repairs: dict[str, int] = {}
    for file, frame in zip(files, frames, strict=True):
        shift = sum(len(table) for table in entities)
        prefix = pl.lit(f"{file.stem}: ") if len(frame.entities) > 1 else pl.lit("")
        entities.append(frame.entities.with_columns(pl.col("id") + shift, name=prefix + pl.col("name")))
        samples.append(frame.samples.with_columns(pl.col("entity") + shift, pl.col("metric").cast(pl.String)))
        for what, times in frame.repairs.items():
            repairs[what] = repairs.get(what, 0) + times
    return Frame.of(pl.concat(entities), pl.concat(samples), source=str(files[0].parent), repairs=repairs)


_READERS: dict[Kind, Callable[[list[Path]], Frame]] = {
    "prometheus": _prometheus, "otlp": _otlp, "kineto": _kineto, "chakra": _chakra, "nsight": _nsight,
    "flight recorder": _flight_recorder, "benchmarks": _benchmarks, "series": _series,
}  # fmt: skip
