"""A job: a graph in a store, a log of supersteps, and who is woken for the next one.

The coordinator keeps nothing that it could not read again. Its truth is a log with a record a superstep: for each group
that ran, the official outcome. From the log follow every group's last saved state, the mail since then, and who has
mail now; whoever opens the log goes on from there, and two who do it at once agree.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.engine.puts import put_surely
from assay.data.engine.segments import SegmentBlob
from assay.data.engine.version_log import VersionLog
from assay.data.graphflash.function import BUNDLE, VERTEX, Call, Done, Posted, done_key
from assay.data.graphflash.parts import (
    Field,
    Floats,
    Network,
    Place,
    as_arrays,
    cut,
    digest_of,
    parts_of,
    read_arrays,
    write_arrays,
)
from assay.data.graphflash.programs import PROGRAMS, Params, finished
from assay.data.interface import NotFound, Store, StoreError
from assay.sim.clock import Clock, WallClock
from assay.sim.faas import CallFailed, Platform
from assay.sim.ledger import Ledger

PINNED, ROTATING = "pinned", "rotating"
MODES = (PINNED, ROTATING)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Design:
    """How supersteps go through the store. The default is the paper's; the others are what it is compared with.

    `mode`: kept functions with state in memory, or one part after the other through few of them. `layout`: an object a
    sender (`bundle`), a pair of groups (`pair`), or a vertex. `local`: run to the end inside a part. `wake`: whom the
    next superstep calls: those with `mail`, or `all`.
    """

    mode: str = PINNED
    layout: str = BUNDLE
    local: bool = True
    wake: str = "mail"
    checkpoint: int = 5  # supersteps of a kept function between two states that it puts


GRAPHFLASH = Design()
GRAPHLESS = Design(ROTATING, VERTEX, local=False, wake="all")


class Cut(msgspec.Struct, frozen=True):
    """A graph that lies in a store in parts."""

    name: str
    n: int
    m: int
    boundary: int  # vertices of other parts that the parts know
    parts: list[Place]


async def prepare(store: Store, graph: Network, parts: int, how: str = "metis", seed: int = 0) -> Cut:
    """Cut a graph and put its parts, unless they are there: their name is a digest of what they are made of."""
    parts = max(1, min(parts, graph.n))
    name = f"{digest_of([graph.edges, graph.weights])}-{graph.n}-{parts}-{how}-{seed}"
    index = f"graphs/{name}/index"
    if await store.head(index) is None:
        places, boundary = [], 0
        for number, part in enumerate(cut(graph, parts_of(graph, parts, how, seed), parts)):
            blob = SegmentBlob()
            place = Place(f"graphs/{name}/{number:05d}", write_arrays(blob, as_arrays(part)))
            await store.put(place.key, blob.parts())
            places.append(place)
            boundary += len(part.far)
        made = Cut(name, graph.n, len(graph.edges), boundary, places)
        await put_surely(store, index, msgspec.msgpack.encode(made), if_absent=True)
    return msgspec.msgpack.decode(bytes(await store.get(index)), type=Cut)


@dataclass
class _Group:
    """What the log says of a group."""

    active: bool = True
    since: int = -1  # the last superstep in which it ran
    state: Place | None = None
    again: list[tuple[int, list[Posted]]] = field(default_factory=list)  # supersteps behind that state, and their mail
    mail: list[Posted] = field(default_factory=list)


@dataclass
class Job:
    """One run of a program on a graph that was cut. `url` is how functions in other processes reach the store."""

    store: Store
    cut: Cut
    program: str
    params: Params
    design: Design = GRAPHFLASH
    workers: int = 2
    url: str = ""
    fsync: bool = False
    clock: Clock = field(default_factory=WallClock)
    author: str = ""
    pace: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)  # requests of the functions
    woken: int = 0  # groups that were called, over all supersteps
    messages: int = 0
    scanned: int = 0
    steps: int = 0
    largest: int = 0  # bytes of a group's parts and state, at most

    def __post_init__(self) -> None:
        self.author = self.author or os.urandom(8).hex()
        pinned = self.design.mode == PINNED
        self.of = -(-len(self.cut.parts) // self.workers) if pinned else 1
        self.count = -(-len(self.cut.parts) // self.of)
        told = (self.cut.name, self.program, self.params, self.design, self.count)
        self.name = digest_of([np.frombuffer(msgspec.msgpack.encode(told), np.uint8)])
        self.base = f"jobs/{self.name}"
        self.log = VersionLog(self.store, f"{self.base}/log", author=self.author, clock=self.clock)
        self.groups = [_Group() for _ in range(self.count)]
        self.resumed = 0  # supersteps that were there already
        self._objects: set[str] = set()  # that outcomes named and nobody deleted yet
        self._calls = 0

    # ------------------------------------------------------------------------------------------------------ the log

    async def catch_up(self) -> int:
        """Read what the log has behind what is known; how many records that were."""
        before = self.steps
        async for version, record in self.log.tail(self.steps - 1):
            self._fold(version, msgspec.msgpack.decode(record, type=dict[int, Done]))
        return self.steps - before

    def _fold(self, step: int, outcome: dict[int, Done]) -> None:
        for number, done in outcome.items():
            group = self.groups[number]
            group.again.append((step, group.mail))
            group.mail, group.active, group.since = [], done.active, step
            if done.state is not None:
                group.state, group.again = done.state, []
                places = [done.state, *self.cut.parts[number * self.of : (number + 1) * self.of]]
                self.largest = max(self.largest, sum(one.length for place in places for one in place.arrays))
            self._objects.update(done.objects)
            self.messages, self.scanned = self.messages + done.messages, self.scanned + done.scanned
        for _, done in sorted(outcome.items()):
            for letter in done.letters:
                self.groups[letter.to].mail.append(letter)
        self.woken += len(outcome)
        self.steps = step + 1

    def due(self) -> list[int]:
        """The groups that the next superstep calls; none: it has converged."""
        due = [number for number, group in enumerate(self.groups) if group.mail or group.active]
        return list(range(self.count)) if due and self.design.wake == "all" else due

    # --------------------------------------------------------------------------------------------------- supersteps

    async def run(self, platform: Platform, progress: Progress = lambda done, total: None) -> NDArray[Any]:
        """Superstep after superstep until nobody has mail; a value for every vertex."""
        self.resumed = await self.catch_up()
        while await self.store.head(f"{self.base}/result") is None:
            if numbers := self.due():
                await self._step(platform, numbers, compute=True)
            elif numbers := [number for number, group in enumerate(self.groups) if group.again]:
                await self._step(platform, numbers, compute=False)
            else:
                await self._finish()
            progress(self.steps, self.steps + 1)
        held = np.frombuffer(bytes(await self.store.get(f"{self.base}/result")), np.float64)
        return finished(self.program, held)

    async def _step(self, platform: Platform, numbers: list[int], compute: bool) -> None:
        step = self.steps
        calls = [self._call(number, step, compute) for number in numbers]
        answers = await asyncio.gather(*(self._ask(platform, call) for call in calls), return_exceptions=True)
        failed = [one for one in answers if isinstance(one, BaseException)]
        for error in failed:
            if not isinstance(error, CallFailed | StoreError):
                raise error
        if failed:
            if await self.catch_up():
                return  # another coordinator was faster, and has deleted what we asked for
            raise failed[0]
        outcome = {call.group: one for call, one in zip(calls, answers, strict=True) if isinstance(one, Done)}
        if await self.log.append(step, msgspec.msgpack.encode(outcome)):
            self._fold(step, outcome)
            await self._collect(step)
        else:
            await self.catch_up()

    def _call(self, number: int, step: int, compute: bool) -> Call:
        group, kept = self.groups[number], self.design.mode == PINNED
        self._calls += 1
        return Call(
            self.url, self.fsync, self.name, self.program, self.params, step, number, self.of,
            self.cut.parts[number * self.of : (number + 1) * self.of], group.mail, f"{self.author}-{self._calls}",
            self.design.layout, self.design.local, kept,
            save=not (kept and compute) or len(group.again) + 1 >= self.design.checkpoint, compute=compute,
            since=group.since, state=group.state, again=group.again, pace=self.pace,
        )  # fmt: skip

    async def _ask(self, platform: Platform, call: Call) -> Done:
        pin = f"{self.name}/{call.group}" if call.keep else ""
        answer = await platform.call(msgspec.msgpack.encode(call), pin)
        done, counts = msgspec.msgpack.decode(answer, type=tuple[Done, list[tuple[str, int, int, float]]])
        for op, requests, moved, seconds in counts:
            self.ledger.add(op, "function", nbytes=moved, seconds=seconds, requests=requests)
        return done

    async def _collect(self, step: int) -> None:
        """Delete what no group needs any more: neither its state nor mail that it may have to take again."""
        needed = {group.state.key for group in self.groups if group.state}
        for group in self.groups:
            needed |= {letter.key for _, letters in group.again for letter in letters}
            needed |= {letter.key for letter in group.mail}
        gone = self._objects - needed
        done = [done_key(self.name, step, number) for number in range(self.count) if self.groups[number].since == step]
        if gone or done:
            await self.store.delete(*sorted(gone), *done)
            self._objects -= gone

    # ------------------------------------------------------------------------------------------------------- the end

    async def _finish(self) -> None:
        """Put all groups' values in one object, by vertex."""
        try:
            value = await self._values()
        except NotFound:
            if await self.store.head(f"{self.base}/result") is not None:
                return  # another coordinator was faster, and has tidied up
            raise
        await put_surely(self.store, f"{self.base}/result", value.tobytes(), if_absent=True)

    async def _values(self) -> Floats:
        value = np.zeros(self.cut.n)
        for number, group in enumerate(self.groups):
            assert group.state is not None
            owners = self.cut.parts[number * self.of : (number + 1) * self.of]
            own = [(await read_arrays(self.store, _only(place, "own")))["own"] for place in owners]
            state = await read_arrays(self.store, _only(group.state, PROGRAMS[self.program].value))
            value[np.sort(np.concatenate(own))] = state[PROGRAMS[self.program].value]
        return value

    async def tidy(self) -> None:
        """Delete all but the log and the result, once there is one; what comes late from the dead goes, too."""
        if await self.store.head(f"{self.base}/result") is None:
            return
        keys = [meta.key for folder in ("m", "done") async for meta in self.store.list(f"{self.base}/{folder}/")]
        if keys:
            await self.store.delete(*keys)


def _only(place: Place, name: str) -> Place:
    found: list[Field] = [one for one in place.arrays if one.name == name]
    return Place(place.key, found)
