"""What a judge says: whether a history satisfies a model, and if not, which few operations show it.

A *witness* is a set of operations that cannot be reconciled, whatever else happened: all other operations are
*relaxed* (:func:`relax`: nobody knows when, by whom and whether they were done) and the history still breaks the model.
It is *minimal*: relax any one of its operations too, and the rest is in order.

A *prefix* of a history is what was known when an operation returned: the first k operations by the time of their
return, and all others that had been invoked, with nobody knowing what became of them (:func:`cut`).

`draw` shows operations in a terminal: a row for each process, a bar from call to return, time from left to right.

Time is not to scale: calls and returns are equally far apart, so that what overlaps is seen to overlap.

>>> print(draw([Operation(0, "write", "x", 1, None, 0.0, 9.0), Operation(1, "read", "x", None, 1, 5.0, 20.0)], [0, 1]))
p0  ├#0 write x 1─┤
p1       ├#1 read x → 1─┤
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assay.workloads.histories import Operation

HOLDS, VIOLATED, UNKNOWN = "holds", "violated", "unknown"
PURE = frozenset({"read", "contains", "get"})  # operations without effect


@dataclass(frozen=True)
class Budget:
    """How much a search may spend before it answers ``unknown``."""

    nodes: int = 1_500_000
    """Steps of the search."""
    memory: int = 512_000_000
    """Bytes of what it remembers, about."""


ENOUGH = Budget()


@dataclass(frozen=True)
class Judgement:
    """The answer for one model."""

    model: str
    verdict: str
    """``holds``, ``violated``, or ``unknown`` where the budget ran out or the model cannot be decided."""
    witness: tuple[int, ...] = ()
    """Indices of operations that cannot be reconciled; none can be spared."""
    reason: str = ""
    """One sentence that names them."""
    order: tuple[int, ...] | None = None
    """A legal order of the operations, where the judge found one."""
    prefix: int = 0
    """How many operations had returned when the model still held, surely; all of them if it holds, 0 where nobody
    looked."""
    keys: tuple[Any, ...] = ()
    """The keys whose own histories break the model (or leave it open, if none does), where it is judged key by key."""

    @property
    def holds(self) -> bool:
        """Whether the history surely satisfies the model."""
        return self.verdict == HOLDS


Check = Callable[[Sequence[Operation]], str]
"""A judge's bare verdict on a history."""


def effective(history: Sequence[Operation]) -> list[int]:
    """Indices of the operations that matter: what failed had no effect, a read that never returned says nothing."""
    return [
        i for i, operation in enumerate(history)
        if operation.status == "ok" or (operation.status == "info" and not is_pure(operation))
    ]  # fmt: skip


def is_pure(operation: Operation) -> bool:
    """Whether the operation surely changes nothing."""
    if operation.f == "txn":
        return all(micro[0] in ("r", "read") for micro in operation.value or ())
    return operation.f in PURE or (operation.f == "cas" and operation.result is False)


def owners(history: Sequence[Operation]) -> tuple[list[int], list[int]]:
    """The process to whose program order each operation belongs; and the operation that a call left behind follows.

    A process that goes on after an operation that never returned has left it behind: it may take effect later than
    what follows, so it counts as somebody else's. But it comes after what the process had done before (else -1).

    >>> first = Operation(0, "write", "x", 1, None, 0.0, 1.0)
    >>> lost = Operation(0, "write", "x", 2, None, 2.0, math.inf, "info")
    >>> owners([first, lost, Operation(0, "read", "x", None, 1, 3.0, 4.0)])
    ([0, -1, 0], [-1, 0, -1])
    """
    last: dict[int, float] = {}
    for operation in history:
        last[operation.process] = max(operation.invoke, last.get(operation.process, operation.invoke))
    free = min(0, *last) - 1 if last else -1
    owner = [operation.process for operation in history]
    follows = [-1] * len(history)
    done: dict[int, int] = {}
    for i in sorted(range(len(history)), key=lambda i: history[i].invoke):
        operation = history[i]
        if operation.status == "info" and operation.invoke < last[operation.process]:
            owner[i], follows[i] = free, done.get(operation.process, -1)
            free -= 1
        elif operation.status == "ok":
            done[operation.process] = i
    return owner, follows


def session_order(history: Sequence[Operation]) -> list[tuple[int, int]]:
    """Each operation that may have happened and the next one of its process; of a call left behind, what it follows.

    >>> three = [Operation(p, "write", "x", p, None, at, at + 1) for at, p in ((0.0, 0), (2.0, 1), (4.0, 0))]
    >>> session_order(three)
    [(0, 2)]
    """
    owner, follows = owners(history)
    found = [(before, i) for i, before in enumerate(follows) if before >= 0]
    last: dict[int, int] = {}
    for i in sorted(range(len(history)), key=lambda i: history[i].invoke):
        if history[i].status != "fail":
            if owner[i] in last:
                found.append((last[owner[i]], i))
            last[owner[i]] = i
    return found


