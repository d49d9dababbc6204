"""Points in voxels for the GPU: leaves of an octree with a sphere each, or of a k-d tree with a box each.

Only NumPy is imported: `benchmarks/h200_radius_fps.py` reads this file on machines that have no assay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVELS = 16  # of the octree: 2^16 cells an axis


@dataclass(frozen=True)
class Voxels:
    """Points in the order of their voxels, and what bounds each voxel."""

    points: NDArray[np.float32]  # (3, n)
    index: NDArray[np.int32]  # where each point was
    start: NDArray[np.int32]
    bounds: NDArray[np.float32]  # (4, v): centres and radii; or (6, v): lows and highs

    @property
    def bytes(self) -> int:
        """On the GPU: with a distance a point, and the farthest point of each voxel."""
        voxels = len(self.start) - 1
        return int(self.points.nbytes + 2 * self.index.nbytes + self.start.nbytes + self.bounds.nbytes + 16 * voxels)


def _spread(cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Two zero bits before each of 16 bits."""
    x = cells & np.uint64(0xFFFF)
    for by, mask in ((16, 0xFF0000FF), (8, 0xF00F00F00F), (4, 0xC30C30C30C3), (2, 0x249249249249)):
        x = (x | (x << np.uint64(by))) & np.uint64(mask)
    return x


def octree(cloud: NDArray[np.float32], most: int = 64) -> Voxels:
    """Cubes halved until none holds more than `most` points (or 16 times); each with its points' own sphere.

    >>> made = octree(np.random.default_rng(0).random((500, 3)).astype(np.float32), most=32)
    >>> int(np.diff(made.start).max()) <= 32, len(made.index)
    (True, 500)
    """
    low, side = cloud.min(0), float((cloud.max(0) - cloud.min(0)).max()) or 1.0
    cells = np.minimum(((cloud - low) / side * 2.0**LEVELS).astype(np.uint64), np.uint64(2**LEVELS - 1))
    code = _spread(cells[:, 0]) | _spread(cells[:, 1]) << np.uint64(1) | _spread(cells[:, 2]) << np.uint64(2)
    order = np.argsort(code, kind="stable")
    code = code[order]
    cuts, rest = np.zeros(len(cloud), np.bool_), np.ones(len(cloud), np.bool_)
    cuts[0] = True
    for level in range(LEVELS + 1):
        prefix = code >> np.uint64(3 * (LEVELS - level))
        begins = np.flatnonzero(np.concatenate([[True], prefix[1:] != prefix[:-1]]))
        counts = np.diff(np.append(begins, len(cloud)))
        fresh = rest[begins]  # of cubes that were still too full a level above
        cuts[begins[fresh]] = True
        rest &= np.repeat(counts > most, counts)
        if not rest.any():
            break
    start = np.append(np.flatnonzero(cuts), len(cloud)).astype(np.int32)
    return _bounded(cloud, order, start, spheres=True)


def kd_tree(cloud: NDArray[np.float32], most: int = 64) -> Voxels:
    """Halved at the median of the wider side until no leaf holds more than `most`; each with its points' own box.

    >>> made = kd_tree(np.random.default_rng(0).random((500, 3)).astype(np.float32), most=32)
    >>> len(made.start) - 1, made.bounds.shape
    (16, (6, 16))
    """
    order, start = np.arange(len(cloud)), np.array([0, len(cloud)])
    while np.diff(start).max() > most:
        leaf = np.repeat(np.arange(len(start) - 1), np.diff(start))
        points = cloud[order]
        spans = np.maximum.reduceat(points, start[:-1]) - np.minimum.reduceat(points, start[:-1])
        wide = points[np.arange(len(points)), spans.argmax(1)[leaf]]
        order = order[np.lexsort((wide, leaf))]
        start = np.sort(np.concatenate([start, (start[:-1] + start[1:]) // 2]))
    return _bounded(cloud, order, start.astype(np.int32), spheres=False)


def _bounded(cloud: NDArray[np.float32], order: Any, start: Any, spheres: bool) -> Voxels:
    points = cloud[order]
    low, high = np.minimum.reduceat(points, start[:-1]), np.maximum.reduceat(points, start[:-1])
    if spheres:
        centre = (low + high) / 2
        leaf = np.repeat(np.arange(len(start) - 1), np.diff(start))
        away = np.sqrt(((points.astype(np.float64) - centre[leaf]) ** 2).sum(1))
        radius = np.maximum.reduceat(away, start[:-1]) * (1 + 1e-6)
        bounds = np.concatenate([centre.T, radius[None].astype(np.float32)])
    else:
        bounds = np.concatenate([low.T, high.T])
    return Voxels(
        np.ascontiguousarray(points.T), order.astype(np.int32), start, np.ascontiguousarray(bounds, np.float32)
    )  # fmt: skip
