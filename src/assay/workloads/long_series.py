"""Read long series of one measurement: `time,value` tables, one series or many in a file, with all their blemishes.

Months of latencies or benchmark results come as CSV: a column of times (ISO dates, or numbers since 1970 in seconds,
milli-, micro- or nanoseconds), a column of values, perhaps one that says which machine. `azure_vm_noise`
(`value,runtime,starttime,VM_id`) is one of them. The reader gives a :class:`~assay.sim.telemetry.Frame`; rows out of
order, doubled, or without a number are mended and counted there. :func:`regular` lays one series on an even grid by
medians; a bin without samples stays empty, because a gap is not a zero and not a line between its ends either.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder, "mine.csv")
...     _ = file.write_text("time,value\\n2024-01-01 02:00,3\\n2024-01-01 00:00,1\\n2024-01-01 03:00,nan\\n")
...     frame = read(file)
>>> series = split(frame)[0]
>>> series.values.tolist(), dict(frame.repairs)
([1.0, 3.0], {'samples without a number left out': 1, 'samples out of order put in order': 1})
>>> regular(series, step=3600.0).values.tolist()
[1.0, nan, 3.0]
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import csv_table
from assay.workloads.csv_table import SECOND

Floats = NDArray[np.float64]
VALUES = ("value", "y", "latency", "duration", "seconds", "mean", "median")
NAMES = (*csv_table.MACHINES, "series", "unique_id", "function", "name")
LEAST = 8  # samples of what is a series
MOST = 400_000  # bins of a grid: 45 years of hours
STEPS = (
    1e-3, 1e-2, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0,
    7200.0, 10800.0, 14400.0, 21600.0, 43200.0, 86400.0, 7 * 86400.0, 30.4375 * 86400.0, 91.3125 * 86400.0,
    365.25 * 86400.0,
)  # fmt: skip
DAY = 86400


@dataclass(frozen=True)
class Series:
    """One measurement over time, in order: nanoseconds and values."""

    name: str
    times: NDArray[np.int64]
    values: Floats


@dataclass(frozen=True)
class Grid:
    """A series at even times: `values[i]` is that of the bin beginning at `start + i * step` seconds; NaN is a gap."""

    name: str
    start: float
    step: float
    values: Floats

    @property
    def times(self) -> Floats:
        """When each bin begins, in seconds since 1970.

        >>> Grid("a", 60.0, 60.0, np.array([1.0, 2.0])).times.tolist()
        [60.0, 120.0]
        """
        return np.asarray(self.start + self.step * np.arange(len(self.values)), dtype=np.float64)

    @property
    def length(self) -> float:
        """The seconds it spans."""
        return self.step * len(self.values)

    def until(self, count: int) -> Grid:
        """The first so many bins: what was known then."""
        return Grid(self.name, self.start, self.step, self.values[:count])


def read(path: str | Path, *, value: str | None = None, time: str | None = None, by: str | None = None) -> Frame:
    """The series of a CSV file, one entity each. `value`, `time` and `by` name its columns where their names do not.

    BadInput names the file, the column and the line of what cannot be read.
    """
    file = Path(path)
    repairs: dict[str, int] = {}
    table = csv_table.read(file, repairs)
    if table.is_empty() or table.width < 3:
        raise BadInput(f"{file}: a header such as 'time,value' and rows of numbers would be right")
    when = _column(file, table, time, csv_table.TIMES, "time")
    what = _column(file, table, value, VALUES, "value", besides=[when])
    who = by if by is not None else csv_table.named(table, NAMES)
    if who is not None and who not in table.columns:
        raise BadInput(f"{file}: there is no column '{who}'; it has {', '.join(table.columns[:-1])}")
    if who in (when, what):
        who = None
    names = table[who] if who else pl.Series([file.stem] * len(table), dtype=pl.String)
    times, numbers = csv_table.times(file, table, when, repairs), _numbers(file, table, what)
    rows = pl.DataFrame({"name": names, "t": times, "value": numbers}).filter(pl.col("t").is_not_null())
    entities = rows.select("name").unique(maintain_order=True).sort("name").with_row_index("id")
    samples = rows.join(entities, on="name", maintain_order="left").select(
        "t", "value", entity="id", metric=pl.lit(what or "value")
    )
    kinds = entities.select(id="id", kind=pl.lit("other"), name="name")
    return Frame.of(kinds, samples, source=str(file), repairs=repairs)


def _column(
    file: Path, table: pl.DataFrame, asked: str | None, telling: Sequence[str], what: str, besides: Sequence[str] = ()
) -> str:
    """The asked column, else the one with a telling name, else the only other one."""
    there = [name for name in table.columns if name != csv_table.LINE]
    if asked is not None:
        if asked in there:
            return asked
        raise BadInput(f"{file}: there is no column '{asked}'; it has {', '.join(there)}")
    if found := csv_table.named(table, telling):
        return found
    rest = [name for name in there if name not in besides]
    if len(rest) == 1:
        return rest[0]
    raise BadInput(f"{file}: which column is the {what}? It has {', '.join(there)[:200]}; say --{what} COLUMN")


def _numbers(file: Path, table: pl.DataFrame, name: str) -> pl.Series:
    """Values; NaN where a cell holds none. Text in most cells is a wrong column, not a blemish."""
    text = table[name]
    numbers = csv_table.numbers(text)
    empty = text.str.to_lowercase().is_in(["", "nan", "na", "null", "none", "inf", "-inf"])
    odd = numbers.is_null() & ~empty
    if int(odd.sum()) * 2 > len(text) or numbers.null_count() == len(numbers):
        at = int((odd if odd.any() else numbers.is_null()).arg_max() or 0)
        cell = str(text[at])[:40]
        cure = f"; {cell.replace(',', '.')} would be right" if re.fullmatch(r"[+-]?\d+,\d+", cell) else ""
        raise BadInput(f"{file}, line {table[csv_table.LINE][at]}, column '{name}': '{cell}' is no number{cure}")
    return numbers.fill_null(math.nan)


def split(frame: Frame, telling: bool = False) -> list[Series]:
    """The series of a frame, one for each entity and metric; named by both where there are several, or if `telling`.

    >>> frame = Frame.of([{"id": 0, "kind": "other", "name": "a"}],
    ...     [{"t": 5, "entity": 0, "metric": "value", "value": 2.0}])
    >>> [(series.name, series.values.tolist()) for series in split(frame)]
    [('a', [2.0])]
    """
    parts = frame.samples.partition_by("entity", "metric", as_dict=True, maintain_order=True)
    several = telling or frame.samples["metric"].n_unique() > 1
    made = []
    for (entity, metric), rows in sorted(parts.items(), key=lambda part: str(part[0])):
        name = frame.name(int(str(entity))) + (f" {metric}" if several else "")
        made.append(Series(name, rows["t"].to_numpy().astype(np.int64), rows["value"].to_numpy().astype(np.float64)))
    return made


def of_telemetry(frame: Frame, metric: str | None = None) -> list[Series]:
    """The series of monitoring data: its samples, counters as rates a second; and how long the spans of each name took.

    `metric` chooses by name, with or without labels. A series needs `LEAST` samples to be one.

    >>> spans = [{"entity": 0, "name": "GET", "cat": "rpc", "start": i * SECOND, "dur": SECOND // 4} for i in range(9)]
    >>> of_telemetry(Frame.of([{"id": 0, "kind": "service", "name": "api"}], spans=spans))[0].values.tolist()[:2]
    [0.25, 0.25]
    """
    found = [_rate(one) for one in split(frame, telling=True)]
    timed = frame.spans.filter(pl.col("start").is_not_null() & pl.col("dur").is_not_null()).sort("start")
    for (entity, name), rows in timed.partition_by("entity", "name", as_dict=True, maintain_order=True).items():
        last = rows.unique("start", keep="last", maintain_order=True)
        called = f"{frame.name(int(str(entity)))} {name}"
        found.append(Series(called, last["start"].to_numpy(), last["dur"].to_numpy().astype(np.float64) / SECOND))
    if metric is not None:
        found = [one for one in found if metric in (one.name, *re.split(r"[ {]", one.name))]
    return [one for one in found if len(one.times) >= LEAST]


def _rate(series: Series) -> Series:
    """A counter as what it rises by in a second; where it fell it was started again, and nothing is known."""
    if not re.search(r"_(total|count|sum|bucket)(\{.*)?$", series.name) or len(series.times) < 2:
        return series
    rise, seconds = np.diff(series.values), np.diff(series.times) / SECOND
    up = rise >= 0
    return Series(f"rate of {series.name}", series.times[1:][up], (rise / seconds)[up])


def natural_step(series: Series) -> float:
    """The least handy step (seconds, hours, days) that is no shorter than the usual distance of two samples.

    Months, quarters and years are of their mean length, though most months are longer.

    >>> natural_step(Series("a", np.arange(9) * 5_300 * SECOND, np.zeros(9)))
    7200.0
    """
    if len(series.times) < 2:
        return 1.0
    usual = float(np.median(np.diff(series.times))) / SECOND
    return next((step for step in STEPS if step >= usual * (0.98 if step > 7 * DAY else 0.999)), STEPS[-1])


def regular(series: Series, step: float | None = None) -> Grid:
    """The series on an even grid of `step` seconds, each bin the median of its samples, empty bins NaN.

    Bins of a day or less begin where the clock does. Longer ones are laid around the first sample's day and its
    multiples, since weeks begin on any day and months are not equally long.

    >>> regular(Series("a", np.array([0, 31, 59, 90]) * DAY * SECOND, np.arange(4.0))).values.tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    if not len(series.times):
        raise BadInput(f"series '{series.name}' has no samples")
    step = natural_step(series) if step is None else step
    width = max(1, round(step * SECOND))
    origin = int(series.times[0]) // (DAY * SECOND) * (DAY * SECOND) if step > DAY else 0
    bins = (series.times - origin + (width // 2 if step > DAY else 0)) // width
    first = int(bins[0])
    count = int(bins[-1]) - first + 1
    if count > MOST:
        raise BadInput(
            f"series '{series.name}' spans {count:,} steps of {step:g} s, more than {MOST:,}: give a longer step, "
            "or look for a time that is wrong"
        )
    table = pl.DataFrame({"bin": bins - first, "value": series.values}).group_by("bin").agg(pl.col("value").median())
    values = np.full(count, np.nan)
    values[table["bin"].to_numpy()] = table["value"].to_numpy()
    return Grid(series.name, (origin + first * width) / SECOND, width / SECOND, values)
