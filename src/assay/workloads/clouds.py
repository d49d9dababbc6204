"""Point clouds, generated: the kinds of density a point-cloud kernel has to live with.

* :func:`lidar` - one sweep of a spinning 64-beam sensor in a city of boxes: rings on the
  ground, density falling with the square of the range, shadows behind obstacles;
* :func:`indoor` - a furnished room: planar walls, floor and boxes, even density per area;
* :func:`uniform` - a filled cube, the friendliest case for a grid;
* :func:`clustered` - Gaussian blobs of very different sizes, the least friendly one.

Files are read by :mod:`assay.workloads.cloud_files`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream

Cloud32 = NDArray[np.float32]

BEAMS = 64
SENSOR_HEIGHT = 1.73  # metres above the ground, a roof-mounted sensor
MAX_RANGE = 120.0
RANGE_NOISE = 0.02


def _count(n: int) -> int:
    if int(n) != n or n < 1:
        raise ValueError(f"n must be a whole number of points >= 1, got {n!r}")
    return int(n)


# --------------------------------------------------------------------------- LiDAR


def _city(rng: np.random.Generator) -> NDArray[np.float64]:
    """Axis-aligned boxes as rows (x0, x1, y0, y1, height): blocks, cars, poles."""
    rows: list[NDArray[np.float64]] = []

    def add(x: Any, y: Any, sx: Any, sy: Any, h: Any) -> None:
        rows.append(np.stack([x - sx / 2, x + sx / 2, y - sy / 2, y + sy / 2, h], axis=1))

    # Buildings on a street grid of 40 m; the sensor stands on a crossing, so none covers it.
    gx, gy = np.meshgrid(np.arange(-100.0, 101.0, 40.0), np.arange(-100.0, 101.0, 40.0))
    cx, cy = gx.ravel(), gy.ravel()
    m = cx.size
    add(
        cx + rng.uniform(-2, 2, m),
        cy + rng.uniform(-2, 2, m),
        rng.uniform(12, 26, m),
        rng.uniform(12, 26, m),
        rng.uniform(4, 25, m),
    )
    # Parked cars along the two streets through the crossing, on both sides.
    m = 40
    x, y, on_x = _roadside(rng, m, along=(6, 90), aside=(3.5, 4.5))
    add(x, y, np.where(on_x, 4.2, 1.8), np.where(on_x, 1.8, 4.2), rng.uniform(1.4, 1.9, m))
    # Poles and trunks.
    x, y, _ = _roadside(rng, m, along=(5, 80), aside=(5.5, 6.5))
    add(x, y, np.full(m, 0.3), np.full(m, 0.3), rng.uniform(3, 8, m))
    return np.concatenate(rows)


def _roadside(
    rng: np.random.Generator, m: int, along: tuple[float, float], aside: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Places beside the two streets through the crossing, and which of them lie along the one in x."""
    far = rng.uniform(*along, m) * rng.choice([-1.0, 1.0], m)
    side = rng.uniform(*aside, m) * rng.choice([-1.0, 1.0], m)
    on_x = rng.random(m) < 0.5
    return np.where(on_x, far, side), np.where(on_x, side, far), on_x


