"""Connections to engines: kept open, one request at a time, answers handed on piece by piece as they arrive."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ssl
import struct
import termios
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from assay.live import http1
from assay.live.http1 import CHUNKED, HEAD_LIMIT, UNTIL_CLOSE, Chunks, Refused, ResponseHead
from assay.live.outbox import Outbox, file_of
from assay.record.errors import BadInput

_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Address:
    """Where an engine listens.

    >>> Address.of("http://10.0.0.7:8000/").host
    '10.0.0.7'
    """

    url: str
    host: str
    port: int
    tls: bool
    prefix: bytes  # of every path, where the engine is not at the root

    @classmethod
    def of(cls, url: str) -> Address:
        """From http://host:port[/prefix] or https://…; BadInput otherwise."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        plain = url.isascii() and url.isprintable() and " " not in url
        if not host or not plain or parts.scheme not in ("http", "https") or parts.query or parts.username:
            raise BadInput(f"engine '{url}': write http://host:port")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/")
        if path.endswith("/v1"):
            raise BadInput(f"engine '{url}': write it without /v1; paths are passed on as clients ask them")
        port = port or (443 if tls else 80)
        name = f"[{host}]" if ":" in host else host
        return cls(f"{parts.scheme}://{name}:{port}{path}", host, port, tls, path.encode())

    @property
    def authority(self) -> bytes:
        """As the Host field says it."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}".encode()


class Answered(Protocol):
    """Whoever waits for an engine's answer."""

    method: bytes

    def connected(self, upstream: Upstream) -> bool:
        """A connection was opened for it; False where it is not wanted any more."""

    def unreachable(self, pool: Pool, why: str) -> None:
        """No connection could be opened for it."""

    def answered(self, head: ResponseHead) -> None:
        """The head is there."""

    def payload(self, data: bytes) -> None:
        """A piece of the body."""

    def complete(self) -> None:
        """The answer is whole."""

    def broken(self, why: str, stale: bool) -> None:
        """The connection failed first. `stale`: a kept connection whose engine never had what it was asked."""


