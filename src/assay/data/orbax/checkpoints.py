"""Checkpoints in a store: the component. Users meet it as `assay.data.Checkpointer`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from assay.data.engine.segments import checked, digest
from assay.data.interface import NotFound, Store, StoreError, Violation
from assay.data.orbax.pieces import Array, Piece, Table
from assay.data.orbax.reading import Target, fill, targets
from assay.data.orbax.register import Collected, Register, Saved, StepExists
from assay.data.orbax.tree import Leaf, merged, pruned
from assay.data.orbax.writing import Place, begin, cuts
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock
from assay.sim.streams import key as key_of

GRACE = 3600.0  # seconds for which what no checkpoint names may belong to a save under way
PATIENCE = 600.0  # seconds that the first rank waits for the others


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one rank wrote of a checkpoint."""

    skeleton: Any
    arrays: list[Array]
    pieces: list[Piece]


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the last few, every so many steps, and the best by their metric (the least is best).

    >>> Retention(last=2, every=100).kept({s: Saved(s, "", b"", [], 0) for s in (50, 100, 150, 200, 250)})
    [100, 200, 250]
    """

    last: int | None = None
    every: int | None = None
    best: int = 0

    def kept(self, steps: Mapping[int, Saved]) -> list[int]:
        """The steps that stay, of those there are."""
        if self.last is None:
            return sorted(steps)
        if self.last < 1:
            raise BadInput(f"at least the last checkpoint is kept, not the last {self.last}")
        keep = set(sorted(steps)[-self.last :])
        keep |= {step for step in steps if self.every and step % self.every == 0}
        ranked = sorted((s.metric, step) for step, s in steps.items() if s.metric is not None)
        return sorted(keep | {step for _, step in ranked[: self.best]})


@dataclass
class Checkpoints:
    """Save, list, read and collect checkpoints. One object a rank; they meet only in the store.

    `run` names this start of the job, the same on all ranks: what an earlier start left half-written has another.
    """

    rank: int = 0
    world: int = 1
    run: str = ""
    keep: Retention = field(default_factory=Retention)
    incremental: bool = True
    grace: float = GRACE
    key: str = "orbax"

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """Find out what is there. `seed` makes the names reproducible, for simulations."""
        self.store, self.clock = store, clock or WallClock()
        own = os.urandom(8).hex() if seed is None else f"{key_of(seed, 'run'):016x}"
        if self.world > 1 and not self.run:
            raise BadInput("several ranks need a name of this start that all of them know; pass run=…")
        self.run = self.run or own
        self.register = Register(store, f"{self.run}/{self.rank}/{own}", self.clock)
        self._saves = 0
        self._last: Table | None = None
        await self.register.refresh()

    async def steps(self) -> list[int]:
        """The checkpoints that are complete."""
        return sorted((await self.register.refresh()).steps)

    async def save(
        self, step: int, leaves: Sequence[Leaf], skeleton: Any, *, meta: Mapping[str, Any] | None = None,
        metric: float | None = None,
    ) -> None:  # fmt: skip
        """Write this rank's part; the first rank commits when all parts are there. Durable when it returns."""
        if step < 0:
            raise BadInput(f"a step is a number from 0 on, not {step}")
        state = await self.register.refresh()
        if step in state.steps:
            raise StepExists(f"step {step} is saved already; save another step, or drop this one first")
        self._saves += 1
        try:
            await self._attempt(step, leaves, skeleton, meta or {}, metric, await self._before())
        except Collected:
            if self.world > 1:  # the other ranks have gone on
                raise
            self._saves += 1  # what it leaned on is gone: write all of it, under a name that nobody condemned
            await self._attempt(step, leaves, skeleton, meta or {}, metric, {})

    async def _before(self) -> dict[Place, Piece]:
        """The pieces of the newest checkpoint, which this one need not write again where they are the same."""
        if not self.incremental or not self.register.state.steps:
            return {}
        newest = max(self.register.state.steps)
        if self._last is None or self._last.step != newest:
            self._last = await self.table(newest)
        return {(piece.path, piece.start, piece.shape): piece for piece in self._last.pieces}

    async def _attempt(
        self, step: int, leaves: Sequence[Leaf], skeleton: Any, meta: Mapping[str, Any], metric: float | None,
        before: Mapping[Place, Piece],
    ) -> None:  # fmt: skip
        since = self.register.state.collections
        name = f"{step:012d}-{self.run}.{self._saves}"
        prefix = f"data/{name}-{self.rank}-"
        writing = await begin(self.store, cuts(leaves, self.rank, self.world), prefix, before)
        arrays = [Array(leaf.path, leaf.kind, leaf.dtype, leaf.shape) for leaf in leaves]
        share = Share(skeleton, arrays, writing.pieces)
        if self.rank:  # that a part is there tells the first rank that its bytes are
            await writing.done()
            await self.store.put(f"part/{name}-{self.rank}", msgspec.msgpack.encode(share))
            return
        try:
            shares = [share, *[await self._part(f"part/{name}-{rank}") for rank in range(1, self.world)]]
            table = _table(step, shares, self.world, dict(meta))
            data = msgspec.msgpack.encode(table)
            await self.store.put(f"table/{name}", data)  # while the last bytes are written: nothing names it yet
        except BaseException:
            await writing.stop()
            raise
        await writing.done()
        objects = sorted({piece.object for piece in table.pieces})
        nbytes = sum(array.nbytes for array in table.arrays)
        await self.register.save(Saved(step, f"table/{name}", digest(data), objects, nbytes, metric), since)
        self._last = table
        await self.register.tidy()

    async def _part(self, key: str) -> Share:
        deadline = self.clock.now() + PATIENCE
        pause = 0.01
        while True:
            try:
                return msgspec.msgpack.decode(await self.store.get(key), type=Share)
            except NotFound:
                if self.clock.now() > deadline:
                    raise StoreError(
                        f"{key} did not come within {PATIENCE:.0f} s: a rank is gone; save again"
                    ) from None
            await self.clock.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    async def table(self, step: int | None = None) -> Table:
        """What a checkpoint consists of; the newest where none is named."""
        steps = (await self.register.refresh()).steps
        if not steps:
            raise NotFound("there is no checkpoint yet")
        if step is not None and step not in steps:
            near = ", ".join(map(str, sorted(steps)[-5:]))
            raise NotFound(f"there is no checkpoint of step {step}; the newest are {near}")
        saved = steps[max(steps) if step is None else step]
        data = checked(await self.store.get(saved.table), saved.digest, saved.table)
        return msgspec.msgpack.decode(data, type=Table)

    async def read(
        self, table: Table, wanted: Callable[[str], bool], places: Callable[[Array], Sequence[Target] | None],
        *, verify: bool = True,
    ) -> tuple[Any, dict[str, list[Target]], int]:  # fmt: skip
        """The skeleton of what is wanted, the filled targets of each array, and how many bytes were read.

        `places` says where an array goes; None: to fresh memory, whole.
        """
        found: dict[str, list[Target]] = {}
        fresh: list[Array] = []
        for array in table.arrays:
            given = places(array) if wanted(array.path) else ()
            if given is None:
                fresh.append(array)
            elif given:
                found[array.path] = list(given)
        found |= {one.array.path: [one] for one in targets([(array, None) for array in fresh])}
        moved = await fill(self.store, table, [one for several in found.values() for one in several], verify=verify)
        return pruned(table.skeleton, lambda path: path in found), found, moved

    async def collect(self, drop: Iterable[int] = ()) -> list[str]:
        """Let go what the retention does not keep, and what dead saves left behind; returns the objects deleted."""
        named = set(drop)
        while True:
            state = await self.register.refresh()
            if unknown := named - set(state.steps):
                raise NotFound(f"there is no checkpoint of step {min(unknown)}")
            kept = [step for step in self.keep.kept(state.steps) if step not in named]
            gone = [step for step in state.steps if step not in kept]
            condemned = await self._unneeded(state.steps, kept)
            if not gone and not condemned:
                return []
            if await self.register.collect(gone, condemned) is not None:
                break
        for key in condemned:
            await self.store.delete(key)
        await self.register.tidy()
        return condemned

    async def _unneeded(self, steps: Mapping[int, Saved], kept: Sequence[int]) -> list[str]:
        needed = {key for step in kept for key in (steps[step].table, *steps[step].objects)}
        named = {key for saved in steps.values() for key in (saved.table, *saved.objects)}
        old = self.clock.now() - self.grace
        return [
            meta.key
            for prefix in ("data/", "table/", "part/")
            async for meta in self.store.list(prefix)
            if meta.key not in needed and (meta.key in named or meta.modified <= old)
        ]

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Listed means complete: every byte of every listed checkpoint can be read and is what was written."""
        wrong = list(await self.register.log.check())
        for step in await self.steps():
            try:
                await self.read(await self.table(step), lambda path: True, lambda array: None)
            except StoreError as error:
                wrong.append(Violation("a listed checkpoint is complete", f"step {step}: {error}"))
        return wrong


def _table(step: int, shares: Sequence[Share], world: int, meta: dict[str, Any]) -> Table:
    skeleton = shares[0].skeleton
    arrays: dict[str, Array] = {}
    for share in shares:
        skeleton = merged(skeleton, share.skeleton)
        for array in share.arrays:
            if arrays.setdefault(array.path, array).shape != array.shape:
                raise BadInput(
                    f"ranks differ on the shape of '{array.path}': {arrays[array.path].shape}, {array.shape}"
                )
    return Table(step, skeleton, list(arrays.values()), [p for share in shares for p in share.pieces], world, meta)
