"""From memory to pages and back: which page lies where, new pages for what changed, what a state consists of."""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from assay.data.engine.puts import put_surely
from assay.data.engine.version_log import Damaged
from assay.data.interface import Buffer, Unknown, Violation
from assay.data.navis.linking import patch, patch_vectors
from assay.data.navis.memory import Nodes
from assay.data.navis.seek import FILE, WORDS, Array, checksum
from assay.sim.compiled import njit

if TYPE_CHECKING:
    from assay.data.navis.index import Navis

CHUNK = 1 << 16  # nodes whose codes, places, ids and parents are one object
AT_ONCE = 2048  # pages that are laid out together
MOST_FILES = 4
_SLOT = (1 << FILE) - 1


@dataclass
class Table:
    """Where every page lies, with its checksum, and how full the groups of edge lists are."""

    files: list[str]
    edge_place: Array
    edge_sum: Array
    vector_place: Array
    vector_sum: Array
    fill: Array

    @classmethod
    def empty(cls) -> Table:
        """Of an index without pages."""
        places, sums = np.empty(0, np.int64), np.empty(0, np.uint32)
        return cls([], places, sums, places, sums, np.empty(0, np.uint8))

    def copy(self) -> Table:
        """To be changed while walks use this one."""
        parts = (self.edge_place, self.edge_sum, self.vector_place, self.vector_sum)
        edge_place, edge_sum, vector_place, vector_sum = (part.copy() for part in parts)
        return Table(list(self.files), edge_place, edge_sum, vector_place, vector_sum, self.fill)

    def slot_near(self, slots: Array, per: int) -> int:
        """A free place in the page of the nearest that has one, else in a new page; it is taken now."""
        groups = slots // per
        free = groups[self.fill[groups] < per]
        if not len(free):
            self.fill = np.append(self.fill, np.uint8(0))
        group = int(free[0]) if len(free) else len(self.fill) - 1
        self.fill[group] += 1
        return group * per + int(self.fill[group]) - 1

    def take(self, slots: Array, per: int) -> None:
        """These places are taken."""
        groups = slots // per
        more = max(int(groups.max(initial=-1)) + 1 - len(self.fill), 0)
        self.fill = np.concatenate([self.fill, np.zeros(more, np.uint8)])
        np.maximum.at(self.fill, groups, (slots % per + 1).astype(np.uint8))


@dataclass
class PageFile:
    """The one file that this process writes; pages that no durable state names are free."""

    name: str = ""
    end: int = 0
    free: list[int] = field(default_factory=list)

    def allocate(self, count: int) -> Array:
        """Numbers of free pages, new ones where there are none."""
        again = self.free[:count]
        del self.free[:count]
        new = count - len(again)
        self.end += new
        return np.array([*again, *range(self.end - new, self.end)], np.int64)

    def settle(self, old: Table, new: Table) -> None:
        """The new state is durable: what only the old one named is free."""
        gone = np.setdiff1d(_named(old, self.name), _named(new, self.name))
        self.free = sorted({*self.free, *gone.tolist()})


def _named(table: Table, name: str) -> Array:
    if name not in table.files:
        return np.empty(0, np.int64)
    places = np.concatenate([table.edge_place, table.vector_place])
    mine: Array = places[(places >= 0) & (places >> FILE == table.files.index(name))] & _SLOT
    return mine


# ----------------------------------------------------------------------------------------------------- writing pages


