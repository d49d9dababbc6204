"""Change points: exact where an optimum is promised, sound where a test is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim import changepoints, online_changes
from assay.sim.random import stream
from tests.oracles import changepoints as oracle

numbers = st.lists(st.floats(-100, 100, allow_nan=False).map(lambda v: round(v, 3)), min_size=0, max_size=40)


@given(numbers, st.floats(0.0, 500.0), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_pelt_reaches_the_least_cost_of_all_segmentations(values: list[float], penalty: float, min_size: int) -> None:
    cuts = changepoints.pelt(values, penalty, min_size)
    bounds = [0, *cuts, len(values)]
    assert cuts == sorted(set(cuts))
    if cuts:
        assert min(np.diff(bounds)) >= min_size
    if len(values) >= 2 * min_size:
        best = oracle.best_cost(values, penalty, min_size)
        assert oracle.segmentation_cost(values, cuts, penalty) == pytest.approx(best, rel=1e-9, abs=1e-6)
    else:
        assert cuts == []


@pytest.mark.parametrize("min_size", [1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_pelt_agrees_with_ruptures(seed: int, min_size: int) -> None:
    ruptures = pytest.importorskip("ruptures")
    random = stream(seed, "test", "pelt")
    values = np.repeat(random.normal(0, 3, 6), random.integers(5, 40, 6))
    values = values + random.normal(0, 1, len(values))
    theirs = ruptures.Dynp(model="l2", min_size=min_size, jump=1).fit(values)
    ours = changepoints.pelt(values, 12.0, min_size)
    same_count = theirs.predict(n_bkps=len(ours)) if ours else [len(values)]
    assert oracle.segmentation_cost(values.tolist(), ours, 12.0) == pytest.approx(
        oracle.segmentation_cost(values.tolist(), same_count[:-1], 12.0)
    )


def test_pelt_does_not_care_about_the_level() -> None:
    values = stream(0, "test", "level").normal(0, 1, 200) + np.repeat([0.0, 4.0], 100)
    assert changepoints.pelt(values) == changepoints.pelt(values + 1e6) != []


@given(st.lists(st.integers(-20, 20), min_size=0, max_size=16), st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_the_strongest_split_is_that_of_the_definition(values: list[int], min_size: int) -> None:
    strength, cut = changepoints._strongest(np.asarray(values, float), min_size)
    expected, _ = oracle.strongest_split(values, min_size)
    assert strength == pytest.approx(expected, rel=1e-9, abs=1e-9)
    if expected:
        assert min_size <= cut <= len(values) - min_size


def test_e_divisive_finds_planted_changes_and_a_passing_one() -> None:
    random = stream(1, "test", "e-divisive")
    values = random.normal(0, 1, 120)
    values[40:60] += 4
    values[90:] += 3
    cuts = changepoints.e_divisive(values)
    assert len(cuts) == 3
    assert all(abs(cut - at) <= 2 for cut, at in zip(cuts, (40, 60, 90), strict=True))


def test_e_divisive_seldom_splits_noise_whatever_its_law() -> None:
    random = stream(2, "test", "null")

    def heavy(size: int) -> np.ndarray:
        return random.standard_t(2, size)

    draws = (random.normal, heavy, random.standard_exponential)
    alarms = sum(
        bool(changepoints.e_divisive(draw(size=40), significance=0.01, seed=seed))
        for draw in draws
        for seed in range(40)
    )
    assert alarms <= 6  # 1.2 expected; seven or more of 120 happen once in a thousand


def test_e_divisive_gives_the_same_answer_again() -> None:
    values = stream(3, "test", "again").normal(0, 1, 60) + np.repeat([0.0, 1.0], 30)
    assert changepoints.e_divisive(values) == changepoints.e_divisive(values)


@given(st.lists(st.floats(-20, 20), min_size=4, max_size=25), st.floats(2.0, 200.0))
@settings(max_examples=60, deadline=None)
def test_online_chances_are_those_of_the_slow_way(values: list[float], every: float) -> None:
    ours = online_changes._bocpd(np.asarray(values), 1 / every, online_changes.LOOK)
    assert ours.tolist() == pytest.approx(oracle.run_length_chances(values, 1 / every, online_changes.LOOK), abs=1e-9)


@given(st.lists(st.floats(-6, 6), min_size=1, max_size=60), st.floats(0.0, 2.0), st.floats(0.5, 8.0))
@settings(max_examples=200, deadline=None)
def test_cusum_alarms_when_the_sum_passes_value_by_value(values: list[float], drift: float, threshold: float) -> None:
    ours = online_changes._first_alarm(np.asarray(values), drift, threshold)
    slow = oracle.first_alarm(values, drift, threshold)
    assert (ours is None) == (slow is None) or _close_call(values, drift, threshold)
    if ours and slow and not _close_call(values, drift, threshold):
        assert ours[0] == slow[0]


def _close_call(values: list[float], drift: float, threshold: float) -> bool:
    """Whether rounding may decide."""
    lower, upper = (oracle.first_alarm(values, drift, threshold + off) for off in (-1e-6, 1e-6))
    return lower != upper


def test_cusum_tells_where_a_shift_began() -> None:
    random = stream(4, "test", "cusum")
    values = random.normal(0, 1, 200)
    values[120:] += 3
    (alarm, onset), *_ = changepoints.cusum(values, warm_up=60, threshold=8)
    assert 120 <= alarm <= 128 and abs(onset - 120) <= 3


def test_odd_values_have_a_large_score_and_missing_spread_an_infinite_one() -> None:
    scores = changepoints.mad_z([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 30.0], window=6)
    assert np.isnan(scores[:3]).all() and scores[-1] > 10
    assert changepoints.mad_z([1.0, 1.0, 1.0, 2.0]).tolist() == [0.0, 0.0, 0.0, np.inf]


@pytest.mark.parametrize("call", [changepoints.pelt, changepoints.e_divisive, changepoints.bocpd, changepoints.mad_z])
def test_what_is_no_series_of_numbers_is_refused(call: object) -> None:
    assert callable(call)
    for bad in ([1.0, float("nan")], [[1.0], [2.0]], [float("inf")] * 3):
        with pytest.raises(ValueError):
            call(bad)


def test_dials_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="permutations cannot show"):
        changepoints.e_divisive([1.0] * 10, significance=0.001, permutations=99)
    with pytest.raises(ValueError, match="penalty"):
        changepoints.pelt([1.0, 2.0], penalty=-1.0)
    with pytest.raises(ValueError, match="warm_up"):
        changepoints.cusum([1.0] * 10, warm_up=1)


@pytest.mark.parametrize("call", [changepoints.pelt, changepoints.e_divisive, changepoints.cusum])
@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 30])
def test_nothing_changes_where_nothing_does(call: object, values: list[float]) -> None:
    assert callable(call)
    assert call(values) == []
