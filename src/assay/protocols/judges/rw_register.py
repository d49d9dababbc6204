"""Transactions on registers: which isolation level a history of reads and writes has.

A list shows the order of what was appended to it; a register shows its last value only, so the order of its versions
is not known. The lower levels need none: any order that follows the reads will do.

- read-uncommitted: nobody reads what nobody wrote (thin-air-read) or misses its own write (internal);
- read-committed: nor what failed (dirty-read) or was overwritten by its own author (intermediate-read), and nobody
  reads, by whatever detour, from somebody who reads from it (G1c);
- snapshot-isolation: there is an order of beginnings and commits in which every transaction reads the state at its
  beginning, and no two that overlap write one key;
- serializable: there is an order of whole transactions; strict-serializable: one that real time allows;
- strong-session-snapshot-isolation, strong-session-serializable: the same as without, and what a process does comes
  after what it had done before: its next transaction begins when the one before it has committed.

All but the lowest two are looked for by search, and may end ``unknown`` (that they are hard is a theorem; Papadimitriou
1979).
Where every value has one author, who comes before whom is known but for choices, and most of those force each other.

>>> def transaction(process, begin, end, *steps):
...     asked = [[f, key, value if f == "w" else None] for f, key, value in steps]
...     return Operation(process, "txn", None, asked, [list(step) for step in steps], begin, end)
>>> skew = [
...     transaction(0, 0.0, 2.0, ("r", "x", None), ("w", "y", 1)),
...     transaction(1, 1.0, 3.0, ("r", "y", None), ("w", "x", 2)),
... ]
>>> judge(skew, "serializable").verdict, judge(skew, "snapshot-isolation").verdict
('violated', 'holds')
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Any

from assay.protocols.judges.judgement import (
    ENOUGH,
    HOLDS,
    UNKNOWN,
    VIOLATED,
    WRITES,
    Budget,
    Judgement,
    explain,
    frozen,
    longest_prefix,
    names,
    owners,
    returned,
    session_order,
    steps,
)
from assay.protocols.judges.linearizable import PROBE, Next, by_process, by_time, search
from assay.protocols.judges.snapshots import components, short_cycle, successors
from assay.protocols.judges.specifications import SPECIFICATIONS, Specification, State, check
from assay.workloads.histories import Operation

_NO_ORDER = {
    "snapshot-isolation": "no snapshots explain",
    "serializable": "no order explains",
    "strong-session-snapshot-isolation": "no snapshots that are true to every process explain",
    "strong-session-serializable": "no order that is true to every process explains",
    "strict-serializable": "no order that real time allows explains",
}
MODELS = ("read-uncommitted", "read-committed", *_NO_ORDER)
SESSIONS = ("strong-session-snapshot-isolation", "strong-session-serializable")
SNAPSHOTS = ("snapshot-isolation", "strong-session-snapshot-isolation")


def judge(
    history: Sequence[Operation], model: str = "serializable", specification: Specification | None = None,
    budget: Budget = ENOUGH, *, prefix: bool = True,
) -> Judgement:  # fmt: skip
    """Judge one isolation level; `prefix` asks for the longest good prefix too."""
    if model not in MODELS:
        raise ValueError(f"no isolation level '{model}'; there are {', '.join(MODELS)}")
    chosen = check(specification or SPECIFICATIONS["rw-register"], history)
    answer = _answer(history, model, chosen, budget)
    if answer.verdict == HOLDS:
        return Judgement(model, HOLDS, prefix=returned(history))

    def probe(trial: Sequence[Operation]) -> str:
        return verdict(trial, model, chosen)

    longest = longest_prefix(history, probe) if prefix else 0
    if answer.verdict == UNKNOWN:
        return Judgement(model, UNKNOWN, reason=answer.reason, prefix=longest)
    witness, done = explain(history, probe, answer.core)
    told = f"{answer.reason}: {names(history, witness)}" + ("" if done else " (perhaps more than needed)")
    return Judgement(model, VIOLATED, witness, told, prefix=longest)


def verdict(history: Sequence[Operation], model: str, specification: Specification) -> str:
    """The bare verdict."""
    return _answer(history, model, specification, PROBE).verdict


@dataclass(frozen=True)
class _Said:
    verdict: str
    reason: str = ""
    core: tuple[int, ...] = ()


@dataclass
class _Transaction:
    """What a transaction read of others first, key by key, and what it wrote, in order."""

    reads: dict[Hashable, Any] = field(default_factory=dict)
    seen: dict[tuple[Hashable, Any], None] = field(default_factory=dict)
    """All that it read of others: below snapshots, a key may change under a transaction."""
    writes: dict[Hashable, list[Any]] = field(default_factory=dict)
    own: bool = True
    """Whether it saw what it had written itself."""
    repeatable: bool = True
    """Whether it read the same again where nobody of its own wrote."""
    sure: bool = True
    """Whether it surely happened."""


def _transaction(operation: Operation) -> _Transaction:
    found = _Transaction(sure=operation.status == "ok")
    given: Sequence[Sequence[Any]] = steps(operation) if operation.f == "txn" else [_single(operation)]
    for f, name, said in given:
        key, value = frozen(name), frozen(said)
        if f in WRITES:
            found.writes.setdefault(key, []).append(value)
        elif operation.status == "ok":  # of others nobody knows what they read
            if key in found.writes:
                found.own &= found.writes[key][-1] == value
            else:
                found.repeatable &= found.reads.setdefault(key, value) == value
                found.seen[key, value] = None
    return found


def _single(operation: Operation) -> tuple[str, Any, Any]:
    read = operation.f == "read"
    return ("r" if read else "w", operation.key, operation.result if read else operation.value)


def _answer(history: Sequence[Operation], model: str, specification: Specification, budget: Budget) -> _Said:
    transactions = {i: _transaction(item) for i, item in enumerate(history) if item.status != "fail"}
    if broken := next(_impossible(history, transactions, specification, model), None):
        return _Said(VIOLATED, *broken)
    if model == "read-uncommitted":
        return _Said(HOLDS)
    if model == "read-committed":
        return _committed(history, transactions, specification, budget)
    return _searched(history, transactions, model, specification, budget)


Broken = tuple[str, tuple[int, ...]]


def _impossible(
    history: Sequence[Operation], transactions: dict[int, _Transaction], specification: Specification, model: str
) -> Iterator[Broken]:
    """Reads that the level forbids whatever the order."""
    last: dict[Hashable, set[Any]] = {}
    inner: dict[tuple[Hashable, Any], int] = {}
    author: dict[tuple[Hashable, Any], set[int]] = {}
    for i, item in transactions.items():
        for key, values in item.writes.items():
            for value in values:
                author.setdefault((key, value), set()).add(i)
            last.setdefault(key, set()).add(values[-1])
            inner |= {(key, value): i for value in values[:-1]}
    failed = {
        (key, value): i
        for i, operation in enumerate(history) if operation.status == "fail"
        for key, values in _transaction(operation).writes.items() for value in values
    }  # fmt: skip
    strict = model != "read-uncommitted"
    for i, item in transactions.items():
        if not item.own:
            yield "internal", (i,)
        if not item.repeatable and model not in MODELS[:2]:
            yield "non-repeatable-read", (i,)
        for key, value in item.seen:
            mine = value in item.writes.get(key, ()) and author.get((key, value)) == {i}
            if mine:  # read before it was written
                yield "thin-air-read", (i,)
            if mine or value == specification.held(key) or value in last.get(key, ()):
                continue
            if (key, value) in inner:
                if strict:
                    yield "intermediate-read", (inner[key, value], i)
            elif (key, value) not in failed:
                yield "thin-air-read", (i,)
            elif strict:
                yield "dirty-read", (failed[key, value], i)


def _committed(
    history: Sequence[Operation], transactions: dict[int, _Transaction], specification: Specification, budget: Budget
) -> _Said:
    """No circle of reads. Where a value has two authors, nobody knows who was read: then only an order helps."""
    author = _authors(transactions, specification)
    if author is None:
        steady = all(item.repeatable for item in transactions.values())
        if steady and _searched(history, transactions, "snapshot-isolation", specification, budget).verdict == HOLDS:
            return _Said(HOLDS)
        return _Said(UNKNOWN, "a value written twice to one key, or there at first, hides who was read")
    edges = {
        (author[key, value], i)
        for i, item in transactions.items() for key, value in item.seen
        if (key, value) in author and author[key, value] != i
    }  # fmt: skip
    cycle = short_cycle(len(history), sorted(edges))
    return _Said(VIOLATED, "G1c", tuple(cycle)) if cycle else _Said(HOLDS)


def _searched(
    history: Sequence[Operation], transactions: dict[int, _Transaction], model: str, specification: Specification,
    budget: Budget,
) -> _Said:  # fmt: skip
    """Those that share no key and no process, not even by a detour, never matter to each other: they are judged apart.

    Without sessions, processes bind nothing.
    """
    doubt: _Said | None = None
    bound = session_order(history) if model in SESSIONS else []
    for kept in _apart(history, transactions, bound):
        few = {i: transactions[i] for i in kept}
        author = _authors(few, specification)
        if author is None or model == "strict-serializable":
            said = _by_state(history, few, model, specification, budget)
        else:
            said = _by_order(few, model, specification, author, bound, budget)
        if said.verdict == VIOLATED:
            return said
        doubt = said if said.verdict == UNKNOWN else doubt
    return doubt or _Said(HOLDS)


def _apart(
    history: Sequence[Operation], transactions: dict[int, _Transaction], bound: Sequence[Edge]
) -> Iterator[list[int]]:  # fmt: skip
    edges = list(bound)
    toucher: dict[Hashable, int] = {}
    for i, item in transactions.items():
        edges += [(toucher.setdefault(key, i), i) for key in (*item.reads, *item.writes)]
    groups: dict[int, list[int]] = {}
    label = components(len(history), [*edges, *((head, tail) for tail, head in edges)]).tolist()
    for i in transactions:
        groups.setdefault(label[i], []).append(i)
    return iter(groups.values())


def _authors(
    transactions: dict[int, _Transaction], specification: Specification
) -> dict[tuple[Hashable, Any], int] | None:
    """Who wrote what; None where that cannot be told from the value."""
    author: dict[tuple[Hashable, Any], int] = {}
    for i, item in transactions.items():
        for key, values in item.writes.items():
            for value in values:
                if (key, value) in author or value == specification.held(key):
                    return None
                author[key, value] = i
    return author


def _by_state(
    history: Sequence[Operation], transactions: dict[int, _Transaction], model: str, specification: Specification,
    budget: Budget,
) -> _Said:  # fmt: skip
    """An order by trying: what comes next must find the registers as it read them."""
    kept = sorted(transactions, key=lambda i: history[i].invoke)
    operations = [history[i] for i in kept]
    owner, follows = list(range(len(kept))), [-1] * len(kept)
    if model in SESSIONS:
        owner, follows = owners(operations)
    if model in SNAPSHOTS:
        found = search(*_snapshots(history, transactions, kept, specification, owner, follows), budget)
    else:
        strict = model == "strict-serializable"
        allowed = by_time(operations) if strict else by_process(operations, owner, follows)
        found = search(operations, specification, allowed, budget)
    if found.order is not None:
        return _Said(HOLDS)
    if found.exhausted:
        return _Said(UNKNOWN, f"undecided after {found.nodes:,} steps")
    return _Said(VIOLATED, _NO_ORDER[model], tuple(kept))


Edge = tuple[int, int]
Choice = tuple[tuple[Edge, ...], tuple[Edge, ...]]
"""One of two sets of edges holds."""


def _by_order(
    transactions: dict[int, _Transaction], model: str, specification: Specification,
    author: dict[tuple[Hashable, Any], int], bound: Sequence[Edge], budget: Budget,
) -> _Said:  # fmt: skip
    """Who was read is known, so what must come before what is, but for choices; what rules one out makes the other.

    With snapshots a transaction is two points, its beginning and its commit; else one.
    """
    read = {author.get(place) for item in transactions.values() for place in item.reads.items()}
    kept = [i for i, item in transactions.items() if item.sure or i in read]
    wide = 2 if model in SNAPSHOTS else 1
    begin = {i: wide * at for at, i in enumerate(kept)}
    commit = {i: wide * at + wide - 1 for at, i in enumerate(kept)}
    sure: list[Edge] = [(begin[i], commit[i]) for i in kept if wide == 2]
    # Who is not kept never returned, and nothing of its session comes after it.
    sure += [(commit[a], begin[b]) for a, b in bound if a in commit and b in begin]
    choices: list[Choice] = []
    writers: dict[Hashable, list[int]] = {}
    for i in kept:
        for key in transactions[i].writes:
            writers.setdefault(key, []).append(i)
    for i in kept:
        for key, value in transactions[i].reads.items():
            source = author.get((key, value))
            others = [other for other in writers.get(key, ()) if other not in (i, source)]
            if source is None:
                sure += [(begin[i], commit[other]) for other in others]
                continue
            sure.append((commit[source], begin[i]))
            choices += [
                (((commit[o], begin[source]),), ((commit[source], begin[o]), (begin[i], commit[o]))) for o in others
            ]
    if wide == 2:
        pairs = [pair for own in writers.values() for pair in combinations(own, 2)]
        choices += [(((commit[a], begin[b]),), ((commit[b], begin[a]),)) for a, b in pairs]
    found = _settled(wide * len(kept), sure, choices, max(budget.nodes // 100, 10))
    if found is None:
        return _Said(UNKNOWN, f"undecided after {max(budget.nodes // 100, 10):,} choices")
    return _Said(HOLDS) if found else _Said(VIOLATED, _NO_ORDER[model], tuple(kept))


class _Before:
    """What comes after each point, as bits, closed under "and so on"."""

    def __init__(self, after: list[int]) -> None:
        self.after = after

    def add(self, edge: Edge) -> bool:
        """Whether it fits."""
        tail, head = edge
        if not self.allows(edge):
            return False
        if not self.after[tail] >> head & 1:
            more = self.after[head] | 1 << head
            for point, later in enumerate(self.after):
                if point == tail or later >> tail & 1:
                    self.after[point] = later | more
        return True

    def allows(self, edge: Edge) -> bool:
        """Whether the other way round is not known."""
        tail, head = edge
        return tail != head and not self.after[head] >> tail & 1


def _settled(points: int, sure: Sequence[Edge], choices: Sequence[Choice], most: int) -> bool | None:
    """Whether all choices can be made without a circle; None after so many guesses."""
    known = [0] * points
    followers = successors(sure)
    try:
        for point in TopologicalSorter(followers).static_order():  # what comes after a point is visited before it
            for later in followers.get(point, ()):
                known[point] |= known[later] | 1 << later
    except CycleError:
        return False
    stack: list[tuple[list[int], list[Choice], int]] = [(known, list(choices), 0)]
    guesses = 0
    while stack:
        after, left, guess = stack.pop()
        now = _Before(list(after))
        if guess:
            stack.append((after, left, guess - 1))
            taken = left[0][2 - guess]
            if not all(now.add(edge) for edge in taken):
                continue
            left = left[1:]
        rest = _forced(now, left)
        if rest is None:
            continue
        if not rest:
            return True
        guesses += 1
        if guesses > most:
            return None
        stack.append((now.after, rest, 2))
    return False


def _forced(order: _Before, choices: list[Choice]) -> list[Choice] | None:
    """The choices that are still open once all that can be made for certain are; None where one cannot be made."""
    while True:
        open_ones: list[Choice] = []
        for choice in choices:
            able = [all(map(order.allows, edges)) for edges in choice]
            if not any(able):
                return None
            if all(able):
                open_ones.append(choice)
            elif not all(order.add(edge) for edge in choice[able.index(True)]):
                return None
        if len(open_ones) == len(choices):
            return open_ones
        choices = open_ones


def _snapshots(
    history: Sequence[Operation],
    transactions: dict[int, _Transaction],
    kept: Sequence[int],
    specification: Specification,
    owner: Sequence[int],
    follows: Sequence[int],
) -> tuple[list[Operation], Specification, Next]:  # fmt: skip
    """Every transaction as two operations: a beginning, which reads, and a commit, which writes.

    The state is the last author of each key, and for each transaction that has begun, who that was for the keys that
    it will write: if it is somebody else at the commit, two that overlap wrote one key.
    """
    halves: list[Operation] = []
    for i in kept:
        halves += [history[i]._replace(f=f, value=i, result=None, key=None) for f in ("begin", "commit")]
    written = {i: {key: values[-1] for key, values in item.writes.items()} for i, item in transactions.items()}

    def step(state: State, half: Operation) -> tuple[bool, State]:
        authors, running = dict(state[0]), dict(state[1])
        i = half.value
        if half.f == "begin":
            for key, value in transactions[i].reads.items():
                now = written[authors[key]][key] if key in authors else specification.held(key)
                if now != value:
                    return False, state
            running[i] = tuple(authors.get(key, -1) for key in written[i])
        else:
            if running.pop(i) != tuple(authors.get(key, -1) for key in written[i]):
                return False, state
            authors |= dict.fromkeys(written[i], i)
        return True, (tuple(sorted(authors.items(), key=repr)), tuple(sorted(running.items())))

    session = [owner[at // 2] for at in range(len(halves))]
    ends = [2 * follows[at // 2] + 1 if at % 2 == 0 and follows[at // 2] >= 0 else -1 for at in range(len(halves))]
    return halves, replace(specification, initial=((), ()), step=step), by_process(halves, session, ends)
