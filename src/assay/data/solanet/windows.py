"""Memory that others may read without asking: one-sided gets over sockets.

A rank opens a window and publishes arrays by name. A thread of its own sends what is asked for; the rank goes on
computing (its kernels hold no lock of the interpreter). Who asks for what is not published yet waits. Only the
loopback is served, and only those who know the job's secret. Nothing that is received is executed: a reader knows the
shape and type of what it asked for, and gets its bytes.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
_ASK = struct.Struct("<16s16sqq")  # secret, name, first row (-1: rows by number follow), how many
BLOCK = 1 << 22  # bytes asked for at once: what is on its way while the last block is used
SECRET = 16


def raw(array: Array) -> memoryview:
    """The bytes of an array, without a copy where they lie in a row.

    >>> len(raw(np.zeros((2, 3), np.int32)))
    24
    """
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


class Window:
    """What a rank lets others read; use it in a `with` block.

    >>> with Window(bytes(16)) as window:
    ...     window.publish("rows", np.arange(6).reshape(3, 2))
    ...     with Reader([window.port], bytes(16)) as reader:
    ...         first, last = reader.get(0, "rows", 2, (2,), np.int64), reader.take(0, "rows", [2], (2,), np.int64)
    >>> first.tolist(), last.tolist()
    ([[0, 1], [2, 3]], [[4, 5]])
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._arrays: dict[str, Array] = {}
        self._there = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = True

    def __enter__(self) -> Window:
        threading.Thread(target=self._accept, name="window", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._there:
            self._open = False
            self._there.notify_all()
        self._listener.close()

    def publish(self, name: str, array: Array) -> None:
        """Let others read an array from now on; it must not change any more."""
        with self._there:
            self._arrays[name] = np.ascontiguousarray(array)
            self._there.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    secret, name, start, count = _ASK.unpack(_received(connection, _ASK.size))
                    if not hmac.compare_digest(secret, self._secret):
                        return
                    array = self._wait(name.rstrip(b"\0").decode())
                    if start < 0:
                        places = np.frombuffer(_received(connection, 8 * count), np.int64)
                        connection.sendall(raw(array[places]))
                    else:
                        connection.sendall(raw(array[start : start + count]))
            except (OSError, KeyError, EOFError):
                return  # the reader is gone, or the window is closed

    def _wait(self, name: str) -> Array:
        with self._there:
            self._there.wait_for(lambda: name in self._arrays or not self._open)
            return self._arrays[name]


class Reader:
    """Reads the windows of all ranks; counts the bytes that came."""

    def __init__(self, ports: Sequence[int], secret: bytes) -> None:
        self._ports, self._secret = list(ports), secret
        self._sockets: dict[int, socket.socket] = {}
        self._turn = threading.Lock()  # a get that runs ahead and one that is needed now share the connections
        self.nbytes = 0
        self.gets = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self._sockets.values():
            one.close()

    def get(self, rank: int, name: str, count: int, row: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """The first `count` rows of an array of a rank, block by block."""
        found = np.empty((count, *row), dtype)
        step = max(BLOCK // max(found[:1].nbytes, 1), 1)
        for start in range(0, count, step):
            some = found[start : start + step]
            with self._turn:
                self._ask(rank, name, start, len(some), b"")
                self._fill(rank, some)
        return found

    def take(
        self, rank: int, name: str, places: Sequence[int] | Int64s, row: tuple[int, ...], dtype: npt.DTypeLike
    ) -> Array:
        """Some rows of an array of a rank, in the order of their numbers here."""
        wanted = np.asarray(places, np.int64)
        found = np.empty((len(wanted), *row), dtype)
        step = max(BLOCK // max(found[:1].nbytes, 8), 1)
        for start in range(0, len(wanted), step):
            some = found[start : start + step]
            with self._turn:
                self._ask(rank, name, -1, len(some), wanted[start : start + step].tobytes())
                self._fill(rank, some)
        return found

    def _ask(self, rank: int, name: str, start: int, count: int, rest: bytes) -> None:
        if rank not in self._sockets:
            made = socket.create_connection(("127.0.0.1", self._ports[rank]))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[rank] = made
        self._sockets[rank].sendall(_ASK.pack(self._secret, name.encode(), start, count) + rest)
        self.gets += 1

    def _fill(self, rank: int, rows: Array) -> None:
        view = raw(rows)
        done = 0
        while done < len(view):
            got = self._sockets[rank].recv_into(view[done:])
            if not got:
                raise ConnectionError(f"rank {rank} is gone")
            done += got
        self.nbytes += done


def _received(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
