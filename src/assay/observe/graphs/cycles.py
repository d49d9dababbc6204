"""Cycles among data dependencies: named when a trace is refused, broken when the user asks for it.

Traces in the wild have them (the upstream converter is known to fail on some). A cyclic trace cannot be replayed: no
order satisfies it. Which of its dependencies is the wrong one is a guess, so it is made only when asked for, by the
recorded times: the dependency with the least support goes, the one whose node began earliest in relation to the end
of what it is said to have waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from assay.workloads.chakra import Graph
from assay.workloads.chakra_frame import positions
from assay.workloads.chakra_graph import printable

if TYPE_CHECKING:
    Bools = npt.NDArray[np.bool_]
    Int64s = npt.NDArray[np.int64]

_ROUNDS = 64  # of breaking one edge of each cycle; a tangle that survives them loses all that go back in time


def edges_of(graph: Graph) -> tuple[Int64s, Int64s, Int64s]:
    """Data dependencies as positions: what is waited for, who waits, and where it stands in `data_deps.values`.

    Those on nodes that are not in the trace are left out.
    """
    source = positions(graph, graph.data_deps.values)
    target = np.repeat(np.arange(len(graph)), np.diff(graph.data_deps.at))
    known = np.flatnonzero(source >= 0)
    if len(known) == len(source):
        return source, target, known
    return source[known], target[known], known


def find_cycle(source: Int64s, target: Int64s, within: Bools) -> list[int]:
    """The numbers of the edges of one cycle among these nodes, all of which wait for another of them.

    >>> find_cycle(np.array([0, 1, 2]), np.array([1, 2, 1]), np.array([False, True, True]))
    [2, 1]
    """
    return _cycle(source, target, np.flatnonzero(within[source] & within[target]))


def _cycle(source: Int64s, target: Int64s, inner: Int64s) -> list[int]:
    """Walk back from a node until one comes again."""
    before = dict(zip(target[inner].tolist(), inner.tolist(), strict=True))  # one edge into each node is enough
    node, seen, path = int(target[inner[0]]), dict[int, int](), list[int]()
    while node not in seen:
        seen[node] = len(path)
        path.append(before[node])
        node = int(source[before[node]])
    return path[seen[node] :][::-1]


def name_cycle(graph: Graph, source: Int64s, target: Int64s, edges: list[int]) -> str:
    """A cycle for a message: its nodes in order, a long one shortened in its middle."""
    nodes = [graph.label(int(source[edge])) for edge in edges]
    if len(nodes) > 8:
        nodes = [*nodes[:4], f"… ({len(nodes) - 7} more)", *nodes[-3:]]
    return " → ".join([*nodes, nodes[0]])


def break_cycles(graph: Graph) -> tuple[Graph, pl.DataFrame]:
    """The trace without the dependencies that close cycles, and those, one row each, with their support in seconds.

    Of each cycle found the edge with the least support goes: the time from the end of what is waited for to the
    start of who waits, negative where the recording contradicts the dependency. Without recorded starts the nodes'
    order in the file stands for time. An acyclic trace comes back as it is.

    >>> g = Graph.of([1, 2], ["a", "b"], 4, data_deps=[[2], [1]], start_micros=[0, 10], duration_micros=[10, 5])
    >>> mended, removed = break_cycles(g)
    >>> removed.select("waits", "for").rows(), mended.data_deps[1].tolist()
    ([(1, 2)], [1])
    """
    source, target, place = edges_of(graph)
    support = _support(graph, source, target)
    gone = source == target
    for _ in range(_ROUNDS):
        part = _components(len(graph), source[~gone], target[~gone])
        tangled = ~gone & (part[source] == part[target])
        if not tangled.any():
            break
        for edge in _weakest(source, target, support, np.flatnonzero(tangled), part):
            gone[edge] = True
    else:
        part = _components(len(graph), source[~gone], target[~gone])
        turn = np.empty(len(graph), np.int64)
        turn[np.lexsort((np.arange(len(graph)), graph.start_micros))] = np.arange(len(graph))
        gone |= (part[source] == part[target]) & (turn[source] >= turn[target])
    removed = np.zeros(len(graph.data_deps.values), np.bool_)
    removed[place[gone]] = True
    table = pl.DataFrame({
        "waits": graph.id[target[gone]], "for": graph.id[source[gone]],
        "waits_name": [printable(graph.names[graph.name[i]]) for i in target[gone]],
        "for_name": [printable(graph.names[graph.name[i]]) for i in source[gone]],
        "support": support[gone],
    }, schema_overrides={"waits_name": pl.String, "for_name": pl.String})  # fmt: skip
    return graph.without(removed), table


def _support(graph: Graph, source: Int64s, target: Int64s) -> npt.NDArray[np.float64]:
    if not graph.start_micros.any():
        return (target - source).astype(float)  # places in the file; the unit does not matter for a comparison
    start, end = graph.start, graph.start + graph.duration
    return np.asarray(start[target] - end[source], float)


def _components(n: int, source: Int64s, target: Int64s) -> Int64s:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(source), np.int8), (source, target)), shape=(n, n)).tocsr()
    return np.asarray(connected_components(matrix, directed=True, connection="strong")[1], np.int64)


def _weakest(
    source: Int64s, target: Int64s, support: npt.NDArray[np.float64], tangled: Int64s, part: Int64s
) -> list[int]:
    """Of one cycle in each tangle, the edge with the least support."""
    tangled = tangled[np.argsort(part[source[tangled]], kind="stable")]
    cuts = np.flatnonzero(np.diff(part[source[tangled]])) + 1
    cycles = (_cycle(source, target, inner) for inner in np.split(tangled, cuts))
    return [min(cycle, key=lambda edge: (support[edge], edge)) for cycle in cycles]
