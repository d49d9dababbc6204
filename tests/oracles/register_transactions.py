"""Isolation of transactions on registers by their definitions: every order of everything. Slow, and meant to be."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

from assay.workloads.histories import Operation

State = dict[str, Any]


def plays(operation: Operation, state: State) -> State | None:
    """The state after a transaction that reads and writes step by step; None where it read something else."""
    now = dict(state)
    for f, key, value in operation.result:
        if f == "w":
            now[key] = value
        elif now.get(key) != value:
            return None
    return now


def in_session(a: Operation, b: Operation) -> bool:
    """Whether one process did the first before the second."""
    return a.process == b.process and a.invoke < b.invoke


def serializable(history: Sequence[Operation], *, strict: bool = False, sessions: bool = False) -> bool:
    """Whether there is an order of whole transactions, in real time where strict, true to processes with sessions."""
    for order in permutations(history):
        late = any(b.complete < a.invoke for at, a in enumerate(order) for b in order[at + 1 :])
        if sessions and any(in_session(b, a) for at, a in enumerate(order) for b in order[at + 1 :]):
            continue
        state: State | None = {}
        for operation in order:
            state = plays(operation, state) if state is not None else None
        if state is not None and not (strict and late):
            return True
    return False


def snapshot_isolated(history: Sequence[Operation], *, sessions: bool = False) -> bool:
    """Whether there is an order of beginnings and commits: reads at the beginning, first committer wins; with
    sessions, a process begins one transaction after the commit of the one before.
    """
    points = [(kind, i) for i in range(len(history)) for kind in ("begin", "commit")]
    needed = [(("begin", i), ("commit", i)) for i in range(len(history))]
    if sessions:
        pairs = [(a, b) for a in range(len(history)) for b in range(len(history))]
        needed += [(("commit", a), ("begin", b)) for a, b in pairs if in_session(history[a], history[b])]
    for order in permutations(points):
        place = {point: at for at, point in enumerate(order)}
        if all(place[first] < place[second] for first, second in needed) and _snapshots(history, order):
            return True
    return False


def _snapshots(history: Sequence[Operation], order: Sequence[tuple[str, int]]) -> bool:
    state: State = {}
    commits: list[tuple[int, set[str]]] = []
    begun: dict[int, int] = {}
    for kind, i in order:
        if kind == "begin":
            if plays(history[i], state) is None:
                return False
            begun[i] = len(commits)
            continue
        written = {key: value for f, key, value in history[i].result if f == "w"}
        if any(keys & set(written) for _, keys in commits[begun[i] :]):
            return False
        commits.append((i, set(written)))
        state |= written
    return True


def _reads(operation: Operation) -> Iterator[tuple[str, Any]]:
    """What it read of others."""
    own: set[str] = set()
    for f, key, value in operation.result:
        if f == "w":
            own.add(key)
        elif key not in own:
            yield key, value


def uncommitted(history: Sequence[Operation]) -> bool:
    """Whether each transaction sees its own writes, and everything read was written, by another."""
    for i, operation in enumerate(history):
        own: State = {}
        for f, key, value in operation.result:
            if f == "w":
                own[key] = value
            elif key in own and own[key] != value:
                return False
        others = {(k, v) for j, other in enumerate(history) if j != i for f, k, v in other.result if f == "w"}
        if any(value is not None and (key, value) not in others for key, value in _reads(operation)):
            return False
    return True


def committed(history: Sequence[Operation]) -> bool:
    """Whether some order of versions of every key leaves no circle of writes and reads (Adya's G1)."""
    last = [{key: value for f, key, value in operation.result if f == "w"} for operation in history]
    final = {(key, value) for writes in last for key, value in writes.items()}
    if not uncommitted(history):
        return False
    if any(value is not None and (key, value) not in final for item in history for key, value in _reads(item)):
        return False
    keys = sorted({key for writes in last for key in writes})
    writers = [[i for i, writes in enumerate(last) if key in writes] for key in keys]
    read = [
        (j, i)
        for i, item in enumerate(history) for key, value in _reads(item)
        for j, writes in enumerate(last) if key in writes and writes[key] == value and i != j
    ]  # fmt: skip
    for orders in product(*(permutations(own) for own in writers)):
        edges = [*read, *((a, b) for order in orders for at, a in enumerate(order) for b in order[at + 1 :])]
        if any(all(order.index(a) < order.index(b) for a, b in edges) for order in permutations(range(len(history)))):
            return True
    return False


def written(seed: int, most: int = 3, values_of_each: int = 1_000) -> list[Operation]:
    """A few transactions with answers drawn at random from what was written, by a few processes; every value has one
    author, unless there are few values.
    """
    draw = random.Random(seed)
    count = draw.randint(2, most)
    asked = [[(draw.choice("rrw"), draw.choice("xy")) for _ in range(draw.randint(1, 3))] for _ in range(count)]
    values: dict[str, list[Any]] = {"x": [None], "y": [None]}
    made: list[list[list[Any]]] = []
    number = 0
    for steps in asked:
        made.append([])
        for f, key in steps:
            number += f == "w"
            made[-1].append([f, key, number if f == "w" else None])
            if f == "w":
                values[key].append(number)
    for steps in made:
        for step in steps:
            if step[0] == "r":
                step[2] = draw.choice(values[step[1]])
    for step in (step for steps in made for step in steps if step[2] is not None):
        step[2] = 1 + step[2] % values_of_each
    process = [draw.randrange(count + 1) for _ in made]
    instants = {p: sorted(draw.random() * 3 for _ in range(2 * process.count(p))) for p in sorted(set(process))}
    return [
        Operation(
            p, "txn", None, [[f, k, None if f == "r" else v] for f, k, v in steps], steps,
            instants[p].pop(0), instants[p].pop(0),
        )
        for p, steps in zip(process, made, strict=True)
    ]  # fmt: skip
