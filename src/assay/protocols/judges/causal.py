"""Causal consistency, in three strengths, for registers whose writes are all different.

The causal order is program order and reads-from, closed. *Causal* (CC): every read is right for some order of its
causal past. *Causal memory* (CM): every process sees one order in which all its reads are right. *Causal convergent*
(CCv): all agree on one order of writes, and every read returns the last of its past. Each is violated exactly if one of
its bad patterns occurs (Bouajjani, Enea, Guerraoui and Hamza, On verifying causal consistency, POPL 2017):

- CC: CyclicCO, ThinAirRead, WriteCOInitRead, WriteCORead;
- CM: those, and WriteHBInitRead, CyclicHB;
- CCv: those of CC, and CyclicCF.

*PRAM* is judged in the same way, with only the observer's own reads in the order: every process sees the writes of
every other in the order in which they were issued.

>>> history = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
...     Operation(1, "read", "x", None, 1, 2.0, 3.0),
...     Operation(1, "write", "y", 2, None, 4.0, 5.0),
...     Operation(2, "read", "y", None, 2, 6.0, 7.0),
...     Operation(2, "read", "x", None, None, 8.0, 9.0),
... ]
>>> judge(history, "pram").verdict, judge(history).verdict, judge(history).witness
('holds', 'violated', (1, 2, 3, 4))
>>> judge(history).reason.split(":")[0]
'WriteCOInitRead'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from assay.protocols.judges import saturation
from assay.protocols.judges.judgement import Judgement
from assay.protocols.judges.saturation import (
    NO_READ,
    NOWHERE,
    Breach,
    Edges,
    First,
    Ints,
    ReadsFrom,
    bare,
    behind,
    behind_cycle,
    judged,
    nothing,
    path,
)
from assay.workloads.histories import Operation

MODELS = ("causal", "causal-memory", "causal-convergent", "pram")


@dataclass(frozen=True)
class Pattern:
    """A bad pattern and the nodes that show it."""

    name: str
    nodes: list[int]


def judge(
    history: Sequence[Operation], model: str = "causal", *, prefix: bool = True, first: First = nothing
) -> Judgement:
    """Judge a history of reads, writes and compare-and-sets; `prefix` asks for the longest good prefix too.

    A value written twice to a key hides who read what: then the answer is ``unknown``.
    """
    if model not in MODELS:
        raise ValueError(f"no causal model '{model}'; there are {', '.join(MODELS)}")
    return judged(history, model, partial(_breach, model), first, prefix)


def verdict(history: Sequence[Operation], model: str, first: First = nothing) -> str:
    """The bare verdict."""
    return bare(history, partial(_breach, model), first)


def _breach(model: str, rf: ReadsFrom) -> Breach | None:
    found = pattern(rf, model)
    return None if found is None else ([int(rf.order[v]) for v in found.nodes], found.name)


def pattern(rf: ReadsFrom, model: str) -> Pattern | None:
    """The first bad pattern of the model that occurs."""
    lost = np.flatnonzero(rf.source == NOWHERE)
    if len(lost):
        return Pattern("ThinAirRead", [int(lost[0])])
    index = saturation.index(rf)
    readers = np.flatnonzero(rf.source != NO_READ)
    given = Edges.read(rf, readers)
    if model == "pram":
        return _views(rf, given, index, own=True)
    clock, acyclic = saturation.clocks(rf.process, rf.place, given.tail, given.head, rf.processes)
    if not acyclic:
        return Pattern("CyclicCO", behind_cycle(rf, given))
    tail, head, why = _force(rf, readers, clock, index, known=True)
    if bad := _overwritten(rf, given, clock, (tail, head, why)):
        return bad
    if model == "causal-convergent":
        edges = given.more(tail, head, why)
        _, acyclic = saturation.clocks(rf.process, rf.place, edges.tail, edges.head, rf.processes)
        return None if acyclic else Pattern("CyclicCF", behind_cycle(rf, edges))
    return _views(rf, given, index, own=False) if model == "causal-memory" else None


def _force(
    rf: ReadsFrom, readers: Ints, clock: Ints, index: tuple[Ints, Ints], known: bool
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    found: tuple[Ints, Ints, Ints] = saturation.force(
        readers, clock, rf.process, rf.place, rf.key, rf.source, *index, rf.processes, known
    )
    return found


def _overwritten(rf: ReadsFrom, given: Edges, clock: Ints, forced: tuple[Ints, Ints, Ints]) -> Pattern | None:
    """A read that has a later write in its past than the one it returned."""
    tail, head, why = forced
    initial = np.flatnonzero(head < 0)
    if len(initial):
        write, reader = int(tail[initial[0]]), int(why[initial[0]])
        return Pattern("WriteCOInitRead", behind(rf, given, [path(rf, given, write, reader)]))
    late = np.flatnonzero(clock[tail, rf.process[head]] > rf.place[head])
    if len(late):
        source, write, reader = (int(row[late[0]]) for row in (head, tail, why))
        paths = [path(rf, given, source, write), path(rf, given, write, reader), [source, reader]]
        return Pattern("WriteCORead", behind(rf, given, paths))
    return None


def _views(rf: ReadsFrom, given: Edges, index: tuple[Ints, Ints], own: bool) -> Pattern | None:
    """A process whose reads fit no order: of everything (causal memory), or of the writes it could see (PRAM)."""
    for process in range(rf.processes):
        nodes = np.arange(rf.starts[process], rf.starts[process + 1])
        if (last := int(rf.follows[nodes[0]])) >= 0:  # a call left behind sees what its process had seen
            nodes = np.concatenate((np.arange(rf.starts[rf.process[last]], last + 1), nodes))
        readers = nodes[rf.source[nodes] != NO_READ]
        bad, _ = saturate(rf, Edges.read(rf, readers) if own else given, readers, index)
        if bad is not None:
            return bad
    return None


def saturate(
    rf: ReadsFrom, edges: Edges, readers: Ints, index: tuple[Ints, Ints], total: bool = False
) -> tuple[Pattern | None, Ints]:  # fmt: skip
    """Add what the readers force until nothing is new; a contradiction, if there is one, and the clocks at the end.

    With `total` the order is one for all: what comes after the write that was read comes after the read.
    """
    while True:
        clock, acyclic = saturation.clocks(rf.process, rf.place, edges.tail, edges.head, rf.processes)
        if not acyclic:
            return Pattern("CyclicHB", behind_cycle(rf, edges)), clock
        tail, head, why = _force(rf, readers, clock, index, known=False)
        initial = np.flatnonzero(head < 0)
        if len(initial):
            write, reader = int(tail[initial[0]]), int(why[initial[0]])
            return Pattern("WriteHBInitRead", behind(rf, edges, [path(rf, edges, write, reader)])), clock
        edges_now = edges.more(tail, head, why)
        if total:
            after = saturation.follow(readers, clock, rf.process, rf.place, rf.key, rf.source, *index, rf.processes)
            edges_now = edges_now.more(after[0], after[1], np.full(len(after[0]), -1))
        if len(edges_now.tail) == len(edges.tail):
            return None, clock
        edges = edges_now
