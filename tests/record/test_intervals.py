"""Intervals cover what they promise, and measures read them off a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.record import intervals, measures, verdicts
from assay.record.types import Estimate, Kind, NotMeasured, Stated, Verdict

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=3, max_size=12))
@settings(max_examples=40, deadline=None)
def test_an_interval_holds_its_value_and_is_the_same_each_time(values: list[float]) -> None:
    first = intervals.bootstrap(values)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert first.low - slack <= first.value <= first.high + slack
    assert first == intervals.bootstrap(values)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=3, max_size=12))
@settings(max_examples=40, deadline=None)
def test_a_ratios_interval_holds_both_readings_of_how_many_times(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    found = intervals.ratio(a, b)
    assert found.value == pytest.approx(a.mean() / b.mean())
    for reading in (found.value, math.exp(np.log(a / b).mean())):
        assert found.low * (1 - 1e-9) <= reading <= found.high * (1 + 1e-9)
    back = intervals.ratio(b, a)  # no end changes because somebody asks the other way round
    assert (1 / back.high, 1 / back.low) == pytest.approx((found.low, found.high), rel=1e-6)


def covered(estimates: Iterable[Estimate], truth: float) -> float:
    return float(np.mean([one.low <= truth <= one.high for one in estimates]))


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 10, 13, 20])
def test_an_interval_of_a_mean_holds_the_truth_as_often_as_it_says(n: int) -> None:
    # Percentiles of resampled means held it in 50 % of such draws of two, 75 of three, 87 of four, 92 of five.
    draws = np.random.default_rng(n).normal(3.0, 1.0, size=(400, n))
    assert 0.90 <= covered(map(intervals.bootstrap, draws), 3.0) <= 0.99


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 10, 13, 20])
@pytest.mark.parametrize("shared", [0.0, 1.0])  # what a seed does to both sides
def test_an_interval_of_a_ratio_holds_the_truth_as_often_as_it_says(n: int, shared: float) -> None:
    random = np.random.default_rng([n, int(shared)])
    each = random.normal(0, shared, size=(400, n))
    a, b = (np.exp(each + random.normal(m, 0.5, size=(400, n))) for m in (math.log(2), 0.0))
    assert 0.90 <= covered(map(intervals.ratio, a, b), 2.0) <= 0.99


def test_an_interval_of_a_median_holds_the_truth_as_well() -> None:
    draws = np.random.default_rng(0).normal(3.0, 1.0, size=(200, 7))
    assert covered((intervals.bootstrap(one, np.median) for one in draws), 3.0) >= 0.90


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [5.0, 5.1]])
def test_one_or_two_observations_are_certain_of_nothing(values: list[float]) -> None:
    everything = (-np.inf, np.inf)
    twice = [2 * v for v in values]
    for found in (
        intervals.bootstrap(values), intervals.bootstrap(values, np.median), intervals.ratio(twice, values),
        intervals.of_resampled(5.0, np.full(100, 5.0), len(values)),
    ):  # fmt: skip
        assert (found.low, found.high, found.n) == (*everything, len(values))


def test_equal_observations_have_no_spread() -> None:
    for found in (intervals.bootstrap([0.1] * 3), intervals.bootstrap([0.1] * 9)):
        assert found.low == pytest.approx(0.1) == found.high
    assert intervals.ratio([0.3, 0.6, 0.9], [0.1, 0.2, 0.3]).low == pytest.approx(3.0, rel=1e-12)


def test_wild_observations_in_a_large_family_have_an_end_at_infinity() -> None:
    with intervals.family(10_000):
        found = intervals.ratio([1e-30, 1.0, 1e30], [1.0, 1.0, 1.0])
    assert (found.low, found.high) == (0.0, np.inf)


def test_a_ratio_without_logarithms_is_compared_as_it_is() -> None:
    found = intervals.ratio([0.0, 2.0, 4.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert found.value == 2.0
    assert found.low < 0 < found.high


CASES = 36


def of_nothing(choose: Callable[..., Any], tries: int = 150, seeds: int = 5) -> float:
    """How often the best of many cases, none of which has any effect, is called certain."""
    rule = Stated("gain", "It is faster, in the best case.", Kind.RATIO, toward="up" if choose is max else "down")
    best = measures.best({str(case): measures.ratio("s", {"of": 0}, {"of": 1}, case=case) for case in range(CASES)},
                         choose)  # fmt: skip
    random = np.random.default_rng(0)
    table = pl.DataFrame([{"case": c, "of": o, "seed": s} for c in range(CASES) for o in (0, 1) for s in range(seeds)])
    drawn = (np.exp(random.normal(0, 0.3, len(table))) for _ in range(tries))
    found = (verdicts.judge(rule, best(table.with_columns(s=one))) for one in drawn)
    return float(np.mean([one.verdict is Verdict.REPRODUCED for one in found]))


@pytest.mark.parametrize("choose", [max, min])
def test_the_best_of_many_cases_without_any_effect_is_hardly_ever_certain(choose: Callable[..., Any]) -> None:
    # Each case at 95 % on its own, it was in 39 %.
    assert of_nothing(choose, tries=60) <= 0.05


@pytest.mark.slow
def test_the_same_in_many_tries() -> None:
    assert of_nothing(max, tries=600) <= 0.05


def test_all_cases_are_certain_only_if_each_is() -> None:
    gains = {"steady": (1.5, 1.51, 1.49, 1.5), "wild": (0.2, 5.0, 0.5, 2.0)}
    table = pl.DataFrame([{"case": c, "seed": s, "gain": g} for c, all_ in gains.items() for s, g in enumerate(all_)])
    cases = {case: measures.mean("gain", case=case) for case in gains}
    worst = measures.best(cases, min, every=True)(table)
    assert (worst.value, worst.cases) == (pytest.approx(1.5), "steady, of 2 cases")
    assert worst.low < 0  # of the wild one, whose mean is larger


def test_families_within_a_family_multiply() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    with intervals.family(6):
        once = intervals.bootstrap(values)
    with intervals.family(2), intervals.family(3):
        assert intervals.bootstrap(values) == once
    assert intervals.bootstrap(values).low > once.low
    assert once.high == pytest.approx(3 + stats.t.ppf(1 - 0.025 / 6, 4) * np.std(values, ddof=1) / math.sqrt(5))
    many = np.random.default_rng(0).normal(size=12)  # so far out no resampled mean is left to tell the end
    with intervals.family(1000):
        far = intervals.bootstrap(many)
    assert far.high == pytest.approx(many.mean() + stats.t.ppf(1 - 0.025e-3, 11) * stats.sem(many), rel=0.05)


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


def test_a_repeated_x_counts_once() -> None:
    x, y = [1.0, 2.0, 4.0], [1.0, 2.3, 3.9]
    once, often = intervals.slope(x, y), intervals.slope(x * 20, y * 20)
    assert often.n == 3
    assert (often.value, often.low, often.high) == pytest.approx((once.value, once.low, once.high))
    with pytest.raises(ValueError, match="three different x"):
        intervals.slope([1.0, 2.0] * 9, [1.0, 2.0] * 9)


def test_a_bent_line_is_not_certain_because_it_was_measured_often() -> None:
    random = np.random.default_rng(2)
    x = np.repeat([16.0, 64.0, 256.0, 1024.0], 50)
    bent = np.exp(0.1 * np.log(x) ** 2) * np.exp(random.normal(0, 0.01, x.size))
    found = intervals.slope(x, bent)
    assert found.high - found.low > 0.3


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
