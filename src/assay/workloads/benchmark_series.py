"""Benchmark results of other tools: pytest-benchmark's JSON, asv's result files, CSV series (Apache Otava's and plain).

Each gives a :class:`~assay.sim.telemetry.Frame`: a benchmark is an entity, each of its results a sample of the metric
`seconds` (asv: `bytes` for memory, `value` for what is tracked; CSV: the unit beside it, or the column's own name) at
the commit's time, and the commit itself an event of the same time. Files of one commit each are read together. Values
that are missing or no numbers are left out, never zero.

    commit,time,parse_seconds
    3f2a…,2026-01-05T10:00:00Z,0.0124

A CSV with columns `benchmark` and `value` (and perhaps `unit`) holds one result a row; otherwise each numeric column is
a benchmark, but for one that names machines (`machine`, `host`, `VM_id` …): each of them has series of its own. Without
a column `time` the order of the rows is the order of time.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "series.csv"
...     _ = path.write_text("commit,parse\\na1,1.0\\nb2,1.1\\n")
...     read(path).samples["value"].to_list()
[1.0, 1.1]
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame
from assay.workloads import csv_table

LARGEST = 200_000_000  # bytes of one file
COMMITS = ("commit", "hash", "sha", "revision", "commit_hash")
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
    machine: str = ""
    """Where it was measured, if the file tells."""


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
    keys = list(dict.fromkeys((outcome.benchmark, outcome.machine) for outcome in outcomes))
    ids = {key: number for number, key in enumerate(keys)}
    machines = {name: len(keys) + number for number, name in enumerate(dict.fromkeys(name for _, name in keys if name))}
    samples = [
        {"t": o.t, "entity": ids[o.benchmark, o.machine], "metric": o.metric, "value": o.value} for o in outcomes
    ]
    named = dict.fromkeys((ids[o.benchmark, o.machine], o.t, o.commit) for o in outcomes if o.commit)
    events = [{"t": t, "entity": entity, "name": "commit", "text": commit} for entity, t, commit in named]
    entities = [
        {"id": number, "kind": "benchmark", "name": name, "parent": machines.get(machine)}
        for (name, machine), number in ids.items()
    ]
    entities += [{"id": number, "kind": "node", "name": name, "parent": None} for name, number in machines.items()]
    return Frame.of(entities, samples, events=events or None, source=source, repairs=repairs)


def _outcomes(path: Path, repairs: dict[str, int]) -> list[Outcome]:
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path}: larger than {LARGEST:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    if content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
        return list(_from_csv(path, repairs))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}; it must be JSON or CSV") from None
    return list(_from_json(path, text, repairs))


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


def _from_csv(path: Path, repairs: dict[str, int]) -> Iterator[Outcome]:
    table = csv_table.read(path, repairs)
    when, commit, name = (csv_table.named(table, words) for words in (csv_table.TIMES, COMMITS, NAMES))
    machine = csv_table.named(table, csv_table.MACHINES)
    value, unit = (csv_table.named(table, words) if name is not None else None for words in (VALUES, UNITS))
    if name is not None and value is None:
        raise BadInput(f"{path}: a column '{name}' needs a column 'value' beside it")
    own = {when, commit, name, machine, csv_table.LINE}
    times = table[csv_table.LINE] if when is None else csv_table.times(path, table, when, repairs)
    blank = pl.Series([""] * len(table), dtype=pl.String)
    for column in [value] if value is not None else [one for one in table.columns if one not in own]:
        numbers = csv_table.numbers(table[column])
        if numbers.null_count() == len(numbers):
            _count(repairs, f"column '{column}' without a number left out")
            continue
        if lost := numbers.null_count():
            _count(repairs, "results without a number left out", lost)
        rows = pl.DataFrame(
            {
                "benchmark": table[name] if name is not None else [column] * len(table),
                "metric": table[unit] if unit is not None else blank, "commit": table[commit] if commit else blank,
                "t": times, "value": numbers, "machine": table[machine] if machine else blank,
            }
        ).with_columns(metric=pl.when(pl.col("metric") == "").then(pl.lit(column)).otherwise("metric"))  # fmt: skip
        yield from (
            Outcome(*row) for row in rows.filter(pl.col("value").is_not_null() & pl.col("t").is_not_null()).rows()
        )


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


def _count(repairs: dict[str, int], what: str, times: int = 1) -> None:
    repairs[what] = repairs.get(what, 0) + times
