"""The noise of a history: told apart from steps, and no step's size or certainty is made up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import toeplitz

from assay.observe.bench import history, noise
from assay.observe.bench.noise import Noise
from assay.sim.random import stream

Floats = NDArray[np.float64]
noises = st.builds(Noise, st.floats(0.05, 1.0), st.floats(0.0, 0.97))
sides = st.lists(st.floats(-5, 5).map(lambda v: round(v, 2)), min_size=3, max_size=20, unique=True).map(np.array)


def slow(n: int, share: float, fading: float, seed: int, size: float = 0.03) -> Floats:
    """Noise of one spread at every share and fading."""
    random = stream(seed, "test", "slow noise", str(share), str(fading))
    fresh, state = random.normal(0, 1, n), random.normal(0, 1, n)
    for i in range(1, n):
        state[i] = fading * state[i - 1] + np.sqrt(1 - fading**2) * state[i]
    return np.asarray(size * (np.sqrt(share) * state + np.sqrt(1 - share) * fresh))


def found(levels: Floats) -> list[int]:
    return [at for at, _, _ in history.steps(levels, min_change=0.03, significance=1e-3)]


@pytest.mark.parametrize(("fading", "most"), [(0.5, 4), (0.7, 6), (0.9, 8)])
def test_slow_noise_makes_hardly_a_step(fading: float, most: int) -> None:
    assert sum(len(found(slow(100, 1.0, fading, seed))) for seed in range(40)) <= most  # of 4000 points


def test_a_slow_wave_is_no_row_of_steps() -> None:
    waves = (0.05 * np.sin(2 * np.pi * np.arange(100) / period) for period in range(16, 50, 2))
    assert sum(len(found(wave + slow(100, 0.5, 0.0, at, 0.015))) for at, wave in enumerate(waves)) <= 3


@pytest.mark.parametrize("fading", [0.0, 0.5, 0.9])
def test_a_clear_step_in_slow_noise_is_found(fading: float) -> None:
    places = [30 + seed for seed in range(20)]
    series = [slow(100, 1.0, fading, seed) + np.where(np.arange(100) < at, 0.0, 0.18) for seed, at in enumerate(places)]
    hits = [any(abs(one - at) <= 2 for one in found(levels)) for levels, at in zip(series, places, strict=True)]
    assert sum(hits) >= 18


@pytest.mark.parametrize("period", [7, 30.3])
def test_a_cycle_hides_no_step_in_a_long_history(period: float) -> None:
    cycle = 0.05 * np.sin(2 * np.pi * np.arange(200) / period)
    for seed in range(5):
        step = np.where(np.arange(200) < 60 + seed, 0.0, 0.06)
        (at,) = found(slow(200, 1.0, 0.0, seed, 0.015) + cycle + step)
        assert abs(at - 60 - seed) <= 2


@given(sides, sides)
@settings(max_examples=100, deadline=None)
def test_without_correlation_the_test_is_welchs(left: Floats, right: Floats) -> None:
    expected = stats.ttest_ind(left, right, equal_var=False).pvalue
    assert noise.step(left, right, Noise(1.0, 0.0)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=25), noises)
@settings(max_examples=100, deadline=None)
def test_whitening_is_that_of_the_whole_covariance(values: list[float], kind: Noise) -> None:
    column = kind.share * kind.fading ** np.arange(len(values))
    column[0] = 1.0
    covariance = toeplitz(column)
    errors, spread = noise._whitened(np.array(values), kind.share, kind.fading)
    assert errors @ errors == pytest.approx(values @ np.linalg.solve(covariance, values), rel=1e-6, abs=1e-6)
    assert spread == pytest.approx(np.linalg.slogdet(covariance)[1], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("share", "fading"), [(1.0, 0.0), (1.0, 0.5), (1.0, 0.9), (0.5, 0.9)])
def test_the_fit_finds_the_correlation_however_the_levels_lie(share: float, fading: float) -> None:
    levels = np.split(slow(3000, share, fading, 1), 30)
    made = noise.fit([level + height for height, level in enumerate(levels)])
    for distance in (1, 2, 5):
        assert made.share * made.fading**distance == pytest.approx(share * fading**distance, abs=0.1)


@pytest.mark.parametrize("levels", [[np.zeros(5)], [np.ones(1), np.ones(3)], [np.array([1.0, 1.0 + 1e-12])]])
def test_levels_without_noise_are_fitted_too(levels: list[Floats]) -> None:
    assert noise.fit(levels) == Noise(1.0, 0.0) and np.isfinite(noise.cost(levels, Noise(1.0, 0.0)))


def test_a_side_that_repeats_one_value_makes_no_certainty() -> None:
    assert noise.step(np.zeros(4), np.array([0.0, 0.1, -0.1, 0.05]), Noise(1.0, 0.3)) > 0.1
