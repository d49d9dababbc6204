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

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

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
    INLINE,
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
def _fill_rest(out, done, n):
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
            _fill_rest(out, i, n)
            break
        p = _kd_farthest(dmax, d, order, depth, stack)
        out[i], sx, sy, sz = order[p], x[p], y[p], z[p]
    return out, visited


def kd_tree(points: ArrayLike, k: int, start: int = 0, leaf_size: int = 64) -> Indices:
    """Indices of ``k`` farthest points, pruning by the boxes of a k-d tree.

    >>> kd_tree([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3).tolist()
    [0, 2, 1]
    """
    return count("kd_tree", points, k, start, leaf_size=leaf_size)[0]


# --------------------------------------------------------------------------- spherical voxels


@njit(**INLINE)
def _sweep_skip(x, y, z, d, sx, sy, sz):
    """The paper's point test: |dx|, |dy| or |dz| at least the present distance -> skip.

    Compared as squares, where rounding is monotone: dx*dx >= d implies the whole sum >= d.
    Returns max d and the number of distances computed in full.
    """
    top, full = sx - sx, 0
    for j in range(len(d)):
        old, dx, dy, dz = d[j], x[j] - sx, y[j] - sy, z[j] - sz
        if dx * dx < old and dy * dy < old and dz * dz < old:
            full += 1
            new = (dx * dx + dy * dy) + dz * dz
            if new < old:
                d[j] = old = new
        top = max(top, old)
    return top, full


@njit(**INLINE)
def _test_group(groups, g, sx, sy, sz, gap):
    """Squared distances from the sample to each sibling's centre and farthest point.

    Only arithmetic, no comparison: a loop this short becomes vector code only if it is plain.
    """
    for j in range(FAN):
        ex, ey, ez = groups[g, CX, j] - sx, groups[g, CY, j] - sy, groups[g, CZ, j] - sz
        gap[0, j] = (ex * ex + ey * ey) + ez * ez
    for j in range(FAN):
        ax, ay, az = groups[g, AX, j] - sx, groups[g, AY, j] - sy, groups[g, AZ, j] - sz
        gap[1, j] = (ax * ax + ay * ay) + az * az


@njit(**INLINE)
def _descend(groups, level, sx, sy, sz, seen, affected, mark, gap):
    """List what the sample reaches, level by level; the last stretch of the list is voxels.

    Level L of the list is ``seen[mark[L + 1]:mark[L]]``; for L > 0 it holds groups of level L - 1,
    for L = 0 voxels.  ``affected`` says whether the node's farthest point comes closer.
    """
    top = len(level) - 2
    seen[0], affected[0] = level[top], True
    mark[top + 2], mark[top + 1] = 0, 1
    a, b = 0, 1
    for up in range(top, -1, -1):
        base = level[up - 1] if up else 0
        e = b
        for q in range(a, b):
            g = np.int64(seen[q])
            _test_group(groups, g, sx, sy, sz, gap)
            child = base + FAN * (g - level[up])
            for j in range(FAN):  # always written, kept only if in reach: no branch to mispredict
                seen[e], affected[e] = child + j, gap[1, j] < groups[g, DMAX, j]
                e += np.int64(gap[0, j] <= groups[g, REACH, j])
        a, b = b, e
        mark[up] = e
    return a, b


@njit(**INLINE)
def _apply(flat, starts, v, samples, i, notes, noted, groups, arg, skip, guard, tiny):
    """Bring voxel ``v`` up to date with sample ``i`` and those noted; return distances computed.

    The newest sample comes first: it lowers the voxel's reach, so many noted ones drop out.
    """
    first, m = np.int64(starts[v]), np.int64(starts[v + 1] - starts[v])
    o = 4 * first
    x, y, z = flat[o : o + m], flat[o + m : o + 2 * m], flat[o + 2 * m : o + 3 * m]
    d = flat[o + 3 * m : o + 4 * m]
    g, lane = v // FAN, v % FAN
    cx, cy, cz = groups[g, CX, lane], groups[g, CY, lane], groups[g, CZ, lane]
    dmax, visited = groups[g, DMAX, lane], 0
    s = i
    for u in range(noted[v], -1, -1):  # sample i, then the notes from the newest to the oldest
        sx, sy, sz = samples[s, 0], samples[s, 1], samples[s, 2]
        ex, ey, ez = cx - sx, cy - sy, cz - sz
        if (ex * ex + ey * ey) + ez * ez <= groups[g, REACH, lane]:
            if skip:
                dmax, full = _sweep_skip(x, y, z, d, sx, sy, sz)
                visited += full
            else:
                dmax = sweep(x, y, z, d, sx, sy, sz)
                visited += m
            groups[g, REACH, lane] = reach(groups[g, RADIUS, lane], dmax, guard, tiny)
        if u:
            s = np.int64(notes[v, u - 1])
    noted[v] = 0
    set_voxel(groups, arg, g, lane, x, y, z, d, first, dmax, guard, tiny)
    return visited


