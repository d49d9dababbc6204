"""A long series taken apart: the parts add up, planted cycles are found, noise has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.observe.series import decompose, guides, seasons, trends
from assay.record.errors import BadInput
from assay.workloads.long_series import Grid
from assay.workloads.planted_cycles import plant
from tests.oracles import decompose as slow

HOURS = 3600.0


def grid(values: np.ndarray, step: float = HOURS) -> Grid:
    return Grid("test", 0.0, step, np.asarray(values, dtype=float))


@settings(max_examples=25, deadline=None)
@given(
    arrays(float, st.integers(40, 160), elements=st.floats(-1e6, 1e6, width=32)),
    st.sets(st.integers(0, 39), max_size=15),
)
def test_the_parts_of_any_series_add_up_to_it(values: np.ndarray, gaps: set[int]) -> None:
    values = values.copy()
    values[list(gaps)] = np.nan
    made = decompose.automatic(grid(values))
    total = np.sum(list(made.parts().values()), axis=0)
    there = ~np.isnan(values)
    size = float(np.abs(values[there]).max()) if there.any() else 0.0
    np.testing.assert_allclose(total[there], values[there], rtol=1e-12, atol=1e-9 * size)
    assert np.isnan(made.rest[~there]).all()


def test_parts_that_multiply_add_up_too() -> None:
    trace = plant(1, days=120)
    made = decompose.automatic(trace.grid, multiplicative=True)
    total = np.sum(list(made.parts().values()), axis=0)
    there = ~np.isnan(trace.grid.values)
    np.testing.assert_allclose(total[there], trace.grid.values[there], rtol=1e-12)


def test_nine_in_ten_planted_periods_are_found_within_two_per_cent() -> None:
    hits = planted = invented = 0
    for seed in range(3):
        trace = plant(seed, days=390, step=7200.0)
        made = decompose.automatic(trace.grid)
        found = [cycle.period * 7200.0 for cycle in made.cycles]
        near = [any(abs(period / cycle.period - 1) <= 0.02 for period in found) for cycle in trace.cycles]
        hits, planted, invented = hits + sum(near), planted + len(near), invented + len(found) - sum(near)
    assert hits >= 0.9 * planted
    assert invented <= 0.1 * planted


def test_a_cycle_that_comes_and_goes_is_said_to_run_when_it_does() -> None:
    t = np.arange(24.0 * 120)
    random = np.random.default_rng(1)
    on = (t >= 600) & (t < 1400)
    values = 50 + 3 * np.sin(2 * np.pi * t / 24) + 3 * np.sin(2 * np.pi * t / 37) * on + random.normal(0, 1, len(t))
    made = decompose.automatic(grid(values))
    passing = next(cycle for cycle in made.cycles if abs(cycle.period - 37) < 0.74)
    (piece,) = passing.pieces
    assert abs(piece.start - 600) <= 2 * 37
    assert abs(piece.stop - 1400) <= 2 * 37


@pytest.mark.parametrize("kind", ["white", "constant", "line", "walk"])
def test_noise_and_drift_have_no_cycle(kind: str) -> None:
    found = 0
    for seed in range(4):
        random = np.random.default_rng(seed)
        noise = random.normal(size=2000)
        values = {"white": noise, "walk": np.cumsum(noise), "constant": np.ones(2000), "line": np.arange(2000) + noise}
        found += len(decompose.automatic(grid(values[kind])).cycles)
    assert found <= (1 if kind == "walk" else 0)  # a wandering level makes waves now and then


def test_a_jump_of_the_level_is_found_and_a_slope_is_none() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(0, 1, 1200)
    jump = decompose.automatic(grid(noise + np.where(np.arange(1200) >= 700, 8.0, 0.0)))
    assert len(jump.shifts) == 1
    assert abs(jump.shifts[0] - 700) <= 3
    assert decompose.automatic(grid(noise + 0.02 * np.arange(1200))).shifts == ()


def test_a_single_value_that_is_off_is_no_jump_even_where_nothing_else_is() -> None:
    saw = np.arange(500.0) % 24
    saw[0] = 5.0
    made = decompose.automatic(grid(saw))
    assert made.shifts == () and [round(cycle.period) for cycle in made.cycles] == [24]


@settings(max_examples=20, deadline=None)
@given(arrays(float, 60, elements=st.floats(-100, 100)), st.integers(8, 120))
def test_local_lines_are_those_of_the_slow_twin(values: np.ndarray, span: int) -> None:
    weights = np.ones(60)
    weights[20:23] = 0.0
    np.testing.assert_allclose(
        trends.loess(values, weights, span)[weights > 0],
        np.array(slow.loess(values.tolist(), weights.tolist(), span))[weights > 0],
        rtol=1e-6, atol=1e-6,
    )  # fmt: skip


def test_spectrum_and_autocorrelation_are_those_of_the_slow_twins() -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=90)
    values[[4, 50, 51]] = np.nan
    frequency, power = seasons.periodogram(values)
    for i in (0, 10, 77, len(power) - 1):
        assert power[i] == pytest.approx(slow.power(values.tolist(), float(frequency[i])))
    found = seasons.autocorrelation(values)
    for lag in (0, 1, 7, 60):
        assert found[lag] == pytest.approx(slow.autocorrelation(values.tolist(), lag))


def test_an_analyst_says_periods_stretches_and_jumps(tmp_path: Path) -> None:
    t = np.arange(24.0 * 40)
    values = 10 + 2 * np.sin(2 * np.pi * t / 24) * (t < 480) + np.where(t >= 600, 5.0, 0.0)
    guide = tmp_path / "guide.toml"
    guide.write_text(
        'scale = "add"\nshifts = [1970-01-26]\n[[cycle]]\nperiod = "1d"\nactive = [[1970-01-01, 1970-01-21]]\n'
    )
    made = guides.guided(grid(values), guides.read(guide))
    assert made.shifts == (600,)
    assert [(piece.start, piece.stop) for piece in made.cycles[0].pieces] == [(0, 480)]
    assert np.abs(made.rest).max() < 0.2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cycle = 3", "tables"), ("[[cycle]]\nperiod = 1", "period"), ('[[cycle]]\nperiod = "1y"', "no length of time"),
        ("[[cycle]]\nshape = 'odd'\nperiod='1d'", "shape"), ("colour = 1", "no 'colour'"), ("a = ", "TOML"),
        ("[[cycle]]\nperiod='1d'\nactive=[[2024-02-01, 2024-01-01]]", "ends before"), ("shifts = ['x']", "no date"),
    ],
)  # fmt: skip
def test_a_wrong_guide_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "guide.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=said) as refused:
        guides.read(file)
    assert "\n" not in str(refused.value)


def test_a_period_that_does_not_fit_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="fit twice"):
        guides.guided(grid(np.random.default_rng(0).normal(size=100)), guides.Guide.of("quarter"))


def test_a_series_that_does_not_change_has_no_spikes() -> None:
    made = decompose.automatic(Grid("same", 0.0, 3600.0, np.full(2160, 7.3)))
    assert not made.spikes.any() and not made.cycles and not made.shifts


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_values_whose_squares_are_no_numbers_are_refused(size: float) -> None:
    with pytest.raises(BadInput, match="another unit"):
        decompose.automatic(Grid("far", 0.0, 3600.0, size * (2 + np.sin(np.arange(200.0)))))


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(BadInput, match="too few"):
        decompose.automatic(grid(np.array([1.0, np.nan, 2.0])))


@pytest.mark.parametrize(("seed", "count", "reach"), [(3, 40, 10), (11, 61, 14), (77, 25, 30)])
def test_jumps_are_where_lines_fitted_to_both_sides_meet(seed: int, count: int, reach: int) -> None:
    values = np.random.default_rng(seed).normal(size=count).cumsum()
    made = trends._steps(values, reach)
    for cut in range(4, count - 3):
        sides = [np.arange(max(0, cut - reach), cut), np.arange(cut, min(count, cut + reach))]
        left, right = (np.polyval(np.polyfit(side, values[side], 1), cut - 0.5) for side in sides)
        assert made[cut] == pytest.approx(right - left, abs=1e-9)
    assert not made[:4].any() and not made[count - 3 :].any()
