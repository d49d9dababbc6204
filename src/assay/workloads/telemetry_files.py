"""Any telemetry that people have on disk, opened by what is in it: Prometheus, OTLP, profiler traces, dumps, tables.

The names of files do not matter, but for `.et`: protobuf does not say what it holds.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder, "anything.dat")
...     _ = file.write_text('up{instance="n1"} 1 1700000000000\\n')
...     kind_of(file), read(file).samples["value"].to_list()
('prometheus', [1.0])
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame

Kind = Literal["prometheus", "otlp", "kineto", "chakra", "nsight", "flight recorder", "benchmarks", "series"]
KINDS: tuple[Kind, ...] = get_args(Kind)
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


def read(paths: Path | str | Sequence[Path | str]) -> Frame:
    """The telemetry of a file, of all files in a folder, or of several files of one kind.

    Raises:
        BadInput: no known format, formats mixed, or a file that its reader refuses; the line says which.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    files = [file for path in given for file in _below(path)]
    if not files:
        raise BadInput(f"{', '.join(map(str, given))}: no file in it; {_right()}")
    first = files[0]
    kind = kind_of(first)
    for file in files[1:]:
        if (other := kind_of(file)) != kind:
            raise BadInput(f"{first} is {kind}, {file} is {other}: read one kind at a time")
    return _READERS[kind](files)


def kind_of(path: Path) -> Kind:
    """Which format a file has, told by its first bytes."""
    head, whole = _head(path)
    start = head.lstrip()[:1]
    if not start:
        raise BadInput(f"{path}: empty; {_right()}")
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
        raise BadInput(f"{path}: JSON of an unknown kind; {_right()}")
    if head[:1] in (b"\x0a", b"\x00") and _is_binary(head):
        return _protobuf(path, head, whole)
    return _text(path, head)


def _head(path: Path) -> tuple[bytes, bool]:
    """The first bytes, unpacked, and whether they are all."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            whole = len(head) < _HEAD
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; {_right()}") from None
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


def _text(path: Path, head: bytes) -> Kind:
    from assay.workloads import prometheus_text

    if prometheus_text.looks_like(head):
        return "prometheus"
    columns = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").strip().lower().split(",")
    if len(columns) < 2 or _is_binary(head):
        raise BadInput(f"{path}: none of the formats known; {_right()}")
    return "benchmarks" if _COMMITS & {column.strip().strip('"') for column in columns} else "series"


def _below(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))


def _right() -> str:
    return f"one of {', '.join(KINDS)} would be right"


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
            raise BadInput(f"{file}: {error.strerror or error}") from None
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
