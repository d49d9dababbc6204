"""The strip beside a claim: where the interval, the measured value, the paper's value and the holding region lie.

Positions are percentages, so that a strip is as wide as its column while its marks and labels keep their size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from assay.record.site.typeset import number, with_interval
from assay.record.types import Answer


@dataclass(frozen=True, slots=True)
class Strip:
    """A drawn claim. Positions run from 0 to 100; a missing mark is None."""

    measured: float
    interval: tuple[float, float] | None
    paper: float | None
    region: tuple[float, float] | None
    bounds: tuple[float, ...]  # the region's finite ends
    zero: float | None
    left: str  # the labels of the axis' two ends
    right: str
    text: str  # the strip in words


def region(holds: str) -> tuple[float, float] | None:
    """The values a rule admits, read back from its text; None where it is no rule of `Holds`.

    >>> region("≥ 1.3"), region("1.8 … 2.2"), region("= 1"), region("by eye")
    ((1.3, inf), (1.8, 2.2), (1.0, 1.0), None)
    """
    figure = r"(-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf))"
    if found := re.fullmatch(rf"{figure} … {figure}", holds):
        return float(found[1]), float(found[2])
    if not (found := re.fullmatch(rf"([=≥≤]) {figure}", holds)):
        return None
    bound = float(found[2])
    return {"=": (bound, bound), "≥": (bound, math.inf), "≤": (-math.inf, bound)}[found[1]]


def strip(answer: Answer) -> Strip | None:
    """The strip of an answer; None where nothing was measured.

    >>> from assay.record.types import Evidence, Verdict
    >>> drawn = strip(Answer("faster", 2.0, 1.5, 1.1, 1.9, 5, Verdict.REPRODUCED, Evidence.REAL, "≥ 1.3"))
    >>> drawn.left, drawn.right, drawn.measured, drawn.region
    ('1', '2.1', 45.45, (27.27, 100.0))
    """
    if answer.measured is None or not math.isfinite(answer.measured):
        return None
    admitted = region(answer.holds)
    interval = _finite(answer.low, answer.high)
    interval = interval if len(interval) == 2 else ()
    paper = _finite(answer.paper)
    bounds = _finite(*(admitted or ()))
    start, end = _axis([answer.measured, *interval, *paper, *bounds])

    def place(value: float) -> float:
        return round(100 * (min(max(value, start), end) - start) / (end - start), 2)

    return Strip(
        measured=place(answer.measured),
        interval=(place(interval[0]), place(interval[1])) if interval else None,
        paper=place(paper[0]) if paper else None,
        region=(place(admitted[0]), place(admitted[1])) if admitted else None,
        bounds=tuple(map(place, dict.fromkeys(bounds))),
        zero=place(0.0) if start < 0 < end else None,
        left=number(start),
        right=number(end),
        text=_words(answer, admitted),
    )


def _finite(*values: float | None) -> tuple[float, ...]:
    return tuple(v for v in values if v is not None and math.isfinite(v))


def _axis(values: list[float]) -> tuple[float, float]:
    """The ends of an axis that holds all the values with some air, at round numbers."""
    low, high = min(values), max(values)
    # A single value has no width of its own; its size gives the scale.
    air = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    span = (high + air) - (low - air)
    step = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (step / 10, step / 5, step / 2, step) if span / s <= 12)
    start, end = math.floor((low - air) / step) * step, math.ceil((high + air) / step) * step
    return _clean(start, step), _clean(end, step)


def _clean(value: float, step: float) -> float:
    """Without the dust of floating point: 1.2000000000000002 would be a label."""
    return round(value, max(0, 1 - math.floor(math.log10(step))))


def _words(answer: Answer, admitted: tuple[float, float] | None) -> str:
    value, interval = with_interval(answer.measured, answer.low, answer.high)
    words = [f"measured {value}" + (f", 95 % interval {interval}" if interval else "")]
    words.append("the paper gives no number" if answer.paper is None else f"the paper says {number(answer.paper)}")
    if admitted:
        low, high = admitted
        if low == high:
            words.append(f"holds at {number(low)}")
        elif math.isinf(high):
            words.append(f"holds from {number(low)} upwards")
        elif math.isinf(low):
            words.append(f"holds up to {number(high)}")
        else:
            words.append(f"holds from {number(low)} to {number(high)}")
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}."
