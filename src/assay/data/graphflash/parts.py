"""A graph cut into parts that functions can hold, and arrays as objects of a store.

A part has its own vertices, their edges, and a table of the vertices that its edges reach in other parts. Several
parts that one function owns are joined into one: what they would tell each other never leaves memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.engine.segments import SegmentBlob, checked
from assay.data.interface import Store
from assay.sim.graphs import CSR
from assay.sim.partitions import partition

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Floats = NDArray[np.float64]


class Network(NamedTuple):
    """Directed edges between vertices 0 … n-1, each once; weights where there are any, and the vertices' own names."""

    n: int
    edges: Int64s
    weights: Floats | None = None
    names: NDArray[Any] | None = None

    @property
    def symmetric(self) -> Network:
        """Every edge in both directions, without loops; of two weights the smaller one counts."""
        kept = self.edges[:, 0] != self.edges[:, 1]
        edges = self.edges[kept]
        weights = None if self.weights is None else np.tile(self.weights[kept], 2)
        return network(np.concatenate([edges, edges[:, ::-1]]), weights, self.n, self.names)


def network(
    edges: Any, weights: Floats | None = None, n: int | None = None, names: NDArray[Any] | None = None
) -> Network:
    """Edges in order and without repeats; the smallest weight of several counts.

    >>> network([(1, 0), (0, 1), (1, 0)], np.array([3.0, 1.0, 2.0])).weights.tolist()
    [1.0, 2.0]
    """
    pairs = np.asarray(edges, np.int64).reshape(-1, 2)
    n = int(pairs.max(initial=-1)) + 1 if n is None else n
    if len(pairs) and (int(pairs.min()) < 0 or int(pairs.max()) >= n):
        raise ValueError(f"vertices run from {int(pairs.min())} to {int(pairs.max())}; 0 to {n - 1} expected")
    codes = pairs[:, 0] * max(n, 1) + pairs[:, 1]
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    first = np.flatnonzero(np.diff(codes, prepend=-1))
    kept = np.stack(np.divmod(codes[first], max(n, 1)), axis=1)
    if weights is None or not len(first):
        return Network(n, kept, None if weights is None else weights[:0], names)
    return Network(n, kept, np.minimum.reduceat(np.asarray(weights, np.float64)[order], first), names)


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What a function holds of a graph. Edges end at own vertices (below `len(own)`), then at those of `far`."""

    own: Int64s  # the vertices' numbers, ascending
    indptr: Int64s
    near: Int32s
    weight: Floats  # of each edge; empty where all count 1
    far: Int64s  # vertices of other parts, by part and then by number
    far_part: Int32s
    far_degree: Int32s

    @property
    def degree(self) -> Int64s:
        """Edges of each own vertex."""
        return np.diff(self.indptr)


def cut(graph: Network, part: Int64s, parts: int) -> Iterator[Part]:
    """The parts of a graph, one after the other; `part[v]` is the one that v belongs to."""
    sources, targets = graph.edges.T
    degree = np.bincount(sources, minlength=graph.n)
    order = np.argsort(part[sources], kind="stable")
    bounds = np.searchsorted(part[sources][order], np.arange(parts + 1))
    for number in range(parts):
        some = order[bounds[number] : bounds[number + 1]]
        own = np.flatnonzero(part == number)
        weight = np.empty(0) if graph.weights is None else graph.weights[some]
        yield _part(own, sources[some], targets[some], weight, part, degree)


def _part(own: Int64s, sources: Int64s, targets: Int64s, weight: Floats, part: Int64s, degree: Int64s) -> Part:
    """Edges are in the order of their sources, so their rows are, too."""
    inside = part[targets] == (part[own[0]] if len(own) else -1)
    n = len(part)
    codes, places = np.unique((part[targets] * n + targets)[~inside], return_inverse=True)
    near = np.empty(len(targets), np.int32)
    near[inside] = np.searchsorted(own, targets[inside])
    near[~inside] = len(own) + places
    indptr = np.concatenate([[0], np.cumsum(np.bincount(np.searchsorted(own, sources), minlength=len(own)))])
    far = codes % n
    return Part(own, indptr, near, weight, far, (codes // n).astype(np.int32), degree[far].astype(np.int32))


def join(parts: Sequence[Part], of: int) -> Part:
    """The parts that one function owns as one; `of` parts make a group, and `far_part` tells groups from now on.

    >>> whole = network([(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> halves = list(cut(whole, np.array([0, 0, 1, 1]), 2))
    >>> join(halves, 2).far.size, join(halves[:1], 1).far.tolist()
    (0, [2])
    """
    if of == 1:
        return parts[0]
    if len(parts) == 1:
        return replace(parts[0], far_part=parts[0].far_part // np.int32(of))
    own = np.sort(np.concatenate([one.own for one in parts]))
    far, far_part, far_degree = _outside(parts, own, of)
    at = [np.searchsorted(own, one.own) for one in parts]
    indptr = np.zeros(len(own) + 1, np.int64)
    for one, rows in zip(parts, at, strict=True):
        indptr[1 + rows] = one.degree
    np.cumsum(indptr, out=indptr)
    near = np.empty(int(indptr[-1]), np.int32)
    weight = np.empty(len(near) if any(len(one.weight) for one in parts) else 0)
    codes = far_part.astype(np.int64) << 40 | far
    for one, rows in zip(parts, at, strict=True):  # one part's edges at a time: that is all that is held twice
        inside = np.searchsorted(own, one.far).clip(max=len(own) - 1)
        outside = len(own) + np.searchsorted(codes, (one.far_part // of).astype(np.int64) << 40 | one.far)
        there = np.where(own[inside] == one.far, inside, outside)
        places = np.repeat(indptr[rows] - one.indptr[:-1], one.degree) + np.arange(len(one.near))
        near[places] = np.concatenate([rows, there]).astype(np.int32)[one.near]
        if len(weight):
            weight[places] = one.weight
    return Part(own, indptr, near, weight, far, far_part, far_degree)


def _outside(parts: Sequence[Part], own: Int64s, of: int) -> tuple[Int64s, Int32s, Int32s]:
    """The vertices that parts know and none of them has, by group and number."""
    far = np.concatenate([one.far for one in parts])
    group = np.concatenate([one.far_part // of for one in parts])
    degree = np.concatenate([one.far_degree for one in parts])
    _, first = np.unique(group.astype(np.int64) << 40 | far, return_index=True)
    away = own[np.searchsorted(own, far[first]).clip(max=len(own) - 1)] != far[first]
    first = first[away]
    return far[first], group[first].astype(np.int32), degree[first]


def parts_of(graph: Network, parts: int, how: str = "metis", seed: int = 0) -> Int64s:
    """Which part each vertex belongs to: cut by the undirected edges."""
    return partition(CSR.from_edges(graph.edges, graph.n), parts, how, seed)


# ------------------------------------------------------------------------------------------ arrays in a store


class Field(msgspec.Struct, frozen=True, array_like=True):
    """Where an array lies in an object."""

    name: str
    dtype: str
    count: int
    offset: int
    length: int
    digest: bytes


class Place(msgspec.Struct, frozen=True, array_like=True):
    """An object, and arrays in it."""

    key: str
    arrays: list[Field]


def write_arrays(blob: SegmentBlob, arrays: Mapping[str, NDArray[Any]]) -> list[Field]:
    """Add arrays to an object in the making."""
    found = []
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array)
        row = blob.add(name, flat.view(np.uint8).data if flat.size else b"", rows=len(flat))
        found.append(Field(name, flat.dtype.str, len(flat), row.offset, row.length, row.digest))
    return found


async def read_arrays(store: Store, place: Place) -> dict[str, NDArray[Any]]:
    """Read arrays back in one request, each checked. They may be written to."""
    start = min(one.offset for one in place.arrays)
    stop = max(one.offset + one.length for one in place.arrays)
    whole = memoryview(bytearray(stop - start))
    if stop > start:
        await store.read_into(place.key, start, whole)
    return {
        one.name: np.frombuffer(
            checked(whole[one.offset - start : one.offset - start + one.length], one.digest, f"{place.key}:{one.name}"),
            one.dtype,
        )
        for one in place.arrays
    }


def as_arrays(part: Part) -> dict[str, NDArray[Any]]:
    """A part by the names of its arrays."""
    return {one.name: getattr(part, one.name) for one in fields(part)}


def digest_of(arrays: Iterable[NDArray[Any] | None]) -> str:
    """A name for these arrays: others have another."""
    from hashlib import blake2b

    state = blake2b(digest_size=12)
    for array in arrays:
        state.update(b"-" if array is None else f"{array.dtype}{array.shape}".encode())
        if array is not None:
            state.update(np.ascontiguousarray(array).view(np.uint8).data)
    return state.hexdigest()
