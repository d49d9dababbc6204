"""Traces to hand out: like the recorded ones, but durations are drawn anew, and names, tensors and sizes forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.workloads.chakra import Graph, Interned
from assay.workloads.chakra_graph import Rows

_KEPT = ("is_cpu_op", "comm_type", "comm_src", "comm_dst", "comm_tag", "stream", "tid", "pg_size")


def resample(graphs: Sequence[Graph], seed: int = 0) -> list[Graph]:
    """The traces of one run, such that they give nothing away: who waits for whom is kept, the rest is not.

    A node's duration is drawn among those of all nodes of its rank with its name and type. Names become `op0`, `op1`,
    …, groups `g0`, … (alike on all ranks); sizes are rounded up to powers of two; tensors, schemas and unknown fields
    are left out; ids are counted through; starts keep the nodes' order only.

    >>> g = Graph.of([7, 9], ["secret", "secret"], 4, data_deps=[[], [7]], duration_micros=[3, 5])
    >>> again = resample([g])[0]
    >>> again.names, again.id.tolist(), again.data_deps[1].tolist(), set(again.duration_micros.tolist()) <= {3, 5}
    (['op0'], [0, 1], [0], True)
    """
    names: dict[str, str] = {}
    groups: dict[str, str] = {}
    return [_one(graph, place, seed, names, groups) for place, graph in enumerate(graphs)]


def _one(graph: Graph, place: int, seed: int, names: dict[str, str], groups: dict[str, str]) -> Graph:
    n = len(graph)
    ids = np.unique(np.concatenate([graph.id, graph.ctrl_deps.values, graph.data_deps.values]))
    number = np.full(len(ids), -1, np.int64)
    number[np.searchsorted(ids, graph.id)] = np.arange(n)
    number[number < 0] = n + np.arange(int((number < 0).sum()))  # what is not in the trace stays so

    def renumbered(rows: Rows) -> Rows:
        return Rows(rows.at, number[np.searchsorted(ids, rows.values)].astype(np.uint64))

    size, group = graph.whole_numbers("comm_size"), graph.texts("pg_name")
    said: dict[str, Any] = {name: _column(graph, name) for name in _KEPT}
    said["comm_size"] = [1 << max(0, value - 1).bit_length() if value >= 0 else None for value in size.tolist()]
    said["pg_name"] = Interned(group.codes, [groups.setdefault(g, f"g{len(groups)}") for g in group.values])
    turn = np.empty(n, np.int64)
    turn[np.lexsort((np.arange(n), graph.start_micros))] = np.arange(n)
    return Graph.of(
        np.arange(n), Interned(graph.name, [names.setdefault(name, f"op{len(names)}") for name in graph.names]),
        graph.type, ctrl_deps=renumbered(graph.ctrl_deps), data_deps=renumbered(graph.data_deps),
        start_micros=turn if graph.start_micros.any() else 0, duration_micros=_durations(graph, seed, place),
        attributes={name: column for name, column in said.items() if column is not None}, rank=graph.rank,
    )  # fmt: skip


def _durations(graph: Graph, seed: int, place: int) -> Any:
    random = stream(seed, "chakra", "resample", place)
    out = graph.duration_micros.copy()
    _, kind = np.unique(np.stack([graph.name, graph.type]), axis=1, return_inverse=True)
    order = np.argsort(kind.reshape(-1), kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(kind.reshape(-1)[order])) + 1) if len(order) else ():
        out[part] = random.choice(graph.duration_micros[part], len(part))
    return out


def _column(graph: Graph, name: str) -> list[Any] | None:
    there = graph.has(name)
    if not there.any():
        return None
    values = graph.whole_numbers(name).tolist()
    return [(bool(v) if name == "is_cpu_op" else v) if has else None for v, has in zip(values, there, strict=True)]
