"""Histories with an anomaly whose place among the models is known, hidden in a background in which all is well.

The background is made by an object that does one thing at a time, each operation at an instant between its call and
its return. The anomaly is a few operations on keys and by processes of its own, before, within or after it. Nothing in
one touches the other, so the whole breaks exactly what the few operations break, and those are judged by definition.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assay.workloads.histories import Operation

Step = tuple[int, str, Any, Any, Any]
"""Process, operation, key, argument, result; one after the other."""


def _w(process: int, key: str, value: Any) -> Step:
    return process, "write", key, value, None


def _r(process: int, key: str, value: Any) -> Step:
    return process, "read", key, None, value


REGISTERS: dict[str, tuple[Step, ...]] = {
    "fine": (_w(0, "x", 1), _r(1, "x", 1)),
    "stale-read": (_w(0, "x", 1), _r(1, "x", None)),
    "store-buffer": (_w(0, "x", 1), _w(1, "y", 1), _r(0, "y", None), _r(1, "x", None)),
    "long-fork": (
        _w(0, "x", 1), _w(1, "y", 1), _r(2, "x", 1), _r(2, "y", None), _r(3, "y", 1), _r(3, "x", None),
    ),
    "crossed": (_w(0, "x", 1), _w(1, "x", 2), _r(0, "x", 2), _r(1, "x", 1)),
    "forgotten-past": (
        _w(0, "z", 1), _w(0, "x", 1), _w(0, "y", 1), _w(1, "x", 2), _r(1, "z", None), _r(1, "y", 1), _r(1, "x", 2),
    ),
    "effect-before-cause": (_w(0, "x", 1), _r(1, "x", 1), _w(1, "y", 1), _r(2, "y", 1), _r(2, "x", None)),
    "later-write-first": (_w(0, "x", 1), _w(0, "y", 1), _r(1, "y", 1), _r(1, "x", None)),
    "own-write-missed": (_w(0, "x", 1), _r(0, "x", None)),
    "read-goes-back": (_w(0, "x", 1), _r(1, "x", 1), _r(1, "x", None)),
    "swapped-writes": (_w(0, "x", 1), _w(0, "x", 2), _r(1, "x", 2), _r(1, "x", 1)),
    "thin-air": (_w(0, "x", 1), _r(1, "x", 7)),
    "circle": (_r(0, "x", 1), _w(0, "y", 1), _r(1, "y", 1), _w(1, "x", 1)),
}  # fmt: skip

Txn = tuple[int, str, tuple[tuple[str, str, Any], ...]]
"""Process, status, steps."""
LEVELS = ("read-uncommitted", "read-committed", "snapshot-isolation", "serializable", "strict-serializable")
LISTS: dict[str, tuple[str | None, tuple[Txn, ...]]] = {
    "fine": (None, ((0, "ok", (("append", "x", 1),)), (1, "ok", (("r", "x", [1]),)))),
    "thin-air-read": ("read-uncommitted", ((0, "ok", (("r", "x", [9]),)),)),
    "duplicate": ("read-uncommitted", ((0, "ok", (("append", "x", 1),)), (1, "ok", (("r", "x", [1, 1]),)))),
    "internal": ("read-uncommitted", ((0, "ok", (("append", "x", 1), ("r", "x", []))),)),
    "incompatible-order": ("read-uncommitted", (
        (0, "ok", (("append", "x", 1),)), (1, "ok", (("append", "x", 2),)), (2, "ok", (("r", "x", [1, 2]),)),
        (3, "ok", (("r", "x", [2]),)),
    )),
    "G0": ("read-uncommitted", (
        (0, "ok", (("append", "x", 1), ("append", "y", 1))), (1, "ok", (("append", "x", 2), ("append", "y", 2))),
        (2, "ok", (("r", "x", [1, 2]),)), (3, "ok", (("r", "y", [2, 1]),)),
    )),
    "dirty-read": ("read-committed", ((0, "fail", (("append", "x", 1),)), (1, "ok", (("r", "x", [1]),)))),
    "intermediate-read": ("read-committed", (
        (0, "ok", (("append", "x", 1), ("append", "x", 2))), (1, "ok", (("r", "x", [1]),)),
    )),
    "G1c": ("read-committed", (
        (0, "ok", (("append", "x", 1), ("r", "y", [1]))), (1, "ok", (("append", "y", 1), ("r", "x", [1]))),
    )),
    "lost-update": ("snapshot-isolation", (
        (0, "ok", (("r", "x", []), ("append", "x", 1))), (1, "ok", (("r", "x", []), ("append", "x", 2))),
        (2, "ok", (("r", "x", [1, 2]),)),
    )),
    "G-single": ("snapshot-isolation", (
        (0, "ok", (("append", "x", 1), ("append", "y", 1))), (1, "ok", (("r", "x", []), ("r", "y", [1]))),
    )),
    "G-nonadjacent": ("snapshot-isolation", (
        (0, "ok", (("append", "x", 1),)), (1, "ok", (("append", "y", 1),)),
        (2, "ok", (("r", "x", [1]), ("r", "y", []))), (3, "ok", (("r", "x", []), ("r", "y", [1]))),
    )),
    "G2-item": ("serializable", (
        (0, "ok", (("r", "x", []), ("append", "y", 1))), (1, "ok", (("r", "y", []), ("append", "x", 1))),
    )),
    "realtime": ("strict-serializable", ((0, "ok", (("append", "x", 1),)), (1, "ok", (("r", "x", []),)))),
}  # fmt: skip
"""By name: the weakest level that is broken, and the transactions, one after the other."""
ACCESSES: dict[str, tuple[str | None, tuple[Txn, ...]]] = {
    "fine": (None, ((0, "ok", (("w", "x", 1),)), (1, "ok", (("r", "x", 1), ("w", "x", 2), ("r", "x", 2))))),
    "thin-air-read": ("read-uncommitted", ((0, "ok", (("r", "x", 9),)),)),
    "internal": ("read-uncommitted", ((0, "ok", (("w", "x", 1), ("r", "x", None))),)),
    "dirty-read": ("read-committed", ((0, "fail", (("w", "x", 1),)), (1, "ok", (("r", "x", 1),)))),
    "intermediate-read": ("read-committed", (
        (0, "ok", (("w", "x", 1), ("w", "x", 2))), (1, "ok", (("r", "x", 1),)),
    )),
    "G1c": ("read-committed", (
        (0, "ok", (("w", "x", 1), ("r", "y", 1))), (1, "ok", (("w", "y", 1), ("r", "x", 1))),
    )),
    "non-repeatable-read": ("snapshot-isolation", (
        (0, "ok", (("w", "x", 1),)), (1, "ok", (("r", "x", None), ("r", "x", 1))),
    )),
    "G1c by a second look": ("read-committed", (
        (0, "ok", (("w", "x", 1), ("r", "y", None), ("r", "y", 1))), (1, "ok", (("w", "y", 1), ("r", "x", 1))),
    )),
    "dirty-read by a second look": ("read-committed", (
        (0, "fail", (("w", "x", 1),)), (1, "ok", (("r", "x", None), ("r", "x", 1))),
    )),
    "own write foreseen": ("read-uncommitted", ((0, "ok", (("r", "x", 1), ("w", "x", 1))),)),
    "lost-update": ("snapshot-isolation", (
        (0, "ok", (("r", "x", None), ("w", "x", 1))), (1, "ok", (("r", "x", None), ("w", "x", 2))),
    )),
    "G-single": ("snapshot-isolation", (
        (0, "ok", (("w", "x", 1), ("w", "y", 1))), (1, "ok", (("r", "x", None), ("r", "y", 1))),
    )),
    "G-nonadjacent": ("snapshot-isolation", (
        (0, "ok", (("w", "x", 1),)), (1, "ok", (("w", "y", 1),)),
        (2, "ok", (("r", "x", 1), ("r", "y", None))), (3, "ok", (("r", "x", None), ("r", "y", 1))),
    )),
    "G2-item": ("serializable", (
        (0, "ok", (("r", "x", None), ("w", "y", 1))), (1, "ok", (("r", "y", None), ("w", "x", 1))),
    )),
    "realtime": ("strict-serializable", ((0, "ok", (("w", "x", 1),)), (1, "ok", (("r", "x", None),)))),
}  # fmt: skip


@dataclass(frozen=True)
class Thing:
    """An object: what it does to a state, and what it answers."""

    name: str
    start: Callable[[], Any]
    act: Callable[[random.Random, Any, int], tuple[str, Any, Any]]
    """Operation, argument, answer; changes the state."""
    wrong: tuple[Step, ...]
    """What no such object answers, on a key of its own (where objects have keys), one after the other."""


def _register(draw: random.Random, state: dict[str, Any], number: int) -> tuple[str, Any, Any]:
    roll = draw.random()
    if roll < 0.5:
        return "read", None, state.get("v")
    if roll < 0.8 or "v" not in state:
        state["v"] = number
        return "write", number, None
    old, state["v"] = state["v"], number
    return "cas", (old, number), True


def _counter(draw: random.Random, state: dict[str, Any], number: int) -> tuple[str, Any, Any]:
    if draw.random() < 0.5:
        return "read", None, state.setdefault("v", 0)
    by = draw.choice((1, 2, 5))
    state["v"] = state.get("v", 0) + by
    return "add", by, None


def _set(draw: random.Random, state: dict[str, Any], number: int) -> tuple[str, Any, Any]:
    held = state.setdefault("v", set())
    if draw.random() < 0.4:
        return "read", None, sorted(held)
    held.add(number)
    return "add", number, None


def _queue(draw: random.Random, state: dict[str, Any], number: int) -> tuple[str, Any, Any]:
    held = state.setdefault("v", deque())
    if draw.random() < 0.5:
        held.append(number)
        return "enqueue", number, None
    return "dequeue", None, held.popleft() if held else None


def _kv(draw: random.Random, state: dict[str, Any], number: int) -> tuple[str, Any, Any]:
    roll = draw.random()
    if roll < 0.5:
        return "read", None, state.setdefault("v", "")
    state["v"] = (state.get("v", "") if roll < 0.8 else "") + f"{number},"
    return ("append", f"{number},", None) if roll < 0.8 else ("write", f"{number},", None)


def _mutex(draw: random.Random, state: dict[str, Any], number: int) -> tuple[str, Any, Any]:
    state["v"] = not state.get("v", False)
    return ("acquire" if state["v"] else "release"), None, None


THINGS = (
    Thing("cas-register", dict, _register, (_w(0, "k", 1), (1, "cas", "k", (2, 3), True), _r(2, "k", 3))),
    Thing("counter", dict, _counter, ((0, "add", "k", 2, None), _r(1, "k", 1))),
    Thing("set", dict, _set, ((0, "add", "k", 1, None), _r(1, "k", []))),
    Thing("queue", dict, _queue, (
        (0, "enqueue", "k", 1, None), (0, "enqueue", "k", 2, None), (1, "dequeue", "k", None, 2),
    )),
    Thing("kv", dict, _kv, ((0, "append", "k", "a", None), _r(1, "k", "b"))),
    Thing("mutex", dict, _mutex, ((0, "acquire", "k", None, None), (1, "acquire", "k", None, None))),
)  # fmt: skip


def _spans(draw: random.Random, count: int, processes: int) -> Iterator[tuple[int, float, float, float]]:
    """Process, call, instant, return: by instant."""
    free = [0.0] * processes
    made = []
    for _ in range(count):
        process = draw.randrange(processes)
        call = free[process] + draw.random()
        instant = call + draw.random()
        free[process] = back = instant + draw.random() * 0.999 + 0.001
        made.append((process, call, instant, back))
    return iter(sorted(made, key=lambda span: span[2]))


def background(seed: int, thing: Thing, count: int = 24) -> list[Operation]:
    """A history of one object (or three, by key) that does one thing at a time; now and then nothing comes back."""
    draw = random.Random(seed)
    states: dict[str, Any] = {key: thing.start() for key in ("p", "q", "r")}
    made: list[Operation] = []
    gone: set[int] = set()
    for number, (process, call, _, back) in enumerate(_spans(draw, count, 4), 100):
        if process in gone:
            continue
        key = draw.choice(sorted(states))
        f, value, result = thing.act(draw, states[key], number)
        if draw.random() < 0.05 and f != "read":
            gone.add(process)
            made.append(Operation(process, f, key, value, None, call, math.inf, "info"))
        else:
            made.append(Operation(process, f, key, value, result, call, back))
    return sorted(made, key=lambda item: item.invoke)


def transactions(seed: int, lists: bool, count: int = 12) -> list[Operation]:
    """Transactions, each at one instant."""
    draw = random.Random(seed)
    state: dict[str, Any] = {}
    made = []
    number = 100
    for process, call, _, back in _spans(draw, count, 4):
        done: list[list[Any]] = []
        for _ in range(draw.randint(1, 3)):
            key = draw.choice("pqr")
            number += 1
            if draw.random() < 0.5:
                held = state.get(key)
                done.append(["r", key, list(held or []) if lists else held])
            elif lists:
                state[key] = [*state.get(key, []), number]
                done.append(["append", key, number])
            else:
                state[key] = number
                done.append(["w", key, number])
        asked = [[f, key, None if f == "r" else value] for f, key, value in done]
        made.append(Operation(process, "txn", None, asked, done, call, back))
    # A write inside a transaction that is written over by a later one of its own was never there for others.
    return sorted(made, key=lambda item: item.invoke)


def planted(steps: Sequence[Step], seed: int) -> list[Operation]:
    """The steps one after the other, by processes and on keys that nobody else uses."""
    draw = random.Random(seed)
    at = draw.uniform(-20, 20)
    made = []
    for process, f, key, value, result in steps:
        call = at + draw.uniform(0.01, 0.5)
        at = call + draw.uniform(0.01, 0.5)
        made.append(Operation(50 + process, f, f"own-{key}", value, result, call, at))
    return made


def planted_transactions(given: Sequence[Txn], seed: int) -> list[Operation]:
    """The same of transactions. Beside real time, their order does not matter to any level."""
    draw = random.Random(seed)
    at = draw.uniform(-20, 20)
    made = []
    for process, status, done in given:
        call = at + draw.uniform(0.01, 0.5)
        at = call + draw.uniform(0.01, 0.5)
        own = [[f, f"own-{key}", value] for f, key, value in done]
        asked = [[f, key, None if f == "r" else value] for f, key, value in own]
        result = own if status == "ok" else None
        made.append(Operation(50 + process, "txn", None, asked, result, call, at, status))
    return made


def mixed(one: Sequence[Operation], other: Sequence[Operation]) -> list[Operation]:
    """Both at once, in the order of calls."""
    return sorted([*one, *other], key=lambda item: item.invoke)
