"""Numbers, dates and prose as a page sets them."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

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


def rule(holds: str) -> str:
    """A claim's rule with real minus signs; `≥ -0.3` and `1e-05` stay readable.

    >>> rule("≤ -0.3"), rule("= 1e-05")
    ('≤ −0.3', '= 1e−05')
    """
    return holds.replace("-", "−")


def day(started: str) -> str:
    """The day of an ISO time; text that is no time stays as it is.

    >>> day("2026-07-09T12:00:00.000Z"), day("soon")
    ('9 July 2026', 'soon')
    """
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{moment.day} {moment:%B %Y}"


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


_INLINE = re.compile(r"``(?P<code2>[^`]+)``|`(?P<code>[^`]+)`|(?P<url>https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:])"
                     r"|arXiv:(?P<arxiv>\d{4}\.\d{4,5})")  # fmt: skip


def inline(text: str) -> Markup:
    """A line of prose: `code`, addresses and arXiv numbers are set as such, all else is escaped.

    >>> str(inline("a `b` < c"))
    'a <code>b</code> &lt; c'
    """
    out, end = Markup(), 0
    for found in _INLINE.finditer(text):
        out += escape(text[end : found.start()])
        if code := found["code"] or found["code2"]:
            out += Markup("<code>{}</code>").format(code)
        elif found["url"]:
            out += Markup('<a href="{0}">{0}</a>').format(found["url"])
        else:
            out += Markup('<a href="https://arxiv.org/abs/{0}">arXiv:{0}</a>').format(found["arxiv"])
        end = found.end()
    return out + escape(text[end:])


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