class Upstream(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = ("_buffer", "_chunks", "_file", "_head", "_left", "_pool", "_used", "asker", "transport")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.transport: Any = None
        self.asker: Answered | None = None
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._chunks: Chunks | None = None
        self._left = 0  # bytes of the body to come
        self._used = 0  # answers so far
        self._file = -1

    def ask(self, asker: Answered, data: bytes) -> None:
        """Send a request."""
        self.asker = asker
        self._head = None
        self._pool.outbox.send(self.transport, data, self._file)

    def pace(self, go: bool) -> None:
        """Read on, or stop until the client has caught up."""
        if self.transport.is_closing():
            return
        if go:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def drop(self) -> None:
        """Close it, whatever is under way: the engine sees that nobody waits any more."""
        self.asker = None
        self._pool.forget(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The engine is there."""
        self.transport = transport
        self._file = file_of(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self.asker is None:  # nobody asked: an engine that says more than it should is not kept
            self.drop()
            return
        try:
            if self._head is None:
                data = self._buffer + data if self._buffer else data
                rest = self._read_head(data)
                if rest is None:
                    return
                data = rest
            if data or self._left == 0:
                self._read_body(data)
        except Refused as error:
            asker = self.asker
            self.drop()
            if asker is not None:
                asker.broken(str(error), False)

    def _read_head(self, data: bytes) -> bytes | None:
        """What follows the head; None while it is not whole."""
        while True:
            end = data.find(_END)
            if end < 0 or end > HEAD_LIMIT:
                if len(data) > HEAD_LIMIT:
                    raise Refused(502, "the engine's head is too long")
                self._buffer = data
                return None
            assert self.asker is not None
            head = http1.response_head(data[:end], self.asker.method)
            data = data[end + 4 :]
            if head.status >= 200:
                break
        self._buffer = b""
        self._head, self._left = head, head.length
        self._chunks = Chunks() if head.length == CHUNKED else None
        self.asker.answered(head)
        return data

    def _read_body(self, data: bytes) -> None:
        asker = self.asker
        if asker is None:  # it was dropped when it saw the head
            return
        if self._chunks is not None:
            pieces = self._chunks.feed(data)
            if pieces:
                asker.payload(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if self._chunks.done and self.asker is not None:
                self._complete(self._chunks.rest)
        elif self._left == UNTIL_CLOSE:
            asker.payload(data)
        else:
            piece = data[: self._left] if len(data) > self._left else data
            self._left -= len(piece)
            if piece:
                asker.payload(piece)
            if self._left == 0 and self.asker is not None:
                self._complete(data[len(piece) :])

    def _complete(self, rest: bytes) -> None:
        asker, head = self.asker, self._head
        assert asker is not None and head is not None
        self.asker = None
        self._used += 1
        if head.keep_alive and not rest:
            if not self.transport.is_reading():  # a slow client's; the next one is not to wait for it
                self.pace(True)
            self._pool.keep(self)
        else:
            self.drop()
        asker.complete()

    def connection_lost(self, error: Exception | None) -> None:
        """The engine closed it."""
        self._pool.forget(self)
        asker, self.asker = self.asker, None
        if asker is None:
            return
        if self._head is not None and self._left == UNTIL_CLOSE and error is None:
            asker.complete()
        else:
            stale = self._used > 0 and self._head is None and not self._buffer and self._unread()
            asker.broken(f"the connection to the engine broke: {error}" if error else "the engine hung up", stale)

    def _unread(self) -> bool:
        """Whether the engine's system never acknowledged some of what it was sent.

        That tells an engine that closed a connection before it was asked, as servers do with idle ones, from one that
        was asked and hung up. Where the system does not say, the first is taken for granted: it is the usual one.
        """
        try:
            file = self.transport.get_extra_info("socket").fileno()
            return bool(struct.unpack("i", fcntl.ioctl(file, termios.TIOCOUTQ, bytes(4)))[0])
        except (AttributeError, OSError):
            return True


class Pool:
    """The connections to one engine."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        connect_time: float = 2.0,
        keep: int = 1024,
        outbox: Outbox | None = None,
    ) -> None:
        self.address = address
        self.outbox = outbox or Outbox()
        self._connect_time = connect_time
        self._tls = (tls or ssl.create_default_context()) if address.tls else None
        self._idle: list[Upstream] = []
        self._keep = keep
        self.all: set[Upstream] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = False  # the last connection that was tried: nobody listens there

    def ask(self, asker: Answered, data: bytes, fresh: bool = False) -> Upstream | None:
        """Send on a kept connection, or open one: then None, and `connected` or `unreachable` follows."""
        while self._idle and not fresh:
            upstream = self._idle.pop()
            if not upstream.transport.is_closing():
                upstream.ask(asker, data)
                return upstream
        task = asyncio.get_running_loop().create_task(self._open(asker, data))
        self._tasks.add(task)  # the loop itself keeps no hold on a task
        task.add_done_callback(self._tasks.discard)
        return None

    async def _open(self, asker: Answered, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        server_name = self.address.host if self._tls else None
        where = (self.address.host, self.address.port)
        try:
            async with asyncio.timeout(self._connect_time):
                _, upstream = await loop.create_connection(
                    lambda: Upstream(self), *where, ssl=self._tls, server_hostname=server_name
                )
        except OSError as error:  # a timeout and a TLS failure are of this kind, too
            self.refused = _refused(error)
            asker.unreachable(self, f"cannot connect: {error.strerror or str(error) or 'no answer'}")
            return
        self.refused = False
        if upstream.transport.is_closing():  # it was there, and is gone already
            asker.unreachable(self, "the engine hung up at once")
            return
        self.all.add(upstream)
        if asker.connected(upstream):
            upstream.ask(asker, data)
        else:  # whoever asked has given up meanwhile
            self.keep(upstream)

    def keep(self, upstream: Upstream) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) < self._keep:
            self._idle.append(upstream)
        else:
            upstream.drop()

    def forget(self, upstream: Upstream) -> None:
        """A connection is no more."""
        self.all.discard(upstream)
        if upstream in self._idle:
            self._idle.remove(upstream)

    def close(self) -> None:
        """Drop all of them."""
        for task in self._tasks:
            task.cancel()
        for upstream in list(self.all):
            upstream.drop()


def _refused(error: OSError) -> bool:
    """Whether nobody listens: a name with several addresses has an error of each in one text, and no number."""
    if error.errno is not None or isinstance(error, TimeoutError | ssl.SSLError):
        return error.errno == errno.ECONNREFUSED
    each = str(error).count("[Errno ")
    return each > 0 and str(error).count(f"[Errno {errno.ECONNREFUSED}]") == each
