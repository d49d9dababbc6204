"""Intervals cover what they promise, and measures read them off a table."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.record import intervals, measures
from assay.record.types import NotMeasured

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=2, max_size=12))
@settings(max_examples=40, deadline=None)
def test_bootstrap_interval_holds_its_value_and_is_the_same_each_time(values: list[float]) -> None:
    first = intervals.bootstrap(values)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert first.low - slack <= first.value <= first.high + slack
    assert min(values) - slack <= first.low
    assert first.high <= max(values) + slack
    assert first == intervals.bootstrap(values)


@pytest.mark.parametrize(("n", "least"), [(5, 0.89), (10, 0.91), (20, 0.92)])
def test_bootstrap_covers_the_truth_about_as_often_as_it_says(n: int, least: float) -> None:
    # The plain percentiles of five values covered the truth in 82 % of such draws.
    draws = np.random.default_rng(0).normal(3.0, 1.0, size=(300, n))
    covered = sum(e.low <= 3.0 <= e.high for e in map(intervals.bootstrap, draws))
    assert least <= covered / 300 <= 0.99


def test_one_observation_tells_no_spread() -> None:
    alone = intervals.bootstrap([5.0])
    assert (alone.low, alone.high) == (-np.inf, np.inf)
    assert intervals.ratio([5.0], [2.0]).low == -np.inf


def test_a_share_of_one_case_is_not_certain() -> None:
    found = measures.share("seen")(pl.DataFrame({"seed": [0], "seen": [True]}))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025)


def test_the_best_case_says_over_which_it_was_sought() -> None:
    table = pl.DataFrame({"load": [1, 1, 2, 2], "seed": [0, 1, 0, 1], "gain": [1.0, 1.2, 3.0, 3.4]})
    cases = {f"load {load}": measures.mean("gain", load=load) for load in (1, 2, 3)}
    best, worst = measures.best(cases)(table), measures.best(cases, min)(table)
    assert (best.value, best.cases) == (pytest.approx(3.2), "load 2, of 2 cases")
    assert (worst.value, worst.cases) == (pytest.approx(1.1), "load 1, of 2 cases")
    with pytest.raises(NotMeasured, match="load=3"):
        measures.best({"load 3": measures.mean("gain", load=3)})(table)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(deadline=None)
def test_clopper_pearson_equals_scipy(case: tuple[int, int]) -> None:
    successes, trials = case
    ours = intervals.clopper_pearson(successes, trials)
    theirs = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert ours.low == pytest.approx(theirs.low, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=1e-9)


@given(st.floats(0.2, 3.0), st.floats(0.1, 10.0))
@settings(max_examples=50, deadline=None)
def test_slope_recovers_an_exponent(exponent: float, factor: float) -> None:
    x = [16.0, 64.0, 256.0, 1024.0]
    assert intervals.slope(x, [factor * v**exponent for v in x]).value == pytest.approx(exponent)


def test_slope_interval_covers_the_truth() -> None:
    random = np.random.default_rng(1)
    x = np.repeat([16.0, 64.0, 256.0, 1024.0], 5)
    fits = [intervals.slope(x, x**2 * np.exp(random.normal(0, 0.3, x.size))) for _ in range(300)]
    assert 0.92 <= np.mean([fit.low <= 2.0 <= fit.high for fit in fits]) <= 0.98


@pytest.mark.parametrize(
    "call",
    [
        lambda: intervals.bootstrap([]),
        lambda: intervals.ratio([1.0], [1.0, 2.0]),
        lambda: intervals.clopper_pearson(3, 2),
        lambda: intervals.slope([1, 2], [1, 2]),
        lambda: intervals.slope([1, 2, 3], [1, -2, 3]),
    ],
)
def test_nonsense_is_refused(call) -> None:
    with pytest.raises(ValueError, match=r"needs"):
        call()


def test_measures_say_what_is_missing() -> None:
    table = pl.DataFrame({"method": ["a", "b"], "seed": [0, 0], "seconds": [1.0, None]})
    with pytest.raises(NotMeasured, match="method=c"):
        measures.mean("seconds", method="c")(table)
    with pytest.raises(NotMeasured, match="not measured for b"):
        measures.ratio("seconds", of={"method": "a"}, to={"method": "b"})(table)
    with pytest.raises(KeyError, match="no column 'speed'"):
        measures.mean("seconds", speed=1)(table)
