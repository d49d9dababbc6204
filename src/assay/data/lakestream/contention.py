"""Many producers that commit to one manifest of a given size, in virtual time, with the plane's own code.

A manifest of 100,000 batches has tens of megabytes. Writing them for every attempt of 64 producers would take hours and
show nothing, so the store charges the time of their bytes without holding them; who wins which version, who has to read
again, and what every producer learns of it, is decided by the code that also runs live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from assay.data.engine.version_log import VersionLog
from assay.data.lakestream.manifest import Batch, Change, Manifest, Slice, State, folded
from assay.data.lakestream.pace import Pace
from assay.data.lakestream.producer import PENDING, Producer
from assay.data.store.delayed import Delayed, Profile
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Op
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.streams import stream

T = TypeVar("T")
SMALL = 8  # bytes that stand for a batch


class Weighed(Delayed):
    """A slow store that charges objects under some prefixes for bytes that they do not really have."""

    def __init__(self, weights: Mapping[str, int], profile: Profile, seed: int) -> None:
        super().__init__(MemStore(VirtualClock()), profile, seed=seed)
        self.weights = dict(weights)
        self.moved = 0  # such bytes

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """The wait of the real bytes, and of those that are charged."""
        extra = self.weights.get(op.key.partition("/")[0], 0) if op.name in ("put", "get") else 0
        if not extra:
            return await super().around(op, call)
        self.moved += extra
        if op.name == "put":
            return await super().around(op._replace(nbytes=op.nbytes + extra), call)
        found = await super().around(op, call)
        await self.clock.sleep(extra / self.profile.bandwidth)
        return found


class Sketch:
    """A version that names its state instead of holding it; its weight is the store's."""

    def __init__(self, states: list[State]) -> None:
        self.states = states

    def record(self, state: State, change: Change) -> bytes:
        """A number. Of the batches only their count is kept: as many go at the other end, so the weight stays."""
        after = folded(state, [change])
        self.states.append(State(after.next_step, [], after.table))
        return b"%d" % (len(self.states) - 1)

    async def read(self, log: VersionLog, state: State, versions: Sequence[int]) -> State:
        """What the number stands for."""
        return self.states[int(await log.read(versions[-1]))]


@dataclass(frozen=True, slots=True)
class Load:
    """A fleet of producers, and what they make."""

    producers: int = 64
    seconds: float = 4.0  # that a batch takes to make
    nbytes: int = 16 << 20  # of a batch
    slices: int = 8


@dataclass
class Seen:
    """A producer's last commit: when it was seen, how many of its batches were visible then, how many commits."""

    at: float = 0.0
    batches: int = 0
    commits: int = 0


def entry_bytes(slices: int) -> int:
    """Bytes of a batch in the manifest, as it is really encoded.

    >>> 150 < entry_bytes(8) < 300
    True
    """
    parts = [Slice(i << 21, 1 << 21, bytes(16)) for i in range(slices)]
    return len(msgspec.msgpack.encode(Batch("producer-17", 3, 4711, parts)))


def race(
    load: Load, entries: int, pace: Callable[[], Pace], profile: Profile, *, background: bool, warm: float,
    window: float, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """What became visible in a window behind the warm-up, and what it cost; the manifest keeps its size meanwhile."""
    weights = {"manifest": entries * entry_bytes(load.slices), "data": load.nbytes}
    store = Weighed(weights, profile, seed)
    states: list[State] = []

    async def produce(number: int) -> Producer:
        log = VersionLog(store, "manifest", author=f"{seed} {number}", clock=VirtualClock())
        most = SMALL * max(1, PENDING // load.nbytes)
        return Producer(
            store, Manifest(log, Sketch(states)), f"p{number}", 1, pace(), VirtualClock(), seed=seed,
            background=background, most=most,
        )  # fmt: skip

    async def work(producer: Producer, seen: Seen, random: Any) -> None:
        clock = VirtualClock()
        await clock.sleep(float(random.uniform(0, load.seconds)))
        await producer.start()
        seen.at, made = clock.now(), 0
        while True:
            await clock.sleep(load.seconds * float(random.uniform(0.8, 1.2)))
            await producer.publish([bytes(SMALL)])  # one slice for all: their weight is the store's
            made += 1
            if producer.commits > seen.commits:
                seen.at, seen.batches, seen.commits = clock.now(), made - producer.waiting // SMALL, producer.commits

    async def main() -> dict[str, Any]:
        producers = [await produce(n) for n in range(load.producers)]
        seen = [Seen() for _ in producers]
        tasks = [
            asyncio.ensure_future(work(p, seen[n], stream(seed, "race", n))) for n, p in enumerate(producers)
        ]  # fmt: skip
        await VirtualClock().sleep(warm)
        before, then = _tally(producers, store), [replace(one) for one in seen]
        await VirtualClock().sleep(window)
        for task in tasks:
            if task.done():
                await task
        rate = sum(_between(a, b) for a, b in zip(then, seen, strict=True))
        return {"rate": rate} | _outcome(before, _tally(producers, store), window, producers)

    return run_virtual(main())


def _between(then: Seen, now: Seen) -> float:
    """Batches a second from one commit to another: those that wait where a window begins or ends do not blur it."""
    return (now.batches - then.batches) / (now.at - then.at) if now.at > then.at else 0.0


def _tally(producers: Sequence[Producer], store: Weighed) -> tuple[int, int, int, int]:
    newest = max((p.manifest for p in producers), key=lambda manifest: manifest.version)
    return (
        newest.state.next_step, sum(p.commits for p in producers), sum(p.conflicts for p in producers), store.moved,
    )  # fmt: skip


def _outcome(before: Any, after: Any, window: float, producers: Sequence[Producer]) -> dict[str, Any]:
    batches, commits, conflicts, moved = (b - a for a, b in zip(before, after, strict=True))
    return {
        "commits": commits / window, "retries": conflicts / max(1, commits),
        "MB_moved": moved / 1e6 / max(1, batches),
        "pause": sum(p.pace.interval for p in producers) / len(producers),
        # A batch waits for its producer's next commit: half of the time between two, on average.
        "delay": len(producers) * window / max(1, commits) / 2,
    }  # fmt: skip
