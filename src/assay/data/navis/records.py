"""What an index writes down: records of its log, and the state that a checkpoint is."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from assay.data.navis.entrance import Entrance
from assay.data.navis.seek import Array


class Config(msgspec.Struct, frozen=True):
    """How an index is laid out and searched; fixed when it is built.

    `exact` and `rerank` say for how many of the nearest the vectors themselves are read, by an insertion and (in times
    of k, at first) by a search, which reads on while that changes its answer; `settle` after how many expansions
    without a change at the head that begins.
    """

    width: int
    degree: int = 32
    breadth: int = 96  # of the list, for insertions
    search: int = 128  # and for searches
    alpha: float = 1.05  # more fills the lists of near-duplicates with each other
    beam: int = 4
    exact: int = 10
    rerank: int = 4
    settle: int = 3
    packed: bool = False  # a node's vector before its edges, as DiskANN lays it
    moving: bool = True  # the entrance follows the data
    aware: bool = True  # the cache holds lists near the entrance; False: pages, the latest used
    metric: str = "l2"  # what vectors are near by, see `metrics`
    longest: float = 0.0  # of vectors under the inner product


class Inserted(msgspec.Struct, frozen=True, tag="insert", array_like=True):
    """Nodes from `first` on, whole, and every list that changed, as it is now."""

    first: int
    ids: bytes
    vectors: bytes
    codes: bytes
    slots: bytes
    parents: bytes
    touched: bytes
    lists: bytes
    source: str = ""
    rows: int = 0
    tags: list[str] = []  # one a node, where any has one


class Deleted(msgspec.Struct, frozen=True, tag="delete", array_like=True):
    """Ids that are no longer found."""

    ids: bytes


class Kept(msgspec.Struct, frozen=True, tag="kept", array_like=True):
    """The number of a checkpoint: whoever wrote this record, and nobody else, writes the state beside it."""


class State(msgspec.Struct, array_like=True):
    """An index at a version. Arrays as bytes; what never changes of a node lies in chunks of its own."""

    config: Config
    centres: bytes
    shape: tuple[int, int, int]
    root: int
    count: int
    chunks: list[str]
    files: list[str]
    edge_place: bytes
    edge_sum: bytes
    vector_place: bytes
    vector_sum: bytes
    fill: bytes
    dead: bytes
    entrance: tuple[bytes, bytes, bytes]
    sources: dict[str, int]
    next: int = 0  # above all ids that ever were
    above: list[tuple[bytes, bytes, bytes]] = []  # the entrance's higher levels: nodes, edges, places below
    tags: tuple[list[str], bytes] = ([], b"")  # names, and each node's by its place among them


Record = Inserted | Deleted | Kept


def entrance(state: State) -> Entrance:
    """Where walks begin, as it was written."""
    made: Entrance | None = None
    for nodes, edges, down in reversed(state.above):
        some = array(nodes, np.int32)
        made = Entrance(some, array(edges, np.int32, len(some), -1), above=made, down=array(down, np.int32))
    nodes, edges, uses = state.entrance
    some = array(nodes, np.int32)
    return Entrance(some, array(edges, np.int32, len(some), -1), array(uses, np.int64), made)


def packed_lists(lists: Array) -> bytes:
    """Lists without what is behind their ends.

    >>> packed_lists(np.array([[1, 7, 0], [2, 8, 9]], np.int32)) == np.array([1, 7, 2, 8, 9], np.int32).tobytes()
    True
    """
    there = np.arange(lists.shape[1]) <= lists[:, :1]
    return lists[there].tobytes()


def unpacked_lists(data: bytes, count: int, degree: int) -> Array:
    """The same lists again, zeros behind their ends."""
    words, at = np.frombuffer(data, np.int32), 0
    lists = np.zeros((count, degree + 1), np.int32)
    for i in range(count):
        length = int(words[at]) + 1
        lists[i, :length] = words[at : at + length]
        at += length
    return lists


def array(data: bytes, kind: Any, *shape: int) -> Array:
    """Bytes as an array that can be changed."""
    return np.frombuffer(data, kind).reshape(*shape).copy() if shape else np.frombuffer(data, kind).copy()
