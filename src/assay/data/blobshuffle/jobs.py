"""A user's files by key into partitions: durable, restartable, with each file's records in their order."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from assay.data.blobshuffle import files, sources
from assay.data.blobshuffle.content import CONTENT, Content, fits
from assay.data.blobshuffle.live_brokers import connect
from assay.data.blobshuffle.shuffle import BlobShuffle, Design, Placement
from assay.data.engine.alone import alone
from assay.data.engine.inputs import Bad, refused
from assay.data.interface import AlreadyExists, Store
from assay.data.store.address import open_store
from assay.data.store.blocking import wait
from assay.data.store.wrappers import Metered
from assay.record.errors import BadInput
from assay.sim.ledger import Ledger

COMMIT = 64 << 20  # bytes of input between two commits
Progress = Callable[[int, int], None]


@dataclass
class Done:
    """What was done: records and bytes now, records that an earlier run had committed, and each partition's count."""

    records: int = 0
    bytes: int = 0
    before: int = 0
    partitions: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)


def repartition(
    sources: Sequence[str | Path], key: str, out: str | Path, *, parts: int = 64, store: str = "",
    design: Design | None = None, broker: str = "", progress: Progress = lambda done, total: None,
    bad: Bad = refused,
) -> Done:  # fmt: skip
    """Shuffle files (JSON lines, packed or not, parquet) by key into `out/part-00000.jsonl`, …

    A run that was killed goes on where its last commit was. Without a `store` the blobs lie in `out/.shuffle` until the
    partitions are written; a store that is named keeps them, and later files may follow into the same partitions. Notes
    go through a log in the store, or through the `broker` at nats://, redis:// or kafka://host:port.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder, "in.jsonl")
    ...     _ = log.write_text('{"user": "ada", "n": 1}\\n{"user": "bob", "n": 2}\\n{"user": "ada", "n": 3}\\n')
    ...     done = repartition([log], "user", Path(folder, "out"), parts=4)
    ...     [path.read_text() for path in sorted(Path(folder, "out").iterdir()) if "ada" in path.read_text()]
    ['{"user": "ada", "n": 1}\\n{"user": "ada", "n": 3}\\n']
    """
    paths, folder = [Path(source) for source in sources], Path(out)
    if len({files.is_parquet(path) for path in paths}) != 1:
        raise BadInput("JSON lines and parquet do not mix in one shuffle; run it once for each")
    own = folder / ".shuffle"
    job = _Job(paths, key, folder, Placement(parts), design, broker, progress, bad)
    with alone(folder):
        wait(job.run(open_store(store or str(own)), named=bool(store)))
        if not store:
            shutil.rmtree(own)
    return job.done


