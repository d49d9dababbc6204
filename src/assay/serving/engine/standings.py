"""Who wins a comparison, by how much, and how sure that is: the rows of a table beside what they are means of.

Every row has a name (its first column) and one sample, a value for each request, stretch of time or day, of the same
ones for every row. Stretches of them are resampled together (`lead`); what lies inside the interval is called a tie.

>>> table = [{"policy": "new", "seconds": 1.0}, {"policy": "old", "seconds": 2.0}]
>>> latency = Measure("seconds", "s mean latency", over="stretches of requests")
>>> add_leads(table, {"new": np.arange(1.0, 41.0), "old": np.arange(2.0, 82.0, 2.0)}, latency)
>>> table[1]["led_by"], table[0]["led_by"]
(0.5, None)
>>> why(table, latency)
'new wins with 1 s mean latency, 50 % ahead of old (95 % interval 50 … 50 %, stretches of requests resampled).'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.serving.engine.lead import STRETCHES, paired


class Measure(NamedTuple):
    """What decides: a column of the table, how to say it, whether less of it is better, and what is resampled.

    A `tail` of 0.99 makes it the 99th percentile of the samples instead of their mean.
    """

    column: str
    says: str
    over: str
    least: bool = True
    tail: float | None = None


def ranked(table: Sequence[Mapping[str, Any]], measure: Measure) -> list[Mapping[str, Any]]:
    """The rows, best first."""
    return sorted(table, key=lambda row: row[measure.column], reverse=not measure.least)


def in_stretches(count: int) -> NDArray[np.int64]:
    """The stretch of each of so many things in a row.

    >>> in_stretches(80).tolist()[:6]
    [0, 0, 1, 1, 2, 2]
    """
    return np.arange(count) * min(STRETCHES, count) // max(count, 1)


def add_leads(
    table: Sequence[dict[str, Any]], samples: Mapping[str, ArrayLike], measure: Measure, where: ArrayLike | None = None
) -> None:
    """To each row by which share the winner leads it, and the 95 % interval; `where` is the stretch of each value."""
    best = _name(ranked(table, measure)[0])
    for row in table:
        ends: tuple[float | None, ...] = (None, None, None)
        if _name(row) != best:
            ours, theirs = np.asarray(samples[best], float), np.asarray(samples[_name(row)], float)
            first, second = (ours, theirs) if measure.least else (theirs, ours)
            found = paired(first, second, in_stretches(len(ours)) if where is None else where, measure.tail)
            ends = (found.share, found.low, found.high)
        row |= dict(zip(("led_by", "led_by_low", "led_by_high"), ends, strict=True))


def why(table: Sequence[Mapping[str, Any]], measure: Measure, mechanism: str = "") -> str:
    """Who wins, by how much and how sure that is, and where the mechanism stands if it is another."""
    best, *others = ranked(table, measure)
    value = f"{best[measure.column]:.3g} {measure.says}"
    if not others:
        return f"{_name(best)} has {value}. There is nobody to compare it with."
    if tied := [_name(row) for row in others if not row["led_by_low"] > 0]:
        names = ", ".join([_name(best), *tied[:-1]]) + f" and {tied[-1]}"
        said = f"{names} tie at {value}: {_name(best)} is {_ahead(others[0], measure)}, which may be nothing"
    else:
        said = f"{_name(best)} wins with {value}, {_ahead(others[0], measure)}"
    behind = [row for row in others[1:] if _name(row) == mechanism and mechanism not in tied]
    if behind:
        said += f"; {mechanism} has {behind[0][measure.column]:.3g}, {_interval(behind[0])} behind"
    elif len(others) > 1:
        said += f"; {_name(others[-1])} is last with {others[-1][measure.column]:.3g}"
    return f"{said}."


def _name(row: Mapping[str, Any]) -> str:
    return str(next(iter(row.values())))


def _ahead(row: Mapping[str, Any], measure: Measure) -> str:
    return f"{_interval(row, f' ahead of {_name(row)}', f', {measure.over} resampled')}"


def _interval(row: Mapping[str, Any], after: str = "", note: str = "") -> str:
    ends = (row["led_by_low"], row["led_by_high"])
    if not all(map(math.isfinite, ends)):
        return f"{100 * row['led_by']:.0f} %{after} (too little to tell how sure that is)"
    told = f"{100 * ends[0]:.0f} … {100 * ends[1]:.0f} %".replace("-", "−")
    return f"{100 * row['led_by']:.0f} %{after} (95 % interval {told}{note})"
