"""Checkpoints in a store: the component. Users meet it as `assay.data.Checkpointer`."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

from assay.data.engine.puts import put_surely
from assay.data.engine.segments import checked, digest, open_blob
from assay.data.interface import Fenced, NotFound, Store, StoreError, Violation
from assay.data.orbax.pieces import Array, Piece, Table, overlap
from assay.data.orbax.reading import Target, fill, targets
from assay.data.orbax.register import Collected, Register, Saved, StepExists
from assay.data.orbax.tree import OWN, Leaf, merged, pruned
from assay.data.orbax.writing import Place, Writing, begin, cuts, likeness
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock
from assay.sim.streams import key as key_of

GRACE = 3600.0  # seconds for which what no checkpoint names may belong to a save under way
PATIENCE = 600.0  # seconds that ranks wait for each other


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one rank wrote of a checkpoint."""

    skeleton: Any
    arrays: list[Array]
    pieces: list[Piece]
    own: str = ""  # whose it is
    likeness: list[bytes] = []  # of each array


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: those saved last, every so many steps, and the best by their metric (the least is best).

    Last is by when they were saved, not by their steps: a job that was rolled back saves lower ones.

    >>> Retention(last=2, every=100).kept({s: Saved(s, "", b"", [], 0) for s in (50, 100, 150, 200, 250)})
    [100, 200, 250]
    """

    last: int | None = None
    every: int | None = None
    best: int = 0

    def kept(self, steps: Mapping[int, Saved]) -> list[int]:
        """The steps that stay, of those there are, which come in the order in which they were saved."""
        if self.last is None:
            return sorted(steps)
        if self.last < 1:
            raise BadInput(f"at least the last checkpoint is kept, not the last {self.last}")
        keep = set(list(steps)[-self.last :])
        keep |= {step for step in steps if self.every and step % self.every == 0}
        ranked = sorted(
            (s.metric, step) for step, s in steps.items() if s.metric is not None and not math.isnan(s.metric)
        )
        return sorted(keep | {step for _, step in ranked[: self.best]})


@dataclass
class Checkpoints:
    """Save, list, read and collect checkpoints. One object a rank; they meet only in the store.

    `run` names the job, the same on all ranks, and may stay the same when it is started again: the first rank calls for
    the parts of each save under a name of its own, and only who lives can answer. Where two answer as one rank, the one
    that began last is heard.
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
        if self.world > 1 and not self.run:
            raise BadInput("several ranks need a name of this start that all of them know; pass run=…")
        own = os.urandom(8).hex() if seed is None else f"{key_of(seed, 'run'):016x}"
        self.run = self.run or own
        self._called(own)
        self._saves = 0
        self._last: Table | None = None
        await self.register.refresh()

    def _called(self, own: str) -> None:
        """Take a name that no other process has: what is written by it is ours."""
        self._own, self._process, self._claimed = own, os.getpid(), False
        self.register = Register(self.store, f"{self.run}/{self.rank}/{own}", self.clock)

    def _start(self, rank: int) -> str:
        """Where the newest process that saves as a rank has left its own name."""
        return f"start/{quote(self.run, safe='')}/{rank}"

    async def steps(self) -> list[int]:
        """The checkpoints that are complete."""
        return sorted((await self.register.refresh()).steps)

    async def save(
        self, step: int, leaves: Sequence[Leaf], skeleton: Any, *, meta: Mapping[str, Any] | None = None,
        metric: float | None = None,
    ) -> None:  # fmt: skip
        """Write this rank's part; the first rank commits when all parts are there. Durable when it returns, on any."""
        if step < 0:
            raise BadInput(f"a step is a number from 0 on, not {step}")
        if self._process != os.getpid():  # forked: the parent writes by that name
            self._called(os.urandom(8).hex())
        if self.world > 1 and not self._claimed:
            await put_surely(self.store, self._start(self.rank), self._own.encode())
            self._claimed = True
        state = await self.register.refresh()
        if step in state.steps:
            raise StepExists(f"step {step} is saved already; save another step, or drop this one first")
        try:
            await self._attempt(step, leaves, skeleton, meta or {}, metric, await self._before())
        except Collected:
            if self.world > 1:  # the other ranks have gone on
                raise
            # What it leaned on is gone: write all of it, under a name that nobody condemned.
            await self._attempt(step, leaves, skeleton, meta or {}, metric, {})

    async def _before(self) -> dict[Place, Piece]:
        """The pieces of the newest checkpoint, which this one need not write again where they are the same."""
        if not self.incremental or not self.register.state.steps:
            return {}
        newest = self.register.state.newest
        if self._last is None or self._last.step != newest:
            self._last = await self.table(newest)
        return {(piece.path, piece.start, piece.shape): piece for piece in self._last.pieces}

    async def _attempt(
        self, step: int, leaves: Sequence[Leaf], skeleton: Any, meta: Mapping[str, Any], metric: float | None,
        before: Mapping[Place, Piece],
    ) -> None:  # fmt: skip
        since = self.register.state.collections
        self._saves += 1
        calls = f"{step:012d}-{quote(self.run, safe='')}"
        name = f"{calls}.{self._saves}" if self._own == self.run else f"{calls}.{self._own}.{self._saves}"
        if not self.rank and self.world > 1:
            await self._call(calls, name, leaves)
        writing = await begin(self.store, cuts(leaves, self.rank, self.world), f"data/{name}-{self.rank}-", before)
        arrays = [Array(leaf.path, leaf.kind, leaf.dtype, leaf.shape) for leaf in leaves]
        share = Share(skeleton, arrays, writing.pieces, self._own, await self._likeness(leaves, writing))
        if self.rank:  # that a part is there tells the first rank that its bytes are
            await writing.done()
            await self._answer(step, calls, share, leaves)
            return
        try:
            await self._commit(step, name, share, leaves, meta, metric, writing, since)
        except BadInput as error:
            if self.world > 1:
                with suppress(StoreError):  # then the others only hear that it was given up
                    await put_surely(self.store, f"part/refused/{name}", str(error).encode())
            raise
        finally:  # the others look whether it is there
            if self.world > 1:
                mine = [found.key async for found in self.store.list(f"part/{name}-")]
                await self.store.delete(f"part/call/{calls}/{name}", *mine)

    async def _likeness(self, leaves: Sequence[Leaf], writing: Writing) -> list[bytes]:
        """While the last bytes are written, a look at what all ranks should hold alike."""
        if self.world == 1:
            return []
        try:
            return await asyncio.to_thread(likeness, leaves)
        except BaseException:
            await writing.stop()
            raise

    async def _commit(
        self, step: int, name: str, share: Share, leaves: Sequence[Leaf], meta: Mapping[str, Any],
        metric: float | None, writing: Writing, since: int,
    ) -> None:  # fmt: skip
        """As the first rank: gather the parts, and make the step true when all bytes are there."""
        try:
            shares = [share, *[await self._part(name, rank) for rank in range(1, self.world)]]
            _alike(shares)
            on_all = set.intersection(*({array.path for array in one.arrays} for one in shares))
            shares = await self._alone(name, shares, [leaf for leaf in leaves if leaf.path not in on_all])
            table = _table(step, shares, self.world, dict(meta))
            data = msgspec.msgpack.encode(table)
            await self.store.put(f"table/{name}", data)  # while the last bytes are written: nothing names it yet
        except BaseException:
            await writing.stop()
            raise
        await writing.done()
        objects = sorted({piece.object for piece in table.pieces})
        nbytes = sum(array.nbytes for array in table.arrays)
        if self.world > 1:  # for the others to find themselves in
            await put_surely(self.store, f"part/{name}", msgspec.msgpack.encode([share.own for share in shares]))
        await self.register.save(Saved(step, f"table/{name}", digest(data), objects, nbytes, metric), since)
        self._last = table
        await self.register.tidy()

    async def _alone(self, name: str, shares: Sequence[Share], leaves: Sequence[Leaf]) -> list[Share]:
        """Parts, of which the first is ours, without what ranks that lack an array were to write of it: we write it."""
        whole = [leaf for leaf in leaves if leaf.whole and self.world > 1]
        if not whole:
            return list(shares)
        paths = {leaf.path for leaf in whole}
        writing = await begin(self.store, cuts(whole, 0, 1), f"data/{name}-{self.rank}.{self._own}-alone-", {})
        await writing.done()
        left = [[piece for piece in share.pieces if piece.path not in paths] for share in shares]
        left[0] += writing.pieces
        return [msgspec.structs.replace(share, pieces=some) for share, some in zip(shares, left, strict=True)]

    async def _call(self, calls: str, name: str, leaves: Sequence[Leaf]) -> None:
        """As the first rank: ask the living for their parts, and tell them what is held here.

        Calls of this step that are older are nobody's.
        """
        here = [leaf.path for leaf in leaves]
        await put_surely(self.store, f"part/call/{calls}/{name}", msgspec.msgpack.encode(here))
        old = [
            meta.key async for meta in self.store.list(f"part/call/{calls}/") if meta.key != f"part/call/{calls}/{name}"
        ]
        if old:
            await self.store.delete(*old)

    async def _answer(self, step: int, calls: str, share: Share, leaves: Sequence[Leaf]) -> None:
        """As another rank: give the part to whoever calls for it, until the step is there with it."""
        answered: set[str] = set()
        async for _ in self._turns():
            names = [meta.key.rpartition("/")[2] async for meta in self.store.list(f"part/call/{calls}/")]
            for name in names:
                if name not in answered and (first := await self._there(f"part/call/{calls}/{name}")) is not None:
                    [mine] = await self._alone(name, [share], [leaf for leaf in leaves if leaf.path not in first])
                    await put_surely(self.store, f"part/{name}-{self.rank}.{self._own}", msgspec.msgpack.encode(mine))
                    answered.add(name)
            saved = (await self.register.refresh()).steps.get(step)
            if saved is not None or bytes(await self.store.get(self._start(self.rank))) != self._own.encode():
                if saved is not None and await self._among(saved.table.partition("/")[2]):
                    return
                raise Fenced(
                    f"another process is rank {self.rank} of '{self.run}' now; step {step} has nothing of this"
                )
            if answered and not names:
                why = await self._refused(answered)
                raise StoreError(f"step {step} is not saved: the first rank gave it up{why or '; save again'}")
        raise StoreError(f"step {step} was not saved within {PATIENCE:.0f} s: the first rank is gone; save again")

    async def _refused(self, names: Iterable[str]) -> str:
        """As another rank: what the first one had against a save."""
        for name in names:
            with suppress(NotFound):
                return f", as {bytes(await self.store.get(f'part/refused/{name}')).decode()}"
        return ""

    async def _among(self, name: str) -> bool:
        """As another rank: whether a save has this process's part."""
        return self._own in (await self._there(f"part/{name}") or ())

    async def _there(self, key: str) -> list[str] | None:
        """A list that the first rank left; None where it has taken it away."""
        try:
            return msgspec.msgpack.decode(await self.store.get(key), type=list[str])
        except NotFound:
            return None

    async def _part(self, name: str, rank: int) -> Share:
        """As the first rank: the part of a rank's newest process."""
        async for _ in self._turns():
            try:
                own = bytes(await self.store.get(self._start(rank))).decode()
                found = await self.store.get(f"part/{name}-{rank}.{own}")
            except NotFound:
                continue
            return msgspec.msgpack.decode(found, type=Share)
        raise StoreError(f"part/{name}-{rank} did not come within {PATIENCE:.0f} s: a rank is gone; save again")

    async def _turns(self) -> AsyncIterator[None]:
        """Look, wait, look again, for as long as there is patience."""
        deadline, pause = self.clock.now() + PATIENCE, 0.01
        while self.clock.now() <= deadline:
            yield
            await self.clock.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    async def table(self, step: int | None = None) -> Table:
        """What a checkpoint consists of; the one that was saved last where none is named."""
        steps = (await self.register.refresh()).steps
        if not steps:
            raise NotFound("there is no checkpoint yet")
        if step is not None and step not in steps:
            near = ", ".join(map(str, sorted(steps)[-5:]))
            raise NotFound(f"there is no checkpoint of step {step}; the newest are {near}")
        saved = steps[self.register.state.newest if step is None else step]
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
        """Listed means complete: every byte of every listed checkpoint can be read and is what was written.

        Behind the arrays of an object stands its footer, which restoring does not need: it must be there all the same.
        """
        wrong = list(await self.register.log.check())
        ends: set[str] = set()
        for step in await self.steps():
            try:
                table = await self.table(step)
                await self.read(table, lambda path: True, lambda array: None)
                for key in sorted({piece.object for piece in table.pieces} - ends):
                    ends.add(key)
                    await open_blob(self.store, key)
            except StoreError as error:
                wrong.append(Violation("a listed checkpoint is complete", f"step {step}: {error}"))
        return wrong


