"""The strip beside a claim: where the interval, the measured value, the paper's value and what reproduces it lie.

Positions are percentages, so that a strip is as wide as its column while its marks and labels keep their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from assay.record.site.typeset import number
from assay.record.types import Answer
from assay.record.verdicts import neutral, rule, span
from assay.record.wording import interval_text, with_unit


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

    >>> from assay.record.types import Evidence, Kind, Verdict
    >>> answer = Answer("Fast.", 2.0, 1.5, 1.1, 1.9, 5, Verdict.REPRODUCED, Evidence.REAL, kind=Kind.AT_LEAST)
    >>> drawn = strip(answer)
    >>> drawn.left, drawn.right, drawn.measured, drawn.region
    ('1', '2.1', 45.45, (90.91, 100.0))
    """
    measured, sentence = answer.measured, answer.sentence
    if measured is None or sentence is None or not _finite(measured):
        return None
    admitted = span(sentence)
    interval = _finite(answer.low, answer.high)
    interval = interval if len(interval) == 2 else ()
    paper = _finite(answer.paper)
    bounds = _finite(*admitted)
    nothing = _finite(neutral(sentence.kind))
    start, end, step = _axis([measured, *interval, *paper, *bounds, *nothing])

    def place(value: float) -> float:
        return round(100 * (min(max(value, start), end) - start) / (end - start), 2)

    return Strip(
        measured=place(measured),
        interval=(place(interval[0]), place(interval[1])) if interval else None,
        paper=place(paper[0]) if paper else None,
        region=(place(admitted[0]), place(admitted[1])),
        bounds=tuple(map(place, dict.fromkeys(bounds))),
        zero=place(0.0) if start < 0 < end else None,
        neutral=place(nothing[0]) if nothing else None,
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
    sentence = answer.sentence
    words = [f"measured {with_unit(answer.measured, answer.unit)}"]
    if answer.low is not None or answer.high is not None:
        words.append(f"95 % interval {interval_text(answer.low, answer.high, answer.unit)}")
    printed = with_unit(answer.paper, answer.unit)
    words.append("the paper gives no number" if answer.paper is None else f"the paper says {printed}")
    if sentence is not None:
        words.append(f"reproduced if {rule(sentence)}")
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}."
