"""Plans of expert balancing found slowly: greedily in plain words, the best there is, and a layer in one piece."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def greedy(
    total: list[int], main: list[int], ranks: int, slots: int, least: int, precision: float, keep: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """The threshold and the exports (expert, rank, tokens) in the order in which they are found."""
    load = [sum(total[e] for e in range(len(total)) if main[e] == g) for g in range(ranks)]
    low, high = math.ceil(sum(load) / ranks) - 1, max(load)
    best: list[tuple[int, int, int]] = []
    while high - low > 1 and high > (low + 1) * (1 + precision):
        tau = (low + high) // 2
        plans = (exports(tau, total, main, load, slots, least, small, keep) for small in (False, True))
        found = next((plan for plan in plans if plan is not None), None)
        if found is None:
            low = tau
        else:
            high, best = tau, found
    return high, best


def exports(
    tau: int, total: list[int], main: list[int], load: list[int], slots: int, least: int, small: bool, keep: int
) -> list[tuple[int, int, int]] | None:
    """What the busiest ranks give away until nobody has more than `tau`; None where they cannot."""
    slack = {g: max(tau - has, 0) for g, has in enumerate(load)}
    plan: list[tuple[int, int, int]] = []
    for g in sorted(range(len(load)), key=lambda g: -load[g]):
        need = load[g] - tau
        for e in sorted((e for e in range(len(total)) if main[e] == g), key=lambda e: -total[e]):
            while need > 0:
                left = total[e] - keep - sum(q for expert, _, q in plan if expert == e)
                open_to = [
                    other for other in slack
                    if slack[other] > 0 and sum(to == other for _, to, _ in plan) < slots
                    and (e, other) not in {(expert, to) for expert, to, _ in plan}
                ]  # fmt: skip
                if left <= 0 or not open_to:
                    break
                to = max(open_to, key=lambda other: (slack[other], -other))
                q = min(need, slack[to], left)
                if q < (min(least, math.ceil(need / len(open_to))) if small else least):
                    break
                plan.append((e, to, q))
                need -= q
                slack[to] -= q
        if need > 0:
            return None
    return plan


def optimum(total: list[int], main: list[int], ranks: int, slots: int, keep: int) -> int:
    """The least load of the busiest rank that any use of the slots reaches, by CP-SAT."""
    from ortools.sat.python import cp_model

    problem = cp_model.CpModel()
    experts, everything = range(len(total)), sum(total)
    tokens = [[problem.new_int_var(0, total[e], "") for _ in range(ranks)] for e in experts]
    copied = [[problem.new_bool_var("") for _ in range(ranks)] for _ in experts]
    busiest = problem.new_int_var(0, everything, "")
    for e in experts:
        problem.add(sum(tokens[e]) == total[e])
        problem.add(tokens[e][main[e]] >= min(keep, total[e]))
        for g in range(ranks):
            if g != main[e]:
                problem.add(tokens[e][g] == 0).only_enforce_if(~copied[e][g])
    for g in range(ranks):
        problem.add(sum(copied[e][g] for e in experts if main[e] != g) <= slots)
        problem.add(sum(tokens[e][g] for e in experts) <= busiest)
    problem.minimize(busiest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(problem) == cp_model.OPTIMAL
    return round(solver.objective_value)


def layer(x: Any, gate: Any, bias: Any, up: Any, down: Any, top_k: int) -> Any:
    """A mixture of experts with all experts in one place, token by token."""
    import torch

    out = []
    for row in x:
        probability, chosen = torch.softmax(gate @ row + bias, 0).topk(top_k)
        parts = [torch.nn.functional.gelu(row @ up[e]) @ down[e] for e in chosen]
        out.append(sum(p * part for p, part in zip(probability, parts, strict=True)))
    return torch.stack(out)


def conserved(load: np.ndarray, tokens: np.ndarray) -> bool:
    """Whether every token of every source is computed exactly once, as its own expert."""
    return bool((tokens >= 0).all() and (tokens.sum(axis=2) == load).all())
