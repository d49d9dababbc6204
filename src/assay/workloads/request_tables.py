"""Requests as comma-separated columns, read by Polars without holding the text: Azure, BurstGPT, Vidur, anyone's."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assay.record.errors import BadInput
from assay.workloads.request_formats import LABELS, Layout
from assay.workloads.request_rows import LENGTH, LENGTH_MAX, TIME, Rows, show

_NUMBERS = (("arrival", TIME), ("prompt", LENGTH), ("output", LENGTH))


def read_table(rows: Rows, layout: Layout, path: Path, limit: int | None) -> None:
    """Read a table into `rows`; compressed files are unpacked on the way."""
    try:
        lazy = _scan(path, layout).head(limit) if limit is not None else _scan(path, layout)
        table = lazy.select(_expressions(layout)).with_row_index("row").collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(_damage(path, layout, rows.name, error)) from error
    table = table.filter(~pl.col("blank"))
    rows.read += len(table)
    good = _sound(table)
    if not good.all():
        _complain(rows, layout, path, table, good)
        table = table.filter(good)
    if len(table) and not table["ns"].null_count():  # from the first, lest seconds since 1970 round to 0.2 µs
        rows.unit = "date and time"
        rows.add(arrival=((table["ns"] - table["ns"].min()) / 1e9).to_numpy())
    else:
        rows.add(arrival=table["arrival"].to_numpy())
    rows.add(prompt=table["prompt"].cast(pl.Int64).to_numpy(), output=table["output"].cast(pl.Int64).to_numpy())
    for name in LABELS:
        if name in table.columns:
            rows.add(**{name: _codes(rows, name, table[name])})
    if "service" in table.columns:
        rows.add(service=table["service"].to_numpy())


def _scan(path: Path, layout: Layout) -> pl.LazyFrame:
    return pl.scan_csv(path, separator=layout.separator, infer_schema=False).rename(str.strip)


def _expressions(layout: Layout) -> list[pl.Expr]:
    text = {ours: pl.col(theirs).str.strip_chars() for ours, theirs in layout.columns.items()}
    numbers = [text[ours].cast(pl.Float64, strict=False).alias(ours) for ours in ("prompt", "output")]
    labels = [text[ours].alias(ours) for ours in LABELS if ours in text]
    if "service" in text:  # a request that has none recorded took no time that is known of
        service = text["service"].cast(pl.Float64, strict=False)
        numbers.append(pl.when(service.is_finite() & (service > 0)).then(service).otherwise(0.0).alias("service"))
    blank = pl.all_horizontal(pl.all().is_null()).alias("blank")
    when = _nanoseconds(text["arrival"])
    arrival = pl.coalesce(text["arrival"].cast(pl.Float64, strict=False), when.cast(pl.Float64) / 1e9)
    return [arrival.alias("arrival"), when.alias("ns"), *numbers, *labels, blank]


def _nanoseconds(text: pl.Expr) -> pl.Expr:
    """A date and time, with or without a zone, with up to nine decimals, since 1970."""
    iso = text.str.replace("T", " ", literal=True).str.replace("Z$", "+00:00")
    plain = iso.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False).dt.epoch("ns")
    zoned = iso.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="ns", strict=False).dt.epoch("ns")
    return pl.coalesce(plain, zoned)


def _sound(table: pl.DataFrame) -> pl.Series:
    whole = [
        pl.col(name).is_between(0, LENGTH_MAX) & (pl.col(name) == pl.col(name).round()) for name in ("prompt", "output")
    ]
    time = pl.col("arrival").is_finite() & (pl.col("arrival") >= 0)
    return table.select(pl.all_horizontal(time, *whole).fill_null(False)).to_series()


def _complain(rows: Rows, layout: Layout, path: Path, table: pl.DataFrame, good: pl.Series) -> None:
    """Name the first rows that are none; count the rest."""
    wrong = table.filter(~good)
    for found in wrong.head(3).iter_rows(named=True):
        raw = _scan(path, layout).slice(found["row"], 1).collect().row(0, named=True)
        for ours, right in _NUMBERS:
            value, most = found[ours], math.inf if ours == "arrival" else LENGTH_MAX
            if value is None or not 0 <= value <= most or math.isinf(value) or (ours != "arrival" and value % 1):
                rows.wrong(
                    f"line {found['row'] + 2}", f"{layout.columns[ours]} {show(raw[layout.columns[ours]])}", right
                )
                break
    rows.bad += max(0, len(wrong) - 3)


def _codes(rows: Rows, name: str, values: pl.Series) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Labels as numbers, in the order they are met."""
    labels = values.drop_nulls().unique(maintain_order=True)
    labels = labels.filter(labels != "")
    rows.codes(name, labels.to_list())
    codes = values.replace_strict(
        labels, pl.Series(range(len(labels)), dtype=pl.Int32), default=-1, return_dtype=pl.Int32
    )
    return codes.to_numpy()


def _damage(path: Path, layout: Layout, name: str, error: Exception) -> str:
    """One line for a table that Polars gives up on, with the place where one can be found."""
    opened = gzip.open if path.open("rb").read(2) == b"\x1f\x8b" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            lines = csv.reader(file, delimiter=layout.separator)
            width = len(next(lines))
            for cells in lines:
                if len(cells) > width:
                    return f"{name} line {lines.line_num}: {len(cells)} cells; expected {width} as the header has"
    except UnicodeDecodeError as where:
        return f"{name}: byte {where.start} is no text; expected UTF-8"
    except (OSError, EOFError, csv.Error, StopIteration) as reason:
        return f"{name}: {' '.join(str(reason).split())[:120]}; expected a whole CSV file"
    return f"{name}: {' '.join(str(error).split())[:120]}; expected a whole CSV file"
