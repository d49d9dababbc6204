"""All small executions: who wrote, who looked when, what each look saw and in which order. The lattice's judge.

An execution has two observers, who write and look, and one more process that only writes. A look sees some of the
writes (its view) and puts them in an order, or does not. What a process had seen when it wrote makes the causal order,
a directed acyclic graph over all events. Each execution either has a property or has not, and that is decided here
from the execution alone, without the lattice's rules. So the rules can be wrong, and :func:`census` would show it.

>>> counted = census(events=4)
>>> counted.executions, counted.pairs, counted.disagreements
(2385, 853776, 0)
>>> census(events=3).disagreements > 0  # three events are too few to tell all configurations apart
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations, product

import numpy as np
import numpy.typing as npt

from assay.protocols.judges import lattice

OBSERVERS = 2
WRITER = OBSERVERS  # the process that never looks
Order = tuple[int, ...] | None


@dataclass(frozen=True)
class Shape:
    """Who does what: events in program order, process after process. `objects[e]` is None for a look."""

    process: tuple[int, ...]
    objects: tuple[int | None, ...]

    @property
    def writes(self) -> list[int]:
        """The events that write."""
        return [event for event, written in enumerate(self.objects) if written is not None]

    @property
    def looks(self) -> list[int]:
        """The events that look."""
        return [event for event, written in enumerate(self.objects) if written is None]

    def before(self, event: int) -> list[int]:
        """The same process's earlier events."""
        return [other for other in range(event) if self.process[other] == self.process[event]]


@dataclass(frozen=True)
class Execution:
    """A shape, the view of every look (a set of writes as bits), and the order each look puts it in."""

    shape: Shape
    views: tuple[int, ...]
    past: tuple[int, ...]
    """Of every event: all events that happened before it, as bits."""
    orders: tuple[Order, ...]


def shapes(events: int) -> Iterator[Shape]:
    """All shapes of so many events, up to renaming the objects and the observers."""
    for split in product(range(events + 1), repeat=OBSERVERS):
        silent = events - sum(split)
        if silent < 0 or split[0] < split[1]:  # the observers are alike: the first one does as much as the second
            continue
        process = (0,) * split[0] + (1,) * split[1] + (WRITER,) * silent
        for kinds in product((None, 0, 1), repeat=events):
            if _canonical(kinds) and all(kinds[at] is not None for at in range(events - silent, events)):
                yield Shape(process, kinds)


def _canonical(kinds: tuple[int | None, ...]) -> bool:
    written = [kind for kind in kinds if kind is not None]
    return bool(written) and written[0] == 0 and len(written) < len(kinds)


def executions(events: int) -> Iterator[Execution]:
    """All executions of so many events."""
    for shape in shapes(events):
        looks, writes = shape.looks, sum(1 << write for write in shape.writes)
        choices = [view for view in range(1 << events) if view & ~writes == 0]
        for views in product(choices, repeat=len(looks)):
            past = _past(shape, views)
            if past is not None:
                for orders in product(*(_orders(view) for view in views)):
                    yield Execution(shape, views, past, orders)


@cache
def _orders(view: int) -> tuple[Order, ...]:
    seen = bits(view)
    return (None, *permutations(seen)) if len(seen) > 1 else (seen,)


