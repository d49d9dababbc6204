"""Engines that misbehave: the client gets a sound answer from another one, or a clean error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("h11")
pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from assay.live.http1 import ResponseHead
from assay.live.settings import EngineSettings
from assay.live.upstream import Address, Pool, Upstream
from tests.live.hostile import (
    EVENTS,
    PATIENCE,
    STREAM,
    STREAM_HEAD,
    Live,
    Raw,
    chunk,
    echo,
    post,
    resident,
    until,
    whole,
)  # fmt: skip

# ------------------------------------------------------------------------------------------ engines that misbehave

BROKEN = {
    "a garbled status line": b"HTTP/1.1 abc OK\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    "a head that is too long": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
    "a length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a chunk that is no chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n",
    "a chunk that says less": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    "a bad chunk among events": STREAM_HEAD + b"2\r\nhello\r\n0\r\n\r\n",
    "a line of its own in a line": b"HTTP/1.1 200 OK\r\nX: y\nSet-Cookie: z\r\nContent-Length: 0\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello",
    "an early hint and no more": b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "nothing": b"",
}  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[Live]:
    """Of two engines, whichever is asked first answers as the request says and hangs up; the other is sound."""
    seen: set[bytes] = set()

    async def once(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if body in seen or not body.startswith(b"broken:"):
            writer.write(STREAM if b"stream" in body else whole(body))
            return
        seen.add(body)
        _, name, cut, _ = body.split(b":", 3)
        said = {b"plain": whole(body), b"chunks": CHUNKS, b"stream": STREAM}.get(name) or BROKEN[name.decode()]
        writer.write(said[: int(cut)] if int(cut) >= 0 else said)
        await writer.drain()
        writer.close()

    with Live(once, once, attempts=3, first_byte=PATIENCE) as live:
        yield live


CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"hello") + chunk(b", you") + b"0\r\n\r\n"


@pytest.mark.parametrize("name", BROKEN)
def test_an_engine_that_answers_nonsense_is_not_noticed_by_the_client(pair: Live, name: str) -> None:
    body = b"broken:%b:-1:" % name.encode()
    answer = pair.ask(post(body))
    assert (answer.status, answer.body) == (200, body)


@pytest.mark.parametrize("kind", ["plain", "chunks"])
def test_a_plain_answer_that_breaks_off_anywhere_is_asked_for_again(pair: Live, kind: str) -> None:
    size = len(CHUNKS) if kind == "chunks" else len(whole(b"broken:plain:10:"))
    with pair.client() as client:
        for cut in range(size):
            body = b"broken:%b:%d:" % (kind.encode(), cut)
            client.send(post(body))
            answer = client.answer()
            assert (answer.status, answer.body, answer.complete) == (200, body, True), cut


def test_a_stream_that_breaks_off_anywhere_is_asked_for_again_or_ends_in_an_error_between_two_events(
    pair: Live,
) -> None:
    again = 0
    with pair.client() as client:
        for cut in range(len(STREAM)):
            client.send(post(b"broken:stream:%d:" % cut))
            answer = client.answer()
            assert (answer.status, answer.complete) == (200, True), cut
            *events, nothing = answer.body.split(b"\n\n")
            assert nothing == b""
            events = [event + b"\n\n" for event in events]
            if events == EVENTS:
                again += 1
                continue
            assert events[:-1] == EVENTS[: len(events) - 1], cut
            assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == 502
    first = len(STREAM_HEAD) + len(chunk(EVENTS[0]))
    assert first - 2 <= again <= first, "as long as no event was there, the other engine answers"


def test_more_than_was_promised_is_dropped_with_the_connection() -> None:
    async def more(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(body) + whole(b"for somebody else"))

    async def chunks(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKS + CHUNKS)

    async def afterwards(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(body))
        await asyncio.sleep(0.01)
        with contextlib.suppress(RuntimeError):
            writer.write(whole(b"for somebody else"))

    for script in (more, chunks, afterwards):
        with Live(script) as live, live.client() as client:
            for n in range(5):
                gone = live.engines[0].gone
                client.send(post(b"%d" % n))
                assert client.answer().body == (b"hello, you" if script is chunks else b"%d" % n)
                until(lambda gone=gone: live.engines[0].gone > gone, "that connection is dropped")  # type: ignore[misc]


def test_an_engine_that_answers_before_it_is_asked_is_not_believed() -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"unasked"))
        with contextlib.suppress(asyncio.CancelledError):
            asked = b""  # two requests may come in one piece, when a probe's answer is taken before it was sent
            while asked.count(b" HTTP/1.1\r\n") < 2 and (piece := await reader.read(1 << 16)):
                asked += piece
        writer.close()

    with Live(first_byte=2.0) as live:

        async def replace() -> None:
            server = await asyncio.start_server(eager, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            live.running.gateway.roster.add(EngineSettings(f"http://127.0.0.1:{port}"))

        asyncio.run_coroutine_threadsafe(replace(), live._loop).result(PATIENCE)
        for n in range(8):
            answer = live.ask(post(b"%d" % n))
            assert answer.complete
            assert answer.body in (b"%d" % n, b"unasked")  # on a new connection it cannot be told from a quick one


def test_what_comes_before_the_final_answer_is_passed_over() -> None:
    async def hints(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + whole(body))

    with Live(hints) as live, live.client(post(b"a") + post(b"b")) as client:
        assert [client.answer().body for _ in range(2)] == [b"a", b"b"]


def test_an_event_without_end_takes_bounded_memory_and_ends_with_its_client() -> None:
    async def endless(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if b"endless" not in body:
            return await echo(engine, head, body, writer)
        writer.write(STREAM_HEAD + chunk(b"data: "))
        for _ in range(2000):
            writer.write(chunk(b"x" * 65536))
            await writer.drain()
        return None

    with Live(endless) as live:
        live.well()
        before, gone = resident(), live.engines[0].gone
        with live.client(post(b"endless")) as client:
            got = 0
            while got < 10 << 20:
                got += len(client.socket.recv(1 << 16))
            assert resident() - before < 32 << 20
        until(lambda: live.engines[0].gone > gone, "the engine is told that the client left")
        assert live.well()


def test_an_error_is_an_event_of_its_own_even_after_half_of_an_enormous_one() -> None:
    async def breaks(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(EVENTS[0]) + chunk(b"data: " + b"x" * (3 << 20)))
        await writer.drain()
        writer.close()

    with Live(breaks) as live:
        first, half, error, nothing = live.ask(post(b"{}")).body.split(b"\n\n")
        assert (first + b"\n\n", half[:7], nothing) == (EVENTS[0], b"data: x", b"")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 502


class Slow:
    """Somebody who waits for an engine's answer and is slow."""

    method = b"GET"

    def __init__(self) -> None:
        self.upstream: Any = None
        self.done = 0

    def connected(self, upstream: Upstream) -> bool:
        return True

    def unreachable(self, pool: Pool, why: str) -> None:
        raise AssertionError(why)

    def answered(self, head: ResponseHead) -> None:
        pass

    def payload(self, data: bytes) -> None:
        self.upstream.pace(False)

    def complete(self) -> None:
        self.done += 1

    def broken(self, why: str, stale: bool) -> None:
        raise AssertionError(why)


class Wire:
    """As much of a transport as is looked at here."""

    def __init__(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def test_a_connection_that_was_paused_for_a_slow_client_is_read_again_for_the_next_one() -> None:
    pool, slow, wire = Pool(Address.of("http://a:1")), Slow(), Wire()
    upstream = slow.upstream = Upstream(pool)
    upstream.connection_made(wire)  # type: ignore[arg-type]
    upstream.ask(slow, b"GET / HTTP/1.1\r\n\r\n")
    upstream.data_received(CHUNKS)
    assert slow.done == 1
    assert pool.ask(slow, b"") is upstream
    assert wire.reading
