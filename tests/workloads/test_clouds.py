"""Generated clouds are what they were asked to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.workloads import clouds

Cloud = np.ndarray[Any, Any]

# -------------------------------------------------------------------------------------- generators

GENERATORS = [clouds.lidar, clouds.indoor, clouds.uniform, clouds.clustered]
every_generator = pytest.mark.parametrize("make", GENERATORS)


@every_generator
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63))
@settings(max_examples=12, deadline=None)
def test_a_generator_gives_exactly_n_points_and_the_same_for_the_same_seed(
    make: Callable[..., Cloud], n: int, seed: int
) -> None:
    cloud = make(n, seed)
    assert (cloud.shape, cloud.dtype) == ((n, 3), np.float32)
    assert cloud.flags.c_contiguous
    assert np.isfinite(cloud).all()
    assert np.array_equal(cloud, make(n, seed))


@every_generator
def test_another_seed_is_another_cloud(make: Callable[..., Cloud]) -> None:
    different = [make(500, seed) for seed in range(4)]
    assert all(not np.array_equal(a, b) for i, a in enumerate(different) for b in different[:i])


@every_generator
@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_a_generator_needs_a_whole_number_of_points(make: Callable[..., Cloud], n: Any) -> None:
    with pytest.raises(ValueError, match="whole number of points >= 1"):
        make(n)


def test_a_lidar_sweep_lies_on_the_rings_of_its_beams_and_thins_out_with_range() -> None:
    x, y, z = clouds.lidar(100_000, seed=2).astype(float).T
    ground = np.hypot(x, y)
    elevation = np.degrees(np.arctan2(z - clouds.SENSOR_HEIGHT, ground))
    rings = np.unique(elevation.round(1))
    assert len(rings) == clouds.BEAMS
    assert (rings[0], rings[-1]) == pytest.approx((-24.8, 2.0))
    edges = [5, 10, 20, 40, 80]
    counts, _ = np.histogram(ground, edges)
    density = counts / np.diff(np.square(edges))
    assert (density[1:] < density[:-1] / 4).all()  # twice as far: a quarter from the angle alone, and shadows
    assert np.hypot(ground, z - clouds.SENSOR_HEIGHT).max() < clouds.MAX_RANGE + 6 * clouds.RANGE_NOISE


def test_a_room_is_flat_and_a_cube_is_filled() -> None:
    room = clouds.indoor(20_000, seed=1)
    on_floor = np.abs(room[:, 2]) < 0.01
    assert on_floor.mean() > 0.1
    cube = clouds.uniform(20_000, seed=1)
    assert ((cube >= 0) & (cube < 1)).all()
    assert np.histogramdd(cube, bins=4, range=[(0, 1)] * 3)[0].min() > 200  # 312 on average