@cache
def bits(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set.

    >>> bits(0b1010)
    (1, 3)
    """
    return tuple(at for at in range(mask.bit_length()) if mask >> at & 1)


def _past(shape: Shape, views: tuple[int, ...]) -> tuple[int, ...] | None:
    """What happened before each event; None where something would have happened before itself."""
    direct = [sum(1 << other for other in shape.before(event)) for event in range(len(shape.process))]
    for look, view in zip(shape.looks, views, strict=True):
        direct[look] |= view
    past = list(direct)
    for _ in past:
        for event in range(len(past)):
            for cause in bits(past[event]):
                past[event] |= past[cause]
    return None if any(past[event] >> event & 1 for event in range(len(past))) else tuple(past)


# ------------------------------------------------------------------------------------------ what it satisfies


def signature(execution: Execution) -> frozenset[str]:
    """All properties that the execution has."""
    closed = closure_properties(execution.shape, execution.views, execution.past)
    return closed | order_properties(execution) | kept_orders(execution)


def kept_orders(execution: Execution) -> frozenset[str]:
    """The parts of causality that no order inverts: wherever cause and effect are both seen, the cause is first."""
    shape = execution.shape
    view_of = dict(zip(shape.looks, execution.views, strict=True))
    kept = dict.fromkeys(("keeps-mw", "keeps-wfr", "keeps-object", "keeps-mono"), True)
    for look, order in zip(shape.looks, execution.orders, strict=True):
        known = 0  # what the observer had seen before
        for before in shape.before(look):
            known |= view_of.get(before, 0)
        for first, second in combinations(order or (), 2):
            kept["keeps-mono"] &= not (known >> second & 1 and not known >> first & 1)
            earlier = shape.before(first)  # `second` stands behind `first`: wrong if it was among its causes
            kept["keeps-mw"] &= second not in earlier
            kept["keeps-wfr"] &= not any(look in view_of and view_of[look] >> second & 1 for look in earlier)
            kept["keeps-object"] &= second not in _causes_on_object(shape, execution.past, first)
    return frozenset(name for name, holds in kept.items() if holds)


@cache
def closure_properties(shape: Shape, views: tuple[int, ...], past: tuple[int, ...]) -> frozenset[str]:
    """Under which relations every view is closed."""
    needed = dict.fromkeys(lattice.RELATIONS, True)
    view_of = dict(zip(shape.looks, views, strict=True))
    for look, view in view_of.items():
        for earlier in shape.before(look):
            if earlier in view_of:
                needed["mono"] &= not view_of[earlier] & ~view
            else:
                needed["own"] &= bool(view >> earlier & 1)
        for write in bits(view):
            for earlier in shape.before(write):
                if earlier in view_of:
                    needed["wfr"] &= not view_of[earlier] & ~view
                else:
                    needed["mw"] &= bool(view >> earlier & 1)
            needed["object"] &= all(view >> cause & 1 for cause in _causes_on_object(shape, past, write))
    return frozenset(name for name, holds in needed.items() if holds)


def _causes_on_object(shape: Shape, past: tuple[int, ...], write: int) -> list[int]:
    return [cause for cause in bits(past[write]) if shape.objects[cause] == shape.objects[write]]


def order_properties(execution: Execution) -> frozenset[str]:
    """How far the observers' orders agree, and what they refine."""
    shape, orders = execution.shape, execution.orders
    if any(order is None for order in orders):
        return frozenset()
    ordered = [order for order in orders if order is not None]
    observers = [shape.process[look] for look in shape.looks]
    pairs = [set(combinations(order, 2)) for order in ordered]
    own = [set().union(*(p for p, o in zip(pairs, observers, strict=True) if o == who)) for who in set(observers)]
    if not all(_acyclic(one) for one in own):
        return frozenset()
    found = {"local", *(["appends"] if _appending(ordered, observers) else [])}
    everything = set().union(*pairs)
    if _acyclic({(a, b) for a, b in everything if shape.objects[a] == shape.objects[b]}):
        found.add("per-object")
        if _acyclic(everything):
            found.add("total")
            if _prefixes(ordered):
                found.add("single")
    return frozenset(found | _refined(execution, ordered))


def _acyclic(pairs: set[tuple[int, int]]) -> bool:
    """Whether the pairs fit into one order."""
    left = set(pairs)
    while left:
        sources = {a for a, _ in left} - {b for _, b in left}
        if not sources:
            return False
        left = {pair for pair in left if pair[0] not in sources}
    return True


def _appending(orders: list[tuple[int, ...]], observers: list[int]) -> bool:
    """Whether every observer's order begins with what it was before."""
    last: dict[int, tuple[int, ...]] = {}
    for order, observer in zip(orders, observers, strict=True):
        before = last.get(observer, ())
        if order[: len(before)] != before:
            return False
        last[observer] = order
    return True


def _prefixes(orders: list[tuple[int, ...]]) -> bool:
    """Whether all are prefixes of the longest."""
    longest = max(orders, key=len)
    return all(longest[: len(order)] == order for order in orders)


def _refined(execution: Execution, orders: list[tuple[int, ...]]) -> set[str]:
    """An order refines causality if each of its writes, and the look itself, comes after all of its causes."""
    shape, past = execution.shape, execution.past
    writes = sum(1 << write for write in shape.writes)
    by_writer = by_object = by_cause = True
    for look, order in zip(shape.looks, orders, strict=True):
        placed = 0
        for write in order:
            by_writer &= all(placed >> cause & 1 for cause in shape.before(write) if writes >> cause & 1)
            by_object &= all(placed >> cause & 1 for cause in _causes_on_object(shape, past, write))
            by_cause &= not past[write] & writes & ~placed
            placed |= 1 << write
        by_cause &= not past[look] & writes & ~placed
    held = {"refines-writer": by_writer, "refines-object": by_object, "refines-causality": by_cause}
    return {name for name, holds in held.items() if holds}


# --------------------------------------------------------------------------------------------------- the census


@dataclass(frozen=True)
class Census:
    """What all executions up to a size say about the lattice's rules."""

    executions: int
    signatures: frozenset[frozenset[str]]
    pairs: int
    """Pairs of configurations (reader, store) that were compared."""
    disagreements: int
    """Pairs on which the rules and the executions differ."""
    readable: int
    """Pairs in which the reader may read the store's data."""
    split: dict[str, bool]
    """Of each ordering: whether readability splits by axis for all stores that order so."""
    refines: dict[str, bool]
    """Of each ordering: whether there is a part of causality that it inverts in no execution."""
    witnesses: tuple[tuple[lattice.Configuration, lattice.Configuration], ...]
    """(reader, store) that each axis for itself would refuse, and no execution contradicts."""


@cache
def signatures(events: int) -> tuple[int, frozenset[frozenset[str]]]:
    """How many executions of at most so many events there are, and which sets of properties they have."""
    count, found = 0, set()
    for size in range(2, events + 1):
        for execution in executions(size):
            count += 1
            found.add(signature(execution))
    return count, frozenset(found)


def census(events: int = 5) -> Census:
    """Compare the lattice's order with inclusion among all executions, on every pair of configurations."""
    count, found = signatures(events)
    points = lattice.configurations()
    allowed = np.array([[lattice.axes(point) <= has for has in found] for point in points], np.float32)
    # One entry for each store (row) and reader: whether nothing that the store allows breaks the reader's promise.
    included = allowed @ (1 - allowed).T == 0
    decided = _inclusions([point.demands for point in points])
    by_axis = _inclusions([lattice.axes(point) for point in points])
    coupled = included != by_axis
    split = {
        str(ordering): not coupled[[point.ordering == ordering for point in points]].any()
        for ordering in lattice.orderings()
    }
    witnesses = tuple((points[reader], points[store]) for store, reader in np.argwhere(coupled).tolist())
    return Census(
        count, found, included.size, int((included != decided).sum()), int(included.sum()), split, _refining(found),
        witnesses,
    )  # fmt: skip


def _inclusions(demands: list[frozenset[str]]) -> npt.NDArray[np.bool_]:
    """One entry for each store (row) and reader: whether the reader asks for no more than the store gives."""
    names = sorted(frozenset().union(*demands))
    given = np.array([[name in one for name in names] for one in demands], np.float32)
    missing: npt.NDArray[np.bool_] = (1 - given) @ given.T > 0
    return ~missing


def _refining(found: frozenset[frozenset[str]]) -> dict[str, bool]:
    refines = {}
    for ordering in lattice.orderings():
        demands = lattice.axes(lattice.Configuration(ordering=ordering))
        kept = [{name for name in has if name.startswith("keeps-")} for has in found if demands <= has]
        refines[str(ordering)] = bool(set.intersection(*kept))
    return refines
