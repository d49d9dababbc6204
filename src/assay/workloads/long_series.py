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

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame

Floats = NDArray[np.float64]
TIMES = ("time", "timestamp", "starttime", "start_time", "datetime", "date", "ds", "t", "ts")
VALUES = ("value", "y", "latency", "duration", "seconds", "mean", "median")
NAMES = ("vm_id", "series", "unique_id", "machine", "host", "instance", "function", "name")
SECOND = 1_000_000_000
LARGEST = 1 << 30  # bytes of a file that are read
MOST = 400_000  # bins of a grid: 45 years of hours
STEPS = (
    1e-3, 1e-2, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0,
    7200.0, 10800.0, 14400.0, 21600.0, 43200.0, 86400.0, 7 * 86400.0, 30.4375 * 86400.0, 91.3125 * 86400.0,
    365.25 * 86400.0,
)  # fmt: skip
DAY = 86400
_UNITS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (0.0, SECOND))  # a number this large counts these nanoseconds


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
    table = _table(file)
    when = _column(file, table, time, TIMES, "time")
    what = _column(file, table, value, VALUES, "value", besides=[when])
    who = by if by is not None else next((c for c in table.columns if c.strip().lower() in NAMES), None)
    if who is not None and who not in table.columns:
        raise BadInput(f"{file}: there is no column '{who}'; it has {', '.join(table.columns)}")
    if who in (when, what):
        who = None
    names = table[who].str.strip_chars() if who else pl.Series([file.stem] * len(table), dtype=pl.String)
    repairs: dict[str, int] = {}
    times, numbers = _times(file, table[when], repairs), _numbers(file, table[what])
    rows = pl.DataFrame({"name": names, "t": times, "value": numbers}).filter(pl.col("t").is_not_null())
    entities = rows.select("name").unique(maintain_order=True).sort("name").with_row_index("id")
    samples = rows.join(entities, on="name", maintain_order="left").select(
        "t", "value", entity="id", metric=pl.lit(what.strip() or "value")
    )
    kinds = entities.select(id="id", kind=pl.lit("other"), name="name")
    return Frame.of(kinds, samples, source=str(file), repairs=repairs)


def _table(file: Path) -> pl.DataFrame:
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise BadInput(f"{file}: {size / 1e9:.1f} GB is too much for one table; cut it to {LARGEST / 1e9:.1f} GB")
        data = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        table = pl.read_csv(data, infer_schema=False, encoding="utf8-lossy", truncate_ragged_lines=True)
    except (pl.exceptions.PolarsError, ValueError, OverflowError) as error:
        raise BadInput(f"{file}: is no CSV table: {str(error).splitlines()[0][:120]}") from None
    if table.width < 2 and re.search(r"[;\t]", table.columns[0]):
        raise BadInput(f"{file}: line 1 is not divided by commas; 'time,value', and 1.5 for a number, would be right")
    if table.is_empty() or table.width < 2:
        raise BadInput(f"{file}: a header such as 'time,value' and rows of numbers would be right")
    if all(re.match(r"[+-]?\.?\d", name.strip()) for name in table.columns):
        raise BadInput(f"{file}, line 1: holds values, no names; a header such as 'time,value' would be right")
    return table.fill_null("")


def _column(
    file: Path, table: pl.DataFrame, asked: str | None, telling: Sequence[str], what: str, besides: Sequence[str] = ()
) -> str:
    """The asked column, else the one with a telling name, else the only other one."""
    if asked is not None:
        if asked in table.columns:
            return asked
        raise BadInput(f"{file}: there is no column '{asked}'; it has {', '.join(table.columns)}")
    plain = {name.strip().lower(): name for name in reversed(table.columns)}
    if found := next((plain[name] for name in telling if name in plain), None):
        return found
    rest = [name for name in table.columns if name not in besides]
    if len(rest) == 1:
        return rest[0]
    raise BadInput(f"{file}: which column is the {what}? It has {', '.join(table.columns)[:200]}; say --{what} COLUMN")


