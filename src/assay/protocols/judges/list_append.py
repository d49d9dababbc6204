"""Transactions on lists that only grow: which isolation level a history has, by the anomalies in it.

A read of a list shows the order of the appends before it, so the whole order of versions is known. From it follow who
wrote after whom (ww), who read from whom (wr), and whose read was overwritten by whom (rw). An anomaly is a read that
cannot be, or a cycle of such edges, named after the edges it needs (Adya, Liskov and O'Neil, Generalized isolation
level definitions, ICDE 2000; Kingsbury and Alvaro, Elle, VLDB 2020):

- dirty-read (G1a): a value of a transaction that failed; intermediate-read (G1b): a version inside another transaction;
- internal: a transaction that does not see its own appends, or sees those that it has yet to make;
  incompatible-order: two reads with different orders, or one that turns round what one transaction appended;
  duplicate: an element twice in a list; thin-air-read: an element that nobody appended;
- G0: a cycle of ww; G1c: of ww and wr; G-single: with one rw; lost-update: two read one version of a key and both
  appended to it; G-nonadjacent: more rw, but never two in a row (a long fork), or rivals for a key that no
  order of commits fits; G2-item: any other;
- the same with -process behind their names: with edges, too, from each transaction of a session to its next. A session
  is what one process does, one thing after another (Daudjee and Salem, Lazy database replication with snapshot
  isolation, VLDB 2006: a snapshot holds what its session has committed before).

>>> def transaction(process, begin, end, *steps):
...     asked = [[f, key, value if f == "append" else None] for f, key, value in steps]
...     return Operation(process, "txn", None, asked, [list(step) for step in steps], begin, end)
>>> history = [
...     transaction(0, 0.0, 2.0, ("r", "x", []), ("append", "x", 1)),
...     transaction(1, 1.0, 3.0, ("r", "x", []), ("append", "x", 2)),
...     transaction(2, 4.0, 5.0, ("r", "x", [1, 2])),
... ]
>>> [anomaly.kind for anomaly in anomalies(history)]
['lost-update']
>>> judge(history, "snapshot-isolation").verdict, judge(history, "read-committed").verdict
('violated', 'holds')
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from assay.protocols.judges.judgement import (
    HOLDS,
    UNKNOWN,
    VIOLATED,
    Judgement,
    appended,
    explain,
    frozen,
    longest_prefix,
    names,
    returned,
    session_order,
)  # fmt: skip
from assay.protocols.judges.snapshots import STEPS, clash, components, short_cycle, short_path, successors
from assay.protocols.judges.specifications import SPECIFICATIONS, check
from assay.workloads.histories import Operation

ALWAYS = ("thin-air-read", "duplicate", "internal", "incompatible-order")
_COMMITTED = (*ALWAYS, "G0", "dirty-read", "intermediate-read", "G1c")
_SNAPSHOTS = (*_COMMITTED, "G-single", "lost-update", "G-nonadjacent")
_SESSIONS = tuple(f"{kind}-process" for kind in ("G0", "G1c", "G-single", "lost-update", "G-nonadjacent"))
MODELS = {  # what each level forbids
    "read-uncommitted": (*ALWAYS, "G0"),
    "read-committed": _COMMITTED,
    "snapshot-isolation": _SNAPSHOTS,
    "strong-session-snapshot-isolation": (*_SNAPSHOTS, *_SESSIONS),
    "serializable": (*_SNAPSHOTS, "G2-item"),
    "strong-session-serializable": (*_SNAPSHOTS, *_SESSIONS, "G2-item", "G2-item-process"),
    "strict-serializable": (*_SNAPSHOTS, "G2-item", "realtime"),
}
UNDECIDED = "undecided"  # no anomaly: whether there are snapshots that explain these was not found out
_DOUBTFUL = {"snapshot-isolation": UNDECIDED, "strong-session-snapshot-isolation": f"{UNDECIDED}-process"}


@dataclass(frozen=True)
class Anomaly:
    """What went wrong and the transactions that show it, as indices of the history."""

    kind: str
    operations: tuple[int, ...]


def forbidden(model: str) -> frozenset[str]:
    """The anomalies that a level forbids."""
    if model not in MODELS:
        raise ValueError(f"no isolation level '{model}'; there are {', '.join(MODELS)}")
    return frozenset(MODELS[model])


def judge(history: Sequence[Operation], model: str = "serializable", *, prefix: bool = True) -> Judgement:
    """Judge one isolation level."""
    return levels(history, prefix=prefix)(model)


def levels(history: Sequence[Operation], *, prefix: bool = True) -> Callable[[str], Judgement]:
    """A judge of any isolation level of one history: its anomalies are looked for once."""
    check(SPECIFICATIONS["list-append"], history)
    twice = _appended_twice(history)
    found = [] if twice else anomalies(history)

    def judged(model: str) -> Judgement:
        worst = next((item for item in found if item.kind in forbidden(model)), None)
        if twice:
            reason = f"{names(history, twice)}: the same element appended twice to one key hides who appended it"
            return Judgement(model, UNKNOWN, reason=reason)
        if worst is None and _undecided(found, model):
            return Judgement(model, UNKNOWN, reason=f"undecided after {STEPS:,} steps")
        if worst is None:
            return Judgement(model, HOLDS, prefix=returned(history))

        def probe(trial: Sequence[Operation]) -> str:
            return verdict(trial, model)

        witness, done = explain(history, probe, worst.operations)
        longest = longest_prefix(history, probe) if prefix else 0
        told = f"{worst.kind}: {names(history, witness)}" + ("" if done else " (perhaps more than needed)")
        return Judgement(model, VIOLATED, witness, told, prefix=longest)

    return judged


def verdict(history: Sequence[Operation], model: str) -> str:
    """The bare verdict."""
    kinds = forbidden(model)
    found = anomalies(history, kinds)
    if any(item.kind in kinds for item in found):
        return VIOLATED
    return UNKNOWN if _undecided(found, model) else HOLDS


def _undecided(found: Sequence[Anomaly], model: str) -> bool:
    """Whether snapshots are in doubt; lower levels need none, and what is in doubt is a cycle: not serializable."""
    return any(item.kind == _DOUBTFUL.get(model) for item in found)


def _appended_twice(history: Sequence[Operation]) -> tuple[int, ...]:
    author: dict[tuple[Any, Any], int] = {}
    for i, operation in enumerate(history):
        for place in appended(operation):
            if place in author:
                return author[place], i
            author[place] = i
    return ()


@dataclass
class _Transaction:
    """What a transaction did to each key: the version that it first read, and what it appended."""

    index: int
    reads: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    appends: dict[Any, list[Any]] = field(default_factory=dict)
    internal: bool = True
    """Whether it saw its own appends."""


EVERY = frozenset(kind for kinds in MODELS.values() for kind in kinds)


def anomalies(history: Sequence[Operation], asked: frozenset[str] = EVERY) -> list[Anomaly]:
    """All kinds of anomalies that occur, each with one example; sessions and real time are of no interest where no
    kind that is asked for needs them.
    """
    transactions = [_transaction(i, item) for i, item in enumerate(history) if item.status != "fail"]
    failed = {
        (key, value): i
        for i, item in enumerate(history) if item.status == "fail"
        for key, value in appended(item)
    }  # fmt: skip
    found: dict[str, Anomaly] = {}
    longest = _longest(transactions)
    for anomaly in _reads(transactions, longest, failed):
        found.setdefault(anomaly.kind, anomaly)
    if not found.keys() & set(ALWAYS):
        edges, rivals = _edges(history, transactions, longest)
        plain = list(_cycles(history, edges, rivals))
        found |= {anomaly.kind: anomaly for anomaly in plain}
        if "G0-process" in asked and found.keys().isdisjoint(_SNAPSHOTS):  # else sessions change nothing any more
            together = edges | dict.fromkeys(session_order(history), _WW)
            for anomaly in _cycles(history, together, rivals):
                kind = f"{anomaly.kind}-process"
                found[kind] = Anomaly(kind, anomaly.operations)
        if "realtime" in asked and not plain and (timed := _timed_cycle(history, list(edges))):
            found["realtime"] = Anomaly("realtime", tuple(timed))
    return list(found.values())


def _transaction(index: int, operation: Operation) -> _Transaction:
    found = _Transaction(index)
    steps = operation.result if operation.f == "txn" and operation.result is not None else operation.value
    if operation.f != "txn":
        steps = [("r" if operation.f == "read" else "append", operation.key, operation.value)]
        if operation.f == "read":
            steps = [("r", operation.key, operation.result)]
    for f, name, value in steps or ():
        key = frozen(name)
        if f == "append":
            found.appends.setdefault(key, []).append(frozen(value))
        elif operation.status == "ok":  # of others nobody knows what they read
            _observe(found, key, frozen(value or ()))
    # What others have appended before it began cannot hold what it was still to append.
    found.internal &= all(set(found.appends.get(key, ())).isdisjoint(before) for key, before in found.reads.items())
    return found


def _observe(found: _Transaction, key: Any, version: tuple[Any, ...]) -> None:
    mine = tuple(found.appends.get(key, ()))
    before = version[: len(version) - len(mine)]
    found.internal &= version[len(before) :] == mine and found.reads.get(key, before) == before
    found.reads.setdefault(key, before)


_Longest = dict[Any, tuple[tuple[Any, ...], int]]  # by key the longest version that was read, and by whom


def _longest(transactions: Sequence[_Transaction]) -> _Longest:
    longest: _Longest = {}
    for item in transactions:
        for key, version in item.reads.items():
            if len(version) > len(longest.get(key, ((), -1))[0]) or key not in longest:
                longest[key] = (version, item.index)
    return longest


def _reads(
    transactions: Sequence[_Transaction], longest: _Longest, failed: dict[tuple[Any, Any], int]
) -> Iterator[Anomaly]:  # fmt: skip
    """Reads that cannot be, whatever the order.

    Whose elements are the beginning of a longer read are looked at there: lists grow, and so would the time.
    """
    author: dict[tuple[Any, Any], _Transaction] = {}
    for item in transactions:
        for key, values in item.appends.items():
            for value in values:
                author[key, value] = item
    for item in transactions:
        if not item.internal:
            yield Anomaly("internal", (item.index,))
        for key, version in item.reads.items():
            whole, holder = longest[key]
            agrees = whole[: len(version)] == version
            if not agrees:
                yield Anomaly("incompatible-order", (holder, item.index))
            if not agrees or holder == item.index:
                yield from _elements(item.index, key, version, author, failed)
                yield from _turned_round(item.index, key, version, author)
            writer = author.get((key, version[-1])) if version else None
            if writer is not None and writer is not item and writer.appends[key][-1] != version[-1]:
                yield Anomaly("intermediate-read", (writer.index, item.index))


def _elements(
    reader: int, key: Any, version: tuple[Any, ...], author: dict[tuple[Any, Any], _Transaction],
    failed: dict[tuple[Any, Any], int],
) -> Iterator[Anomaly]:  # fmt: skip
    if len(set(version)) < len(version):
        yield Anomaly("duplicate", (reader,))
    for value in version:
        if (key, value) in author:
            continue
        if (key, value) in failed:
            yield Anomaly("dirty-read", (failed[key, value], reader))
        else:
            yield Anomaly("thin-air-read", (reader,))


def _turned_round(
    reader: int, key: Any, version: tuple[Any, ...], author: dict[tuple[Any, Any], _Transaction]
) -> Iterator[Anomaly]:  # fmt: skip
    """Who shows a later append of a transaction shows its earlier ones, before it."""
    shown: dict[int, int] = {}
    for value in version:
        if (writer := author.get((key, value))) is not None:
            at = shown.get(writer.index, 0)
            if at < len(writer.appends[key]) and writer.appends[key][at] != value:
                yield Anomaly("incompatible-order", (writer.index, reader))
            shown[writer.index] = at + 1


_WW, _WR, _RW = 0, 1, 2


def _edges(
    history: Sequence[Operation], transactions: Sequence[_Transaction], longest: _Longest
) -> tuple[dict[tuple[int, int], int], list[set[int]]]:  # fmt: skip
    """Edges between transactions with their kind, the strongest evidence first: ww, wr, rw.

    And, key by key, the rivals: those who appended what nobody read, so that the order among them is not known.
    """
    author = {
        (key, value): item.index for item in transactions for key, values in item.appends.items() for value in values
    }
    edges: dict[tuple[int, int], int] = {}

    def add(tail: int, head: int, kind: int) -> None:
        if tail != head:
            edges[tail, head] = min(kind, edges.get((tail, head), kind))

    after: dict[Any, dict[int, list[int]]] = {}  # who wrote the version after the first k elements of a key
    for key, (version, _) in longest.items():
        writers = [author[key, value] for value in version if (key, value) in author]
        for tail, head in pairwise(writers):
            add(tail, head, _WW)
        after[key] = {at: [author[key, value]] for at, value in enumerate(version) if (key, value) in author}
        after[key][len(version)] = []
    seen = {(key, value) for key, (version, _) in longest.items() for value in version}
    happened = {author[place] for place in seen if place in author}
    happened |= {item.index for item in transactions if history[item.index].status == "ok"}
    rivals: dict[Any, set[int]] = {}
    for (key, value), writer in author.items():  # what nobody read comes after all that was read
        if (key, value) in seen or writer not in happened:
            continue
        rivals.setdefault(key, set()).add(writer)
        if key in longest:
            version = longest[key][0]
            after[key][len(version)].append(writer)
            if version and (key, version[-1]) in author:
                add(author[key, version[-1]], writer, _WW)
    for item in transactions:
        for key, version in item.reads.items():
            if version and (key, version[-1]) in author:
                add(author[key, version[-1]], item.index, _WR)
            for writer in after[key].get(len(version), ()):
                add(item.index, writer, _RW)
    return edges, list(rivals.values())


def _cycles(
    history: Sequence[Operation], edges: dict[tuple[int, int], int], rivals: Sequence[set[int]]
) -> Iterator[Anomaly]:  # fmt: skip
    n = len(history)
    for kind, most in (("G0", _WW), ("G1c", _WR)):
        if cycle := short_cycle(n, [edge for edge, number in edges.items() if number <= most]):
            yield Anomaly(kind, tuple(cycle))
            return  # every wider class has this cycle too
    if not (cycle := short_cycle(n, list(edges))):
        return
    if single := _single(n, edges):
        yield Anomaly("lost-update" if _lost_update(history, single) else "G-single", tuple(single))
        return
    strong = [edge for edge, kind in edges.items() if kind != _RW]
    found = clash(n, strong, [edge for edge, kind in edges.items() if kind == _RW], rivals)
    if found is None or not found.sure:
        yield Anomaly("G2-item", tuple(cycle))
    if found is not None:
        kind = "lost-update" if _lost_update(history, found.transactions) else "G-nonadjacent"
        yield Anomaly(kind if found.sure else UNDECIDED, found.transactions)


def _lost_update(history: Sequence[Operation], cycle: Sequence[int]) -> bool:
    """Whether these are two that read one version of a key and appended to it."""
    if len(cycle) != 2:
        return False
    one, other = (_transaction(i, history[i]) for i in cycle)
    return any(key in other.appends and other.reads.get(key) == one.reads.get(key, ...) for key in one.appends)


def _single(n: int, edges: dict[tuple[int, int], int]) -> list[int] | None:
    """A cycle with exactly one rw edge.

    Without two rw in a row, it is a cycle of begins and commits too: only there need a path be looked for.
    """
    points = [(v, n + v) for v in range(n)]
    points += [(a, n + b) if kind == _RW else (n + a, b) for (a, b), kind in edges.items()]
    component = components(2 * n, points).tolist()
    after = successors([edge for edge, kind in edges.items() if kind != _RW])
    for (a, b), kind in edges.items():
        if kind == _RW and component[a] == component[n + b] and (path := short_path(after, b, a)):
            return path
    return None


def _timed_cycle(history: Sequence[Operation], edges: list[tuple[int, int]]) -> list[int] | None:
    """A cycle with edges of real time; these go through a line of instants, so that there are few."""
    n = len(history)
    instants = sorted({item.invoke for item in history if item.status != "fail"} | {math.inf})
    line = [(n + at, n + at + 1) for at in range(len(instants) - 1)]
    at = {time: n + place for place, time in enumerate(instants)}
    for i, item in enumerate(history):
        if item.status == "fail":
            continue
        if item.invoke > -math.inf:
            line.append((at[item.invoke], i))
        if item.status == "ok":
            later = bisect_right(instants, item.complete)
            if later < len(instants):
                line.append((i, n + later))
    cycle = short_cycle(n + len(instants), edges + line)
    return [v for v in cycle if v < n] if cycle else None
