"""What a forecast from parts has to beat: from repeating last week to an LSTM.

Every one is a function of a series and a horizon (:data:`assay.observe.series.backtest.Forecaster`). What can be tuned
is tuned as the mechanism is: on the last stretch of the training part. Methods that cannot bear gaps get them filled
with the shape of a day on a line between the ends. STL, MSTL, Holt–Winters and AutoARIMA are statsforecast's, Prophet
is Prophet: :func:`available` says which of them this machine has.

>>> grid = Grid("demo", 0.0, 43200.0, np.array([1.0, 5.0, 2.0, 6.0, 2.0, np.nan]))
>>> seasonal_naive(grid, 4).tolist()
[2.0, 6.0, 2.0, 6.0]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.series.backtest import DAY, Forecaster, errors, season
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
WEEK = 7 * DAY
ARIMA_PAST = 90 * DAY  # AutoARIMA tries many orders: its past is bounded so that a run stays affordable


def seasonal_naive(grid: Grid, horizon: int, period: float = DAY) -> Floats:
    """The last known value of the same phase."""
    steps = season(grid, period)
    last = np.full(steps, np.nan)
    for lap in range(len(grid.values) // steps + 1):  # newest first, until every phase has a value
        end = len(grid.values) - lap * steps
        part = grid.values[max(0, end - steps) : end]
        part = np.concatenate((np.full(steps - len(part), np.nan), part))
        last = np.where(np.isnan(last), part, last)
        if not np.isnan(last).any():
            break
    last = np.where(np.isnan(last), np.nanmedian(grid.values), last)
    return np.tile(last, horizon // steps + 1)[:horizon]


def recent_median(grid: Grid, horizon: int, past: float = 1.0) -> Floats:
    """The median of the last stretch, `past` horizons long."""
    part = grid.values[-max(4, round(past * horizon)) :]
    value = np.nanmedian(part) if (~np.isnan(part)).any() else np.nanmedian(grid.values)
    return np.full(horizon, float(value))


def drift(grid: Grid, horizon: int, past: float = 2.0) -> Floats:
    """On along the line through the medians of the two halves of the last stretch, `past` horizons long.

    >>> drift(Grid("a", 0.0, 1.0, np.arange(20.0)), 3, past=4.0).tolist()
    [20.0, 21.0, 22.0]
    """
    part = grid.values[-max(8, round(past * horizon)) :]
    half = len(part) // 2
    first, last = part[:half], part[len(part) - half :]
    if not half or np.isnan(first).all() or np.isnan(last).all():
        return recent_median(grid, horizon)
    slope = float(np.nanmedian(last) - np.nanmedian(first)) / (len(part) - half)
    middle = len(part) - half / 2 - 0.5
    return np.asarray(float(np.nanmedian(last)) + slope * (len(part) + np.arange(horizon) - middle))


def classical(grid: Grid, horizon: int, period: float = DAY) -> Floats:
    """Classical additive decomposition: a moving mean over one period, phase means, the last level carried on."""
    steps = season(grid, period)
    values = filled(grid)
    window = np.ones(steps) if steps % 2 else np.concatenate(([0.5], np.ones(steps - 1), [0.5]))
    level = np.convolve(values, window / steps, mode="valid")
    lead = (len(window) - 1) // 2
    detrended = values[lead : lead + len(level)] - level
    phase = (np.arange(len(level)) + lead) % steps
    shape = np.bincount(phase, detrended, steps) / np.maximum(1, np.bincount(phase, minlength=steps))
    shape -= shape.mean()
    ahead = (len(values) + np.arange(horizon)) % steps
    return np.asarray(level[-1] + shape[ahead])


def filled(grid: Grid) -> Floats:
    """The values with gaps filled: the shape of a day on a line between the ends.

    >>> filled(Grid("a", 0.0, 43200.0, np.array([1.0, 5.0, np.nan, 5.0, 1.0, 5.0]))).tolist()
    [1.0, 5.0, 1.0, 5.0, 1.0, 5.0]
    """
    values, steps = grid.values, season(grid)
    there = ~np.isnan(values)
    if there.all():
        return values
    phase = np.arange(len(values)) % steps
    middle = float(np.nanmedian(values))
    shape = np.array([np.median(part) if len(part := values[there & (phase == p)]) else middle for p in range(steps)])
    places = np.flatnonzero(there)
    line = np.interp(np.arange(len(values)), places, (values - shape[phase])[there])
    return np.where(there, values, line + shape[phase])


def tuned(options: Sequence[Forecaster]) -> Forecaster:
    """The option that forecasts the last stretch of the training part best."""

    def forecaster(grid: Grid, horizon: int) -> Floats:
        origin = len(grid.values) - horizon
        if origin < 2 * horizon:
            return options[0](grid, horizon)
        train, truth = grid.until(origin), grid.values[origin:]
        scores = [errors(train, truth, option(train, horizon))["mase"] for option in options]
        return options[int(np.nanargmin(scores)) if not np.isnan(scores).all() else 0](grid, horizon)

    return forecaster


# ------------------------------------------------------------------------------------------ other people's


def _statsforecast(build: Callable[[Any, int, int], Any], past: float | None = None) -> Forecaster:
    """A forecaster of statsforecast's models; `build` is given the module, a day and a week in steps."""

    def forecaster(grid: Grid, horizon: int) -> Floats:
        from statsforecast import models

        values = filled(grid)
        if past is not None:
            values = values[-round(past / grid.step) :]
        model = build(models, season(grid), season(grid, WEEK))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(model.forecast(y=np.ascontiguousarray(values), h=horizon)["mean"], dtype=float)

    return forecaster