def _sweep(boxes: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """Horizontal distance to the first hit per (azimuth, beam); ``inf`` where the ray escapes."""
    azimuth = np.arange(steps) * (2 * np.pi / steps)
    slope = np.tan(np.radians(np.linspace(-24.8, 2.0, BEAMS)))
    ux, uy = np.cos(azimuth)[:, None], np.sin(azimuth)[:, None]
    with np.errstate(divide="ignore"):
        ground = np.where(slope < 0, -SENSOR_HEIGHT / slope, np.inf)
        tx0, tx1 = boxes[:, 0] / ux, boxes[:, 1] / ux
        ty0, ty1 = boxes[:, 2] / uy, boxes[:, 3] / uy
    enter = np.maximum(np.minimum(tx0, tx1), np.minimum(ty0, ty1))
    leave = np.minimum(np.maximum(tx0, tx1), np.maximum(ty0, ty1))
    # Boxes stand on the ground, so one plan-view slab test serves all beams of an azimuth;
    # only the few (azimuth, box) pairs that meet are looked at beam by beam.
    step, box = np.nonzero((enter <= leave) & (enter > 0))
    near, far = enter[step, box][:, None], leave[step, box][:, None]
    top = boxes[box, 4][:, None] - SENSOR_HEIGHT
    with np.errstate(divide="ignore", invalid="ignore"):
        roof = top / slope
    hit = np.where(near * slope <= top, near, np.where(far * slope <= top, roof, np.inf))
    dist = np.broadcast_to(ground, (steps, BEAMS)).copy()
    if step.size:
        first = np.flatnonzero(np.r_[True, step[1:] != step[:-1]])
        dist[step[first]] = np.minimum(dist[step[first]], np.minimum.reduceat(hit, first, axis=0))
    reach = dist * np.sqrt(1 + slope * slope)
    return np.where(reach <= MAX_RANGE, dist, np.inf)


def lidar(n: int, seed: int = 0) -> Cloud32:
    """Exactly ``n`` points of one sweep of a 64-beam spinning sensor in a box city.

    The azimuth step is chosen so that enough rays hit something; a surplus is dropped evenly
    over the sweep.  Points come in firing order (azimuth by azimuth), as sensors deliver them.

    >>> lidar(1000, seed=1).shape
    (1000, 3)
    """
    n = _count(n)
    rng = stream(seed, "cloud", "lidar")
    boxes = _city(rng)
    share = float(np.isfinite(_sweep(boxes, 720)).mean())
    steps = max(32, int(1.01 * n / (BEAMS * share)) + 1)
    dist = _sweep(boxes, steps)
    while np.isfinite(dist).sum() < n:
        steps += steps // 50 + 1
        dist = _sweep(boxes, steps)
    step, beam = np.nonzero(np.isfinite(dist))
    keep = np.arange(n) * step.size // n
    step, beam = step[keep], beam[keep]
    flat = dist[step, beam]
    angle = step * (2 * np.pi / steps)
    slope = np.tan(np.radians(np.linspace(-24.8, 2.0, BEAMS)))[beam]
    # Noise acts along the ray, so it scales all three coordinates of a point alike.
    flat *= 1 + rng.normal(0, RANGE_NOISE, n) / (flat * np.sqrt(1 + slope * slope))
    xyz = (flat * np.cos(angle), flat * np.sin(angle), flat * slope + SENSOR_HEIGHT)
    return np.stack(xyz, axis=1).astype(np.float32)


# --------------------------------------------------------------------------- other scenes


def _box_faces(lo: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Six faces of a box, each as (origin, edge u, edge v): shape (6, 3, 3)."""
    e = np.diag(size)
    faces = [(lo, e[i], e[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    faces += [(lo + e[k], e[i], e[j]) for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0))]
    return np.array(faces)


def indoor(n: int, seed: int = 0) -> Cloud32:
    """``n`` points spread evenly over the surfaces of a furnished room, 2 mm noise.

    >>> indoor(500, seed=1).dtype
    dtype('float32')
    """
    n = _count(n)
    rng = stream(seed, "cloud", "indoor")
    room = np.array([rng.uniform(5, 9), rng.uniform(4, 7), rng.uniform(2.4, 3.2)])
    faces = [_box_faces(np.zeros(3), room)]
    for _ in range(14):
        size = rng.uniform([0.3, 0.3, 0.3], [1.8, 1.2, 1.6])
        lo = rng.uniform(0, 1, 3) * (room - size) * [1, 1, 0]
        faces.append(_box_faces(lo, size))
    plane = np.concatenate(faces)
    area = np.linalg.norm(plane[:, 1], axis=1) * np.linalg.norm(plane[:, 2], axis=1)
    which = rng.choice(len(plane), size=n, p=area / area.sum())
    u, v = rng.random((2, n, 1))
    points = plane[which, 0] + u * plane[which, 1] + v * plane[which, 2]
    cloud: Cloud32 = (points + rng.normal(0, 0.002, (n, 3))).astype(np.float32)
    return cloud


def uniform(n: int, seed: int = 0) -> Cloud32:
    """``n`` points evenly filling the unit cube.

    >>> bool((uniform(10, seed=3) < 1).all())
    True
    """
    cloud: Cloud32 = stream(seed, "cloud", "uniform").random((_count(n), 3), dtype=np.float32)
    return cloud


def clustered(n: int, seed: int = 0) -> Cloud32:
    """``n`` points in Gaussian blobs whose sizes and populations span three decades.

    >>> clustered(10, seed=3).shape
    (10, 3)
    """
    n = _count(n)
    rng = stream(seed, "cloud", "clustered")
    blobs = 60
    weight = 10.0 ** rng.uniform(-2, 1, blobs)
    which = rng.choice(blobs, size=n, p=weight / weight.sum())
    centre = rng.uniform(-50, 50, (blobs, 3))
    sigma = 10.0 ** rng.uniform(-2, 1, blobs)
    points = centre[which] + sigma[which, None] * rng.normal(size=(n, 3))
    return points.astype(np.float32)