class _Job:
    def __init__(
        self, paths: Sequence[Path], key: str, out: Path, placement: Placement, design: Design | None, broker: str,
        progress: Progress, bad: Bad,
    ) -> None:  # fmt: skip
        self.paths, self.key, self.out, self.placement, self.progress = paths, key, out, placement, progress
        self.design, self.broker, self.bad = design, broker, bad
        self.done = Done()
        self._total = sum(files.fingerprint(path)[0] for path in paths) or 1

    async def run(self, store: Store, *, named: bool) -> None:
        """Send every file, then write every partition."""
        parquet = files.is_parquet(self.paths[0])
        terms = {"key": self.key, "parts": self.placement.parts, "parquet": parquet}
        given = {str(path.resolve()) for path in self.paths}
        content = Content(self.key, self.placement.parts, parquet, "", await _known(store))
        if not named:
            fits(self.out, content, given)
        known = await _first(store, "shuffle.json", terms | {"run": secrets.token_hex(8)})
        run = known.pop("run")
        if known != terms:
            told = ", ".join(f"{name} {value}" for name, value in known.items())
            raise BadInput(f"this store holds a shuffle by {told}; name another --store, or shuffle as it does")
        if named:
            content = msgspec.structs.replace(content, run=run)
            fits(self.out, content, given)
        broker = await connect(self.broker, f"assay-{run}", self.placement.parts) if self.broker else None
        self.shuffle = BlobShuffle(self.placement, self.design, broker=broker)
        try:
            await self.shuffle.open(Metered(store, self.done.ledger))
            names = sources.named(self.paths, await sources.seen(store))
            for number, path in enumerate(self.paths):
                await self._send(
                    store, path, names[path.resolve()], self.placement.zones[number % len(self.placement.zones)]
                )
            content = msgspec.structs.replace(content, sources=await _known(store))
            aside = self.out / f"{CONTENT}.new"
            aside.write_bytes(msgspec.json.encode(content))
            aside.replace(self.out / CONTENT)
            for partition in range(self.placement.parts):
                self.done.partitions.append(await self._write(partition))
        finally:
            await self.shuffle.broker.close()

    async def _send(self, store: Store, path: Path, name: str, zone: str) -> None:
        try:
            seen = await _first(store, f"sources/{name}", sources.looks(path))
            producer = await self.shuffle.producer(name, zone)
            chain = await self._same(store, path, name, producer.offset, seen)
        except BadInput as error:  # nothing of it is sent
            self.bad(str(error), "")
            return
        self.done.before += producer.offset
        waiting, offset = 0, producer.offset
        committed = offset

        async def commit() -> None:
            nonlocal committed
            if offset > committed:  # what was read is written down before it counts
                await _first(store, f"chains/{name}/{offset:012d}", {"chain": chain.hexdigest()})
            await producer.commit(offset)
            committed = offset

        try:
            for batch in files.read(path, self.key, self.placement.parts, offset, self.bad):
                await producer.send(batch.partitions, batch.records)
                offset, moved = batch.offset, sum(map(len, batch.records))
                for line in batch.lines:
                    chain.update(line + b"\n")
                self.done.records += len(batch.records)
                self.done.bytes, waiting = self.done.bytes + moved, waiting + moved
                if waiting >= COMMIT:
                    await commit()
                    waiting = 0
                self.progress(self.done.bytes, self._total)
        except BadInput as error:  # what came before the damage counts
            await commit()
            self.bad(str(error), "")
        if offset > producer.offset:
            await commit()

    async def _same(self, store: Store, path: Path, name: str, offset: int, seen: dict[str, Any]) -> Any:
        """A digest of the records before an offset; BadInput where it is not that of those that were shuffled.

        What is behind them may have changed: somebody has mended it.
        """
        chain, key = files.chained(path, offset), f"chains/{name}/{offset:012d}"
        same = files.begins(path, seen["size"], seen["head"])
        if offset and await store.head(key) is not None:
            whole = msgspec.json.decode(await store.get(key))["chain"] == chain.hexdigest()
        else:
            whole = same or not offset
        if not whole:
            raise BadInput(f"{path} has changed since part of it was shuffled; put it back, or name another --store")
        if not same or seen["path"] != str(path.resolve()):  # what is in its place from now on is another source
            await store.put(f"sources/{name}", msgspec.json.encode(sources.looks(path)))
        return chain

    async def _write(self, partition: int) -> int:
        suffix = "parquet" if files.is_parquet(self.paths[0]) else "jsonl"
        file = files.PartitionFile(self.out / f"part-{partition:05d}.{suffix}")
        async for batch in self.shuffle.receive(partition):
            file.add(batch.records)
        return file.close()


async def _known(store: Store) -> dict[str, tuple[int, str]]:
    """What was shuffled so far: by its path, how large it was and how it began when it was first seen."""
    return {one.path: (one.size, one.head) for one in await sources.seen(store)}


async def _first(store: Store, name: str, content: dict[str, Any]) -> dict[str, Any]:
    """Keep this under a name, or find what was kept there first."""
    try:
        await store.put(name, msgspec.json.encode(content), if_absent=True)
    except AlreadyExists:
        found: dict[str, Any] = msgspec.json.decode(await store.get(name))
        return found
    return content
