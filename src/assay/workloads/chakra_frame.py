"""Chakra traces as telemetry: a span for each node, an edge for each dependency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.sim.telemetry import Frame
from assay.workloads.chakra_graph import COLL, COMP, MEM_LOAD, MEM_STORE, RECV, SEND, Graph, Int64s, Rows, printable

if TYPE_CHECKING:
    import numpy.typing as npt

TIMES = ("runtime", "start_time_micros")  # as the JSON layout calls them
_LATEST = (2**63 - 1) // 1000  # microseconds that still fit into int64 nanoseconds


def positions(graph: Graph, wanted: npt.NDArray[np.uint64]) -> Int64s:
    """Where the nodes of these ids stand in the trace; -1 for ids that are not in it.

    >>> g = Graph.of([7, 3], ["a", "b"], COMP, data_deps=[[3], []])
    >>> positions(g, g.data_deps.values).tolist()
    [1]
    """
    if not len(graph) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    if numbered_through(graph.id):
        place = wanted - graph.id[0]  # smaller ones wrap round and are too large
        return np.where(place < len(graph), place.astype(np.int64), -1)  # NumPy 2.5 refuses -1 among unsigned ones
    order = np.argsort(graph.id, kind="stable")
    at = np.minimum(np.searchsorted(graph.id, wanted, sorter=order), len(order) - 1)
    found = order[at]
    return np.where(graph.id[found] == wanted, found, -1)


def numbered_through(ids: npt.NDArray[np.uint64]) -> bool:
    """Whether each id is the one before it and one more, as recorders count."""
    return bool(len(ids) and int(ids[-1]) - int(ids[0]) == len(ids) - 1 and (ids[1:] > ids[:-1]).all())


def numbered(*columns: Int64s) -> tuple[Int64s, Int64s]:
    """Rows of columns as numbers, equal rows getting equal numbers in sorted order; and a row of each number.

    >>> numbered(np.array([1, 0, 1]), np.array([5, 9, 5]))[1].tolist()
    [1, 0, 1]
    """
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:  # one after the other: sorting rows as such is forty times slower
        many, inverse = _coded(column)
        code = _coded(code * max(1, many) + inverse)[1]
    firsts = np.full(int(code.max(initial=-1)) + 1, len(code), np.int64)
    firsts[code[::-1]] = np.arange(len(code))[::-1]  # the last one written stays: the first
    return firsts, code


def _coded(column: Int64s) -> tuple[int, Int64s]:
    """How many different values there are, and each one's number among them: counted in a small range, else sorted."""
    low = int(column.min(initial=0))
    span = int(column.max(initial=0)) - low + 1
    if span > 4 * len(column) + 1024:
        different, inverse = np.unique(column, return_inverse=True)
        return len(different), inverse
    there = np.zeros(span, np.bool_)
    there[column - low] = True
    number = np.cumsum(there) - 1
    return int(number[-1]) + 1, number[column - low]


def frame(graphs: Graph | Sequence[Graph]) -> Frame:
    """Telemetry of one or several ranks' traces.

    Entities are ranks and, below them, host threads (`tid`) and device streams (`stream`). A trace without recorded
    starts gives spans whose start is null: missing is not zero. Dependencies on nodes that are not in the trace are
    left out and counted in `repairs`. Ranks keep clocks of their own; align them by their collectives.

    >>> g = Graph.of([1, 2], ["mm", "all_reduce"], [COMP, COLL], data_deps=[[], [1]], start_micros=[5, 9],
    ...              duration_micros=[4, 2], attributes={"is_cpu_op": [True, True]}, rank=0)
    >>> frame(g).spans.select("name", "cat", "start", "dur").rows()
    [('mm', 'cpu_op', 5000, 4000), ('all_reduce', 'comm', 9000, 2000)]
    """
    given = [graphs] if isinstance(graphs, Graph) else list(graphs)
    entities: list[dict[str, Any]] = []
    spans, edges = [], []
    repairs: dict[str, int] = {}
    first = 0
    for place, graph in enumerate(given):
        rank = place if graph.rank is None else graph.rank
        spans.append(_spans(graph, first, _entities(graph, rank, entities)))
        edges += [_edges(graph, first, kind, repairs) for kind in ("data_dep", "ctrl_dep")]
        first += len(graph)
        late = int(((graph.start_micros > _LATEST) | (graph.duration_micros > _LATEST)).sum())
        if late:
            repairs["times too large for nanoseconds left out"] = late
        if odd := _odd_times(graph):
            what = "times that are negative or no number taken as 0"
            repairs[what] = repairs.get(what, 0) + odd
    return Frame.of(
        entities, spans=pl.concat(spans), edges=pl.concat(edges), source=", ".join(g.source for g in given),
        repairs=repairs,
    )  # fmt: skip


