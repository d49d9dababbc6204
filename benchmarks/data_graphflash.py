"""Graph analytics by functions: graphflash beside a key a vertex, threads in one process and igraph, in one run.

    python benchmarks/data_graphflash.py --scale 12 --degree 8 --program components --seeds 3
    python benchmarks/data_graphflash.py --scale 18 --degree 16 --program pagerank --only graphflash

Functions are real processes on a local folder, all of them warm; systems take turns, the first of them another one each
seed. Seconds are of supersteps: cutting the graph is done once and not in them. Dollars are counted requests, calls and
gigabyte-seconds at the list prices of S3 and Lambda. An object a vertex takes minutes from about scale 13 on.
"""

from __future__ import annotations

import argparse

from assay.data.graphflash import trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=10, help="2**scale vertices")
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--graph", choices=["rmat", "road", "communities"], default="rmat")
    parser.add_argument("--program", default="components")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(trials.DESIGNS))
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    systems = tuple(given.only or trials.DESIGNS)
    print(
        f"{'seed':>4} {'system':20}{'seconds':>10}{'requests':>10}{'calls':>7}{'steps':>6}{'GB-s':>9}{'usd':>12}  same"
    )
    for seed in range(given.seeds):
        turn = seed % len(systems)
        graph = trials.graph_of(given.graph, 1 << given.scale, given.degree, seed)
        rows = trials.side_by_side(graph, given.program, given.workers, systems[turn:] + systems[:turn], tolerance=1e-3)
        for name, row in sorted(rows.items(), key=lambda one: float(one[1]["seconds"])):
            counts = f"{row['requests'] or 0:10,}{row['calls'] or 0:7,}{row['steps'] or 0:6}"
            used = f"{row['gb_seconds'] or 0.0:9.3f}{row['usd'] or 0.0:12.6f}"
            print(f"{seed:4} {name:20}{row['seconds']:10.4f}{counts}{used}  {row['same']}", flush=True)


if __name__ == "__main__":
    main()
