"""Consistency models by their definitions: try every order. Slow, and meant to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from assay.workloads.histories import Operation

Order = Sequence[Operation]
Legal = Callable[[Order], bool]
Lists = dict[Any, tuple[Any, ...]]


def legal_register(order: Order) -> bool:
    values: dict[Any, Any] = {}
    for operation in order:
        now = values.get(operation.key)
        if operation.f == "read" and operation.result != now:
            return False
        if operation.f == "write":
            values[operation.key] = operation.value
        if operation.f == "cas":
            old, new = operation.value
            if operation.status == "ok" and (now == old) != (operation.result is not False):
                return False
            if now == old and operation.result is not False:
                values[operation.key] = new
    return True


def legal_set(order: Order) -> bool:
    held: set[Any] = set()
    for operation in order:
        if operation.f == "read" and set(operation.result) != held:
            return False
        if operation.f == "contains" and operation.result != (operation.value in held):
            return False
        if operation.f == "add":
            held.add(operation.value)
        if operation.f == "remove":
            held.discard(operation.value)
    return True


def legal_queue(order: Order) -> bool:
    held: list[Any] = []
    for operation in order:
        if operation.f == "enqueue":
            held.append(operation.value)
            continue
        got = held.pop(0) if held else None
        if operation.status == "ok" and got != operation.result:
            return False
    return True


def legal_counter(order: Order) -> bool:
    total = 0
    for operation in order:
        if operation.f == "read" and operation.result != total:
            return False
        if operation.f == "add":
            total += operation.value
    return True


def legal_bank(order: Order) -> bool:
    accounts = {"a": 10, "b": 10, "c": 10}
    for operation in order:
        if operation.f == "read":
            if operation.result != accounts:
                return False
        else:
            accounts[operation.value["from"]] -= operation.value["amount"]
            accounts[operation.value["to"]] += operation.value["amount"]
    return True


def legal_lists(order: Order) -> bool:
    lists: dict[Any, list[Any]] = {}
    for operation in order:
        for at, (f, key, value) in enumerate(operation.value):
            if f == "append":
                lists.setdefault(key, []).append(value)
            elif operation.status == "ok" and list(operation.result[at][2]) != lists.get(key, []):
                return False
    return True


def linearizable(history: Order, legal: Legal) -> bool:
    """Some order of all that returned and some of what did not, in which nobody comes before one that had returned."""
    return any(map(legal, _orders(history, Operation.precedes)))


def sequential(history: Order, legal: Legal) -> bool:
    """The same, true to every process instead of to time."""
    return any(map(legal, _orders(history, program_order)))


def serializable(history: Order) -> bool:
    """Some order of transactions, whatever their times and processes."""
    return any(map(legal_lists, _orders(history, lambda a, b: False)))


def read_committed(history: Order) -> bool:
    """Some order of transactions in which each reads, key by key, what any beginning of the order before it left."""
    if not all(sees_its_own(item) for item in history if item.status == "ok"):
        return False
    for order in _orders(history, lambda a, b: False):
        left = _left(order)
        if all(
            any(lists.get(key, ()) == version for lists in left[: at + 1])
            for at, item in enumerate(order) if item.status == "ok"
            for key, version in _of_others(item).items()
        ):  # fmt: skip
            return True
    return False


def read_uncommitted(history: Order) -> bool:
    """Some order of transactions such that whatever is read is, key by key, the beginning of what all of them leave.

    Of what failed, anything may be among it, in one order for all who read it.
    """
    sure = [item for item in history if item.status == "ok"]
    failed = {
        (key, value) for item in history if item.status == "fail" for f, key, value in item.value if f == "append"
    }
    reads = [(key, version) for item in sure for key, version in _of_others(item).items()]
    if not all(map(sees_its_own, sure)) or any(len(set(version)) < len(version) for _, version in reads):
        return False
    if any(k == m and v[: len(w)] != w[: len(v)] for k, v in reads for m, w in reads):
        return False
    valid = [(key, tuple(value for value in version if (key, value) not in failed)) for key, version in reads]
    return any(
        all(_left(order)[-1].get(key, ())[: len(version)] == version for key, version in valid)
        for order in _orders(history, lambda a, b: False)
    )


def _left(order: Order) -> list[Lists]:
    """What the first transactions of an order leave behind: none, one, two, …"""
    found: list[Lists] = [{}]
    for item in order:
        lists = dict(found[-1])
        for f, key, value in item.value:
            if f == "append":
                lists[key] = (*lists.get(key, ()), value)
        found.append(lists)
    return found


def _of_others(transaction: Operation) -> Lists:
    """The version of each key that a transaction read, without what it appended itself."""
    mine = [(key, value) for f, key, value in transaction.value if f == "append"]
    return {
        key: tuple(value for value in version if (key, value) not in mine)
        for f, key, version in transaction.result if f == "r"
    }  # fmt: skip


def snapshot_isolated(history: Order, before: Callable[[Operation, Operation], bool] | None = None) -> bool:
    """Some order of begins and commits: each reads what was committed when it began, and of two that append to one
    key, one begins after the other's commit; nobody begins before the commit of one that must come `before` it.
    """
    sure = [item for item in history if item.status == "ok"]
    maybe = [item for item in history if item.status == "info"]
    return any(
        _snapshots([*sure, *some], {}, {}, before)
        for count in range(len(maybe) + 1)
        for some in combinations(maybe, count)
    )


def _snapshots(
    waiting: Order, running: dict[int, tuple[Operation, Lists]], lists: Lists,
    before: Callable[[Operation, Operation], bool] | None,
) -> bool:  # fmt: skip
    if not waiting and not running:
        return True
    for i, item in enumerate(waiting):
        appends = [
            Operation(0, "txn", None, [["append", key, value]], None, 0.0) for key in lists for value in lists[key]
        ]
        uncommitted = [*waiting, *(other for other, _ in running.values())]
        if before is not None and any(before(other, item) for other in uncommitted):
            continue
        if legal_lists([*appends, item]):
            begun = {**running, id(item): (item, lists)}
            if _snapshots([*waiting[:i], *waiting[i + 1 :]], begun, lists, before):
                return True
    for number, (item, seen) in running.items():
        after = dict(lists)
        for f, key, value in item.value:
            if f == "append":
                after[key] = (*after.get(key, ()), value)
        if all(lists.get(key, ()) == seen.get(key, ()) for key in after if after[key] != lists.get(key)):
            rest = {other: run for other, run in running.items() if other != number}
            if _snapshots(waiting, rest, after, before):
                return True
    return False


def isolation(history: Order) -> dict[str, bool]:
    """Every level of a history of transactions on lists."""
    return {
        "read-uncommitted": read_uncommitted(history),
        "read-committed": read_committed(history),
        "snapshot-isolation": snapshot_isolated(history),
        "strong-session-snapshot-isolation": snapshot_isolated(history, program_order),
        "serializable": serializable(history),
        "strong-session-serializable": sequential(history, legal_lists),
        "strict-serializable": linearizable(history, legal_lists),
    }


def per_key_linearizable(history: Order, legal: Legal) -> set[Any]:
    """The keys whose operations alone have no order that real time allows."""
    return {
        key for key in {item.key for item in history}
        if not linearizable([item for item in history if item.key == key], legal)
    }  # fmt: skip


def _orders(history: Order, before: Callable[[Operation, Operation], bool]) -> Iterator[Order]:
    sure = [operation for operation in history if operation.status == "ok"]
    maybe = [item for item in history if item.status == "info" and item.f not in ("read", "contains")]
    for count in range(len(maybe) + 1):
        for some in combinations(maybe, count):
            yield from _extensions([*sure, *some], before)


def _extensions(items: Order, before: Callable[[Operation, Operation], bool]) -> Iterator[Order]:
    """Every order in which nobody comes before one that must precede it."""
    if not items:
        yield []
    for i, first in enumerate(items):
        rest = [*items[:i], *items[i + 1 :]]
        if not any(before(other, first) for other in rest):
            for order in _extensions(rest, before):
                yield [first, *order]


def program_order(a: Operation, b: Operation) -> bool:
    """A process does one thing after another; nothing comes after what never returned."""
    return a.process == b.process and a.invoke < b.invoke and a.status != "info"


# -------------------------------------------------------------------------------- causal models, sessions


def relations(history: Order) -> tuple[list[Operation], list[set[int]]] | None:
    """Operations that happened (what never returned, only if someone read it), and the causal past of each.

    None: someone read what nobody wrote, or causality has a cycle.
    """
    reads = {(item.key, item.result) for item in history if item.f == "read" and item.status == "ok"}
    nodes = [
        item for item in history
        if item.status == "ok" or (item.status == "info" and item.f == "write" and (item.key, item.value) in reads)
    ]  # fmt: skip
    past: list[set[int]] = [set() for _ in nodes]
    for b, reader in enumerate(nodes):
        for a, other in enumerate(nodes):
            before = program_order(other, reader)
            read = reader.f == "read" and other.f == "write" and (other.key, other.value) == (reader.key, reader.result)
            if before or read:
                past[b].add(a)
        if reader.f == "read" and reader.result is not None and _source(nodes, b) is None:
            return None
    for _ in nodes:
        for b in range(len(nodes)):
            past[b] |= {a for c in past[b] for a in past[c]}
    if any(b in past[b] for b in range(len(nodes))):
        return None
    return nodes, past


def _source(nodes: Order, reader: int) -> int | None:
    key, value = nodes[reader].key, nodes[reader].result
    return next((i for i, o in enumerate(nodes) if o.f == "write" and (o.key, o.value) == (key, value)), None)


def _linear(items: Sequence[int], past: list[set[int]]) -> Iterator[list[int]]:
    """Every order of these that respects causality."""
    if not items:
        yield []
    for i in items:
        rest = [j for j in items if j != i]
        if past[i].isdisjoint(rest):
            for order in _linear(rest, past):
                yield [i, *order]


def _right(nodes: Order, order: Sequence[int], readers: set[int]) -> bool:
    """Whether these readers got what their key holds in this order."""
    held: dict[Any, Any] = {}
    for i in order:
        if nodes[i].f == "write":
            held[nodes[i].key] = nodes[i].value
        elif i in readers and nodes[i].result != held.get(nodes[i].key):
            return False
    return True


def causal(history: Order) -> bool:
    """Every operation's past has an order in which it alone is right."""
    found = relations(history)
    if found is None:
        return False
    nodes, past = found
    return all(any(_right(nodes, order, {i}) for order in _linear([*past[i], i], past)) for i in range(len(nodes)))


