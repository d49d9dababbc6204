"""Neighbour graphs by ranks beside PyNNDescent, one process and all distances, in one run, taking turns.

    pip install -r benchmarks/envs/pynndescent.txt
    python benchmarks/data_solanet.py --points 100000 --width 96 -k 32 --ranks 2

PyNNDescent gets as many threads as there are ranks. Everything is compiled beforehand; starting the ranks is counted.
"""

from __future__ import annotations

import argparse

from assay.data.solanet import trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("-k", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = trials.points(given.points, given.width, given.seed)
    found = trials.side_by_side(rows, given.k, given.ranks, given.rounds, peer=True)
    print(f"{given.points:,} points of {given.width}, {given.k} neighbours, medians of {given.rounds} rounds")
    for name, row in sorted(found.items(), key=lambda pair: float(pair[1]["seconds"])):
        print(f"  {name:<14}{row['processes']:>3} at once{row['seconds']:>9.2f} s   recall {row['recall']:.4f}")


if __name__ == "__main__":
    main()