def _times(file: Path, column: pl.Series, repairs: dict[str, int]) -> pl.Series:
    """Nanoseconds since 1970; null where a cell is no time, which is counted."""
    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    if numbers.is_finite().sum() * 2 > len(text):
        sized = numbers.filter(numbers.is_finite())
        unit = next(unit for least, unit in _UNITS if float(sized.abs().median() or 0.0) >= least)  # type: ignore[arg-type]
        whole = text.cast(pl.Int64, strict=False)  # exact, where a float would round nanoseconds
        fits = (numbers.is_finite() & (numbers.abs() < 9.2e18 / unit)).fill_null(False)
        found = pl.DataFrame({"n": numbers, "w": whole, "fits": fits}).select(
            pl.when(~pl.col("fits")).then(None).when(pl.col("w").is_not_null()).then(pl.col("w") * unit)
            .otherwise((pl.when(pl.col("fits")).then(pl.col("n")).otherwise(0.0) * unit).cast(pl.Int64, strict=False))
        ).to_series()  # fmt: skip
    else:
        found = _dates(text)
    lost = found.null_count()
    if lost * 2 > len(found):
        line = int(found.is_null().arg_max() or 0) + 2
        raise BadInput(
            f"{file}, line {line}, column '{column.name}': '{str(text[line - 2])[:40]}' is no time; "
            "2024-01-31 13:45:00 or seconds since 1970 would be right"
        )
    if lost:
        repairs["rows without a time left out"] = lost
    return found.cast(pl.Int64)


def _dates(text: pl.Series) -> pl.Series:
    """ISO dates and times; a zone's offset is honoured, none means UTC."""
    plain = text.str.replace("T", " ", literal=True).str.replace(r"Z$", "+00:00")
    plain = plain.str.replace(r"^(\d{4}-\d{2}-\d{2})$", "$1 00:00").str.replace(r" UTC$", "")
    cells = pl.DataFrame({"cell": plain}).with_columns(
        offset=pl.col("cell").str.extract(r"([+-]\d{2}:?\d{2})$"),
        local=pl.col("cell").str.replace(r"\s*[+-]\d{2}:?\d{2}$", ""),
    )
    local = pl.coalesce(
        *(pl.col("local").str.to_datetime(form, time_unit="ns", strict=False)
          for form in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M:%S%.f", "%Y/%m/%d %H:%M"))
    ).dt.epoch("ns")  # fmt: skip
    sign = pl.when(pl.col("offset").str.starts_with("-")).then(-1).otherwise(1)
    hours = pl.col("offset").str.slice(1, 2).cast(pl.Int64, strict=False)
    minutes = pl.col("offset").str.slice(-2).cast(pl.Int64, strict=False)
    shift = (sign * (hours * 60 + minutes) * 60 * SECOND).fill_null(0)
    return cells.select((local - shift).alias("t")).to_series()


def _numbers(file: Path, column: pl.Series) -> pl.Series:
    """Values; NaN where a cell holds none. Text in most cells is a wrong column, not a blemish."""
    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    empty = text.str.to_lowercase().is_in(["", "nan", "na", "null", "none", "inf", "-inf"])
    odd = numbers.is_null() & ~empty
    if int(odd.sum()) * 2 > len(text) or not numbers.is_finite().any():
        line = int((odd if odd.any() else numbers.is_null()).arg_max() or 0) + 2
        cell = str(text[line - 2])[:40]
        cure = f"; {cell.replace(',', '.')} would be right" if re.fullmatch(r"[+-]?\d+,\d+", cell) else ""
        raise BadInput(f"{file}, line {line}, column '{column.name}': '{cell}' is no number{cure}")
    return numbers.fill_null(math.nan).replace([math.inf, -math.inf], [math.nan, math.nan])


def split(frame: Frame) -> list[Series]:
    """The series of a frame, one for each entity and metric.

    >>> frame = Frame.of([{"id": 0, "kind": "other", "name": "a"}],
    ...     [{"t": 5, "entity": 0, "metric": "value", "value": 2.0}])
    >>> [(series.name, series.values.tolist()) for series in split(frame)]
    [('a', [2.0])]
    """
    parts = frame.samples.partition_by("entity", "metric", as_dict=True, maintain_order=True)
    several = frame.samples["metric"].n_unique() > 1
    made = []
    for (entity, metric), rows in sorted(parts.items(), key=lambda part: str(part[0])):
        name = frame.name(int(str(entity))) + (f" {metric}" if several else "")
        made.append(Series(name, rows["t"].to_numpy().astype(np.int64), rows["value"].to_numpy().astype(np.float64)))
    return made


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
