"""The page of a repository's benchmarks: one chart for each series, its steps, and the commits to blame.

One file that asks for nothing over the network: style, charts and text are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from markupsafe import Markup

from assay.observe.bench.history import Change, Series
from assay.record import charts
from assay.record.site.drawing import plain_svg
from assay.record.store import write_whole

UNITS = ((1.0, "seconds"), (1e-3, "milliseconds"), (1e-6, "microseconds"), (1e-9, "nanoseconds"))
HUES = {"regression": "#B5423A", "improvement": "#3C8457", "rise": "#8A6D1F", "fall": "#8A6D1F"}  # on any ground
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1.2rem; font: 1rem/1.5 Georgia, serif;
  background: light-dark(#fcfbf8, #17181b); color: light-dark(#1e1d1b, #e7e3da); }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .2rem; }
p.facts, table, figcaption { font: .85rem/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
p.facts { color: light-dark(#66625a, #9f9a90); margin: .1rem 0 .6rem; }
table { border-collapse: collapse; } th { text-align: left; font-weight: 600; }
th, td { padding: .15rem 1.2rem .15rem 0; } td.number { text-align: right; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
svg { max-width: 100%; height: auto; } figure { margin: .6rem 0; }
.regression { color: light-dark(#98302a, #f0998f); } .improvement { color: light-dark(#2d6a43, #8ecb9f); }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<p class="facts">{{ series | length }} series; {{ counted(steps, "step") }} of
{{ "%.3g" | format(100 * min_change) }} % or more.
A step names the last commit measured before it and the first one behind it: what lies between is to blame.</p>
{% for one in series %}
<section>
<h2>{{ one.series.benchmark }}</h2>
<p class="facts">machine {{ one.series.machine or "unknown" }}, {{ counted(one.series.points | length, "commit") }}
{%- if one.series.failed %}; did not run at {{ one.series.failed | length }}: {{ one.failed }}{% endif %}
{%- if one.series.dirty %}; {{ one.series.dirty }} runs of a changed tree left out{% endif %}.</p>
{% if one.chart %}<figure>{{ one.chart }}</figure>{% endif %}
{% if one.changes %}
<table>
<thead><tr><th>step</th><th>change</th><th>last before</th><th>first behind</th><th>commits to blame</th></tr></thead>
<tbody>
{% for change in one.changes %}
<tr><td class="{{ change.kind }}">{{ change.kind }}</td>
<td class="number">{{ "%+.1f" | format(100 * change.change) }} %</td>
<td><code>{{ change.before[:12] }}</code></td><td><code>{{ change.after[:12] }}</code></td>
<td class="number">{{ change.suspects }}</td></tr>
{% endfor %}
</tbody>
</table>
{% else %}<p class="facts">{{ "No step." if one.series.points else "Nothing was measured." }}</p>{% endif %}
</section>
{% endfor %}
</main>
</body>
</html>
"""


def write(path: Path, title: str, series: Sequence[Series], changes: Sequence[Change], min_change: float) -> None:
    """Write the page, whole or not at all."""
    parts: list[dict[str, Any]] = []
    for number, one in enumerate(series):
        own = [c for c in changes if (c.benchmark, c.machine) == (one.benchmark, one.machine)]
        failed = ", ".join(commit[:12] for commit in one.failed[:5]) + (" …" if len(one.failed) > 5 else "")
        parts.append({"series": one, "changes": own, "chart": _drawn(one, own, number), "failed": failed})
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    page = environment.from_string(PAGE).render(
        title=title, series=parts, steps=len(changes), min_change=min_change, policy=POLICY, counted=_counted
    )
    write_whole(path, page.encode())


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _drawn(series: Series, changes: Sequence[Change], number: int) -> Markup | None:
    if not series.points:
        return None
    label = f"{series.benchmark}: value over {len(series.points)} commits; the table below holds the steps"
    return plain_svg(charts.svg(chart(series, changes)), label, prefix=f"c{number}-")


def chart(series: Series, changes: Sequence[Change]) -> Any:
    """The points of a series in the order of commits, its levels between steps, and the steps with their sizes."""
    import altair as alt

    scale, unit = 1.0, series.unit or "value"
    if unit == "seconds":
        scale, unit = _unit(max(point.value for point in series.points))
    values = [point.value / scale for point in series.points]
    bounds = [0, *(change.index for change in changes), len(values)]
    levels = []
    for low, high in pairwise(bounds):
        level = sorted(values[low:high])[(high - low) // 2]
        levels.append({"from": low, "to": max(high - 1, low), "value": level})
    x = alt.X("at:Q", title="measured commits, the oldest first", scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("value:Q", title=unit, scale=alt.Scale(zero=False), axis=alt.Axis(format=",.6~g", tickCount=5))
    table = pl.DataFrame({"at": range(len(values)), "value": values})
    points = alt.Chart(table).mark_circle(size=26, opacity=0.7, color=charts.PALETTE[0]).encode(x=x, y=y)
    steady = (
        alt.Chart(pl.DataFrame(levels)).mark_rule(strokeWidth=2, color=charts.PALETTE[1])
        .encode(x=alt.X("from:Q"), x2="to:Q", y=y)
    )  # fmt: skip
    layers = [points, steady]
    if changes:
        at = alt.Chart(pl.DataFrame({
            "at": [change.index - 0.5 for change in changes], "hue": [HUES[change.kind] for change in changes],
            "size": [f"{100 * change.change:+.1f} %" for change in changes],
        })).encode(x="at:Q", color=alt.Color("hue:N", scale=None))  # fmt: skip
        layers.append(at.mark_rule(strokeDash=[4, 4]))
        layers.append(at.mark_text(baseline="bottom", dy=-2).encode(text="size:N", y=alt.value(0)))
    return alt.layer(*layers).properties(width=720, height=160)


def _unit(largest: float) -> tuple[float, str]:
    """The unit in which the largest value is a number of one to three digits."""
    return next((pair for pair in UNITS if largest >= pair[0]), UNITS[-1])
