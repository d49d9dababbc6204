"""The trials of `perf-decomp`: held-out months, planted cycles, a function that is scaled ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import backtest, baselines, decompose, forecast, guides, prescaling
from assay.record.traces import find
from assay.workloads import long_series, planted_cycles
from assay.workloads.long_series import Grid

FOLDER = "azure_vm_noise"
BENCHMARKS = ("mlc_allreads", "pg_ro", "redis_get", "stressng_cpucache", "sysbench_cpu")
MONTH = 30 * 86400.0
ANALYST = guides.Guide(  # said from the calendar alone, before any value was looked at
    (guides.StatedCycle(86400.0, shape="smooth"), guides.StatedCycle(7 * 86400.0, shape="smooth"))
)


def automatic_forecast(grid: Grid, horizon: int) -> NDArray[np.float64]:
    """The fully automatic method, as a forecaster."""
    return forecast.forecast(decompose.automatic(grid), horizon).median


def guided_forecast(grid: Grid, horizon: int, guide: guides.Guide = ANALYST) -> NDArray[np.float64]:
    """The analyst-guided method, as a forecaster: what the analyst states is carried on."""
    return forecast.forecast(guides.guided(grid, guide), horizon, choose_cycles=False).median


def machine_series(benchmark: str, machine: str, step: float) -> Grid:
    """One benchmark on one machine of the public record, on an even grid."""
    file = find(f"{FOLDER}/{benchmark}_westus2_d8sv5.csv")
    series = {part.name: part for part in long_series.split(long_series.read(file))}
    return long_series.regular(series[machine], step)


def held_out(benchmark: str, machine: str, step: float, methods: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """Forecast the month that ends `seed` months before the last value; nobody sees it or anything behind it."""
    grid = machine_series(benchmark, machine, step)
    horizon = round(MONTH / step)
    origin = len(grid.values) - horizon * (seed + 1)
    train, truth = grid.until(origin), grid.values[origin : origin + horizon]
    made = decompose.automatic(train)
    ahead = forecast.forecast(made, horizon)
    known = ~np.isnan(truth)
    within = (truth >= ahead.quantiles[0.05]) & (truth <= ahead.quantiles[0.95])
    rows: dict[str, dict[str, Any]] = {
        "automatic": {
            **backtest.errors(train, truth, ahead.median), "covered": float(within[known].mean()),
            "cycles": len(made.cycles), "shifts": len(made.shifts), "sums": _sums(made),
        },
        "hybrid": backtest.errors(train, truth, guided_forecast(train, horizon)),
    }  # fmt: skip
    for name, forecaster in baselines.available().items():
        if name in methods:
            rows[name] = backtest.errors(train, truth, forecaster(train, horizon))
    return rows


def deep(machine: str, step: float, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """The same month by one LSTM over all benchmarks of the machine."""
    from assay.observe.series import lstm

    horizon = round(MONTH / step)
    grids = [machine_series(benchmark, machine, step) for benchmark in BENCHMARKS]
    trains = [grid.until(len(grid.values) - horizon * (seed + 1)) for grid in grids]
    made = lstm.forecast_all(trains, horizon, rounds=rounds, seed=seed)
    return {
        benchmark: backtest.errors(train, grid.values[len(train.values) : len(train.values) + horizon], ahead)
        for benchmark, grid, train, ahead in zip(BENCHMARKS, grids, trains, made, strict=True)
    }


def planted(variant: int, days: int, step: float, methods: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """Which planted periods are found, and the last month forecast, in a record whose parts are known."""
    trace = planted_cycles.plant(1000 * variant + seed, days, step)
    grid = trace.grid
    horizon = round(MONTH / step)
    train, truth = grid.until(len(grid.values) - horizon), grid.values[-horizon:]
    made = decompose.automatic(train)
    found = [cycle.period * step for cycle in made.cycles]
    hits = [any(abs(period / cycle.period - 1) <= 0.02 for period in found) for cycle in trace.cycles]
    passing = [hit for hit, cycle in zip(hits, trace.cycles, strict=True) if cycle.name == "passing"]
    told = guides.Guide(tuple(_told(cycle, grid, train) for cycle in trace.cycles), multiplicative=True)
    rows: dict[str, dict[str, Any]] = {
        "automatic": {
            **backtest.errors(train, truth, forecast.forecast(made, horizon).median),
            "cycles": len(found), "planted": len(hits), "recovered": sum(hits), "invented": len(found) - sum(hits),
            "passing": len(passing), "passing_recovered": sum(passing), "sums": _sums(made),
        },
        "hybrid": backtest.errors(train, truth, guided_forecast(train, horizon, told)),
    }  # fmt: skip
    for name, forecaster in baselines.available().items():
        if name in methods:
            rows[name] = backtest.errors(train, truth, forecaster(train, horizon))
    return rows


def _told(cycle: planted_cycles.Planted, grid: Grid, train: Grid) -> guides.StatedCycle:
    """What an analyst who looks closely would say of a cycle, up to the end of what is known."""
    end = train.start + train.length
    spans = tuple((grid.start + a, min(grid.start + b, end)) for a, b in cycle.active if grid.start + a < end)
    always = cycle.name != "passing"
    return guides.StatedCycle(cycle.period, () if always else spans, "free")


def _sums(made: decompose.Decomposition) -> bool:
    """Whether the parts add up to the series wherever it is there: to the last bits of a sum of so many parts."""
    total = np.sum(list(made.parts().values()), axis=0)
    there = ~np.isnan(made.grid.values)
    return bool(np.allclose(total[there], made.grid.values[there], rtol=1e-12, atol=0.0))


def scaled(cycle: float, learn: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """A real function under a load that comes and goes, with three ways of setting its workers."""
    rows = prescaling.compare(cycle, learn, rounds, seed)
    return {f"{row['method']}/{row['cycle']}": dict(row) for row in rows}
