"""Objects that are judged without a search, because their values are all different: registers, sets, queues.

*Registers*, in O(n log n). A value, its write and its reads form a cluster, and in a legal order a cluster is one
block. Let f be the first return and s the last invocation in a cluster: cluster A must come before B exactly if f(A) <
s(B). A register is linearizable if and only if no two clusters must each come before the other (and no read returns
before its value is written). It is enough to sort the clusters by min(f, s) and to look whether anyone must come before
somebody earlier.

Gibbons and Korach, Testing shared memories, SIAM Journal on Computing 1997.

*Sets that only grow, read whole.* What each read returned says which reads come before which, and between which of them
a value was added: every operation gets a rank, and the history is linearizable if and only if no operation returned
before one of a lower rank began.

*Queues.* A history is linearizable if and only if none of four things happened: a value was dequeued that was not
enqueued before; a value was dequeued twice; values were dequeued against the order in which they surely were enqueued;
"empty" was answered though the queue surely held something all the time (Henzinger, Sezgin and Vafeiadis,
Aspect-oriented linearizability proofs, CONCUR 2013).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.protocols.judges.judgement import frozen
from assay.workloads.histories import Operation

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """The operations that forbid a legal order, and why; where there are none, an order."""

    order: list[int] | None
    """None: not found, or not looked for."""
    core: list[int]
    reason: str = ""
    exhausted: bool = False
    """The search gave up: nothing is known."""


def applies(operations: Sequence[Operation], initial: Any) -> bool:
    """Whether every value is written once and none of them was there before."""
    written = [frozen(operation.value) for operation in operations if operation.f == "write"]
    different = set(written)
    only = all(operation.f in ("read", "write") for operation in operations)
    return only and len(different) == len(written) and initial not in different


def judge(operations: Sequence[Operation], initial: Any = None) -> Answer:
    """Judge one register; core and order are positions in `operations`."""
    write = [-1]  # of each cluster; that of the initial value has none
    clusters = {initial: 0}
    for i, operation in enumerate(operations):
        if operation.f == "write":
            clusters[frozen(operation.value)] = len(write)
            write.append(i)
    member = np.zeros(len(operations), np.int64)
    reads = np.zeros(len(operations), bool)
    for i, (_, f, _, value, result, *_) in enumerate(operations):
        reads[i] = f == "read"
        cluster = clusters.get(frozen(result if f == "read" else value))
        if cluster is None:
            return Answer(None, [i], "returns a value that nobody wrote")
        member[i] = cluster
    invoke = np.array([operation.invoke for operation in operations])
    complete = np.array([operation.complete for operation in operations])
    writer = np.array(write)[member]
    early = np.flatnonzero(reads & (writer >= 0) & (complete < invoke[writer]))
    if len(early):
        i = int(early[0])
        return Answer(None, [i, int(writer[i])], "returns a value before its write began")
    # What never returned and was not read need not have happened.
    sure = reads | np.array([operation.status == "ok" for operation in operations], bool)
    happened = np.zeros(len(write), bool)
    happened[member[sure]] = True
    return _sweep(member, reads, invoke, complete, np.flatnonzero(happened), len(write))


def _sweep(
    member: Ints, reads: npt.NDArray[np.bool_], invoke: Floats, complete: Floats, happened: Ints, clusters: int
) -> Answer:  # fmt: skip
    first_return, last_invoke = np.full(clusters, np.inf), np.full(clusters, -np.inf)
    np.minimum.at(first_return, member, complete)
    np.maximum.at(last_invoke, member, invoke)
    first_return[0] = -np.inf
    begin, end = first_return[happened], last_invoke[happened]
    # At equal keys a cluster that may shrink to a point goes first: it does not have to follow the other.
    order = np.lexsort((begin < end, np.minimum(begin, end)))
    latest = np.maximum.accumulate(end[order])
    bad = np.flatnonzero(begin[order][1:] < latest[:-1])
    if len(bad):
        at = int(bad[0]) + 1
        other = int(np.argmax(end[order][:at]))
        pair = happened[order[[at, other]]]
        return Answer(None, _ends(pair, member, reads, invoke, complete), "must each come before the other")
    rank = np.full(clusters, -1)
    rank[happened[order]] = np.arange(len(order))
    there = np.flatnonzero(rank[member] >= 0)
    return Answer(there[np.lexsort((invoke[there], reads[there], rank[member[there]]))].tolist(), [])


def _ends(
    pair: Ints, member: Ints, reads: npt.NDArray[np.bool_], invoke: Floats, complete: Floats
) -> list[int]:  # fmt: skip
    """Of both clusters: the write, the first to return and the last to begin."""
    found: set[int] = set()
    for cluster in pair:
        inside = np.flatnonzero(member == cluster)
        found |= {int(inside[complete[inside].argmin()]), int(inside[invoke[inside].argmax()])}
        found |= set(inside[~reads[inside]].tolist())
    return sorted(found)


def set_applies(operations: Sequence[Operation]) -> bool:
    """Whether values are only added, each once, without an answer, and the set is read whole."""
    added = [frozen(operation.value) for operation in operations if operation.f == "add"]
    plain = all(
        operation.f == "read" or (operation.f == "add" and operation.result is None) for operation in operations
    )
    return plain and len(set(added)) == len(added)


def judge_set(operations: Sequence[Operation]) -> Answer:
    """Judge one growing set."""
    adds = {frozen(operation.value): i for i, operation in enumerate(operations) if operation.f == "add"}
    seen = {
        i: frozenset(map(frozen, operation.result or ()))
        for i, operation in enumerate(operations)
        if operation.f == "read"
    }
    reads = sorted(seen, key=lambda i: len(seen[i]))
    rank: dict[int, int] = {}
    level, before, holder = 0, frozenset[Any](), -1
    for i in reads:
        if seen[i] != before:
            if not before < seen[i]:
                return Answer(None, [holder, i], "returned sets of which neither contains the other")
            level += 1
            for value in seen[i] - before:
                if value not in adds:
                    return Answer(None, [i], "returns a value that nobody added")
                rank[adds[value]] = 2 * level - 1
        rank[i] = 2 * level
        before, holder = seen[i], i
    for i in adds.values():
        if i not in rank and operations[i].status == "ok":
            rank[i] = 2 * level + 1
    return _in_rank(rank, operations, adds, seen)


def _in_rank(
    rank: dict[int, int], operations: Sequence[Operation], adds: dict[Any, int], seen: dict[int, frozenset[Any]]
) -> Answer:  # fmt: skip
    order = sorted(rank, key=lambda i: (rank[i], operations[i].invoke))
    latest, pending = -1, -1  # the last to begin of all lower ranks, and of this rank too
    for at, i in enumerate(order):
        if at and rank[i] != rank[order[at - 1]]:
            latest = pending
        if latest >= 0 and operations[i].complete < operations[latest].invoke:
            # Those that fix the two ranks: a read that has the value, and one that lacks it.
            core = {i, latest, *_fixing(i, rank, seen), *_fixing(latest, rank, seen)}
            return Answer(None, sorted(core), "cannot be ordered: what was seen contradicts what came first")
        if pending < 0 or operations[i].invoke > operations[pending].invoke:
            pending = i
    return Answer(order, [])


def _fixing(i: int, rank: dict[int, int], seen: dict[int, frozenset[Any]]) -> list[int]:
    near = {rank[i] - 1, rank[i] + 1} if rank[i] % 2 else set[int]()
    found: dict[int, int] = {}
    for read in seen:
        if rank.get(read) in near:
            found.setdefault(rank[read], read)
    return list(found.values())


def queue_applies(operations: Sequence[Operation]) -> bool:
    """Whether every value is enqueued once and every dequeue answered."""
    put = [frozen(operation.value) for operation in operations if operation.f == "enqueue"]
    answered = all(operation.status == "ok" for operation in operations if operation.f == "dequeue")
    return answered and len(set(put)) == len(put) and None not in put


def judge_queue(operations: Sequence[Operation]) -> Answer:
    """Judge one queue; no order is given."""
    put = {frozen(operation.value): i for i, operation in enumerate(operations) if operation.f == "enqueue"}
    got: dict[Any, int] = {}
    empty: list[int] = []
    for i, operation in enumerate(operations):
        if operation.f != "dequeue":
            continue
        value = frozen(operation.result)
        if value is None:
            empty.append(i)
        elif value not in put:
            return Answer(None, [i], "returns a value that nobody enqueued")
        elif value in got:
            return Answer(None, [got[value], i], "return the same value")
        elif operations[i].complete < operations[put[value]].invoke:
            return Answer(None, [put[value], i], "is returned before it was enqueued")
        else:
            got[value] = i
    # An enqueue that never returned and whose value nobody saw need not have happened.
    there = [value for value, i in put.items() if value in got or operations[i].status == "ok"]
    return _out_of_order(operations, put, got, there) or _never_empty(operations, put, got, there, empty)


def _out_of_order(
    operations: Sequence[Operation], put: dict[Any, int], got: dict[Any, int], there: list[Any]
) -> Answer | None:  # fmt: skip
    def leaves(value: Any) -> float:
        return operations[got[value]].invoke if value in got else math.inf

    by_return = sorted(there, key=lambda value: operations[put[value]].complete)
    at, last = 0, None  # of those surely enqueued before, the one that leaves last
    for value in sorted(there, key=lambda value: operations[put[value]].invoke):
        while at < len(by_return) and operations[put[by_return[at]]].complete < operations[put[value]].invoke:
            if last is None or leaves(by_return[at]) > leaves(last):
                last = by_return[at]
            at += 1
        if last is not None and value in got and operations[got[value]].complete < leaves(last):
            core = [put[last], put[value], got[value], *([got[last]] if last in got else [])]
            return Answer(None, core, "came in first and did not leave first")
    return None


def _never_empty(
    operations: Sequence[Operation], put: dict[Any, int], got: dict[Any, int], there: list[Any], empty: list[int]
) -> Answer:
    spans = []
    for value in there:
        begin = operations[put[value]].complete
        end = operations[got[value]].invoke if value in got else math.inf
        if begin < end:
            spans.append((begin, end, value))
    spans.sort(key=lambda span: span[:2])
    merged: list[tuple[float, float, list[Any]]] = []
    for begin, end, value in spans:
        if merged and begin < merged[-1][1]:
            start, stop, values = merged[-1]
            values.append(value)
            merged[-1] = (start, max(stop, end), values)
        else:
            merged.append((begin, end, [value]))
    begins = [begin for begin, _, _ in merged]
    for i in empty:
        at = bisect_left(begins, operations[i].invoke) - 1
        if at >= 0 and operations[i].complete < merged[at][1]:
            values = merged[at][2]
            core = [i, *(put[value] for value in values), *(got[value] for value in values if value in got)]
            return Answer(None, core, "says empty while something surely was in the queue")
    return Answer(None, [])
