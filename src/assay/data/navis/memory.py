"""What an index holds in memory: codes, places, changed lists; and who may touch it when."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from assay.data.navis.seek import Array


class Counters:
    """What an index did; reads are of pages."""

    def __init__(self) -> None:
        self.inserts = self.searches = self.insert_reads = self.search_reads = 0
        self.insert_hops = self.insert_steps = self.cached = self.expanded = 0
        self.log_bytes = self.checkpoints = self.joined = 0
        self.flush_reads = self.flush_writes = 0


class Gate:
    """Walks pass together; a change waits for them to end, and goes before those that come later.

    >>> gate = Gate()
    >>> with gate.walking():
    ...     gate.free()
    False
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._walks, self._changing, self._waiting = 0, False, 0

    @contextmanager
    def walking(self) -> Iterator[None]:
        """Read, beside others."""
        with self._turn:
            self._turn.wait_for(lambda: not self._changing and not self._waiting)
            self._walks += 1
        try:
            yield
        finally:
            with self._turn:
                self._walks -= 1
                self._turn.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change, alone."""
        with self._turn:
            self._waiting += 1
            self._turn.wait_for(lambda: not self._changing and not self._walks)
            self._waiting -= 1
            self._changing = True
        try:
            yield
        finally:
            with self._turn:
                self._changing = False
                self._turn.notify_all()

    def free(self) -> bool:
        """Whether a change would not have to wait now."""
        with self._turn:
            return not self._walks and not self._changing


class Numbers(Mapping[int, int]):
    """Nodes by their ids: twelve bytes each for those there were, where a dictionary takes a hundred.

    An id that was deleted and came back is its newest node's.

    >>> numbers = Numbers(np.array([70, 50]))
    >>> numbers.add(60, 2)
    >>> numbers[50], numbers[60], 65 in numbers, len(numbers)
    (1, 2, False, 3)
    """

    def __init__(self, ids: Array) -> None:
        self._nodes = np.argsort(ids, kind="stable").astype(np.int32)
        self._ids = ids[self._nodes]
        self._since: dict[int, int] = {}

    def add(self, one: int, node: int) -> None:
        """A new id's node."""
        self._since[one] = node

    def __getitem__(self, one: int) -> int:
        if one in self._since:
            return self._since[one]
        at = int(np.searchsorted(self._ids, one, side="right")) - 1
        if at < 0 or self._ids[at] != one:
            raise KeyError(one)
        return int(self._nodes[at])

    def __iter__(self) -> Iterator[int]:
        yield from dict.fromkeys([*self._ids.tolist(), *self._since])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Nodes:
    """Per node: code, place in the files, id, parent, children, and the row of its list if that changed lately."""

    def __init__(self, parts: int, degree: int, width: int, lists: int, vectors: int) -> None:
        self.count = 0
        self.codes = np.empty((0, parts), np.uint8)
        self.slots, self.parents = np.empty(0, np.int32), np.empty(0, np.int32)
        self.children, self.ids = np.empty(0, np.int16), np.empty(0, np.int64)
        self.dead, self.fresh_row = np.empty(0, np.bool_), np.empty(0, np.int32)
        self.fresh, self.fresh_node = np.zeros((lists, degree + 1), np.int32), np.zeros(lists, np.int32)
        self.used = 0  # rows of `fresh`
        self.lost = 0  # nodes that are dead
        self.first_fresh = 0
        self.fresh_vectors = np.zeros((vectors, width), np.float32)
        self.number = Numbers(self.ids)  # of the node with an id
        self.tag, self.tags = np.empty(0, np.int32), {"": 0}  # a node's tag, as its place among the names

    @property
    def vectors(self) -> Array:
        """Of the nodes that came since the last checkpoint."""
        return self.fresh_vectors[: self.count - self.first_fresh]

    def room(self, inserts: int) -> bool:
        """Whether so many insertions fit into the memory for changes."""
        most = inserts * (self.fresh.shape[1] + 1)
        new = self.count - self.first_fresh + inserts
        return self.used + most <= len(self.fresh) and new <= len(self.fresh_vectors)

    def reserve(self, count: int, lists: int = 0, vectors: int = 0) -> None:
        """Make room for nodes, and, where a log is read again, for more changes than memory was meant for."""
        if count > len(self.slots):
            more = max(count, len(self.slots) * 5 // 4) - len(self.slots)
            self.codes = np.concatenate([self.codes, np.zeros((more, self.codes.shape[1]), np.uint8)])
            self.slots, self.parents = _longer(self.slots, more, -1), _longer(self.parents, more, -1)
            self.children, self.ids = _longer(self.children, more, 0), _longer(self.ids, more, -1)
            self.dead, self.fresh_row = _longer(self.dead, more, 0), _longer(self.fresh_row, more, -1)
            self.tag = _longer(self.tag, more, 0)
        if lists > len(self.fresh):
            more = lists - len(self.fresh)
            self.fresh = np.concatenate([self.fresh, np.zeros((more, self.fresh.shape[1]), np.int32)])
            self.fresh_node = _longer(self.fresh_node, more, 0)
        if vectors > len(self.fresh_vectors):
            more = vectors - len(self.fresh_vectors)
            self.fresh_vectors = np.concatenate(
                [self.fresh_vectors, np.zeros((more, self.fresh_vectors.shape[1]), np.float32)]
            )

    def name(self, node: int, one: int, tag: str) -> None:
        """A new node's id and tag; an id's node before it is dead from now on."""
        if one in self.number and not self.dead[before := self.number[one]]:
            self.dead[before] = True
            self.lost += 1
        self.number.add(one, node)
        self.ids[node], self.tag[node] = one, self.tags.setdefault(tag, len(self.tags))

    def tagged(self, tag: str) -> Array:
        """Which nodes have a tag and are not dead."""
        found: Array = (self.tag[: self.count] == self.tags.get(tag, -1)) & ~self.dead[: self.count]
        return found

    def settle(self) -> None:
        """All changes are in the files."""
        self.fresh_row[self.fresh_node[: self.used]] = -1
        self.used, self.first_fresh = 0, self.count

    @property
    def nbytes(self) -> int:
        """Held for all nodes, changes apart."""
        per_node = (self.codes, self.slots, self.parents, self.children, self.ids, self.dead, self.fresh_row, self.tag)
        return sum(part.nbytes for part in per_node)


def _longer(part: Array, more: int, filler: int) -> Array:
    return np.concatenate([part, np.full(more, filler, part.dtype)])
