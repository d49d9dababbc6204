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

The general search for a legal order (Wing and Gong) remembers where it has been (Lowe). Two partial orders of the same
operations that end in the same state have the same future, so each pair of (operations done, state) is entered once. An
operation without effect that fits now is taken at once: it changes nothing and only sets others free, so an order that
takes it later can be changed into one that takes it now.

- Wing and Gong, Testing and verifying concurrent objects, JPDC 1993.
- Lowe, Testing for linearizability, Concurrency and Computation 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from assay.protocols.judges import additive, objects
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
    is_pure,
    longest_prefix,
    names,
    plain,
    returned,
)
from assay.protocols.judges.objects import Answer
from assay.protocols.judges.specifications import SPECIFICATIONS, Specification, State, check, guess, settle
from assay.workloads.histories import Operation

MODEL = "linearizable"
PER_KEY = "per-key-linearizable"
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


def judge_keys(
    history: Sequence[Operation], specification: Specification | None = None, budget: Budget = ENOUGH,
    whole: Judgement | None = None,
) -> Judgement:  # fmt: skip
    """Judge what was done to each key for itself, and say which keys fail; `whole`: the history's judgement, if known.

    Linearizability is local: a history has it if the history of each of its objects has it.

    >>> history = [
    ...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
    ...     Operation(0, "write", "y", 1, None, 2.0, 3.0),
    ...     Operation(1, "read", "y", None, None, 4.0, 5.0),
    ... ]
    >>> judge_keys(history).keys
    ('y',)
    """
    if any(operation.f == "txn" for operation in history):
        reason = "a transaction is on several keys at once; strict-serializable is the model of those"
        return Judgement(PER_KEY, UNKNOWN, reason=reason)
    chosen = settle(check(specification, history) if specification else guess(history), history)
    whole = whole or judge(history, chosen, budget)
    if whole.verdict == HOLDS:
        return replace(whole, model=PER_KEY)
    answers = [(chosen.part(history[part[0]]), answer) for part, answer in _answers(history, chosen, budget)]
    every = dict.fromkeys(key for key, _ in answers)
    if every.keys() <= {None}:  # one object that has no keys
        return replace(whole, model=PER_KEY)
    failing = tuple(dict.fromkeys(key for key, answer in answers if answer.core))
    doubtful = tuple(dict.fromkeys(key for key, answer in answers if answer.exhausted and key not in failing))
    told = [
        f"{len(keys)} of {len(every)} key{'s' * (len(every) != 1)} {word}: {', '.join(map(plain, keys[:8]))}"
        + f" and {len(keys) - 8} more" * (len(keys) > 8)
        for keys, word in ((failing, "fail"), (doubtful, "undecided")) if keys
    ]  # fmt: skip
    return replace(whole, model=PER_KEY, keys=failing or doubtful, reason="; ".join([*told, whole.reason]))


def verdict(history: Sequence[Operation], specification: Specification, budget: Budget = PROBE) -> str:
    """The bare verdict, with a specification that is settled."""
    answer = solve(history, specification, budget)
    return VIOLATED if answer.core else UNKNOWN if answer.exhausted else HOLDS


def solve(history: Sequence[Operation], specification: Specification, budget: Budget) -> Answer:
    """An order of the whole history, or the operations of one part that forbid it."""
    reason = ""
    orders: list[list[int] | None] = []
    for part, answer in _answers(history, specification, budget):
        if answer.core:
            return Answer(None, [part[i] for i in answer.core], answer.reason)
        if answer.exhausted:
            reason = f"undecided after {budget.nodes:,} steps or {budget.memory:,} bytes: {len(part)} operations"
        orders.append(None if answer.order is None else [part[i] for i in answer.order])
    return Answer(None if reason else _merge(history, orders), [], reason, bool(reason))


def _answers(
    history: Sequence[Operation], specification: Specification, budget: Budget
) -> Iterator[tuple[list[int], Answer]]:  # fmt: skip
    for part in parts(history, specification):
        own = replace(specification, initial=specification.first(specification.part(history[part[0]])))
        yield part, _part([history[i] for i in part], own, budget)


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
    if name in ("register", "cas-register") and objects.applies(operations, initial):
        return objects.judge(operations, initial)
    if name == "set" and not initial and objects.set_applies(operations):
        return objects.judge_set(operations)
    if name == "queue" and not initial and objects.queue_applies(operations):
        return objects.judge_queue(operations)
    if name == "counter":
        return additive.judge(operations, {None: specification.initial}, budget)
    if name == "bank":
        return additive.judge(operations, dict(specification.initial), budget)
    order = sorted(range(len(operations)), key=lambda i: operations[i].invoke)
    arranged = [operations[i] for i in order]
    found = search(arranged, specification, by_time(arranged, alike=name in SPECIFICATIONS), budget)
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


@dataclass(frozen=True)
class Next:
    """What the order of a model allows."""

    candidates: Callable[[int], list[int]]
    """Which operations may come next, given the set of those done (as bits)."""
    loose: int
    """Those that need not be done, and for which nobody waits (as bits)."""