def in_turn(history: Sequence[Operation]) -> bool:
    """Whether each process ends one operation before it begins the next: then real time has the order of sessions."""
    return all(history[a].precedes(history[b]) for a, b in session_order(history))


def returned(history: Sequence[Operation]) -> int:
    """How many operations returned."""
    return sum(operation.complete < math.inf for operation in history)


def cut(history: Sequence[Operation], k: int) -> list[Operation]:
    """The history as it was known when its k-th operation had returned and the next had not.

    >>> history = [Operation(0, "write", "x", 1, None, 0.0, 3.0), Operation(1, "read", "x", None, 1, 1.0, 2.0)]
    >>> [operation.status for operation in cut(history, 1)]
    ['info', 'ok']
    """
    order = sorted((i for i, item in enumerate(history) if item.complete < math.inf), key=lambda i: history[i].complete)
    if k >= len(order):
        return list(history)
    end, known = history[order[k]].complete, set(order[:k])
    return [
        item if i in known else item._replace(result=None, complete=math.inf, status=_then(item))
        for i, item in enumerate(history)
        if i in known or item.invoke <= end
    ]


def _then(operation: Operation) -> str:
    return "fail" if operation.status == "fail" else "info"


def longest_prefix(history: Sequence[Operation], check: Check, low: int = 0, high: int | None = None) -> int:
    """The largest k whose prefix surely satisfies the model, by bisection.

    What holds at one time held before: that is so for models that look at real time. For others, it is a k that holds
    while k + 1 does not.
    """
    high = returned(history) if high is None else high  # known to fail
    while high - low > 1:
        middle = (low + high) // 2
        if check(cut(history, middle)) == HOLDS:
            low = middle
        else:
            high = middle
    return low


def relax(history: Sequence[Operation], kept: Iterable[int], known: bool = True) -> list[Operation]:
    """The history in which only the kept operations are sure.

    Of the others, those without effect vanish. The rest may have been done by anybody, at any time, or not at all;
    those whose values nobody kept mentions are left out, since they explain nothing (of an object that is not `known`,
    who can say?).

    >>> history = [Operation(0, "write", "x", 1, None, 0.0, 1.0), Operation(0, "read", "x", None, 1, 2.0, 3.0)]
    >>> [(item.f, item.status, item.process) for item in relax(history, [1])]
    [('read', 'ok', 0), ('write', 'info', -1)]
    """
    chosen = set(kept)
    sure = [history[i] for i in sorted(chosen)]
    loose = [item for i, item in enumerate(history) if i not in chosen and item.status != "fail" and not is_pure(item)]
    free = _relevant(loose, sure) if known else loose
    failed = [item for i, item in enumerate(history) if i not in chosen and item.status == "fail"]
    alone = (
        item._replace(
            process=-1 - number, invoke=-math.inf, complete=math.inf, status="info",
            result=None if item.f == "txn" else item.result,
        )
        for number, item in enumerate(free)
    )  # fmt: skip
    return [*sure, *alone, *failed]


WRITES = frozenset({"w", "write"})  # of a register, inside a transaction
_GIVING = {"write", "cas", "enqueue", "append"}  # their arguments show up in what others return
_TELLING = _GIVING | {"dequeue", "txn"}


def _relevant(loose: list[Operation], sure: list[Operation]) -> list[Operation]:
    """Those of the loose operations that may explain what the sure ones returned."""
    strings = any(item.f == "append" and isinstance(item.value, str) for item in (*loose, *sure))
    refuted = any(item.f == "cas" and item.result is False for item in sure)  # any other value would explain it
    if strings or refuted:
        return loose
    mentioned = {atom for operation in sure for atom in atoms(operation)}
    free: list[Operation] = []
    while mentioned:
        more: list[Operation] = []
        rest: list[Operation] = []
        for item in loose:
            silent = item.f not in _TELLING or (item.f == "dequeue" and item.result is None)
            (more if silent or not mentioned.isdisjoint(_offered(item)) else rest).append(item)
        free, loose = free + more, rest
        # A compare-and-set also needs the value that it replaces: whoever wrote that is of use.
        mentioned = {atom for item in more if item.f == "cas" for atom in atoms(item)}
    return free


