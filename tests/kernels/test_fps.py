"""Every sampler picks exactly what the definition of farthest point sampling picks, in the same order."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.kernels.radius_fps import count_radius, fps, radius
from assay.workloads import clouds
from tests.oracles import fps as oracle

Cloud = np.ndarray[Any, Any]
Sampler = Callable[..., Any]
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
dtypes = st.sampled_from([SINGLE, DOUBLE])

SAMPLERS: dict[str, Sampler] = {
    "plain": fps.plain,
    "kd-tree": fps.kd_tree,
    "radius": radius,
    "radius+skip": lambda *given, **named: radius(*given, point_skip=True, **named),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


# ------------------------------------------------------------------------------------------ clouds


def equal(random: np.random.Generator, n: int) -> Cloud:
    return np.tile(random.normal(size=3), (n, 1))


def duplicates(random: np.random.Generator, n: int) -> Cloud:
    return random.normal(size=(max(1, n // 5), 3))[random.integers(max(1, n // 5), size=n)]


def collinear(random: np.random.Generator, n: int) -> Cloud:
    return random.integers(-20, 20, size=(n, 1)) * random.integers(-3, 4, size=3) * 0.5


def grid(random: np.random.Generator, n: int) -> Cloud:
    """A plane of whole coordinates: most distances tie."""
    return np.insert(random.integers(0, 9, size=(n, 2)), random.integers(3), random.integers(-2, 3), axis=1) * 1.0


def block(random: np.random.Generator, n: int) -> Cloud:
    return random.integers(-4, 5, size=(n, 3)) * 0.25


def gaussian(random: np.random.Generator, n: int) -> Cloud:
    return random.normal(size=(n, 3))


def clusters(random: np.random.Generator, n: int) -> Cloud:
    centres, widths = random.uniform(-50, 50, (6, 3)), 10.0 ** random.uniform(-4, 1, 6)
    which = random.integers(6, size=n)
    return centres[which] + widths[which, None] * random.normal(size=(n, 3))


def one_outlier(random: np.random.Generator, n: int) -> Cloud:
    cloud = random.normal(size=(n, 3))
    cloud[random.integers(n)] *= 1e12
    return cloud


def far_away(random: np.random.Generator, n: int) -> Cloud:
    """So far from the origin that neighbours differ by a few units in the last place."""
    return 1e18 + random.integers(-6, 7, size=(n, 3)) * 2.0**37


def offset(random: np.random.Generator, n: int) -> Cloud:
    return random.normal(size=(n, 3)) + 10.0 ** random.uniform(2, 7, 3)


def tiny(random: np.random.Generator, n: int) -> Cloud:
    """Squares that underflow, wholly or in part."""
    return random.normal(size=(n, 3)) * 10.0 ** random.uniform(-26, -16)


def denormal(random: np.random.Generator, n: int) -> Cloud:
    return random.integers(-40, 41, size=(n, 3)) * 2.0**-149


def huge(random: np.random.Generator, n: int) -> Cloud:
    """Squares, and in float32 even differences, that overflow."""
    return random.choice([-3e38, -2e19, -1.0, 0.0, 1e19, 3e38], size=(n, 3)) * random.uniform(0.1, 1.0, (n, 1))


def mixed_scales(random: np.random.Generator, n: int) -> Cloud:
    return random.normal(size=(n, 3)) * 10.0 ** random.uniform(-30, 30, (n, 1))


def geometric(random: np.random.Generator, n: int) -> Cloud:
    """Ever denser towards one point: a grid of its own at every scale."""
    return random.normal(size=(n, 3)) * 0.5 ** np.arange(n)[:, None] + random.integers(0, 2)


KINDS = [
    equal, duplicates, collinear, grid, block, gaussian, clusters, one_outlier, far_away, offset, tiny, denormal, huge,
    mixed_scales, geometric,
]  # fmt: skip


@st.composite
def shaped(draw: st.DrawFn, most: int = 260) -> Cloud:
    """A cloud of a difficult kind, at a size that fills several voxels and several levels of a tree."""
    kind, dtype, n = draw(st.sampled_from(KINDS)), draw(dtypes), draw(st.integers(1, most))
    return kind(np.random.default_rng(draw(st.integers(0, 2**32))), n).astype(dtype)


@st.composite
def arbitrary(draw: st.DrawFn) -> Cloud:
    """A few points of any finite coordinates at all, which Hypothesis may shrink to the simplest that fail."""
    dtype, n = draw(dtypes), draw(st.integers(1, 14))
    values = st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 2.0, 3.0]),
        st.floats(allow_nan=False, allow_infinity=False, width=8 * dtype.itemsize),
    )
    return draw(hnp.arrays(dtype, (n, 3), elements=values, fill=st.nothing()))


@st.composite
def tasks(draw: st.DrawFn, some_cloud: st.SearchStrategy[Cloud]) -> tuple[Cloud, int, int]:
    """A cloud, how many of its points to pick, and where to start."""
    cloud = draw(some_cloud)
    n = len(cloud)
    k = draw(st.one_of(st.just(n), st.integers(1, n), st.integers(1, min(n, 12))))
    return cloud, k, draw(st.integers(0, n - 1))


leaf_sizes = st.sampled_from([1, 2, 3, 7, 16, 64, 1000])
voxel_sizes = st.one_of(st.integers(1, 8), st.integers(1, 200))


# ---------------------------------------------------------------------------------- the definition


@given(tasks(shaped()), leaf_sizes, voxel_sizes)
@settings(max_examples=300, deadline=None)
def test_all_samplers_follow_the_definition_on_difficult_clouds(
    task: tuple[Cloud, int, int], leaf_size: int, points_per_voxel: int
) -> None:
    follow_the_definition(*task, leaf_size, points_per_voxel)


@given(tasks(arbitrary()), leaf_sizes, voxel_sizes)
@example((np.zeros((1, 3), np.float32), 1, 0), 1, 1)
@example((np.array([[3e38, 0, 0], [-3e38, 0, 0], [0, 0, 0]], np.float32), 3, 2), 1, 1)
@example((np.array([[1e-45, 0, 0], [0, 0, 0], [1e-22, 0, 0]], np.float32), 3, 1), 1, 1)
@example((np.array([[1.7e308, 0, 0], [-1.7e308, 0, 0], [0, 1, 0]], np.float64), 3, 2), 1, 1)
@settings(max_examples=300, deadline=None)
def test_all_samplers_follow_the_definition_on_any_finite_points(
    task: tuple[Cloud, int, int], leaf_size: int, points_per_voxel: int
) -> None:
    follow_the_definition(*task, leaf_size, points_per_voxel)


def follow_the_definition(cloud: Cloud, k: int, start: int, leaf_size: int, points_per_voxel: int) -> None:
    right = oracle.sample(cloud, k, start)
    assert fps.plain(cloud, k, start).tolist() == right
    assert fps.kd_tree(cloud, k, start, leaf_size).tolist() == right
    for point_skip in (False, True):
        assert radius(cloud, k, start, points_per_voxel, point_skip).tolist() == right


@every_sampler
def test_the_definition_by_hand(sampler: Sampler) -> None:
    """From 0: the far end 5; then 2, which is 2 from 0 and 3 from 5, before the equal picks 1, 3, 4 in their order."""
    line = [[x, 0, 0] for x in (0, 1, 2, 3, 4, 5, 0)]
    assert sampler(line, 7).tolist() == [0, 5, 2, 1, 3, 4, 6]
    assert sampler(line, 3, start=5).tolist() == [5, 0, 2]


@every_sampler
def test_a_lidar_sweep_of_a_hundred_thousand_points_is_sampled_as_by_plain(sampler: Sampler) -> None:
    sweep = clouds.lidar(100_000, seed=3)
    assert np.array_equal(sampler(sweep, 1_000, start=77), fps.plain(sweep, 1_000, start=77))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lidar", "clustered"])
def test_a_million_points_are_sampled_as_by_plain(kind: str) -> None:
    cloud = getattr(clouds, kind)(1_000_000, seed=4)
    right = fps.plain(cloud, 10_000)
    for name, sampler in SAMPLERS.items():
        assert name == "plain" or np.array_equal(sampler(cloud, 10_000), right), name


@pytest.mark.skipif(importlib.util.find_spec("fpsample") is None, reason="fpsample is not installed")
def test_an_independent_sampler_picks_the_same_points() -> None:
    import fpsample

    cloud = clouds.uniform(20_000, seed=5)  # no ties among the picks
    theirs = np.asarray(fpsample.bucket_fps_kdline_sampling(cloud, 200, h=5, start_idx=0), np.int64)
    assert set(radius(cloud, 200, start=int(theirs[0])).tolist()) == set(theirs.tolist())


# -------------------------------------------------------------------------- what follows from it


@given(tasks(shaped()), st.data())
@settings(max_examples=60, deadline=None)
def test_the_first_picks_of_many_are_the_picks_of_few(task: tuple[Cloud, int, int], data: st.DataObject) -> None:
    cloud, k, start = task
    few = data.draw(st.integers(1, k))
    for sampler in SAMPLERS.values():
        assert sampler(cloud, few, start).tolist() == sampler(cloud, k, start)[:few].tolist()


@given(tasks(shaped()))
@settings(max_examples=60, deadline=None)
def test_no_point_is_picked_twice_and_the_covering_radius_falls(task: tuple[Cloud, int, int]) -> None:
    cloud, k, start = task
    picks = radius(cloud, k, start).tolist()
    assert len(set(picks)) == k
    distance = oracle.squared(cloud, start)
    covered = [distance.max()]
    for pick in picks[1:]:
        assert distance[pick] == covered[-1]  # the pick is the point that was covered worst
        distance = np.minimum(distance, oracle.squared(cloud, pick))
        covered.append(distance.max())
    assert all(after <= before for before, after in pairwise(covered))


@given(st.integers(0, 2**32), st.integers(2, 40), dtypes)
@settings(max_examples=60, deadline=None)
def test_where_distances_are_distinct_the_order_of_rows_does_not_matter(seed: int, n: int, dtype: np.dtype) -> None:
    random = np.random.default_rng(seed)
    cloud = random.normal(size=(n, 3)).astype(dtype)
    distances = np.concatenate([oracle.squared(cloud, i)[:i] for i in range(n)])
    assume(len(np.unique(distances)) == len(distances))
    shuffled = random.permutation(n)
    for sampler in SAMPLERS.values():
        here = shuffled[sampler(cloud[shuffled], n, start=0)]
        assert here.tolist() == sampler(cloud, n, start=int(shuffled[0])).tolist()


# ----------------------------------------------------------------------------------------- the work


@given(st.integers(1, 3000), st.data())
@settings(max_examples=30, deadline=None)
def test_plain_computes_every_distance(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(n, 40)))
    picks, visited = fps.count_plain(clouds.uniform(n), k)
    assert (len(picks), visited) == (k, n * (k - 1))


@pytest.mark.parametrize("point_skip", [False, True])
def test_radius_computes_few_distances_on_a_lidar_sweep(point_skip: bool) -> None:
    n, k = 100_000, 25_000
    _, visited = count_radius(clouds.lidar(n, seed=6), k, point_skip=point_skip)
    assert n <= visited < 0.1 * n * k


@pytest.mark.parametrize("n", [1000, 10_000])
def test_points_that_all_coincide_cost_one_look_each(n: int) -> None:
    same = np.ones((n, 3), np.float32)
    for count in (fps.count_plain, fps.count_kd_tree, count_radius):
        picks, visited = count(same, n, 5)
        assert picks.tolist() == [5, *(i for i in range(n) if i != 5)]
        assert visited <= n


PEAK = """
import re, sys
import numpy as np
from pathlib import Path
from assay.kernels.radius_fps import fps
from assay.kernels.radius_fps import radius
from assay.kernels.radius_fps.sphere_tree import voxelise