def _odd_times(graph: Graph) -> int:
    """How many times of the JSON layout had no place in a column, and no number near them had either."""
    if graph.key_order is None:
        return 0
    kept = [graph.attributes(int(i))[name] for name in TIMES for i in np.flatnonzero(graph.has(name))]
    return sum(not (isinstance(value, float) and 0 <= value < 2**53) for value in kept)


def _entities(graph: Graph, rank: int, entities: list[dict[str, Any]]) -> npt.NDArray[np.uint32]:
    """The entity of each node; new ones are added to the list."""
    lane, on_host = lanes(graph)
    clock = f"rank {rank}"
    whole = {"id": len(entities), "kind": "rank", "name": str(rank), "parent": None, "clock": clock}
    entities.append(whole)
    firsts, inverse = numbered(on_host, lane)
    base = len(entities)
    for is_host, number in zip(on_host[firsts].tolist(), lane[firsts].tolist(), strict=True):
        what = "thread" if is_host else "stream"
        name = f"{rank}/{what}" + (f" {number}" if number >= 0 else "")
        entities.append({"id": len(entities), "kind": what, "name": name, "parent": whole["id"], "clock": clock})
    return (base + inverse).astype(np.uint32)


def lanes(graph: Graph) -> tuple[Int64s, Int64s]:
    """On which thread (`tid`) or stream each node ran, -1 where it does not say; and whether that is a host's."""
    on_host = graph.is_cpu_op
    stream, tid = graph.whole_numbers("stream"), graph.whole_numbers("tid")
    return np.where(on_host, tid, np.where(stream >= 0, stream, tid)), on_host.astype(np.int64)


def _spans(graph: Graph, first: int, entity: npt.NDArray[np.uint32]) -> pl.DataFrame:
    kind = graph.type
    host = np.where(graph.is_cpu_op, "cpu_op", "kernel")
    comm, copy = np.isin(kind, (SEND, RECV, COLL)), np.isin(kind, (MEM_LOAD, MEM_STORE))
    category = np.where(comm, "comm", np.where(copy, "memcpy", np.where(kind == COMP, host, "other")))
    group = graph.texts("pg_name")
    known = bool(graph.start_micros.any())
    names = (
        pl.Series(graph.names or [""], dtype=pl.String) if not graph.names else pl.Series(map(printable, graph.names))
    )
    groups = pl.Series([*(printable(name) for name in group.values), None], dtype=pl.String)
    size = graph.whole_numbers("comm_size")
    return pl.DataFrame({
        "span": np.arange(first, first + len(graph), dtype=np.uint64), "entity": entity,
        "name": names.gather(graph.name.astype(np.uint32)),
        "cat": pl.Series(category.tolist(), dtype=pl.String),
        "start": _nanoseconds(graph.start_micros, known), "dur": _nanoseconds(graph.duration_micros, True),
        "bytes": pl.Series(size).set(pl.Series(size < 0), None),
        "group": groups.gather(np.where(group.codes < 0, len(group.values), group.codes).astype(np.uint32)),
        "seq": _sequence(kind == COLL, group.codes),
    })  # fmt: skip


def _nanoseconds(micros: npt.NDArray[np.uint64], known: bool) -> pl.Series:
    times = pl.Series(np.minimum(micros, _LATEST).astype(np.int64) * 1000)
    return times.set(pl.Series((micros > _LATEST) | (not known)), None)


def _sequence(is_collective: npt.NDArray[np.bool_], group: npt.NDArray[np.int32]) -> pl.Series:
    """Which collective of its group each one is, counted from 0 in the trace's order."""
    table = pl.DataFrame({"it": is_collective, "group": group})
    return table.select(pl.when("it").then(pl.col("it").cum_sum().over("group") - 1).cast(pl.Int64)).to_series()


def _edges(graph: Graph, first: int, kind: str, repairs: dict[str, int]) -> pl.DataFrame:
    rows: Rows = graph.data_deps if kind == "data_dep" else graph.ctrl_deps
    source = positions(graph, rows.values)
    target = np.repeat(np.arange(len(graph)), np.diff(rows.at))
    known = source >= 0
    if lost := int((~known).sum()):
        what = f"{kind}s on nodes that are not in the trace left out"
        repairs[what] = repairs.get(what, 0) + lost
    src, dst = (first + part[known].astype(np.uint64) for part in (source, target))
    return pl.DataFrame({"src": src, "dst": dst, "kind": pl.Series([kind] * len(src), dtype=pl.String)})
