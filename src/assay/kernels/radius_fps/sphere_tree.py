"""Spherical-voxel tree behind :func:`assay.kernels.radius_fps.radius`: how a cloud is cut and bounded.

*Cutting.*  A cloud is split by a counting sort on the cells of a cubic grid laid over its bounding
box, cells numbered along a Morton (Z) curve.  Neighbouring cells are joined while together they
hold no more than ``cap`` points; a cell that still holds more is split again with a grid of its
own.  The voxel size thus follows the density: a spinning LiDAR puts ten thousand points in one
cubic metre near the sensor and none in most others, where one grid for all would fail.  Inside a
voxel points keep the order of their original indices, so the first of equals is the right one.

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

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from assay.sim.compiled import njit

# No NaN can occur (inputs are finite) and the sign of zero is never looked at.  'contract' and
# 'reassoc' would change results, so the flags are named one by one.
FLAGS = {"nnan", "nsz"}
JIT: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": FLAGS}
# Calls per voxel must be inlined: an array argument is passed as seven or more words, which would
# cost more than the work itself.  It also saves compiling each helper by itself.
INLINE: dict[str, Any] = {**JIT, "inline": "always"}

FAN = 8  # siblings per group = float32 lanes of a 256-bit register
MAX_BITS = 6  # grid bits per axis: 64**3 counters still sit in the second-level cache

# Rows of a group: sphere centre, squared reach, farthest point and its squared distance, radius.
CX, CY, CZ, REACH, AX, AY, AZ, DMAX, RADIUS = range(9)
ROWS = 9


def _binary(name: str) -> Any:
    """A two-operand LLVM floating-point instruction as a function for compiled code.

    A running maximum written as ``a if a > b else b`` stays scalar: LLVM wants the flags on the
    select, where Numba does not put them.  ``maxnum`` with flags becomes vector code (5x faster).
    """

    @intrinsic
    def operation(context: Any, a: Any, b: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = args[0].type
            function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(function, args, fastmath=tuple(sorted(FLAGS)))

        return (a(a, b), emit) if a == b else None

    return operation


fmin, fmax = _binary("llvm.minnum"), _binary("llvm.maxnum")


# --------------------------------------------------------------------------- cutting


@njit(**JIT)
def bounds(rows):
    """Bounding box of rows whose first three columns are x, y, z."""
    x0 = x1 = rows[0, 0]
    y0 = y1 = rows[0, 1]
    z0 = z1 = rows[0, 2]
    for i in range(1, len(rows)):
        x, y, z = rows[i, 0], rows[i, 1], rows[i, 2]
        x0, x1 = fmin(x0, x), fmax(x1, x)
        y0, y1 = fmin(y0, y), fmax(y1, y)
        z0, z1 = fmin(z0, z), fmax(z1, z)
    return x0, x1, y0, y1, z0, z1


@njit(**INLINE)
def _spread_table(side):
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


@njit(**INLINE)
def _count_cells(rows, x0, y0, z0, scale, table, key, begin):
    """Morton cell of every row into ``key``; cell sizes, shifted by one cell, into ``begin``."""
    for i in range(len(rows)):
        # Unsigned subscripts spare the test for negative ones.
        ix = table[np.uint32((rows[i, 0] - x0) * scale)]
        iy = table[np.uint32((rows[i, 1] - y0) * scale)]
        iz = table[np.uint32((rows[i, 2] - z0) * scale)]
        code = ix | (iy << 1) | (iz << 2)
        key[i] = code
        begin[np.uint32(code + 1)] += 1


@njit(**INLINE)
def _join_cells(begin, cells, first, cap, home, starts, over, count):
    """Append the voxels of one grid: the largest aligned runs of cells with <= cap points.

    ``begin[c]`` is the first row of cell ``c``; ``home[c]`` becomes the first cell of its run.
    Aligned runs of 2**t cells on a Morton curve are boxes at most twice as long as wide, so
    joining them keeps spheres small.
    """
    cell = 0
    while cell < cells:
        run, size = 1, begin[cell + 1] - begin[cell]
        while run < cells and cell & (2 * run - 1) == 0:
            wider = begin[cell + 2 * run] - begin[cell]
            if wider > cap:
                break
            run, size = 2 * run, wider
        if size > 0:
            for c in range(cell, cell + run):
                home[c] = cell
            starts[count] = first + begin[cell]
            over[count] = size > cap
            count += 1
        cell += run
    return count


@njit(**INLINE)
def _split(src, rec, ids, first, size, tmp, key, begin, home, cap, huge, starts, over, count):
    """Sort rows [first, first + size) of ``rec`` by cell and append their voxels.

    The first call takes the points from ``src`` (the user's array) and numbers them; later ones
    refine rows in place through ``tmp``.  Points that no grid can tell apart (all equal, or
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
        begin[c] = 0
    _count_cells(rows, x0, y0, z0, rec.dtype.type(scale), _spread_table(side), key, begin)
    for c in range(cells):
        begin[c + 1] += begin[c]
    count = _join_cells(begin, cells, first, cap, home, starts, over, count)
    # Rows go to their voxel, not their cell: then they keep the order of their original indices.
    if fresh:
        for i in range(size):
            c = np.uint32(home[np.uint32(key[i])])
            p = np.uint32(begin[c])
            begin[c] += 1
            rec[p, 0], rec[p, 1], rec[p, 2] = rows[i, 0], rows[i, 1], rows[i, 2]
            ids[p, 3] = i
    else:
        old = ids[first : first + size]
        for i in range(size):
            for q in range(4):
                tmp[i, q] = old[i, q]
        for i in range(size):
            c = np.uint32(home[np.uint32(key[i])])
            p = np.uint32(begin[c])
            begin[c] += 1
            for q in range(4):
                old[p, q] = tmp[i, q]
    return count


@njit(**JIT)
def voxelise(points, rec, ids, cap, huge):
    """Fill ``rec`` with rows (x, y, z, id) in voxel order; return the voxels' first rows.

    ``ids`` is ``rec`` seen as integers: the fourth column carries the original index.  The result
    ends with a sentinel equal to n.
    """
    n = len(points)
    key = np.empty(n, np.int32)
    begin = np.empty((1 << (3 * MAX_BITS)) + 1, np.int32)
    home = np.empty(1 << (3 * MAX_BITS), np.int32)
    starts, over = np.empty(n + 1, np.int32), np.empty(n + 1, np.bool_)
    next_starts, next_over = np.empty(n + 1, np.int32), np.empty(n + 1, np.bool_)
    starts[0], over[0], count = 0, True, 1
    src, tmp = points, ids[:0]
    while True:
        starts[count] = n
        largest = 0
        for v in range(count):
            if over[v]:
                largest = max(largest, np.int64(starts[v + 1] - starts[v]))
        if largest == 0:
            return starts[: count + 1].copy()
        if len(src) == 0 and len(tmp) < largest:
            tmp = np.empty((largest, 4), ids.dtype)
        refined = 0
        for v in range(count):  # in order, so that voxels stay sorted along the curve
            a, m = np.int64(starts[v]), np.int64(starts[v + 1] - starts[v])
            if over[v]:
                refined = _split(
                    src, rec, ids, a, m, tmp, key, begin, home, cap, huge,
                    next_starts, next_over, refined,
                )  # fmt: skip
            else:
                next_starts[refined], next_over[refined] = a, False
                refined += 1
        starts, next_starts, over, next_over = next_starts, starts, next_over, over
        src, count = points[:0], refined


# --------------------------------------------------------------------------- bounding


@njit(**INLINE)
def sweep(x, y, z, d, sx, sy, sz):
    """Lower ``d`` to the squared distance from the sample where that is less; return max d.

    Unit-stride arrays, no branches: LLVM makes vector code of it.
    """
    top = sx - sx  # zero of the cloud's own type
    for j in range(len(d)):
        dx, dy, dz = x[j] - sx, y[j] - sy, z[j] - sz
        d[j] = new = fmin((dx * dx + dy * dy) + dz * dz, d[j])
        top = fmax(top, new)
    return top


@njit(**INLINE)
def reach(radius, dmax, guard, tiny):
    """Squared distance from a sphere's centre beyond which a sample cannot matter."""
    if dmax <= 0.0:  # every point here coincides with a sample
        return -1.0
    t = np.float64(radius) + math.sqrt(np.float64(dmax))
    return t * t * (1.0 + guard) + tiny


@njit(**INLINE)
def _first_equal(d, dmax):
    """First place where d equals dmax; a minimum without branches, hence vector code."""
    size = np.int32(len(d))
    first = size
    for j in range(size):
        here = np.int32(j) if d[j] == dmax else size
        first = here if here < first else first
    return first


@njit(**INLINE)
def set_voxel(groups, arg, g, lane, x, y, z, d, first, dmax, guard, tiny):
    """Record a voxel's farthest point; of several the first, which has the smallest index."""
    j = _first_equal(d, dmax)
    groups[g, DMAX, lane] = dmax
    groups[g, REACH, lane] = reach(groups[g, RADIUS, lane], dmax, guard, tiny)
    groups[g, AX, lane], groups[g, AY, lane], groups[g, AZ, lane] = x[j], y[j], z[j]
    arg[g, lane] = first + j


@njit(**INLINE)
def best_lane(groups, arg, order, g):
    """Sibling holding the farthest point; ties go to the smallest original index."""
    lane, dmax = 0, groups[g, DMAX, 0]
    for j in range(1, FAN):
        v = groups[g, DMAX, j]
        if v > dmax:
            lane, dmax = j, v
        elif v == dmax and v > 0 and order[arg[g, j]] < order[arg[g, lane]]:
            lane = j
    return lane


@njit(**INLINE)
def pull(groups, arg, order, child, parent, guard, tiny):
    """Renew a node's farthest point and reach from the group of its children."""
    g, lane = parent // FAN, parent % FAN
    j = best_lane(groups, arg, order, child)
    for row in range(AX, DMAX + 1):
        groups[g, row, lane] = groups[child, row, j]
    dmax = groups[g, DMAX, lane]
    groups[g, REACH, lane] = reach(groups[g, RADIUS, lane], dmax, guard, tiny)
    arg[g, lane] = arg[child, j]


@njit(**INLINE)
def _fill_voxels(rec, ids, starts, groups, arg, order, sample, guard, tiny):
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
            far = fmax(far, ex * ex + ey * ey + ez * ez)
        group[RADIUS, lane] = math.sqrt(far) * (1.0 + guard) + math.sqrt(tiny)
        block = flat[4 * a : 4 * (a + m)]
        for j in range(m):
            block[j], block[m + j], block[2 * m + j] = copy[0, j], copy[1, j], copy[2, j]
            block[3 * m + j] = np.inf
        x, y, z, d = block[:m], block[m : 2 * m], block[2 * m : 3 * m], block[3 * m :]
        dmax = sweep(x, y, z, d, sample[0], sample[1], sample[2])
        set_voxel(groups, arg, g, lane, x, y, z, d, a, dmax, guard, tiny)


@njit(**INLINE)
def _bound_children(groups, child, size, parent, guard, tiny):
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
def sphere_tree(rec, ids, starts, sample, guard, tiny):
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