async def write_all(index: Navis, new: Table, lists: Array, vectors: Array) -> None:
    """Every page of a new index, in the order of its places."""
    nodes, geo = index.nodes, index.geo
    assert nodes is not None
    by_slot = np.argsort(nodes.slots[: nodes.count]).astype(np.int32)
    new.take(nodes.slots[: nodes.count], geo.per)
    step = max(AT_ONCE // geo.span, 1) * geo.per
    for first in range(0, nodes.count, step):
        some = by_slot[first : first + step]
        await _write_edges(index, new, some, lists[some], vectors[some] if geo.packed else None)
    step = max(AT_ONCE // geo.vector_span, 1) * geo.vector_per
    for first in range(0, 0 if geo.packed else nodes.count, step):
        some = by_slot[first : first + step]
        await _write_vectors(index, new, some, vectors[some])


async def write_changes(index: Navis, new: Table) -> None:
    """Every page that a change since the last checkpoint belongs to."""
    nodes, geo = index.nodes, index.geo
    assert nodes is not None
    new.fill = index.table.fill.copy()
    changed = nodes.fresh_node[: nodes.used]
    changed = changed[np.argsort(nodes.slots[changed], kind="stable")]
    fresh = np.arange(nodes.first_fresh, nodes.count, dtype=np.int32)
    fresh = fresh[np.argsort(nodes.slots[fresh], kind="stable")]
    for part in _cut(changed, nodes.slots[changed] // geo.per, AT_ONCE // geo.span):
        lists = nodes.fresh[nodes.fresh_row[part]]
        vectors = nodes.fresh_vectors[part[part >= nodes.first_fresh] - nodes.first_fresh] if geo.packed else None
        await _write_edges(index, new, part, lists, vectors)
    for part in [] if geo.packed else _cut(fresh, nodes.slots[fresh] // geo.vector_per, AT_ONCE // geo.vector_span):
        await _write_vectors(index, new, part, nodes.fresh_vectors[part - nodes.first_fresh])
    await _retire(index, new)


def _cut(nodes: Array, groups: Array, most: int) -> list[Array]:
    """Parts of at most so many groups, none of them cut."""
    if not len(nodes):
        return []
    number = np.cumsum(np.concatenate([[0], np.diff(groups) != 0])) // max(most, 1)
    return np.split(nodes, np.flatnonzero(np.diff(number)) + 1)


async def _write_edges(index: Navis, new: Table, part: Array, lists: Array, vectors: Array | None) -> None:
    nodes, geo = index.nodes, index.geo
    assert nodes is not None
    slots = nodes.slots[part]
    groups, inverse = np.unique(slots // geo.per, return_inverse=True)
    logical = (groups[:, None] * geo.span + np.arange(geo.span)).reshape(-1).astype(np.int64)
    new.edge_place, new.edge_sum = _reach(new.edge_place, new.edge_sum, len(new.fill) * geo.span)
    images = _read(index, new, new.edge_place[logical], new.edge_sum[logical])
    rows = (inverse * geo.span).astype(np.int64)
    patch(images, rows, part, np.arange(len(part)), lists, nodes.slots, geo.per, geo.words, geo.list_at, geo.span)
    if vectors is not None:
        has = part >= nodes.first_fresh if len(vectors) != len(part) else np.ones(len(part), np.bool_)
        patch_vectors(images, rows[has], slots[has], vectors, geo.per, geo.words, geo.span)
    new.edge_place[logical], new.edge_sum[logical] = await _write(index, new, images), _sums(images)
    if geo.by_page:
        with index.gate.changing():
            index.cache.grow(len(new.fill))
            index.cache.renew(groups, images.reshape(len(groups), -1))


async def _write_vectors(index: Navis, new: Table, part: Array, vectors: Array) -> None:
    nodes, geo = index.nodes, index.geo
    assert nodes is not None
    slots = nodes.slots[part]
    groups, inverse = np.unique(slots // geo.vector_per, return_inverse=True)
    logical = (groups[:, None] * geo.vector_span + np.arange(geo.vector_span)).reshape(-1).astype(np.int64)
    need = (len(new.fill) * geo.per // geo.vector_per + 1) * geo.vector_span
    new.vector_place, new.vector_sum = _reach(new.vector_place, new.vector_sum, need)
    images = _read(index, new, new.vector_place[logical], new.vector_sum[logical])
    rows = (inverse * geo.vector_span).astype(np.int64)
    patch_vectors(images, rows, slots, vectors, geo.vector_per, geo.width, geo.vector_span)
    new.vector_place[logical], new.vector_sum[logical] = await _write(index, new, images), _sums(images)


def _reach(places: Array, sums: Array, count: int) -> tuple[Array, Array]:
    more = max(count - len(places), 0)
    return np.concatenate([places, np.full(more, -1, np.int64)]), np.concatenate([sums, np.zeros(more, np.uint32)])


def _read(index: Navis, table: Table, places: Array, sums: Array | None = None) -> Array:
    """Pages at places, checked where their checksums are given; zeros where there is none."""
    images = np.zeros((len(places), WORDS), np.int32)
    for number in np.unique(places[places >= 0] >> FILE).tolist():
        there = np.flatnonzero((places >= 0) & (places >> FILE == number))
        images[there] = index.disk.read(table.files[number], places[there] & _SLOT)
        index.did.flush_reads += len(there)
    if sums is not None and (bad := (places >= 0) & (_sums(images) != sums)).any():
        place = int(places[bad][0])
        raise Damaged(
            f"page {place & _SLOT} of pages/{table.files[place >> FILE]} is not what was written: restore the index "
            "from a copy, or build it again"
        )
    return images


async def _write(index: Navis, new: Table, images: Array) -> Array:
    """Write pages to new places in our own file."""
    mine = index.mine
    if not mine.name:
        mine.name = f"{index.version:012d}-{index.author}"
    if mine.name not in new.files:
        new.files.append(mine.name)
    numbers = mine.allocate(len(images))
    await index.disk.write(mine.name, numbers, images)
    index.did.flush_writes += len(images)
    return (np.int64(new.files.index(mine.name)) << FILE) + numbers


@njit(cache=True)
def _sums(images):
    out = np.empty(len(images), np.uint32)
    for i in range(len(images)):
        out[i] = checksum(images[i])
    return out


async def _retire(index: Navis, new: Table) -> None:
    """Where there are many files, move what is left of the emptiest of the others into ours; forget unused names."""
    both = [(new.edge_place, new.edge_sum), (new.vector_place, new.vector_sum)]
    live = np.zeros(len(new.files), np.int64)
    for places, _ in both:
        live += np.bincount(places[places >= 0] >> FILE, minlength=len(new.files))
    others = [i for i, name in enumerate(new.files) if name != index.mine.name]
    if len(new.files) > MOST_FILES:
        least = min(others, key=lambda i: live[i])
        for places, sums in both:
            moved = np.flatnonzero((places >= 0) & (places >> FILE == least))
            for first in range(0, len(moved), AT_ONCE):
                some = moved[first : first + AT_ONCE]
                places[some] = await _write(index, new, _read(index, new, places[some], sums[some]))
        live[least] = 0
    kept = [i for i, name in enumerate(new.files) if live[i] or name == index.mine.name]
    number = np.full(len(new.files) + 1, -1, np.int64)
    number[kept] = np.arange(len(kept))
    for places, _ in both:
        there = places >= 0
        places[there] = (number[places[there] >> FILE] << FILE) + (places[there] & _SLOT)
    new.files = [new.files[i] for i in kept]


def renew(index: Navis, new: Table) -> None:
    """Lists that the cache holds are those that were written now."""
    nodes = index.nodes
    assert nodes is not None
    if not index.geo.by_page:
        changed = nodes.fresh_node[: nodes.used]
        index.cache.grow(len(nodes.slots))
        index.cache.renew(changed, nodes.fresh[: nodes.used])


def lists(index: Navis, wanted: Array) -> Array:
    """Nodes' edge lists, wherever they are."""
    nodes, geo = index.nodes, index.geo
    assert nodes is not None
    out = np.zeros((len(wanted), geo.degree + 1), np.int32)
    rows = nodes.fresh_row[wanted]
    out[rows >= 0] = nodes.fresh[rows[rows >= 0]]
    for part in np.array_split(np.flatnonzero(rows < 0), max(len(wanted) // AT_ONCE, 1)):
        slots = nodes.slots[wanted[part]].astype(np.int64)
        logical = ((slots // geo.per) * geo.span)[:, None] + np.arange(geo.span)
        flat = logical.reshape(-1)
        images = _read(index, index.table, index.table.edge_place[flat], index.table.edge_sum[flat])
        images = images.reshape(len(part), geo.span * WORDS)
        at = ((slots % geo.per) * geo.words + geo.list_at)[:, None] + np.arange(geo.degree + 1)
        out[part] = np.take_along_axis(images, at, axis=1) if len(part) else out[part]
    return out


def vectors(index: Navis, wanted: Array) -> Array:
    """Nodes' vectors, wherever they are."""
    nodes, geo, table = index.nodes, index.geo, index.table
    assert nodes is not None
    out = np.empty((len(wanted), geo.width), np.float32)
    fresh = wanted >= nodes.first_fresh
    out[fresh] = nodes.fresh_vectors[wanted[fresh] - nodes.first_fresh]
    per, span, words = (geo.per, geo.span, geo.words) if geo.packed else (geo.vector_per, geo.vector_span, geo.width)
    places, sums = (
        (table.edge_place, table.edge_sum) if geo.packed else (table.vector_place, table.vector_sum)
    )  # fmt: skip
    for part in np.array_split(np.flatnonzero(~fresh), max(len(wanted) // AT_ONCE, 1)):
        slots = nodes.slots[wanted[part]].astype(np.int64)
        flat = ((slots // per * span)[:, None] + np.arange(span)).reshape(-1)
        images = _read(index, table, places[flat], sums[flat]).reshape(len(part), span * WORDS)
        at = (slots % per * words)[:, None] + np.arange(geo.width)
        out[part] = np.take_along_axis(images, at, axis=1).view(np.float32) if len(part) else out[part]
    return out


def nearest_of(index: Navis, some: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """Of some nodes those nearest to each query, and how far, by looking at each; -1 and infinity behind the last.

    For where a walk would pass others only, and to tell what walks find.
    """
    near = np.full((len(queries), k), -1, np.int32)
    far = np.full((len(queries), k), np.inf, np.float32)
    for part in np.array_split(some, len(some) // CHUNK + 1):
        rows = vectors(index, part)
        for i, query in enumerate(queries):
            both = np.concatenate([far[i], ((rows - query) ** 2).sum(axis=1)])
            names = np.concatenate([near[i], part])
            order = np.lexsort((names, both))[:k]
            near[i], far[i] = names[order], both[order]
    return near, far


# -------------------------------------------------------------------------------------------------------- the state


async def write_chunks(index: Navis) -> list[str]:
    """What never changes of nodes, in objects; those that are full are there already."""
    nodes = index.nodes
    assert nodes is not None
    full = [name for name in index.chunks if name.split("-")[1] == str(CHUNK)]
    for first in range(len(full) * CHUNK, nodes.count, CHUNK):
        part = slice(first, min(first + CHUNK, nodes.count))
        arrays: list[Array] = [nodes.codes[part], nodes.slots[part], nodes.ids[part], nodes.parents[part]]
        data = b"".join(one.tobytes() for one in arrays)
        name = f"nodes/{first:012d}-{part.stop - first}-{index.version}-{index.author}-{crc32(data):08x}"
        await put_surely(index.store, name, data)
        full.append(name)
    return full


def read_chunk(nodes: Nodes, name: str, data: Buffer) -> None:
    """Nodes as they were written; the object's name tells the first, how many, and the checksum."""
    numbers = name.removeprefix("nodes/").split("-")
    first, n, parts = int(numbers[0]), int(numbers[1]), nodes.codes.shape[1]
    view = memoryview(data)
    if len(view) != n * (parts + 16) or f"{crc32(view):08x}" != numbers[-1]:
        raise Damaged(f"{name} is not what was written: restore the index from a copy, or build it again")
    part = slice(first, first + n)
    nodes.codes[part] = np.frombuffer(view[: n * parts], np.uint8).reshape(n, parts)
    nodes.slots[part] = np.frombuffer(view[n * parts : n * (parts + 4)], np.int32)
    nodes.ids[part] = np.frombuffer(view[n * (parts + 4) : n * (parts + 12)], np.int64)
    nodes.parents[part] = np.frombuffer(view[n * (parts + 12) :], np.int32)


async def collect(index: Navis) -> None:
    """Delete files, chunks and records that the state before this one needed, and leftovers of dead processes."""
    old = [name for name in await index.disk.names() if name not in index.table.files and name != index.mine.name]
    await index.disk.delete(old)
    chunks = [meta.key async for meta in index.store.list("nodes/") if meta.key not in index.chunks]
    try:
        await index.store.delete(*chunks)
        await index.log.trim(index.before)
        index.before = index.version
    except Unknown:  # what stays goes the next time
        pass


@njit(cache=True)
def breadth_first(lists, root):
    """Nodes in the order in which they are reached."""
    queue = np.empty(len(lists), np.int64)
    seen = np.zeros(len(lists), np.bool_)
    queue[0] = root
    seen[root] = True
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        for j in range(1, 1 + lists[u, 0]):
            v = lists[u, j]
            if not seen[v]:
                seen[v] = True
                queue[tail] = v
                tail += 1
    return queue[:tail]


# ---------------------------------------------------------------------------------------------------------- the rules


def check(index: Navis) -> list[Violation]:
    """The rules that an index breaks, by reading all of it."""
    nodes, table, geo = index.nodes, index.table, index.geo
    assert nodes is not None
    wrong = []
    for what, places, sums in (
        ("edges", table.edge_place, table.edge_sum), ("vectors", table.vector_place, table.vector_sum)
    ):  # fmt: skip
        there = np.flatnonzero(places >= 0)
        parts = np.array_split(there, max(len(there) // AT_ONCE, 1))
        if any((_sums(_read(index, table, places[part])) != sums[part]).any() for part in parts):
            wrong.append(Violation("pages are what was written", what))
    every = lists(index, np.arange(nodes.count, dtype=np.int32))
    filled = np.arange(1, geo.degree + 1) <= every[:, :1]
    if (every[:, 0] < 0).any() or (every[:, 0] > geo.degree).any():
        return [*wrong, Violation("no more edges than fit", f"{every[:, 0].max()} of {geo.degree}")]
    if ((every[:, 1:] < 0) | (every[:, 1:] >= nodes.count))[filled].any():
        return [*wrong, Violation("edges lead to nodes that are there", f"of {nodes.count}")]
    reached = breadth_first(every, index.root)
    if len(reached) < nodes.count:
        wrong.append(Violation("every node can be reached", f"{nodes.count - len(reached)} of {nodes.count} cannot"))
    live = nodes.ids[: nodes.count][~nodes.dead[: nodes.count]]
    if len(np.unique(live)) != len(live) or len(np.unique(nodes.slots[: nodes.count])) != nodes.count:
        wrong.append(Violation("every node has an id and a place of its own", f"{nodes.count} nodes"))
    return wrong
