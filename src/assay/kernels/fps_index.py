"""Spherical-voxel tree behind :func:`assay.kernels.fps.radius`: how a cloud is cut and bounded.

*Cutting.*  A cloud is split by a counting sort on the cells of a cubic grid laid over its bounding
box, cells numbered along a Morton (Z) curve.  Neighbouring cells are joined while together they
hold no more than ``cap`` points; a cell that still holds more is split again with a grid of its
own.  The voxel size thus follows the density: a spinning LiDAR puts ten thousand points in one
cubic metre near the sensor and none in most others, where one grid for all would fail.

*Bounding.*  Each voxel gets a tight sphere, and every eight consecutive voxels one parent sphere,
up to a single group of at most eight.  Groups, not nodes, are the unit of storage: the fields of
eight siblings lie side by side, so one sample is tested against eight spheres with vector code.

*Rounding.*  For a new sample ``s`` a node may be skipped only if no point in it can come closer
to ``s`` than its present distance, *as computed in floating point*.  With ``r`` the sphere's
radius and ``dmax`` the largest squared distance in the node that is true if
``|s - c|**2 > (r + sqrt(dmax))**2``.  The right side (``REACH``) changes only with ``dmax``, so it
is stored, widened by a relative guard far above the few roundings of either side and by a tiny
absolute one for products that underflow.  Being too wide costs a visit, never a wrong sample.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

# No NaN can occur (inputs are finite) and the sign of zero is never looked at: with these two
# flags LLVM turns min/max into vector code.  'contract' and 'reassoc' would change results.
FLAGS = {"nnan", "nsz"}
JIT: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": FLAGS}

FAN = 8  # siblings per group = float32 lanes of a 256-bit register
MAX_BITS = 6  # grid bits per axis: 64**3 counters still sit in the second-level cache

# Rows of a group: sphere centre, squared reach, farthest point and its squared distance, radius.
CX, CY, CZ, REACH, AX, AY, AZ, DMAX, RADIUS = range(9)
ROWS = 9


# --------------------------------------------------------------------------- cutting


@njit(**JIT)
def bounds(rows):  # type: ignore[no-untyped-def]
    """Bounding box of rows whose first three columns are x, y, z."""
    x0 = x1 = rows[0, 0]
    y0 = y1 = rows[0, 1]
    z0 = z1 = rows[0, 2]
    for i in range(1, len(rows)):
        x, y, z = rows[i, 0], rows[i, 1], rows[i, 2]
        x0 = x if x < x0 else x0
        x1 = x if x > x1 else x1
        y0 = y if y < y0 else y0
        y1 = y if y > y1 else y1
        z0 = z if z < z0 else z0
        z1 = z if z > z1 else z1
    return x0, x1, y0, y1, z0, z1


@njit(**JIT)
def _spread_table(side):  # type: ignore[no-untyped-def]
    """Morton digits: bit i of the cell coordinate moves to bit 3 i.

    Two spare entries repeat the last one, so the far face of the box needs no clamp.
    """
    table = np.empty(side + 2, np.int32)
    for v in range(side + 2):
        c = min(v, side - 1)
        code = 0
        for b in range(MAX_BITS):
            code |= ((c >> b) & 1) << (3 * b)
        table[v] = code
    return table


@njit(**JIT)
def _count_cells(rows, x0, y0, z0, scale, table, key, end):  # type: ignore[no-untyped-def]
    """Morton cell of every row into ``key``; cell sizes, shifted by one cell, into ``end``."""
    for i in range(len(rows)):
        # Unsigned subscripts spare the test for negative ones.
        ix = table[np.uint32((rows[i, 0] - x0) * scale)]
        iy = table[np.uint32((rows[i, 1] - y0) * scale)]
        iz = table[np.uint32((rows[i, 2] - z0) * scale)]
        code = ix | (iy << 1) | (iz << 2)
        key[i] = code
        end[np.uint32(code + 1)] += 1


@njit(**JIT)
def _join_cells(end, cells, first, cap, starts, over, count):  # type: ignore[no-untyped-def]
    """Append the voxels of one grid: the largest aligned runs of cells with <= cap points.

    ``end[c]`` is one past the last row of cell ``c``.  Aligned runs of 2**t cells on a Morton
    curve are boxes at most twice as long as wide, so joining them keeps spheres small.
    """
    cell = 0
    begin = 0
    while begin < end[cells - 1]:
        run = 1
        while cell & (2 * run - 1) == 0 and end[cell + 2 * run - 1] - begin <= cap:
            run *= 2
            if run == cells:
                break
        stop = end[cell + run - 1]
        if stop > begin:
            starts[count] = first + begin
            over[count] = stop - begin > cap
            count += 1
        begin = stop
        cell += run
    return count


@njit(**JIT)
def _split(src, rec, ids, first, size, tmp_ids, key, end, cap, huge, starts, over, count):  # type: ignore[no-untyped-def]
    """Sort rows [first, first + size) of ``rec`` by cell and append their voxels.

    The first call takes the points from ``src`` (the user's array) and numbers them; later ones
    refine rows in place through ``tmp_ids``.  Points that no grid can tell apart (all equal, or
    spread beyond what a scale factor can express) are simply cut into runs of ``cap``.
    """
    fresh = len(src) > 0
    rows = src if fresh else rec[first : first + size]
    x0, x1, y0, y1, z0, z1 = bounds(rows)
    extent = max(np.float64(x1) - x0, np.float64(y1) - y0, np.float64(z1) - z0)
    bits = 1
    while bits < MAX_BITS and (8 << (3 * bits)) <= 2 * size:
        bits += 1
    side, cells = 1 << bits, 1 << (3 * bits)
    scale = side / extent if extent > 0.0 else np.inf
    if not (extent < huge and scale < huge):
        if fresh:
            for i in range(size):
                rec[i, 0], rec[i, 1], rec[i, 2] = rows[i, 0], rows[i, 1], rows[i, 2]
                ids[i, 3] = i
        for p in range(first, first + size, cap):
            starts[count], over[count] = p, False
            count += 1
        return count
    for c in range(cells + 1):
        end[c] = 0
    _count_cells(rows, x0, y0, z0, rec.dtype.type(scale), _spread_table(side), key, end)
    for c in range(cells):
        end[c + 1] += end[c]
    if fresh:
        for i in range(size):
            c = np.uint32(key[i])
            p = np.uint32(end[c])
            end[c] += 1
            rec[p, 0], rec[p, 1], rec[p, 2] = rows[i, 0], rows[i, 1], rows[i, 2]
            ids[p, 3] = i
    else:
        old = ids[first : first + size]
        for i in range(size):
            for c in range(4):
                tmp_ids[i, c] = old[i, c]
        for i in range(size):
            c = np.uint32(key[i])
            p = np.uint32(end[c])
            end[c] += 1
            for c in range(4):
                old[p, c] = tmp_ids[i, c]
    return _join_cells(end, cells, first, cap, starts, over, count)


@njit(**JIT)
def voxelise(points, rec, ids, cap, huge):  # type: ignore[no-untyped-def]
    """Fill ``rec`` with rows (x, y, z, id) in voxel order; return the voxels' first rows.

    ``ids`` is ``rec`` seen as integers: the fourth column carries the original index.  The result
    ends with a sentinel equal to n.
    """
    n = len(points)
    none = points[:0]
    key = np.empty(n, np.int32)
    end = np.empty((1 << (3 * MAX_BITS)) + 1, np.int32)
    starts, over = np.empty(n + 1, np.int32), np.empty(n + 1, np.bool_)
    starts2, over2 = np.empty(n + 1, np.int32), np.empty(n + 1, np.bool_)
    tmp_ids = ids[:0]
    zero = np.int64(0)
    count = _split(points, rec, ids, zero, n, tmp_ids, key, end, cap, huge, starts, over, zero)
    while True:
        starts[count] = n
        largest = 0
        for v in range(count):
            if over[v]:
                largest = max(largest, np.int64(starts[v + 1] - starts[v]))
        if largest == 0:
            return starts[: count + 1].copy()
        if len(tmp_ids) < largest:
            tmp_ids = np.empty((largest, 4), ids.dtype)
        refined = np.int64(0)
        for v in range(count):  # in order, so that voxels stay sorted along the curve
            if over[v]:
                a, m = np.int64(starts[v]), np.int64(starts[v + 1] - starts[v])
                refined = _split(
                    none, rec, ids, a, m, tmp_ids, key, end, cap, huge, starts2, over2, refined
                )
            else:
                starts2[refined], over2[refined] = starts[v], False
                refined += 1
        starts, starts2, over, over2, count = starts2, starts, over2, over, refined


# --------------------------------------------------------------------------- bounding


@njit(**JIT)
def sweep(x, y, z, d, sx, sy, sz):  # type: ignore[no-untyped-def]
    """Lower ``d`` to the squared distance from the sample where that is less; return max d.

    The one place where distances are computed: unit-stride arrays and a min and a max without
    branches, which LLVM turns into vector code.
    """
    top = sx - sx  # zero of the cloud's own type
    for j in range(len(d)):
        dx, dy, dz = x[j] - sx, y[j] - sy, z[j] - sz
        new = (dx * dx + dy * dy) + dz * dz
        old = d[j]
        new = new if new < old else old
        d[j] = new
        top = new if new > top else top
    return top


@njit(**JIT)
def reach(radius, dmax, guard, tiny):  # type: ignore[no-untyped-def]
    """Squared distance from a sphere's centre beyond which a sample cannot matter."""
    if dmax <= 0.0:  # every point here coincides with a sample
        return -1.0
    t = np.float64(radius) + math.sqrt(np.float64(dmax))
    return t * t * (1.0 + guard) + tiny


@njit(**JIT)
def _farthest(d, dmax, order):  # type: ignore[no-untyped-def]
    """Where d equals dmax; of several places the one with the smallest original index."""
    first, last = 0, len(d) - 1
    while d[first] != dmax:
        first += 1
    while d[last] != dmax:
        last -= 1
    if first < last:
        for j in range(first + 1, last + 1):
            if d[j] == dmax and order[j] < order[first]:
                first = j
    return first


@njit(**JIT)
def set_voxel(group, lane, arg, x, y, z, d, order, first, dmax, guard, tiny):  # type: ignore[no-untyped-def]
    """Record the farthest point of the voxel whose sorted positions begin at ``first``."""
    j = _farthest(d, dmax, order[first : first + len(d)])
    group[DMAX, lane] = dmax
    group[REACH, lane] = reach(group[RADIUS, lane], dmax, guard, tiny)
    group[AX, lane], group[AY, lane], group[AZ, lane] = x[j], y[j], z[j]
    arg[lane] = first + j


@njit(**JIT)
def best_lane(group, arg, order):  # type: ignore[no-untyped-def]
    """Sibling holding the farthest point; ties go to the smallest original index."""
    lane, dmax = 0, group[DMAX, 0]
    for j in range(1, FAN):
        v = group[DMAX, j]
        if v > dmax:
            lane, dmax = j, v
        elif v == dmax and v > 0 and order[arg[j]] < order[arg[lane]]:
            lane = j
    return lane


@njit(**JIT)
def pull(groups, arg, order, child, parent, guard, tiny):  # type: ignore[no-untyped-def]
    """Renew a node's farthest point and reach from the group of its children."""
    g, lane = parent // FAN, parent % FAN
    j = best_lane(groups[child], arg[child], order)
    for row in range(AX, DMAX + 1):
        groups[g, row, lane] = groups[child, row, j]
    dmax = groups[g, DMAX, lane]
    groups[g, REACH, lane] = reach(groups[g, RADIUS, lane], dmax, guard, tiny)
    arg[g, lane] = arg[child, j]


@njit(**JIT)
def _fill_voxels(rec, ids, starts, groups, arg, order, sample, guard, tiny):  # type: ignore[no-untyped-def]
    """Turn each voxel's rows (x, y, z, id) in place into x.. y.. z.. d.., and bound it.

    One contiguous block per voxel means one run of cache lines and one page per visit.
    """
    flat = rec.reshape(rec.size)
    widest = 0
    for v in range(len(starts) - 1):
        widest = max(widest, np.int64(starts[v + 1] - starts[v]))
    copy = np.empty((3, widest), rec.dtype)
    for v in range(len(starts) - 1):
        a, m = np.int64(starts[v]), np.int64(starts[v + 1] - starts[v])
        g, lane = v // FAN, v % FAN
        group = groups[g]
        x0, x1, y0, y1, z0, z1 = bounds(rec[a : a + m])
        # Halves are added, not the sum halved: the sum of two large finite values may overflow.
        group[CX, lane] = x0 * 0.5 + x1 * 0.5
        group[CY, lane] = y0 * 0.5 + y1 * 0.5
        group[CZ, lane] = z0 * 0.5 + z1 * 0.5
        cx, cy, cz = group[CX, lane], group[CY, lane], group[CZ, lane]
        far = 0.0
        for j in range(m):
            px, py, pz = rec[a + j, 0], rec[a + j, 1], rec[a + j, 2]
            copy[0, j], copy[1, j], copy[2, j] = px, py, pz
            order[a + j] = ids[a + j, 3]
            ex, ey, ez = np.float64(px) - cx, np.float64(py) - cy, np.float64(pz) - cz
            far = max(far, ex * ex + ey * ey + ez * ez)
        group[RADIUS, lane] = math.sqrt(far) * (1.0 + guard) + math.sqrt(tiny)
        block = flat[4 * a : 4 * (a + m)]
        for j in range(m):
            block[j], block[m + j], block[2 * m + j] = copy[0, j], copy[1, j], copy[2, j]
            block[3 * m + j] = np.inf
        x, y, z, d = block[:m], block[m : 2 * m], block[2 * m : 3 * m], block[3 * m :]
        dmax = sweep(x, y, z, d, sample[0], sample[1], sample[2])
        set_voxel(group, lane, arg[g], x, y, z, d, order, a, dmax, guard, tiny)


@njit(**JIT)
def _bound_children(groups, child, size, parent, guard, tiny):  # type: ignore[no-untyped-def]
    """Sphere around the spheres of a group: centred between the extreme centres."""
    kids, up, lane = groups[child], groups[parent // FAN], parent % FAN
    for row in range(CX, CZ + 1):
        lo = hi = kids[row, 0]
        for j in range(1, size):
            lo, hi = min(lo, kids[row, j]), max(hi, kids[row, j])
        up[row, lane] = lo * 0.5 + hi * 0.5
    far = 0.0
    for j in range(size):
        ex = np.float64(kids[CX, j]) - up[CX, lane]
        ey = np.float64(kids[CY, j]) - up[CY, lane]
        ez = np.float64(kids[CZ, j]) - up[CZ, lane]
        far = max(far, math.sqrt(ex * ex + ey * ey + ez * ez) + kids[RADIUS, j])
    up[RADIUS, lane] = far * (1.0 + guard) + math.sqrt(tiny)


@njit(**JIT)
def sphere_tree(rec, ids, starts, sample, guard, tiny):  # type: ignore[no-untyped-def]
    """Groups of spheres, bottom level first, with distances to the first sample filled in.

    Returns ``groups``, the sorted position of each node's farthest point, the original index of
    each sorted position, and the first group of each level.  Node ``FAN * g + lane`` of a level
    has the group of the same number, counted within the level below, as children.
    """
    voxels = len(starts) - 1
    level = np.zeros(16, np.int64)
    levels, nodes = 0, voxels
    while True:
        nodes = (nodes + FAN - 1) // FAN
        level[levels + 1] = level[levels] + nodes
        levels += 1
        if nodes == 1:
            break
    groups = np.zeros((level[levels], ROWS, FAN), rec.dtype)
    for g in range(len(groups)):  # lanes without a node are out of everyone's reach
        for lane in range(FAN):
            groups[g, REACH, lane] = -1.0
            groups[g, DMAX, lane] = -1.0
    arg = np.zeros((len(groups), FAN), np.int32)
    order = np.empty(len(rec), np.int32)
    _fill_voxels(rec, ids, starts, groups, arg, order, sample, guard, tiny)
    below = voxels
    for up in range(1, levels):
        for q in range(level[up] - level[up - 1]):
            child, parent = level[up - 1] + q, FAN * level[up] + q
            _bound_children(groups, child, min(FAN, below - FAN * q), parent, guard, tiny)
            pull(groups, arg, order, child, parent, guard, tiny)
        below = level[up] - level[up - 1]
    return groups, arg, order, level[: levels + 1].copy()
