"""Named consistency models by their own definitions, as predicates on executions. They know nothing of the lattice.

Session guarantees after Terry et al. (PDIS 1994); PRAM after Lipton and Sandberg (1988); causal memory after Ahamad et
al. (1995); causal convergence after Bouajjani et al. (POPL 2017); processor consistency after Goodman (1989);
sequential consistency after Lamport (1979); the form with visibility and arbitration after Viotti and Vukolić (2016).

>>> from assay.protocols.lcc.executions import Execution, Shape
>>> shape = Shape(process=(0, 0), objects=(0, None))  # one process writes and then looks
>>> blind = Execution(shape, views=(0,), past=(0, 1), orders=((),))
>>> read_your_writes(blind), monotonic_reads(blind)
(False, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

from assay.protocols.lcc.executions import Execution, bits

Definition = Callable[[Execution], bool]


def _looks(execution: Execution) -> list[tuple[int, int, frozenset[int]]]:
    """(event, observer, what it saw) of every look."""
    shape = execution.shape
    return [
        (look, shape.process[look], frozenset(bits(view)))
        for look, view in zip(shape.looks, execution.views, strict=True)
    ]


def _written(execution: Execution, process: int) -> list[int]:
    """What a process wrote, in program order."""
    return [write for write in execution.shape.writes if execution.shape.process[write] == process]


def anything(execution: Execution) -> bool:
    """No promise."""
    return True


def read_your_writes(execution: Execution) -> bool:
    """A session sees what it has written."""
    return all(
        {write for write in _written(execution, observer) if write < look} <= seen
        for look, observer, seen in _looks(execution)
    )


def monotonic_reads(execution: Execution) -> bool:
    """A session does not lose sight of what it has seen."""
    looks = _looks(execution)
    return all(
        seen <= later for look, who, seen in looks for after, other, later in looks if who == other and look < after
    )


def monotonic_writes(execution: Execution) -> bool:
    """Of each session's writes, a prefix is seen."""
    return all(
        seen & set(own) == set(own[: len(seen & set(own))])
        for _, _, seen in _looks(execution)
        for own in (_written(execution, process) for process in set(execution.shape.process))
    )


def writes_follow_reads(execution: Execution) -> bool:
    """Who sees a write sees what its session had seen before writing it."""
    looks, process = _looks(execution), execution.shape.process
    return all(
        known <= seen
        for _, _, seen in looks
        for write in seen
        for look, who, known in looks
        if who == process[write] and look < write
    )


def pram(execution: Execution) -> bool:
    """Each observer applies the writes one by one, each writer's in the order written, its own at once."""
    return all(_applied(execution, observer, _in_program_order) for observer in _observers(execution))


def _observers(execution: Execution) -> set[int]:
    return {observer for _, observer, _ in _looks(execution)}


def _in_program_order(execution: Execution, sequence: tuple[int, ...]) -> bool:
    process = execution.shape.process
    return all(process[a] != process[b] or a < b for at, a in enumerate(sequence) for b in sequence[at + 1 :])


def _in_causal_order(execution: Execution, sequence: tuple[int, ...]) -> bool:
    return _extends(sequence, execution.past)


def _applied(execution: Execution, observer: int, rule: Callable[[Execution, tuple[int, ...]], bool]) -> bool:
    """Whether one sequence of all writes, lawful by the rule, explains the observer: each look shows a beginning of it

    that is no shorter than before and holds all that the observer had written.
    """
    for sequence in _arbitrations(execution):
        if not rule(execution, sequence):
            continue
        length = 0
        for (look, who, seen), order in zip(_looks(execution), execution.orders, strict=True):
            if who != observer:
                continue
            own = {write for write in _written(execution, observer) if write < look}
            if order is None or len(order) < length or sequence[: len(order)] != order or not own <= seen:
                break
            length = len(order)
        else:
            return True
    return False


def _arbitrations(execution: Execution) -> Iterator[tuple[int, ...]]:
    """All total orders of the writes."""
    yield from permutations(execution.shape.writes)


def _follows(order: tuple[int, ...] | None, arbitration: tuple[int, ...]) -> bool:
    """Whether a look's order is the arbitration, as far as it sees."""
    return order is not None and order == tuple(write for write in arbitration if write in order)