def causal_memory(history: Order) -> bool:
    """Every operation's past has an order in which it and all that its process did before are right."""
    found = relations(history)
    if found is None:
        return False
    nodes, past = found
    for i, operation in enumerate(nodes):
        mine = {j for j in past[i] | {i} if nodes[j].process == operation.process}
        if not any(_right(nodes, order, mine) for order in _linear([*past[i], i], past)):
            return False
    return True


def causal_convergent(history: Order) -> bool:
    """One order of everything such that each operation is right in the part of it that is its past."""
    found = relations(history)
    if found is None:
        return False
    nodes, past = found
    return any(
        all(_right(nodes, [j for j in order if j in past[i] or j == i], {i}) for i in range(len(nodes)))
        for order in _linear(range(len(nodes)), past)
    )


def pram(history: Order) -> bool:
    """For every process, an order of all writes and its own reads, true to every process."""
    written = {(item.key, item.value) for item in history if item.f == "write" and item.status != "fail"}
    reads = {(item.key, item.result) for item in history if item.f == "read" and item.status == "ok"}
    if any(value is not None and (key, value) not in written for key, value in reads):
        return False
    nodes = [
        item for item in history
        if item.status == "ok" or (item.status == "info" and item.f == "write" and (item.key, item.value) in reads)
    ]  # fmt: skip
    for process in {item.process for item in nodes}:
        seen = [item for item in nodes if item.f == "write" or item.process == process]
        if not any(map(legal_register, _extensions(seen, program_order))):
            return False
    return True


