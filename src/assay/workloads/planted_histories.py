"""Histories that are right by construction, and anomalies of known class to plant in them.

A clean history comes from a run: every operation takes effect at one instant between its call and its return, and the
instants decide what it returns. A plant is a handful of operations on keys of their own, or a changed answer, that
break exactly the models named in `breaks` and everything stronger.

>>> history = registers(40, seed=1)
>>> spoiled, planted = plant(history, "long-fork", seed=1)
>>> len(spoiled) - len(history), PLANTS["long-fork"].breaks
(6, ('sequential',))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assay.sim.random import stream
from assay.workloads.histories import Operation

Span = tuple[int, float, float, float]


def _spans(operations: int, processes: int, seed: int, name: str) -> list[Span]:
    """(process, call, instant, return) of operations whose processes call as soon as they can, by instant."""
    random = stream(seed, "planted", name, operations, processes)
    free = random.random(processes)
    lengths, points, pauses = random.exponential(1.0, operations), random.random(operations), random.random(operations)
    spans: list[Span] = []
    for i in range(operations):
        process = int(free.argmin())
        call = float(free[process])
        back = call + float(lengths[i]) + 1e-6
        spans.append((process, call, call + float(points[i]) * (back - call), back))
        free[process] = back + 1e-6 + 0.2 * float(pauses[i])
    return sorted(spans, key=lambda span: span[2])


def registers(
    operations: int, processes: int = 8, keys: int = 4, seed: int = 0, writes: float = 0.5, lost: float = 0.0
) -> list[Operation]:  # fmt: skip
    """A linearizable history of registers with all writes different; some answers may be lost.

    >>> len(registers(100)), registers(100) == registers(100)
    (100, True)
    """
    random = stream(seed, "planted", "registers", operations)
    dice, names, fates = random.random(operations), random.integers(0, keys, operations), random.random(operations)
    held: dict[str, int] = {}
    history: list[Operation] = []
    for i, (process, call, instant, back) in enumerate(_spans(operations, processes, seed, "registers")):
        key = f"x{names[i]}"
        gone = bool(fates[i] < lost)
        took = instant if not gone or fates[i] < lost / 2 else math.inf  # of the lost, half took effect
        complete, status = (math.inf, "info") if gone else (back, "ok")
        if dice[i] < writes:
            if took < math.inf:
                held[key] = i + 1
            history.append(Operation(process, "write", key, i + 1, None, call, complete, status))
        else:
            result = None if gone else held.get(key)
            history.append(Operation(process, "read", key, None, result, call, complete, status))
    return sorted(history, key=lambda operation: operation.invoke)


def bank(
    operations: int, processes: int = 50, accounts: int = 8, seed: int = 0, reads: float = 0.5
) -> list[Operation]:  # fmt: skip
    """A linearizable history of transfers and reads of all accounts, after one read before everything."""
    random = stream(seed, "planted", "bank", operations)
    held = dict.fromkeys(range(accounts), 100)
    dice, amounts = random.random(operations), random.integers(1, 6, operations)
    ends = random.integers(0, accounts, (operations, 2))
    history = [Operation(0, "read", None, None, dict(held), -2.0, -1.0)]
    for i, (process, call, _, back) in enumerate(_spans(operations, processes, seed, "bank")):
        if dice[i] < reads:
            history.append(Operation(process, "read", None, None, dict(held), call, back))
            continue
        source, target, amount = int(ends[i, 0]), int(ends[i, 1]), int(amounts[i])
        held[source] -= amount
        held[target] += amount
        given = {"from": source, "to": target, "amount": amount}
        history.append(Operation(process, "transfer", None, given, None, call, back))
    return sorted(history, key=lambda operation: operation.invoke)


def transactions(operations: int, processes: int = 8, keys: int = 4, seed: int = 0) -> list[Operation]:
    """A strictly serializable history of transactions on growing lists."""
    random = stream(seed, "planted", "transactions", operations)
    lists: dict[str, list[int]] = {}
    history: list[Operation] = []
    for i, (process, call, _, back) in enumerate(_spans(operations, processes, seed, "transactions")):
        asked: list[list[Any]] = []
        answered: list[list[Any]] = []
        for at in range(int(random.integers(1, 4))):
            key = f"x{random.integers(keys)}"
            if random.random() < 0.5:
                lists.setdefault(key, []).append(10 * i + at)
                asked.append(["append", key, 10 * i + at])
                answered.append(["append", key, 10 * i + at])
            else:
                asked.append(["r", key, None])
                answered.append(["r", key, list(lists.get(key, []))])
        history.append(Operation(process, "txn", None, asked, answered, call, back))
    return sorted(history, key=lambda operation: operation.invoke)


# ---------------------------------------------------------------------------------------------- plants

Step = tuple[int, str, str, Any]
"""Process, w or r, key, value; steps follow one another in time."""


@dataclass(frozen=True)
class Plant:
    """An anomaly: what it breaks at the least, and its operations."""

    breaks: tuple[str, ...]
    steps: tuple[Step, ...]


def _plant(breaks: str, steps: str) -> Plant:
    """Steps as "0wx1 1rx-": process, w or r, key, value (- for the initial one)."""
    told = ((int(word[0]), word[1], word[2], None if word[3] == "-" else int(word[3])) for word in steps.split())
    return Plant(tuple(breaks.split()), tuple(told))


PLANTS = {
    "stale-read": _plant("linearizable", "0wx1 0wx2 1rx1"),
    "store-buffer": _plant("sequential", "0wx1 0ry- 1wy1 1rx-"),
    "long-fork": _plant("sequential", "0wx1 1wy1 2rx1 2ry- 3ry1 3rx-"),
    "divergence": _plant("causal-convergent", "0wx1 1wx2 0rx2 1rx1"),
    "split-view": _plant("pram", "0wz1 0wx1 0wy1 1wx2 1rz- 1ry1 1rx2"),
    "lost-cause": _plant("writes-follow-reads", "0wx1 1rx1 1wy1 2ry1 2rx-"),
    "reordered-writes": _plant("monotonic-writes", "0wx1 0wx2 1rx2 1rx1"),
    "back-and-forth": _plant("monotonic-reads", "0wx1 1wx2 2rx1 2rx2 2rx1"),
    "own-write-missed": _plant("read-your-writes", "0wx1 0wx2 0rx1"),
}

TRANSACTIONS = {  # process: steps; F marks one that fails
    "write-cycle": ("read-uncommitted", "0ax1,ay1 1ax2,ay2 2rx12,ry21"),
    "dirty-read": ("read-committed", "F0ax1 1rx1"),
    "intermediate-read": ("read-committed", "0ax1,ax2 1rx1 2rx12"),
    "circular-flow": ("read-committed", "0ax1,ry1 1ay1,rx1"),
    "lost-update": ("snapshot-isolation", "0rx-,ax1 1rx-,ax2 2rx12"),
    "read-skew": ("snapshot-isolation", "0rx-,ry1 1ax1,ay1 2rx1,ry1"),
    "forked-snapshots": ("snapshot-isolation", "0ax1 1ay1 2rx1,ry- 3rx-,ry1"),
    "blind-rivals": ("snapshot-isolation", "0rx-,ay1,az1 1ry-,ax1,az2"),
    "write-skew": ("serializable", "0rx-,ay1 1ry-,ax1 2rx1,ry1"),
    "forgotten-session": ("strong-session-snapshot-isolation", "0ax1 0rx- 1rx1"),
    "late-session": ("strong-session-serializable", "0ay1 1ry-,ax1 0rx- 2rx1,ry1"),
    "stale-transaction": ("strict-serializable", "0ax1 1rx- 2rx1"),
}


def plant(history: Sequence[Operation], name: str, seed: int = 0) -> tuple[list[Operation], tuple[int, ...]]:
    """The history with the anomaly in it, at a random time, by processes of its own; and where its operations are."""
    random = stream(seed, "plant", name, len(history))
    begin = float(random.choice([operation.invoke for operation in history])) if history else 0.0
    first = 1 + max((operation.process for operation in history), default=-1)
    gadget = list(_register_steps(name, first) if name in PLANTS else _transaction_steps(name, first))
    gap = 1e-3
    added = [
        item._replace(invoke=begin + gap * (2 * at + 1), complete=begin + gap * (2 * at + 2))
        for at, item in enumerate(gadget)
    ]
    spoiled = sorted([*history, *added], key=lambda operation: operation.invoke)
    return spoiled, tuple(i for i, operation in enumerate(spoiled) if operation.process >= first)


def _register_steps(name: str, first: int) -> Iterator[Operation]:
    for process, f, key, value in PLANTS[name].steps:
        place = f"{name}-{key}"
        if f == "w":
            yield Operation(first + process, "write", place, value, None, 0.0, 0.0)
        else:
            yield Operation(first + process, "read", place, None, value, 0.0, 0.0)


def _transaction_steps(name: str, first: int) -> Iterator[Operation]:
    if name not in TRANSACTIONS:
        raise ValueError(f"no plant '{name}'; there are {', '.join((*PLANTS, *TRANSACTIONS))}")
    for word in TRANSACTIONS[name][1].split():
        failed, word = word[0] == "F", word.lstrip("F")
        asked: list[list[Any]] = []
        answered: list[list[Any]] = []
        for step in word[1:].split(","):
            place = f"{name}-{step[1]}"
            if step[0] == "a":
                asked.append(["append", place, int(step[2])])
                answered.append(["append", place, int(step[2])])
            else:
                asked.append(["r", place, None])
                answered.append(["r", place, [int(digit) for digit in step[2:] if digit != "-"]])
        result, status = (None, "fail") if failed else (answered, "ok")
        yield Operation(first + int(word[0]), "txn", None, asked, result, 0.0, 0.0, status)


def stale(history: Sequence[Operation], seed: int = 0) -> tuple[list[Operation], int] | None:
    """The history with one read that returns a value surely overwritten before it began; None where none can."""
    random = stream(seed, "stale", len(history))
    reads = [i for i, operation in enumerate(history) if operation.f == "read" and operation.status == "ok"]
    writes = [operation for operation in history if operation.f == "write" and operation.status == "ok"]
    for i in random.permutation(reads).tolist():
        before = [item for item in writes if item.key == history[i].key and item.precedes(history[i])]
        newest = max(before, key=lambda item: item.invoke, default=None)
        older = [item for item in before if newest is not None and item.precedes(newest)]
        if older:
            spoiled = list(history)
            spoiled[i] = history[i]._replace(result=older[int(random.integers(len(older)))].value)
            return spoiled, i
    return None
