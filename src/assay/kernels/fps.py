"""Exact farthest point sampling (FPS): plain, k-d tree and spherical-voxel samplers.

The rule shared by all samplers, bit for bit: the first sample is ``start``; each next one is the
unsampled point with the largest squared distance to the samples so far, ties going to the
smallest original index.  The squared distance is ``(dx*dx + dy*dy) + dz*dz`` in the cloud's own
type (float32 or float64), each operation rounded by itself.

* :func:`plain` - every sample is compared with every point, in vector code: n*k distances.
* :func:`kd_tree` - points in the leaves of a k-d tree with tight boxes; a box is entered only if
  the new sample is nearer to it than its farthest point is to the samples (after QuickFPS).
* :func:`radius` - after *RadiusFPS: Efficient Farthest Point Sampling on CPUs and GPUs via
  Spherical Voxel Pruning*, Yu, Li, Chang, Miyazaki, arXiv:2606.06255: points in voxels, each with
  a bounding sphere and the largest distance ``dmax`` of its points.  A sample farther from the
  centre than sphere radius plus sqrt(dmax) cannot change the voxel, so as samples grow dense each
  one touches only its neighbourhood.

What :func:`radius` adds to the paper's scheme (the index is described in
:mod:`assay.kernels.fps_index`): voxels that follow the density, a tree of spheres in place of a
flat list, the next sample read off the root because every node knows its farthest point, and
deferred work: a sample that reaches a voxel but does not come closer to the voxel's *farthest*
point leaves ``dmax`` as it is, so it is only noted, and applied (if still in reach) when the
farthest point itself is affected.  Neither choice can alter a result, only the work done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from assay.kernels.fps_index import (
    AX,
    AY,
    AZ,
    CX,
    CY,
    CZ,
    DMAX,
    FAN,
    JIT,
    RADIUS,
    REACH,
    best_lane,
    bounds,
    pull,
    reach,
    set_voxel,
    sphere_tree,
    sweep,
    voxelise,
)

Indices = NDArray[np.int64]

NOTES = 8  # samples a voxel may hold back before they must be applied
BLOCK = 1024  # points per block of the plain sampler: its distances stay in the first-level cache


def _checked(points: ArrayLike, k: int, start: int) -> tuple[NDArray[Any], int, int]:
    """The cloud as a C-contiguous float array, or one clear complaint."""
    cloud = np.asarray(points)
    if cloud.ndim != 2 or cloud.shape[1] != 3 or cloud.shape[0] == 0:
        raise ValueError(f"points must have shape (n, 3) with n >= 1, got {cloud.shape}")
    if cloud.dtype.kind in "iu":
        cloud = cloud.astype(np.float64)
    if cloud.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"points must be float32, float64 or integers, got {cloud.dtype}")
    n = cloud.shape[0]
    if n >= 2**29:
        raise ValueError(f"at most 2**29 - 1 points are supported, got {n}")
    if not 1 <= k <= n:
        raise ValueError(f"k must lie in 1..n = 1..{n}, got {k}")
    if not 0 <= start < n:
        raise ValueError(f"start must lie in 0..n-1 = 0..{n - 1}, got {start}")
    # A sum is finite only if its terms are; only a suspicious sum asks for the slow test.
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(cloud.sum())
    if suspicious and not np.isfinite(cloud).all():
        row = int(np.flatnonzero(~np.isfinite(cloud).all(axis=1))[0])
        raise ValueError(f"points must be finite, but row {row} is {cloud[row].tolist()}")
    return np.ascontiguousarray(cloud), int(k), int(start)


@njit(**JIT)
def _fill_rest(out, done, n):  # type: ignore[no-untyped-def]
    """All points left coincide with samples (distance 0): take them in index order."""
    taken = np.zeros(n, np.bool_)
    for i in range(done):
        taken[out[i]] = True
    p = 0
    while done < len(out):
        if not taken[p]:
            out[done] = p
            done += 1
        p += 1


# --------------------------------------------------------------------------- plain


@njit(**JIT)
def _plain(points, k, start):  # type: ignore[no-untyped-def]
    n = len(points)
    x, y, z = np.empty(n, points.dtype), np.empty(n, points.dtype), np.empty(n, points.dtype)
    d = np.empty(n, points.dtype)
    for i in range(n):
        x[i], y[i], z[i], d[i] = points[i, 0], points[i, 1], points[i, 2], np.inf
    out = np.empty(k, np.int64)
    out[0] = s = start
    visited = 0
    for i in range(1, k):
        sx, sy, sz = x[s], y[s], z[s]
        top, where = sx - sx, -1
        for a in range(0, n, BLOCK):
            b = min(a + BLOCK, n)
            m = sweep(x[a:b], y[a:b], z[a:b], d[a:b], sx, sy, sz)
            if m > top:  # strictly: of equal blocks the first stays
                top, where = m, a
        visited += n
        if where < 0:
            _fill_rest(out, i, n)
            break
        s = where
        while d[s] != top:
            s += 1
        out[i] = s
    return out, visited


def plain(points: ArrayLike, k: int, start: int = 0) -> Indices:
    """Indices of ``k`` farthest points, comparing each sample with every point.

    >>> plain([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3).tolist()
    [0, 2, 1]
    """
    return count("plain", points, k, start)[0]