def _alike(shares: Sequence[Share]) -> None:
    """Refuse what ranks hold under one key and differ on: only one of the values could come back, or rows of each."""
    seen: dict[str, tuple[int, Array, bytes]] = {}
    for rank, share in enumerate(shares if len(shares) > 1 else ()):
        for array, like in zip(share.arrays, share.likeness, strict=True):
            other, first, its = seen.setdefault(array.path, (rank, array, like))
            who = f"ranks {other} and {rank} differ on"
            if first.shape != array.shape:
                raise BadInput(f"{who} the shape of '{array.path}': {first.shape}, {array.shape}")
            if first.dtype != array.dtype:
                raise BadInput(f"{who} the type of '{array.path}': {first.dtype}, {array.dtype}")
            if bool(its) != bool(like):
                raise BadInput(f"{who} '{array.path}': one has all of it, one a part; Sharded on both, or on none")
            if its != like:
                raise BadInput(f"{who} '{array.path}': {OWN}; its parts of an array are Sharded")


def _united(shares: Sequence[Share]) -> Any:
    """The skeleton of all ranks together."""
    skeleton = shares[0].skeleton
    for rank, share in enumerate(shares[1:], 1):
        try:
            skeleton = merged(skeleton, share.skeleton)
        except BadInput:
            for other in range(rank):
                merged(shares[other].skeleton, share.skeleton, who=f"ranks {other} and {rank}")
            raise
    return skeleton


