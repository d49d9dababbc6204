"""Session guarantees, each as the one thing that must not happen to a process.

- *read-your-writes*: a process reads a key and misses its own last write to it (it gets the initial value or an older
  write of its own);
- *monotonic-reads*: a process returns to a value that it has seen replaced;
- *monotonic-writes*: a process has seen a write, and then reads an older value than what its author wrote before;
- *writes-follow-reads*: a process has seen a write, and then reads an older value than one that the write's author had
  read before it (or that was known to the author of that, and so on).

Values must be written once to a key. Terry et al., Session guarantees for weakly consistent replicated data, PDIS 1994.

>>> history = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
...     Operation(0, "write", "y", 2, None, 2.0, 3.0),
...     Operation(1, "read", "y", None, 2, 4.0, 5.0),
...     Operation(1, "read", "x", None, None, 6.0, 7.0),
... ]
>>> [judge(history, model).verdict for model in MODELS]
['holds', 'holds', 'violated', 'holds']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from assay.protocols.judges import saturation
from assay.protocols.judges.judgement import Judgement
from assay.protocols.judges.saturation import (
    INITIAL,
    NO_READ,
    NOWHERE,
    Breach,
    Edges,
    First,
    ReadsFrom,
    bare,
    behind,
    behind_cycle,
    judged,
    nothing,
    path,
)
from assay.workloads.histories import Operation

MODELS = ("read-your-writes", "monotonic-reads", "monotonic-writes", "writes-follow-reads")


def judge(history: Sequence[Operation], model: str, *, prefix: bool = True, first: First = nothing) -> Judgement:
    """Judge one guarantee."""
    if model not in MODELS:
        raise ValueError(f"no session guarantee '{model}'; there are {', '.join(MODELS)}")
    return judged(history, model, partial(_breach, model), first, prefix)


_SENTENCES = {
    "read-your-writes": "a process misses its own write",
    "monotonic-reads": "a process goes back to a value that it has seen replaced",
    "monotonic-writes": "a process sees one write and misses an earlier one of the same author",
    "writes-follow-reads": "a process sees a write and misses what its author had read",
}


def verdict(history: Sequence[Operation], model: str, first: First = nothing) -> str:
    """The bare verdict."""
    return bare(history, partial(_breach, model), first)


def _breach(model: str, rf: ReadsFrom) -> Breach | None:
    """A value from nowhere breaks all guarantees."""
    lost = np.flatnonzero(rf.source == NOWHERE)
    if len(lost):
        return [int(rf.order[lost[0]])], "returns a value that nobody wrote"
    found = _RULES[model](rf)
    return None if found is None else (sorted({int(rf.order[v]) for v in found}), _SENTENCES[model])


def _by_session(rf: ReadsFrom) -> Iterator[tuple[int, int]]:
    """Nodes with the process that made the call, in program order.

    A call left behind stands after what it follows, so that what it read is judged with what its process knew; what
    comes later in the session may have come before it, and must not be judged by it.
    """
    behind: dict[int, list[int]] = {}
    for v in np.flatnonzero(rf.follows >= 0).tolist():
        behind.setdefault(int(rf.follows[v]), []).append(v)
    for v in np.flatnonzero(rf.follows < 0).tolist():
        process = int(rf.process[v])
        yield v, process
        yield from ((left, process) for left in behind.get(v, ()))


def _read_your_writes(rf: ReadsFrom) -> list[int] | None:
    last: dict[tuple[int, int], int] = {}
    for v, process in _by_session(rf):
        place = (process, int(rf.key[v]))
        mine, source = last.get(place), int(rf.source[v])
        if mine is not None and source != NO_READ:
            older = source >= 0 and rf.process[source] == process and source < mine
            if source == INITIAL or older:
                return [mine, v] if source == INITIAL else [source, mine, v]
        if rf.writes[v] and rf.follows[v] < 0:
            last[place] = v
    return None


def _monotonic_reads(rf: ReadsFrom) -> list[int] | None:
    now: dict[tuple[int, int], int] = {}  # the last read of a process of a key
    left: dict[tuple[int, int, int], int] = {}  # the read that replaced a value, by process, key and value's writer
    for v, process in _by_session(rf):
        source, key = int(rf.source[v]), int(rf.key[v])
        if source == NO_READ:
            continue
        if (process, key, source) in left:
            replaced = left[process, key, source]
            return [replaced, v, *_reads_of(rf, process, key, source, replaced)]
        if rf.follows[v] >= 0:
            continue
        before = now.get((process, key))
        if before is not None and rf.source[before] != source:
            left[process, key, int(rf.source[before])] = v
        if source != INITIAL and (process, key, INITIAL) not in left:
            left[process, key, INITIAL] = v  # the initial value is never new again
        now[process, key] = v
    return None


def _reads_of(rf: ReadsFrom, process: int, key: int, source: int, before: int) -> list[int]:
    same = (rf.process == process) & (rf.key == key) & (rf.source == source)
    return [int(v) for v in np.flatnonzero(same[:before])[:1]]


def _monotonic_writes(rf: ReadsFrom) -> list[int] | None:
    codes, nodes = saturation.index(rf)
    seen = np.zeros(rf.processes, np.int64)  # how far into each author's writes the process has seen
    by = np.zeros(rf.processes, np.int64)  # the read that showed it
    late: dict[tuple[int, int], int] = {}  # by key and author, the read of a call left behind that follows most
    for v, _ in _by_session(rf):
        if rf.place[v] == 0 and rf.follows[v] < 0:
            seen[:] = 0
            late.clear()
        source, key = int(rf.source[v]), int(rf.key[v])
        if source == NO_READ:
            continue
        for author in range(rf.processes) if source == INITIAL else (int(rf.process[source]),):
            if not seen[author]:
                continue
            newest = saturation.last_write(codes, nodes, key, author, int(seen[author]), rf.processes, len(rf) + 1)
            if newest >= 0 and (source == INITIAL or newest > source):
                return [int(newest), int(rf.source[by[author]]), int(by[author]), v, *([source] if source >= 0 else [])]
        before = int(rf.follows[source]) if source >= 0 else -1
        known = late.get((key, int(rf.process[source]))) if source >= 0 else None
        if known is not None and rf.follows[rf.source[known]] >= source:
            return [source, int(rf.source[known]), known, v]
        if rf.follows[v] >= 0:
            continue
        if before >= 0:
            place = (key, int(rf.process[before]))
            late[place] = max(v, late.get(place, v), key=lambda read: rf.follows[rf.source[read]])
        for shown in (source, before):
            if shown >= 0 and rf.place[shown] + 1 > seen[rf.process[shown]]:
                seen[rf.process[shown]], by[rf.process[shown]] = rf.place[shown] + 1, v
    return None


def _writes_follow_reads(rf: ReadsFrom) -> list[int] | None:
    """Only reads are ordered here: a read follows those of its process, and those its write's author had done."""
    nodes = np.flatnonzero(rf.source != NO_READ)
    process, sources = rf.process[nodes], rf.source[nodes]
    first = np.searchsorted(process, np.arange(rf.processes + 1))
    place = np.arange(len(nodes)) - first[process] if len(nodes) else process
    reads = replace(rf, order=rf.order[nodes], process=process, place=place, key=rf.key[nodes], source=sources)
    last = np.searchsorted(nodes, np.arange(len(rf)), side="right") - 1  # the last read at or before a node, if its own
    last[last >= 0] = np.where(process[last] == rf.process, last, -1)[last >= 0] if len(nodes) else -1
    before = np.where(rf.follows >= 0, last[rf.follows], -1)  # what the process had read that left a call behind
    last = np.where(last < 0, before, last)
    author = np.full(len(nodes), -1)  # the last read that the author of a value had done before
    author[sources >= 0] = last[sources[sources >= 0]]
    heads = np.flatnonzero(author >= 0)
    behind_calls = np.flatnonzero(before[nodes] >= 0)
    tails = np.concatenate((author[heads], before[nodes][behind_calls]))
    edges = Edges.given(tails, np.concatenate((heads, behind_calls)))
    clock, acyclic = saturation.clocks(process, place, edges.tail, edges.head, rf.processes)
    if not acyclic:
        found = behind_cycle(reads, edges)
    else:
        reader, seen, known = saturation.missed(
            process, place, reads.key, sources, author, clock, rf.processes, len(rf)
        )
        if reader < 0:
            return None
        found = [reader, seen, *behind(reads, edges, [path(reads, edges, seen, reader)])]
        if known >= 0:
            found += behind(reads, edges, [path(reads, edges, known, int(author[seen]))])
    cause = [int(sources[v]) for v in found if sources[v] >= 0]
    return [int(nodes[v]) for v in found] + cause


_RULES: dict[str, Callable[[ReadsFrom], list[int] | None]] = {
    "read-your-writes": _read_your_writes,
    "monotonic-reads": _monotonic_reads,
    "monotonic-writes": _monotonic_writes,
    "writes-follow-reads": _writes_follow_reads,
}
