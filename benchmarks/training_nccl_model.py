"""Real rings and trees over gloo beside what is predicted from other sizes, and how fast collectives are modelled.

    python benchmarks/training_nccl_model.py [ROUNDS]

Two processes all-reduce 1 KiB to 64 MiB; both algorithms take turns in every round, and the least time of each size
counts. Latency and bandwidth are fitted on every other size; errors are those at the others. The machine
should be idle: the share of a processor that was granted is printed first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from assay.sim.hardware import device
from assay.sim.links import max_min
from assay.sim.nccl import NcclModel
from assay.sim.sends import arrivals
from assay.training import nccl_model


def real(rounds: int) -> None:
    found = nccl_model.over_gloo(rounds, seed=0).values()
    print(f"granted {next(iter(found))['granted']:.0%} of a processor")
    for name in ("ring", "tree"):
        rows = [row for row in found if row["algorithm"] == name]
        held = np.array([row["error"] for row in rows if not row["in_fit"]])
        line = np.array([row["one_line_error"] for row in rows if not row["in_fit"]])
        print(f"{name}: {held.mean():.1%} off in the mean at sizes held back, {held.max():.1%} at worst; "
              f"one line for both algorithms {line.mean():.1%}")  # fmt: skip


def speed() -> None:
    model, sizes = NcclModel.of(device("h100"), nodes=16), 2.0 ** np.arange(10, 33)
    plan = model.choose("all_reduce", range(128), [1e6])[0]
    sends, byte, hop = model.lower("all_reduce", range(128), 2**20, plan)
    random = np.random.default_rng(0)
    paths = [random.choice(2000, 4, replace=False) for _ in range(4000)]
    jobs: dict[str, Callable[[], object]] = {
        "23 sizes on 128 ranks, all plans": lambda: model.seconds("all_reduce", range(128), sizes),
        f"{len(sends):,} sends event by event": lambda: arrivals(sends, byte, hop),
        "fair rates of 4,000 flows on 2,000 links": lambda: max_min(paths, np.ones(2000)),
    }
    for name, job in jobs.items():
        job()  # compiled, and what is kept is there
        took = []
        for _ in range(7):
            began = time.perf_counter()
            job()
            took.append(time.perf_counter() - began)
        print(f"{name}: {1e3 * min(took):.2f} ms")


if __name__ == "__main__":
    speed()
    real(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
