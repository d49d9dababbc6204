"""Search and pruning in a neighbour graph, with plain lists."""

from __future__ import annotations

from typing import Any


def squared(a: Any, b: Any) -> float:
    return float(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)))


def beam(vectors: Any, graph: Any, query: Any, entries: list[int], breadth: int) -> tuple[list[int], list[int]]:
    """What is found, nearest first, and what was expanded, in order."""
    seen = set(entries)
    found = sorted((squared(vectors[v], query), v) for v in seen)[:breadth]
    walked: list[int] = []
    while open_ones := [pair for pair in found if pair[1] not in walked]:
        u = open_ones[0][1]
        walked.append(u)
        for v in graph[u]:
            if v >= 0 and v not in seen:
                seen.add(v)
                found = sorted([*found, (squared(vectors[v], query), v)])[:breadth]
    return [v for _, v in found], walked


def prune(vectors: Any, point: Any, candidates: list[int], alpha: float, degree: int) -> list[int]:
    left = sorted(set(candidates), key=lambda c: (squared(vectors[c], point), c))
    kept: list[int] = []
    while left and len(kept) < degree:
        best, *left = left
        kept.append(best)
        left = [c for c in left if alpha**2 * squared(vectors[best], vectors[c]) > squared(vectors[c], point)]
    return kept


def bounded_beam(
    rows: Any, graph: Any, query: Any, beginnings: list[int], known: list[float], breadth: int, narrow: int
) -> tuple[list[float], list[int], int]:
    """A best-first search that expands what is nearer than the last of the `known` distances, or among the nearest.

    The known distances afterwards, the nodes of the pool, and how many distances were computed.
    """
    seen: list[int] = []
    pool: list[tuple[float, int]] = []
    done: set[int] = set()
    size = len(known)

    def meet(v: int) -> None:
        nonlocal known, pool
        if v in seen:
            return
        seen.append(v)
        d = squared(rows[v], query)
        known = sorted([*known, d])[:size]
        pool = sorted([*pool, (d, v)], key=lambda pair: pair[0])[:breadth]

    for v in beginnings:
        meet(v)
    while True:
        left = [place for place, (_, v) in enumerate(pool) if v not in done]
        if not left or (left[0] >= narrow and pool[left[0]][0] >= known[-1]):
            return known, [v for _, v in pool], len(seen)
        done.add(pool[left[0]][1])
        for v in graph[pool[left[0]][1]]:
            if v >= 0:
                meet(v)
