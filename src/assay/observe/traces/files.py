"""Profiler traces of any kind opened by their content: Kineto/Chrome JSON, Nsight SQLite, Chakra; and written again."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from assay.record.errors import BadInput
from assay.record.store import write_whole
from assay.sim.telemetry import Frame
from assay.workloads import telemetry_files

if TYPE_CHECKING:
    from assay.observe.traces.chakra_runs import Replayed
    from assay.workloads.chakra import Graph

Kind = Literal["kineto", "nsight", "chakra"]
SUFFIXES = (".json", ".json.gz", ".et", ".et.gz", ".sqlite")  # of traces in a folder; a file that is named may be any


def kind_of(path: Path) -> Kind:
    """Which kind of trace a file holds; what is none counts as Kineto's, whose reader says what is wrong with it."""
    try:
        kind = telemetry_files.kind_of(path, right="a profiler trace would be right")
    except telemetry_files.UnknownFormat:
        return "kineto"
    return kind if kind == "nsight" or kind == "chakra" else "kineto"


@dataclass(frozen=True, eq=False)
class Run:
    """The files of one run, read; Chakra traces were also replayed."""

    kind: Kind
    frame: Frame
    paths: Sequence[Path]
    replayed: Replayed | None = None


def read(paths: Sequence[Path], progress: Callable[[int, int], None] | None = None, break_cycles: bool = False) -> Run:
    """Read the files of one run, all of one kind; of a folder, the traces in it."""
    paths = [file for path in paths for file in _within(path)]
    kinds = {kind_of(path) for path in paths}
    if len(kinds) > 1:
        raise BadInput(f"files of different kinds in one run ({', '.join(sorted(kinds))}): give those of one")
    kind = kinds.pop()
    if kind == "nsight":
        from assay.workloads import nsight

        return Run(kind, nsight.read(paths), paths)
    if kind == "chakra":
        from assay.observe.traces import chakra_runs

        replayed = chakra_runs.read(paths, break_cycles)
        return Run(kind, replayed.frame, paths, replayed)
    from assay.workloads import kineto

    return Run(kind, kineto.read(paths, progress), paths)


def _within(path: Path) -> list[Path]:
    """The file itself; of a folder those that are named like traces, in order of their names."""
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.iterdir()) if file.name.endswith(SUFFIXES) and file.is_file()]
    if not found:
        raise BadInput(f"{path}: no trace in this folder; files {', '.join(SUFFIXES)} would be")
    return found


def convert(run: Run, frame: Frame, to: Path) -> None:
    """Write `.parquet` (a table of spans), `.json` or `.json.gz` (a Chrome trace that any viewer opens), or `.et`.

    Of several ranks each gets a file of its own, but for the table. A Chakra trace stays one: its `.json` is Chakra's
    own. A profiler's `.et` has all of its steps.
    """
    name = to.name.lower()
    if name.endswith(".parquet"):
        held = io.BytesIO()
        _named(frame).write_parquet(held)
        write_whole(to, held.getvalue())
    elif name.endswith((".json", ".json.gz")) and run.replayed is None:
        names = frame.entities.filter(pl.col("kind") == "rank")["name"].to_list()
        for rank, path in zip(names, _one_each(to, names), strict=True):
            text = chrome(frame, rank)
            write_whole(path, gzip.compress(text, 6, mtime=0) if name.endswith(".gz") else text)
    elif name.endswith((".et", ".et.gz", ".json", ".json.gz")):
        from assay.workloads import chakra

        graphs = _graphs(run)
        told = [str(graph.rank) for graph in graphs]
        places = told if len(set(told)) == len(told) else [str(i) for i in range(len(graphs))]
        for graph, path in zip(graphs, _one_each(to, places), strict=True):
            chakra.write(graph, path)
    else:
        raise BadInput(f"cannot convert to '{to.name}': the suffix must be .et, .json, .json.gz or .parquet")


def _graphs(run: Run) -> Sequence[Graph]:
    """The Chakra traces that were read, or those that the profiler's files link to, a file each."""
    if run.replayed is not None:
        return run.replayed.graphs
    if run.kind != "kineto":
        raise BadInput(f"a Chakra trace cannot be made of an {run.kind} export; .json and .parquet can")
    from assay.observe.graphs.link import link

    return [link(path) for path in run.paths]


def _one_each(to: Path, ranks: Sequence[str]) -> list[Path]:
    """The file itself for one rank; `out.0.et`, `out.1.et` for several."""
    if len(ranks) == 1:
        return [to]
    stem, dot, suffix = to.name.partition(".")
    return [to.with_name(f"{stem}.{rank}{dot}{suffix}") for rank in ranks]


def _named(frame: Frame) -> pl.DataFrame:
    """The spans with their entity's name, kind and rank in words."""
    from assay.observe.traces.breakdown import ranks

    entities = frame.entities.select(entity="id", place="name", clock="clock")
    placed = ranks(frame).join(entities, on="entity")
    calls = frame.edges.filter(pl.col("kind") == "calls").select(span="dst", call="src").unique("span")
    rows = frame.spans.join(placed, on="entity", maintain_order="left").join(
        calls, on="span", how="left", maintain_order="left"
    )
    return rows.with_columns(pl.col("name", "group", "cat").cast(pl.String))


def chrome(frame: Frame, rank: str) -> bytes:
    """The spans of one rank as a Chrome trace, with a thread for each of its threads and streams.

    Reading it again gives the same spans: names, times to the nanosecond, steps (under the profiler's name for them),
    streams, collectives and launches.
    """
    import msgspec

    rows = _named(frame).filter(pl.col("rank") == rank)
    cats = {"kernel": "kernel", "comm": "kernel", "memcpy": "gpu_memcpy", "step": "user_annotation", "io": "cpu_op"}
    parts: list[bytes] = []
    for row in rows.filter(pl.col("start").is_not_null() & pl.col("dur").is_not_null()).iter_rows(named=True):
        stream = row["kind"] == "stream"
        cat = cats.get(row["cat"], row["cat"]) if stream or row["cat"] in ("step", "io") else row["cat"]
        args: dict[str, Any] = {"stream": row["entity"]} if stream else {}
        link = row["call"] if row["call"] is not None else (row["span"] if row["cat"] == "other" else None)
        args |= {"correlation": link} if link else {}
        args |= {key: row[own] for key, own in (("Seq", "seq"), ("Process Group Name", "group"), ("bytes", "bytes"))
                 if row[own] is not None}  # fmt: skip
        times = {"ts": msgspec.Raw(_micro(row["start"])), "dur": msgspec.Raw(_micro(row["dur"]))}
        step = row["cat"] == "step" and row["seq"] is not None
        name = f"ProfilerStep#{row['seq']}" if step else row["name"]
        place = {"name": name, "pid": f"rank {row['rank']}", "tid": row["place"]}
        body = {"ph": "X", "cat": cat, **place, **times, "args": args}
        parts.append(msgspec.json.encode(body))
    said = f'"distributedInfo":{{"rank":{int(rank)}}},' if rank.isdigit() else ""
    return b"{" + said.encode() + b'"traceEvents":[\n' + b",\n".join(parts) + b"\n]}\n"


def _micro(nanoseconds: int) -> bytes:
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03d}".encode()
