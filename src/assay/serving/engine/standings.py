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
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.record.wording import number
from assay.serving.engine.lead import STRETCHES, paired

Row = TypeVar("Row", bound=Mapping[str, Any])


class Measure(NamedTuple):
    """What decides: a column of the table, how to say it, whether less of it is better, and what is resampled.

    A `tail` of 0.99 makes it the 99th percentile of the samples instead of their mean.
    """

    column: str
    says: str
    over: str
    least: bool = True
    tail: float | None = None


def ranked(table: Sequence[Row], measure: Measure) -> list[Row]:
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


def add_leads_over_draws(
    table: Sequence[dict[str, Any]], draws: Mapping[str, Sequence[float]], measure: Measure
) -> None:
    """As `add_leads` where a whole input gives one value: its own, then those of inputs drawn from it with replacement.

    The interval is the range of the drawn ones' middle 95 %, so fewer than forty of them give all of their range.
    """
    best = _name(ranked(table, measure)[0])
    for row in table:
        ends: tuple[float | None, ...] = (None, None, None)
        if _name(row) != best:
            ours, theirs = np.asarray(draws[best], float), np.asarray(draws[_name(row)], float)
            shares = 1 - (ours / theirs if measure.least else theirs / ours)
            low, high = np.quantile(shares[1:], [0.025, 0.975]) if len(shares) > 2 else (-np.inf, np.inf)
            ends = (float(shares[0]), float(low), float(high))
        row |= dict(zip(("led_by", "led_by_low", "led_by_high"), ends, strict=True))


def why(table: Sequence[Mapping[str, Any]], measure: Measure, mechanism: str = "") -> str:
    """Who wins, by how much and how sure that is, and where the mechanism stands if it is another."""
    best, *others = ranked(table, measure)
    value = f"{number(best[measure.column])} {measure.says}"
    if not others:
        return f"{_name(best)} has {value}. There is nobody to compare it with."
    ahead = f"{_interval(others[0], f' ahead of {_name(others[0])}', f', {measure.over} resampled')}"
    tied = [_name(row) for row in others if not row["led_by_low"] > 0]
    if tied and tied[0] == _name(others[0]):
        said = f"{_and([_name(best), *tied])} tie at {value}: {_name(best)} is {ahead}, which may be nothing"
    else:
        said = f"{_name(best)} wins with {value}, {ahead}"
        said += f"; {_and(tied)} may be as good" if tied else ""
    behind = [row for row in others[1:] if _name(row) == mechanism and mechanism not in tied]
    if behind:
        said += f"; {mechanism} has {number(behind[0][measure.column])}, {_interval(behind[0])} behind"
    elif len(others) > 1 and _name(others[-1]) not in tied:
        said += f"; {_name(others[-1])} is last with {number(others[-1][measure.column])}"
    return f"{said}."


def _name(row: Mapping[str, Any]) -> str:
    return str(next(iter(row.values())))


def _and(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _interval(row: Mapping[str, Any], after: str = "", note: str = "") -> str:
    share, ends = row["led_by"], (row["led_by_low"], row["led_by_high"])
    digits = 0 if abs(share) >= 0.1 or not share else 1
    if not all(map(math.isfinite, ends)):
        return f"{100 * share:.{digits}f} %{after} (too little to tell how sure that is)"
    told = " … ".join(f"{100 * end:.{digits}f}" for end in ends).replace("-", "−")
    return f"{100 * share:.{digits}f} %{after} (95 % interval {told} %{note})"