def atoms(operation: Operation) -> set[Any]:
    """The plain values that an operation mentions, each with the object it belongs to.

    Nothing and false are values as well: they can be written and read. What a write answers is none.

    >>> atoms(Operation(0, "write", "x", None, None, 0.0, 1.0))
    {('x', None)}
    >>> sorted(atoms(Operation(0, "cas", "x", (1, 2), True, 0.0, 1.0)))
    [('x', 1), ('x', 2)]
    """
    if operation.f == "txn":
        return {atom for f, key, value in steps(operation) for atom in _atoms(key, () if value is None else value)}
    if operation.f in _GIVING or operation.f in ("read", "dequeue"):
        return _atoms(operation.key, operation.value if operation.f in _GIVING else operation.result)
    return _atoms(operation.key, (operation.value, operation.result))


def _offered(operation: Operation) -> set[Any]:
    """Those of its atoms that others may have from it: what a transaction only read is not its own."""
    if operation.f == "txn":
        given = [(key, value) for f, key, value in steps(operation) if f == "append" or f in WRITES]
        return {atom for key, value in given for atom in _atoms(key, value)}
    return atoms(operation)


def _atoms(key: Any, value: Any) -> set[Any]:
    name = frozen(key)
    found: set[Any] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list | tuple | set | frozenset):
            stack += item
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        else:
            found.add((name, item))
    return found


def steps(operation: Operation) -> Sequence[Sequence[Any]]:
    """The (f, key, value) steps of a transaction, with what it read where that is known."""
    return (operation.value if operation.result is None else operation.result) or ()


def appended(operation: Operation) -> Iterator[tuple[Any, Any]]:
    """The (key, element) pairs that an operation appends to lists, or would have."""
    if operation.f == "append":
        yield frozen(operation.key), frozen(operation.value)
    elif operation.f == "txn":
        for f, key, value in steps(operation):
            if f == "append":
                yield frozen(key), frozen(value)


_PLAIN = {int, str, float, bool, type(None)}


