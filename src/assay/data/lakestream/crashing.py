"""A plane for the crash lab: three producers, four ranks, checkpoints and a reclaimer, in one process or in several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.data.interface import Fenced, Store, StoreError, Violation
from assay.data.lakestream.consumer import Reclaimed
from assay.data.lakestream.manifest import Row
from assay.data.lakestream.pace import Fixed
from assay.data.lakestream.plane import Plane, over
from assay.data.lakestream.producer import Producer
from assay.sim.clock import Clock

RANKS = 4
MINE = ("a", "b", "c")
PAUSE = 45.0  # virtual seconds between rounds, more than the grace
CHANGES = 2  # to the store, about, by a batch: its object, its share of a commit, its deletion


def content(producer: str, seq: int, rank: int) -> bytes:
    """The bytes of a slice: what its source says it is.

    >>> content("a", 7, 2)
    b'a 7 2'
    """
    return b"%s %d %d" % (producer.encode(), seq, rank)


class Plant(Plane):
    """The first role does everything in turn; in a crowd another process takes its name `a` over, others help."""

    roles: tuple[str, ...] = ("everything", "takes a over", "d", "trainer", "reclaimer")

    def __init__(self) -> None:
        super().__init__(slices=RANKS, producers=0, grace=30.0)

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """As always."""
        await super().open(store, clock=clock, seed=seed)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Publish, read as all ranks, keep the last two checkpoints, reclaim; or one of these."""
        rounds = max(2, ops // (CHANGES * 2 * len(MINE)))
        if role in ("takes a over", "d"):
            await self._produce({role[-1] if role == "d" else "a"}, rounds, promised)
        elif role == "trainer":
            await self._train(rounds, promised)
        elif role == "reclaimer":
            for _ in range(rounds):
                await self._collect(promised)
        else:
            await self._everything(rounds, promised)

    async def _produce(self, names: set[str], rounds: int, promised: list[Any]) -> None:
        for name in names:
            producer = self.producer(name, Fixed(3.0), background=False)
            try:
                for seq in range(await producer.start() or 0, 2 * rounds):
                    await self._publish(producer, seq, promised)
                    await self.clock.sleep(1.0)
                await producer.finish()
            except Fenced:
                continue

    async def _publish(self, producer: Producer, seq: int, promised: list[Any]) -> None:
        await producer.publish([content(producer.name, seq, rank) for rank in range(RANKS)], cursor=seq + 1)
        if not producer.waiting:
            promised.append(["visible", producer.name, seq])

    async def _everything(self, rounds: int, promised: list[Any]) -> None:
        producers = {name: self.producer(name, Fixed(2.0), background=False) for name in MINE}
        next_seq = {name: await producer.start() or 0 for name, producer in producers.items()}
        readers = [self.consumer(rank, RANKS) for rank in range(RANKS)]
        while min(next_seq.values(), default=2 * rounds) < 2 * rounds:
            for name in list(next_seq):
                for seq in range(next_seq[name], min(next_seq[name] + 2, 2 * rounds)):
                    try:
                        await self._publish(producers[name], seq, promised)
                        await self.clock.sleep(1.0)
                        next_seq[name] = seq + 1
                    except Fenced:
                        del next_seq[name]
                        break
            await self._checkpoint(readers, promised)
            await self.clock.sleep(PAUSE - self.grace)
            await self._collect(promised)
        for name in next_seq:
            try:
                await producers[name].finish()
            except Fenced:
                continue

    async def _checkpoint(self, readers: Sequence[Any], promised: list[Any]) -> None:
        """Read what is new since the newest checkpoint as every rank, then keep that step and the one before."""
        state = await self.manifest.refresh()
        marks = await self.retained()
        for step in range(max([*marks, state.base]), state.next_step):
            for rank, reader in enumerate(readers):
                parts = await reader.read(step)
                promised.append(["read", rank, step, bytes(parts[0]).decode()])
        kept = sorted({*marks[-1:], state.next_step})
        await self.retain(kept)
        promised.append(["retained", *kept])

    async def _train(self, rounds: int, promised: list[Any]) -> None:
        """A second job, which keeps nothing: it begins with what is there, and again where that is reclaimed."""
        readers = [self.consumer(rank, RANKS) for rank in range(RANKS)]
        step = (await self.manifest.refresh()).base
        for _ in range(3 * rounds):
            state = await self.manifest.refresh()
            try:
                while max(step, state.base) < state.next_step:
                    step = max(step, state.base)
                    for rank, reader in enumerate(readers):
                        parts = await reader.read(step)
                        assert parts is not None
                        promised.append(["read", rank, step, bytes(parts[0]).decode()])
                    step += 1
            except Reclaimed:
                continue
            await self.clock.sleep(PAUSE / 3)

    async def _collect(self, promised: list[Any]) -> None:
        """Reclaim, and note what should have gone with it: older than the round, and over in the state it went by."""
        began = self.clock.now()
        await self.reclaim()
        state = self.manifest.state
        needed = {batch.key for batch in state.steps().values()}
        there = [meta async for meta in self.store.list("data/") if meta.modified < began]
        promised.extend(["left", one.key] for one in there if one.key not in needed and over(one.key, state))

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """The plane's own rules; what was read stays as it was; each record is one step's; nothing is left behind."""
        wrong = await super().check()
        state = self.manifest.state
        told = {step: (batch.producer, batch.seq) for step, batch in state.steps().items()}
        for _, rank, step, text in (one for one in promised if one[0] == "read"):
            producer, seq, of = text.split()
            if int(of) != rank or told.setdefault(step, (producer, int(seq))) != (producer, int(seq)):
                wrong.append(Violation("every rank reads the same step, always", f"step {step} was {text}"))
        next_seq: dict[str, int] = {}
        for expected, (step, (producer, seq)) in enumerate(sorted(told.items())):
            if step != expected:
                break  # not read by anybody before it was reclaimed: what follows begins anywhere
            if seq != next_seq.setdefault(producer, 0):
                detail = f"step {step} is {producer}'s {seq}, not {next_seq[producer]}"
                wrong.append(Violation("each record is in exactly one step", detail))
            next_seq[producer] = seq + 1
        for _, producer, seq in (one for one in promised if one[0] == "visible"):
            if state.table.get(producer, Row()).last_seq < seq:
                wrong.append(Violation("what was visible stays so", f"{producer}'s batch {seq}"))
        return wrong + await self._contents(promised)

    async def _contents(self, promised: Sequence[Any]) -> list[Violation]:
        state, wrong = self.manifest.state, []
        for step, batch in state.steps().items():
            try:
                held = bytes(await self.store.get(batch.key, batch.slices[1].offset, batch.slices[1].length))
            except StoreError:
                continue  # told already
            if held != content(batch.producer, batch.seq, 1):
                wrong.append(Violation("a step holds its source's records", f"step {step}: {held!r}"))
        kept = [one[1:] for one in promised if one[0] == "retained"]
        if kept and min(kept[-1]) < state.base:
            wrong.append(Violation("a retained checkpoint can be read on from", f"{kept[-1]}, and {state.base}"))
        left = [one[1] for one in promised if one[0] == "left"]
        return wrong + [Violation("nothing is left that nobody can need", key) for key in left]
