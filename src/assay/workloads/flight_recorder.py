"""Dumps of torch's Flight Recorder: which collectives every rank called, with what, and which of them are over.

Torch keeps the last calls of every process group in a ring buffer (`TORCH_FR_BUFFER_SIZE`) and writes one file a rank
when a watchdog fires or a program asks, as a pickle or as JSON. Both are read here, the pickle without executing
anything (:mod:`assay.workloads.plain_pickle`). The rank is the last number of the file's name, as torch names them.

A call is known by (process group, how many calls came before in it); the same call on two ranks has the same number.
What a dump does not hold, and no reader can invent: how far a collective got inside.

>>> entry = {"collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"],
...     "input_sizes": [[4, 2]], "input_dtypes": ["Float"], "state": "started", "time_created_ns": 5, "is_p2p": False}
>>> dump = parse(msgspec.json.encode({"version": "2.10", "pg_config": {}, "entries": [entry]}), rank=3)
>>> dump.calls.select("rank", "group", "seq", "kind", "signature", "done").row(0)
(3, '0', 1, 'all_reduce', 'all_reduce [[4, 2]] Float', False)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame
from assay.workloads import plain_pickle

LARGEST = 256 * 2**20  # bytes of one dump
_MOST_DUMPS = 65_536
_WIDTH = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
_CALLS: dict[str, Any] = {
    "rank": pl.Int64, "group": pl.String, "seq": pl.Int64, "kind": pl.String, "signature": pl.String,
    "bytes": pl.Int64, "done": pl.Boolean, "started": pl.Boolean, "created": pl.Int64, "duration": pl.Int64,
    "where": pl.String,
}  # fmt: skip
_NUMBER = re.compile(r"\d+")
_GAP = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job: a row a call, the members of every process group, what was mended."""

    calls: pl.DataFrame
    ranks: tuple[int, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # members as the dumps give them; may lack some
    descriptions: Mapping[str, str] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    source: str = ""

    def frame(self) -> Frame:
        """The same as telemetry: a span a call, each rank with a clock of its own. A call under way has no duration."""
        rows = [{"id": i, "kind": "rank", "name": str(r), "clock": f"rank {r}"} for i, r in enumerate(self.ranks)]
        place = {rank: i for i, rank in enumerate(self.ranks)}
        spans = self.calls.select(
            entity=pl.col("rank").replace_strict(place, return_dtype=pl.UInt32), name="kind", cat=pl.lit("comm"),
            start=pl.col("created"), dur=pl.col("duration"), bytes="bytes", group="group", seq="seq",
        )  # fmt: skip
        return Frame.of(rows, spans=spans, source=self.source, repairs=self.repairs)


def read(folder: Path | str, progress: Callable[[int, int], None] = lambda done, total: None) -> Dumps:
    """All dumps of a folder, one a rank; `progress` hears how many of them are read.

    Raises:
        BadInput: there is none, two are of one rank, or one cannot be read; the message says which and where.
    """
    folder = Path(folder)
    if not folder.exists():
        raise unreadable(folder)
    if not folder.is_dir():
        raise BadInput(f"{folder}: a folder with the Flight Recorder dumps of all ranks would be right")
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    of: dict[int, Path] = {}
    for file in files:
        rank = rank_of(file)
        if rank is None:
            continue
        if rank in of:
            raise BadInput(f"{file}: rank {rank} has another dump, {of[rank].name}; keep one of them")
        of[rank] = file
    if not of:
        raise BadInput(f"{folder}: no file whose name ends in a rank, such as nccl_trace_rank_3 or rank_3.json")
    if len(of) > _MOST_DUMPS:
        raise BadInput(f"{folder}: {len(of):,} dumps are more than {_MOST_DUMPS:,}")
    parts = []
    for done, rank in enumerate(sorted(of)):
        progress(done, len(of))
        parts.append(_read_one(of[rank], rank))
    return merge(parts, str(folder))


def rank_of(file: Path) -> int | None:
    """The last number in a file's name, without its ending.

    >>> rank_of(Path("nccl_trace_rank_12")), rank_of(Path("job7.rank_3.json")), rank_of(Path("README"))
    (12, 3, None)
    """
    name = file.name
    for ending in (".json", ".pkl", ".pickle", ".bin", ".dump"):
        name = name.removesuffix(ending)
    found = re.search(r"(\d{1,9})$", name)
    return int(found.group(1)) if found else None


def _read_one(file: Path, rank: int) -> Dumps:
    if file.stat().st_size > LARGEST:
        raise BadInput(f"{file}: {file.stat().st_size:,} bytes; a dump has at most {LARGEST:,}")
    return parse(file.read_bytes(), rank, str(file))


def parse(data: bytes, rank: int, source: str = "dump") -> Dumps:
    """One rank's dump, pickle or JSON by its first byte."""
    if not data.strip():
        raise BadInput(f"{source}: the dump is empty")
    repairs: dict[str, int] = {}
    is_json = data.lstrip()[:1] == b"{"
    value = _json(data, source, repairs) if is_json else plain_pickle.loads(data, source)
    if not isinstance(value, dict) or not isinstance(value.get("entries", []), list):
        raise BadInput(f"{source}: no Flight Recorder dump: an object with the list 'entries' would be right")
    if "entries" not in value and "pg_config" not in value:
        raise BadInput(f"{source}: no Flight Recorder dump: it has neither 'entries' nor 'pg_config'")
    rows = []
    for entry in value.get("entries", []):
        row = _call(entry, rank)
        if row is None:
            repairs["entries without a group or a number left out"] = (
                repairs.get("entries without a group or a number left out", 0) + 1
            )
        elif row["seq"] > 0:  # point-to-point calls have no number among the collectives
            rows.append(row)
    calls = pl.DataFrame(rows, schema=_CALLS, orient="row") if rows else pl.DataFrame(schema=_CALLS)
    kept = calls.unique(["group", "seq"], keep="last", maintain_order=True)
    if doubled := len(calls) - len(kept):
        repairs["calls given twice, the last one kept"] = doubled
    groups, descriptions = _groups(value.get("pg_config"), value.get("entries", []))
    return Dumps(kept.sort("group", "seq"), (rank,), groups, descriptions, repairs, source)


def _json(data: bytes, source: str, repairs: dict[str, int]) -> Any:
    """The whole value; of a dump that was cut off, the entries that are whole."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as wrong:
        text = data.decode("utf-8", "replace")
        begin = re.search(r'"entries"\s*:\s*\[', text)
        if begin is None:
            raise BadInput(f"{source}: not JSON: {wrong}") from None
    entries, at, decoder = [], begin.end(), json.JSONDecoder()
    while (at := _next(text, at)) < len(text) and text[at] == "{":
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        entries.append(entry)
    if not entries:
        raise BadInput(f"{source}: cut off or broken before its first entry ended")
    repairs["dumps cut off or broken, their first whole entries kept"] = 1
    return {"entries": entries}


def _next(text: str, at: int) -> int:
    """The place of the next value of a list: after blanks and a comma."""
    found = _GAP.match(text, at)
    return found.end() if found else at


def merge(dumps: Iterable[Dumps], source: str = "") -> Dumps:
    """The dumps of several ranks as one."""
    parts = list(dumps)
    groups: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    repairs: dict[str, int] = {}
    for part in parts:
        for name, members in part.groups.items():
            groups[name] = tuple(sorted({*groups.get(name, ()), *members}))
        descriptions.update(part.descriptions)
        for what, count in part.repairs.items():
            repairs[what] = repairs.get(what, 0) + count
    calls = pl.concat([part.calls for part in parts]) if parts else pl.DataFrame(schema=_CALLS)
    return Dumps(calls, tuple(rank for part in parts for rank in part.ranks), groups, descriptions, repairs, source)


# ------------------------------------------------------------------------------------------------------- one entry


def _call(entry: Any, rank: int) -> dict[str, Any] | None:
    if not isinstance(entry, dict):
        return None
    group, seq = _group(entry)[0], _integer(entry.get("collective_seq_id", entry.get("seq_id")))
    if group is None or seq is None:
        return None
    if entry.get("is_p2p") is True:
        seq = 0
    kind = _text(entry.get("profiling_name")).rpartition(":")[2] or "unknown"
    state = entry.get("state")
    created, ended = _integer(entry.get("time_created_ns")), _integer(entry.get("time_discovered_completed_ns"))
    done = state == "completed" or entry.get("retired") is True
    sizes, dtypes = _sizes(entry.get("input_sizes")), _dtypes(entry.get("input_dtypes"))
    return {
        "rank": rank, "group": group, "seq": seq, "kind": kind,
        "signature": f"{kind} {sizes} {' '.join(dtypes)}".strip(),
        "bytes": _bytes(sizes, dtypes), "done": done, "started": done or state == "started", "created": created,
        "duration": ended - created if done and created and ended and ended >= created else None,
        "where": _where(entry.get("frames")),
    }  # fmt: skip


def _group(entry: dict[str, Any]) -> tuple[str | None, str]:
    given = entry.get("process_group")
    if isinstance(given, list | tuple) and given and isinstance(given[0], str):
        return _text(given[0]), _text(given[1] if len(given) > 1 else "")
    number = _integer(entry.get("pg_id"))
    return (None if number is None else str(number)), ""


def _groups(config: Any, entries: list[Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Members by group. Gloo writes its default group under the empty name, and its calls under '0'."""
    members: dict[str, tuple[int, ...]] = {}
    if isinstance(config, dict):
        for name, group in config.items():
            if isinstance(name, str) and isinstance(group, dict):
                members[_text(name)] = _ranks(group.get("ranks"))
    descriptions = {}
    for entry in entries:
        if isinstance(entry, dict) and (found := _group(entry))[0] is not None:
            descriptions[str(found[0])] = found[1]
    if "" in members:
        whole = members.pop("")
        default = [name for name, text in descriptions.items() if text == "default_pg"]
        members.setdefault(default[0] if default else "0", whole)
    return members, descriptions


def _ranks(given: Any) -> tuple[int, ...]:
    """Torch writes the members as text, '[0, 1]'."""
    if isinstance(given, str):
        return tuple(int(word) for word in _NUMBER.findall(given[:1_000_000]) if len(word) < 10)
    if isinstance(given, list | tuple):
        return tuple(rank for rank in given if isinstance(rank, int) and 0 <= rank < 10**9)
    return ()


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _text(value: Any) -> str:
    return value[:200].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _sizes(given: Any) -> list[list[int]]:
    if not isinstance(given, list | tuple):
        return []
    rows = [row for row in given[:64] if isinstance(row, list | tuple)]
    return [[size for size in row[:16] if isinstance(size, int) and 0 <= size < 2**48] for row in rows]


def _dtypes(given: Any) -> list[str]:
    return [_text(name)[:30] for name in given[:64] if isinstance(name, str)] if isinstance(given, list | tuple) else []


def _bytes(sizes: list[list[int]], dtypes: list[str]) -> int | None:
    """The input's bytes; unknown where the type is."""
    if not sizes or len(sizes) != len(dtypes) or any(name.lower() not in _WIDTH for name in dtypes):
        return None
    total = 0
    for row, name in zip(sizes, dtypes, strict=True):
        elements = 1
        for size in row:
            elements *= size
        total += elements * _WIDTH[name.lower()]
    return total if total < 2**63 else None


def _where(frames: Any) -> str:
    """The innermost line outside torch itself: where the program calls."""
    if not isinstance(frames, list | tuple):
        return ""
    for frame in frames[:200]:
        if isinstance(frame, dict):
            file = _text(frame.get("filename"))
            if file and "/torch/" not in file:
                return f"{Path(file).name}:{_integer(frame.get('line')) or 0} {_text(frame.get('name'))}"
    return ""