def frozen(value: Any) -> Any:
    """A value that can be compared, hashed and kept: lists become tuples, maps sorted pairs.

    >>> frozen({"b": [1, 2], "a": {3}})
    (('a', frozenset({3})), ('b', (1, 2)))
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):  # a long list of plain values is the common case, and need not be walked
        return tuple(value) if _PLAIN.issuperset(map(type, value)) else tuple(map(frozen, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(frozen, value))
    if isinstance(value, dict):
        return tuple(sorted(((frozen(key), frozen(item)) for key, item in value.items()), key=repr))
    return value


def minimal(
    items: Sequence[int], fails: Callable[[Sequence[int]], bool], probes: int = 2_000
) -> tuple[list[int], bool]:
    """Drop what can be dropped while `fails` stays true; say also whether all was tried.

    Halves first, then quarters, down to single items. Where fewer items never fail more, one pass over the single
    items leaves a set of which none can be spared.

    >>> minimal(range(100), lambda kept: {3, 57} <= set(kept))
    ([3, 57], True)
    """
    kept = list(items)
    size = max(1, len(kept) // 2)
    while True:
        at = 0
        while at < len(kept):
            if probes == 0:
                return kept, False
            probes -= 1
            trial = kept[:at] + kept[at + size :]
            if fails(trial):
                kept = trial
            else:
                at += size
        if size == 1:
            return kept, True
        size //= 2


def explain(
    history: Sequence[Operation], check: Check, core: Sequence[int] = (), probes: int = 2_000, known: bool = True
) -> tuple[tuple[int, ...], bool]:
    """A minimal witness of a violation, starting from what the judge suspects; and whether it surely is minimal."""

    start = sorted(set(core))
    if not start or check(relax(history, start, known)) != VIOLATED:
        start = effective(history)
    near = _near(history, start) if known else list(range(len(history)))
    few = [history[i] for i in near]
    place = {i: at for at, i in enumerate(near)}

    def fails(trial: Sequence[int]) -> bool:
        return check(relax(few, [place[i] for i in trial], known)) == VIOLATED

    kept, done = minimal(start, fails, probes)
    return tuple(kept), done


def _near(history: Sequence[Operation], kept: Sequence[int]) -> list[int]:
    """What may matter while ever fewer of these are kept: they, what explains them, and what failed.

    Who mentions less needs less explained, so whatever is left out here :func:`relax` would leave out each time.
    """
    chosen = set(kept)
    loose = [item for i, item in enumerate(history) if i not in chosen and item.status != "fail" and not is_pure(item)]
    free = set(map(id, _relevant(loose, [history[i] for i in kept])))
    return [i for i, item in enumerate(history) if i in chosen or item.status == "fail" or id(item) in free]


def name(history: Sequence[Operation], i: int) -> str:
    """An operation as a sentence mentions it.

    >>> name([Operation(3, "read", "x", None, 7, 0.0, 1.0)], 0)
    '#0 p3 read x → 7'
    """
    operation = history[i]
    if operation.f == "txn":
        return f"#{i} p{operation.process} txn {_steps(operation)}"
    key = "" if operation.key is None else f" {operation.key}"
    value = "" if operation.value is None else f" {_short(operation.value)}"
    result = f" → {_short(operation.result)}" if operation.result is not None or is_pure(operation) else ""
    return f"#{i} p{operation.process} {operation.f}{key}{value}{result}"


def names(history: Sequence[Operation], indices: Iterable[int], most: int = 8) -> str:
    """Operations as a sentence lists them."""
    listed = list(indices)
    told = "; ".join(name(history, i) for i in listed[:most])
    return told + (f"; and {len(listed) - most} more" if len(listed) > most else "")


def _steps(operation: Operation) -> str:
    """What a transaction did, with what it read where that is known.

    >>> _steps(Operation(0, "txn", None, [["r", "x", None], ["append", "y", 3]], None, 0.0, math.inf, "info"))
    'r x ?, append y 3'
    """
    known = operation.result is not None
    lists = not any(f in WRITES for f, _, _ in steps(operation))
    told = (
        f"{f} {plain(key)} "
        + ("?" if f in ("r", "read") and not known else plain([] if value is None and lists else value))
        for f, key, value in steps(operation)
    )
    return _cut(", ".join(told), 60)


def _short(value: Any) -> str:
    return _cut(plain(value), 40)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


_LONG = 6  # elements of a list that are all shown


def plain(value: Any) -> str:
    """A value as people write it down: no type's name, no quotes.

    Of a long list the ends: that is where two of them differ.

    >>> plain([None, {2, 1}, {"a": True}]), plain(list(range(50)))
    ('[nil, {1, 2}, {a: true}]', '[0, 1, … 48, 49]')
    """
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        if len(value) > _LONG:
            return f"[{', '.join(map(plain, value[:2]))}, … {', '.join(map(plain, value[-2:]))}]"
        return f"[{', '.join(map(plain, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(plain, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{plain(key)}: {plain(item)}' for key, item in value.items())}}}"
    return str(value)


MOST = 24  # operations that still make a picture


def draw(history: Sequence[Operation], shown: Sequence[int], width: int = 100) -> str:
    """The operations as lines of text; one that never returned has an open end.

    Where whole names are too long for the width, the bars say less: what was asked, or only the operation's number.
    """
    chosen = sorted(shown, key=lambda i: history[i].invoke)[:MOST]
    whole = {i: name(history, i).replace(f" p{history[i].process} ", " ", 1) for i in chosen}
    for labels in (whole, {i: f"#{i} {history[i].f}" for i in chosen}, {i: f"#{i}" for i in chosen}):
        lines = _rows(history, chosen, labels)
        if all(len(line) <= width for line in lines):
            break
    if len(shown) > MOST:
        lines.append(f"… and {len(shown) - MOST} more operations")
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in lines)


def _rows(history: Sequence[Operation], chosen: Sequence[int], labels: dict[int, str]) -> list[str]:
    times = sorted({time for i in chosen for time in (history[i].invoke, history[i].complete) if abs(time) < math.inf})
    columns = _columns(history, chosen, labels, times)
    processes = sorted({history[i].process for i in chosen})
    head = max((len(str(process)) for process in processes), default=1) + 3
    lines = []
    for process in processes:
        row = ""
        for i in chosen:
            if history[i].process == process:
                row = row.ljust(columns[history[i].invoke]) + _bar(history[i], labels[i], columns)
        lines.append(f"p{process}".ljust(head) + row.rstrip())
    return lines


def _columns(
    history: Sequence[Operation], chosen: Sequence[int], labels: dict[int, str], times: Sequence[float]
) -> dict[float, int]:  # fmt: skip
    """Where each instant goes: far enough from the one before for every label to fit into its bar."""
    at: dict[float, int] = {-math.inf: 0}
    last = -5
    for time in times:
        last += 5
        for i in chosen:
            if history[i].complete == time:
                last = max(last, at.get(history[i].invoke, 0) + len(labels[i]) + 2)
        at[time] = last
    at[math.inf] = last + 5
    return at


def _bar(operation: Operation, label: str, columns: dict[float, int]) -> str:
    length = max(columns[operation.complete] - columns[operation.invoke], len(label) + 1)
    end = "┤" if operation.complete < math.inf else "┄"
    return "├" + label.ljust(length - 1, "─") + end
