"""Linearizability: is there an order of the operations that respects real time and makes every answer right?

A history is judged part by part (objects do not matter to each other), each by the fastest method that is exact for it:
registers, growing sets and queues with distinct values in O(n log n); banks and counters by ordering reads only; all
else by the general search, within a budget. An operation that never returned may take effect at any time, or never.

>>> history = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
...     Operation(0, "write", "x", 2, None, 2.0, 3.0),
...     Operation(1, "read", "x", None, 1, 4.0, 5.0),
... ]
>>> judgement = judge(history)
>>> judgement.verdict, judgement.witness, judgement.prefix
('violated', (0, 1, 2), 2)
>>> judgement.reason
'must each come before the other: #0 p0 write x 1; #1 p0 write x 2; #2 p1 read x → 1'
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from assay.protocols.judges import additive, containers, registers
from assay.protocols.judges.judgement import (
    ENOUGH,
    HOLDS,
    UNKNOWN,
    VIOLATED,
    Budget,
    Judgement,
    cut,
    effective,
    explain,
    frozen,
    longest_prefix,
    names,
    returned,
)  # fmt: skip
from assay.protocols.judges.registers import Answer
from assay.protocols.judges.search import by_time, search
from assay.protocols.judges.specifications import SPECIFICATIONS, Specification, check, guess, settle
from assay.workloads.histories import Operation

MODEL = "linearizable"
PROBE = Budget(nodes=20_000)  # what one question of an explanation may cost


def judge(
    history: Sequence[Operation], specification: Specification | None = None, budget: Budget = ENOUGH
) -> Judgement:  # fmt: skip
    """Judge a history; without a specification the one that its operations suggest.

    Raises:
        BadInput: an operation that the specification does not know.

    """
    chosen = settle(check(specification, history) if specification else guess(history), history)
    answer = solve(history, chosen, budget)
    if answer.core:
        return _violated(history, chosen, answer, budget)
    if answer.exhausted:
        probe = Budget(min(budget.nodes, PROBE.nodes), budget.memory)
        prefix = longest_prefix(history, lambda trial: verdict(trial, chosen, probe))
        return Judgement(MODEL, UNKNOWN, reason=answer.reason, prefix=prefix)
    order = None if answer.order is None else tuple(answer.order)
    return Judgement(MODEL, HOLDS, order=order, prefix=returned(history))


def verdict(history: Sequence[Operation], specification: Specification, budget: Budget = PROBE) -> str:
    """The bare verdict, with a specification that is settled."""
    answer = solve(history, specification, budget)
    return VIOLATED if answer.core else UNKNOWN if answer.exhausted else HOLDS


def solve(history: Sequence[Operation], specification: Specification, budget: Budget) -> Answer:
    """An order of the whole history, or the operations of one part that forbid it."""
    reason = ""
    orders: list[list[int] | None] = []
    for part in parts(history, specification):
        answer = _part([history[i] for i in part], specification, budget)
        if answer.core:
            return Answer(None, [part[i] for i in answer.core], answer.reason)
        if answer.exhausted:
            reason = f"undecided after {budget.nodes:,} steps or {budget.memory:,} bytes: {len(part)} operations"
        orders.append(None if answer.order is None else [part[i] for i in answer.order])
    return Answer(None if reason else _merge(history, orders), [], reason, bool(reason))


def parts(history: Sequence[Operation], specification: Specification) -> list[list[int]]:
    """Indices of the operations that matter, by the part of the object that they touch."""
    found: dict[Hashable, list[int]] = {}
    whole_reads = any(operation.f == "read" for operation in history)
    for i in effective(history):
        key = specification.part(history[i])
        if specification.name == "set" and not whole_reads:  # each value is an object of its own
            key = (key, frozen(history[i].value))
        found.setdefault(key, []).append(i)
    return list(found.values())


def _part(operations: Sequence[Operation], specification: Specification, budget: Budget) -> Answer:
    """Judge one part by the fastest method that is exact for it."""
    name, initial = specification.name, specification.initial
    if name in ("register", "cas-register") and registers.applies(operations, initial):
        return registers.judge(operations, initial)
    if name == "set" and containers.set_applies(operations):
        return containers.judge_set(operations)
    if name == "queue" and containers.queue_applies(operations):
        return containers.judge_queue(operations)
    if name == "counter":
        return additive.judge(operations, {None: specification.initial}, budget)
    if name == "bank":
        return additive.judge(operations, dict(specification.initial), budget)
    order = sorted(range(len(operations)), key=lambda i: operations[i].invoke)
    arranged = [operations[i] for i in order]
    found = search(arranged, specification, by_time(arranged), budget)
    if found.order is not None:
        return Answer([order[i] for i in found.order], [])
    return Answer(None, [] if found.exhausted else order, "fit no order that real time allows", found.exhausted)


def _merge(history: Sequence[Operation], orders: Sequence[list[int] | None]) -> list[int] | None:
    """One order of all parts: each operation takes effect as early as its part's order and its call allow."""
    nodes: list[int] = []
    places: list[int] = []
    for order in orders:
        if order is None:
            return None
        nodes += order
        places += range(len(order))
    if len(orders) == 1:
        return nodes
    starts = np.flatnonzero(np.array(places) == 0)
    points = np.array([history[i].invoke for i in nodes])
    for begin, end in pairwise([*starts.tolist(), len(nodes)]):
        np.maximum.accumulate(points[begin:end], out=points[begin:end])
    # Within a part the points never go back, so its order is kept.
    return np.array(nodes, np.int64)[np.lexsort((np.array(places), points))].tolist()  # type: ignore[no-any-return]


def _violated(
    history: Sequence[Operation], specification: Specification, answer: Answer, budget: Budget
) -> Judgement:  # fmt: skip
    def probe(trial: Sequence[Operation]) -> str:
        return verdict(trial, specification, PROBE)

    prefix = _first_violation(history, specification, budget)
    part = next(part for part in parts(history, specification) if answer.core[0] in set(part))
    failed = [i for i, item in enumerate(history) if item.status == "fail"]
    local = sorted([*part, *failed])
    place = {i: at for at, i in enumerate(local)}
    core, known = [place[i] for i in answer.core], specification.name in SPECIFICATIONS
    found, done = explain([history[i] for i in local], probe, core, known=known)
    witness = tuple(local[at] for at in found)
    told = f"{answer.reason}: {names(history, witness)}" + ("" if done else " (perhaps more than needed)")
    return Judgement(MODEL, VIOLATED, witness, told, prefix=prefix)


def _first_violation(history: Sequence[Operation], specification: Specification, budget: Budget) -> int:
    """How many operations had returned when all was still well: each part is asked alone when it went wrong."""
    order = sorted((i for i, item in enumerate(history) if item.complete < math.inf), key=lambda i: history[i].complete)
    rank = {i: at for at, i in enumerate(order)}
    first = len(order)
    for part in parts(history, specification):
        local = [history[i] for i in part]
        ends = sorted(rank[i] for i in part if i in rank)

        def check(trial: Sequence[Operation]) -> str:
            return verdict(trial, specification, budget)

        known = sum(end < first for end in ends)  # of this part, what had returned before the first trouble so far
        if check(cut(local, known)) != HOLDS:
            first = ends[longest_prefix(local, check, 0, known)]
    return first
