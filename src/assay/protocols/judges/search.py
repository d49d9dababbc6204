"""The general search for a legal order of operations (Wing and Gong), which remembers where it has been (Lowe).

Two partial orders of the same operations that end in the same state have the same future, so each pair of (operations
done, state) is entered once. An operation without effect that fits now is taken at once: it changes nothing and only
sets others free, so an order that takes it later can be changed into one that takes it now.

- Wing and Gong, Testing and verifying concurrent objects, JPDC 1993.
- Lowe, Testing for linearizability, Concurrency and Computation 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from assay.protocols.judges.judgement import Budget, is_pure
from assay.protocols.judges.specifications import Specification, State
from assay.workloads.histories import Operation

Next = Callable[[int], list[int]]
"""Which operations may come next, given the set of those done (as bits)."""


@dataclass(frozen=True)
class Found:
    """How a search ended."""

    order: tuple[int, ...] | None
    """Positions in a legal order; None: there is none, or the budget ran out."""
    exhausted: bool
    """The budget ran out."""
    nodes: int


def search(
    operations: Sequence[Operation], specification: Specification, candidates: Next, budget: Budget
) -> Found:  # fmt: skip
    """A legal order of all operations that returned, and of those others that help."""
    required = sum(1 << i for i, operation in enumerate(operations) if operation.status == "ok")
    pure = [is_pure(operation) for operation in operations]
    seen: set[tuple[int, Hashable]] = set()
    remembered = 0
    order: list[int] = []

    def ways(done: int, state: State) -> Iterator[tuple[int, int, State]]:
        options = []
        for i in candidates(done):
            fits, after = specification.step(state, operations[i])
            if fits and pure[i]:
                yield i, done | 1 << i, after
                return
            if fits and (after != state or required >> i & 1):
                options.append((i, done | 1 << i, after))
        # What may never have happened is tried last.
        yield from sorted(options, key=lambda option: not required >> option[0] & 1)

    nodes = 0
    stack = [ways(0, specification.initial)]
    if required == 0:
        return Found((), False, 0)
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if order:
                order.pop()
            continue
        i, done, state = step
        place = (done, state)
        if place in seen:
            continue
        nodes += 1
        remembered += (done.bit_length() >> 3) + 200
        if nodes > budget.nodes or remembered > budget.memory:
            return Found(None, True, nodes)
        seen.add(place)
        order.append(i)
        if done & required == required:
            return Found(tuple(order), False, nodes)
        stack.append(ways(done, state))
    return Found(None, False, nodes)


def by_time(operations: Sequence[Operation]) -> Next:
    """What real time allows: no operation that is not done returned before it began. Sorted by invocation."""
    count = len(operations)
    invoke = [operation.invoke for operation in operations]
    complete = [operation.complete for operation in operations]

    def candidates(done: int) -> list[int]:
        found: list[int] = []
        at = (~done & (done + 1)).bit_length() - 1  # the first that is not done
        bound = float("inf")
        while at < count and invoke[at] <= bound:
            if not done >> at & 1:
                found.append(at)
                bound = min(bound, complete[at])
            at += 1
        return found

    return candidates


def by_process(owner: Sequence[int], follows: Sequence[int]) -> Next:
    """What program order allows, by the owners of operations in the order of their calls: the next one of each, if the
    one that it follows is done.
    """
    queues: dict[int, list[int]] = {}
    for i, process in enumerate(owner):
        queues.setdefault(process, []).append(i)
    rows = list(queues.values())

    def candidates(done: int) -> list[int]:
        found: list[int] = []
        for row in rows:
            low, high = 0, len(row)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if done >> row[middle] & 1 else (low, middle)
            if low < len(row) and (follows[row[low]] < 0 or done >> follows[row[low]] & 1):
                found.append(row[low])
        return found

    return candidates
