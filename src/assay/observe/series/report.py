"""What `assay decompose` tells of one series: its parts, its forecast, how good that was before, and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.observe.series import backtest, baselines, decompose, forecast, guides
from assay.observe.series.decompose import Decomposition
from assay.observe.series.forecast import Forecast
from assay.record import intervals
from assay.record.types import Estimate
from assay.workloads.long_series import Grid

if TYPE_CHECKING:
    import altair as alt

FOLDS = 5
WORDS = {
    "seasonal naive": "repeating the last season", "recent median": "the median of the last stretch",
    "drift": "the line of the last stretch carried on",
}  # fmt: skip
DRAWN = 1500  # points of a line; a picture shows no more


@dataclass(frozen=True)
class Scored:
    """A forecaster's errors on the stretches held out."""

    mape: Estimate
    mase: Estimate


@dataclass(frozen=True)
class Backtest:
    """Errors on stretches held out one after another, ours beside those of simple forecasts."""

    ours: Scored
    simple: dict[str, Scored]
    best: str  # of the simple ones: that with the least mean scaled error on the same stretches
    ratio: Estimate  # of the mean scaled errors, ours to the best simple one's; below 1 is better

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.ratio.high < 1.0:
            return (
                f"It errs {1 - self.ratio.value:.0%} less than {WORDS[self.best]}, the best of the simple forecasts "
                "on the same held-out stretches."
            )
        if self.ratio.low > 1.0:
            return f"Do not use it: it errs {self.ratio.value - 1:.0%} more than {WORDS[self.best]}."
        return (
            f"No better than {WORDS[self.best]}, as far as its past can tell: of this series' parts nothing helps to "
            "forecast it."
        )


@dataclass(frozen=True)
class Report:
    """A series taken apart, perhaps with a forecast and its backtest (None: it could not be made)."""

    made: Decomposition
    ahead: Forecast | None = None
    tested: Backtest | None = None

    @property
    def untested(self) -> str:
        """Why there is no backtest of the forecast, in words; nothing where there is one."""
        if self.ahead is None or self.tested is not None:
            return ""
        if not backtest.origins(self.made.grid, len(self.ahead.median), FOLDS):
            return "The series is too short to hold out a stretch this long: nobody knows how good this forecast is."
        return "No stretch held out could be scored: the series does not change, or few of its samples are neighbours."


def report(grid: Grid, guide: guides.Guide | None, horizon: float | None, tick: Callable[[], None]) -> Report:
    """Take a series apart, by a guide or without, and forecast so many seconds; `tick` is called as work is done."""
    made = decompose.automatic(grid) if guide is None else guides.guided(grid, guide)
    tick()
    if horizon is None:
        return Report(made)
    steps = max(1, round(horizon / grid.step))
    ahead = forecast.forecast(made, steps, choose_cycles=guide is None)
    tick()
    return Report(made, ahead, _backtest(grid, guide, steps, [c.period * grid.step for c in made.cycles], tick))


def _simple(grid: Grid, periods: list[float]) -> dict[str, backtest.Forecaster]:
    """What a forecast must beat to be worth anything; each is tuned on the last stretch before the origin.

    Repeating a season copies its noise too: on noise alone a median errs some 30 % less. So all of them are asked.
    """
    lengths = {backtest.DAY, 7 * backtest.DAY, *periods}
    fits = [length for length in lengths if 2 <= length / grid.step <= len(grid.values) / 3] or [grid.step]
    return {
        "seasonal naive": baselines.tuned(
            [lambda g, h, p=p: baselines.seasonal_naive(g, h, p) for p in sorted(fits)]  # type: ignore[misc]
        ),
        "recent median": baselines.SIMPLE["recent-median"],
        "drift": baselines.tuned(
            [lambda g, h, p=p: baselines.drift(g, h, p) for p in (1.0, 2.0, 4.0)]  # type: ignore[misc]
        ),
    }


def _backtest(
    grid: Grid, guide: guides.Guide | None, horizon: int, periods: list[float], tick: Callable[[], None]
) -> Backtest | None:
    """From origins a horizon apart, beside the simple forecasts from the same origins."""

    def ours(train: Grid, steps: int) -> Any:
        made = decompose.automatic(train) if guide is None else guides.guided(train, guide)
        tick()
        return forecast.forecast(made, steps, choose_cycles=guide is None).median

    simple = _simple(grid, periods)
    rows = pl.DataFrame(backtest.rolling(grid, horizon, FOLDS, {"ours": ours} | simple))
    if rows.is_empty():
        return None
    scored = rows.with_columns(bad=pl.any_horizontal(pl.col("mape", "mase").is_nan()).any().over("origin"))
    whole = scored.filter(~pl.col("bad"))
    if whole.is_empty():
        return None
    mase = {name: whole.filter(pl.col("method") == name)["mase"].to_list() for name in ("ours", *simple)}
    made = {
        name: Scored(intervals.bootstrap(whole.filter(pl.col("method") == name)["mape"].to_list()),
                     intervals.bootstrap(values))
        for name, values in mase.items()
    }  # fmt: skip
    best = min(simple, key=lambda name: sum(mase[name]))
    return Backtest(made.pop("ours"), made, best, intervals.ratio(mase["ours"], mase[best]))


# ------------------------------------------------------------------------------------------- for machines


