"""A pipeline of sections played through stage by stage, as plainly as it can be written: clocks and loops, no graph."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

F, B, W = 0, 1, 2


def step(order: Any, passes: Any, ends: Any) -> float:
    """When the last stage of the last copy has updated its weights."""
    parts, copies, m = passes.forward.shape
    stages = parts // order.chunks
    halves: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for copy in range(copies):
        for part, both in _through(order, passes, ends, copy, stages, m).items():
            halves[part].append(both)
    reduced = []  # when each part's gradients are, over all copies
    for part in range(parts):
        share = 1 / max(ends.layers[part], 1)
        most = max(head for head, _ in halves[part]) + ends.reduce[part] * (1 - share)
        reduced.append(max(most, *(end for _, end in halves[part])) + ends.reduce[part] * share)
    updates = [sum(ends.update[order.virtual(c, s, stages)] for c in range(order.chunks)) for s in range(stages)]
    return float(max(reduced) + max(updates))


def _through(order: Any, passes: Any, ends: Any, copy: int, stages: int, m: int) -> dict[int, tuple[float, float]]:
    """Of one copy, for every part: when its last backward pass is through one layer, and when it is through."""
    parts, last = stages * order.chunks, W if order.split else B
    todo = [
        [(int(what), int(order.virtual(int(c), s, stages)), int(mb)) for what, c, mb, _ in order.slots(s, stages, m)]
        for s in range(stages)
    ]
    stage_of = {part: s for s in range(stages) for _, part, _ in todo[s]}
    clock = [0.0] * stages
    wire: dict[tuple[int, int], float] = defaultdict(float)
    arrived: dict[tuple[int, int, int], float] = {(F, 0, mb): 0.0 for mb in range(m)}
    begun: set[int] = set()
    final: dict[int, tuple[float, float]] = {}
    while any(todo):
        moved = False
        for s in range(stages):
            while todo[s]:
                what, part, mb = todo[s][0]
                need = 0.0 if what == W or (what == B and part == parts - 1) else arrived.get((what, part, mb))
                if need is None:
                    break
                took = _seconds(order, passes, what, part, copy, mb)
                clock[s] = _run(ends, part, took, max(clock[s], need), part not in begun)
                begun.add(part)
                if what == last and all((w, p) != (last, part) for w, p, _ in todo[s][1:]):
                    final[part] = (clock[s] - took * (1 - 1 / max(ends.layers[part], 1)), clock[s])
                to = part + 1 if what == F else part - 1
                if what != W and 0 <= to < parts:
                    way = s, stage_of[to]
                    arrived[what, to, mb] = clock[s]
                    if way[0] != way[1]:
                        wire[way] = max(clock[s], wire[way]) + passes.sent[min(part, to), copy, mb]
                        arrived[what, to, mb] = wire[way]
                todo[s].pop(0)
                moved = True
        assert moved, "stuck"
    return final


def _run(ends: Any, part: int, took: float, begin: float, first: bool) -> float:
    """When a pass ends; the first waits for weights, its last layer for the last of them."""
    if not first:
        return begin + took
    share = 1 / max(ends.layers[part], 1)
    head = max(begin, ends.gather[part] * share) + took * (1 - share)
    return float(max(head, ends.gather[part]) + took * share)


def _seconds(order: Any, passes: Any, what: int, part: int, copy: int, mb: int) -> float:
    backward = passes.inputs if order.split else passes.inputs + passes.weights
    return float((passes.forward, backward, passes.weights)[what][part, copy, mb])
