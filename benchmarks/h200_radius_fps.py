"""Farthest point sampling on one GPU: spheres and boxes beside a block that compares every point, same picks.

python3 benchmarks/h200_radius_fps.py               # NVIDIA GPU with NumPy and CuPy; no assay
"""

# mypy: ignore-errors
# ruff: noqa: D102

from __future__ import annotations

import dataclasses
import sys
import time
import types

import cupy as cp
import numpy as np

import h200_common as common
from h200_common import module, timed

common.packages("assay.kernels.radius_fps", "assay.workloads", "assay.sim")


def stream(seed, *names):
    """Stands for assay's streams of randomness, which need assay."""
    return np.random.default_rng([seed, *"".join(map(str, names)).encode()])


sys.modules["assay.sim.random"] = types.SimpleNamespace(stream=stream)

from assay.kernels.radius_fps import voxels  # noqa: E402
from assay.workloads import clouds  # noqa: E402

tell = None


def plain_order(cloud, k):
    """The rule in NumPy: the farthest from all picks, ties to the smallest index."""
    picks, d = [0], np.full(len(cloud), np.inf, np.float32)
    for _ in range(k - 1):
        gap = cloud - cloud[picks[-1]]
        squares = gap * gap
        d = np.minimum(d, (squares[:, 0] + squares[:, 1]) + squares[:, 2])
        picks.append(int(d.argmax()))
    return np.array(picks)


class Sampling:
    """A batch of clouds on the GPU, and samplers over it."""

    def __init__(self, batch, k):
        self.batch, self.k, self.n = batch, k, len(batch[0])
        self.code = {"spheres": module("radius_fps/fps.cu"), "boxes": module("radius_fps/fps.cu", BOXES=1)}
        self.d, self.out = cp.empty(len(batch) * self.n, cp.float32), cp.empty((len(batch), k), cp.int32)

    def plain(self):
        x, y, z = (cp.asarray(np.concatenate([cloud[:, axis] for cloud in self.batch])) for axis in range(3))
        kernel = self.code["spheres"].get_function("plain")

        def run():
            self.d.fill(cp.inf)
            kernel(
                (len(self.batch),),
                (1024,),
                (x, y, z, self.d, np.int32(self.n), np.int32(self.k), np.int32(0), self.out),
            )

        run.prepare, run.bytes, run.voxels = 0.0, 16 * self.n, 0
        return run

    def pruned(self, kind, most):
        begin = time.perf_counter()
        made = [(voxels.octree if kind == "spheres" else voxels.kd_tree)(cloud, most) for cloud in self.batch]
        prepare = (time.perf_counter() - begin) / len(made)
        count = max(len(one.start) - 1 for one in made)
        if any(len(one.start) - 1 != count for one in made):  # a batch shares one number: empty voxels at the end
            made = [self.padded(one, count) for one in made]
        x, y, z = (cp.asarray(np.concatenate([one.points[axis] for one in made])) for axis in range(3))
        index, start, bounds = (
            cp.asarray(np.concatenate([getattr(one, name).ravel() for one in made]))
            for name in ("index", "start", "bounds")
        )
        first = [int(np.flatnonzero(one.index == 0)[0]) for one in made]
        key, place, listed = (
            cp.empty(count * len(made), cp.uint64),
            cp.zeros(count * len(made), cp.int32),
            cp.empty(count * len(made), cp.int32),
        )
        visited = cp.zeros(1, cp.uint64)
        kernel = self.code[kind].get_function("pruned")

        def run():
            self.d.fill(cp.inf)
            kernel(
                (len(made),),
                (1024,),
                (
                    x,
                    y,
                    z,
                    self.d,
                    index,
                    start,
                    bounds,
                    key,
                    place,
                    listed,
                    np.int32(self.n),
                    np.int32(count),
                    np.int32(self.k),
                    np.int32(first[0]),
                    self.out,
                    visited,
                ),
            )

        visited.fill(0)
        run()
        run.visited = int(visited[0]) / (len(made) * self.n * self.k)
        run.prepare, run.bytes, run.voxels = prepare, made[0].bytes, count
        return run

    @staticmethod
    def padded(one, count):
        more = count - (len(one.start) - 1)
        start = np.concatenate([one.start, np.full(more, one.start[-1], np.int32)])
        return dataclasses.replace(
            one, start=start, bounds=np.concatenate([one.bounds, np.full((len(one.bounds), more), 1e30, np.float32)], 1)
        )


def radius_fps():
    small = clouds.lidar(20_000, 5)
    sampling, truth = Sampling([small], 300), plain_order(small, 300)
    for name, run in {
        "plain": sampling.plain(),
        "spheres": sampling.pruned("spheres", 64),
        "boxes": sampling.pruned("boxes", 64),
    }.items():
        sampling.out.fill(-7)
        run()
        tell("radius-check", method=name, same=bool((sampling.out.get()[0] == truth).all()))
    for kind, n, k, size in (
        ("lidar", 50_000, 500, 1),
        ("lidar", 100_000, 1000, 1),
        ("lidar", 100_000, 25_000, 1),
        ("uniform", 100_000, 25_000, 1),
        ("indoor", 100_000, 4096, 1),
        ("lidar", 50_000, 4096, 1),
        ("lidar", 400_000, 4096, 1),
        ("uniform", 1_000_000, 10_000, 1),
        ("lidar", 50_000, 4096, 64),
    ):
        # A batch repeats one cloud: every block then starts at the same place.
        cloud = getattr(clouds, kind)(n, 3)
        sampling = Sampling([cloud] * size, k)
        contenders = {"plain": sampling.plain()}
        contenders |= {f"spheres {most}": sampling.pruned("spheres", most) for most in (32, 64, 128)}
        contenders |= {f"boxes {most}": sampling.pruned("boxes", most) for most in (64, 128)}
        contenders["plain"]()
        truth, same = sampling.out.copy(), {}
        for name, run in contenders.items():
            sampling.out.fill(-7)
            run()
            same[name] = bool((sampling.out == truth).all())
        for name, values in timed(contenders, 5).items():
            run = contenders[name]
            tell(
                "radius-fps",
                cloud=kind,
                n=n,
                k=k,
                batch=size,
                method=name,
                seconds=values,
                same=same[name],
                prepare=run.prepare,
                bytes=run.bytes,
                voxels=run.voxels,
                visited=getattr(run, "visited", 1.0),
            )


PARTS = {"radius_fps": radius_fps}

if __name__ == "__main__":
    tell = common.Answers("h200_radius_fps")
    tell.run(PARTS)