def as_json(told: Report) -> dict[str, Any]:
    """Everything, in the units of the series; times are seconds since 1970, gaps are null."""
    made, grid = told.made, told.made.grid
    return {
        "series": grid.name,
        "start": grid.start,
        "step": grid.step,
        "samples": int((~np.isnan(grid.values)).sum()),
        "gaps": int(np.isnan(grid.values).sum()),
        "scale": "multiply" if made.multiplicative else "add",
        "cycles": [
            {
                "name": name,
                "period": cycle.period * grid.step,
                "strength": cycle.strength,
                "active": [[instant(grid, p.start), instant(grid, p.stop)] for p in cycle.pieces],
            }
            for name, cycle in zip(made.names, made.cycles, strict=True)
        ],
        "shifts": [instant(grid, shift) for shift in made.shifts],
        "values": _plain(grid.values),
        "parts": {name: _plain(values) for name, values in made.parts().items()},
        "forecast": None if told.ahead is None else _forecast_json(told.ahead),
        "backtest": None if told.tested is None else _backtest_json(told.tested),
    }


def _forecast_json(ahead: Forecast) -> dict[str, Any]:
    return {
        "times": _plain(ahead.times),
        "quantiles": {f"{q:g}": _plain(values) for q, values in ahead.quantiles.items()},
        "cycles": [cycle.period * ahead.grid.step for cycle in ahead.choice.cycles],
    }


def _backtest_json(tested: Backtest) -> dict[str, Any]:
    return {
        "mape": tested.ours.mape, "mase": tested.ours.mase,
        "simple": {name: {"mape": one.mape, "mase": one.mase} for name, one in tested.simple.items()},
        "best_simple": tested.best, "ratio": tested.ratio, "folds": tested.ratio.n, "sentence": tested.sentence,
    }  # fmt: skip


def _plain(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in np.asarray(values, dtype=float).tolist()]


def instant(grid: Grid, step: int) -> float:
    """When a step begins, in seconds since 1970."""
    return grid.start + grid.step * step


def day(seconds: float) -> str:
    """A time for people, to the minute.

    >>> day(0.0), day(90_000.0)
    ('1970-01-01', '1970-01-02 01:00')
    """
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%d" if seconds % 86400 == 0 else "%Y-%m-%d %H:%M")


# --------------------------------------------------------------------------------------------- a picture


def picture(told: Report) -> alt.VConcatChart:
    """The series with its trend and the forecast's fan; below it each cycle where it runs; and the rest."""
    import altair as alt

    parts = told.made.parts()
    names = [name for name in parts if name not in ("trend", "rest", "spikes")]
    rows: list[Any] = [_overview(told)]
    rows += [_strip(told, parts[name], name, "#0072B2") for name in names]
    rows.append(_strip(told, parts["rest"] + parts["spikes"], "rest and spikes", "#7F7F7F"))
    title = alt.Title(
        f"{told.made.grid.name}: trend, {len(names) or 'no'} cycle{'' if len(names) == 1 else 's'}, and the rest",
        subtitle=told.tested.sentence if told.tested else "",
    )
    chart: alt.VConcatChart = alt.vconcat(*rows, spacing=8).resolve_scale(x="shared").properties(title=title)
    return chart


def _thinned(times: Any, values: Any, kind: str = "mean") -> pl.DataFrame:
    """At most DRAWN points: means of neighbours, which is what an eye sees of them."""
    table = pl.DataFrame(
        {"time": (np.asarray(times) * 1000).astype(np.int64), "value": np.asarray(values, dtype=float)}
    )
    width = max(1, math.ceil(len(table) / DRAWN))
    grouped = table.with_row_index("i").group_by(pl.col("i") // width, maintain_order=True)
    value = pl.col("value").fill_nan(None).mean()
    return grouped.agg(pl.col("time").first(), value).select(pl.col("time").cast(pl.Datetime("ms")), "value")


def _overview(told: Report) -> alt.LayerChart:
    import altair as alt

    grid = told.made.grid
    x = alt.X("time:T", title=None, axis=alt.Axis(labels=True))
    y = alt.Y("value:Q", title="value", scale=alt.Scale(zero=False))
    layers = [
        alt.Chart(_thinned(grid.times, grid.values))
        .mark_line(strokeWidth=0.7, opacity=0.45, color="#56B4E9")
        .encode(x, y),
        alt.Chart(_thinned(grid.times, told.made.parts()["trend"]))
        .mark_line(strokeWidth=2, color="#D55E00")
        .encode(x, y),
    ]
    if told.made.shifts:
        places = pl.DataFrame({"time": [int(instant(grid, s) * 1000) for s in told.made.shifts]})
        marks = alt.Chart(places.with_columns(pl.col("time").cast(pl.Datetime("ms"))))
        layers.append(marks.mark_rule(strokeDash=[3, 3], opacity=0.6).encode(x))
    if told.ahead is not None:
        for low, high, opacity in ((0.05, 0.95, 0.18), (0.25, 0.75, 0.35)):
            fan = _thinned(told.ahead.times, told.ahead.quantiles[low]).with_columns(
                high=_thinned(told.ahead.times, told.ahead.quantiles[high])["value"]
            )
            layers.append(alt.Chart(fan).mark_area(opacity=opacity, color="#009E73").encode(x, y, y2="high:Q"))
        middle = alt.Chart(_thinned(told.ahead.times, told.ahead.median))
        layers.append(middle.mark_line(strokeWidth=1.5, color="#009E73").encode(x, y))
    chart: alt.LayerChart = alt.LayerChart(layer=layers).properties(width=760, height=220)
    return chart


def _strip(told: Report, values: Any, name: str, colour: str) -> alt.Chart:
    import altair as alt

    shown = np.where(np.asarray(values) == 0.0, np.nan, values)  # a cycle that does not run draws nothing
    line = alt.Chart(_thinned(told.made.grid.times, shown)).mark_line(strokeWidth=0.8, color=colour)
    chart: alt.Chart = line.encode(
        x=alt.X("time:T", title=None, axis=alt.Axis(labels=name.startswith("rest"))),
        y=alt.Y("value:Q", title=name, axis=alt.Axis(tickCount=3)),
    ).properties(width=760, height=70)
    return chart
