"""A Chakra execution trace in columns: what one rank did, and what each piece of it waited for.

:class:`Graph` is what readers give, writers take and the replayer runs. Nodes are rows; dependencies are two lists of
node ids in compressed rows; what a node says beside that stays as bytes in its tail and is decoded when asked for.
A graph is never judged here: ids may repeat, dependencies may point nowhere, at themselves or round in circles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.workloads import chakra_attributes as typed
from assay.workloads import chakra_encode as encoder
from assay.workloads import chakra_wire as wire

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

TYPES = (
    "INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL",
    "STORAGE", "BATCH", "CHECKPOINT",
)  # fmt: skip
METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(1, 8)
COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
# What a replay asks every node for.
ASKED = (
    "is_cpu_op", "stream", "tid", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name", "pg_size",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Rows:
    """Lists of different lengths, one behind the other: node i's are `values[at[i]:at[i + 1]]`."""

    at: Int64s
    values: npt.NDArray[Any]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Rows:
        """From a list for each node.

        >>> Rows.of([[1, 2], [], [3]]).at.tolist()
        [0, 2, 2, 3]
        """
        at = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(part) for part in lists], out=at[1:])
        return cls(at, np.fromiter((item for part in lists for item in part), np.uint64, int(at[-1])))

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        return self.values[self.at[i] : self.at[i + 1]]

    def __len__(self) -> int:
        return len(self.at) - 1

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Rows) and np.array_equal(self.at, other.at) and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Interned:
    """A value for each node, each different one kept once: node i's is `values[codes[i]]`, none where the code is -1.

    >>> Interned.of(["a", None, "b", "a"]).codes.tolist()
    [0, -1, 1, 0]
    """

    codes: Int32s
    values: list[Any]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Interned:
        """From a value for each node, None for those without."""
        known: dict[Any, int] = {}
        keys = [(type(v).__name__, tuple(v) if isinstance(v, list) else v) for v in given]
        codes = [-1 if v is None else known.setdefault(k, len(known)) for k, v in zip(keys, given, strict=True)]
        values = [list(v) if kind == "list" else v for kind, v in known]
        return cls(np.array(codes, np.int32).reshape(-1), values)

    def __getitem__(self, i: int) -> Any:
        return self.values[self.codes[i]] if self.codes[i] >= 0 else None


