"""An answer of a comparison as a page can show it: plain values, and its charts as SVG."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from assay.record.headline import COLUMNS
from assay.record.pool import plain as numbers

BARS = 4  # charts of columns
DRAWN = 1 << 20  # characters of a drawing that a page takes; larger ones are left to --plot
_HEAVY = ("load over time",)  # thousands of cells: drawn when they are asked for, as a bitmap


def plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer without what only this process understands."""
    told: dict[str, Any] = numbers({name: value for name, value in answer.items() if name != "pictures"})
    return told


def columns(answer: Mapping[str, Any]) -> list[str]:
    """The columns that people see first."""
    rows = answer["table"]
    every = [name for name in next(iter(rows), {}) if name not in answer.get("apart", ())]
    return list(answer.get("shown") or every[:COLUMNS])


def pictures(answer: Mapping[str, Any], whole: bool = False) -> list[dict[str, str]]:
    """What the room draws of an answer, bars of its columns where it draws nothing; `whole`: also what takes longer."""
    from assay.record import charts

    draws = answer.get("pictures") or {}
    made = {name: draw() for name, draw in draws.items() if name not in _HEAVY}
    if not draws:
        made = {f"{column}".replace("_", " "): bars(answer, column) for column in _numbers(answer)[:BARS]}
    drawn = {name: charts.svg(chart) for name, chart in made.items()}
    found = [{"name": name, "svg": svg} for name, svg in drawn.items() if len(svg) <= DRAWN]
    heavy = {name: draw for name, draw in draws.items() if name in _HEAVY} if whole else {}
    return found + [{"name": name, "png": b64encode(charts.png(draw())).decode()} for name, draw in heavy.items()]


def _numbers(answer: Mapping[str, Any]) -> list[str]:
    rows = answer["table"]
    return [
        name
        for name in columns(answer)
        if len({row.get(name) for row in rows if _finite(row.get(name))}) > 1 and not _has_words(rows, name)
    ]


def _has_words(rows: list[dict[str, Any]], name: str) -> bool:
    return any(isinstance(row.get(name), str) for row in rows)


def _names(rows: list[dict[str, Any]]) -> list[str]:
    """What to call each row: its first word, and as many of the cells after it as tell them apart."""
    first = next((at for at, value in enumerate(rows[0].values()) if isinstance(value, str)), 0)
    for many in (1, 2, 3):
        told = [[str(value) for value in list(row.values())[first : first + many] if value is not None] for row in rows]
        found = [" · ".join(parts)[:60] for parts in told]
        if len(set(found)) == len(rows):
            return found
    return [str(at + 1) for at in range(len(rows))]


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def bars(answer: Mapping[str, Any], column: str) -> Any:
    """A bar for every row of a table."""
    import altair as alt
    import polars as pl

    from assay.record.charts import PALETTE

    rows = answer["table"]
    named = _names(rows)
    unit = answer.get("units", {}).get(column, "")
    drawn = [
        {"who": who, "value": float(row[column])}
        for who, row in list(zip(named, rows, strict=True))[:40]
        if _finite(row.get(column))
    ]
    return (
        alt.Chart(pl.from_dicts(drawn))
        .mark_bar(height={"band": 0.6}, color=PALETTE[0])
        .encode(
            x=alt.X("value:Q", title=f"{column.replace('_', ' ')}{f', {unit}' if unit else ''}"),
            y=alt.Y("who:N", sort=None, title=None, axis=alt.Axis(labelLimit=260)),
        )
        .properties(width=460, height=max(60, 24 * len(drawn)))
    )
