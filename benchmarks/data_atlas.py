"""Graph inference in a tenth of the features' bytes: atlas beside gathers with caches, and all in memory, in one run.

    python benchmarks/data_atlas.py --scale 17 --width 256 --degree 16 --share 0.1

Every method runs on the same files, past the page cache, the first of them another one each seed. Seconds are of one
layer from file to file; `read` and `spilled` are bytes over those of the features.
"""

from __future__ import annotations

import argparse

from assay.data.atlas import GATHERS, GRAPHS, trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=16, help="2**scale nodes")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--kind", default="gcn", choices=["gcn", "sage", "gin", "gat"])
    parser.add_argument("--graph", choices=GRAPHS, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    print(f"{'graph':10}{'seed':>5}{'method':>15}{'seconds':>9}{'read':>8}{'spilled':>9}{'difference':>12}", flush=True)
    for graph in given.graph or GRAPHS:
        for seed in range(given.seeds):
            size = (given.kind, 1 << given.scale, given.width, given.degree, given.share)
            for method, row in trials.speed(graph, *size, " ".join(GATHERS), seed).items():
                moved = f"{row['read_ratio']:8.2f}{row['spilled_ratio']:9.2f}"
                told = f"{row['seconds']:9.2f}{moved}{row['difference']:12.1e} {row['policy']}"
                print(f"{graph:10}{seed:5}{method:>15}{told}", flush=True)


if __name__ == "__main__":
    main()
