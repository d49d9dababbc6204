"""The trials of `perf-decomp`: held-out months, planted cycles, a function that is scaled ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import backtest, baselines, decompose, forecast, guides, prescaling, seasons
from assay.record.traces import find
from assay.sim.random import stream
from assay.workloads import long_series, planted_cycles
from assay.workloads.long_series import Grid

FOLDER = "azure_vm_noise"
BENCHMARKS = ("mlc_allreads", "pg_ro", "redis_get", "stressng_cpucache", "sysbench_cpu")
MACHINES = ("0", "1", "2")
MONTH, PAST = 30 * 86400.0, 240 * 86400.0  # what is forecast, and the least that is known before it
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


def drawn_month(seed: int, month: int, benchmark: str, step: float) -> tuple[str, Grid, NDArray[np.float64]]:
    """A machine, its record up to some day, and the month behind that day: drawn, and alike for all benchmarks."""
    random = stream(seed, "perf-decomp", "month", month)
    machine, where = MACHINES[int(random.integers(len(MACHINES)))], float(random.random())
    grid = machine_series(benchmark, machine, step)
    horizon, least = round(MONTH / step), round(PAST / step)
    origin = least + int(where * (len(grid.values) - horizon - least + 1))
    return machine, grid.until(origin), grid.values[origin : origin + horizon]


def held_out(
    benchmark: str, month: int, step: float, methods: Sequence[str], seed: int
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Forecast a drawn month of a drawn machine; nobody sees it or anything behind it."""
    machine, train, truth = drawn_month(seed, month, benchmark, step)
    horizon = len(truth)
    made = decompose.automatic(train)
    ahead = forecast.forecast(made, horizon)
    known = ~np.isnan(truth)
    within = (truth >= ahead.quantiles[0.05]) & (truth <= ahead.quantiles[0.95])
    rows: dict[str, dict[str, Any]] = {
        "automatic": {
            **backtest.errors(train, truth, ahead.median), "covered": float(within[known].mean()),
            "cycles": len(made.cycles), "shifts": len(made.shifts),
        },
        "hybrid": backtest.errors(train, truth, guided_forecast(train, horizon)),
    }  # fmt: skip
    rows |= _of_baselines(train, truth, methods)
    return {method: {"machine": machine, "known_days": train.length / 86400, **row} for method, row in rows.items()}


def _of_baselines(train: Grid, truth: NDArray[np.float64], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    made = {name: forecaster for name, forecaster in baselines.available().items() if name in methods}
    return {name: backtest.errors(train, truth, ahead(train, len(truth))) for name, ahead in made.items()}


def deep(month: int, step: float, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """The same month by one LSTM over all benchmarks of the machine."""
    from assay.observe.series import lstm

    months = [drawn_month(seed, month, benchmark, step) for benchmark in BENCHMARKS]
    made = lstm.forecast_all([train for _, train, _ in months], len(months[0][2]), rounds=rounds, seed=seed)
    return {
        benchmark: {"machine": machine, "known_days": train.length / 86400, **backtest.errors(train, truth, ahead)}
        for benchmark, (machine, train, truth), ahead in zip(BENCHMARKS, months, made, strict=True)
    }


def planted(days: int, step: float, methods: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """A record whose parts are known: which planted periods are found, and its last month, forecast."""
    trace = planted_cycles.plant(seed, days, step)
    origin = len(trace.grid.values) - round(MONTH / step)
    train, truth = trace.grid.until(origin), trace.grid.values[origin:]
    made = decompose.automatic(train)
    told = guides.Guide(tuple(_told(cycle, trace.grid, train) for cycle in trace.cycles), multiplicative=True)
    return {
        "automatic": {
            **backtest.errors(train, truth, forecast.forecast(made, len(truth)).median),
            **_hits(trace, [cycle.period * step for cycle in made.cycles]),
        },
        "hybrid": backtest.errors(train, truth, guided_forecast(train, len(truth), told)),
        "spectrum": _hits(trace, plain_peaks(train, len(trace.cycles))),
        **_of_baselines(train, truth, methods),
    }


def plain_peaks(grid: Grid, count: int) -> list[float]:
    """The periods of the highest peaks of one spectrum of the whole record; it is told how many there are."""
    values = seasons.clipped(np.log(grid.values))
    return [peak.period * grid.step for peak in seasons.peaks(values, (0, len(values)), 1, count)]


def _hits(trace: planted_cycles.Trace, found: Sequence[float]) -> dict[str, float]:
    """How many of the planted periods are among those found, to within 2 %, and how many of those found are none."""
    near = [[abs(period / cycle.period - 1) <= 0.02 for period in found] for cycle in trace.cycles]
    hits = sum(map(any, near))
    return {
        "cycles": len(found), "planted": len(near), "recovered": hits, "invented": len(found) - hits,
        "f1": 2 * hits / (len(near) + len(found)),
    }  # fmt: skip


def _told(cycle: planted_cycles.Planted, grid: Grid, train: Grid) -> guides.StatedCycle:
    """What an analyst who looks closely would say of a cycle, up to the end of what is known."""
    end = train.start + train.length
    spans = tuple((grid.start + a, min(grid.start + b, end)) for a, b in cycle.active if grid.start + a < end)
    always = cycle.name != "passing"
    return guides.StatedCycle(cycle.period, () if always else spans, "free")


def scaled(cycle: float, learn: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """A real function beside other work that comes and goes, with three ways of setting its workers."""
    rows = prescaling.compare(cycle, learn, rounds, seed)
    return {f"{row['method']}/{row['turn']}": dict(row) for row in rows}
