"""Encoders on every stage, played through by clocks; and images dealt to ranks in the plainest way."""

from __future__ import annotations

from itertools import product
from typing import Any

F, B, EF, EB = range(4)


def end(orders: Any, forward: Any, backward: Any, mouth: Any, move: Any, copy: int) -> float:
    """When the last stage of a copy is through."""
    pp = len(orders)
    todo = [[tuple(map(int, row)) for row in order] for order in orders]
    clock = [0.0] * pp
    done: dict[tuple[int, int, int], float] = {}
    while any(todo):
        moved = False
        for s in range(pp):
            while todo[s]:
                what, k = todo[s][0]
                ready = _ready(done, what, s, k, pp, mouth, move, copy)
                if ready is None:
                    break
                took = {F: mouth.forward[s, copy, k], B: mouth.backward[s, copy, k], EF: forward[k], EB: backward[k]}
                clock[s] = done[what, s, k] = max(clock[s], ready) + float(took[what])
                todo[s].pop(0)
                moved = True
        assert moved, "stuck"
    return max(clock)


def _ready(done: Any, what: int, s: int, k: int, pp: int, mouth: Any, move: Any, copy: int) -> float | None:
    """When what a pass needs is there; None while it is not."""
    if what == EF or (what == B and s == pp - 1):
        return 0.0
    if what == EB:
        needs, way = [(B, 0, k)], float(move[k])
    elif what == F and s == 0:
        needs, way = [(EF, other, k) for other in range(pp)], float(move[k])
    else:
        before = s - 1 if what == F else s + 1
        needs, way = [(what, before, k)], float(mouth.sent[min(s, before), copy, k])
    if any(need not in done for need in needs):
        return None
    return max(done[need] for need in needs) + way


def least(whole: Any, cut: Any, ranks: int, group: int) -> float:
    """The best makespan of all ways: every image on any rank, or cut over any group."""
    groups = ranks // group
    best = float("inf")
    for places in product(range(ranks + groups), repeat=len(whole)):
        load = [0.0] * ranks
        for image, place in enumerate(places):
            mine = [place] if place < ranks else range((place - ranks) * group, (place - ranks + 1) * group)
            for rank in mine:
                load[rank] += float(whole[image] if place < ranks else cut[image])
        best = min(best, max(load))
    return best
