"""Graph algorithms as their definitions say, with dictionaries and loops."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import combinations
from math import inf

Edge = tuple[int, int]


def both_ways(edges: Sequence[Edge]) -> dict[int, set[int]]:
    """Neighbours whatever the direction, without loops."""
    near: dict[int, set[int]] = {}
    for u, v in edges:
        if u != v:
            near.setdefault(u, set()).add(v)
            near.setdefault(v, set()).add(u)
    return near


def components(n: int, edges: Sequence[Edge]) -> list[int]:
    """The smallest vertex that each one hangs together with."""
    near, found = both_ways(edges), list(range(n))
    for start in range(n):
        if found[start] == start:
            queue = deque([start])
            while queue:
                for v in near.get(queue.popleft(), ()):
                    if found[v] > start:
                        found[v] = start
                        queue.append(v)
    return found


def distances(n: int, edges: Sequence[Edge], weights: Sequence[float], root: int) -> list[float]:
    """Bellman and Ford: offer every edge until nothing changes."""
    far = [inf] * n
    far[root] = 0.0
    changed = True
    while changed:
        changed = False
        for (u, v), weight in zip(edges, weights, strict=True):
            if far[u] + weight < far[v]:
                far[v] = far[u] + weight
                changed = True
    return far


def pagerank(n: int, edges: Sequence[Edge], damping: float, rounds: int = 300) -> list[float]:
    """The power method; who has no way out jumps anywhere."""
    out: dict[int, set[int]] = {}
    for u, v in edges:
        out.setdefault(u, set()).add(v)
    rank = [1.0 / n] * n
    for _ in range(rounds):
        lost = sum(rank[u] for u in range(n) if u not in out)
        new = [(1 - damping + damping * lost) / n] * n
        for u, targets in out.items():
            for v in targets:
                new[v] += damping * rank[u] / len(targets)
        rank = new
    return rank


def labels(n: int, edges: Sequence[Edge], rounds: int) -> list[int]:
    """All at once take the commonest label around them; of several their own, else the smallest."""
    near, label = both_ways(edges), list(range(n))
    for _ in range(rounds):
        new = list(label)
        for u in near:
            votes = Counter(label[v] for v in near[u])
            most = max(votes.values())
            best = sorted(one for one, count in votes.items() if count == most)
            new[u] = label[u] if label[u] in best else best[0]
        if new == label:
            break
        label = new
    return label


def triangles(n: int, edges: Sequence[Edge]) -> int:
    """Threes of which each pair is joined."""
    near = both_ways(edges)
    return sum(
        b in near.get(a, ()) and c in near.get(a, ()) and c in near.get(b, ()) for a, b, c in combinations(range(n), 3)
    )
