"""An index of vectors on disk that grows: one writer, any number of walks at once, nothing lost by a crash.

The log is the truth: a batch of insertions is one create-only record with its vectors and every list that changed, and
it is acknowledged when that is durable. Changed lists stay in memory until there are many; then a checkpoint lays them
into *new* pages of this process's own file, and writes the state that names them. Pages that a state names are never
written again before a newer state is durable, so a torn page, a late one or a dead writer's leftovers are simply not
looked at: opening reads the newest state and the records behind it. The state knows every page's checksum.
"""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, TypeVar

import msgspec
import numpy as np

from assay.data.engine.version_log import Damaged, VersionLog
from assay.data.interface import Store, StoreError, Violation
from assay.data.navis import building, pages, records, searching
from assay.data.navis.cache import ListCache
from assay.data.navis.compaction import compact
from assay.data.navis.disk import Disk
from assay.data.navis.entrance import SHARE, Entrance, capacity
from assay.data.navis.linking import decoded, link, prepare
from assay.data.navis.memory import Counters as Counters
from assay.data.navis.memory import Gate, Nodes, Numbers
from assay.data.navis.records import Config, Deleted, Inserted, Kept, Record, State, array
from assay.data.navis.seek import (
    FILE,
    REQUESTS,
    STEPS,
    WANTED,
    Array,
    Scratch,
    View,
    geometry,
    release,
    scratch,
    seek,
)  # fmt: skip
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock
from assay.sim.streams import key as key_of
from assay.sim.streams import stream

T = TypeVar("T")
BATCH = 32  # insertions to a record
LINE = "2:"  # how the name of a source begins that says which rows it had
LONG = 0.9  # quantile of walks' lengths above which one is long


