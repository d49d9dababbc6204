"""A CSV file as a table of words: what readers of series in CSV share, with all the blemishes such files have.

Commas, semicolons or tabs divide it, whichever the header has most of; where it is not commas, 1,5 is a number. A byte
order mark and empty lines are passed over; rows with another number of fields are left out and counted. Line 1 names
the columns.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder, "mine.csv")
...     _ = file.write_text("time;ms\\n2024-01-01 02:00;3,5\\n2024-01-01\\n")
...     repairs = {}
...     table = read(file, repairs)
>>> numbers(table["ms"]).to_list(), table["line"].to_list(), repairs
([3.5], [2], {'rows with another number of fields left out': 1})
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable

SECOND = 1_000_000_000
LARGEST = 1 << 30  # bytes of a file that are read
LINE = "line"
"""The column with each row's line in the file; a column of that name is called ` line`."""
TIMES = ("time", "timestamp", "starttime", "start_time", "datetime", "date", "commit_time", "ds", "t", "ts")
MACHINES = ("machine", "machine_id", "host", "hostname", "host_name", "node", "node_name", "vm", "vm_id", "vm_name",
            "instance", "runner", "agent", "server", "worker")  # fmt: skip
"""Columns that say where a row was measured."""
_UNITS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (0.0, SECOND))  # a number this large counts these nanoseconds


def read(file: Path, repairs: dict[str, int]) -> pl.DataFrame:
    """The words of a file, a column for each name in line 1, and the column `line`.

    BadInput names the file and the line of what cannot be read.
    """
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise BadInput(f"{file}: {size / 1e9:.1f} GB is too much for one table; cut it to {LARGEST / 1e9:.1f} GB")
        data = file.read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    except OSError as error:
        raise unreadable(file, error) from None
    head = data.partition(b"\n")[0]
    divider = max(b",;\t", key=lambda letter: head.count(bytes([letter])))
    if b'"' in data:
        names, words, lines, odd = _quoted(file, data, chr(divider))
    else:
        names, words, lines, odd = _plain(file, data, divider)
    names = [name.strip() for name in names]
    if not any(names) or len(set(names)) != len(names) or all(re.match(r"[+-]?\.?\d", name) for name in names):
        raise BadInput(f"{file}: line 1 must name the columns, each once, such as 'time,value' or 'commit,parse_ms'")
    if odd:
        repairs["rows with another number of fields left out"] = odd
    words.columns = [f" {LINE}" if name == LINE else name for name in names]
    table = words.fill_null("").with_columns(pl.all().str.strip_chars()).with_columns(pl.Series(LINE, lines))
    if divider != ord(","):
        decimal = pl.all().exclude(LINE).str.replace(r"^([+-]?\d*),(\d+)$", "$1.$2")
        table = table.with_columns(decimal)
    return table


def _plain(file: Path, data: bytes, divider: int) -> tuple[list[str], pl.DataFrame, NDArray[np.int64], int]:
    """Without quotes every divider divides: rows of another length are found by counting."""
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == 10)
    if not len(ends) or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    fields = 1 + np.bincount(np.searchsorted(ends, np.flatnonzero(letters == divider)), minlength=len(ends))
    empty = np.diff(ends, prepend=-1) == 1
    names = data[: ends[0]].decode("utf-8", "replace").split(chr(divider))
    kept = (fields == fields[0]) & ~empty
    kept[0] = False
    odd = int((~empty).sum()) - 1 - int(kept.sum()) if not empty[0] else 0
    if kept.sum() + 1 < len(ends):
        lines = data.split(b"\n")
        data = b"\n".join([lines[0], *(lines[at] for at in np.flatnonzero(kept))])
    if not kept.any():
        return names, pl.DataFrame({str(i): pl.Series([], dtype=pl.String) for i in range(len(names))}), ends[:0], odd
    try:
        words = pl.read_csv(data, infer_schema=False, encoding="utf8-lossy", separator=chr(divider), has_header=False,
                            skip_rows=1, quote_char=None, new_columns=[str(i) for i in range(len(names))])  # fmt: skip
    except (pl.exceptions.PolarsError, ValueError, OverflowError) as error:
        raise BadInput(f"{file}: is no CSV table: {str(error).splitlines()[0][:120]}") from None
    if words.shape != (int(kept.sum()), len(names)):
        raise BadInput(f"{file}: is no CSV table: {len(names)} columns are named, {words.width} are there")
    return names, words, np.flatnonzero(kept) + 1, odd


def _quoted(file: Path, data: bytes, divider: str) -> tuple[list[str], pl.DataFrame, NDArray[np.int64], int]:
    rows, lines = [], []
    reader = csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""), delimiter=divider)
    try:
        for row in reader:
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise BadInput(f"{file}: {error}; it must be CSV with a header") from None
    names = rows[0] if rows else []
    kept = [at for at, row in enumerate(rows) if at and len(row) == len(names)]
    odd = sum(1 for row in rows[1:] if row and len(row) != len(names))
    words = pl.DataFrame({str(i): pl.Series([rows[at][i] for at in kept], dtype=pl.String) for i in range(len(names))})
    return names, words, np.array([lines[at] for at in kept], np.int64), odd


def named(table: pl.DataFrame, telling: Sequence[str]) -> str | None:
    """The column with a telling name, the most telling first; None where none has.

    >>> named(pl.DataFrame({"Value": [], "Time": []}), ("time", "value"))
    'Time'
    """
    plain = {name.lower(): name for name in reversed(table.columns)}
    return next((plain[name] for name in telling if name in plain), None)


def times(file: Path, table: pl.DataFrame, name: str, repairs: dict[str, int]) -> pl.Series:
    """Nanoseconds since 1970 of a column of dates, or of numbers in any unit; null (counted) where a cell is none."""
    text = table[name]
    counted = text.cast(pl.Float64, strict=False)
    sized = counted.filter(counted.is_finite())
    unit = next(unit for least, unit in _UNITS if float(sized.abs().median() or 0.0) >= least)  # type: ignore[arg-type]
    whole = text.cast(pl.Int64, strict=False)  # exact, where a float would round nanoseconds
    fits = (counted.is_finite() & (counted.abs() < 9.2e18 / unit)).fill_null(False)
    cells = pl.DataFrame({"n": counted, "w": whole, "fits": fits, "date": _dates(text)})
    rounded = (pl.when("fits").then("n").otherwise(0.0) * unit).cast(pl.Int64, strict=False)
    number = pl.coalesce(pl.when("fits").then("w") * unit, rounded)
    found = cells.select(pl.when("fits").then(number).otherwise("date").alias("t")).to_series()
    lost = found.null_count()
    if lost * 2 > len(found):
        at = int(found.is_null().arg_max() or 0)
        raise BadInput(
            f"{file}, line {table[LINE][at]}, column '{name}': '{str(text[at])[:40]}' is no time; "
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


def numbers(column: pl.Series) -> pl.Series:
    """The finite numbers of a column; null where a cell holds none.

    >>> numbers(pl.Series(["1.5", "nan", "fast", ""])).to_list()
    [1.5, None, None, None]
    """
    found = column.cast(pl.Float64, strict=False)
    return found.set(~found.is_finite().fill_null(False), None)
