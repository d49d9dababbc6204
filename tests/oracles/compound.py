"""A pipeline of sections played through stage by stage, as plainly as it can be written: clocks and loops, no graph."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

F, B, W = 0, 1, 2


def step(order: Any, passes: Any, ends: Any) -> float:
    """When the last stage of the last copy has updated its weights."""
    stages, copies, m = passes.forward.shape
    freed: list[float] = []  # when each stage's gradients are reduced, over all copies
    first_layer = [1 / max(n, 1) for n in ends.layers]
    halves: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for copy in range(copies):
        for stage, both in _through(order, passes, ends, copy, stages, m).items():
            halves[stage].append(both)
    for stage in range(stages):
        most = max(head for head, _ in halves[stage]) + ends.reduce[stage] * (1 - first_layer[stage])
        freed.append(max(most, *(end for _, end in halves[stage])) + ends.reduce[stage] * first_layer[stage])
    return float(max(max(freed) + ends.update[stage] for stage in range(stages)))


def _through(order: Any, passes: Any, ends: Any, copy: int, stages: int, m: int) -> dict[int, tuple[float, float]]:
    """Of one copy, for every stage: when its last backward pass is through one layer, and when it is through."""
    todo = [[(int(what), int(mb)) for what, _, mb, _ in order.slots(s, stages, m)] for s in range(stages)]
    clock = [0.0] * stages
    wire: dict[tuple[int, int], float] = defaultdict(float)
    arrived: dict[tuple[int, int, int], float] = {(F, 0, mb): 0.0 for mb in range(m)}
    last = W if order.split else B
    final: dict[int, tuple[float, float]] = {}
    while any(todo):
        moved = False
        for s in range(stages):
            while todo[s]:
                what, mb = todo[s][0]
                need = 0.0 if what == W or (what == B and s == stages - 1) else arrived.get((what, s, mb))
                if need is None:
                    break
                clock[s] = _run(order, passes, ends, (what, s, copy, mb), max(clock[s], need), clock[s] == 0.0)
                if what == last and all(w != last for w, _ in todo[s][1:]):
                    took = _seconds(order, passes, what, s, copy, mb)
                    final[s] = (clock[s] - took * (1 - 1 / max(ends.layers[s], 1)), clock[s])
                to = s + 1 if what == F else s - 1
                if what != W and 0 <= to < stages:
                    begin = max(clock[s], wire[s, to])
                    wire[s, to] = begin + passes.sent[min(s, to), copy, mb]
                    arrived[what, to, mb] = wire[s, to]
                todo[s].pop(0)
                moved = True
        assert moved, "stuck"
    return final


def _run(order: Any, passes: Any, ends: Any, op: tuple[int, int, int, int], begin: float, first: bool) -> float:
    """When a pass ends; the first waits for weights, its last layer for the last of them."""
    what, stage, copy, mb = op
    took = _seconds(order, passes, what, stage, copy, mb)
    if not first:
        return begin + took
    share = 1 / max(ends.layers[stage], 1)
    head = max(begin, ends.gather[stage] * share) + took * (1 - share)
    return float(max(head, ends.gather[stage]) + took * share)


def _seconds(order: Any, passes: Any, what: int, stage: int, copy: int, mb: int) -> float:
    backward = passes.inputs if order.split else passes.inputs + passes.weights
    return float((passes.forward, backward, passes.weights)[what][stage, copy, mb])
