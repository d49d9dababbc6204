"""Reads and writes as arrays: who wrote what everyone read. What the causal judges and the sessions work on.

Operations that matter are numbered process by process, in program order: an operation is (process, place in it), and
`order` leads back to the history. The reads-from relation is read off the values, so every value may be written to a
key only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.protocols.judges.judgement import effective, frozen, owners
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


def reads_from(history: Sequence[Operation], initial: Any = None) -> ReadsFrom:
    """Find who wrote what everyone read.

    A write that never returned is there only if someone read it.

    Raises:
        Ambiguous: a value written twice to one key, or operations other than read, write and cas.

    """
    session, follows = owners(history)
    nodes = sorted(_happened(history), key=lambda i: (session[i], history[i].invoke))
    keys: dict[Any, int] = {}
    writer: dict[tuple[int, Any], int] = {}
    key = [keys.setdefault(frozen(history[i].key), len(keys)) for i in nodes]
    for v, i in enumerate(nodes):
        value = _written(history[i])
        if value is _NOTHING:
            continue
        if value == initial:
            raise Ambiguous(f"operation #{i} writes {value!r}, which was there at first: nobody can tell who read it")
        if (key[v], value) in writer:
            raise Ambiguous(f"operations #{nodes[writer[key[v], value]]} and #{i} write the same value to one key")
        writer[key[v], value] = v
    source = [_source(history[i], key[v], writer, initial) for v, i in enumerate(nodes)]
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
