"""Claims drawn in a terminal: a line a claim, with the measured value, its interval, and where the paper is.

Each claim has its own axis, as beside the claims of a report's page; a terminal without Unicode gets ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.record.site.strip import Strip, strip
from assay.record.types import Answer


@dataclass(frozen=True, slots=True)
class Signs:
    """What the parts of a line are drawn with."""

    measured: str
    ends: tuple[str, str]  # of the interval
    inside: str
    paper: str
    region: str  # what counts as reproduced
    nothing: str  # no effect
    air: str
    cut: str


UNICODE = Signs("●", ("├", "┤"), "─", "◆", "░", "│", " ", "…")
ASCII = Signs("o", ("[", "]"), "-", "x", ".", "|", " ", "~")


def signs(encoding: str | None) -> Signs:
    """Those that an output of this encoding can show.

    >>> signs("utf-8").measured, signs("ascii").measured, signs(None).measured
    ('●', 'o', 'o')
    """
    try:
        "●├◆░│…".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def lines(answers: Iterable[Answer], width: int, drawn: Signs = UNICODE) -> list[str]:
    """A line a measured claim and a legend, no line longer than `width`; empty where nothing was measured.

    >>> from assay.record.types import Evidence, Kind, Verdict
    >>> fast = Answer("It is fast.", 2.0, 1.5, 1.1, 1.9, 5, Verdict.REPRODUCED, Evidence.REAL, kind=Kind.RATIO)
    >>> print("\\n".join(lines([fast], 60, ASCII)))
    It is fast. 0.8    | [-------o-------]x................    3
    o measured  [-] 95 % interval  x paper  . reproduced
    | no effect
    """
    strips = [(answer, found) for answer in answers if (found := strip(answer))]
    if not strips:
        return []
    ends = [max(len(getattr(found, side)) for _, found in strips) for side in ("left", "right")]
    label = max(8, min(max(len(answer.text) for answer, _ in strips), (width - sum(ends)) // 2 - 4))
    track = max(10, min(64, width - label - sum(ends) - 3))
    rows = []
    for answer, found in strips:
        text = answer.text if len(answer.text) <= label else answer.text[: label - 1].rstrip() + drawn.cut
        rows.append(f"{text:<{label}} {found.left:>{ends[0]}} {_track(found, track, drawn)} {found.right}")
    if drawn is ASCII:
        rows = [row.replace("−", "-").encode("ascii", "replace").decode() for row in rows]
    return [*rows, *_legend([found for _, found in strips], width, drawn)]


def _track(found: Strip, width: int, drawn: Signs) -> str:
    def at(percent: float) -> int:
        return min(width - 1, int(percent / 100 * width))

    cells = [drawn.air] * width
    low, high = map(at, found.region)
    cells[low : high + 1] = [drawn.region] * (high - low + 1)
    if found.neutral is not None:
        cells[at(found.neutral)] = drawn.nothing
    if found.interval:
        low, high = map(at, found.interval)
        cells[low : high + 1] = [drawn.inside] * (high - low + 1)
        if high > low:
            cells[low], cells[high] = drawn.ends
    if found.paper is not None:
        cells[at(found.paper)] = drawn.paper
    cells[at(found.measured)] = drawn.measured
    return "".join(cells)


def _legend(strips: Sequence[Strip], width: int, drawn: Signs) -> list[str]:
    """The signs that occur, explained."""
    left, right = drawn.ends
    parts = [
        (True, f"{drawn.measured} measured"),
        (any(found.interval for found in strips), f"{left}{drawn.inside}{right} 95 % interval"),
        (any(found.paper is not None for found in strips), f"{drawn.paper} paper"),
        (True, f"{drawn.region} reproduced"),
        (any(found.neutral is not None for found in strips), f"{drawn.nothing} no effect"),
    ]
    rows = [""]
    for text in (text for there, text in parts if there):
        fits = len(rows[-1]) + 2 + len(text) <= width
        rows[-1:] = [f"{rows[-1]}  {text}".strip()] if fits else [rows[-1], text]
    return rows
