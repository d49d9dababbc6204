"""How long balancing one microbatch takes, and how even it leaves the ranks: UltraEP, EPLB, LPLB, CP-SAT in turns.

    python benchmarks/training_ultraep.py [--rounds 30]

64 ranks, 256 experts, two slots a rank, 8,192 tokens a rank with eight experts each; the busiest rank 1.5, 2 and 3
times the mean. Everybody is compiled and warm. CP-SAT (the extra `solvers`) gets ten seconds once, and says how far
below the plan's threshold the best one may be.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from assay.record.timing import interleave, median
from assay.training import Hosts, UltraEP
from assay.training.ultraep.rivals import EplbPlus, Lplb
from assay.workloads.routing import drifting, uneven

RANKS, EXPERTS, SLOTS = 64, 256, 2


def bound(total: list[int], main: list[int], seconds: float) -> tuple[float, float]:
    """The best threshold that CP-SAT finds in so many seconds, and what none can be below."""
    from ortools.sat.python import cp_model

    problem = cp_model.CpModel()
    tokens = [[problem.new_int_var(0, n, "") for _ in range(RANKS)] for n in total]
    copied = [[problem.new_bool_var("") for _ in range(RANKS)] for _ in total]
    busiest = problem.new_int_var(0, sum(total), "")
    for e, n in enumerate(total):
        problem.add(sum(tokens[e]) == n)
        for g in range(RANKS):
            if g != main[e]:
                problem.add(tokens[e][g] <= n * copied[e][g])
    for g in range(RANKS):
        problem.add(sum(copied[e][g] for e in range(len(total)) if main[e] != g) <= SLOTS)
        problem.add(sum(row[g] for row in tokens) <= busiest)
    problem.minimize(busiest)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.solve(problem)
    return solver.objective_value, solver.best_objective_bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    hosts = Hosts.dealt(EXPERTS, RANKS, SLOTS)
    print("before  who                 seconds    busiest  copies")
    for by in (1.5, 2.0, 3.0):
        past, load = drifting(RANKS, EXPERTS, 8, 8192, by, 2, seed=0)
        ours, plus, lplb = UltraEP(), EplbPlus(), Lplb(1)
        lplb.rebalance(past, hosts)
        contenders: dict[str, Callable[[], Any]] = {
            "ultraep, plan": partial(ours.plan, load, hosts),
            "ultraep": partial(ours.rebalance, load, hosts),
            "eplb+": partial(plus.rebalance, load, hosts),
            "lplb": partial(lplb.rebalance, load, hosts),
        }
        # Before the timing, in which who looks back would come to know this very microbatch.
        made = {key: who.rebalance(load, hosts) for key, who in (("ultraep", ours), ("eplb+", plus), ("lplb", lplb))}
        interleave(contenders, 1)  # compiles
        seconds = interleave(contenders, rounds)
        for name in contenders:
            shares = made[name.removesuffix(", plan")]
            per_rank, copies = shares.load(), int((shares.tokens.sum(axis=0) > 0).sum()) - EXPERTS
            even = per_rank.max() / per_rank.mean()
            print(f"{uneven(load, RANKS):6.2f}  {name:16s} {median(seconds[name]):10.6f} {even:10.4f} {copies:7d}")
        try:
            best, least = bound(load.sum(axis=0).tolist(), hosts.main.tolist(), seconds=10.0)
        except ModuleNotFoundError:
            continue
        mean = float(np.mean(load.sum() / RANKS))
        print(f"{'':7} CP-SAT in 10 s: busiest {best / mean:.4f}, none below {least / mean:.4f}")


if __name__ == "__main__":
    main()
