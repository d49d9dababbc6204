"""A gateway in a thread, with raw engines behind it that record every byte, for tests that speak to it by socket."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import uvloop

from assay.live.serve import Running
from assay.live.settings import EngineSettings, Settings

PATIENCE = 120.0  # seconds, for anything that should happen soon, on a busy machine too
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_PROBES = (b"/health", b"/metrics", b"/v1/models")
EVENT = b'data: {"choices": [{"delta": {"content": "%d"}}]}\n\n'


@dataclass
class Raw:
    """An engine that does as its script says, and what it received: requests whole, and bytes that were none."""

    script: Script
    key: str = ""
    received: list[bytes] = field(default_factory=list)
    strays: list[bytes] = field(default_factory=list)
    gone: int = 0  # connections that the gateway ended
    reader: asyncio.StreamReader | None = None  # of the request that was received last

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.strays.append(error.partial)
        except (OSError, RuntimeError, asyncio.CancelledError):
            pass  # a write to a connection that is gone (uvloop's is a RuntimeError), or the end of all
        finally:
            self.gone += 1
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        path = head.split(b" ", 2)[1]
        if path in _PROBES and b"x-test" not in head:
            writer.write(whole(b"{}"))
        else:
            self.received.append(head + body)
            self.reader = reader
            await self.script(self, head, body, writer)
        return not writer.is_closing()


Script = Callable[[Raw, bytes, bytes, asyncio.StreamWriter], Awaitable[None]]


def whole(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """A plain answer."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


def chunk(data: bytes) -> bytes:
    """A piece of a stream."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [*(EVENT % n for n in range(3)), b"data: [DONE]\n\n"]
STREAM = STREAM_HEAD + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"


async def echo(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Answers what was asked."""
    if head.startswith(b"HEAD "):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    elif b'"stream": true' in body:
        writer.write(STREAM)
    else:
        writer.write(whole(body))
    await writer.drain()


class Live:
    """`with Live(script, …) as live: live.port`; at the end nothing may have gone wrong inside."""

    def __init__(self, *scripts: Script, keys: tuple[str, ...] = (), **settings: Any) -> None:
        self.engines = [Raw(script, keys[i] if i < len(keys) else "") for i, script in enumerate(scripts or (echo,))]
        self._settings = {"probe": 60.0, "scrape": 60.0, "failures": 10**6, "grace": 0.2} | settings
        self.errors: list[Any] = []
        self.port = 0
        self.running: Any = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._ready.wait(60), "it did not start"
        assert not self.errors
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it did not stop"
        if kind is None:
            assert not self.errors, self.errors
            assert not [stray for engine in self.engines for stray in engine.strays]

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self.errors.append(error)
        self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        servers = [await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 27) for engine in self.engines]
        urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
        engines = tuple(EngineSettings(url, key=e.key) for url, e in zip(urls, self.engines, strict=True))
        async with Running(Settings(engine=engines, port=0, **self._settings)) as self.running:
            self.port = self.running.port
            self._ready.set()
            await self._stop.wait()
        for server in servers:
            server.close()

    @property
    def received(self) -> list[bytes]:
        """By all engines."""
        return [message for engine in self.engines for message in engine.received]

    def forget(self) -> None:
        for engine in self.engines:
            engine.received.clear()

    def client(self, data: bytes = b"") -> Client:
        return Client(self.port, data)

    def talk(self, data: bytes) -> bytes:
        """Everything that is answered until the gateway closes, or has said nothing for long."""
        with self.client(data) as client:
            return client.rest()

    def ask(self, data: bytes, method: str = "POST") -> Answer:
        """The one answer to one request."""
        with self.client(data) as client:
            return client.answer(method)

    def well(self) -> bool:
        """Whether a good request is answered well."""
        return self.ask(post(b'{"good": 1}')).body == b'{"good": 1}'


@dataclass(frozen=True)
class Answer:
    """As h11 reads it; `complete` is False where the connection ended first."""

    status: int
    fields: dict[str, str]
    body: bytes
    complete: bool = True


class Client:
    """A socket."""

    def __init__(self, port: int, data: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ahead = b""
        if data:
            self.send(data)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def rest(self) -> bytes:
        """All until the other side closes."""
        pieces = [self._ahead]
        try:
            while piece := self.socket.recv(1 << 16):
                pieces.append(piece)
        except ConnectionError:
            pieces.append(b"<reset>")
        return b"".join(pieces)

    def answer(self, method: str = "POST") -> Answer:
        """The next answer."""
        reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        reader.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(self._ahead) if self._ahead else None
        status, fields, body = 0, {}, b""
        while True:
            try:
                event = reader.next_event()
            except h11.RemoteProtocolError:
                return Answer(status, fields, body, False)
            if event is h11.NEED_DATA:
                try:
                    reader.receive_data(self.socket.recv(1 << 16))
                except ConnectionError:
                    return Answer(status, fields, body, False)
            elif isinstance(event, h11.Response):
                status = event.status_code
                fields = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._ahead = reader.trailing_data[0]
                return Answer(status, fields, body)
            elif isinstance(event, h11.ConnectionClosed):
                return Answer(status, fields, body, False)


def post(body: bytes, *lines: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    """A request."""
    return b"\r\n".join([b"POST %b HTTP/1.1" % path, b"Host: a", b"Content-Length: %d" % len(body), *lines, b"", body])


def get(path: bytes, *lines: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), b"Host: a", *lines, b"", b""])


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something that happens in the other thread."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"it never came about that {what}"
        time.sleep(0.005)


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def statuses(said: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3})", said)]
