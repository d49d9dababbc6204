"""Small histories of every kind, drawn by Hypothesis: right, wrong, with ties in time, failures and lost answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from assay.workloads.histories import Operation

Dice = Iterator[int]
Make = Callable[[Dice, int], tuple[str, Any, Any]]
Answer = Callable[[Dice, Operation, list[Operation]], Any]


def histories(make: Make, answer: Answer, most: int = 5, lossy: bool = True) -> st.SearchStrategy[list[Operation]]:
    """Histories of at most so many operations: bytes decide who moves, what is asked, what comes back."""
    return st.binary(min_size=4 * most, max_size=9 * most).map(lambda data: _decode(data, make, answer, most, lossy))


def _decode(data: bytes, make: Make, answer: Answer, most: int, lossy: bool) -> list[Operation]:
    dice = iter(data)
    done: list[Operation | None] = []
    running: dict[int, tuple[int, Operation]] = {}
    asked: list[Operation] = []
    now = 0.0
    for byte in dice:
        process = byte % 3
        now += (byte >> 6) > 0  # sometimes two things happen at one instant
        if process in running:
            slot, operation = running.pop(process)
            status = ("ok", "ok", "ok", "ok", "ok", "ok", "info", "fail")[(byte >> 3) % 8] if lossy else "ok"
            result = answer(dice, operation, asked) if status == "ok" else None
            complete = math.inf if status == "info" else now
            done[slot] = operation._replace(result=result, complete=complete, status=status)
        elif len(done) < most:
            f, key, value = make(dice, len(done))
            operation = Operation(process, f, key, value, None, now, math.inf, "info")
            running[process] = (len(done), operation)
            asked.append(operation)
            done.append(operation)
            now += 1  # a process never begins and ends at one instant with another of its own
    return [operation for operation in done if operation is not None]


def roll(dice: Dice, sides: int) -> int:
    """A number below this."""
    return next(dice, 0) % sides


def register(dice: Dice, number: int) -> tuple[str, Any, Any]:
    """Reads and writes of two keys; every value is new."""
    kind = roll(dice, 8)
    return ("write", "xy"[kind >> 2], number + 1) if kind % 2 else ("read", "xy"[kind >> 2], None)


def busy_register(dice: Dice, number: int) -> tuple[str, Any, Any]:
    """Reads, writes and compare-and-sets of few values."""
    kind = roll(dice, 3)
    if kind == 2:
        return "cas", "x", (roll(dice, 3), roll(dice, 3))
    return ("write", "x", roll(dice, 3)) if kind else ("read", "x", None)


def read_register(dice: Dice, operation: Operation, asked: list[Operation]) -> Any:
    """Mostly a value that someone has written, the newest more often than not."""
    if operation.f == "cas":
        return roll(dice, 2) == 0
    if operation.f != "read":
        return None
    values = [item.value for item in asked if item.f == "write" and item.key == operation.key] + [None]
    values += [item.value[1] for item in asked if item.f == "cas"]
    return 99 if roll(dice, 40) == 39 else values[roll(dice, len(values))]


def queue(dice: Dice, number: int) -> tuple[str, Any, Any]:
    """Enqueues of new values, and dequeues."""
    return ("enqueue", None, number + 1) if roll(dice, 2) else ("dequeue", None, None)


def read_queue(dice: Dice, operation: Operation, asked: list[Operation]) -> Any:
    if operation.f == "enqueue":
        return None
    values = [item.value for item in asked if item.f == "enqueue"]
    return [None, *values][roll(dice, len(values) + 1)]


def growing_set(dice: Dice, number: int) -> tuple[str, Any, Any]:
    return ("add", None, number + 1) if roll(dice, 2) else ("read", None, None)


def read_set(dice: Dice, operation: Operation, asked: list[Operation]) -> Any:
    if operation.f == "contains":
        return roll(dice, 2) == 1
    if operation.f != "read":
        return None
    return [item.value for item in asked if item.f == "add" and roll(dice, 4)]


def set_of_few(dice: Dice, number: int) -> tuple[str, Any, Any]:
    return ("add", "remove", "contains")[roll(dice, 3)], None, roll(dice, 2)


def counter(dice: Dice, number: int) -> tuple[str, Any, Any]:
    return ("add", None, roll(dice, 4) - 1) if roll(dice, 2) else ("read", None, None)


def read_counter(dice: Dice, operation: Operation, asked: list[Operation]) -> Any:
    return sum(item.value for item in asked if item.f == "add" and roll(dice, 2)) if operation.f == "read" else None


def bank(dice: Dice, number: int) -> tuple[str, Any, Any]:
    if roll(dice, 2):
        return "read", None, None
    pair = ("ab", "bc", "ca", "ba")[roll(dice, 4)]
    return "transfer", None, {"from": pair[0], "to": pair[1], "amount": 1 + roll(dice, 2)}


def read_bank(dice: Dice, operation: Operation, asked: list[Operation]) -> Any:
    if operation.f == "transfer":
        return None
    accounts = {"a": 10, "b": 10, "c": 10}
    for item in asked:
        if item.f == "transfer" and roll(dice, 2):
            accounts[item.value["from"]] -= item.value["amount"]
            accounts[item.value["to"]] += item.value["amount"]
    return accounts


def transaction(dice: Dice, number: int) -> tuple[str, Any, Any]:
    """One to three steps on two lists."""
    steps = []
    for at in range(1 + roll(dice, 3)):
        key = "xy"[roll(dice, 2)]
        steps.append(["append", key, 10 * number + at] if roll(dice, 2) else ["r", key, None])
    return "txn", None, steps


def read_lists(dice: Dice, operation: Operation, asked: list[Operation]) -> Any:
    """Reads show some prefix of what was asked so far, and mostly the transaction's own appends."""
    lists: dict[str, list[Any]] = {"x": [], "y": []}
    for item in asked:
        for f, key, value in item.value:
            if (
                f == "append"
                and item is not operation
                and (item.process, item.invoke) != operation[:1] + operation[5:6]
            ):
                lists[key].append(value)
    cuts = {key: roll(dice, len(values) + 1) for key, values in lists.items()}
    mine: dict[str, list[Any]] = {"x": [], "y": []}
    result = []
    for f, key, value in operation.value:
        if f == "append":
            mine[key].append(value)
            result.append([f, key, value])
        else:
            result.append([f, key, lists[key][: cuts[key]] + (mine[key] if roll(dice, 8) else [])])
    return result
