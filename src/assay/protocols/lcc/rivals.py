"""What people use today to say what a history broke: the rivals of the lattice, on histories of registers.

Each takes a history and tells which of the judged models it breaks, and how many judges were asked. A *flat* catalogue
asks every model's judge, one after another. A *linearizability* checker (Knossos, Porcupine) asks one. A search for
*cycles* of dependencies (Elle, for registers, with its assumptions on keys switched on) knows two: with the order of
each process sequential consistency, with real time linearizability.

>>> stale = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
...     Operation(0, "write", "x", 2, None, 2.0, 3.0),
...     Operation(1, "read", "x", None, 1, 4.0, 5.0),
... ]
>>> {name: sorted(method(stale).broken) for name, method in METHODS.items()}["cycles"]
['linearizable']
>>> [(name, method(stale).asked) for name, method in METHODS.items()]
[('lattice', 2), ('flat', 10), ('linearizability', 1), ('cycles', 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from typing import Any

from assay.protocols.judges import specifications
from assay.protocols.judges.lattice import STRONGER, judge, strongest
from assay.workloads.histories import Operation

Edge = tuple[int, int]


@dataclass(frozen=True)
class Told:
    """What a method says of a history."""

    broken: frozenset[str]
    asked: int
    """How many models it judged by looking at the history."""


def lattice(history: Sequence[Operation]) -> Told:
    """Climb the order of models from the top: what a stronger one gives, a weaker one has for free."""
    judgements = strongest(history).judgements
    broken = frozenset(one.model for one in judgements if one.verdict == "violated")
    return Told(broken, sum(not one.reason.startswith("as it is ") for one in judgements))


def flat(history: Sequence[Operation]) -> Told:
    """Every model by its own judge."""
    guess = specifications.guess(history)
    judged = {model: judge(history, model, guess, prefix=False) for model in STRONGER}
    return Told(frozenset(model for model, found in judged.items() if found.verdict == "violated"), len(judged))


def linearizability(history: Sequence[Operation]) -> Told:
    """Linearizable or not, and nothing else."""
    found = judge(history, "linearizable", specifications.guess(history))
    return Told(frozenset({"linearizable"} if found.verdict == "violated" else ()), 1)


def cycles(history: Sequence[Operation]) -> Told:
    """A cycle of dependencies and process order breaks sequential consistency; one with real time linearizability."""
    together = list(_follow(history, lambda a, b: a.process == b.process and a.invoke < b.invoke))
    in_time = list(_follow(history, lambda a, b: a.complete < b.invoke))
    # Elle infers the order of a key's values from the same order that the model promises, key by key.
    sequential = _cyclic([*together, *_dependencies(history, together)])
    linear = sequential or _cyclic([*in_time, *_dependencies(history, in_time)])
    return Told(frozenset(["sequential"] * sequential + ["linearizable"] * linear), 2)


def _follow(history: Sequence[Operation], before: Callable[[Operation, Operation], bool]) -> Iterator[Edge]:
    for a, b in permutations(range(len(history)), 2):
        if before(history[a], history[b]):
            yield a, b


def _value(operation: Operation) -> Any:
    return operation.value if operation.f == "write" else operation.result


def _dependencies(history: Sequence[Operation], order: Sequence[Edge]) -> Iterator[Edge]:
    """Who wrote what somebody read (wr), who wrote the next value (ww), and who replaced what somebody read (rw)."""
    writer = {(one.key, one.value): place for place, one in enumerate(history) if one.f == "write"}
    users: dict[tuple[Any, Any], list[int]] = {}
    for place, one in enumerate(history):
        users.setdefault((one.key, _value(one)), []).append(place)
        if one.f == "read" and (one.key, one.result) in writer:
            yield writer[one.key, one.result], place
    later = {
        (key, None, value) for key, value in writer
    }  # what was there at first was replaced by all that was written
    for a, b in order:
        one, other = history[a], history[b]
        if one.key == other.key and _value(one) != _value(other):
            later.add((one.key, _value(one), _value(other)))
    for key, value, after in later:
        if (key, after) in writer:
            for place in users.get((key, value), ()):
                if place != writer[key, after]:
                    yield place, writer[key, after]


def _cyclic(edges: Sequence[Edge]) -> bool:
    before: dict[int, set[int]] = {}
    for a, b in edges:
        before.setdefault(b, set()).add(a)
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return True
    return False


METHODS: dict[str, Callable[[Sequence[Operation]], Told]] = {
    "lattice": lattice, "flat": flat, "linearizability": linearizability, "cycles": cycles,
}  # fmt: skip
