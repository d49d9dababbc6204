"""Intervals cover what they promise, and claims turn them into verdicts."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.record import intervals, measures
from assay.record.types import Estimate, NotMeasured, Verdict, at_least, at_most, between, exactly

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_bootstrap_interval_holds_its_value_and_is_the_same_each_time(values: list[float]) -> None:
    first = intervals.bootstrap(values)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert first.low - slack <= first.value <= first.high + slack
    assert min(values) - slack <= first.low
    assert first.high <= max(values) + slack
    assert first == intervals.bootstrap(values)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(3.0, 1.0, size=(300, 20))
    covered = sum(e.low <= 3.0 <= e.high for e in map(intervals.bootstrap, draws))
    assert 0.88 <= covered / 300 <= 0.98  # percentile intervals of 20 values are known to be a little short of 95 %


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


@pytest.mark.parametrize(
    ("holds", "estimate", "verdict"),
    [
        (at_least(2.0), (3.0, 2.5, 3.5), Verdict.REPRODUCED),
        (at_least(2.0), (3.0, 1.5, 4.5), Verdict.DIRECTION),  # large enough, not certain
        (at_least(2.0), (1.9, 1.8, 2.5), Verdict.NOT_REPRODUCED),
        (at_least(2.0, neutral=1.0), (1.5, 1.2, 1.8), Verdict.DIRECTION),  # certain, too small
        (at_least(2.0, neutral=1.0), (2.5, 0.9, 4.0), Verdict.DIRECTION),
        (at_least(2.0, neutral=1.0), (0.8, 0.7, 0.9), Verdict.NOT_REPRODUCED),
        (at_most(-0.3, neutral=0.0), (-0.5, -0.6, -0.4), Verdict.REPRODUCED),
        (at_most(-0.3, neutral=0.0), (-0.1, -0.2, -0.05), Verdict.DIRECTION),
        (at_most(-0.3, neutral=0.0), (0.1, -0.1, 0.2), Verdict.NOT_REPRODUCED),
        (between(1.8, 2.2), (2.0, 1.7, 2.3), Verdict.DIRECTION),
        (exactly(1.0), (0.999, 0.999, 0.999), Verdict.NOT_REPRODUCED),
        (at_least(0.0), (math.nan, math.nan, math.nan), Verdict.NOT_MEASURED),
    ],
)
def test_verdicts(holds, estimate, verdict) -> None:
    assert holds.judge(Estimate(*estimate, 5)) is verdict


@given(st.floats(-5, 5), st.floats(0, 3), st.floats(0, 3))
def test_a_claim_and_its_opposite_are_never_both_reproduced(value: float, below: float, above: float) -> None:
    estimate = Estimate(value, value - below, value + above, 5)
    verdicts = {at_least(0.1).judge(estimate), at_most(-0.1).judge(estimate)}
    assert verdicts != {Verdict.REPRODUCED}


def test_measures_say_what_is_missing() -> None:
    table = pl.DataFrame({"method": ["a", "b"], "seed": [0, 0], "seconds": [1.0, None]})
    with pytest.raises(NotMeasured, match="method=c"):
        measures.mean("seconds", method="c")(table)
    with pytest.raises(NotMeasured, match="not measured for b"):
        measures.ratio("seconds", of={"method": "a"}, to={"method": "b"})(table)
    with pytest.raises(KeyError, match="no column 'speed'"):
        measures.mean("seconds", speed=1)(table)
