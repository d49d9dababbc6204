"""The plane: producers, consumers and the reclaimer that share one store, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from assay.data.engine.puts import put_surely
from assay.data.engine.segments import digest
from assay.data.engine.version_log import VersionLog
from assay.data.interface import AlreadyExists, NotFound, Store, StoreError, Violation, checked_key
from assay.data.lakestream.consumer import Consumer, Reclaimed
from assay.data.lakestream.manifest import Change, Delta, Full, Manifest, Records, State
from assay.data.lakestream.pace import Adaptive, Pace
from assay.data.lakestream.producer import CHECK, Producer
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock
from assay.sim.streams import key as key_of

GRACE = 60.0  # seconds between the commit that drops steps and the deletion of their objects
MODES: dict[str, type[Records]] = {"delta": Delta, "full": Full}


class Shape(msgspec.Struct, frozen=True):
    """What all who open a plane agree on: slices to a batch, producers that will end (0: it never ends), encoding."""

    slices: int
    producers: int
    mode: str


class Plane:
    """Global training batches in a store. Whoever opens it first says its shape; later ones need not.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> async def a_batch_of_two_ranks() -> list[bytes]:
    ...     plane = Plane(slices=2, producers=1)
    ...     await plane.open(MemStore())
    ...     producer = plane.producer("crawl")
    ...     assert await producer.start() is None  # from the beginning
    ...     await producer.publish([b"for rank 0", b"for rank 1"], cursor=1)
    ...     await producer.finish()
    ...     return [bytes(part) async for _, parts in plane.consumer(1, 2).follow() for part in parts]
    >>> asyncio.run(a_batch_of_two_ranks())
    [b'for rank 1']
    """

    key = "lakestream"

    def __init__(self, slices: int = 0, producers: int | None = None, *, mode: str = "", grace: float = GRACE) -> None:
        self._asked = slices, producers, mode
        self.grace = grace

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """Read what the plane is, or found it; read its manifest."""
        self.store, self.clock, self.seed = store, clock or WallClock(), seed
        self.shape = await self._agreed()
        self._opened = 0
        self.manifest = self._manifest("plane")
        await self.manifest.refresh()

    async def _agreed(self) -> Shape:
        slices, producers, mode = self._asked
        if slices:
            if slices < 1 or (producers or 0) < 0 or (mode or "delta") not in MODES:
                raise BadInput(f"a plane has 1 or more slices and is one of {', '.join(MODES)}, not {slices}, '{mode}'")
            try:
                founded = Shape(slices, producers or 0, mode or "delta")
                await self.store.put("shape", msgspec.json.encode(founded), if_absent=True)
            except AlreadyExists:
                pass
            except StoreError:  # a lost answer: whatever is there by now counts
                if await self.store.head("shape") is None:
                    raise
        try:
            shape = msgspec.json.decode(bytes(await self.store.get("shape")), type=Shape)
        except NotFound:
            raise BadInput("there is no plane here yet; its first producer says how many slices a batch has") from None
        except msgspec.DecodeError as error:
            raise BadInput(f"this is no plane, or its shape is damaged: {error}") from error
        asked = (slices or shape.slices, shape.producers if producers is None else producers, mode or shape.mode)
        if asked != (shape.slices, shape.producers, shape.mode):
            raise BadInput(
                f"this plane has {shape.slices} slices, {shape.producers} producers and is {shape.mode}, "
                f"not {asked[0]}, {asked[1]} and {asked[2]}; leave them out, or found another plane"
            )
        return shape

    def _manifest(self, who: str) -> Manifest:
        self._opened += 1
        author = "" if self.seed is None else f"{key_of(self.seed, 'lakestream', who, self._opened):016x}"
        log = VersionLog(self.store, "manifest", author=author, clock=self.clock)
        return Manifest(log, MODES[self.shape.mode]())

    def producer(self, pid: str, pace: Pace | None = None, **options: Any) -> Producer:
        """A writer of batches with a name that survives restarts."""
        checked_key(f"data/{pid}/0")
        if "/" in pid:
            raise BadInput(f"'{pid}' is no name of a producer: no / in it")
        return Producer(
            self.store, self._manifest(pid), pid, self.shape.slices, pace or Adaptive(), self.clock,
            seed=self.seed or 0, **options,
        )  # fmt: skip

    def consumer(self, rank: int, world: int, turns: Sequence[str] = ()) -> Consumer:
        """A reader of one rank's slices."""
        shape = self.shape
        manifest = self._manifest(f"rank {rank}")
        return Consumer(self.store, manifest, rank, world, shape.slices, shape.producers, self.clock, turns)

    async def retain(self, steps: Iterable[int]) -> None:
        """Keep everything from the oldest of these steps on, and let what comes before it go: those of checkpoints.

        New markers are written before old ones are removed, so that there is no moment without the oldest needed one.
        """
        wanted = {f"ckpt/{step:020d}": step for step in steps}
        there = {meta.key async for meta in self.store.list("ckpt/")}
        for key in wanted:
            if key not in there:
                await put_surely(self.store, key, b"")
        base = (await self.manifest.refresh()).base  # looked at when the markers are there: no reclaimer passes them
        if wanted and min(wanted.values()) < base:
            raise Reclaimed(f"step {min(wanted.values())} was reclaimed already; the plane begins with {base}")
        if gone := sorted(there - set(wanted)):
            await self.store.delete(*gone)

    async def retained(self) -> list[int]:
        """The marked steps, oldest first; one before the plane's first step is a dead process's that came too late."""
        marks = [int(meta.key.rpartition("/")[2]) async for meta in self.store.list("ckpt/")]
        return [step for step in marks if step >= self.manifest.state.base]

    async def reclaim(self) -> list[str]:
        """Drop the steps before the oldest checkpoint from the manifest; after a grace, delete what nobody can need.

        Deletable is what a committed manifest, known for longer than the grace, no longer names, and what an earlier
        start of a producer wrote and did not commit: its name is fenced off, so it never can. Without any checkpoint
        nothing is dropped.
        """
        while True:
            state = await self.manifest.refresh()
            marks = await self.retained()
            base = min(marks[0], state.next_step) if marks else state.base
            if base <= state.base or await self.manifest.append(Change(state.next_step, base)):
                break
        state = self.manifest.state
        await self.clock.sleep(self.grace)
        needed = {batch.key for batch in state.steps().values()}
        gone = [meta.key async for meta in self.store.list("data/") if meta.key not in needed and over(meta.key, state)]
        if gone:
            await self.store.delete(*gone)
        await self.manifest.trim()
        return gone

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Every visible step can be read, and each producer's batches are there once and in order."""
        wrong = list(await self.manifest.log.check())
        state = await self.manifest.refresh()
        last: dict[str, int] = {}
        for step, batch in state.steps().items():
            if batch.producer in last and batch.seq != last[batch.producer] + 1:
                detail = f"step {step}: {batch.producer}'s {batch.seq} follows {last[batch.producer]}"
                wrong.append(Violation("each batch is one step, in its producer's order", detail))
            last[batch.producer] = batch.seq
            try:
                parts = await self.store.get_ranges(batch.key, [(one.offset, one.length) for one in batch.slices])
                if any(digest(p)[:CHECK] != one.digest for p, one in zip(parts, batch.slices, strict=True)):
                    wrong.append(Violation("a visible step keeps its bytes", f"step {step}"))
            except StoreError as error:
                wrong.append(Violation("a visible step can be read", f"step {step}: {error}"))
        return wrong


def over(key: str, state: State) -> bool:
    """Whether an object that the state does not name can never be named any more.

    >>> from assay.data.lakestream.manifest import Row, data_key
    >>> state = State(table={"p": Row(epoch=2, last_seq=5)})
    >>> over(data_key("p", 1, 9), state), over(data_key("p", 2, 5), state), over(data_key("p", 2, 6), state)
    (True, True, False)
    """
    _, producer, name = key.split("/")
    epoch, _, seq = name.partition("-")
    row = state.table.get(producer)
    return row is not None and (int(epoch) < row.epoch or (int(epoch) == row.epoch and int(seq) <= row.last_seq))
