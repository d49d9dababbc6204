"""Nsight Systems exports (`nsys export --type sqlite`) as a :class:`~assay.sim.telemetry.Frame`.

Read are kernels, copies, CUDA graphs, runtime calls and NVTX ranges; the rest of the database is not touched. It is
opened read-only, and only its tables are asked, never its views. Each process of the report is a rank; all processes of
a file share its clock. An NVTX range named like `step 12` or `ProfilerStep#12` is a step. Unless told otherwise `nsys`
records a CUDA graph as one piece: it counts as compute, and the frame says so.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame
from assay.workloads.kineto_names import category, point_to_point

MAGIC = b"SQLite format 3\0"
_PROCESS = ~0xFFFFFF  # the low 24 bits of a global thread id are the thread
_STEP = re.compile(r"^\W*(?:profilerstep|step|iteration|iter)[\s#:_]*(\d+)\W*$", re.IGNORECASE)
_RANGES = (59, 60, 70, 71)  # push and pop, start and end; the same in the form of newer versions
_MOST = 100_000  # rows fetched at once
_GRAPHS = "CUDA graphs in one piece counted as compute (nsys profile --cuda-graph-trace=node tells what is in them)"
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


class _Source(NamedTuple):
    """A table, the columns of it that are read: name, process or thread, device, stream, link, bytes; what it holds."""

    table: str
    name: str
    thread: str
    gpu: str
    stream: str
    link: str
    nbytes: str
    cat: str


_SOURCES = (
    *(
        _Source(f"CUPTI_ACTIVITY_KIND_{table}", name, "globalPid", "deviceId", "streamId", "correlationId", nbytes, cat)
        for table, name, nbytes, cat in (
            ("KERNEL", "demangledName", "NULL", "kernel"),
            ("GRAPH_TRACE", "graphId", "NULL", "kernel"),
            ("MEMCPY", "copyKind", "bytes", "gpu_memcpy"),
            ("MEMSET", "NULL", "bytes", "gpu_memset"),
        )
    ),
    _Source(
        "CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", "globalTid", "NULL", "NULL", "correlationId", "NULL", "cuda_runtime"
    ),
    _Source("NVTX_EVENTS", "textId", "globalTid", "NULL", "NULL", "NULL", "NULL", "user_annotation"),
)
_COLUMNS = {
    "name": pl.String, "thread": pl.Int64, "gpu": pl.Int64, "stream": pl.Int64, "link": pl.Int64, "start": pl.Int64,
    "end": pl.Int64, "bytes": pl.Int64, "cat": pl.String,
}  # fmt: skip


def read(paths: Sequence[Path] | Path) -> Frame:
    """Read one export or several; ranks are numbered in the order of files and processes."""
    chosen = [paths] if isinstance(paths, Path) else list(paths)
    repairs: dict[str, int] = {}
    tables = [_rows(path, repairs).with_columns(file=pl.lit(i, pl.Int64)) for i, path in enumerate(chosen)]
    rows = pl.concat(tables)
    if rows.is_empty():
        raise BadInput(
            f"{chosen[0]}: no kernel, copy, call or range in it; was CUDA traced? (nsys profile -t cuda,nvtx)"
        )
    return _frame(rows, [str(path) for path in chosen], repairs)


def _rows(path: Path, repairs: dict[str, int]) -> pl.DataFrame:
    """Everything of one file that took time."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise BadInput(f"{path}: not SQLite; 'nsys export --type sqlite' makes it from a .nsys-rep file")
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _everything(database, path, repairs)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise BadInput(f"{path}: cannot be read as an Nsight export: {error}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _everything(database: sqlite3.Connection, path: Path, repairs: dict[str, int]) -> pl.DataFrame:
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not there & {source.table for source in _SOURCES}:
        wanted = ", ".join(source.table for source in _SOURCES)
        raise BadInput(f"{path}: a database, but not an Nsight export: it has none of {wanted}")
    words: dict[Any, str] = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in there else {}
    parts = [pl.DataFrame(schema=_COLUMNS)]
    for source in _SOURCES:
        if source.table in there:
            parts += _table(database, source, words, path, repairs)
    return pl.concat(parts)


def _table(
    database: sqlite3.Connection, source: _Source, words: dict[Any, str], path: Path, repairs: dict[str, int]
) -> Iterator[pl.DataFrame]:
    has = {row[1] for row in database.execute(f"PRAGMA table_info({source.table})")}
    if lacking := {"start", "end"} - has:
        raise BadInput(f"{path}: table {source.table} lacks the column {', '.join(sorted(lacking))}")
    chosen = [column if column in has else "NULL" for column in source[1:7]]
    if source.name == "demangledName" and "demangledName" not in has:
        chosen[0] = "shortName" if "shortName" in has else "NULL"
    text = "text" if "text" in has else "NULL"
    only = f"WHERE eventType IN {_RANGES}" if source.table == "NVTX_EVENTS" and "eventType" in has else ""
    cursor = database.execute(
        f'SELECT {chosen[0]}, {", ".join(chosen[1:5])}, start, "end", {chosen[5]}, {text} FROM {source.table} {only}'
    )
    while rows := cursor.fetchmany(_MOST):
        named = [(_name(source, row[0], row[8], words), *row[1:8], source.cat) for row in rows]
        try:
            part = pl.DataFrame(named, schema=_COLUMNS, orient="row")
        except (TypeError, pl.exceptions.PolarsError):
            raise BadInput(f"{path}: table {source.table} holds text where numbers belong") from None
        usable = (pl.col("end") >= pl.col("start")).fill_null(False)
        kept = part.filter(usable)
        if lost := len(part) - len(kept):
            what = "spans without a usable time left out"
            repairs[what] = repairs.get(what, 0) + lost
        if source.name == "graphId":
            repairs[_GRAPHS] = repairs.get(_GRAPHS, 0) + len(kept)
        yield kept


def _name(source: _Source, number: Any, text: Any, words: dict[Any, str]) -> str:
    if source.name == "graphId":
        return f"CUDA graph {number}"
    if source.cat == "gpu_memcpy":
        return f"Memcpy {_COPIES.get(number, number)}"
    if source.cat == "gpu_memset":
        return "Memset"
    return str(text or words.get(number, number if number is not None else "?"))


def _frame(rows: pl.DataFrame, files: list[str], repairs: dict[str, int]) -> Frame:
    rows = _placed(rows)
    ranks = int(rows["rank"].max()) + 1  # type: ignore[arg-type]
    rows = rows.with_row_index("span", offset=1).with_columns(entity=(pl.col("spot") + ranks - 1).cast(pl.UInt32))
    rows = rows.join(_meanings(rows), on=["cat", "name"], maintain_order="left").drop("cat").rename({"meaning": "cat"})
    host_step = pl.col("number").is_not_null() & ~pl.col("device")
    rows = rows.with_columns(cat=pl.when(host_step).then(pl.lit("step")).otherwise("cat")).with_columns(seq=_number())
    calls = rows.filter(~pl.col("device") & pl.col("link").is_not_null()).select("rank", "link", src="span")
    edges = rows.filter("device").join(calls.unique(["rank", "link"], keep="first"), on=["rank", "link"])
    return Frame.of(
        _entities(rows, ranks, files),
        spans=rows.select(
            "span", "entity", "name", "cat", "start", "bytes", "seq", dur=pl.col("end") - pl.col("start")
        ),
        edges=edges.select("src", dst="span", kind=pl.lit("calls")),
        source=", ".join(files),
        repairs=repairs,
    )


def _placed(rows: pl.DataFrame) -> pl.DataFrame:
    """With the rank of each row, whether it ran on a device, and the number of its stream or thread (`spot`)."""
    rows = rows.with_columns(
        process=pl.Series(rows["thread"].fill_null(0).to_numpy() & _PROCESS),
        device=pl.col("cat").is_in(["kernel", "gpu_memcpy", "gpu_memset"]),
    )
    rows = rows.with_columns(
        rank=pl.struct("file", "process").rank("dense").cast(pl.Int64) - 1,
        place=pl.when("device").then(pl.col("stream").fill_null(0)).otherwise(pl.col("thread").fill_null(0)),
        gpu=pl.col("gpu").fill_null(0),  # devices number their streams each for itself
    )
    spot = pl.struct("rank", ~pl.col("device"), "gpu", "place").rank("dense").cast(pl.Int64)
    return rows.with_columns(spot=spot).sort("start", "end", maintain_order=True)


def _meanings(rows: pl.DataFrame) -> pl.DataFrame:
    """For each (category, name) that occurs: the frame's category, the number of a step, whether it joins two only."""
    made = [
        (
            cat,
            name,
            category(cat, name),
            int(step.group(1)) if (step := _STEP.match(name)) else None,
            point_to_point(name),
        )
        for cat, name in rows.select("cat", "name").unique().iter_rows()
    ]
    kinds = {"cat": pl.String, "name": pl.String, "meaning": pl.String, "number": pl.Int64, "alone": pl.Boolean}
    return pl.DataFrame(made, schema=kinds, orient="row")


def _number() -> pl.Expr:
    """The step's own number; a collective's place among those of its rank: exports do not number them."""
    counted = (pl.col("cat") == "comm") & pl.col("device") & ~pl.col("alone")
    place = counted.cast(pl.Int64).cum_sum().over("rank") - 1
    return pl.when(counted).then(place).when(pl.col("cat") == "step").then("number")


def _entities(rows: pl.DataFrame, ranks: int, files: list[str]) -> pl.DataFrame:
    table = [
        {"id": rank, "kind": "rank", "name": str(rank), "parent": None, "clock": files[file]}
        for rank, file in rows.select("rank", "file").unique().sort("rank").iter_rows()
    ]
    spots = rows.select("entity", "rank", "device", "gpu", "place", "file").unique().sort("entity")
    several = set(
        spots.filter("device").group_by("rank").agg(pl.col("gpu").n_unique()).filter(pl.col("gpu") > 1)["rank"]
    )
    for entity, rank, device, gpu, place, file in spots.iter_rows():
        kind = "stream" if device else "thread"
        word = f"{kind} {place if device else place & ~_PROCESS}"
        named = f"{rank}/GPU {gpu} {word}" if device and rank in several else f"{rank}/{word}"
        table.append({"id": entity, "kind": kind, "name": named, "parent": rank, "clock": files[file]})
    return pl.DataFrame(table, schema={"id": pl.UInt32, "kind": pl.String, "name": pl.String, "parent": pl.UInt32,
                                       "clock": pl.String})  # fmt: skip