def session(history: Order, model: str) -> bool:
    """The four guarantees by their sentences."""
    happened = _happened(history)
    if happened is None:
        return False
    nodes, source = happened
    own = [(a, b) for a in range(len(nodes)) for b in range(len(nodes)) if program_order(nodes[a], nodes[b])]
    reads = [i for i in range(len(nodes)) if nodes[i].f == "read"]
    if model == "read-your-writes":
        return not any(
            nodes[w].f == "write" and r in reads and nodes[w].key == nodes[r].key
            and (source[r] is None or (source[r], w) in own)
            for w, r in own
        )  # fmt: skip
    if model == "monotonic-reads":
        return not any(
            (a, b) in own and (b, c) in own and nodes[a].key == nodes[b].key == nodes[c].key
            and source[a] == source[c] != source[b]
            for a in reads for b in reads for c in reads
        ) and not any(
            nodes[a].key == nodes[b].key and (a, b) in own and source[b] is None and source[a] is not None
            for a in reads for b in reads
        )  # fmt: skip
    writes = [i for i in range(len(nodes)) if nodes[i].f == "write"]
    if model == "monotonic-writes":
        known = {(a, b) for a, b in own if a in writes and b in writes}
    else:
        known = {(source[r], w) for r, w in own if r in reads and w in writes and source[r] is not None}
        for _ in nodes:
            known |= {(a, d) for a, b in known for c, d in known if b == c}
    if any(a == b for a, b in known):
        return False
    for earlier, later in own:
        if earlier not in reads or later not in reads or source[earlier] is None:
            continue
        seen = {source[earlier]} | {a for a, b in known if b == source[earlier]}
        for write in seen:
            if nodes[write].key == nodes[later].key and (source[later] is None or (source[later], write) in known):
                return False
    return True


def _happened(history: Order) -> tuple[list[Operation], dict[int, int | None]] | None:
    reads = {(item.key, item.result) for item in history if item.f == "read" and item.status == "ok"}
    nodes = [
        item for item in history
        if item.status == "ok" or (item.status == "info" and item.f == "write" and (item.key, item.value) in reads)
    ]  # fmt: skip
    source = {i: _source(nodes, i) for i, item in enumerate(nodes) if item.f == "read"}
    if any(source[i] is None and nodes[i].result is not None for i in source):
        return None
    return nodes, source


def sees_its_own(transaction: Operation) -> bool:
    """Whether some list could have stood before the transaction such that all its reads are right."""
    keys = {key for _, key, _ in transaction.value}
    for key in keys:
        mine = [value for f, name, value in transaction.value if f == "append" and name == key]
        shown = [
            (list(transaction.result[at][2]), sum(g == "append" and n == key for g, n, _ in transaction.value[:at]))
            for at, (f, name, _) in enumerate(transaction.value) if f == "r" and name == key
        ]  # fmt: skip
        befores = [[value for value in version if value not in mine] for version, _ in shown]
        if any(version != [*befores[0], *mine[:done]] for version, done in shown):
            return False
    return True
