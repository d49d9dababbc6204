"""Benchmark results of other tools: pytest-benchmark's JSON, asv's result files, CSV series (Apache Otava's and plain).

Each gives a :class:`~assay.sim.telemetry.Frame`: a benchmark is an entity, each of its results a sample of the metric
`seconds` (asv: `bytes` for memory, `value` for what is tracked; CSV: the unit beside it, or the column's own name) at
the commit's time, and the commit itself an event of the same time. Files of one commit each are read together. Values
that are missing or no numbers are left out, never zero.

    commit,time,parse_seconds
    3f2a…,2026-01-05T10:00:00Z,0.0124

A CSV with columns `benchmark` and `value` (and perhaps `unit`) holds one result a row; otherwise each numeric column is
a benchmark. Without a column `time` the order of the rows is the order of time.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "series.csv"
...     _ = path.write_text("commit,parse\\na1,1.0\\nb2,1.1\\n")
...     read(path).samples["value"].to_list()
[1.0, 1.1]
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame

LARGEST = 200_000_000  # bytes of one file
COMMITS, TIMES = ("commit", "hash", "sha", "revision", "commit_hash"), ("time", "date", "timestamp", "commit_time")
NAMES, VALUES = ("benchmark", "name", "test"), ("value", "seconds", "mean", "median")
UNITS = ("unit", "units")
ASV_METRICS = {
    "time": "seconds",
    "timeraw": "seconds",
    "mem": "bytes",
    "peakmem": "bytes",
}  # how a name begins


@dataclass(frozen=True, slots=True)
class Outcome:
    """One result: of which benchmark, at which commit and time (ns), what."""

    benchmark: str
    metric: str
    commit: str
    t: int
    value: float


def read(paths: Sequence[Path] | Path) -> Frame:
    """Read files of one or several formats into one frame; `BadInput` names the file that is none of them."""
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    outcomes: list[Outcome] = []
    repairs: dict[str, int] = {}
    for path in files:
        outcomes += _outcomes(path, repairs)
    if not outcomes:
        raise BadInput(f"{files[0] if files else 'no file'}: no benchmark result in it")
    return _frame(outcomes, repairs, ", ".join(path.name for path in files[:3]))


def _frame(outcomes: Sequence[Outcome], repairs: Mapping[str, int], source: str) -> Frame:
    names = list(dict.fromkeys(outcome.benchmark for outcome in outcomes))
    ids = {name: number for number, name in enumerate(names)}
    samples = [{"t": o.t, "entity": ids[o.benchmark], "metric": o.metric, "value": o.value} for o in outcomes]
    named = dict.fromkeys((o.benchmark, o.t, o.commit) for o in outcomes if o.commit)
    events = [{"t": t, "entity": ids[name], "name": "commit", "text": commit} for name, t, commit in named]
    entities = [{"id": number, "kind": "benchmark", "name": name} for name, number in ids.items()]
    return Frame.of(entities, samples, events=events or None, source=source, repairs=repairs)


def _outcomes(path: Path, repairs: dict[str, int]) -> list[Outcome]:
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path}: larger than {LARGEST:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}; it must be JSON or CSV") from None
    if text.lstrip()[:1] in ("{", "["):
        return list(_from_json(path, text, repairs))
    return list(_from_csv(path, text, repairs))


# ------------------------------------------------------------------------------------------------ JSON


def _from_json(path: Path, text: str, repairs: dict[str, int]) -> Iterator[Outcome]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}: {error.msg} at line {error.lineno} column {error.colno}; is it whole?") from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{path}: not readable as JSON: {type(error).__name__}") from None
    if isinstance(content, dict) and isinstance(content.get("benchmarks"), list):
        return _pytest_benchmark(path, content, repairs)
    if isinstance(content, dict) and isinstance(content.get("results"), dict) and "commit_hash" in content:
        return _asv(path, content, repairs)
    raise BadInput(f"{path}: neither pytest-benchmark's JSON ('benchmarks') nor asv's ('commit_hash', 'results')")


def _pytest_benchmark(path: Path, content: dict[str, Any], repairs: dict[str, int]) -> Iterator[Outcome]:
    commit = content.get("commit_info") if isinstance(content.get("commit_info"), dict) else {}
    assert isinstance(commit, dict)
    t = _time(path, commit.get("time") or content.get("datetime") or 0)
    for number, entry in enumerate(content["benchmarks"]):
        stats = entry.get("stats") if isinstance(entry, dict) else None
        if not isinstance(stats, dict):
            raise BadInput(f"{path}: benchmarks[{number}] has no 'stats'")
        name = str(entry.get("fullname") or entry.get("name") or number)
        value = _number(stats.get("median", stats.get("mean")))
        if value is None:
            _count(repairs, "results without a number left out")
            continue
        yield Outcome(name, "seconds", _commit(commit.get("id"), commit.get("dirty")), t, value)


def _asv(path: Path, content: dict[str, Any], repairs: dict[str, int]) -> Iterator[Outcome]:
    t = int(_number(content.get("date")) or 0) * 1_000_000  # asv stores milliseconds
    commit = _commit(content["commit_hash"], None)
    columns = content.get("result_columns")
    at = columns.index("result") if isinstance(columns, list) and "result" in columns else 0
    params_at = columns.index("params") if isinstance(columns, list) and "params" in columns else 1
    for name, entry in content["results"].items():
        row = entry if isinstance(entry, list) else [[entry]]
        values = row[at] if len(row) > at else None
        if not isinstance(values, list):
            values = [values]
        params = row[params_at] if len(row) > params_at and isinstance(row[params_at], list) else []
        labels = _labels(params)
        for position, raw in enumerate(values):
            value = _number(raw)
            if value is None:  # asv writes null where a benchmark failed
                _count(repairs, "results without a number left out")
                continue
            label = f"({labels[position]})" if len(values) > 1 and position < len(labels) else ""
            metric = ASV_METRICS.get(name.rpartition(".")[2].partition("_")[0].lower(), "value")
            yield Outcome(f"{name}{label}", metric, commit, t, value)


def _labels(params: Sequence[Any]) -> list[str]:
    """The parameter combinations in asv's order: the last varies fastest."""
    labels = [""]
    for values in params:
        if not isinstance(values, list) or len(labels) * max(1, len(values)) > 100_000:
            return []
        labels = [f"{label}, {value}" if label else str(value) for label in labels for value in values]
    return labels


