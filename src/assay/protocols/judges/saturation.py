"""What reads and writes force: relations, the reasons behind them, and the clocks on which the causal judges work.

Reads and writes as arrays: who wrote what everyone read. What the causal judges and the sessions work on.

Operations that matter are numbered process by process, in program order: an operation is (process, place in it), and
`order` leads back to the history. The reads-from relation is read off the values, so every value may be written to a
key only once.

Edges between reads and writes with the reason for each, and the few operations behind a contradiction.

An edge is either given (a read from a write) or forced (a write before another, because of a reader that saw the
first and read the second). A forced edge rests on a path that was there before it, which may hold forced edges itself:
`behind` unfolds them down to what was given.

Orders of reads and writes as clocks, and the orders that they force: the compiled core of the causal judges.

Every process is a chain, so the past of an operation is, per process, how many of its operations lie in it: a *clock*.
`clocks` computes them along the edges. `force` then asks what a set of readers implies: a write before a read, to its
key, must lie before the write that was read. Repeated until nothing new is forced or a cycle appears, this decides
whether the readers' views exist (Bouajjani, Enea, Guerraoui and Hamza, On verifying causal consistency, POPL 2017).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.protocols.judges.judgement import (
    HOLDS,
    UNKNOWN,
    VIOLATED,
    Judgement,
    effective,
    explain,
    frozen,
    longest_prefix,
    names,
    owners,
    returned,
)
from assay.sim.compiled import njit
from assay.workloads.histories import Operation

Ints = npt.NDArray[np.int64]

NO_READ, INITIAL, NOWHERE = -1, -2, -3
"""In place of a writer: the operation does not read; it read what was there at first; nobody wrote what it read."""


@dataclass(frozen=True)
class ReadsFrom:
    """A history of reads, writes and compare-and-sets; entry v of each array is about node v."""

    order: Ints
    """Which operation of the history a node is."""
    process: Ints
    place: Ints
    """How many operations its process did before."""
    key: Ints
    writes: npt.NDArray[np.bool_]
    source: Ints
    """The node that wrote what this one read, or NO_READ, INITIAL, NOWHERE."""
    processes: int
    starts: Ints
    """The first node of each process, and the number of nodes."""
    follows: Ints
    """Of a call that its process left behind, and that is a process of its own: the node it comes after; else -1."""

    def __len__(self) -> int:
        return len(self.order)


class Ambiguous(ValueError):  # noqa: N818 - read as a sentence
    """Reads-from cannot be told from the values: the sentence says why."""


First = Callable[[Hashable], Any]
"""What a key holds before anybody writes."""


def nothing(_: Hashable) -> Any:
    """Keys that hold nothing."""
    return None


Breach = tuple[Sequence[int], str]
"""Operations of a history that break a model, and how, in a few words."""
Broken = Callable[["ReadsFrom"], Breach | None]


def judged(history: Sequence[Operation], model: str, broken: Broken, first: First, prefix: bool) -> Judgement:
    """Judge by who read what of whom: what `broken` finds, cut down to what it takes.

    A value written twice to a key hides who read what: then the answer is ``unknown``.
    """
    try:
        found = broken(reads_from(history, first))
    except Ambiguous as error:
        return Judgement(model, UNKNOWN, reason=str(error))
    if found is None:
        return Judgement(model, HOLDS, prefix=returned(history))

    def check(trial: Sequence[Operation]) -> str:
        return bare(trial, broken, first)

    witness, _ = explain(history, check, found[0])
    reason = f"{found[1]}: {names(history, witness)}"
    return Judgement(model, VIOLATED, witness, reason, prefix=longest_prefix(history, check) if prefix else 0)


def bare(history: Sequence[Operation], broken: Broken, first: First) -> str:
    """The verdict alone."""
    try:
        return HOLDS if broken(reads_from(history, first)) is None else VIOLATED
    except Ambiguous:
        return UNKNOWN


def reads_from(history: Sequence[Operation], first: First = nothing) -> ReadsFrom:
    """Find who wrote what everyone read; `first` says what a key holds before anybody writes.

    A write that never returned is there only if someone read it.

    Raises:
        Ambiguous: a value written twice to one key, or operations other than read, write and cas.

    """
    session, follows = owners(history)
    nodes = sorted(_happened(history), key=lambda i: (session[i], history[i].invoke))
    keys: dict[Any, int] = {}
    writer: dict[tuple[int, Any], int] = {}
    key = [keys.setdefault(frozen(history[i].key), len(keys)) for i in nodes]
    initial = [first(name) for name in keys]
    for v, i in enumerate(nodes):
        value = _written(history[i])
        if value is _NOTHING:
            continue
        if value == initial[key[v]]:
            raise Ambiguous(f"operation #{i} writes {value!r}, which was there at first: nobody can tell who read it")
        if (key[v], value) in writer:
            raise Ambiguous(f"operations #{nodes[writer[key[v], value]]} and #{i} write the same value to one key")
        writer[key[v], value] = v
    source = [_source(history[i], key[v], writer, initial[key[v]]) for v, i in enumerate(nodes)]
    node = {i: v for v, i in enumerate(nodes)}
    return _arrays(history, nodes, [session[i] for i in nodes], key, source, [node.get(follows[i], -1) for i in nodes])


_NOTHING = object()


def _happened(history: Sequence[Operation]) -> list[int]:
    """Operations that surely happened or were read from."""
    chosen = effective(history)
    for i in chosen:
        if history[i].f not in ("read", "write", "cas"):
            raise Ambiguous(f"operation #{i} is '{history[i].f}'; causal models are judged for read, write and cas")
        if history[i].f == "cas" and history[i].result is False:
            raise Ambiguous(f"operation #{i} found another value than it expected: nobody can tell which")
    seen = {(frozen(history[i].key), _read(history[i])) for i in chosen if history[i].status == "ok"}
    while True:
        happened = [
            i for i in chosen
            if history[i].status == "ok" or (frozen(history[i].key), _written(history[i])) in seen
        ]  # fmt: skip
        more = {(frozen(history[i].key), _read(history[i])) for i in happened} - seen
        if not more:
            return happened
        seen |= more


def _written(operation: Operation) -> Any:
    if operation.f == "write":
        return frozen(operation.value)
    return frozen(operation.value[1]) if operation.f == "cas" else _NOTHING


def _read(operation: Operation) -> Any:
    if operation.f == "read":
        return frozen(operation.result)
    return frozen(operation.value[0]) if operation.f == "cas" else _NOTHING


def _source(operation: Operation, key: int, writer: dict[tuple[int, Any], int], initial: Any) -> int:
    value = _read(operation)
    if value is _NOTHING:
        return NO_READ
    if value == initial:
        return INITIAL
    return writer.get((key, value), NOWHERE)


def _arrays(
    history: Sequence[Operation], nodes: list[int], session: list[int], key: list[int], source: list[int],
    follows: list[int],
) -> ReadsFrom:  # fmt: skip
    names: dict[int, int] = {}
    process = np.array([names.setdefault(number, len(names)) for number in session], np.int64)
    starts = np.searchsorted(process, np.arange(len(names) + 1))
    place = np.arange(len(nodes)) - starts[process] if nodes else process
    return ReadsFrom(
        np.array(nodes, np.int64), process, place.astype(np.int64), np.array(key, np.int64),
        np.array([_written(history[i]) is not _NOTHING for i in nodes], bool), np.array(source, np.int64),
        len(names), starts.astype(np.int64), np.array(follows, np.int64),
    )  # fmt: skip


@dataclass(frozen=True)
class Edges:
    """Edges tail → head; `why` is the reader that forced it, -1 where it is given; `round` when it was found."""

    tail: Ints
    head: Ints
    why: Ints
    round: Ints

    @staticmethod
    def given(tail: Ints, head: Ints) -> Edges:
        """Edges without a reader behind them."""
        return Edges(tail, head, np.full(len(tail), -1), np.zeros(len(tail), np.int64))

    @staticmethod
    def read(rf: ReadsFrom, readers: Ints) -> Edges:
        """From what these read to them; and from what a process had done to the calls that it left behind."""
        readers, behind = readers[rf.source[readers] >= 0], np.flatnonzero(rf.follows >= 0)
        tail = np.concatenate((rf.source[readers], rf.follows[behind]))
        return Edges.given(tail, np.concatenate((readers, behind)))

    def more(self, tail: Ints, head: Ints, why: Ints) -> Edges:
        """With the edges of one more round."""
        number = np.full(len(tail), (self.round.max() if len(self.round) else 0) + 1)
        pairs = ((self.tail, tail), (self.head, head), (self.why, why), (self.round, number))
        return Edges(*(np.concatenate(pair).astype(np.int64) for pair in pairs))


def behind_cycle(rf: ReadsFrom, edges: Edges) -> list[int]:
    """The nodes behind some cycle, one that is short."""
    n = len(rf)
    chain = np.flatnonzero(rf.place[1:] > 0)
    tail, head = np.concatenate((edges.tail, chain)), np.concatenate((edges.head, chain + 1))
    graph = coo_array((np.ones(len(tail), np.int8), (tail, head)), shape=(n, n))
    _, component = connected_components(graph, connection="strong")
    sizes = np.bincount(component)
    inside = component == np.argmin(np.where(sizes > 1, sizes, n + 1))
    start = int(np.flatnonzero(inside)[0])
    before = _Before(rf, edges)
    path: list[int] | None = None
    for last, number, _ in before.edges(start):
        if inside[last]:
            found = before.path(start, last, number + 1 if number else 1 << 60, inside)
            if found is not None and (path is None or len(found) < len(path)):
                path = found
    return behind(rf, edges, [] if path is None else [[*path, start]])


def behind(rf: ReadsFrom, edges: Edges, paths: Iterable[list[int]]) -> list[int]:
    """The nodes that these paths rest on."""
    before = _Before(rf, edges)
    nodes: set[int] = set()
    todo = list(paths)
    told: set[tuple[int, int]] = set()
    while todo:
        path = todo.pop()
        nodes |= {path[0], path[-1]}
        for a, b in pairwise(path):
            reason = before.reason(a, b)
            if reason is None:  # program order
                continue
            nodes |= {a, b}
            number, reader = reason
            if reader >= 0 and (a, b) not in told:
                told.add((a, b))
                more = before.path(a, reader, number)
                todo += [more] if more is not None else []
    return sorted(nodes)


def path(rf: ReadsFrom, edges: Edges, start: int, end: int) -> list[int]:
    """A short path; there must be one."""
    found = _Before(rf, edges).path(start, end, 1 << 60)
    return [start, end] if found is None else found


class _Before:
    """Who is directly before whom."""

    def __init__(self, rf: ReadsFrom, edges: Edges) -> None:
        self.place = rf.place
        self.into: dict[int, list[tuple[int, int, int]]] = {}
        rows = (edges.tail.tolist(), edges.head.tolist(), edges.round.tolist(), edges.why.tolist())
        for tail, head, number, why in zip(*rows, strict=True):
            self.into.setdefault(head, []).append((tail, number, why))

    def edges(self, v: int) -> list[tuple[int, int, int]]:
        """(node before, round, reader) of everything directly before v."""
        found = self.into.get(v, [])
        return [*found, (v - 1, 0, -1)] if self.place[v] > 0 else found

    def reason(self, a: int, b: int) -> tuple[int, int] | None:
        """The oldest edge from a to b: its round and reader; None where program order is enough."""
        if a == b - 1 and self.place[b] > 0:
            return None
        return min(((number, why) for tail, number, why in self.into.get(b, []) if tail == a), default=None)

    def path(self, start: int, end: int, below: int, inside: Ints | None = None) -> list[int] | None:
        """A shortest path over edges of rounds below this one."""
        if start == end:
            return [start]
        after = {end: end}
        queue = deque([end])
        while queue:
            v = queue.popleft()
            for u, number, _ in self.edges(v):
                if number < below and u not in after and (inside is None or inside[u]):
                    after[u] = v
                    if u == start:
                        found = [u]
                        while found[-1] != end:
                            found.append(after[found[-1]])
                        return found
                    queue.append(u)
        return None


Array = Any  # an int64 array, in compiled code and outside


def index(rf: ReadsFrom) -> tuple[Ints, Ints]:
    """All writes as sorted codes of (key, process, place), and their nodes: `last_write` searches them."""
    nodes = np.flatnonzero(rf.writes)
    codes = _code(rf.key[nodes], rf.process[nodes], rf.place[nodes], rf.processes, len(rf) + 1)
    order = np.argsort(codes, kind="stable")
    return codes[order].astype(np.int64), nodes[order].astype(np.int64)


@njit(cache=True)
def _code(key: Any, process: Any, place: Any, processes: Any, span: Any) -> Any:
    return (key * processes + process) * span + place


@njit(cache=True)
def last_write(codes: Array, nodes: Array, key: int, process: int, clock: int, processes: int, span: int) -> int:
    """The last write of a process to a key among its first `clock` operations, or -1."""
    low = _code(key, process, 0, processes, span)
    at = np.searchsorted(codes, low + clock) - 1
    return nodes[at] if at >= 0 and codes[at] >= low else -1


@njit(cache=True)
def clocks(process: Array, place: Array, tails: Array, heads: Array, processes: int) -> tuple[Array, bool]:
    """Each node's clock (itself included) along chains and edges tail → head; and whether there is no cycle."""
    n = len(process)
    degree = np.zeros(n, np.int64)
    first = np.zeros(n + 1, np.int64)
    for e in range(len(tails)):
        first[tails[e] + 1] += 1
        degree[heads[e]] += 1
    for v in range(n):
        first[v + 1] += first[v]
        if place[v] > 0:
            degree[v] += 1
    fill = first[:-1].copy()
    targets = np.empty(len(tails), np.int64)
    for e in range(len(tails)):
        targets[fill[tails[e]]] = heads[e]
        fill[tails[e]] += 1
    clock = np.zeros((n, processes), np.int64)
    queue = np.empty(n, np.int64)
    begin = end = 0
    for v in range(n):
        if degree[v] == 0:
            queue[end] = v
            end += 1
    while begin < end:
        v = queue[begin]
        begin += 1
        clock[v, process[v]] = place[v] + 1
        for e in range(first[v], first[v + 1] + 1):
            if e < first[v + 1]:
                u = targets[e]
            elif v + 1 < n and process[v + 1] == process[v]:
                u = v + 1
            else:
                continue
            for p in range(processes):
                if clock[v, p] > clock[u, p]:
                    clock[u, p] = clock[v, p]
            degree[u] -= 1
            if degree[u] == 0:
                queue[end] = u
                end += 1
    return clock, end == n


