"""Farthest point samplers beside PyPI's fpsample: interleaved, one thread, index build included.

.venv/bin/python benchmarks/fps.py [--million]
"""

from __future__ import annotations

import sys

from assay.kernels.radius_fps import COUNTED, SAMPLER, side_by_side
from assay.workloads import clouds


def main() -> None:
    sizes = [(100_000, 9), (200_000, 7)] + ([(1_000_000, 3)] if "--million" in sys.argv else [])
    for n, rounds in sizes:
        for kind in ("lidar", "indoor", "uniform", "clustered"):
            cloud = getattr(clouds, kind)(n, seed=0)
            samplers = [name for name in COUNTED if name != "plain" or n < 1_000_000]
            rows = side_by_side(cloud, n // 100, 0, [*samplers, "fpsample"], rounds)
            ours = rows[SAMPLER]["seconds"]
            print(f"\n{kind}, n = {n:,}, k = {n // 100:,}")
            for name, row in rows.items():
                order = "" if row["same_order"] else "   (other order)"
                print(f"  {name:<18}{row['seconds'] * 1e3:>9.2f} ms   {row['seconds'] / ours:>6.2f} x{order}")


if __name__ == "__main__":
    main()