def resident(line):
    return 1024 * int(re.search(line + r":\\s*(\\d+) kB", Path("/proc/self/status").read_text()).group(1))

cloud = np.load(sys.argv[1])
radius(cloud[:2000], 10)  # compiled code comes into memory
Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
before = resident("VmRSS")
radius(cloud, len(cloud) // 100)
peak = resident("VmHWM") - before
voxels = len(voxelise(cloud, *fps.records(cloud), 192, 1e37)) - 1
print(peak, voxels)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of memory cannot be reset here")
def test_radius_needs_little_memory_beyond_its_input(tmp_path: Path) -> None:
    n = 1_000_000
    np.save(tmp_path / "cloud.npy", clouds.lidar(n))
    # Every array apart from the heap: freed memory is given back at once, and none is reused unseen.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "cloud.npy"], env=environment, text=True, capture_output=True
    )
    if "PermissionError" in done.stderr or "OSError" in done.stderr:
        pytest.skip("the peak of memory cannot be reset here")
    assert done.returncode == 0, done.stderr
    peak, voxels = map(int, done.stdout.split())
    assert 16 * n <= peak <= 28 * n + 120 * voxels  # at least the points themselves, each with an index


# ----------------------------------------------------------------------------------------- the input

LINE = np.array([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]])


@every_sampler
def test_any_array_of_numbers_will_do_and_none_is_modified(sampler: Sampler) -> None:
    base = np.random.default_rng(7).normal(size=(500, 5)).astype(np.float32)
    inputs = {
        "columns of a wider array": base[:, 1:4],
        "every other row": np.repeat(base[:, :3], 2, axis=0)[::2],
        "backwards": base[::-1, :3],
        "column by column": np.asfortranarray(base[:, :3]),
        "a list": base[:60, :3].tolist(),
        "integers": (base[:, :3] * 50).astype(np.int16),
        "unsigned": np.abs(base[:, :3] * 50).astype(np.uint64),
    }
    for name, cloud in inputs.items():
        array = np.asarray(cloud)
        kept = array.copy()
        floats = array if array.dtype.kind == "f" else array.astype(np.float64)
        assert sampler(cloud, 50, start=3).tolist() == oracle.sample(floats, 50, 3), name
        assert np.array_equal(array, kept), name


