"""Components that are wrong in one way each: what the crash lab is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from assay.data.baselines.append_log import BATCH, AppendLog, Entry, content
from assay.data.engine.segments import SegmentBlob
from assay.data.interface import AlreadyExists, Store, Unknown, Violation
from assay.sim.clock import Clock


class PointerFirst(AppendLog):
    """Commits the record before the blob it names."""

    async def append(self, records: Sequence[bytes], first: int) -> bool:
        name = f"blob/{first:012d}-{self.author}"
        entry = Entry(name, first, len(records))
        if not await self.log.append(self.version + 1, msgspec.msgpack.encode(entry)):
            await self._catch_up()
            return False
        self.version += 1
        self.entries.append(entry)
        blob = SegmentBlob()
        for number, record in enumerate(records, first):
            blob.add(str(number), record)
        await self.store.put(name, blob.parts())
        return True


class PromisesEarly(AppendLog):
    """Tells the caller before the record is committed."""

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        while self.count < ops:
            first = self.count
            promised.extend(range(first, first + BATCH))
            await self.append([content(first + i) for i in range(BATCH)], first)


class Plain:
    """A counter in one object that is overwritten: late writes and second writers undo each other."""

    key = "plain"
    roles = ("writer",)
    lost_is_failed = False

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        self.store = store
        self.items = await self._read()

    async def _read(self) -> list[int]:
        if await self.store.head("items") is None:
            return []
        return list(map(int, bytes(await self.store.get("items")).split()))

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        while len(self.items) < ops:
            self.items.append(len(self.items))
            await self.store.put("items", " ".join(map(str, self.items)).encode())
            promised.append(self.items[-1])

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        found = set(await self._read())
        lost = [item for item in promised if item not in found]
        return [Violation("what was promised is there", str(lost))] if lost else []


class Assuming(Plain):
    """Takes a lost answer for a failure and does it again under the next number."""

    key = "assuming"

    async def _read(self) -> list[int]:
        return [int(bytes(await self.store.get(meta.key))) async for meta in self.store.list("item/")]

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        number = len(self.items)
        while len(self.items) < ops:
            try:
                await self.store.put(f"item/{number:06d}", b"%d" % len(self.items), if_absent=True)
            except (Unknown, AlreadyExists):
                number += 1
                continue
            number += 1
            self.items.append(len(self.items))
            promised.append(self.items[-1])

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        found = await self._read()
        return [] if len(found) == len(set(found)) else [Violation("each item once", str(found))]


class FragileRecovery(Assuming):
    """Recovers by moving a list aside, and does not survive dying between the two halves."""

    key = "fragile-recovery"

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        self.store = store
        if await store.head("tail") is not None:
            tail = bytes(await store.get("tail"))
            await store.delete("tail")
            await store.put("items", bytes(await store.get("items")) + b" " + tail)
        self.items = await Plain._read(self)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        if not self.items:
            await self.store.put("items", b"0")
            self.items = [0]
        while len(self.items) < ops:
            await self.store.put("tail", b"%d" % len(self.items))
            self.items.append(len(self.items))
            promised.append(self.items[-1])
            await self.store.put("items", " ".join(map(str, self.items)).encode())
            await self.store.delete("tail")

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        found = set(await Plain._read(self)) | set(self.items)
        lost = [item for item in promised if item not in found]
        return [Violation("what was promised is there", str(lost))] if lost else []


class Hangs(Plain):
    """Waits for a lock that a dead process holds."""

    key = "hangs"

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        while True:
            try:
                await store.put("lock", b"", if_absent=True)
                break
            except AlreadyExists:
                await clock.sleep(1000)
        await super().open(store, clock=clock, seed=seed)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        await super().work(ops, promised, role)
        await self.store.delete("lock")


class Stumbles(Plain):
    """Raises something of its own where an answer is lost."""

    key = "stumbles"

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        try:
            await super().work(ops, promised, role)
        except Unknown as error:
            raise KeyError("items") from error
