"""The deduplicator: a log of batches is the truth, the graph is what it can be looked up in.

A batch is decided against everything kept before it, written as one blob (sketches and shingles of the kept, every
document's fate), and becomes true by one record of the log. Whoever opens the index reads the log and has the same
graph again, from a saved one where there is one, for the graph is a function of the log. A batch that was not committed
is decided again, and comes out the same.

>>> import asyncio
>>> from assay.data.store.memory import MemStore
>>> index = Fold()
>>> asyncio.run(index.open(MemStore()))
>>> texts = ["one two three four five six seven", "and now for something completely different"]
>>> texts.append(texts[0])
>>> asyncio.run(index.observe(["a", "b", "c"], texts)).tolist()
[True, True, False]
>>> asyncio.run(index.admit(["c"], texts[2:])).of
['a']
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.engine.puts import put_surely
from assay.data.engine.sealing import sealed, unsealed
from assay.data.engine.segments import SegmentBlob, checksum, open_blob
from assay.data.engine.version_log import EMPTY, Damaged, VersionLog
from assay.data.fold.decide import Decision, Near, Plan, Settings, checked, emptiness
from assay.data.fold.graph import Graph
from assay.data.fold.memory import UNSEEN, Fates, Names, identity
from assay.data.fold.sketch import SLOTS, Sketches, bitmaps_of, sketched
from assay.data.interface import NotFound, Store, Violation
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock
from assay.sim.streams import key as key_of

STATE_EVERY = 64  # versions
_CACHED = 64 << 20  # bytes of shingles kept at hand
_SCALE = 65535  # a similarity in 16 bits


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A record of the log."""

    blob: str
    first: int  # number of the first document kept
    kept: int
    seen: int  # documents decided
    groups: list[int]  # how many were kept of each group that was looked up at once
    shingles_at: int  # where in the blob
    cursor: dict[str, Any]  # whatever the caller wants to find again


