"""How good a forecast is: errors on months that were held out, from a rolling origin, beside the seasonal naive one.

A forecaster is a function of a series (up to the origin) and a horizon in steps; it gives that many values. MAPE is the
mean of |error|/|truth|. MASE is the mean |error| over the mean |step of a day| inside the training part: 1 is what
repeating yesterday costs there one day ahead. Steps without a truth are not counted.

- Hyndman, Koehler, "Another look at measures of forecast accuracy", 2006 (MASE).
- Tashman, "Out-of-sample tests of forecasting accuracy", 2000 (rolling origins).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
Forecaster = Callable[[Grid, int], Floats]
DAY = 86400.0


def origins(grid: Grid, horizon: int, folds: int) -> list[int]:
    """The last so many origins, a horizon apart, the earliest first; those with a training part of two horizons.

    >>> origins(Grid("a", 0.0, 1.0, np.zeros(100)), horizon=20, folds=9)
    [40, 60, 80]
    """
    n = len(grid.values)
    return [n - horizon * k for k in range(folds, 0, -1) if n - horizon * k >= 2 * horizon]


def season(grid: Grid, length: float | None = None) -> int:
    """A day in steps, or as near as the series comes to it: what naive forecasts repeat unless told otherwise."""
    steps = round((DAY if length is None else length) / grid.step)
    return steps if 2 <= steps <= len(grid.values) // 2 else 1


def errors(train: Grid, truth: Floats, predicted: Floats) -> dict[str, float]:
    """MAPE and MASE of a forecast; NaN where nothing can be told.

    >>> grid = Grid("a", 0.0, 43200.0, np.array([1.0, 2.0, 2.0, 3.0, 3.0, 4.0]))
    >>> errors(grid, np.array([4.0, 5.0]), np.array([5.0, 5.0]))
    {'mape': 0.125, 'mase': 0.5}
    """
    off = np.abs(predicted - truth)
    known = ~np.isnan(off)
    if not known.any():
        return {"mape": math.nan, "mase": math.nan}
    size = np.abs(truth)
    safe = known & (size > 0)
    lag = season(train)
    steps = np.abs(train.values[lag:] - train.values[:-lag])
    scale = float(np.nanmean(steps)) if (~np.isnan(steps)).any() else math.nan
    return {
        "mape": float((off[safe] / size[safe]).mean()) if safe.any() else math.nan,
        "mase": float(off[known].mean()) / scale if scale > 0 else math.nan,
    }


def rolling(
    grid: Grid, horizon: int, folds: int, forecasters: Mapping[str, Forecaster]
) -> list[dict[str, float | str | int]]:
    """A row for each origin and forecaster: name, origin, MAPE, MASE. Nobody sees a value behind the origin."""
    made: list[dict[str, float | str | int]] = []
    for origin in origins(grid, horizon, folds):
        train, truth = grid.until(origin), grid.values[origin : origin + horizon]
        for name, forecaster in forecasters.items():
            made.append({"method": name, "origin": origin, **errors(train, truth, forecaster(train, horizon))})
    return made
