"""How answers read, on a screen and on a page alike: numbers with their units, shares of an effect, verdicts' signs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from assay.record.types import Answer, Verdict

# A sign and a word: no verdict is told by its colour alone.
SIGNS = {
    Verdict.REPRODUCED: "✓",
    Verdict.EXCEEDED: "↑",
    Verdict.DIRECTION: "~",
    Verdict.NOT_REPRODUCED: "✗",
    Verdict.NOT_MEASURED: "·",
    Verdict.BY_CONSTRUCTION: "=",
}


def number(value: Any) -> str:
    """A value for a person: four significant digits, thousands apart.

    >>> number(12345.678), number(0.000123456), number(True), number(None)
    ('12,346', '0.0001235', 'yes', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:,.0f}" if abs(value) >= 1000 and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def with_unit(value: float | None, unit: str) -> str:
    """A value of a claim for a person: changes and shares in per cent, ratios as factors, the rest with its unit.

    >>> with_unit(-0.92, "change"), with_unit(2.5, "ratio"), with_unit(0.935, "share"), with_unit(0.1, "s")
    ('−92 %', '2.5×', '93.5 %', '0.1 s')
    """
    if value is None:
        return "–"
    if unit in ("change", "share"):
        plus = "+" if unit == "change" and value > 0 else ""
        percent = f"{100 * value:.3g}" if abs(value) < 10 else f"{100 * value:,.0f}"
        return f"{plus}{percent} %".replace("-", "−")
    text = number(value).replace("-", "−")
    if unit == "ratio":
        return f"{text}×"
    return text if unit in ("", "exponent", "count") else f"{text} {unit}"


def interval_text(low: float | None, high: float | None, unit: str) -> str:
    """An interval with its unit once.

    >>> interval_text(0.1, 0.25, "share"), interval_text(None, 2.0, "s"), interval_text(None, None, "s")
    ('10 … 25 %', '−∞ … 2 s', '–')
    """
    if low is None and high is None:
        return "–"
    ends = [with_unit(end, unit) if end is not None else sign for end, sign in ((low, "−∞"), (high, "∞"))]
    tail = next((tail for tail in (" %", "×", f" {unit}") if unit and all(end.endswith(tail) for end in ends)), "")
    return f"{ends[0].removesuffix(tail)} … {ends[1]}"


def share_text(answer: Answer) -> str:
    """The share of the effect in per cent with its interval; a dash where the sentence has no number."""
    if answer.share is None or not answer.stated:
        return "–"
    ends = ["?" if end is None else f"{100 * end:.0f}" for end in (answer.share_low, answer.share_high)]
    return f"{100 * answer.share:.0f} % ({ends[0]} … {ends[1]})".replace("-", "−")


def spoken(text: str) -> str:
    """A docstring's prose for a screen: references by their names, without the marks of a documentation tool.

    >>> spoken("A :class:`~assay.sim.Clock` of :mod:`assay.sim`, *not* `time`.")
    'A Clock of assay.sim, not `time`.'
    """
    text = re.sub(r":[a-z]+:`~(?:[\w.]*\.)?(\w+)`", r"\1", text)
    text = re.sub(r":[a-z]+:`([^`<]+?)(?:\s*<[^`]*>)?`", r"\1", text)
    return re.sub(r"(?<![\w*])\*{1,2}([A-Za-z][^*\n]*[^\s*])\*{1,2}(?![\w*])", r"\1", text)


def seeds_text(seeds: Sequence[int] | int) -> str:
    """Which seeds a result stands on.

    >>> seeds_text((0, 1, 2)), seeds_text((3, 17)), seeds_text((5,)), seeds_text(4), seeds_text(())
    ('seeds 0–2', 'seeds 3, 17', 'seed 5', '4 seeds', 'no seeds')
    """
    if isinstance(seeds, int):
        return f"{seeds} seeds"
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else "no seeds"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]}–{seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def listed(text: str) -> list[str]:
    """The names in a list separated by commas, each once.

    >>> listed("div, pull,,div")
    ['div', 'pull']
    """
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