@dataclass(frozen=True, eq=False, repr=False)  # millions of numbers
class Graph:
    """One rank's execution trace. Times are microseconds, as in the file; `start` and `duration` give seconds."""

    id: UInt64s
    name: Int32s  # the number of the name in `names`
    names: list[str]
    type: Int32s  # see TYPES; numbers that are not there are kept
    start_micros: UInt64s
    duration_micros: UInt64s
    ctrl_deps: Rows
    data_deps: Rows
    tail: Rows  # what else the node says: inputs, outputs, attributes, unknown fields, as on the wire
    metadata: bytes | None = None  # the GlobalMetadata message; None where the file began with a node
    rank: int | None = None
    source: str = ""
    keys: tuple[tuple[str, ...], ...] = ()  # of a JSON file: the header's keys, then the different orders in nodes
    key_order: Int32s | None = field(default=None)

    @classmethod
    def of(
        cls, id: Any, name: Sequence[str] | Interned, type: Any, *,
        data_deps: Sequence[Sequence[int]] | Rows, ctrl_deps: Sequence[Sequence[int]] | Rows | None = None,
        start_micros: Any = 0, duration_micros: Any = 0,
        attributes: Mapping[str, Sequence[Any] | Interned] | None = None, io: Sequence[bytes] | None = None,
        metadata: Mapping[str, Any] | None = None, rank: int | None = None, source: str = "",
    ) -> Graph:  # fmt: skip
        """From columns; an attribute is a value for each node (None: the node has none), `io` its encoded tensors.

        >>> g = Graph.of([1, 2], ["a", "b"], COMP, data_deps=[[], [1]], duration_micros=[5, 7],
        ...              attributes={"is_cpu_op": [True, False], "stream": [None, 7]})
        >>> g.attributes(1)
        {'is_cpu_op': False, 'stream': 7}
        """
        ids = np.atleast_1d(np.asarray(id, np.uint64))
        n = len(ids)
        names = name if isinstance(name, Interned) else Interned.of(name)
        header = b"".join(wire_attribute(2, key, value) for key, value in (metadata or {}).items())
        return cls(
            ids, names.codes, names.values, _column(type, np.int32, n),
            _column(start_micros, np.uint64, n), _column(duration_micros, np.uint64, n),
            Rows.of([[]] * n) if ctrl_deps is None else _rows(ctrl_deps), _rows(data_deps),
            _tails(n, attributes or {}, io), header, rank, source,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.id)

    def __repr__(self) -> str:
        return f"Graph(rank={self.rank}, nodes={len(self)}, source={self.source!r})"

    @property
    def start(self) -> npt.NDArray[np.float64]:
        """When each node began, in seconds of the recorder's clock; zero where it was not recorded."""
        return self.start_micros / 1e6

    @property
    def duration(self) -> npt.NDArray[np.float64]:
        """How long each node took, in seconds."""
        return self.duration_micros / 1e6

    def label(self, i: int) -> str:
        """A node as a message names it.

        >>> Graph.of([7], ["aten::mm"], COMP, data_deps=[[]]).label(0)
        "node 7 'aten::mm'"
        """
        text = printable(self.names[self.name[i]])
        return f"node {self.id[i]} '{text[:57] + '…' if len(text) > 58 else text}'"

    # ------------------------------------------------------------------------------------------ what nodes say

    def attributes(self, i: int) -> dict[str, Any]:
        """All attributes of one node by name; of several with one name, the first."""
        out: dict[str, Any] = {}
        for attribute in self.attribute_list(i):
            out.setdefault(attribute.name, attribute.value)
        return out

    def attribute_list(self, i: int) -> list[typed.Attribute]:
        """All attributes of one node, typed, in order."""
        records = typed.fields(self.tail[i].tobytes())
        return [typed.decode(body) for number, kind, _, body in records if number == wire.ATTR and kind == 2]

    def _where(self, name: str, among: Bools | None) -> Int64s:
        chosen = np.ones(len(self), np.bool_) if among is None else among
        where: Int64s
        if name in ASKED:
            where = typed.located(self.tail.at, self.tail.values, self._asked[ASKED.index(name)], chosen)
        else:
            where = typed.find(self.tail.at, self.tail.values, np.frombuffer(name.encode(), np.uint8), chosen)
        return where

    @cached_property
    def _asked(self) -> Int32s:
        """Where the attributes that a replay asks for begin, found in one pass over all nodes."""
        names = [name.encode() for name in ASKED]
        at = np.concatenate([[0], np.cumsum([len(name) for name in names])])
        found: Int32s = typed.find_all(self.tail.at, self.tail.values, at, np.frombuffer(b"".join(names), np.uint8))
        return found

    def has(self, name: str) -> Bools:
        """Which nodes have an attribute of this name."""
        return np.asarray(self._where(name, None)[:, 0] >= 0)

    def whole_numbers(self, name: str, default: int = -1, among: Bools | None = None) -> Int64s:
        """An integer or boolean attribute of all nodes, the default where a node has none or is not `among` these.

        >>> g = Graph.of([1, 2], ["a", "b"], COLL, data_deps=[[], []], attributes={"comm_size": [None, 4096]})
        >>> g.whole_numbers("comm_size", 0).tolist()
        [0, 4096]
        """
        found: Int64s
        if name in ASKED:
            chosen = np.ones(len(self), np.bool_) if among is None else among
            offset = self._asked[ASKED.index(name)]
            found = typed.whole_numbers_at(self.tail.at, self.tail.values, offset, chosen, default)
        else:
            found = typed.whole_numbers(self.tail.values, self._where(name, among), default)
        return found

    def texts(self, name: str, among: Bools | None = None) -> Interned:
        """A text attribute of all nodes; numbers are taken as their digits (process groups are written both ways)."""
        where = self._where(name, among)
        slices = typed.text_slices(self.tail.values, where)
        out = np.full(len(self), -1, np.int32)
        there = np.flatnonzero(slices[:, 0] >= 0)
        codes, values = interned(self.tail.values, slices[there])
        out[there] = codes
        digits = np.flatnonzero((where[:, 0] >= 0) & (slices[:, 0] < 0))
        if len(digits):
            found = typed.whole_numbers(self.tail.values, where[digits], -1)
            different, inverse = np.unique(found, return_inverse=True)
            out[digits] = len(values) + inverse
            values += [str(value) for value in different]
        return Interned(out, values)

    @cached_property
    def is_cpu_op(self) -> Bools:
        """Which nodes ran on the host. Those that do not say are taken for the device's, as upstream's feeder does."""
        return np.asarray(self.whole_numbers("is_cpu_op", 0) != 0)

    def header(self) -> dict[str, Any]:
        """The version and the attributes of the trace as a whole."""
        out: dict[str, Any] = {}
        for number, kind, _, body in typed.fields(self.metadata or b""):
            if number == 1 and kind == wire.SIZED:
                out["version"] = typed.text_of(body)
            elif number == 2 and kind == wire.SIZED:
                attribute = typed.decode(body)
                out.setdefault(attribute.name, attribute.value)
        return out

    # ------------------------------------------------------------------------------------------------- changes

    def with_durations(self, seconds: npt.NDArray[np.float64]) -> Graph:
        """The same trace with other durations, rounded to the file's microseconds."""
        return replace(self, duration_micros=np.rint(seconds * 1e6).astype(np.uint64))

    def without(self, edges: Bools) -> Graph:
        """The same trace without some of its data dependencies, marked as `data_deps.values` has them."""
        kept = np.concatenate([[0], np.cumsum(~edges)])
        return replace(self, data_deps=Rows(kept[self.data_deps.at], self.data_deps.values[~edges]))