def _extends(order: tuple[int, ...], past: tuple[int, ...]) -> bool:
    """Whether no write stands before one of its causes."""
    return not any(past[first] >> second & 1 for at, first in enumerate(order) for second in order[at:])


def convergent(execution: Execution) -> bool:
    """There is one arbitration, and every look orders by it what it sees."""
    return any(
        all(_follows(order, arbitration) for order in execution.orders) for arbitration in _arbitrations(execution)
    )


def causal(execution: Execution) -> bool:
    """Every look sees all writes that happened before it, and with each write those that happened before that."""
    writes = sum(1 << write for write in execution.shape.writes)
    return all(
        execution.past[look] & writes == view for look, view in zip(execution.shape.looks, execution.views, strict=True)
    )


def causal_memory(execution: Execution) -> bool:
    """Each observer applies the writes one by one in an order that extends causality, its own at once."""
    return causal(execution) and all(
        _applied(execution, observer, _in_causal_order) for observer in _observers(execution)
    )


def causal_convergent(execution: Execution) -> bool:
    """Causal, with one arbitration for all that extends causality."""
    return causal(execution) and any(
        _extends(arbitration, execution.past) and all(_follows(order, arbitration) for order in execution.orders)
        for arbitration in _arbitrations(execution)
    )


def _one_order_per_object(execution: Execution, extending: bool) -> bool:
    """On every object there is an order of its writes which all looks follow."""
    objects = execution.shape.objects
    for one in {objects[write] for write in execution.shape.writes}:
        shown = [None if o is None else tuple(w for w in o if objects[w] == one) for o in execution.orders]
        candidates = permutations([write for write in execution.shape.writes if objects[write] == one])
        if not any(
            all(_follows(order, mine) for order in shown) and (not extending or _extends(mine, execution.past))
            for mine in candidates
        ):
            return False
    return True


def _ordered_by_observer(execution: Execution) -> bool:
    """Every observer orders everything, and always alike."""
    observers = [who for _, who, _ in _looks(execution)]
    return all(
        any(
            all(_follows(o, mine) for o, who in zip(execution.orders, observers, strict=True) if who == observer)
            for mine in _arbitrations(execution)
        )
        for observer in set(observers)
    )


def processor(execution: Execution) -> bool:
    """PRAM, and one order of the writes of each object."""
    return pram(execution) and _one_order_per_object(execution, extending=False)


def coherent(execution: Execution) -> bool:
    """On each object one order of its writes, which extends causality, and no write without those it builds on."""
    past, objects = execution.past, execution.shape.objects
    closed = all(
        cause in seen
        for _, _, seen in _looks(execution)
        for write in seen
        for cause in bits(past[write])
        if objects[cause] == objects[write]
    )
    return closed and _ordered_by_observer(execution) and _one_order_per_object(execution, extending=True)


def consistent_prefix(execution: Execution) -> bool:
    """There is one sequence of all writes, and every look shows a beginning of it."""
    return any(
        all(order is not None and arbitration[: len(order)] == order for order in execution.orders)
        for arbitration in _arbitrations(execution)
    )


def sequential(execution: Execution) -> bool:
    """There is one sequence of all events, in program order, and every look shows exactly the writes before it."""
    shape = execution.shape
    orders = dict(zip(shape.looks, execution.orders, strict=True))
    for sequence in permutations(range(len(shape.process))):
        place = {event: at for at, event in enumerate(sequence)}
        if all(place[a] < place[b] for b in place for a in shape.before(b)) and all(
            tuple(event for event in sequence[: place[look]] if event not in orders) == order
            for look, order in orders.items()
        ):
            return True
    return False


DEFINITIONS: dict[str, Definition] = {
    "none": anything,
    "read-your-writes": read_your_writes,
    "monotonic-reads": monotonic_reads,
    "monotonic-writes": monotonic_writes,
    "writes-follow-reads": writes_follow_reads,
    "pram": pram,
    "convergent": convergent,
    "coherent": coherent,
    "processor": processor,
    "causal": causal,
    "causal-memory": causal_memory,
    "causal-convergent": causal_convergent,
    "consistent-prefix": consistent_prefix,
    "sequential": sequential,
}
"""By name, as in `lattice.NAMED`. Linearizability is missing: no execution without a clock can tell it from sequential
consistency, which is the single-observer boundary."""
