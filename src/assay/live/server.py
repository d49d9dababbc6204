"""Connections of clients: requests in, answers out, within bounds.

One `Connection` a client, one `Exchange` a request. A connection reads one request at a time, whole, because nobody
can be chosen to answer before the prompt is known. The gateway and the mock engine are both an `answer(exchange)`
behind a `Server`; calls are plain functions, since a coroutine for every request would cost more than all the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, cast

import msgspec

from assay.live.http1 import CHUNKED, HEAD_LIMIT, Chunks, Heads, Refused, RequestHead
from assay.live.outbox import Outbox, file_of

REASONS = {status.value: b"%d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus}
JSON = b"content-type: application/json"
_END = b"\r\n\r\n"
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_COPIED = 1 << 17  # bytes of a body
_AHEAD = 64 * 1024  # bytes a client may send ahead of the answer it waits for
_SWEEP = 0.5  # seconds between two looks for clients that take too long
_REFUSES = 0.05  # seconds in which a client on this machine refuses what it is sent after it left
_CLOSED = 7  # TCP_CLOSE, the state of a connection that the other side has reset
_OTHER_FILES = 128  # logs, libraries, and room to say no
_LINGER = 2.0  # seconds that a client has to read why it is parted from
_TAKEN = 1024  # bytes: who takes fewer of an answer in a stall time takes nothing
_PIECES = 4096  # of a chunked body, beside one for every 64 bytes: tiny ones cost more time than they carry
_OVERFLOW = 256  # connections beyond the limit that are told so; any more are dropped unheard


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
    """An error as the OpenAI API writes it, and in the same words as Anthropic's does: that has the type around it.

    >>> error_body("no such model", "not_found_error", 404)
    b'{"error":{"message":"no such model","type":"not_found_error","param":null,"code":404},"type":"error"}'
    """
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error, "type": "error"})


class Exchange:
    """One request and its answer. `left` is called if the client goes before the answer is complete."""

    __slots__ = (
        "_connection", "_framed", "_head", "body", "done", "head", "left", "lines", "nothing", "peer",
        "resume", "started",
    )  # fmt: skip

    def __init__(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        self._connection = connection
        self.head = head
        self.body = body
        self.peer: str = connection.peer
        self.lines: tuple[bytes, ...] = ()  # that the head of every answer to it has
        self.nothing = b""  # what may be written into an answer that has begun without saying anything
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
        asked = self.head.method
        said = [b"content-length: %d" % len(body)] if body or not _bodiless(asked, status) else []
        head = b"\r\n".join(
            [b"HTTP/1.1 " + (line or REASONS[status]), *lines, *self.lines, *said, *self._closing(), b"", b""]
        )
        self.started = True
        self._connection.send(head if asked == b"HEAD" else head + body)
        self.end()

    def refuse(self, status: int, message: str, kind: str = "", more: tuple[bytes, ...] = ()) -> None:
        """The whole answer: an error."""
        kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.reply(status, [JSON, *more], error_body(message, kind, status))

    def begin(self, line: bytes, lines: list[bytes]) -> None:
        """Begin an answer of unknown length; its head leaves with the first piece."""
        if self.head.minor:
            self._framed = not _bodiless(self.head.method, int(line[:3]))
            framing = [b"transfer-encoding: chunked", *self._closing()] if self._framed else self._closing()
        else:  # its end is the connection's
            self._connection.closing = True
            framing = [b"connection: close"]
        self._head = b"\r\n".join([b"HTTP/1.1 " + line, *lines, *self.lines, *framing, b"", b""])

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

    def fail(self, error: Exception) -> None:
        """Whoever should answer failed: that is a fault of this program, told to its log and to the client."""
        loop = self._connection.server.loop
        loop.call_exception_handler({"message": "a request could not be answered", "exception": error})
        left, self.left = self.left, None
        if self.started:
            self.cut()
        else:
            self.refuse(500, "this request could not be answered")
        if left is not None:
            left()

    def _closing(self) -> list[bytes]:
        connection = self._connection
        if not self.head.keep_alive or connection.server.draining:
            connection.closing = True
        if connection.closing:
            return [b"connection: close"]
        return [] if self.head.minor else [b"connection: keep-alive"]


def _bodiless(asked: bytes, status: int) -> bool:
    """Whether an answer has no body whatever its head says."""
    return asked == b"HEAD" or status in (204, 304)


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_body", "_buffer", "_chunks", "_file", "_got", "_half", "_head", "_heads", "_paused", "_pieces", "_plain",
        "_reading", "_unsent", "_want", "closing", "due", "exchange", "peer", "server", "transport",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any = None
        self.peer = ""
        self.exchange: Exchange | None = None
        self.closing = False
        self.due = float("inf")  # when the sweep ends it
        self._buffer = b""
        self._heads = Heads()
        self._head: RequestHead | None = None  # of a request whose body is on its way
        self._chunks: Chunks | None = None
        self._body = bytearray()  # not a list: pieces of two bytes would take twenty times their size
        self._got = self._want = self._pieces = 0
        self._reading = True
        self._paused = False
        self._half = False  # the client has closed its half
        self._file = -1
        self._plain = False  # whether half of it can be closed: TLS has no such thing
        self._unsent = 0  # bytes of answers that waited for the client when it was last looked at

    # ------------------------------------------------------------------------------------- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self.transport, self._file = transport, file_of(transport)
        self._plain = hasattr(socket, "TCP_INFO") and transport.get_extra_info("sslcontext") is None
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) and name else "local"
        self.server.connections.add(self)
        self.due = self.server.time() + self.server.limits.idle_time
        beyond = len(self.server.connections) - self.server.limits.connections
        if beyond > 0 and not self.server.make_room(self):
            if beyond > _OVERFLOW:
                self.abort()
            else:
                self._refuse(Refused(503, "too many connections"))

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self.exchange is None and not self._paused:
            if not self.closing:
                self._buffer = self._buffer + data if self._buffer else data
                self._read()
        elif not self.closing:  # of one that comes after the present one
            self._buffer = self._buffer + data if self._buffer else data
            if len(self._buffer) > _AHEAD and self._reading:
                self._reading = False
                self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client will send no more. It may have left; or it has closed its half, and waits for its answer.

        Only bytes tell: who left refuses them. An interim answer is one that every client of HTTP/1.1 passes over, and
        an answer that has begun says what may be put into it.
        """
        exchange = self.exchange
        probe = None if exchange is None else exchange.nothing if exchange.started else _INTERIM
        if exchange is None or self.closing or not self._plain or not exchange.head.minor or not probe:
            self.due = min(self.due, self.server.time() + self.server.limits.stall_time)
            return False
        self.closing = self._half = True
        self._buffer = b""
        if exchange.started:
            exchange.write(probe)
        else:
            self.send(probe)
        self.server.loop.call_later(_REFUSES, self._look)
        return True

    def _look(self) -> None:
        """Whether a client that sends no more has left: the system knows, and nobody reads here any more."""
        if self.exchange is None or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED:
            self.abort()
        else:
            self.server.loop.call_later(_SWEEP, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self.server.connections.discard(self)
        self.closing = True  # what it sent ahead is not read any more
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
        self._unsent = self.transport.get_write_buffer_size()
        self.due = self.server.time() + self.server.limits.stall_time
        if self.exchange is not None and self.exchange.resume is not None:
            self.exchange.resume(False)

    def resume_writing(self) -> None:
        """It caught up."""
        self._paused = False
        if self.exchange is None:
            self._go_on()
            return
        self.due = float("inf")
        if self.exchange.resume is not None:
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
        head = self._heads.read(data[:end])
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
            self.send(_INTERIM)

    def _read_body(self) -> None:
        head, data = self._head, self._buffer
        assert head is not None
        if self._chunks is None and not self._got and len(data) >= head.length:  # nearly always: it came at once
            self._buffer = data[head.length :]
            body = data[: head.length] if self._buffer else data
            self._count(head.length)
        else:
            if not self._gather(data):
                return
            # A copy of a large one would take too long; it is bytes in all but name.
            body = bytes(self._body) if len(self._body) <= _COPIED else cast(bytes, self._body)
            self._body = bytearray()
        self._head, self._chunks, self._want = None, None, 0
        self._answer(Exchange(self, head, body))

    def _gather(self, data: bytes) -> bool:
        """Keep what came of a body; whether it is whole."""
        if self._chunks is not None:
            pieces = self._chunks.feed(data)
            self._buffer, complete = self._chunks.rest, self._chunks.done
            self._pieces += len(pieces)
            if self._pieces > _PIECES + self._got // 64:
                raise Refused(413, "the body comes in too many small chunks")
            piece = b"".join(pieces)
        else:
            piece = data[: self._want - self._got]
            self._buffer = data[len(piece) :]
            complete = self._got + len(piece) == self._want
        self._count(len(piece))
        self._body += piece
        return complete

    def _count(self, size: int) -> None:
        """So many bytes of a body are here, until its request is answered."""
        server = self.server
        self._got += size
        server.held += size
        if self._got > server.limits.body:
            raise Refused(413, f"the body is longer than {server.limits.body} bytes")
        if server.held > server.limits.bodies:
            raise Refused(503, "too many requests are on their way")

    def _forget(self) -> None:
        self.server.held -= self._got
        self._body, self._got, self._pieces = bytearray(), 0, 0

    def _answer(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.due = float("inf")
        try:
            self.server.answer(exchange)
        except Exception as error:
            exchange.fail(error)

    @property
    def busy(self) -> bool:
        """Whether more than the beginning of a head has come, or an answer is on its way, or it is told to go."""
        if self.exchange is not None or self._head is not None or self.closing:
            return True
        return bool(self.transport.get_write_buffer_size())

    # ------------------------------------------------------------------------------------------------- writing

    def send(self, data: bytes) -> None:
        """Write; the transport's buffer is bounded because who fills it is told to wait."""
        self.server.outbox.send(self.transport, data, self._file)

    def ended(self) -> None:
        """The answer is complete: on to the next request."""
        self.exchange = None
        self.server.held -= self._got
        self._got = self._pieces = 0
        if not self.closing and not self.server.draining:
            self.due = self.server.time() + self.server.limits.idle_time
            if self._buffer or not self._reading:
                self.server.loop.call_soon(self._go_on)
        elif self._buffer:
            self._part(self.server.limits.stall_time)
        else:
            self.closing = True
            self.due = self.server.time() + self.server.limits.stall_time
            self.server.outbox.flush()
            self.transport.close()

    def _go_on(self) -> None:
        """Read what the client sent ahead, unless it does not read either: its answers would pile up here."""
        if self.exchange is not None or self.closing or self._paused:
            return
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        if self._buffer:
            self._read()

    def _refuse(self, error: Refused) -> None:
        """Answer what could not be read, and part: where the next request would begin is not known."""
        self._forget()
        self.server.refused(error.status)
        body = error_body(str(error), "invalid_request_error" if error.status < 500 else "server_error", error.status)
        lines = [b"HTTP/1.1 " + REASONS[error.status], JSON, b"content-length: %d" % len(body), b"connection: close"]
        if error.status == 503:
            lines.append(b"retry-after: 1")
        elif error.status == 405:
            lines.append(b"allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
        self.send(b"\r\n".join([*lines, b"", body]))
        self._part(_LINGER)

    def _part(self, patience: float) -> None:
        """Say no more, and wait until the client goes.

        Closing with input unread would reset the connection and may take the answer with it. So what still comes is
        read and dropped, until the client has read and goes, or the sweep ends it.
        """
        self.closing = True
        self.due = self.server.time() + patience
        self._buffer = b""
        self._head, self._chunks, self._want = None, None, 0
        if self.transport.is_closing():
            return
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        self.server.outbox.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def overdue(self, now: float) -> None:
        """The sweep found that it takes too long."""
        if self.exchange is None and not self.closing and self._want:
            self._refuse(Refused(408, "the request took too long to arrive"))
            return
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent <= self._unsent - _TAKEN:  # it takes its answer, slowly
            self._unsent = unsent
            self.due = now + self.server.limits.stall_time
        else:
            self.abort()

    def abort(self) -> None:
        """Drop the connection at once."""
        self.closing = True
        self.transport.abort()


class Server:
    """Listens, and keeps clients within their limits."""

    def __init__(
        self,
        answer: Callable[[Exchange], None],
        limits: Limits | None = None,
        refused: Callable[[int], None] | None = None,
    ) -> None:
        self.answer = answer
        self.limits = limits or Limits()
        self.refused = refused or (lambda status: None)
        self.connections: set[Connection] = set()
        self.outbox = Outbox()
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
        self.outbox.loop = self.loop
        self._empty = asyncio.Event()
        self.limits = replace(self.limits, connections=self.affordable(self.limits.connections))
        times: dict[str, float] = {}
        if tls is not None:  # a handshake is part of the head, a farewell of the answer
            times = {"ssl_handshake_timeout": self.limits.head_time, "ssl_shutdown_timeout": self.limits.stall_time}
        listener = await self.loop.create_server(lambda: Connection(self), host, port, ssl=tls, backlog=1024, **times)
        self._listeners.append(listener)
        self._sweep = self.loop.call_later(_SWEEP, self._look)
        return int(listener.sockets[0].getsockname()[1])

    def _look(self) -> None:
        self._sweep = self.loop.call_later(_SWEEP, self._look)
        now = self.time()
        for connection in [c for c in self.connections if c.due < now]:
            connection.overdue(now)

    def make_room(self, newcomer: Connection) -> bool:
        """Drop clients that ask for nothing, those closest to their time first; False where all have work here.

        Some at a time: whoever floods the server with connections shall not have it look through all for each.
        """
        idle = [c for c in self.connections if c is not newcomer and not c.busy]
        for connection in heapq.nsmallest(max(self.limits.connections // 16, 1), idle, key=lambda c: c.due):
            connection.abort()
            self.connections.discard(connection)
        return bool(idle)

    def left(self) -> None:
        """A connection is gone."""
        if self.draining and not self.connections and self._empty is not None:
            self._empty.set()

    def hurry(self) -> None:
        """Let a drain that is under way wait no longer."""
        if self._empty is not None:
            self._empty.set()

    async def drain(self, grace: float) -> int:
        """Take no more, let what runs end; the number of clients that were cut off after `grace` seconds."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for connection in [c for c in self.connections if c.exchange is None]:
            if not connection.closing and not connection.transport.get_write_buffer_size():
                # Over TLS it is asked to say goodbye, which a client that only keeps a connection may never do.
                connection.due = self.time() + min(_LINGER, grace / 2)
            connection.closing = True
            connection.transport.close()
        if self.connections and self._empty is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._empty.wait()
        cut = sum(1 for c in self.connections if c.exchange is not None or c.transport.get_write_buffer_size())
        for connection in list(self.connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()
        return cut

    @staticmethod
    def affordable(connections: int) -> int:
        """As many connections as there may be open files for: two each, since a client's may need one to an engine.

        Where a process may open 1,024 files, as is usual, a thousand idle clients would otherwise leave none to ask an
        engine with. The process may raise that itself up to a hard limit.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * connections + _OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return connections if soft == resource.RLIM_INFINITY else max(min(connections, (soft - _OTHER_FILES) // 2), 1)