def prophet(grid: Grid, horizon: int) -> Floats:
    """Prophet as it comes: piecewise trend, daily and weekly seasons, and a yearly one where it sees two years."""
    import logging

    import pandas  # type: ignore[import-untyped]
    from prophet import Prophet

    logging.getLogger("cmdstanpy").setLevel(logging.WARNING)
    known = ~np.isnan(grid.values)
    table = pandas.DataFrame({"ds": pandas.to_datetime(grid.times[known], unit="s"), "y": grid.values[known]})
    model = Prophet(uncertainty_samples=0)
    model.fit(table)
    ahead = grid.start + grid.step * (len(grid.values) + np.arange(horizon))
    made = model.predict(pandas.DataFrame({"ds": pandas.to_datetime(ahead, unit="s")}))
    return np.asarray(made["yhat"], dtype=float)


def _stl(models: Any, day: int, week: int) -> Any:
    return models.MSTL(season_length=day, trend_forecaster=models.AutoETS(model="ZZN"))


def _stl_weekly(models: Any, day: int, week: int) -> Any:
    return models.MSTL(season_length=week, trend_forecaster=models.AutoETS(model="ZZN"))


def _mstl(models: Any, day: int, week: int) -> Any:
    return models.MSTL(season_length=[day, week], trend_forecaster=models.AutoETS(model="ZZN"))


SIMPLE: dict[str, Forecaster] = {
    "seasonal-naive": tuned([lambda g, h: seasonal_naive(g, h, DAY), lambda g, h: seasonal_naive(g, h, WEEK)]),
    "recent-median": tuned([lambda g, h, p=p: recent_median(g, h, p) for p in (0.25, 0.5, 1.0, 2.0)]),  # type: ignore[misc]
    "classical": tuned([lambda g, h: classical(g, h, DAY), lambda g, h: classical(g, h, WEEK)]),
}
STATSFORECAST: dict[str, Forecaster] = {
    "stl": tuned([_statsforecast(_stl), _statsforecast(_stl_weekly)]),
    "mstl": _statsforecast(_mstl),
    "holt-winters": _statsforecast(lambda m, day, week: m.HoltWinters(season_length=day)),
    "auto-arima": _statsforecast(lambda m, day, week: m.AutoARIMA(season_length=day), ARIMA_PAST),
}


def available() -> dict[str, Forecaster]:
    """The baselines that can run here, by name."""
    made = dict(SIMPLE)
    if find_spec("statsforecast") is not None:
        made |= STATSFORECAST
    if find_spec("prophet") is not None:
        made["prophet"] = prophet
    return made
