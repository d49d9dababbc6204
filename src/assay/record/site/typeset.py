"""Numbers, dates and prose as a page sets them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from assay.record.types import Answer
from assay.record.verdicts import rule as verdict_rule

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_CELL = 120  # characters of a table's cell; longer text belongs into the JSON


def number(value: Any) -> str:
    """A value for a reader: four significant digits, thousands apart, a real minus and powers of ten.

    >>> number(12345.678), number(-0.25), number(1.5e-7), number(True), number(None)
    ('12,346', '−0.25', '1.5 × 10⁻⁷', 'yes', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _figure(value)
    text = str(value)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _figure(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}".replace("-", "−")
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}".replace("-", "−")
    if abs(value) >= 1e9 or abs(value) < 1e-4:
        digits, exponent = f"{value:.3e}".split("e")
        digits = digits.rstrip("0").rstrip(".").replace("-", "−")
        return f"{digits} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return f"{value:.4g}".replace("-", "−")


def with_interval(value: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """A measured value and its interval, to the digits the interval's width can bear.

    >>> with_interval(1.53172, 1.30511, 1.78213), with_interval(2.0, 2.0, 2.0), with_interval(None, None, None)
    (('1.53', '1.31 to 1.78'), ('2', '2 to 2'), ('–', ''))
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return number(value), ""
    largest = max(abs(low), abs(high), abs(value or 0))
    if high <= low or not 1e-4 <= largest < 1e9:
        return number(value), f"{number(low)} to {number(high)}"
    decimals = min(max(1 - math.floor(math.log10(high - low)), 0), 6)
    exact = all(float(v).is_integer() for v in (value or 0.0, low, high))
    low_text, high_text, text = (_rounded(v, 0 if exact else decimals) for v in (low, high, value))
    return text, f"{low_text} to {high_text}"


def _rounded(value: float | None, decimals: int) -> str:
    if value is None or not math.isfinite(value):
        return number(value)
    text = f"{value:,.{decimals}f}"
    return text.replace("-", "" if float(text.replace(",", "")) == 0 else "−")


def rule(answer: Answer) -> str:
    """What would make the answer "reproduced", with real minus signs; a dash for an answer older than the rule."""
    return "–" if answer.sentence is None else verdict_rule(answer.sentence).replace("-", "−")


def numeric(cells: Sequence[Any]) -> bool:
    """Whether a column holds numbers, and so stands flush right.

    >>> numeric([1, None, 2.5]), numeric([True]), numeric(["a"])
    (True, False, False)
    """
    return all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in cells)


def column(cells: Sequence[Any]) -> list[str]:
    """A column of a table: numbers of one size get the same decimals, so that their points stand in line.

    >>> column([0.5, 1.25, None]), column([0.00012, 30.5]), column(["a", 2])
    (['0.50', '1.25', '–'], ['0.00012', '30.5'], ['a', '2'])
    """
    values = [abs(cell) for cell in cells if isinstance(cell, float) and math.isfinite(cell) and cell]
    values += [abs(cell) for cell in cells if type(cell) is int and cell]
    if not numeric(cells) or not values or max(values) >= 1e9 or max(values) > 100 * min(values) or min(values) < 1e-4:
        return [number(cell) for cell in cells]
    decimals = max(0, 3 - math.floor(math.log10(max(values))))
    while decimals and all(f"{value:.{decimals}f}".endswith("0") for value in values):
        decimals -= 1
    return [_rounded(cell, decimals) for cell in cells]


def days(started: Sequence[str]) -> str:
    """The days from the first to the last of some ISO times; text that is no time is left out.

    >>> days(["2026-07-09T12:00:00.000Z", "2026-07-02T08:00:00.000Z"]), days(["2026-07-09T12:00:00Z", "soon"]), days([])
    ('2 to 9 July 2026', '9 July 2026', '')
    """
    moments = []
    for text in started:
        with contextlib.suppress(ValueError):
            moments.append(datetime.fromisoformat(text).date())
    if not moments:
        return ""
    first, last = min(moments), max(moments)
    end = f"{last.day} {last:%B %Y}"
    if first == last:
        return end
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day} to {end}"
    return f"{first.day} {first:%B %Y} to {end}"


def seconds(value: float) -> str:
    """A duration as one reads it.

    >>> seconds(3.21), seconds(754), seconds(9000)
    ('3.2 s', '12 min 34 s', '2 h 30 min')
    """
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def machine(facts: dict[str, Any]) -> str:
    """A machine in one line; facts that are missing are left out.

    >>> machine({"cpu": "Xeon", "cores": 8, "memory_bytes": 64e9, "gpus": []})
    'Xeon, 8 cores, 64 GB'
    """
    memory = facts.get("memory_bytes")
    parts = (
        facts.get("cpu"),
        f"{facts['cores']} cores" if facts.get("cores") else None,
        f"{memory / 1e9:.0f} GB" if isinstance(memory, int | float) else None,
        *(facts.get("gpus") or ()),
    )
    return ", ".join(str(part) for part in parts if part)


def curly(text: str) -> str:
    """Apostrophes within words as a printer sets them; quotation marks stay, since some are not in pairs.

    >>> curly("the paper's 'own' baselines' cost")
    "the paper’s 'own' baselines' cost"
    """
    return re.sub(r"(?<=\w)'(?=\w)", "’", text)


_INLINE = re.compile(r"(?::[a-z]+:)?``(?P<code2>[^`]+)``|:[a-z]+:`(?P<role>[^`]+)`|`(?P<code>[^`]+)`"
                     r"|\*\*(?P<strong>[^\s*](?:[^*]*[^\s*])?)\*\*|(?<![\w*])\*(?P<em>[^\s*](?:[^*]*[^\s*])?)\*(?![\w*])"
                     r"|(?P<url>https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:])"
                     r"|arXiv:(?P<arxiv>\d{4}\.\d{4,5})")  # fmt: skip


def inline(text: str) -> Markup:
    """A line of prose: `code`, *stress*, roles, addresses and arXiv numbers are set as such, all else is escaped.

    >>> str(inline("a `b` < c"))
    'a <code>b</code> &lt; c'
    >>> str(inline("*one* :class:`~assay.sim.Clock`, 2 * 3 * 4"))
    '<em>one</em> <code>Clock</code>, 2 * 3 * 4'
    """
    out, end = Markup(), 0
    for found in _INLINE.finditer(text):
        out += escape(curly(text[end : found.start()]))
        if code := found["code"] or found["code2"] or _target(found["role"]):
            out += Markup("<code>{}</code>").format(code)
        elif stressed := found["strong"] or found["em"]:
            tag = "strong" if found["strong"] else "em"
            out += Markup("<{0}>{1}</{0}>").format(Markup(tag), curly(stressed))
        elif found["url"]:
            out += Markup('<a href="{0}">{0}</a>').format(found["url"])
        else:
            out += Markup('<a href="https://arxiv.org/abs/{0}">arXiv:{0}</a>').format(found["arxiv"])
        end = found.end()
    return out + escape(curly(text[end:]))


def _target(role: str | None) -> str:
    """What a role such as :class:`~assay.sim.Clock` or :func:`its name <assay.sim.run>` shows."""
    if not role:
        return ""
    shown = role.split("<")[0].strip()
    return shown.removeprefix("~").rsplit(".", 1)[-1] if shown.startswith("~") else shown


def prose(text: str) -> Markup:
    """A docstring as paragraphs; lists stay lists, and indented blocks and examples keep their lines.

    >>> str(prose("One\\nline.\\n\\n    x = 1"))
    '<p>One line.</p><pre tabindex="0">x = 1</pre>'
    """
    out = Markup()
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if lines[:1] and (lines[0].startswith((">>>", "    ")) or lines[0].endswith("::")):
            out += Markup('<pre tabindex="0">{}</pre>').format("\n".join(line.removeprefix("    ") for line in lines))
        elif re.match(r"[-*] ", lines[0].lstrip() if lines else ""):
            items = re.split(r"(?:^|\n)\s*[-*] ", block.strip())[1:]
            out += Markup("<ul>{}</ul>").format(
                Markup().join(Markup("<li>{}</li>").format(inline(" ".join(item.split()))) for item in items)
            )
        elif block.strip():
            out += Markup("<p>{}</p>").format(inline(" ".join(block.split())))
    return out