@dataclass(frozen=True)
class Found:
    """How a search ended."""

    order: tuple[int, ...] | None
    """Positions in a legal order; None: there is none, or the budget ran out."""
    exhausted: bool
    """The budget ran out."""
    nodes: int


def search(
    operations: Sequence[Operation], specification: Specification, allowed: Next, budget: Budget
) -> Found:  # fmt: skip
    """A legal order of all operations that returned, and of those others that help."""
    required = sum(1 << i for i, operation in enumerate(operations) if operation.status == "ok")
    loose = allowed.loose
    seen: dict[tuple[int, Hashable, Hashable], list[int]] = {}
    remembered = nodes = 0
    order: list[int] = []
    ways = _ways(operations, specification, allowed, required)
    stack = [ways(0, specification.initial, _SURE)]
    if required == 0:
        return Found((), False, 0)
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if order:
                order.pop()
            continue
        i, done, state, before = step
        used = done & loose
        known = seen.setdefault((done & ~loose, state, before), [])
        if any(fewer & ~used == 0 for fewer in known):  # who used less can do all that is left to do
            continue
        nodes += 1
        remembered += (done.bit_length() >> 3) + 200
        if nodes > budget.nodes or remembered > budget.memory:
            return Found(None, True, nodes)
        known.append(used)
        order.append(i)
        if done & required == required:
            return Found(tuple(order), False, nodes)
        stack.append(ways(done, state, before))
    return Found(None, False, nodes)


_SURE = object()  # the last operation was not a loose one
Way = tuple[int, int, State, Hashable]
"""The next operation, all that are done then, the state after it; after a loose one, the state before it."""


def _ways(
    operations: Sequence[Operation], specification: Specification, allowed: Next, required: int
) -> Callable[[int, State, Hashable], Iterator[Way]]:  # fmt: skip
    """How to go on.

    What need not be done is done for the sake of the operation after it. If that fits without, and leaves the same
    state, the order without it is as good, and is tried elsewhere.
    """
    pure = [is_pure(operation) for operation in operations]
    meaning, loose = specification.step, allowed.loose

    def ways(done: int, state: State, before: Hashable) -> Iterator[Way]:
        options: list[Way] = []
        for i in allowed.candidates(done):
            fits, after = meaning(state, operations[i])
            if not fits or (after == state and not required >> i & 1):
                continue
            if before is not _SURE and meaning(before, operations[i]) == (True, after):
                continue
            way = i, done | 1 << i, after, state if loose >> i & 1 else _SURE
            if pure[i]:
                yield way
                return
            options.append(way)
        # What may never have happened is tried last.
        yield from sorted(options, key=lambda way: not required >> way[0] & 1)

    return ways


def _twins(operations: Sequence[Operation], among: Sequence[int]) -> list[int]:
    """For each operation the last one before it, of `among`, that asks for the same (else -1).

    Of two that never returned and ask for the same, the one that was called first may do all that the other may.
    """
    twin, last = [-1] * len(operations), dict[Hashable, int]()
    for i in among:
        operation = operations[i]
        asked = operation.f, frozen(operation.key), frozen(operation.value), frozen(operation.result)
        twin[i] = last.get(asked, -1)
        last[asked] = i
    return twin


def by_time(operations: Sequence[Operation], *, alike: bool = True) -> Next:
    """What real time allows: no operation that is not done returned before it began. Sorted by invocation.

    `alike`: it does not matter who asks.
    """
    count = len(operations)
    invoke = [operation.invoke for operation in operations]
    complete = [operation.complete for operation in operations]
    lost = [i for i, operation in enumerate(operations) if operation.status == "info"]
    twin = _twins(operations, lost if alike else ())

    def candidates(done: int) -> list[int]:
        found: list[int] = []
        at = (~done & (done + 1)).bit_length() - 1  # the first that is not done
        bound = float("inf")
        while at < count and invoke[at] <= bound:
            if not done >> at & 1:
                if twin[at] < 0 or done >> twin[at] & 1:
                    found.append(at)
                bound = min(bound, complete[at])
            at += 1
        return found

    return Next(candidates, sum(1 << i for i in lost))


def by_process(
    operations: Sequence[Operation], owner: Sequence[int], follows: Sequence[int], *, alike: bool = True
) -> Next:  # fmt: skip
    """What program order allows, by the owners of operations in the order of their calls: the next one of each, if the
    one that it follows is done. `alike`: it does not matter who asks.
    """
    queues: dict[int, list[int]] = {}
    for i, process in enumerate(owner):
        queues.setdefault(process, []).append(i)
    rows = list(queues.values())
    awaited = set(follows)
    lost = [row[-1] for row in rows if operations[row[-1]].status == "info" and row[-1] not in awaited]
    twin = _twins(operations, [i for i in lost if alike and queues[owner[i]] == [i] and follows[i] < 0])

    def candidates(done: int) -> list[int]:
        found: list[int] = []
        for row in rows:
            low, high = 0, len(row)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if done >> row[middle] & 1 else (low, middle)
            if low == len(row):
                continue
            i = row[low]
            if all(j < 0 or done >> j & 1 for j in (follows[i], twin[i])):
                found.append(i)
        return found

    return Next(candidates, sum(1 << i for i in lost))
