"""RadiusFPS: exact farthest point sampling that touches only the neighbourhood of each new sample.

Farthest point sampling picks, again and again, the point farthest from all picks so far; done plainly, every pick is
compared with every point. Here points lie in voxels, and each voxel knows a bounding sphere and the largest distance
`dmax` of its points to the picks. A pick farther from the sphere's centre than the sphere's radius plus sqrt(dmax)
cannot change any point inside, so the voxel is skipped; as picks grow dense, nearly all are. The bound is widened by a
guard for rounding, so that the picks and their order are those of the plain algorithm, bit for bit.

Added to the paper's scheme for a CPU: voxels that follow the density (a LiDAR puts ten thousand points into one cubic
metre and none into most others); a tree of spheres in place of a flat list of voxels; the next pick read off the root,
because every node knows its farthest point; and deferred work: a pick that reaches a voxel without coming closer to
its farthest point leaves dmax as it is, so it is only noted, and applied when the farthest point itself is affected.
Neither can alter a result, only the work. The paper's test of single coordinates is there as `point_skip`: it saves
distances but breaks vector code, and the study shows which weighs more.

Yu, Li, Chang and Miyazaki, arXiv:2606.06255.

>>> radius([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], k=3).tolist()
[0, 2, 1]
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from assay.kernels.engine import elsewhere
from assay.kernels.radius_fps import fps
from assay.kernels.radius_fps.fps import Counted, Indices, fill_rest
from assay.kernels.radius_fps.sphere_tree import (
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
    pull,
    reach,
    set_voxel,
    sphere_tree,
    sweep,
    voxelise,
)  # fmt: skip
from assay.record import measures
from assay.record.intervals import bootstrap
from assay.record.timing import interleave, median
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.workloads import clouds

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
use_when = (
    "A cloud of more than some ten thousand points must be thinned evenly and exactly: LiDAR sweeps, scans, training "
    "data for point networks. The picks are drop-in replacements for those of plain FPS."
)
avoid_when = (
    "A voxel-grid or random sample is good enough (both are far cheaper), the cloud is small, or the points have many "
    "dimensions: spheres prune by geometry, and in high dimensions everything is near everything."
)
own_input = "assay compare kernels --cloud examples/scan.ply -k 1% --out picks.npy"
references = (
    "QuickFPS, the bucket sampler behind PyPI's fpsample: Han et al., IEEE TCAD 2023.",
    "Farthest point sampling in point networks: Qi, Yi, Su and Guibas, PointNet++, NeurIPS 2017.",
)

NOTES = 8  # samples a voxel may hold back before they must be applied
SAMPLER = "radius-fps"
PEER_HEIGHTS = (5, 7, 9)  # of fpsample's k-d line, its only setting; others are slower at these sizes


# --------------------------------------------------------------------------------------- the mechanism


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
            fill_rest(out, i, len(rec))
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


def radius(points: ArrayLike, k: int, start: int = 0, points_per_voxel: int = 192, point_skip: bool = False) -> Indices:
    """Indices of ``k`` farthest points, pruning by the bounding spheres of adaptive voxels.

    ``points_per_voxel`` is the most points a voxel may hold (128 to 384 is best on most clouds). ``point_skip`` turns
    on the paper's per-coordinate test inside voxels: fewer distances, but branches in place of vector code.

    >>> radius(clouds.lidar(10_000), k=5).tolist() == fps.plain(clouds.lidar(10_000), k=5).tolist()
    True
    """
    return count_radius(points, k, start, points_per_voxel, point_skip)[0]


def count_radius(
    points: ArrayLike, k: int, start: int = 0, points_per_voxel: int = 192, point_skip: bool = False
) -> Counted:
    """As :func:`radius`, and how many point distances it computed.

    >>> count_radius([[0, 0, 0], [1, 0, 0], [5, 0, 0], [4, 0, 0]], 3)[0].tolist()
    [0, 2, 1]
    """
    cloud, k, start = fps.checked(points, k, start)
    if points_per_voxel < 1:
        raise ValueError(f"points_per_voxel must be at least 1, got {points_per_voxel}")
    # Relative and absolute guard of the sphere test, and the widest extent a grid may have.
    single = cloud.dtype == np.float32
    guard, tiny, huge = (2.0**-20, 2.0**-122, 1e37) if single else (2.0**-49, 2.0**-1000, 1e300)
    rows, ids = fps.records(cloud)
    starts = voxelise(cloud, rows, ids, int(points_per_voxel), huge)
    tree = sphere_tree(rows, ids, starts, cloud[start], guard, tiny)
    out, visited = _radius(rows, starts, *tree, k, start, bool(point_skip), guard, tiny)
    return out, int(visited)


# ------------------------------------------------------------------------------------------- the study

COUNTED: dict[str, Callable[..., Counted]] = {
    SAMPLER: count_radius,
    f"{SAMPLER}+skip": lambda points, k, start: count_radius(points, k, start, point_skip=True),
    "kd-tree": fps.count_kd_tree,
    "plain": fps.count_plain,
}


def peers(cloud: Any, k: int, start: int) -> dict[str, Callable[[], Indices]]:
    """PyPI's fpsample at every height of its k-d line, where it is installed."""
    if importlib.util.find_spec("fpsample") is None:
        return {}
    import fpsample

    def at(height: int) -> Callable[[], Indices]:
        return lambda: np.asarray(fpsample.bucket_fps_kdline_sampling(cloud, k, h=height, start_idx=start), np.int64)

    return {f"fpsample h={height}": at(height) for height in PEER_HEIGHTS if 2**height <= len(cloud)}


