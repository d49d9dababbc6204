"""Pictures of a comparison: who waits how long, and where load and cache were over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.serving.engine.outcome import Outcome

if TYPE_CHECKING:
    import altair as alt

POINTS = 200  # of a distribution's curve
CELLS = 4800  # of a heat map, all policies together: what a browser draws at once


def comparison(outcomes: Mapping[str, Outcome]) -> alt.VConcatChart:
    """Distributions of both latencies for all policies, and load and KV use of every instance for each."""
    import altair as alt

    chart: alt.VConcatChart = alt.vconcat(curves(outcomes), heat(outcomes)).resolve_scale(color="independent")
    return chart


def curves(outcomes: Mapping[str, Outcome]) -> alt.HConcatChart:
    """Distributions of both latencies for all policies."""
    import altair as alt

    chart: alt.HConcatChart = alt.hconcat(
        _cdf(outcomes, "ttft", "time to first token, s"), _cdf(outcomes, "tpot", "time per output token, s")
    )
    return chart


def _cdf(outcomes: Mapping[str, Outcome], name: str, title: str) -> Any:
    import altair as alt

    shares = np.linspace(0.0, 1.0, POINTS + 1)
    rows = [
        pl.DataFrame({"policy": policy, "share": shares, "seconds": np.quantile(getattr(outcome, name), shares)})
        for policy, outcome in outcomes.items()
    ]
    return (
        alt.Chart(pl.concat(rows).filter(pl.col("seconds") > 0))
        .mark_line(strokeWidth=1.6)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title=title),
            y=alt.Y("share:Q", title="share of requests", axis=alt.Axis(format="%")),
            color=alt.Color("policy:N", sort=None),
        )
        .properties(width=420, height=260)
    )


def over_time(outcome: Outcome, end: float, bins: int = 120) -> pl.DataFrame:
    """Mean load and KV use of each instance in equal stretches of the time to `end`, from the span table."""
    spans = outcome.spans
    m = spans["iterations"].astype(float)
    seconds = m * spans["alpha"] + spans["gamma"] * (0.5 * m * (m - 1))
    slot = np.minimum((spans["start"] / end * bins).astype(int), bins - 1)
    capacity = outcome.caches["capacity"][spans["instance"]]
    table = pl.DataFrame(
        {
            "time": slot * (end / bins),
            "instance": spans["instance"].astype(int),
            "seconds": seconds,
            "load": (spans["decodes"] + spans["waiting"]) * seconds,
            "kv": spans["kv_blocks"] / capacity * seconds,
        }
    )
    sums = table.group_by("time", "instance").agg(pl.col("load", "kv", "seconds").sum())
    stop = pl.col("time") + end / bins
    shares = (pl.col("load") / pl.col("seconds"), pl.col("kv") / pl.col("seconds"))
    return sums.select("time", "instance", *shares, until=stop)


def heat(outcomes: Mapping[str, Outcome]) -> Any:
    """Load and KV use of every instance over time."""
    import altair as alt

    instances = max(len(outcome.fleet) for outcome in outcomes.values())
    end = max(float(outcome.spans["start"].max(initial=0.0)) for outcome in outcomes.values()) or 1.0
    bins = int(np.clip(CELLS // (instances * len(outcomes)), 8, 120))
    rows = [over_time(outcome, end, bins).with_columns(policy=pl.lit(policy)) for policy, outcome in outcomes.items()]
    panels = []
    for column, title in (("load", "requests on board"), ("kv", "share of KV memory held")):
        heat = (
            alt.Chart(pl.concat(rows))
            .mark_rect()
            .encode(
                x=alt.X("time:Q", title="time, s", axis=alt.Axis(grid=False)),
                x2="until:Q",
                y=alt.Y("instance:O", title=None, axis=alt.Axis(labels=False, ticks=False)),
                color=alt.Color(f"{column}:Q", title=title, scale=alt.Scale(scheme="viridis")),
            )
            .properties(width=380, height=max(50, 4 * instances))
            .facet(row=alt.Row("policy:N", title=None, sort=None, header=alt.Header(labelAngle=0, labelAlign="left")))
        )
        panels.append(heat)
    return alt.hconcat(*panels).resolve_scale(color="independent")