class Navis:
    """The index on a store (log, state) and a disk (pages)."""

    key = "navis"

    def __init__(self, cache: int = 32 << 20, buffer: int = 32 << 20, workers: int = 4) -> None:
        """Bytes for edge lists (or pages) read before, and for what changed since the last checkpoint."""
        self.cache_bytes, self.buffer_bytes, self.workers = cache, buffer, workers
        self.did = Counters()
        self.nodes: Nodes | None = None
        self.next = 0  # above all ids that ever were
        self.gate, self._turn = Gate(), asyncio.Lock()  # one change at a time, whichever thread asks for it
        self.generation = 0  # of nodes' numbers: what a walk saw of earlier ones means nothing
        self.table, self.mine = pages.Table.empty(), pages.PageFile()
        self.entrance = Entrance(np.empty(0, np.int32), np.empty((0, 32), np.int32))
        self.chunks: list[str] = []
        self.version = self.before = -1  # the newest record, and the newest state but one
        self._scratches: dict[tuple[int, int], list[Scratch]] = {}
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="walks") if workers > 1 else None

    # ------------------------------------------------------------------------------------------------- open and build

    async def open(self, store: Store, disk: Disk, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """Read the newest state and the records behind it; `exists` says whether there was one."""
        self.store, self.disk, self.clock = store, disk, clock or WallClock()
        author = "" if seed is None else f"{key_of(seed, 'navis'):016x}"
        self.author = author or os.urandom(8).hex()
        self.log = VersionLog(store, "log", author=self.author, clock=self.clock)
        self.random = stream(seed or 0, "navis")
        await self.reload()

    @property
    def exists(self) -> bool:
        """Whether there is an index."""
        return self.nodes is not None

    async def reload(self) -> None:
        """Forget memory, read what is durable; walks go on in what there was until all of it is read."""
        async with self._turn:
            await self._reload()

    async def _reload(self) -> None:
        await (other := self._twin())._read()
        self._adopt(other)

    def _twin(self) -> Navis:
        """The same index with a memory of its own, to be filled aside."""
        other = copy(self)
        other.gate, other._scratches, other.mine = Gate(), {}, pages.PageFile()
        return other

    def _adopt(self, other: Navis) -> None:
        """Take another's memory over, when nobody walks in ours."""
        with self.gate.changing():
            mine = {name: self.__dict__[name] for name in ("gate", "_scratches", "_turn", "_pool")}
            self.__dict__ |= other.__dict__ | mine | {"generation": self.generation + 1}

    async def _read(self) -> None:
        self.nodes = None
        found = await self.log.snapshot()
        self.version = self.before = found.version
        if not found.state:  # none was built, or not to its end
            self.version = await self.log.latest()
            return
        try:
            state = msgspec.msgpack.decode(found.state, type=State)
        except msgspec.MsgspecError as error:
            raise BadInput("this is no index of vectors but something else's folder; name another one") from error
        self.config, self.root, self.sources = state.config, state.root, dict(state.sources)
        self.centres = array(state.centres, np.float32, *state.shape)
        nodes = self._begin(self.config)
        nodes.reserve(state.count)
        for name in state.chunks:
            pages.read_chunk(nodes, name, await self.store.get(name))
        nodes.count = nodes.first_fresh = state.count
        nodes.dead[: state.count] = np.unpackbits(np.frombuffer(state.dead, np.uint8), count=state.count)
        nodes.lost = int(nodes.dead[: state.count].sum())
        nodes.number = Numbers(nodes.ids[: state.count])
        if state.tags[0]:
            nodes.tags = {name: i for i, name in enumerate(state.tags[0])}
            nodes.tag[: state.count] = array(state.tags[1], np.int32)
        self.next = max(state.next, int(nodes.ids[: state.count].max(initial=-1)) + 1)
        np.add.at(nodes.children, nodes.parents[: state.count], 1)
        self.chunks = state.chunks
        self.table = pages.Table(
            list(state.files), array(state.edge_place, np.int64), array(state.edge_sum, np.uint32),
            array(state.vector_place, np.int64), array(state.vector_sum, np.uint32), array(state.fill, np.uint8),
        )  # fmt: skip
        self.entrance = records.entrance(state)
        await self.disk.open(self.table.files)
        async for version, data in self.log.tail(self.version):
            self.version = version
            self._apply(msgspec.msgpack.decode(data, type=Record))
        self._look()

    def _begin(self, config: Config) -> Nodes:
        """Memory for an index."""
        geo = self.geo = geometry(config.width, config.degree, config.packed, by_page=not config.aware)
        # Lists and vectors get what an insertion adds of each: one vector, and some eight lists that had not changed.
        insert = 4 * config.width + 8 * 4 * (config.degree + 1)
        batches = max(self.buffer_bytes // insert, 2 * BATCH)
        least = 2 * BATCH * (config.degree + 2)
        self.nodes = Nodes(len(self.centres), config.degree, config.width, max(8 * batches, least), batches)
        self.cache = ListCache(geo, self.cache_bytes, config.aware)
        self._late = queue.SimpleQueue[tuple[int, Scratch]]()
        self._free()
        self._walks = np.zeros(256)
        self._seen = 0
        self.mine = pages.PageFile()
        return self.nodes

    async def build(
        self, vectors: Array, ids: Array, config: Config, *, source: str = "", seed: int = 0,
        progress: building.Progress = lambda done, total: None, base: building.Base | None = None,
        tags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """The first nodes, linked in memory, written as the first state; nothing is there before that is durable."""
        if self.exists:
            raise BadInput("there is an index already; insert into it, or build elsewhere")
        rows = np.ascontiguousarray(vectors, np.float32)
        begun = base or building.base(rows, config.degree, config.breadth, config.alpha, seed, progress)
        self.config, self.sources = config, {source: len(rows)} if source else {}
        self._lay(rows, ids, begun, tags)
        while not await self.log.append(self.version + 1, msgspec.msgpack.encode(Kept())):
            self.version = await self.log.latest()  # of one that died while it built, or that was quicker
            if (await self.log.snapshot()).state:
                raise BadInput("another process built an index here meanwhile; insert into it")
        self.version += 1
        await self._write_first(rows, begun)

    def _lay(self, rows: Array, ids: Array, begun: building.Base, tags: Sequence[str] = ()) -> None:
        """The first nodes, in memory."""
        config = self.config
        self.centres, self.root, lists, parents = begun.code.centres, begun.root, begun.lists, begun.parents
        nodes = self._begin(config)
        nodes.reserve(len(rows))
        n = nodes.count = nodes.first_fresh = len(rows)
        nodes.codes[:n] = begun.codes
        nodes.ids[:n], nodes.parents[:n] = ids, parents
        nodes.tag[: len(tags)] = [nodes.tags.setdefault(tag, len(nodes.tags)) for tag in tags]
        self.next = max(self.next, int(np.max(ids, initial=-1)) + 1)
        nodes.number = Numbers(nodes.ids[:n])
        np.add.at(nodes.children, parents, 1)
        nodes.slots[pages.breadth_first(lists, self.root)] = np.arange(n, dtype=np.int32)
        self.table = pages.Table.empty()
        self.entrance = Entrance.of(begun.levels)
        self.chunks = []

    async def _write_first(self, rows: Array, begun: building.Base) -> None:
        await pages.write_all(self, new := self.table.copy(), begun.lists, rows)
        await self._save(new)
        self._look()

    def _decode(self, nodes: Array) -> Array:
        assert self.nodes is not None
        found: Array = decoded(self.centres, self.nodes.codes, nodes, self.config.width)
        return found

    def _table_of(self, node: int) -> Array:
        """Distances of the parts of what a node's code stands for to all centres."""
        table: Array = prepare(self.centres, self._decode(np.array([node], np.int32))[0])[0]
        return table

    def _look(self) -> None:
        """What walks see from now on."""
        nodes, table = self.nodes, self.table
        assert nodes is not None
        self.cache.grow(len(table.fill) if self.geo.by_page else len(nodes.slots))
        files = np.array([self.disk.descriptor(name) for name in table.files], np.int64)
        self.view = View(
            nodes.codes, nodes.slots, nodes.fresh_row, nodes.fresh, nodes.first_fresh, nodes.fresh_vectors,
            self.cache.row_of, self.cache.pool, table.edge_place, table.edge_sum, table.vector_place,
            table.vector_sum, files, self.geo,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------------------- walks

    def _walk(
        self, query: Array, breadth: int, top: int, first: int, want: int, every: bool
    ) -> tuple[Scratch, Array, Array]:
        """(the scratch with what a walk found, the query's code, places of the entrance that it passed)."""
        assert self.nodes is not None
        if not np.isfinite(query).all():
            raise BadInput("a vector holds NaN or infinity; finite numbers expected")
        table, code = prepare(self.centres, query)
        entries, passed = self.entrance.find(table, self.nodes.codes)
        try:
            x = self._scratches.setdefault((breadth, want), []).pop()
        except IndexError:
            x = scratch(breadth, want, self.geo, self.disk.direct)
        if bad := seek(
            self.view, x, query, table, entries, self.config.beam, top, self.config.settle, first, want, every
        ):
            raise Damaged(self._told(int(bad)))
        return x, code, passed

    def _told(self, bad: int) -> str:
        if bad < 0:
            return "the system refused asynchronous reads; try again with fewer workers"
        key = bad - 1
        place = int((self.table.vector_place if key & 1 else self.table.edge_place)[key >> 1])
        file, page = self.table.files[place >> FILE], place & ((1 << FILE) - 1)
        return f"page {page} of pages/{file} is not what was written: restore the index from a copy, or build it again"

    def _release(self, x: Scratch, breadth: int, want: int) -> None:
        self._scratches[breadth, want].append(x)

    def _each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        if self._pool is None or len(items) == 1:
            return [work(item) for item in items]
        return list(self._pool.map(work, items))

    def search(
        self, queries: Array, k: int = 10, breadth: int | None = None, tag: str | None = None
    ) -> tuple[Array, Array]:
        """Ids and squared distances of the nearest, one row a query; -1 and infinity where there are fewer."""
        return searching.search(self, queries, k, breadth, tag)

    # -------------------------------------------------------------------------------------------------------- changes

    async def insert(
        self, ids: Array, vectors: Array, *, source: str = "", rows: int = 0, tags: Sequence[str] = (),
        over: bool = False,
    ) -> int:  # fmt: skip
        """Add vectors under ids that are not there yet; durable when it returns. How many were new.

        `over`: those that are there are replaced, each at once with its successor's record, by the last of its id.
        """
        async with self._turn:
            added = await self._insert_all(ids, vectors, source, rows, tags, over)
            if over:
                await compact(self)
            return added

    async def _insert_all(
        self, ids: Array, vectors: Array, source: str, rows: int, tags: Sequence[str], over: bool
    ) -> int:
        fresh = self._new(ids, vectors, over)
        added = len(fresh)
        for first in range(0, max(len(fresh), 1), BATCH):
            part = fresh[first : first + BATCH]
            done = rows if first + BATCH >= len(fresh) else 0
            # All there already: then only how far a source has come may be new.
            while (len(part) or done) and not await self._insert(
                ids[part], vectors[part], source, done, [tags[i] for i in part] if len(tags) else []
            ):
                await self._reload()  # a dead process's record landed: it may hold some of these
                if not over:
                    part = part[[not self._found(one) for one in ids[part].tolist()]]
        return added

    @property
    def _there(self) -> Numbers:
        return self.nodes.number  # type: ignore[union-attr]

    def _new(self, ids: Array, vectors: Array, over: bool) -> Array:
        if self.nodes is None:
            raise BadInput("there is no index here; build it first")
        if vectors.ndim != 2 or vectors.shape[1] != self.config.width or len(ids) != len(vectors):
            raise BadInput(
                f"{len(ids)} ids, vectors of shape {vectors.shape}; (n, {self.config.width}) expected, as here"
            )
        if len(ids) and int(ids.min()) < 0:
            raise BadInput(f"an id is {int(ids.min())}; numbers from 0 on expected")
        if over:
            return np.array(sorted({one: i for i, one in enumerate(ids.tolist())}.values()), np.int64)
        first = {one: i for i, one in reversed(list(enumerate(ids.tolist())))}  # the first of those with one id
        return np.array(sorted(i for one, i in first.items() if not self._found(one)), np.int64)

    def _found(self, one: int) -> bool:
        """Whether an id is there, and not deleted."""
        return one in self._there and not self._is_dead(one)

    async def _insert(self, ids: Array, vectors: Array, source: str, rows: int, tags: Sequence[str]) -> bool:
        nodes = self.nodes
        assert nodes is not None
        if not nodes.room(len(ids)):
            await self._checkpoint()
            nodes = self.nodes
            assert nodes is not None
        first, touched = nodes.count, [np.empty(0, np.int32)]
        for at in range(0, len(ids), self.workers):
            some = np.ascontiguousarray(vectors[at : at + self.workers], np.float32)
            touched += self._wave(ids[at : at + self.workers], some, tags[at : at + self.workers])
        changed = np.unique(np.concatenate(touched)).astype(np.int32)
        new = slice(first, nodes.count)
        added = nodes.fresh_vectors[first - nodes.first_fresh : nodes.count - nodes.first_fresh]
        record = Inserted(
            first, nodes.ids[new].tobytes(), added.tobytes(),
            nodes.codes[new].tobytes(), nodes.slots[new].tobytes(), nodes.parents[new].tobytes(), changed.tobytes(),
            records.packed_lists(nodes.fresh[nodes.fresh_row[changed]]), source, rows, list(tags) if any(tags) else [],
        )  # fmt: skip
        if not await self._commit(record):
            return False
        self.did.inserts += len(ids)
        self._came(source, rows)
        return True

    def _came(self, source: str, rows: int) -> None:
        """How far a source has come; what was known of its line goes (see `vector_index`)."""
        if source and rows:
            line = source[: source.index(":", 2) + 1] if source.startswith(LINE) else source
            self.sources = {name: n for name, n in self.sources.items() if not name.startswith(line)} | {source: rows}

    async def _commit(self, record: Record) -> bool:
        data = msgspec.msgpack.encode(record)
        try:
            if not await self.log.append(self.version + 1, data):
                return False
        except StoreError:  # memory is ahead of what is durable: go back to that
            await self._reload()
            raise
        self.version += 1
        self.did.log_bytes += len(data)
        return True

    def _wave(self, ids: Array, vectors: Array, tags: Sequence[str]) -> list[Array]:
        """Walk for several at once, then link one after the other; the lists that changed."""
        config, nodes = self.config, self.nodes
        assert nodes is not None
        want = config.breadth if config.packed else min(config.exact, config.breadth)

        def position(vector: Array) -> tuple[Scratch, Array, Array]:
            with self.gate.walking():
                return self._walk(vector, config.breadth, min(want, config.exact), want, want, False)

        walked = self._each(position, list(vectors))
        touched = []
        with self.gate.changing():
            nodes.reserve(nodes.count + len(ids))
            peers: list[int] = []
            named = zip(ids.tolist(), tags or [""] * len(ids), strict=True)
            for name, vector, (x, code, passed) in zip(named, vectors, walked, strict=True):
                touched.append(self._link(name, vector, x, code, passed, peers))
                peers.append(nodes.count - 1)
                self.cache.learn(self.view, x)
                self._release(x, config.breadth, want)
            while not self._late.empty():
                generation, late = self._late.get()
                if generation == self.generation:
                    self.cache.learn(self.view, late)
            self._look()
        return touched

    def _link(
        self, name: tuple[int, str], vector: Array, x: Scratch, code: Array, passed: Array, peers: list[int]
    ) -> Array:
        nodes, steps, node = self.nodes, int(x.tally[STEPS]), 0
        assert nodes is not None
        node = nodes.count
        near = np.concatenate([x.expanded[:steps], np.array(peers, np.int32)])
        some = self._decode(near)
        exact = {int(v): i for i, v in enumerate(x.ids[: int(x.tally[WANTED])].tolist()) if x.exact[i] >= 0}
        for i, v in enumerate(near.tolist()):
            if v >= nodes.first_fresh:
                some[i] = nodes.fresh_vectors[v - nodes.first_fresh]
            elif v in exact:
                some[i] = x.vectors[exact[v]]
        lists = np.concatenate([x.lists[:steps], np.zeros((len(peers), x.lists.shape[1]), np.int32)])
        nodes.codes[node] = code
        nodes.fresh_vectors[node - nodes.first_fresh] = vector
        used, chosen = self._linked(node, vector, near, some, lists)
        nodes.used = used
        nodes.slots[node] = self.table.slot_near(nodes.slots[chosen], self.geo.per)
        nodes.name(node, *name)
        self.next = max(self.next, name[0] + 1)
        nodes.count += 1
        self._drifted(node, x, passed)
        return np.append(chosen, [np.int32(node), nodes.parents[node]])

    def _linked(self, node: int, vector: Array, near: Array, some: Array, lists: Array) -> tuple[int, Array]:
        nodes = self.nodes
        assert nodes is not None
        state = (nodes.fresh, nodes.fresh_row, nodes.fresh_node, nodes.used, nodes.parents, nodes.children)
        alpha = np.float32(self.config.alpha**2)
        used, chosen = link(node, vector, near, some, lists, *state, self.centres, nodes.codes, alpha)
        if not len(chosen):  # all of them have as many children as they can: the newest node has none
            last = np.array([node - 1], np.int32)
            used, chosen = link(
                node, vector, last, self._decode(last), self.lists(last), *state, self.centres, nodes.codes, alpha
            )
        return int(used), chosen

    def _drifted(self, node: int, x: Scratch, passed: Array) -> None:
        """Count the walk's length, and let the node join the entrance by chance, or where the walk was a long one."""
        nodes, steps = self.nodes, int(x.tally[STEPS])
        assert nodes is not None
        hops = int(x.expanded_hop[: int(np.argmin(x.expanded_far[:steps])) + 1][-1])
        did = self.did
        did.insert_reads += int(x.tally[REQUESTS])
        did.insert_hops += hops
        did.insert_steps += steps
        did.cached += int((x.source[:steps] != 2).sum())
        did.expanded += steps
        self.entrance.used(x.expanded[:1], passed)
        long = self._seen >= len(self._walks) and hops > np.quantile(self._walks, LONG)
        self._walks[self._seen % len(self._walks)] = hops
        self._seen += 1
        if not self.config.moving or not (long or self.random.random() < SHARE):
            return
        if len(self.entrance.nodes) >= capacity(nodes.count):
            self.entrance.leave(self._decode)
        self.entrance.join(node, self._table_of(node), nodes.codes, self._decode)
        self.entrance.rise(nodes.codes, self._table_of, self._decode)
        did.joined += 1
        ball = nodes.fresh[nodes.fresh_row[node], 1 : 1 + nodes.fresh[nodes.fresh_row[node], 0]]
        self.cache.tag(ball, 1)

    def lists(self, nodes: Array) -> Array:
        """Nodes' edge lists, wherever they are: (n, degree + 1)."""
        return pages.lists(self, nodes)

    async def delete(self, ids: Array) -> int:
        """Forget ids; they are no longer found when it returns. How many there were."""
        async with self._turn:
            there = [one for one in dict.fromkeys(ids.tolist()) if self._found(one)]
            record = Deleted(np.array(there, np.int64).tobytes())
            while there and not await self._commit(record):
                await self._reload()
            with self.gate.changing():
                self._apply(record)
            await compact(self)
        return len(there)

    def _is_dead(self, one: int) -> bool:
        return bool(self.nodes.dead[self._there[one]])  # type: ignore[union-attr]

    def _apply(self, record: Record) -> None:
        """A record of the log, into memory."""
        nodes = self.nodes
        assert nodes is not None
        if isinstance(record, Deleted):
            nodes.dead[[self._there[one] for one in array(record.ids, np.int64).tolist()]] = True
            nodes.lost = int(nodes.dead[: nodes.count].sum())
        if not isinstance(record, Inserted):
            return
        ids, touched = array(record.ids, np.int64), array(record.touched, np.int32)
        first, n = record.first, len(ids)
        nodes.reserve(first + n, nodes.used + len(touched), first + n - nodes.first_fresh)
        new = slice(first, first + n)
        nodes.codes[new] = array(record.codes, np.uint8, n, len(self.centres))
        nodes.slots[new], nodes.parents[new] = array(record.slots, np.int32), array(record.parents, np.int32)
        np.add.at(nodes.children, nodes.parents[new], 1)
        nodes.fresh_vectors[first - nodes.first_fresh : first + n - nodes.first_fresh] = array(
            record.vectors, np.float32, n, self.config.width
        )
        for node in touched[nodes.fresh_row[touched] < 0].tolist():
            nodes.fresh_row[node], nodes.fresh_node[nodes.used] = nodes.used, node
            nodes.used += 1
        nodes.fresh[nodes.fresh_row[touched]] = records.unpacked_lists(record.lists, len(touched), self.config.degree)
        for i, one in enumerate(ids.tolist()):
            nodes.name(first + i, one, record.tags[i] if record.tags else "")
        nodes.count = first + n
        self.next = max(self.next, int(ids.max(initial=-1)) + 1)
        self.table.take(nodes.slots[new], self.geo.per)
        self._came(record.source, record.rows)

    # ---------------------------------------------------------------------------------------------------- checkpoints

    async def checkpoint(self) -> None:
        """Lay all changes into new pages, and write the state that names them."""
        async with self._turn:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        assert self.nodes is not None
        while not await self._commit(Kept()):
            await self._reload()
        new = self.table.copy()
        await pages.write_changes(self, new)
        await self._save(new)
        await pages.collect(self)
        self.did.checkpoints += 1

    async def _save(self, new: pages.Table) -> None:
        nodes = self.nodes
        assert nodes is not None
        if self.mine.name in new.files:
            await self.disk.sync(self.mine.name)
        self.chunks = await pages.write_chunks(self)
        state = State(
            self.config, self.centres.tobytes(), self.centres.shape, self.root, nodes.count, self.chunks, new.files,
            new.edge_place.tobytes(), new.edge_sum.tobytes(), new.vector_place.tobytes(), new.vector_sum.tobytes(),
            new.fill.tobytes(), np.packbits(nodes.dead[: nodes.count]).tobytes(),
            (self.entrance.nodes.tobytes(), self.entrance.edges.tobytes(), self.entrance.uses.tobytes()), self.sources,
            self.next, [(e.nodes.tobytes(), e.edges.tobytes(), e.down.tobytes()) for e in self.entrance.levels()[1:]],
            (list(nodes.tags), nodes.tag[: nodes.count].tobytes()) if len(nodes.tags) > 1 else ([], b""),
        )  # fmt: skip
        await self.log.save_state(self.version, msgspec.msgpack.encode(state))
        if await self.store.head(self.log.state_key(self.version)) is None:
            raise StoreError("the store does not keep the checkpoint; nothing is lost, run it again")
        with self.gate.changing():
            self.mine.settle(self.table, new)
            pages.renew(self, new)
            self.table = new
            nodes.settle()
            self._look()

    def close(self) -> None:
        """Let go of files and threads; what was acknowledged is durable anyway."""
        self._free()
        if self._pool is not None:
            self._pool.shutdown()
        self.disk.close()

    def _free(self) -> None:
        """Of walks' memory all; the kernel takes its time over each, so that several go at once."""
        self._each(release, [kept.pop() for kept in self._scratches.values() for _ in range(len(kept))])

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Pages are what was written; lists are short enough, point to nodes that are there, and reach all of them."""
        return pages.check(self) if self.exists else []