@njit(**JIT)
def _radius(rec, starts, groups, arg, order, level, k, start, skip, guard, tiny):
    voxels, top = len(starts) - 1, len(level) - 2
    root = level[top]
    samples, flat = np.empty((k, 3), rec.dtype), rec.reshape(rec.size)
    notes, noted = np.empty((voxels, NOTES), np.int32), np.zeros(voxels, np.int64)
    seen = np.empty(len(groups) * (FAN + 1) + FAN, np.int32)
    affected, gap = np.empty(len(seen), np.bool_), np.empty((2, FAN), rec.dtype)
    mark = np.empty(len(level) + 1, np.int64)
    out = np.empty(k, np.int64)
    out[0] = start
    visited = len(rec)  # the first sample's distances came with the tree
    for i in range(1, k):
        lane = best_lane(groups, arg, order, root)
        if groups[root, DMAX, lane] <= 0:
            _fill_rest(out, i, len(rec))
            break
        out[i] = order[arg[root, lane]]
        sx, sy, sz = groups[root, AX, lane], groups[root, AY, lane], groups[root, AZ, lane]
        samples[i, 0], samples[i, 1], samples[i, 2] = sx, sy, sz
        a, b = _descend(groups, level, sx, sy, sz, seen, affected, mark, gap)
        for q in range(a, b):
            v = np.int64(seen[q])
            if not affected[q] and noted[v] < NOTES:
                notes[v, noted[v]] = i
                noted[v] += 1
            else:
                visited += _apply(flat, starts, v, samples, i, notes, noted, groups, arg, skip, guard, tiny)
        # Only nodes whose farthest point was affected can have changed, children before parents.
        for up in range(1, top + 1):
            for q in range(mark[up + 1], mark[up]):
                if affected[q]:
                    g = np.int64(seen[q])
                    parent = FAN * level[up] + g - level[up - 1]
                    pull(groups, arg, order, g, parent, guard, tiny)
    return out, visited


def radius(
    points: ArrayLike,
    k: int,
    start: int = 0,
    points_per_voxel: int = 192,
    point_skip: bool = False,
) -> Indices:
    """Indices of ``k`` farthest points, pruning by the bounding spheres of adaptive voxels.

    ``points_per_voxel`` is the most points a voxel may hold (128 to 384 is best on most clouds).
    ``point_skip`` turns on the paper's per-coordinate test inside voxels: fewer distances, but
    branches in place of vector code, hence slower here.

    >>> radius([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3).tolist()
    [0, 2, 1]
    """
    return count("radius", points, k, start, points_per_voxel=points_per_voxel, point_skip=point_skip)[0]


# --------------------------------------------------------------------------- counting


def count(
    sampler: str,
    points: ArrayLike,
    k: int,
    start: int = 0,
    *,
    leaf_size: int = 64,
    points_per_voxel: int = 192,
    point_skip: bool = False,
) -> tuple[Indices, int]:
    """Run a sampler by name; also return how many point distances it computed.

    >>> indices, visited = count("plain", [[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3)
    >>> visited
    8
    """
    cloud, k, start = _checked(points, k, start)
    if sampler == "plain":
        out, visited = _plain(cloud, k, start)
        return out, int(visited)
    single = cloud.dtype == np.float32
    rec = np.empty((len(cloud), 4), cloud.dtype)
    ids = rec.view(np.int32 if single else np.int64)
    if sampler == "kd_tree":
        if leaf_size < 1:
            raise ValueError(f"leaf_size must be at least 1, got {leaf_size}")
        out, visited = _kd_tree(cloud, rec, ids, k, start, int(leaf_size))
    elif sampler == "radius":
        if points_per_voxel < 1:
            raise ValueError(f"points_per_voxel must be at least 1, got {points_per_voxel}")
        # Relative and absolute guard of the sphere test, and the widest extent a grid may have.
        guard, tiny, huge = (2.0**-20, 2.0**-122, 1e37) if single else (2.0**-49, 2.0**-1000, 1e300)
        starts = voxelise(cloud, rec, ids, int(points_per_voxel), huge)
        tree = sphere_tree(rec, ids, starts, cloud[start], guard, tiny)
        out, visited = _radius(rec, starts, *tree, k, start, bool(point_skip), guard, tiny)
    else:
        raise ValueError(f"sampler must be 'plain', 'kd_tree' or 'radius', got {sampler!r}")
    return out, int(visited)
