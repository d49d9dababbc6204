"""Transactions on lists that only grow: which isolation level a history has, by the anomalies in it.

A read of a list shows the order of the appends before it, so the whole order of versions is known. From it follow who
wrote after whom (ww), who read from whom (wr), and whose read was overwritten by whom (rw). An anomaly is a read that
cannot be, or a cycle of such edges, named after the edges it needs (Adya, Liskov and O'Neil, Generalized isolation
level definitions, ICDE 2000; Kingsbury and Alvaro, Elle, VLDB 2020):

- dirty-read (G1a): a value of a transaction that failed; intermediate-read (G1b): a version inside another transaction;
- internal: a transaction that does not see its own appends; incompatible-order: two reads with different orders;
  duplicate: an element twice in a list; thin-air-read: an element that nobody appended;
- G0: a cycle of ww; G1c: of ww and wr; G-single: with one rw; lost-update: two read one version of a key and both
  appended to it; G-nonadjacent: more rw, but never two in a row (a long fork), or two that must both have
  been first to commit; G2-item: any other.

>>> def transaction(process, begin, end, *steps):
...     asked = [[f, key, value if f == "append" else None] for f, key, value in steps]
...     return Operation(process, "txn", None, asked, [list(step) for step in steps], begin, end)
>>> history = [
...     transaction(0, 0.0, 2.0, ("r", "x", []), ("append", "x", 1)),
...     transaction(1, 1.0, 3.0, ("r", "x", []), ("append", "x", 2)),
...     transaction(2, 4.0, 5.0, ("r", "x", [1, 2])),
... ]
>>> [anomaly.kind for anomaly in anomalies(history)]
['lost-update']
>>> judge(history, "snapshot-isolation").verdict, judge(history, "read-committed").verdict
('violated', 'holds')
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.protocols.judges.judgement import (
    HOLDS,
    UNKNOWN,
    VIOLATED,
    Judgement,
    explain,
    frozen,
    longest_prefix,
    names,
    returned,
)  # fmt: skip
from assay.protocols.judges.specifications import SPECIFICATIONS, check
from assay.workloads.histories import Operation

ALWAYS = ("thin-air-read", "duplicate", "internal", "incompatible-order")
MODELS = {  # what each level forbids; each forbids all that the one before it does
    "read-uncommitted": (*ALWAYS, "G0"),
    "read-committed": ("dirty-read", "intermediate-read", "G1c"),
    "snapshot-isolation": ("G-single", "lost-update", "G-nonadjacent"),
    "serializable": ("G2-item",),
    "strict-serializable": ("realtime",),
}


@dataclass(frozen=True)
class Anomaly:
    """What went wrong and the transactions that show it, as indices of the history."""

    kind: str
    operations: tuple[int, ...]


def forbidden(model: str) -> set[str]:
    """The anomalies that a level forbids."""
    found: set[str] = set()
    for name, kinds in MODELS.items():
        found |= set(kinds)
        if name == model:
            return found
    raise ValueError(f"no isolation level '{model}'; there are {', '.join(MODELS)}")


def judge(history: Sequence[Operation], model: str = "serializable", *, prefix: bool = True) -> Judgement:
    """Judge one isolation level."""
    check(SPECIFICATIONS["list-append"], history)
    kinds = forbidden(model)
    if twice := _appended_twice(history):
        reason = f"{names(history, twice)}: the same element appended twice to one key hides who appended it"
        return Judgement(model, UNKNOWN, reason=reason)
    found = next((item for item in anomalies(history, model == "strict-serializable") if item.kind in kinds), None)
    if found is None:
        return Judgement(model, HOLDS, prefix=returned(history))

    def probe(trial: Sequence[Operation]) -> str:
        return verdict(trial, model)

    witness, _ = explain(history, probe, found.operations)
    longest = longest_prefix(history, probe) if prefix else 0
    return Judgement(model, VIOLATED, witness, f"{found.kind}: {names(history, witness)}", prefix=longest)


def verdict(history: Sequence[Operation], model: str) -> str:
    """The bare verdict."""
    kinds = forbidden(model)
    real = model == "strict-serializable"
    return VIOLATED if any(item.kind in kinds for item in anomalies(history, real)) else HOLDS


def _appended_twice(history: Sequence[Operation]) -> tuple[int, ...]:
    author: dict[tuple[Any, Any], int] = {}
    for i, operation in enumerate(history):
        for key, values in _transaction(i, operation).appends.items():
            for value in values:
                if (key, value) in author:
                    return author[key, value], i
                author[key, value] = i
    return ()


@dataclass
class _Transaction:
    """What a transaction did to each key: the version that it first read, and what it appended."""

    index: int
    reads: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    appends: dict[Any, list[Any]] = field(default_factory=dict)
    internal: bool = True
    """Whether it saw its own appends."""


def anomalies(history: Sequence[Operation], realtime: bool = False) -> list[Anomaly]:
    """All kinds of anomalies that occur, each with one example; with `realtime`, also cycles through returns."""
    transactions = [_transaction(i, item) for i, item in enumerate(history) if item.status != "fail"]
    failed = {
        (key, value): i
        for i, item in enumerate(history) if item.status == "fail"
        for key, values in _transaction(i, item).appends.items() for value in values
    }  # fmt: skip
    found: dict[str, Anomaly] = {}
    for anomaly in _reads(transactions, failed):
        found.setdefault(anomaly.kind, anomaly)
    if not found.keys() & set(ALWAYS):
        edges, rivals = _edges(history, transactions)
        for anomaly in _cycles(history, edges, rivals, realtime):
            found.setdefault(anomaly.kind, anomaly)
    return list(found.values())


def _transaction(index: int, operation: Operation) -> _Transaction:
    found = _Transaction(index)
    steps = operation.result if operation.f == "txn" and operation.result is not None else operation.value
    if operation.f != "txn":
        steps = [("r" if operation.f == "read" else "append", operation.key, operation.value)]
        if operation.f == "read":
            steps = [("r", operation.key, operation.result)]
    for f, name, value in steps or ():
        key = frozen(name)
        if f == "append":
            found.appends.setdefault(key, []).append(frozen(value))
        elif operation.status == "ok":  # of others nobody knows what they read
            _observe(found, key, frozen(tuple(value or ())))
    return found


def _observe(found: _Transaction, key: Any, version: tuple[Any, ...]) -> None:
    mine = tuple(found.appends.get(key, ()))
    before = version[: len(version) - len(mine)]
    found.internal &= version[len(before) :] == mine and found.reads.get(key, before) == before
    found.reads.setdefault(key, before)


def _longest(transactions: Sequence[_Transaction]) -> dict[Any, tuple[tuple[Any, ...], int]]:
    longest: dict[Any, tuple[tuple[Any, ...], int]] = {}
    for item in transactions:
        for key, version in item.reads.items():
            if len(version) > len(longest.get(key, ((), -1))[0]) or key not in longest:
                longest[key] = (version, item.index)
    return longest


def _reads(transactions: Sequence[_Transaction], failed: dict[tuple[Any, Any], int]) -> Iterator[Anomaly]:
    """Reads that cannot be, whatever the order."""
    author: dict[tuple[Any, Any], _Transaction] = {}
    for item in transactions:
        for key, values in item.appends.items():
            for value in values:
                author[key, value] = item
    longest = _longest(transactions)
    for item in transactions:
        if not item.internal:
            yield Anomaly("internal", (item.index,))
        for key, version in item.reads.items():
            whole, holder = longest[key]
            if whole[: len(version)] != version:
                yield Anomaly("incompatible-order", (holder, item.index))
            if len(set(version)) < len(version):
                yield Anomaly("duplicate", (item.index,))
            for value in version:
                if (key, value) in author:
                    continue
                if (key, value) in failed:
                    yield Anomaly("dirty-read", (failed[key, value], item.index))
                else:
                    yield Anomaly("thin-air-read", (item.index,))
            writer = author.get((key, version[-1])) if version else None
            if writer is not None and writer is not item and writer.appends[key][-1] != version[-1]:
                yield Anomaly("intermediate-read", (writer.index, item.index))


_WW, _WR, _RW, _RT = 0, 1, 2, 3


def _edges(
    history: Sequence[Operation], transactions: Sequence[_Transaction]
) -> tuple[dict[tuple[int, int], int], list[set[int]]]:
    """Edges between transactions with their kind, the strongest evidence first: ww, wr, rw.

    And, key by key, the rivals: those who appended what nobody read, so that the order among them is not known.
    """
    author = {
        (key, value): item.index for item in transactions for key, values in item.appends.items() for value in values
    }
    edges: dict[tuple[int, int], int] = {}

    def add(tail: int, head: int, kind: int) -> None:
        if tail != head:
            edges[tail, head] = min(kind, edges.get((tail, head), kind))

    after: dict[Any, dict[int, list[int]]] = {}  # who wrote the version after the first k elements of a key
    longest = _longest(transactions)
    for key, (version, _) in longest.items():
        writers = [author[key, value] for value in version if (key, value) in author]
        for tail, head in pairwise(writers):
            add(tail, head, _WW)
        after[key] = {at: [author[key, value]] for at, value in enumerate(version) if (key, value) in author}
        after[key][len(version)] = []
    seen = {(key, value) for key, (version, _) in longest.items() for value in version}
    happened = {author[place] for place in seen if place in author}
    happened |= {item.index for item in transactions if history[item.index].status == "ok"}
    rivals: dict[Any, set[int]] = {}
    for (key, value), writer in author.items():  # what nobody read comes after all that was read
        if (key, value) in seen or writer not in happened:
            continue
        rivals.setdefault(key, set()).add(writer)
        if key in longest:
            version = longest[key][0]
            after[key][len(version)].append(writer)
            if version and (key, version[-1]) in author:
                add(author[key, version[-1]], writer, _WW)
    for item in transactions:
        for key, version in item.reads.items():
            if version and (key, version[-1]) in author:
                add(author[key, version[-1]], item.index, _WR)
            for writer in after[key].get(len(version), ()):
                add(item.index, writer, _RW)
    return edges, list(rivals.values())


def _cycles(
    history: Sequence[Operation], edges: dict[tuple[int, int], int], rivals: Sequence[set[int]], realtime: bool
) -> Iterator[Anomaly]:  # fmt: skip
    n = len(history)
    for kind, most in (("G0", _WW), ("G1c", _WR)):
        if cycle := _cycle(n, [edge for edge, number in edges.items() if number <= most]):
            yield Anomaly(kind, tuple(cycle))
            return  # every wider class has this cycle too
    if single := _single(n, edges):
        yield Anomaly("lost-update" if _lost_update(history, single) else "G-single", tuple(single))
    elif cycle := _apart(n, edges, rivals):
        yield Anomaly("lost-update" if _lost_update(history, cycle) else "G-nonadjacent", tuple(cycle))
    elif cycle := _cycle(n, list(edges)):
        yield Anomaly("G2-item", tuple(cycle))
    elif realtime and (cycle := _timed_cycle(history, list(edges))):
        yield Anomaly("realtime", tuple(cycle))


def _lost_update(history: Sequence[Operation], cycle: Sequence[int]) -> bool:
    """Whether these are two that read one version of a key and appended to it."""
    if len(cycle) != 2:
        return False
    one, other = (_transaction(i, history[i]) for i in cycle)
    return any(key in other.appends and other.reads.get(key) == one.reads.get(key, ...) for key in one.appends)


def _cycle(n: int, edges: Sequence[tuple[int, int]]) -> list[int] | None:
    """A short cycle, or None."""
    if not edges:
        return None
    tail, head = np.array(edges).T
    _, component = connected_components(coo_array((np.ones(len(tail)), (tail, head)), (n, n)), connection="strong")
    inside = [(a, b) for a, b in edges if component[a] == component[b]]
    if not inside:
        return None
    after: dict[int, list[int]] = {}
    for a, b in inside:
        after.setdefault(a, []).append(b)
    return _path(after, inside[0][1], inside[0][0])


def _single(n: int, edges: dict[tuple[int, int], int]) -> list[int] | None:
    """A cycle with exactly one rw edge."""
    strong = [edge for edge, kind in edges.items() if kind <= _WR]
    after: dict[int, list[int]] = {}
    for a, b in strong:
        after.setdefault(a, []).append(b)
    every = list(edges)
    if not every:
        return None
    tail, head = np.array(every).T
    _, component = connected_components(coo_array((np.ones(len(tail)), (tail, head)), (n, n)), connection="strong")
    for (a, b), kind in edges.items():
        if kind == _RW and component[a] == component[b] and (path := _path(after, b, a)):
            return path
    return None


def _apart(n: int, edges: dict[tuple[int, int], int], rivals: Sequence[set[int]]) -> list[int] | None:
    """A cycle of begins and commits: what no snapshots explain.

    ww and wr lead from a commit to a begin, rw from a begin to a commit; so a cycle has no two rw in a row. Of two that
    appended to one key, one commits before the other begins: who begins before its rival's commit is the first.
    """
    if not edges:
        return None
    tail, head = np.array(list(edges)).T
    _, component = connected_components(coo_array((np.ones(len(tail)), (tail, head)), (n, n)), connection="strong")
    crowded = np.bincount(component)[component] > 1  # others are in no cycle, and their rivals' order is free
    points = [(v, n + v) for v in np.flatnonzero(crowded).tolist()]  # a transaction's begin, its commit
    for (a, b), kind in edges.items():
        if component[a] == component[b]:
            points.append((a, n + b) if kind == _RW else (n + a, b))
    groups: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(rivals):
        for v in group:
            if crowded[v]:
                groups.setdefault((number, int(component[v])), []).append(v)
    while (cycle := _cycle(2 * n, points)) is None:
        forced = _forced(n, points, groups.values()).difference(points)
        if not forced:
            return None
        points += forced
    return list(dict.fromkeys(v % n for v in cycle))


def _forced(n: int, points: Sequence[tuple[int, int]], groups: Iterable[Sequence[int]]) -> set[tuple[int, int]]:
    """Who must commit before which rival begins; where two must do so before each other, they are enough."""
    rivals = {v for group in groups for v in group}
    bit = {n + v: 1 << at for at, v in enumerate(rivals)}
    reached = _reached(points, bit)
    found: set[tuple[int, int]] = set()
    for group in groups:
        for a, b in combinations(group, 2):
            first, second = reached[a] & bit[n + b], reached[b] & bit[n + a]
            if first and second:
                return {(n + a, b), (n + b, a)}
            if first or second:
                found.add((n + a, b) if first else (n + b, a))
    return found


def _reached(edges: Sequence[tuple[int, int]], bit: dict[int, int]) -> dict[int, int]:
    """The bits of the nodes that each node leads to; there must be no cycle."""
    after: dict[int, list[int]] = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    found: dict[int, int] = {}
    for v in TopologicalSorter(after).static_order():  # what comes after a node is visited before it
        found[v] = bit.get(v, 0)
        for u in after.get(v, ()):
            found[v] |= found[u]
    return found


def _path(after: dict[int, list[int]], start: int, end: int) -> list[int] | None:
    """A shortest path, ends included."""
    before = {start: start}
    queue = deque([start])
    while queue:
        v = queue.popleft()
        if v == end:
            found = [v]
            while found[-1] != start:
                found.append(before[found[-1]])
            return found[::-1]
        for u in after.get(v, ()):
            if u not in before:
                before[u] = v
                queue.append(u)
    return None


def _timed_cycle(history: Sequence[Operation], edges: list[tuple[int, int]]) -> list[int] | None:
    """A cycle with edges of real time; these go through a line of instants, so that there are few."""
    n = len(history)
    instants = sorted({item.invoke for item in history if item.status != "fail"} | {math.inf})
    line = [(n + at, n + at + 1) for at in range(len(instants) - 1)]
    at = {time: n + place for place, time in enumerate(instants)}
    for i, item in enumerate(history):
        if item.status == "fail":
            continue
        if item.invoke > -math.inf:
            line.append((at[item.invoke], i))
        if item.status == "ok":
            later = bisect_right(instants, item.complete)
            if later < len(instants):
                line.append((i, n + later))
    cycle = _cycle(n + len(instants), edges + line)
    return [v for v in cycle if v < n] if cycle else None