class State(msgspec.Struct, frozen=True, array_like=True):
    """What the records up to one come to."""

    batches: list[Batch]
    cursor: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The fate of each document: kept, or of which kept one it is a duplicate and how much alike."""

    keep: NDArray[np.bool_]
    of: list[str]
    alike: NDArray[np.float32]
    again: NDArray[np.bool_]  # decided by an earlier batch


Before = Callable[[int, Answer], Awaitable[None]]


class Fold:
    """Keeps the first of near-duplicates, over any number of runs. The store holds the truth.

    Without `settings` an index that is there keeps its own; a new one gets those of `fresh`. `candidates` makes an
    empty index of one's own to look documents up in; it is filled from the log.
    """

    key = "fold"

    def __init__(
        self, settings: Settings | None = None, *, fresh: Settings | None = None,
        candidates: Callable[[], Near] | None = None,
    ) -> None:  # fmt: skip
        self.settings = checked(settings or fresh or Settings())
        self._asked, self._candidates = settings is not None, candidates

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """Create or recover. `seed` names the writer; left out, a random one does."""
        self.store, self.clock = store, clock or WallClock()
        await self._agree()
        self._author = os.urandom(8).hex() if seed is None else f"{key_of(seed, 'fold'):016x}"
        self.log = VersionLog(store, "log", author=self._author, clock=self.clock)
        self._tries = 0
        await self._load()

    async def _agree(self) -> None:
        """Write the settings, or take those that are there."""
        if await self.store.head("settings") is None and [meta async for meta in self.store.list("batch/")]:
            raise Damaged("the index has lost its settings; bring them back, or make a new index in another folder")
        await put_surely(self.store, "settings", sealed(msgspec.msgpack.encode(self.settings)), if_absent=True)
        there = unsealed("settings", await self.store.get("settings"), bare=True)
        try:
            found = msgspec.msgpack.decode(there, type=Settings)
        except msgspec.MsgspecError:
            raise Damaged("settings is damaged: this is no index, or its bytes have changed") from None
        if self._asked and found != self.settings:
            old, new = msgspec.structs.asdict(found), msgspec.structs.asdict(self.settings)
            had = ", ".join(f"{name} {value}" for name, value in old.items() if new[name] != value)
            raise BadInput(f"this index was made with {had}; use that, or another folder for the index")
        self.settings = found

    async def _load(self) -> None:
        settings = self.settings
        self.version = EMPTY
        self.batches: list[Batch] = []
        self.near: Near = self._candidates() if self._candidates else emptiness(settings)
        self.fates, self.names = Fates(), Names()
        self.counts = np.zeros(0, np.uint32)
        self.cursor: dict[str, Any] = {}
        self._pending: list[tuple[Batch, NDArray[Any]]] = []
        self._sums: dict[str, NDArray[np.uint64]] = {}  # by batch: a checksum of what is read again of each kept one
        self._cache: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()
        self._cached, self.saved, self._stale = 0, 0, False
        state = await self.log.snapshot()
        folded = msgspec.msgpack.decode(state.state, type=State) if state.state else State([], {})
        for batch in folded.batches:
            await self._learn(batch)
        self.cursor, self.version = folded.cursor, state.version
        async for version, record in self.log.tail(self.version):
            await self._learn(msgspec.msgpack.decode(record, type=Batch))
            self.version = version
        await self._rebuild()

    async def _learn(self, batch: Batch) -> None:
        """Take up what a committed batch says; its graph comes later."""
        blob = await open_blob(self.store, batch.blob)
        slots = np.frombuffer(await blob.get("slots"), np.uint32).reshape(-1, SLOTS)
        keys = np.frombuffer(await blob.get("keys"), np.uint64)
        names = msgspec.msgpack.decode(await blob.get("ids"), type=list[str])
        counts = np.frombuffer(await blob.get("counts"), np.uint32)
        self._remember(batch, keys, np.frombuffer(await blob.get("fates"), np.int64), names, counts)
        if "sums" in blob.segments:
            self._sums[batch.blob] = np.frombuffer(await blob.get("sums"), np.uint64)
        vectors = bitmaps_of(slots, self.settings.bits) if self.settings.by == "graph" else slots
        self._pending.append((batch, vectors))

    def _remember(self, batch: Batch, keys: NDArray[np.uint64], fates: NDArray[np.int64], names: list[str],
                  counts: NDArray[np.uint32]) -> None:  # fmt: skip
        self.batches.append(msgspec.structs.replace(batch, cursor={}))
        self.fates.put(keys, fates)
        self.names.extend(names)
        ends = batch.first + batch.kept
        if ends > len(self.counts):
            self.counts = np.resize(self.counts, max(1024, ends + ends // 4))
        self.counts[batch.first : ends] = counts
        self.cursor.update(batch.cursor)

    async def _rebuild(self) -> None:
        """The graph of what was learnt: the newest saved one, and the batches behind it."""
        vectors = np.concatenate([bitmaps for _, bitmaps in self._pending]) if self._pending else None
        pending, self._pending = self._pending, []
        if vectors is None:
            return
        saved = await self._saved_graph(len(vectors)) if isinstance(self.near, Graph) else None
        if saved is not None and isinstance(self.near, Graph):
            self.near.restore(saved, vectors)
        for batch, bitmaps in pending:
            if batch.first >= self.near.size:
                self._regrow(batch, bitmaps)
        self.saved = self.near.size if saved is None else int(saved["head"][0])

    def _regrow(self, batch: Batch, bitmaps: NDArray[Any]) -> None:
        first = 0
        for kept in batch.groups:
            some = bitmaps[first : first + kept]
            self.near.add(some, self.near.search(some))
            first += kept

    async def _saved_graph(self, size: int) -> dict[str, NDArray[Any]] | None:
        keys = [meta.key async for meta in self.store.list("graph/")]
        kinds = {"head": np.int64, "links": np.int32, "gaps": np.uint16, "above": np.int32, "upper": np.int32}
        width = {"links": 2 * self.settings.links, "gaps": 2 * self.settings.links, "upper": self.settings.links}
        for key in reversed(keys):
            if int(key.rpartition("/")[2]) > size:
                continue
            try:
                blob = await open_blob(self.store, key)
                flat = {name: np.frombuffer(await blob.get(name), kind) for name, kind in kinds.items()}
            except (NotFound, Damaged):  # it is a convenience: an older one does, or none
                continue
            return {name: one.reshape(-1, width[name]) if name in width else one for name, one in flat.items()}
        return None

    async def save_graph(self) -> None:
        """Keep the graph, so that opening need not search for every document again; older ones go."""
        size = self.near.size
        if size == self.saved or not isinstance(self.near, Graph):
            return
        blob = SegmentBlob()
        for name, array in self.near.saved().items():
            blob.add(name, _bytes(array))
        await self.store.put(f"graph/{size:020d}", blob.parts())
        self.saved = size
        old = [meta.key async for meta in self.store.list("graph/") if int(meta.key.rpartition("/")[2]) < size]
        if len(old) > 1:
            await self.store.delete(*old[:-1])

    @property
    def attempt(self) -> str:
        """What the batch that is being decided is called, and no other attempt at any batch."""
        return f"{self._author}-{self._tries}"

    def attempts(self) -> list[str]:
        """What the committed batches were called, oldest first."""
        return [batch.blob.partition("-")[2] for batch in self.batches]

    async def identity(self) -> str:
        """A name of this index that no other has."""
        await put_surely(self.store, "identity", sealed(os.urandom(16).hex().encode()), if_absent=True)
        return unsealed("identity", await self.store.get("identity")).decode()

    @property
    def kept(self) -> int:
        """Documents kept so far."""
        return self.near.size

    @property
    def seen(self) -> int:
        """Documents decided so far."""
        return sum(batch.seen for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """Memory that grows with the documents."""
        return self.near.nbytes + self.fates.nbytes + self.names.nbytes + self.counts.nbytes + self._cached

    async def observe(self, ids: Sequence[str], texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which to keep; durable when it returns. The same documents again get the same answer."""
        return (await self.admit(ids, texts)).keep

    async def admit(
        self, ids: Sequence[str], texts: Sequence[str], *, cursor: Mapping[str, Any] | None = None,
        before: Before | None = None,
    ) -> Answer:  # fmt: skip
        """Decide a batch and commit it; `before` is called with its version and the answer just before it is true."""
        if len(ids) != len(texts):
            raise BadInput(f"{len(ids)} ids for {len(texts)} texts; one each expected")
        keys = np.array([identity(name, text) for name, text in zip(ids, texts, strict=True)], np.uint64)
        _, firsts, back = np.unique(keys, return_index=True, return_inverse=True)
        first_time = firsts[back] == np.arange(len(keys))  # the same document twice in one batch is kept once
        raced = False
        while True:
            if self._stale:
                await self._load()
            fresh = np.flatnonzero((self.fates.get(keys) == UNSEEN) & first_time)
            if not len(fresh) and (raced or not cursor):  # whoever was quicker has our cursor, too
                known = self.fates.get(keys)
                return self._answer(known, first_time, [], known != UNSEEN)
            sketches = sketched([texts[int(row)] for row in fresh], self.settings.bits)
            self._stale = True  # until it is committed, the graph is ahead of the log
            plan = await Decision(self.settings, self.near, sketches, self._fetched).made()
            names = [ids[int(fresh[i])] for i in plan.kept]
            fates = self.fates.get(keys)
            again = fates != UNSEEN
            fates[fresh] = plan.fates * (_SCALE + 1) + np.rint(plan.alike * _SCALE).astype(np.int64)
            answer = self._answer(fates[firsts[back]], first_time, names, again)
            batch = await self._written(names, keys[fresh], fates[fresh], sketches, plan, dict(cursor or {}))
            if before is not None:
                await before(self.version + 1, answer)
            if await self.log.append(self.version + 1, msgspec.msgpack.encode(batch)):
                self.version, self._stale = self.version + 1, False
                self._remember(batch, keys[fresh], fates[fresh], names, sketches.counts[plan.kept].astype(np.uint32))
                return answer
            raced = True

    def _answer(
        self, packed: NDArray[np.int64], first_time: NDArray[np.bool_], names: Sequence[str], again: NDArray[np.bool_]
    ) -> Answer:
        """In words; `names` are those of documents that are about to be kept."""
        fates, alike = packed >> 16, ((packed & _SCALE) / _SCALE).astype(np.float32)
        keep, known = (fates >= 0) & first_time, len(self.names)
        numbers = [int(fate) if fate >= 0 else -1 - int(fate) for fate in fates]
        of = [
            "" if kept else names[number - known] if number >= known else self.names[number]
            for kept, number in zip(keep, numbers, strict=True)
        ]
        alike[(fates >= 0) & ~keep] = 1  # the very document that is kept
        return Answer(keep, of, np.where(keep, np.float32(0), alike), again)

    async def _written(
        self, names: list[str], keys: NDArray[np.uint64], fates: NDArray[np.int64], sketches: Sketches, plan: Plan,
        cursor: dict[str, Any],
    ) -> Batch:  # fmt: skip
        """Everything of a batch in one blob, and the record that would make it true."""
        kept = plan.kept
        blob = SegmentBlob()
        blob.add("slots", _bytes(sketches.slots[kept]), rows=len(kept))
        blob.add("counts", _bytes(sketches.counts[kept].astype(np.uint32)))
        exact = self.settings.verify == "exact" and kept
        shingles = np.concatenate([sketches.shingles_of(row) for row in kept]) if exact else np.zeros(0, np.uint32)
        at = blob.add("shingles", _bytes(shingles)).offset
        again = self.settings.verify == "minhash"
        sums = _sums([sketches.slots[row] if again else sketches.shingles_of(row) for row in kept])
        blob.add("sums", _bytes(sums))
        blob.add("keys", _bytes(keys))
        blob.add("fates", _bytes(fates))
        blob.add("ids", msgspec.msgpack.encode(names))
        self._tries += 1
        name = f"batch/{self.version + 1:012d}-{self.attempt}"
        self._sums[name] = sums
        await put_surely(self.store, name, blob.parts())
        return Batch(name, len(self.names), len(kept), len(keys), plan.groups, at, cursor)

    async def _fetched(self, wanted: list[int]) -> dict[int, NDArray[np.uint32]]:
        """What is needed of kept documents to look at them closely."""
        missing = [one for one in wanted if one not in self._cache]
        for one, data in zip(missing, await asyncio.gather(*map(self._read, missing)), strict=True):
            self._cache[one] = data
            self._cached += data.nbytes
        found = {}
        for one in wanted:
            self._cache.move_to_end(one)
            found[one] = self._cache[one]
        while self._cached > _CACHED:
            self._cached -= self._cache.popitem(last=False)[1].nbytes
        return found

    async def _read(self, number: int) -> NDArray[np.uint32]:
        """A kept document's shingles, or its slots, from the blob of its batch."""
        low, high = 0, len(self.batches) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.batches[middle].first <= number else (low, middle - 1)
        batch = self.batches[low]
        if self.settings.verify == "minhash":
            first, length = 4 * SLOTS * (number - batch.first), 4 * SLOTS
        else:
            before = int(self.counts[batch.first : number].sum(dtype=np.int64))
            first, length = batch.shingles_at + 4 * before, 4 * int(self.counts[number])
        data = np.frombuffer(await self.store.get(batch.blob, first, length), np.uint32)
        if batch.blob not in self._sums:
            self._sums[batch.blob] = await self._sums_of(batch)
        if _sums([data])[0] != self._sums[batch.blob][number - batch.first]:
            raise Damaged(f"{batch.blob} is damaged at {first}: its bytes are not those that were written; "
                          "restore it from a copy, or make the index again")  # fmt: skip
        return data

    async def _sums_of(self, batch: Batch) -> NDArray[np.uint64]:
        """Of a batch of an earlier version, which has none: from all of it, checked."""
        blob = await open_blob(self.store, batch.blob)
        if self.settings.verify == "minhash":
            return _sums(list(np.frombuffer(await blob.get("slots"), np.uint32).reshape(-1, SLOTS)))
        counts = self.counts[batch.first : batch.first + batch.kept]
        whole = np.frombuffer(await blob.get("shingles"), np.uint32)
        return _sums(np.split(whole, np.cumsum(counts[:-1], dtype=np.int64)) if len(counts) else [])

    async def tidy(self) -> None:
        """Now and then: the folded log, so that opening reads one object; what it covers goes after a while."""
        await self.log.save_state(self.version, msgspec.msgpack.encode(State(self.batches, self.cursor)))
        await self.log.trim(self.version)

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Fates are consistent, every kept document is in the graph, and every blob is whole."""
        wrong = list(await self.log.check())
        expected, seen = 0, 0
        for batch in self.batches:
            if batch.first != expected or sum(batch.groups) != batch.kept:
                wrong.append(Violation("kept documents are numbered in order", f"{batch.first} follows {expected - 1}"))
            expected, seen = batch.first + batch.kept, seen + batch.seen
            try:
                blob = await open_blob(self.store, batch.blob)
                for name in blob.segments:
                    await blob.get(name)
            except (NotFound, Damaged) as error:
                wrong.append(Violation("a committed batch can be read", str(error)))
        if self.fates.size != seen:
            wrong.append(Violation("each document is decided once", f"{self.fates.size} of {seen}"))
        if not self.near.size == len(self.names) == expected:
            wrong.append(Violation("every kept document is indexed", f"{self.near.size} of {expected}"))
        return wrong


def _sums(parts: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint64]:
    return np.array([int.from_bytes(checksum(_bytes(part))[:8], "little") for part in parts], np.uint64)


def _bytes(array: NDArray[Any]) -> memoryview | bytes:
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""
