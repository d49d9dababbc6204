"""A trace as a picture: its rate over time, and how long prompts and answers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from assay.workloads.request_summary import counts
from assay.workloads.requests import Ints, Requests

if TYPE_CHECKING:
    import altair as alt

_POINTS = 300  # of the curve
_BARS = 40  # of a histogram


def plot(requests: Requests) -> alt.VConcatChart:
    """Rate over time above histograms of prompt and output tokens (logarithmic).

    >>> plot(Requests.of([0.0, 0.5, 2.0], [100, 20, 60], [5, 7, 9])).vconcat[0].mark.type
    'area'
    """
    import altair as alt

    step = max(1.0, requests.seconds / _POINTS)
    rate = counts(requests.arrival, step)[: max(1, int(requests.seconds / step))] / step
    scale, unit = (
        (3600.0, "hours")
        if requests.seconds > 7200
        else (60.0, "minutes")
        if requests.seconds > 180
        else (1.0, "seconds")
    )
    curve = pl.DataFrame({"time": np.arange(len(rate)) * step / scale, "rate": rate})
    above = alt.Chart(curve).mark_area(opacity=0.7, line=True).encode(
        x=alt.X("time:Q", title=unit), y=alt.Y("rate:Q", title="requests a second")
    )  # fmt: skip
    bars = (
        alt.Chart(_histograms({"prompt": requests.prompt, "output": requests.output}))
        .mark_rect(opacity=0.6)
        .encode(
            x=alt.X("low:Q", scale=alt.Scale(type="log", nice=False), title="tokens (log)"),
            x2="high:Q",
            y=alt.Y("share:Q", axis=alt.Axis(format="%"), title="of requests"),
            y2="zero:Q",
            color=alt.Color("what:N"),
        )
    )
    title = alt.Title(
        requests.source.name, subtitle=f"{len(requests):,} requests in {requests.seconds / scale:,.1f} {unit}"
    )
    chart: alt.VConcatChart = alt.vconcat(
        above.properties(width=560, height=160), bars.properties(width=560, height=160)
    )
    return chart.properties(title=title)


def _histograms(columns: dict[str, Ints]) -> pl.DataFrame:
    """Shares of every column in the same bins, evenly spaced on a logarithmic axis."""
    least, most = min(v.min() for v in columns.values()), max(v.max() for v in columns.values())
    edges = np.geomspace(least, most + 1, _BARS + 1)
    edges[0], edges[-1] = least, most + 1  # rounding must lose none
    bins = {"low": edges[:-1], "high": edges[1:], "zero": np.zeros(_BARS)}
    tables = [
        pl.DataFrame({"what": [what] * _BARS, **bins, "share": np.histogram(values, edges)[0] / len(values)})
        for what, values in columns.items()
    ]
    return pl.concat(tables).filter(pl.col("share") > 0)
