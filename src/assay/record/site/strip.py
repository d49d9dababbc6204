"""The strip beside a claim: where the interval, the measured value, the paper's value and the holding region lie.

Positions are percentages, so that a strip is as wide as its column while its marks and labels keep their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from assay.record.site.typeset import number, with_interval
from assay.record.types import Answer


@dataclass(frozen=True, slots=True)
class Strip:
    """A drawn claim. Positions run from 0 to 100; a missing mark is None."""

    measured: float
    interval: tuple[float, float] | None
    paper: float | None
    region: tuple[float, float]
    bounds: tuple[float, ...]  # the region's finite ends
    zero: float | None
    neutral: float | None  # no effect at all
    left: str  # the labels of the axis' two ends
    right: str
    text: str  # the strip in words


def strip(answer: Answer) -> Strip | None:
    """The strip of an answer; None where nothing was measured.

    >>> from assay.record.types import Evidence, Verdict, at_least
    >>> drawn = strip(Answer("faster", 2.0, 1.5, 1.1, 1.9, 5, Verdict.REPRODUCED, Evidence.REAL, at_least(1.3)))
    >>> drawn.left, drawn.right, drawn.measured, drawn.region
    ('1', '2.1', 45.45, (27.27, 100.0))
    """
    measured = answer.measured
    if measured is None or not _finite(measured):
        return None
    admitted = answer.holds.span
    interval = _finite(answer.low, answer.high)
    interval = interval if len(interval) == 2 else ()
    paper = _finite(answer.paper)
    bounds = _finite(*admitted)
    neutral = _finite(answer.holds.neutral)
    start, end, step = _axis([measured, *interval, *paper, *bounds, *neutral])

    def place(value: float) -> float:
        return round(100 * (min(max(value, start), end) - start) / (end - start), 2)

    return Strip(
        measured=place(measured),
        interval=(place(interval[0]), place(interval[1])) if interval else None,
        paper=place(paper[0]) if paper else None,
        region=(place(admitted[0]), place(admitted[1])),
        bounds=tuple(map(place, dict.fromkeys(bounds))),
        zero=place(0.0) if start < 0 < end else None,
        neutral=place(neutral[0]) if neutral else None,
        left=_label(start, step),
        right=_label(end, step),
        text=_words(answer),
    )


def _finite(*values: float | None) -> tuple[float, ...]:
    # Beyond these no axis can be computed in floating point, and no claim lives.
    return tuple(v for v in values if v is not None and abs(v) < 1e150)


def _axis(values: list[float]) -> tuple[float, float, float]:
    """The ends of an axis that holds all the values with some air, at round numbers, and the step they are round to."""
    low, high = min(values), max(values)
    if max(-low, high) < 1e-150:
        return -1.0, 1.0, 1.0
    # No change at all is worth seeing where it is near.
    low, high = (0.0 if 0 < low < (high - low) / 2 else low), (0.0 if (low - high) / 2 < high < 0 else high)
    # A single value has no width of its own; its size gives the scale.
    air = 0.08 * (high - low) if high - low > 1e-9 * max(-low, high) else 0.1 * max(-low, high)
    span = (high + air) - (low - air)
    step = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (step / 10, step / 5, step / 2, step) if span / s <= 12)
    start, end = math.floor((low - air) / step) * step, math.ceil((high + air) / step) * step
    # Air must not suggest that a share or a duration could be negative.
    start, end = (max(start, 0.0) if low >= 0 else start), (min(end, 0.0) if high <= 0 else end)
    return start, end, step


def _label(value: float, step: float) -> str:
    """An end of the axis with just the digits that its roundness needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if decimals > 6 or abs(value) >= 1e9:
        return number(value)
    text = f"{value:,.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if decimals else text
    return "0" if text == "-0" else text.replace("-", "−")


def _words(answer: Answer) -> str:
    value, interval = with_interval(answer.measured, answer.low, answer.high)
    words = [f"measured {value}" + (f", 95 % interval {interval}" if interval else "")]
    words.append("the paper gives no number" if answer.paper is None else f"the paper says {number(answer.paper)}")
    low, high = answer.holds.low, answer.holds.high
    if low is None:
        words.append(f"holds up to {number(high)}")
    elif high is None:
        words.append(f"holds from {number(low)} upwards")
    else:
        words.append(f"holds at {number(low)}" if low == high else f"holds from {number(low)} to {number(high)}")
    if answer.holds.neutral is not None:
        words.append(f"no effect is {number(answer.holds.neutral)}")
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}."