def side_by_side(cloud: Any, k: int, start: int, samplers: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Samplers on one cloud in interleaved rounds: seconds, share of distances, and whether the order is the rule's.

    The first call of each, which may compile, is not timed. Ours build their index anew in every timed call, as the
    peer does. fpsample counts its start in an order of its own, so it is checked against the picks that follow from
    the point it really started at.
    """
    ours = [name for name in samplers if name in COUNTED]
    theirs = peers(cloud, k, start) if "fpsample" in samplers else {}
    counted = {name: COUNTED[name](cloud, k, start) for name in ours}
    picks = {name: sampler() for name, sampler in theirs.items()}
    timed: dict[str, Callable[[], Any]] = {name: partial(COUNTED[name], cloud, k, start) for name in ours}
    seconds = interleave(timed | theirs, rounds)
    right = counted["plain" if "plain" in counted else ours[0]][0]
    rows: dict[str, dict[str, Any]] = {}
    for name, (order, visited) in counted.items():
        same = bool(np.array_equal(order, right))
        rows[name] = {"seconds": median(seconds[name]), "visited_ratio": visited / (len(cloud) * k), "same_order": same}
    for name, order in picks.items():
        same = bool(np.array_equal(order, radius(cloud, k, int(order[0]))))
        rows[name] = {"seconds": median(seconds[name]), "visited_ratio": None, "same_order": same}
    return rows


def trial(cloud: str, n: int, k: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every sampler on one generated cloud, from a random start."""
    points = getattr(clouds, cloud)(n, seed)
    start = int(stream(seed, "radius-fps", cloud, n).integers(n))
    return side_by_side(points, k, start, [*COUNTED, "fpsample"], rounds)


def study(lab: Lab) -> pl.DataFrame:
    """LiDAR sweeps, and clouds of other densities, thinned to one point in a hundred."""
    kinds = lab.pick(quick=("lidar",), full=("lidar", "indoor", "uniform", "clustered"))
    cases = [{"cloud": kind, "n": 100_000, "k": 1_000, "rounds": lab.pick(quick=5, full=7)} for kind in kinds]
    if lab.size == "full":
        cases.append({"cloud": "lidar", "n": 1_000_000, "k": 10_000, "rounds": 3})
    some = lab.with_seeds(quick=len(lab.seeds), full=6)
    return some.run(trial, cases, per="sampler", alone=True)


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Seconds of every sampler on every cloud."""
    import altair as alt

    means = table.group_by("cloud", "n", "sampler", maintain_order=True).agg(pl.col("seconds").mean())
    cases = [f"{cloud}, {n:,} points" for cloud, n in means.select("cloud", "n").rows()]
    means = means.with_columns(pl.Series("case", cases), ms=pl.col("seconds") * 1e3)
    order = means.group_by("sampler").agg(pl.col("ms").min()).sort("ms")["sampler"].to_list()
    x = alt.X("ms:Q", scale=alt.Scale(type="log"), title="milliseconds (log)")
    y = alt.Y("sampler:N", sort=order, title=None)
    lines = alt.Chart(means).mark_rule(opacity=0.25).encode(y=y, x="min(ms):Q", x2="max(ms):Q")
    dots = alt.Chart(means).mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, color=alt.Color("case:N"))
    title = alt.Title("Time to thin a cloud to 1 %", subtitle="Mean over seeds of the median round; one thread")
    chart: alt.LayerChart = (lines + dots).properties(width=560, height=26 * len(order), title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def on_lidar(measure: Callable[[pl.DataFrame], Estimate]) -> measures.Measure:
    """The measure on the largest LiDAR sweep of the table."""

    def chosen(table: pl.DataFrame) -> Estimate:
        lidar = measures.rows(table, {"cloud": "lidar"})
        return measure(lidar.filter(pl.col("n") == pl.col("n").max()))

    return chosen


def over_best_peer(table: pl.DataFrame) -> Estimate:
    """Seconds of fpsample at its fastest setting over ours."""
    settings = table.filter(pl.col("sampler").str.starts_with("fpsample"))
    if settings.is_empty():
        raise NotMeasured("fpsample is not installed: pip install --only-binary :all: 'fpsample>=0.3.3,<1'")
    best = settings.group_by("sampler").agg(pl.col("seconds").mean()).sort("seconds")["sampler"][0]
    return measures.ratio("seconds", of={"sampler": best}, to={"sampler": SAMPLER})(table)


def always_same_order(table: pl.DataFrame) -> Estimate:
    """The share of runs, with and without the point test, whose order is that of plain FPS."""
    return measures.share("same_order")(table.filter(pl.col("sampler").str.starts_with(SAMPLER)))


def _on_h200(rival: str, ours: str) -> dict[str, Estimate]:
    """The rival's time over ours on each cloud, as measured on an H200, each at its own best voxel size."""
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for row in elsewhere.rows("h200", "radius-fps"):
        name = f"{row['cloud']}, {row['k']:,} of {row['n']:,}" + (
            f", {row['batch']} clouds" if row["batch"] > 1 else ""
        )
        cases.setdefault(name, {})[row["method"]] = row
    found = {}
    for name, methods in cases.items():
        slow, fast = (
            min((row for m, row in methods.items() if m.startswith(prefix)), key=lambda row: float(row["seconds"]))
            for prefix in (rival, ours)
        )
        found[name] = Estimate(
            slow["seconds"] / fast["seconds"], slow["low"] / fast["high"], slow["high"] / fast["low"], slow["rounds"]
        )
    return found


def gpu_speed(table: pl.DataFrame) -> Estimate:
    """One block a cloud and every point a sample, over spheres: the best case."""
    found = _on_h200("plain", "spheres")
    name = max(found, key=lambda case: found[case].value)
    return replace(found[name], cases=f"{name}, of {len(found)} cases, on an H200")


def quickfps(table: pl.DataFrame) -> Estimate:
    """Boxes of a k-d tree, QuickFPS's idea in our own kernel, over spheres: the geometric mean over clouds."""
    found = bootstrap(np.log([one.value for one in _on_h200("boxes", "spheres").values()]))
    return Estimate(float(np.exp(found.value)), float(np.exp(found.low)), float(np.exp(found.high)), found.n)


def gpu_order(table: pl.DataFrame) -> Estimate:
    """The share of runs on the H200 with the order of plain sampling."""
    same = [row["same"] for row in (*elsewhere.rows("h200", "radius-check"), *elsewhere.rows("h200", "radius-fps"))]
    return measures.counted(sum(same) / len(same), len(same))


claims = [
    Claim("exact", always_same_order),
    Claim("gpu-speed", gpu_speed),
    Claim(
        "gpu-memory",
        measures.not_here(
            "QuickFPS's own GPU code is not here; spheres take 21 bytes a point, boxes in our kernel as many"
        ),
    ),
    Claim("quickfps", quickfps),
    Claim(
        "gpu-exact", gpu_order, asks="On an H200 all samplers pick the same points in the same order.", kind=Kind.EVERY
    ),
    Claim(
        "accuracy",
        measures.not_here("it takes a trained network; with equal picks, as above, the network sees equal input"),
    ),
    Claim(
        "over-plain",
        on_lidar(measures.ratio("seconds", of={"sampler": "plain"}, to={"sampler": SAMPLER})),
        asks="Plain farthest point sampling takes longer than RadiusFPS on a LiDAR sweep thinned to 1 %, one "
        "CPU thread.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "over-fpsample",
        on_lidar(over_best_peer),
        asks="PyPI's fpsample at its best height takes longer than RadiusFPS on the same sweep, one CPU thread.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "visited",
        on_lidar(measures.mean("visited_ratio", sampler=SAMPLER)),
        asks="RadiusFPS computes at most 10 % of the n·k point distances on that sweep.",
        kind=Kind.AT_MOST,
        value=0.1,
        unit="share",
    ),
]
