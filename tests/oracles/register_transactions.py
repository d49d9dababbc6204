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


def serializable(history: Sequence[Operation], *, strict: bool = False) -> bool:
    """Whether there is an order of whole transactions, in real time where strict."""
    for order in permutations(history):
        late = any(b.complete < a.invoke for at, a in enumerate(order) for b in order[at + 1 :])
        state: State | None = {}
        for operation in order:
            state = plays(operation, state) if state is not None else None
        if state is not None and not (strict and late):
            return True
    return False


def snapshot_isolated(history: Sequence[Operation]) -> bool:
    """Whether there is an order of beginnings and commits: reads at the beginning, first committer wins."""
    points = [(kind, i) for i in range(len(history)) for kind in ("begin", "commit")]
    for order in permutations(points):
        place = {point: at for at, point in enumerate(order)}
        if all(place["begin", i] < place["commit", i] for i in range(len(history))) and _snapshots(history, order):
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


def written(seed: int, most: int = 3) -> list[Operation]:
    """A few transactions with answers drawn at random from what was written; every value has one author."""
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
    spans = [sorted((draw.random() * 3, draw.random() * 3)) for _ in made]
    return [
        Operation(i, "txn", None, [[f, k, None if f == "r" else v] for f, k, v in steps], steps, begin, end)
        for i, (steps, (begin, end)) in enumerate(zip(made, spans, strict=True))
    ]