def printable(text: str) -> str:
    """Text for tables and messages: what was no UTF-8 is shown as such."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def wire_attribute(field_number: int, name: str, value: Any) -> bytes:
    """An attribute as a field of the message it belongs to."""
    return typed.sized(field_number, typed.encode(name, value))


def interned(buf: wire.Bytes, slices: Int64s) -> tuple[Int32s, list[Any]]:
    """Texts in a buffer as numbers and the list of the different ones."""
    import secrets

    codes, firsts = wire.intern(buf, slices, np.uint64(secrets.randbits(64)))
    texts = [typed.text_of(buf[low:high].tobytes()) for low, high in slices[firsts].tolist()]
    return codes, texts


def _column(given: Any, kind: Any, n: int) -> Any:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(given, kind), n))


def _rows(given: Sequence[Sequence[int]] | Rows) -> Rows:
    return given if isinstance(given, Rows) else Rows.of(given)


def _tails(n: int, given: Mapping[str, Sequence[Any] | Interned], io: Sequence[bytes] | None) -> Rows:
    columns = {name: v if isinstance(v, Interned) else Interned.of(v) for name, v in given.items()}
    records = [typed.records(name, column.values) for name, column in columns.items()]
    codes = [column.codes for column in columns.values()]
    if io is not None:
        tensors = Interned.of(io)
        records, codes = [tensors.values, *records], [tensors.codes, *codes]
    if not records:
        return Rows(np.zeros(n + 1, np.int64), np.empty(0, np.uint8))
    every = [record for part in records for record in part]
    at = np.concatenate([[0], np.cumsum([len(record) for record in every])]).astype(np.int64)
    first = np.concatenate([[0], np.cumsum([len(part) for part in records])]).astype(np.int64)
    tail_at, tail = encoder.join(np.stack(codes), at, np.frombuffer(b"".join(every), np.uint8), first)
    return Rows(tail_at, tail)
