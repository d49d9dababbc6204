"""Who may send to whom: named shapes, graphs of ours, or the out-neighbours themselves.

>>> neighbours("star", 4)
[(1, 2, 3), (0,), (0,), (0,)]
>>> neighbours([[1], [2], [0]], 3)  # a one-way triangle
[(1,), (2,), (0,)]
>>> neighbours("complete", 3) is None  # everybody
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

NAMES = ("complete", "ring", "one-way-ring", "star", "chain", "grid", "torus")


def neighbours(topology: Any, n: int) -> list[tuple[int, ...]] | None:
    """The out-neighbours of each node, or None where all may send to all."""
    if isinstance(topology, str):
        return None if topology == "complete" else _named(topology, n)
    if isinstance(topology, (list, tuple)):
        return _lists(topology, n)
    from assay.sim import graphs  # compiled code, which a process of nodes need not load

    if isinstance(topology, graphs.Complete):
        _same(topology.n, n)
        return None
    if isinstance(topology, graphs.CSR):
        _same(topology.n, n)
        pointers, indices = topology.indptr.tolist(), topology.indices.tolist()
        return [tuple(indices[pointers[node] : pointers[node + 1]]) for node in range(n)]
    raise ValueError(f"a topology of type {type(topology).__name__}; a name, a graph or lists of neighbours expected")


def _same(have: int, want: int) -> None:
    if have != want:
        raise ValueError(f"the topology has {have} nodes, the world {want}")


def _lists(rows: Sequence[Sequence[int]], n: int) -> list[tuple[int, ...]]:
    _same(len(rows), n)
    for node, row in enumerate(rows):
        for other in row:
            if not 0 <= other < n or other == node:
                raise ValueError(f"node {node} has the neighbour {other}; another node below {n} expected")
    return [tuple(row) for row in rows]


def _named(name: str, n: int) -> list[tuple[int, ...]]:
    if name == "ring":
        return [tuple(sorted({(node - 1) % n, (node + 1) % n} - {node})) for node in range(n)]
    if name == "one-way-ring":
        return [((node + 1) % n,) if n > 1 else () for node in range(n)]
    if name == "star":
        return [tuple(range(1, n)) if node == 0 else (0,) for node in range(n)]
    if name == "chain":
        return [tuple(other for other in (node - 1, node + 1) if 0 <= other < n) for node in range(n)]
    if name in ("grid", "torus"):
        return _lattice(n, wrap=name == "torus")
    raise ValueError(f"no topology '{name}'; one of {', '.join(NAMES)} expected")


def _lattice(n: int, wrap: bool) -> list[tuple[int, ...]]:
    side = math.isqrt(n)
    if side * side != n:
        raise ValueError(f"{n} nodes make no square; a grid or torus needs 4, 9, 16, …")
    rows = []
    for node in range(n):
        row, column = divmod(node, side)
        around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        inside = ((r % side, c % side) for r, c in around if wrap or (0 <= r < side and 0 <= c < side))
        rows.append(tuple(sorted({r * side + c for r, c in inside} - {node})))
    return rows
