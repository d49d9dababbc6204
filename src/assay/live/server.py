"""Connections of clients: requests in, answers out, within bounds.

One `Connection` a client, one `Exchange` a request. A connection reads one request at a time, whole, because nobody
can be chosen to answer before the prompt is known. The gateway and the mock engine are both an `answer(exchange)`
behind a `Server`; calls are plain functions, since a coroutine for every request would cost more than all the rest.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from assay.live import http1
from assay.live.http1 import CHUNKED, HEAD_LIMIT, Chunks, Refused, RequestHead

REASONS = {status.value: b"%d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus}
JSON = b"content-type: application/json"
_END = b"\r\n\r\n"
_AHEAD = 64 * 1024  # bytes a client may send ahead of the answer it waits for
_SWEEP = 0.5  # seconds between two looks for clients that take too long


@dataclass(frozen=True)
class Limits:
    """What a client may ask of a server."""

    connections: int = 4096
    body: int = 32 << 20  # bytes of a request
    bodies: int = 1 << 30  # bytes of all requests at once
    head_time: float = 10.0  # seconds from a request's first byte to the end of its head
    body_time: float = 60.0  # seconds from there to the end of its body
    idle_time: float = 75.0  # seconds between two requests of a connection
    stall_time: float = 60.0  # seconds in which a client takes nothing of an answer that waits for it


def error_body(message: str, kind: str, code: str | int | None = None, param: str | None = None) -> bytes:
    """An error as the OpenAI API writes it.

    >>> error_body("no such model", "not_found_error", 404)
    b'{"error":{"message":"no such model","type":"not_found_error","param":null,"code":404}}'
    """
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


class Exchange:
    """One request and its answer. `left` is called if the client goes before the answer is complete."""

    __slots__ = ("_connection", "_framed", "_head", "body", "done", "head", "left", "peer", "resume", "started")

    def __init__(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        self._connection = connection
        self.head = head
        self.body = body
        self.peer: str = connection.peer
        self.started = False  # a byte of the answer is on its way
        self.done = False
        self.left: Callable[[], None] | None = None
        self.resume: Callable[[bool], None] | None = None  # told when the client is slow, and when it caught up
        self._framed = False
        self._head = b""

    def reply(self, status: int, lines: list[bytes], body: bytes, line: bytes | None = None) -> None:
        """The whole answer."""
        if self.done:
            return
        said = b"content-length: %d" % len(body)
        head = b"\r\n".join([b"HTTP/1.1 " + (line or REASONS[status]), *lines, said, *self._closing(), b"", b""])
        self.started = True
        self._connection.send(head if self.head.method == b"HEAD" else head + body)
        self.end()

    def refuse(self, status: int, message: str, kind: str = "", more: tuple[bytes, ...] = ()) -> None:
        """The whole answer: an error."""
        kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.reply(status, [JSON, *more], error_body(message, kind, status))

    def begin(self, line: bytes, lines: list[bytes]) -> None:
        """Begin an answer of unknown length; its head leaves with the first piece."""
        framing = self._closing()
        if self.head.minor:
            self._framed = True
            framing = [b"transfer-encoding: chunked", *framing]
        else:
            self._connection.closing = True
            framing = [b"connection: close"]
        self._head = b"\r\n".join([b"HTTP/1.1 " + line, *lines, *framing, b"", b""])

    def write(self, data: bytes) -> None:
        """A piece of an answer that has begun."""
        if self.done or not data:
            return
        self.started = True
        if self._framed:
            self._connection.send(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))
        else:
            self._connection.send(self._head + data)
        self._head = b""

    def finish(self, last: bytes = b"") -> None:
        """End an answer that has begun, with its last piece."""
        if self.done:
            return
        self.started = True
        piece = b"%x\r\n%b\r\n" % (len(last), last) if self._framed and last else last
        self._connection.send(self._head + piece + (b"0\r\n\r\n" if self._framed else b""))
        self.end()

    def cut(self) -> None:
        """Break an answer off: the client sees that it is not whole."""
        if not self.done:
            self.done = True
            self._connection.abort()

    def end(self) -> None:
        """The answer is complete."""
        self.done = True
        self.left = self.resume = None
        self._connection.ended()

    def _closing(self) -> list[bytes]:
        connection = self._connection
        if not self.head.keep_alive or connection.server.draining:
            connection.closing = True
        if connection.closing:
            return [b"connection: close"]
        return [] if self.head.minor else [b"connection: keep-alive"]


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_body", "_buffer", "_chunks", "_got", "_head", "_paused", "_reading", "_want", "closing", "due", "exchange",
        "peer", "server", "transport",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any = None
        self.peer = ""
        self.exchange: Exchange | None = None
        self.closing = False
        self.due = 0.0  # when the sweep ends it
        self._buffer = b""
        self._head: RequestHead | None = None  # of a request whose body is on its way
        self._chunks: Chunks | None = None
        self._body: list[bytes] = []
        self._got = self._want = 0
        self._reading = True
        self._paused = False

    # ------------------------------------------------------------------------------------- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) and name else "local"
        self.server.connections.add(self)
        self.due = self.server.time() + self.server.limits.idle_time
        if len(self.server.connections) > self.server.limits.connections:
            self._refuse(Refused(503, "too many connections"))

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self.closing and self.exchange is None:
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self.exchange is None:
            self._read()
        elif len(self._buffer) > _AHEAD and self._reading:
            self._reading = False
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client will send no more: it left, or is indistinguishable from one that did."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self.server.connections.discard(self)
        self._forget()
        exchange, self.exchange = self.exchange, None
        if exchange is not None and not exchange.done:
            exchange.done = True
            if exchange.left is not None:
                exchange.left()
        self.server.left()

    def pause_writing(self) -> None:
        """The client is slower than the engine."""
        self._paused = True
        self.due = self.server.time() + self.server.limits.stall_time
        if self.exchange is not None and self.exchange.resume is not None:
            self.exchange.resume(False)

    def resume_writing(self) -> None:
        """It caught up."""
        self._paused = False
        self.due = float("inf") if self.exchange is not None else self.due
        if self.exchange is not None and self.exchange.resume is not None:
            self.exchange.resume(True)

    # ------------------------------------------------------------------------------------------------- reading

    def _read(self) -> None:
        try:
            if self._head is None and not self._read_head():
                return
            self._read_body()
        except Refused as error:
            self._refuse(error)

    def _read_head(self) -> bool:
        limits = self.server.limits
        data = self._buffer
        end = data.find(_END)
        if end < 0 or end > HEAD_LIMIT:
            if len(data) > HEAD_LIMIT:
                raise Refused(431, f"the head is longer than {HEAD_LIMIT} bytes")
            if data and not self._want:
                self._want = 1
                self.due = self.server.time() + limits.head_time
            return False
        head = http1.request_head(data[:end])
        self._head, self._buffer, self._want = head, data[end + 4 :], head.length
        if head.length > limits.body:
            raise Refused(413, f"the body is longer than {limits.body} bytes")
        if head.length == CHUNKED:
            self._chunks = Chunks()
        if head.length:
            self.due = self.server.time() + limits.body_time
            self._expect(head)
        return True

    def _expect(self, head: RequestHead) -> None:
        wish = head.fields.get(b"expect")
        if wish is None:
            return
        if wish.lower() != b"100-continue":
            raise Refused(417, "the only expectation here is 100-continue")
        if head.minor and not self._buffer:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self) -> None:
        head, data = self._head, self._buffer
        assert head is not None
        if self._chunks is None and not self._body and len(data) >= head.length:  # nearly always: it came at once
            self._buffer = data[head.length :]
            self._head, self._want = None, 0
            self._answer(Exchange(self, head, data[: head.length] if self._buffer else data))
            return
        if self._chunks is not None:
            pieces = self._chunks.feed(data)
            self._buffer, complete = self._chunks.rest, self._chunks.done
        else:
            piece = data[: self._want - self._got]
            pieces, self._buffer = [piece], data[len(piece) :]
            complete = self._got + len(piece) == self._want
        for piece in pieces:
            self._hold(piece)
        if complete:
            body = b"".join(self._body)
            self._forget()
            self._head, self._chunks, self._want = None, None, 0
            self._answer(Exchange(self, head, body))

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of a body, if there is room for it."""
        server = self.server
        self._got += len(piece)
        server.held += len(piece)
        self._body.append(piece)
        if self._got > server.limits.body:
            raise Refused(413, f"the body is longer than {server.limits.body} bytes")
        if server.held > server.limits.bodies:
            raise Refused(503, "too many requests are on their way")

    def _forget(self) -> None:
        self.server.held -= self._got
        self._body, self._got = [], 0

    def _answer(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.due = float("inf")
        self.server.answer(exchange)

    # ------------------------------------------------------------------------------------------------- writing

    def send(self, data: bytes) -> None:
        """Write; the transport's buffer is bounded because who fills it is told to wait."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def ended(self) -> None:
        """The answer is complete: on to the next request."""
        self.exchange = None
        if self.closing or self.server.draining:
            self.closing = True
            self.due = self.server.time() + self.server.limits.stall_time
            self.transport.close()
            return
        self.due = self.server.time() + self.server.limits.idle_time
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        if self._buffer:
            self.server.loop.call_soon(self._next)

    def _next(self) -> None:
        if self.exchange is None and not self.closing and self._buffer:
            self._read()

    def _refuse(self, error: Refused) -> None:
        """Answer what could not be read, and part: where the next request would begin is not known."""
        self.closing = True
        self._forget()
        self.server.refused(error.status)
        body = error_body(str(error), "invalid_request_error" if error.status < 500 else "server_error", error.status)
        lines = [b"HTTP/1.1 " + REASONS[error.status], JSON, b"content-length: %d" % len(body), b"connection: close"]
        if error.status == 503:
            lines.append(b"retry-after: 1")
        self.send(b"\r\n".join([*lines, b"", body]))
        self.due = self.server.time() + 2.0
        # Closing with unread input would reset the connection and may take the answer with it: the client reads it
        # and goes, or the sweep ends it.
        self._buffer = b""
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    def overdue(self, now: float) -> None:
        """The sweep found that it takes too long."""
        if self.exchange is not None:  # takes nothing of its answer
            self.abort()
        elif self._head is not None or self._want:
            self._want, self._head, self._chunks = 0, None, None
            self._refuse(Refused(408, "the request took too long to arrive"))
        else:
            self.abort()

    def abort(self) -> None:
        """Drop the connection at once."""
        self.closing = True
        if self.transport is not None:
            self.transport.abort()


class Server:
    """Listens, and keeps clients within their limits."""

    def __init__(
        self, answer: Callable[[Exchange], None], limits: Limits | None = None, refused: Callable[[int], None] | None = None
    ) -> None:  # fmt: skip
        self.answer = answer
        self.limits = limits or Limits()
        self.refused = refused or (lambda status: None)
        self.connections: set[Connection] = set()
        self.draining = False
        self.held = 0  # bytes of bodies under way
        self.loop: Any = None
        self.time: Callable[[], float] = lambda: 0.0
        self._listeners: list[asyncio.Server] = []
        self._sweep: Any = None
        self._empty: asyncio.Event | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port."""
        self.loop = asyncio.get_running_loop()
        self.time = self.loop.time
        self._empty = asyncio.Event()
        listener = await self.loop.create_server(lambda: Connection(self), host, port, ssl=tls, backlog=1024)
        self._listeners.append(listener)
        self._sweep = self.loop.call_later(_SWEEP, self._look)
        return int(listener.sockets[0].getsockname()[1])

    def _look(self) -> None:
        now = self.time()
        for connection in [c for c in self.connections if c.due < now]:
            connection.overdue(now)
        self._sweep = self.loop.call_later(_SWEEP, self._look)

    def left(self) -> None:
        """A connection is gone."""
        if self.draining and not self.connections and self._empty is not None:
            self._empty.set()

    async def drain(self, grace: float) -> int:
        """Take no more, let what runs end; the number of clients that were cut off after `grace` seconds."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for connection in [c for c in self.connections if c.exchange is None]:
            connection.closing = True
            connection.transport.close()
        if self.connections and self._empty is not None:
            try:
                await asyncio.wait_for(self._empty.wait(), grace)
            except TimeoutError:
                pass
        cut = len(self.connections)
        for connection in list(self.connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()
        return cut
