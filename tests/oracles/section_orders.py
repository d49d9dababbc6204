"""The best order of a few samples through auxiliary sections and a critical one, by a solver and by trying all."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np


def plain_end(auxiliary: Any, critical: Any, order: Any, before: Any = None) -> float:
    """When the critical section has taken all samples, told sample by sample with dictionaries."""
    free: dict[int, float] = {}
    end = 0.0
    for i in order:
        done: dict[int, float] = {}
        for s, seconds in enumerate(auxiliary[i]):
            if seconds > 0:
                inputs = [done[p] for p in done if before is not None and before[p][s] > 0]
                done[s] = max([free.get(s, 0.0), *inputs]) + seconds
                free[s] = done[s]
        end = max([end, *done.values()]) + critical[i]
    return end


def tried(auxiliary: Any, critical: Any, before: Any = None) -> float:
    """The earliest end over all orders."""
    return min(plain_end(auxiliary, critical, order, before) for order in permutations(range(len(critical))))


def optimum(auxiliary: Any, critical: Any) -> float:
    """The earliest end where every section may have an order of its own: whole seconds, proven best by CP-SAT."""
    from ortools.sat.python import cp_model

    program, horizon = cp_model.CpModel(), int(np.sum(auxiliary) + np.sum(critical))
    last = program.new_int_var(0, horizon, "end")
    sections: dict[int, list[Any]] = {}
    for i, seconds in enumerate(critical):
        start = program.new_int_var(0, horizon, f"critical {i}")
        sections.setdefault(-1, []).append(program.new_fixed_size_interval_var(start, int(seconds), f"c{i}"))
        program.add(last >= start + int(seconds))
        for s, work in enumerate(auxiliary[i]):
            if work > 0:
                begin = program.new_int_var(0, horizon, f"section {s} of {i}")
                sections.setdefault(s, []).append(program.new_fixed_size_interval_var(begin, int(work), f"a{s} {i}"))
                program.add(start >= begin + int(work))
    for intervals in sections.values():
        program.add_no_overlap(intervals)
    program.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, 0
    status = solver.solve(program)
    assert status == cp_model.OPTIMAL
    return float(solver.objective_value)
