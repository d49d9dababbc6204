"""Exact farthest point sampling (FPS): the rule, and the samplers that others are compared with.

The rule shared by all samplers, bit for bit: the first sample is ``start``; each next one is the unsampled point with
the largest squared distance to the samples so far, ties going to the smallest original index. The squared distance is
``(dx*dx + dy*dy) + dz*dz`` in the cloud's own type (float32 or float64), each operation rounded by itself.

* :func:`plain` - every sample is compared with every point, in vector code: n*k distances.
* :func:`kd_tree` - points in the leaves of a k-d tree with tight boxes; a box is entered only if the new sample is
  nearer to it than its farthest point is to the samples (after QuickFPS, Han et al., TCAD 2023).

A third one, by spherical voxels, is the paper in :mod:`assay.kernels.radius_fps`.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.kernels.engine.arrays import plain as plain_array
from assay.kernels.radius_fps.sphere_tree import JIT, bounds, sweep
from assay.record.errors import BadInput
from assay.sim.compiled import njit

Indices = NDArray[np.int64]
Counted = tuple[Indices, int]

EXACT = 2**53  # whole numbers up to here are float64's own
BLOCK = 1024  # points per block of the plain sampler: its distances stay in the first-level cache


def checked(points: ArrayLike, k: int, start: int) -> tuple[NDArray[Any], int, int]:
    """The cloud as a C-contiguous float array, or one clear complaint."""
    try:
        cloud = plain_array(points, "points")
    except BadInput as error:
        raise ValueError(str(error)) from None
    if cloud.ndim != 2 or cloud.shape[1] != 3 or cloud.shape[0] == 0:
        raise ValueError(f"points must have shape (n, 3) with n >= 1, got {cloud.shape}")
    if cloud.dtype.kind in "iu":
        if max(int(cloud.max()), -int(cloud.min())) > EXACT:
            raise ValueError("points beyond 2**53 would be rounded: scale them, or give floats")
        cloud = cloud.astype(np.float64)
    if cloud.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"points must be float32, float64 or integers, got {cloud.dtype}")
    try:
        k, start = operator.index(k), operator.index(start)
    except TypeError:
        raise ValueError(f"k and start must be whole numbers, got {k!r} and {start!r}") from None
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
    return np.ascontiguousarray(cloud), k, start


@njit(**JIT)
def fill_rest(out, done, n):
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
def _plain(points, k, start):
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
            fill_rest(out, i, n)
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
    return count_plain(points, k, start)[0]


def count_plain(points: ArrayLike, k: int, start: int = 0) -> Counted:
    """As :func:`plain`, and how many point distances it computed.

    >>> count_plain([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3)[1]
    8
    """
    cloud, k, start = checked(points, k, start)
    out, visited = _plain(cloud, k, start)
    return out, int(visited)


# --------------------------------------------------------------------------- k-d tree


@njit(**JIT)
def _select(rec, ids, lo, hi, mid, axis):
    """Order rows [lo, hi) so that none before ``mid`` exceeds one after it on ``axis``."""
    hi -= 1
    while lo < hi:
        a, b, c = rec[lo, axis], rec[(lo + hi) // 2, axis], rec[hi, axis]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = lo, hi
        while i <= j:
            while rec[i, axis] < pivot:
                i += 1
            while rec[j, axis] > pivot:
                j -= 1
            if i <= j:
                for q in range(4):  # as integers: the fourth column holds an index
                    ids[i, q], ids[j, q] = ids[j, q], ids[i, q]
                i += 1
                j -= 1
        if mid <= j:
            hi = j
        elif mid >= i:
            lo = i
        else:
            break


@njit(**JIT)
def _kd_build(rec, ids, depth):
    """Median splits on the widest axis; node 1 is the root, 2 i and 2 i + 1 the halves of i."""
    n = len(rec)
    boxes = np.empty((2 << depth, 6), rec.dtype)
    for level in range(depth + 1):
        for j in range(1 << level):
            lo, hi = (j * n) >> level, ((j + 1) * n) >> level
            x0, x1, y0, y1, z0, z1 = bounds(rec[lo:hi])
            box = boxes[(1 << level) + j]
            box[0], box[1], box[2], box[3], box[4], box[5] = x0, y0, z0, x1, y1, z1
            if level < depth:
                axis = 0
                if y1 - y0 > x1 - x0:
                    axis = 1
                if z1 - z0 > max(x1 - x0, y1 - y0):
                    axis = 2
                _select(rec, ids, lo, hi, ((2 * j + 1) * n) >> (level + 1), axis)
    return boxes


@njit(**JIT)
def _box_distance(box, sx, sy, sz):
    """Squared distance to a box; rounding is monotone, so it never exceeds a point's own."""
    zero = sx - sx
    dx = max(max(box[0] - sx, sx - box[3]), zero)
    dy = max(max(box[1] - sy, sy - box[4]), zero)
    dz = max(max(box[2] - sz, sz - box[5]), zero)
    return (dx * dx + dy * dy) + dz * dz


@njit(**JIT)
def _kd_farthest(dmax, d, order, depth, stack):
    """Sorted position of the farthest point, smallest original index first."""
    n, leaf0, top = len(d), 1 << depth, dmax[1]
    best = -1
    stack[0] = 1
    size = 1
    while size:
        size -= 1
        node = stack[size]
        if node < leaf0:
            for child in (2 * node, 2 * node + 1):
                if dmax[child] == top:
                    stack[size] = child
                    size += 1
            continue
        j = node - leaf0
        for p in range((j * n) >> depth, ((j + 1) * n) >> depth):
            if d[p] == top and (best < 0 or order[p] < order[best]):
                best = p
    return best


@njit(**JIT)
def _kd_tree(points, rec, ids, k, start, leaf_size):
    n, depth = len(points), 0
    while n >> depth > leaf_size:
        depth += 1
    for i in range(n):
        rec[i, 0], rec[i, 1], rec[i, 2] = points[i, 0], points[i, 1], points[i, 2]
        ids[i, 3] = i
    boxes = _kd_build(rec, ids, depth)
    x, y, z = np.empty(n, rec.dtype), np.empty(n, rec.dtype), np.empty(n, rec.dtype)
    d, order = np.empty(n, rec.dtype), np.empty(n, np.int32)
    for i in range(n):
        x[i], y[i], z[i], d[i] = rec[i, 0], rec[i, 1], rec[i, 2], np.inf
        order[i] = ids[i, 3]
    leaf0 = 1 << depth
    dmax = np.empty(2 * leaf0, rec.dtype)
    dmax[:] = np.inf
    stack, inner = np.empty(2 * leaf0, np.int32), np.empty(2 * leaf0, np.int32)
    out = np.empty(k, np.int64)
    out[0] = start
    sx, sy, sz = points[start, 0], points[start, 1], points[start, 2]
    visited = 0
    for i in range(1, k):
        stack[0] = 1
        size, inners = 1, 0
        while size:
            size -= 1
            node = stack[size]
            if _box_distance(boxes[node], sx, sy, sz) >= dmax[node]:
                continue
            if node < leaf0:
                inner[inners] = node
                inners += 1
                stack[size], stack[size + 1] = 2 * node, 2 * node + 1
                size += 2
                continue
            a, b = ((node - leaf0) * n) >> depth, ((node - leaf0 + 1) * n) >> depth
            dmax[node] = sweep(x[a:b], y[a:b], z[a:b], d[a:b], sx, sy, sz)
            visited += b - a
        for q in range(inners - 1, -1, -1):  # parents were noted before their children
            node = inner[q]
            dmax[node] = max(dmax[2 * node], dmax[2 * node + 1])
        if dmax[1] <= 0:
            fill_rest(out, i, n)
            break
        p = _kd_farthest(dmax, d, order, depth, stack)
        out[i], sx, sy, sz = order[p], x[p], y[p], z[p]
    return out, visited


def kd_tree(points: ArrayLike, k: int, start: int = 0, leaf_size: int = 64) -> Indices:
    """Indices of ``k`` farthest points, pruning by the boxes of a k-d tree.

    >>> kd_tree([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3).tolist()
    [0, 2, 1]
    """
    return count_kd_tree(points, k, start, leaf_size)[0]


def count_kd_tree(points: ArrayLike, k: int, start: int = 0, leaf_size: int = 64) -> Counted:
    """As :func:`kd_tree`, and how many point distances it computed.

    >>> count_kd_tree([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3)[0].tolist()
    [0, 2, 1]
    """
    cloud, k, start = checked(points, k, start)
    if leaf_size < 1:
        raise ValueError(f"leaf_size must be at least 1, got {leaf_size}")
    rows, ids = records(cloud)
    out, visited = _kd_tree(cloud, rows, ids, k, start, int(leaf_size))
    return out, int(visited)


def records(cloud: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Room for a row (x, y, z, index) a point, and the same memory seen as integers for the index.

    >>> rows, ids = records(np.zeros((5, 3), np.float32))
    >>> rows.shape, ids.dtype.name
    ((5, 4), 'int32')
    """
    rows = np.empty((len(cloud), 4), cloud.dtype)
    return rows, rows.view(np.int32 if cloud.dtype == np.float32 else np.int64)
