"""Registers whose writes are all different, judged in O(n log n).

A value, its write and its reads form a cluster, and in a legal order a cluster is one block. Let f be the first return
and s the last invocation in a cluster: cluster A must come before B exactly if f(A) < s(B). A register is linearizable
if and only if no two clusters must each come before the other (and no read returns before its value is written). It is
enough to sort the clusters by min(f, s) and to look whether anyone must come before somebody earlier.

Gibbons and Korach, Testing shared memories, SIAM Journal on Computing 1997.
"""

from __future__ import annotations

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