@njit(cache=True)
def force(
    readers: Array, clock: Array, process: Array, place: Array, key: Array, source: Array,
    codes: Array, nodes: Array, processes: int, known: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Edges that the readers force: (earlier write, write that was read, reader); a read of the initial value that
    has a write before it gives (that write, -1, reader). With `known`, also edges that the clocks already have.
    """
    span = len(process) + 1
    tails = [np.int64(0) for _ in range(0)]
    heads = [np.int64(0) for _ in range(0)]
    whys = [np.int64(0) for _ in range(0)]
    for r in readers:
        s = source[r]
        if s == NO_READ:
            continue
        for p in range(processes):
            seen = clock[r, p] - 1 if p == process[r] else clock[r, p]  # a compare-and-set does not read itself
            w = last_write(codes, nodes, key[r], p, seen, processes, span)
            if w < 0 or w == s:
                continue
            if s == INITIAL:
                tails.append(np.int64(w))
                heads.append(np.int64(-1))
                whys.append(r)
            elif s >= 0 and (known or clock[s, p] < place[w] + 1):
                tails.append(np.int64(w))
                heads.append(np.int64(s))
                whys.append(r)
    return np.array(tails), np.array(heads), np.array(whys)


@njit(cache=True)
def follow(
    readers: Array, clock: Array, process: Array, place: Array, key: Array, source: Array,
    codes: Array, nodes: Array, processes: int,
) -> tuple[Array, Array]:  # fmt: skip
    """In one order for all, a write after the write that was read comes after the read: edges (read, later write)."""
    span = len(process) + 1
    tails = [np.int64(0) for _ in range(0)]
    heads = [np.int64(0) for _ in range(0)]
    for r in readers:
        s = source[r]
        if s == NO_READ or s < INITIAL:
            continue
        for p in range(processes):
            if p == process[r]:  # its later writes follow it anyway, and an earlier one is `force`'s business
                continue
            low = np.searchsorted(codes, _code(key[r], p, 0, processes, span))
            high = np.searchsorted(codes, _code(key[r], p, span - 1, processes, span))
            while low < high:  # the first of p's writes to the key that lies after the one read
                middle = (low + high) // 2
                w = nodes[middle]
                after = w != s and (s == INITIAL or clock[w, process[s]] > place[s])
                if after:
                    high = middle
                else:
                    low = middle + 1
            end = np.searchsorted(codes, _code(key[r], p, span - 1, processes, span))
            if low < end and clock[nodes[low], process[r]] <= place[r]:
                tails.append(r)
                heads.append(nodes[low])
    return np.array(tails), np.array(heads)


@njit(cache=True)
def missed(
    process: Array, place: Array, key: Array, source: Array, author: Array, clock: Array, processes: int, writes: int
) -> tuple[int, int, int]:  # fmt: skip
    """A read that misses what it should know: (the read, a read known to it that saw a newer value, one known to the
    author of that value which saw what the first read returned, or -1), or (-1, -1, -1).

    Nodes are reads alone, `author` the last read that the author of the value had done before, or -1.
    """
    n = len(process)
    codes = np.empty(n, np.int64)
    for v in range(n):
        codes[v] = _code(key[v], process[v], place[v], processes, n + 1)
    order = np.argsort(codes)
    codes = codes[order]
    earliest = np.full((writes, processes), n, np.int64)  # where each process first read a write
    newest = np.zeros((n, processes), np.int64)  # what the authors of all values that a row showed so far had read
    for at in range(n):
        v = order[at]
        if source[v] >= 0 and place[v] < earliest[source[v], process[v]]:
            earliest[source[v], process[v]] = place[v]
        same = at > 0 and key[order[at - 1]] == key[v] and process[order[at - 1]] == process[v]
        for p in range(processes):
            newest[at, p] = newest[at - 1, p] if same else 0
            if author[v] >= 0 and clock[author[v], p] > newest[at, p]:
                newest[at, p] = clock[author[v], p]
    for v in range(n):
        if place[v] == 0:
            continue
        for p in range(processes):
            low = _code(key[v], p, 0, processes, n + 1)
            begin = np.searchsorted(codes, low)
            end = np.searchsorted(codes, low + clock[v - 1, p])
            if source[v] == INITIAL:
                for at in range(begin, end):
                    if source[order[at]] >= 0:
                        return v, order[at], -1
            elif source[v] >= 0 and begin < end:
                for q in range(processes):
                    if earliest[source[v], q] < newest[end - 1, q]:
                        return v, *_culprit(order, begin, end, author, clock, q, earliest[source[v], q], process, place)
    return -1, -1, -1


@njit(cache=True)
def _culprit(
    order: Array, begin: int, end: int, author: Array, clock: Array, q: int, spot: int, process: Array, place: Array
) -> tuple[int, int]:  # fmt: skip
    """The first read of the row whose author knew read number `spot` of process q; and that read."""
    for at in range(begin, end):
        v = order[at]
        if author[v] >= 0 and clock[author[v], q] > spot:
            for u in range(len(process)):
                if process[u] == q and place[u] == spot:
                    return v, u
    return -1, -1
