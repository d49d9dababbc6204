"""Events of a history (an invocation, a return) joined into operations, and operations taken apart again.

Jepsen and Porcupine log events; judges want operations. What the value of an event means depends on the operation:
a read returns it, a write was given it, with independent keys it is the pair (key, value).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from assay.workloads.histories import Operation

TYPES = ("invoke", "ok", "fail", "info")
_SYNONYMS = {"get": "read", "put": "write", "r": "read", "w": "write", "deq": "dequeue", "enq": "enqueue"}
_RETURNING = {"read", "dequeue", "txn", "contains", "remove"}  # operations whose return carries a result
_GIVEN = {"write", "append", "add", "enqueue", "transfer"}  # operations whose return only repeats the argument


class Event(NamedTuple):
    """One line of a log."""

    line: int
    process: Any
    type: str
    f: str
    value: Any
    key: Any = None
    time: float | None = None
    """Seconds."""
    call: Any = None
    """What joins a return to its call; None: the process does."""


class EventError(ValueError):
    """An event that cannot be; `line` says where."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def operations(events: Sequence[Event]) -> list[Operation]:
    """Join calls and returns, in the order of the calls; what never returned is ``info``.

    Times are the log's where every event has one and they never go back; otherwise an event's place in the log. Events
    of one instant happened in the order of the log.
    """
    events = [event for event in events if _is_client(event.process)]
    names = {process: number for number, process in enumerate(dict.fromkeys(event.process for event in events))}
    if all(isinstance(process, int) for process in names):
        names = {process: process for process in names}
    keyed = _independent(events)
    times = _times(events)
    found: list[Operation | None] = []
    open_calls: dict[Any, tuple[int, int]] = {}
    for at, event in enumerate(events):
        call = event.process if event.call is None else event.call
        if event.type == "invoke":
            if call in open_calls:
                raise EventError(event.line, f"process {event.process} begins before its last operation ended")
            open_calls[call] = (len(found), at)
            found.append(None)
        elif call not in open_calls:
            raise EventError(event.line, f"'{event.type}' of process {event.process} without an 'invoke' before it")
        else:
            slot, begun = open_calls.pop(call)
            span = times[begun], times[at]
            found[slot] = _operation(events[begun], event, names[events[begun].process], span, keyed)
    for slot, begun in open_calls.values():
        found[slot] = _operation(events[begun], None, names[events[begun].process], (times[begun], math.inf), keyed)
    return [operation for operation in found if operation is not None]


def _is_client(process: Any) -> bool:
    """Whether a process is one that uses the object; a nemesis only breaks things."""
    return not isinstance(process, str) or process.lstrip("-").isdigit() or not process.startswith("nemesis")


def _times(events: Sequence[Event]) -> list[float]:
    times = [event.time for event in events if event.time is not None]
    if len(times) < len(events) or any(a > b for a, b in pairwise(times)):
        return [float(at) for at in range(len(events))]
    for at in range(1, len(times)):  # a coarse clock must not make two events simultaneous: the log has their order
        times[at] = max(times[at], math.nextafter(times[at - 1], math.inf))
    return times


def _independent(events: Iterable[Event]) -> bool:
    """Whether values are pairs (key, value): then every read is invoked with a pair that has no value yet, and every
    compare-and-set with a pair of a key and a pair.
    """
    asked = [(_SYNONYMS.get(event.f, event.f), event.value) for event in events if event.type == "invoke"]
    reads = [_is_pair(value) and value[1] is None for f, value in asked if f == "read"]
    swaps = [_is_pair(value) and _is_pair(value[1]) for f, value in asked if f == "cas"]
    return all(reads) if reads else bool(swaps) and all(swaps)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _operation(
    call: Event, back: Event | None, process: int, span: tuple[float, float], keyed: bool
) -> Operation:  # fmt: skip
    f = _SYNONYMS.get(call.f, call.f)
    key, value = call.key, call.value
    if keyed:
        key, value = _pair(call)
    status = "info" if back is None else back.type
    if back is None or back.type != "ok":
        return Operation(process, f, key, value, None, span[0], math.inf if status == "info" else span[1], status)
    returned = _pair(back)[1] if keyed and isinstance(back.value, list) else back.value
    if f in _RETURNING:
        return Operation(process, f, key, None if f in ("read", "dequeue") else value, returned, *span)
    if f == "cas":
        return Operation(process, f, key, value, returned if isinstance(returned, bool) else True, *span)
    return Operation(process, f, key, value, None if f in _GIVEN or returned == value else returned, *span)


def _pair(event: Event) -> tuple[Any, Any]:
    if not _is_pair(event.value):
        raise EventError(event.line, f"value {event.value!r} where a pair (key, value) like the others' would be right")
    return event.value[0], event.value[1]


def events(history: Sequence[Operation]) -> Iterator[Event]:
    """Take operations apart, in the order of time; at one instant calls come before returns.

    But a process that returns and calls again at one instant returns first.

    >>> [(event.type, event.value) for event in events([Operation(0, "read", None, None, 7, 0.0, 1.0)])]
    [('invoke', None), ('ok', 7)]
    """
    stamped: list[tuple[float, float, int, Event]] = []
    turn = _turns(history)
    for number, operation in enumerate(history):
        process, f, key, value, result, invoke, complete, status = operation
        called, back_at = turn[number]
        stamped.append((invoke, called, number, Event(0, process, "invoke", f, value, key, invoke, number)))
        if complete < math.inf:
            back = result if f in _RETURNING or result is not None else value
            stamped.append((complete, back_at, number, Event(0, process, status, f, back, key, complete, number)))
    return (event for *_, event in sorted(stamped, key=lambda item: item[:3]))


def _turns(history: Sequence[Operation]) -> list[tuple[float, float]]:
    """The place of each call and return among the events of its instant."""
    turns: list[tuple[float, float]] = [(0.0, math.inf)] * len(history)
    before: dict[int, int] = {}
    for number in sorted(range(len(history)), key=lambda number: (history[number].invoke, number)):
        operation = history[number]
        last = before.get(operation.process)
        before[operation.process] = number
        if last is not None and history[last].complete == operation.invoke:
            called = turns[last][0] if history[last].invoke == operation.invoke else 0.0
            turns[last] = (turns[last][0], called + 1)
            turns[number] = (called + 2, math.inf)
    return turns
