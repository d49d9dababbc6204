"""The GPU's power model: a cap acts only above the draw, a locked clock always; a fit finds what made the data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.power import GpuPower, Load, fit

seconds = st.floats(1e-4, 1e-1)
gpus = st.builds(
    GpuPower, idle=st.floats(20, 150), hbm=st.floats(10, 300), waiting=st.floats(0, 200), sm=st.floats(10, 500),
    limit=st.just(700.0), alpha=st.floats(1.2, 3.0),
)  # fmt: skip
loads = st.builds(Load, mem=seconds, compute=seconds, fixed=st.floats(0, 1e-2))


@given(gpus, loads, st.floats(50, 1200))
def test_a_cap_above_the_draw_changes_nothing(gpu: GpuPower, load: Load, cap: float) -> None:
    clock = gpu.capped(load, cap)
    if gpu.watts(load, gpu.f_max) <= cap:
        assert clock == gpu.f_max
        assert not gpu.acts(load, cap)
    else:
        assert clock < gpu.f_max
        assert gpu.watts(load, clock) <= cap or clock == gpu.clocks[0]


@given(gpus, loads)
def test_power_never_falls_with_the_clock_and_time_never_rises(gpu: GpuPower, load: Load) -> None:
    clocks = gpu.clocks
    assert (np.diff(gpu.seconds(load, clocks)) <= 1e-15).all()
    assert (gpu.watts(load, clocks) >= gpu.idle).all()


@given(gpus, loads)
def test_the_draw_is_bounded_by_its_parts(gpu: GpuPower, load: Load) -> None:
    assert gpu.watts(load, gpu.f_max) <= gpu.idle + gpu.hbm + gpu.waiting + gpu.sm + 1e-9


def test_memory_bound_work_keeps_its_time_at_a_lower_clock() -> None:
    gpu, load = GpuPower(75, 150, 120, 355, 700), Load(mem=10e-3, compute=2e-3)
    assert gpu.seconds(load, 1.0e9) == gpu.seconds(load, gpu.f_max)
    assert gpu.joules(load, 1.0e9) < gpu.joules(load, gpu.f_max)
    assert gpu.seconds(load, 0.5e9) > 1.5 * gpu.seconds(load, gpu.f_max)  # too slow to ask for the bytes


def test_arrays_of_loads_are_capped_one_by_one() -> None:
    gpu = GpuPower(75, 150, 120, 355, 700)
    both = Load(np.array([10e-3, 1e-3]), np.array([1e-3, 10e-3]), np.zeros(2))
    one = [gpu.capped(Load(both.mem[i], both.compute[i], 0.0), 450.0) for i in range(2)]
    assert gpu.capped(both, 450.0).tolist() == one
    assert one[0] == gpu.f_max > one[1]


@pytest.mark.parametrize("alpha", [1.6, 2.2, 2.8])
def test_a_fit_finds_the_model_behind_noisy_points(alpha: float) -> None:
    truth = GpuPower(75, 160, 110, 340, 700, alpha=alpha)
    random = np.random.default_rng(0)
    loads = Load(random.uniform(1e-3, 1e-2, 60), random.uniform(1e-3, 1e-2, 60), np.full(60, 2e-4))
    clocks = random.choice(truth.clocks, 60)
    watts = truth.watts(loads, clocks) * random.normal(1, 0.02, 60)
    found = fit(GpuPower(75, 0, 0, 0, 700), loads, clocks, truth.seconds(loads, clocks), watts)
    assert found.alpha_fitted
    assert found.error_mean < 0.03
    assert found.gpu.alpha == pytest.approx(alpha, abs=0.35)


def test_without_a_spread_of_clocks_alpha_is_not_claimed_to_be_fitted() -> None:
    truth = GpuPower(75, 160, 110, 340, 700)
    loads = Load(np.linspace(1e-3, 1e-2, 8), np.linspace(8e-3, 1e-3, 8), np.zeros(8))
    clocks = np.full(8, truth.f_max)
    found = fit(truth, loads, clocks, truth.seconds(loads, clocks), truth.watts(loads, clocks))
    assert not found.alpha_fitted
    assert found.error_max < 1e-6