@every_sampler
def test_read_only_input(sampler: Sampler) -> None:
    cloud = clouds.uniform(300)
    cloud.flags.writeable = False
    assert sampler(cloud, 30).tolist() == oracle.sample(cloud, 30)


@every_sampler
def test_picks_are_a_fresh_array_of_indices(sampler: Sampler) -> None:
    picks = sampler(LINE, 3)
    assert (picks.dtype, picks.shape, picks.flags.writeable) == (np.int64, (3,), True)
    assert picks is not sampler(LINE, 3)


@every_sampler
@pytest.mark.parametrize(
    ("points", "k", "start", "complaint"),
    [
        ([], 1, 0, "shape"),
        (np.empty((0, 3)), 1, 0, "shape"),
        (np.zeros(3), 1, 0, "shape"),
        (np.zeros((3, 2)), 1, 0, "shape"),
        (np.zeros((3, 4)), 1, 0, "shape"),
        (np.zeros((3, 3, 1)), 1, 0, "shape"),
        (7.0, 1, 0, "shape"),
        ([[0, 0, 0], [1, 1]], 1, 0, "shape"),
        ([[0, 0, 0], [0, np.nan, 0]], 1, 0, "row 1"),
        ([[0, 0, np.inf], [0, 0, 0]], 1, 0, "row 0"),
        ([[0, 0, 0], [-np.inf, np.inf, 0]], 1, 0, "row 1"),
        (LINE, 0, 0, "k must"),
        (LINE, -1, 0, "k must"),
        (LINE, 5, 0, "k must"),
        (LINE, 1, 4, "start must"),
        (LINE, 1, -1, "start must"),
        (LINE.astype(complex), 1, 0, "complex128"),
        (LINE.astype(np.float16), 1, 0, "float16"),
        (LINE.astype(bool), 1, 0, "bool"),
        (LINE.astype(object), 1, 0, "object"),
        (LINE.astype(str), 1, 0, "<U"),
    ],
)
def test_bad_input_is_one_clear_line(sampler: Sampler, points: Any, k: int, start: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        sampler(points, k, start)
    assert len(str(caught.value).splitlines()) == 1


@every_sampler
def test_counts_that_are_not_whole_are_one_clear_line(sampler: Sampler) -> None:
    for k, start in [(2.5, 0), (2.0, 0), (float("nan"), 0), ("2", 0), (None, 0), (2, 0.5), (2, "0"), (2, None)]:
        with pytest.raises(ValueError, match="whole number") as caught:
            sampler(LINE, k, start)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda size: fps.kd_tree(LINE, 2, leaf_size=size),
        lambda size: radius(LINE, 2, points_per_voxel=size),
    ],
    ids=["leaf_size", "points_per_voxel"],
)
def test_sizes_below_one_are_one_clear_line_and_large_ones_are_fine(call: Callable[[int], Any]) -> None:
    for size in (0, -1, -(10**6)):
        with pytest.raises(ValueError, match="at least 1") as caught:
            call(size)
        assert len(str(caught.value).splitlines()) == 1
    assert call(2**62).tolist() == [0, 2]
