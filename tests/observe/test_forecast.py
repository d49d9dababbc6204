"""Forecasts from parts, their baselines, and how they are judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.observe.series import backtest, baselines, decompose, forecast, guides, report
from assay.observe.series.errors import autoregression
from assay.observe.series.prescaling import (
    MEAN_WORKERS,
    MOST_WORKERS,
    PHASES,
    Function,
    _measured,
    affordable,
    compare,
    reactive,
    schedule,
)
from assay.observe.series.trials import planted
from assay.workloads.long_series import Grid


def grid(values: np.ndarray) -> Grid:
    return Grid("test", 0.0, 3600.0, np.asarray(values, dtype=float))


def daily(days: int, seed: int = 0, noise: float = 0.5) -> np.ndarray:
    t = np.arange(24 * days)
    return 20 + 4 * np.sin(2 * np.pi * t / 24) + np.random.default_rng(seed).normal(0, noise, len(t))


def test_a_daily_cycle_is_carried_on_within_its_quantiles() -> None:
    values = daily(60)
    ahead = forecast.forecast(decompose.automatic(grid(values[: 24 * 50])), 240)
    truth = values[24 * 50 :]
    assert np.abs(ahead.median - truth).mean() < 0.6
    within = (truth >= ahead.quantiles[0.05]) & (truth <= ahead.quantiles[0.95])
    assert 0.8 <= within.mean() <= 1.0
    rows = np.stack(list(ahead.quantiles.values()))
    assert (np.diff(rows, axis=0) >= 0).all()


def test_a_trend_of_two_years_goes_on_for_two_months() -> None:
    t = np.arange(790.0)
    values = 10 + 0.5 * t + 3 * np.sin(2 * np.pi * t / 7) + np.random.default_rng(0).normal(0, 1, len(t))
    ahead = forecast.forecast(decompose.automatic(Grid("test", 0.0, 86400.0, values[:730])), 60)
    assert np.abs(ahead.median - values[730:]).mean() < 3  # of the 30 it rises by


@pytest.mark.parametrize(("values", "says"), [(np.full(500, 2.0), "does not change"), (daily(4), "too short")])
def test_why_a_forecast_was_not_tested_is_said_as_it_is(values: np.ndarray, says: str) -> None:
    told = report.report(grid(values), None, 40 * 3600.0, lambda: None)
    assert told.tested is None and says in told.untested


def test_a_cycle_that_stopped_long_ago_is_not_carried_on() -> None:
    t = np.arange(24 * 60)
    values = 20 + 4 * np.sin(2 * np.pi * t / 24) * (t < 24 * 30) + np.random.default_rng(0).normal(0, 0.3, len(t))
    ahead = forecast.forecast(decompose.automatic(grid(values)), 72)
    assert ahead.choice.cycles == ()
    assert ahead.median.std() < 0.5


def test_a_forecast_does_not_depend_on_what_comes_later() -> None:
    values = daily(50)
    other = values.copy()
    other[24 * 40 :] = 1e3
    first, second = (
        backtest.rolling(grid(v), 240, 1, {"ours": lambda g, h: forecast.forecast(decompose.automatic(g), h).median})
        for v in (values, other)
    )
    assert first[0]["origin"] == second[0]["origin"] == 24 * 40
    one, two = (forecast.forecast(decompose.automatic(grid(v).until(24 * 40)), 240).median for v in (values, other))
    np.testing.assert_array_equal(one, two)


def test_the_automatic_forecast_is_at_most_three_tenths_worse_than_a_knowing_analyst() -> None:
    rows = [planted(420, 7200.0, [], seed) for seed in range(2)]
    automatic, hybrid = (np.mean([row[name]["mape"] for row in rows]) for name in ("automatic", "hybrid"))
    assert automatic <= 1.3 * hybrid


def test_a_gap_at_the_end_is_no_trouble() -> None:
    values = daily(40)
    values[-60:] = np.nan
    ahead = forecast.forecast(guides.guided(grid(values), guides.Guide.of("1d")), 48, choose_cycles=False)
    assert np.isfinite(ahead.median).all()
    assert abs(ahead.median.mean() - 20) < 1.0


def test_the_remembered_errors_have_the_order_they_were_made_with() -> None:
    random = np.random.default_rng(0)
    values = np.zeros(4000)
    for i in range(1, 4000):
        values[i] = 0.6 * values[i - 1] + random.normal()
    order, coefficients, _ = autoregression(values)
    assert order >= 1
    assert coefficients[0] == pytest.approx(0.6, abs=0.06)


def test_scaled_errors_are_those_of_the_definition() -> None:
    train = Grid("a", 0.0, 43200.0, np.array([1.0, 2.0, 3.0, 5.0]))
    assert backtest.errors(train, np.array([4.0, np.nan]), np.array([5.0, 9.0])) == {"mape": 0.25, "mase": 1 / 2.5}


@pytest.mark.parametrize("name", sorted(baselines.SIMPLE))
def test_simple_baselines_bear_gaps_and_give_the_horizon(name: str) -> None:
    values = daily(30)
    values[100:130] = np.nan
    made = baselines.SIMPLE[name](grid(values), 100)
    assert made.shape == (100,)
    assert np.isfinite(made).all()


@pytest.mark.parametrize("name", ["mstl", "holt-winters"])
def test_statsforecast_carries_a_daily_cycle_on(name: str) -> None:
    pytest.importorskip("statsforecast")
    made = baselines.STATSFORECAST[name](grid(daily(30)), 48)
    truth = 20 + 4 * np.sin(2 * np.pi * np.arange(720, 768) / 24)
    assert np.abs(made - truth).mean() < 1.0


def test_the_deep_baseline_learns_a_daily_cycle_or_at_least_its_level() -> None:
    pytest.importorskip("torch")
    from assay.observe.series import lstm

    made = lstm.forecast_all([grid(daily(120)), grid(daily(120, seed=1))], 240, rounds=10)
    assert [len(part) for part in made] == [240, 240]
    assert all(abs(part.mean() - 20) < 2 for part in made)


def test_workers_go_where_the_latency_is_expected_and_cost_no_more() -> None:
    plan = schedule(np.array([1.0, 1.0, 9.0, 1.0]), mean=2, most=5)
    assert sum(plan) == 8
    assert plan[2] == 5
    assert min(plan) >= 1


def spent(wishes: list[int], budget: int) -> list[int]:
    used: list[int] = []
    for phase, wanted in enumerate(wishes):
        used.append(affordable(wanted, budget - sum(used), len(wishes) - phase))
    return used


@given(st.lists(st.integers(-5, 20), min_size=1, max_size=24), st.data())
def test_whatever_is_wished_for_the_whole_budget_is_spent_and_no_more(wishes: list[int], data: st.DataObject) -> None:
    budget = data.draw(st.integers(len(wishes), MOST_WORKERS * len(wishes)))
    used = spent(wishes, budget)
    assert sum(used) == budget
    assert all(1 <= workers <= MOST_WORKERS for workers in used)


@given(st.lists(st.floats(0.01, 100.0), min_size=PHASES, max_size=PHASES))
def test_a_forecasts_schedule_is_within_the_budget_as_it_is(predicted: list[float]) -> None:
    plan = schedule(np.array(predicted))
    assert spent(plan, MEAN_WORKERS * PHASES) == plan


def test_what_reacts_asks_for_more_where_it_is_slow_and_less_when_little_is_left() -> None:
    assert reactive(2.0, 24, 12) > reactive(1.0, 24, 12) > reactive(0.3, 24, 12)
    assert reactive(2.0, 24, 12) > reactive(2.0, 12, 12)


def test_the_worst_latency_of_a_cycle_is_that_of_its_slowest_call() -> None:
    answered = [(i / 200, 0.002) for i in range(199)] + [(0.995, 0.5), (1.2, 9.0)]  # the last is the next cycle's
    row = _measured(0.0, answered, cycle=1.0)
    assert row["latency_max"] == 0.5 and row["requests"] == 200


def test_latency_varies_over_phases_not_over_calls_and_a_phase_without_a_call_counts_for_nothing() -> None:
    even = [(k / PHASES + i / 100, 0.002 + 0.001 * i) for k in range(PHASES) for i in range(3) if k != 4]
    assert _measured(0.0, even, cycle=1.0)["latency_cv"] == pytest.approx(0.0)
    peak = [(when, 2 * took if when < 0.5 else took) for when, took in even]
    assert _measured(0.0, peak, cycle=1.0)["latency_cv"] > 0.3


def test_a_call_uses_the_workers_it_is_given() -> None:
    """The whole amount is hashed, in as many pieces as there are workers."""
    hashed: list[int] = []

    class Threads:
        def map(self, _: Any, pieces: list[memoryview]) -> list[None]:
            return hashed.extend(len(piece) for piece in pieces) or []

    threads: Any = Threads()
    function = Function(1200, threads)
    for workers in (1, 2, 6):
        function.call(workers)
    assert hashed == [1200, 600, 600, *[200] * 6] and len(function.done) == 3


def test_every_way_of_scaling_uses_as_many_workers_on_average() -> None:
    rows = compare(cycle=0.24, learn=3, rounds=2, seed=0)
    assert {row["method"] for row in rows} == {"fixed", "reactive", "pre-scaled"}
    assert {row["workers"] for row in rows} == {float(MEAN_WORKERS)}


def test_what_was_never_negative_is_not_forecast_to_be() -> None:
    random = np.random.default_rng(4)
    counts = random.poisson(0.4, 400) * (random.random(400) < 0.5) * 5.0
    ahead, below = (
        forecast.forecast(decompose.automatic(grid(values), multiplicative=False), 48).quantiles
        for values in (counts, counts - 1.0)
    )
    assert min(float(row.min()) for row in ahead.values()) == 0.0
    assert min(float(row.min()) for row in below.values()) < -1.0