# ------------------------------------------------------------------------------------------------- CSV


def _from_csv(path: Path, text: str, repairs: dict[str, int]) -> Iterator[Outcome]:
    lines = text.splitlines()
    delimiter = max(",;\t", key=lines[0].count) if lines else ","
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as error:
        raise BadInput(f"{path}: {error}; it must be CSV with a header") from None
    head = [name.strip() for name in rows[0]] if rows else []
    if len(head) < 1 or len(set(head)) != len(head) or all(_number(name) is not None for name in head):
        raise BadInput(f"{path}: line 1 must name the columns, each once: commit, time, and the benchmarks")
    time_at, commit_at, name_at = _column(head, TIMES), _column(head, COMMITS), _column(head, NAMES)
    value_at, unit_at = (_column(head, names) if name_at is not None else None for names in (VALUES, UNITS))
    if name_at is not None and value_at is None:
        raise BadInput(f"{path}: a column '{head[name_at]}' needs a column 'value' beside it")
    own = {time_at, commit_at, name_at}
    measured = [value_at] if value_at is not None else [i for i in range(len(head)) if i not in own]
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != len(head):
            _count(repairs, "rows with another number of fields left out")
            continue
        t = number if time_at is None else _time(path, row[time_at].strip(), number)
        commit = row[commit_at].strip() if commit_at is not None else ""
        for at in measured:
            value = _number(row[at])
            if value is None:
                _count(repairs, "results without a number left out")
                continue
            name = row[name_at].strip() if name_at is not None else head[at]
            unit = row[unit_at].strip() if unit_at is not None else ""
            yield Outcome(name, unit or head[at], commit, t, value)


def _column(head: Sequence[str], names: Sequence[str]) -> int | None:
    found = [position for position, column in enumerate(head) if column.lower() in names]
    return found[0] if found else None


# ---------------------------------------------------------------------------------------------- values


def _number(raw: Any) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _time(path: Path, raw: Any, line: int | None = None) -> int:
    """Nanoseconds since 1970, from ISO 8601 or seconds since then."""
    number = _number(raw)
    where = f"{path}{f', line {line}' if line else ''}"
    if number is not None:
        if abs(number) > 9e9:
            raise BadInput(f"{where}: time {number:g} is no number of seconds since 1970")
        return round(number * 1e9)
    try:
        moment = datetime.fromisoformat(str(raw))
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1e9)
    except (ValueError, OverflowError):
        shown = str(raw)[:40]
        raise BadInput(f"{where}: time '{shown}' is neither ISO 8601 nor seconds since 1970") from None


def _commit(raw: Any, dirty: Any) -> str:
    return f"{raw}{'+dirty' if dirty else ''}" if isinstance(raw, str) else ""


def _count(repairs: dict[str, int], what: str) -> None:
    repairs[what] = repairs.get(what, 0) + 1