def _table(step: int, shares: Sequence[Share], world: int, meta: dict[str, Any]) -> Table:
    skeleton = _united(shares)
    arrays: dict[str, Array] = {}
    for share in shares:
        for array in share.arrays:
            arrays.setdefault(array.path, array)
    pieces = _once([piece for share in shares for piece in share.pieces])
    by_path: dict[str, list[Piece]] = {path: [] for path in arrays}
    for piece in pieces:
        by_path[piece.path].append(piece)
    for path, some in by_path.items():
        volume, whole = sum(math.prod(piece.shape) for piece in some), math.prod(arrays[path].shape)
        if volume > whole or (world > 1 and _meet(some)):
            raise BadInput(f"'{path}' is there more than once: parts of several ranks overlap, and differ")
        if volume < whole:
            raise BadInput(f"'{path}' is not whole: of {whole:,} numbers the ranks have {volume:,}; save all its parts")
    return Table(step, skeleton, list(arrays.values()), pieces, world, meta)


def _meet(pieces: Sequence[Piece]) -> bool:
    """Whether any two pieces of an array share numbers."""
    near: list[Piece] = []
    for piece in sorted(pieces, key=lambda one: one.start):
        near = [one for one in near if not piece.start or one.start[0] + one.shape[0] > piece.start[0]]
        if any(overlap((one.start, one.shape), (piece.start, piece.shape)) for one in near):
            return True
        near.append(piece)
    return False


def _once(pieces: Sequence[Piece]) -> list[Piece]:
    """Of replicas that several ranks called their own part, one."""
    kept: dict[tuple[Place, bytes], Piece] = {}
    for piece in pieces:
        kept.setdefault(((piece.path, piece.start, piece.shape), piece.digest), piece)
    return list(kept.values())
