"""Who is alive: a keeper outside the replicas that notices deaths, numbers the epochs and lets survivors agree.

A replica holds one connection to it. The system closes that connection when the process dies, whatever it died of, so
that a death is known at once and a replica that is merely slow is never taken for a dead one. Silence is the fallback:
a replica whose host vanished or that was frozen sends no heartbeat, is put out after the time-out, and finds its
connection closed should it wake up.

`Keeper` serves, in a thread of whoever starts the replicas; `Seat` is a replica's end. All they exchange are lines of
JSON. There is one question, `agree`: everybody alive brings a value, and everybody alive gets the same values of the
same members. As the keeper decides once, a member that dies meanwhile is in all answers or in none.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from assay.record.errors import AssayError

LONGEST = 1 << 24  # bytes of a line; one that is longer is not ours
TIMEOUT = 5.0


class Broken(Exception):  # noqa: N818 - what happened to the group, and expected
    """A member of this epoch is gone, or a connection between two members is."""


class PutOut(AssayError):  # noqa: N818
    """The others went on without this replica."""

    exit_code = 1


class Keeper:
    """Serves `size` replicas until the block ends.

    Args:
        size: how many replicas there are in the beginning.
        timeout: seconds of silence after which one is put out.
        host: where to listen; the port is any free one.
    """

    def __init__(self, size: int, timeout: float = TIMEOUT, host: str = "127.0.0.1") -> None:
        self.size, self.timeout = size, timeout
        self.epoch = 0
        self.lost: list[tuple[int, str, float]] = []  # who, why, when by the monotonic clock
        self._alive: dict[int, socket.socket] = {}
        self._missing = set(range(size))  # not here yet
        self._members = set(range(size))  # of this epoch
        self._votes: dict[int, Any] = {}
        self._broken = False
        self._heard: dict[socket.socket, float] = {}
        self._rest: dict[socket.socket, bytearray] = {}
        self._server = socket.create_server((host, 0))
        self._server.setblocking(False)
        self._wake, self._waker = socket.socketpair()
        self._gone: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._serve, name="assay-keeper", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Keeper:
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waker.send(b"x")
        self._thread.join()
        for connection in [*self._heard, self._server, self._wake, self._waker]:
            connection.close()
        self._selector.close()

    def never_came(self, rank: int) -> None:
        """Tell it that a replica died before it got here."""
        self._gone.append(rank)
        self._waker.send(b"g")

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self.timeout / 4):
                if key.fileobj is self._wake:
                    if b"x" in self._wake.recv(64):
                        return
                elif key.fileobj is self._server:
                    connection, _ = self._server.accept()
                    connection.settimeout(self.timeout)
                    self._selector.register(connection, selectors.EVENT_READ)
                    self._heard[connection], self._rest[connection] = time.monotonic(), bytearray()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            # All that was said has been heard by now: a keeper that got no time blames nobody for its own silence.
            now = time.monotonic()
            for connection, heard in list(self._heard.items()):
                if now - heard > self.timeout and not self._said(connection):
                    self._put_out(connection, "silent")
            while self._gone:
                rank = self._gone.pop()
                if rank in self._missing:
                    self._missing.discard(rank)
                    self._lose(rank, "never came")
            self._decide()

    @staticmethod
    def _said(connection: socket.socket) -> bool:
        """Whether something lies there unread."""
        connection.setblocking(False)
        try:
            return bool(connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False
        finally:
            connection.settimeout(TIMEOUT)

    def _read(self, connection: socket.socket) -> None:
        rest = self._rest.get(connection)
        if rest is None:
            return
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        rest += data
        if not data or len(rest) > LONGEST:
            self._put_out(connection, "died")
            return
        self._heard[connection] = time.monotonic()
        *lines, tail = bytes(rest).split(b"\n")
        rest[:] = tail
        for line in lines:
            try:
                self._hear(connection, json.loads(line))
            except (ValueError, KeyError, TypeError):
                self._put_out(connection, "spoke nonsense")
                return

    def _hear(self, connection: socket.socket, said: Any) -> None:
        if not isinstance(said, dict):
            raise TypeError(said)
        if "join" in said:
            rank = said["join"]
            if rank not in self._missing:
                raise ValueError(rank)
            self._missing.discard(rank)
            self._alive[rank] = connection
            return
        rank = self._rank(connection)
        if rank is None:
            raise ValueError(said)
        if said.get("epoch") not in (self.epoch, None):
            return  # a word of an epoch that is over
        if "vote" in said:
            self._votes[rank] = said["vote"]
            self._broken |= bool(said["broken"])
        elif "broken" in said:
            self._break()
        elif "leave" in said:
            self._put_out(connection, "left")

    def _rank(self, connection: socket.socket) -> int | None:
        return next((rank for rank, one in self._alive.items() if one is connection), None)

    def _put_out(self, connection: socket.socket, why: str) -> None:
        rank = self._rank(connection)
        if rank is not None:
            del self._alive[rank]
            self._lose(rank, why)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        self._heard.pop(connection, None)
        self._rest.pop(connection, None)
        connection.close()  # last: whoever finds it closed finds itself among the lost

    def _lose(self, rank: int, why: str) -> None:
        self.lost.append((rank, why, time.monotonic()))
        self._votes.pop(rank, None)
        self._break()

    def _break(self) -> None:
        self._broken = True
        self._tell({"broken": self.epoch})

    def _decide(self) -> None:
        """Answer as soon as nobody alive is awaited."""
        if self._missing or not self._alive or self._votes.keys() != self._alive.keys():
            return
        members = set(self._alive)
        if self._broken or members != self._members:
            self.epoch += 1
        self._members, self._broken = members, False
        votes, self._votes = dict(sorted(self._votes.items())), {}
        self._tell({"agreed": self.epoch, "votes": list(votes.items())})

    def _tell(self, what: Mapping[str, Any]) -> None:
        line = json.dumps(what).encode() + b"\n"
        for connection in list(self._alive.values()):
            try:
                connection.sendall(line)
            except OSError:  # it is dying; its connection will say so
                continue


class Seat:
    """A replica's place at the keeper: whether the epoch holds, and what everybody agreed on."""

    def __init__(self, address: tuple[str, int], rank: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.epoch = rank, 0
        self._changed = threading.Condition()
        self._broken, self._closed = False, False
        self._answer: dict[int, Any] | None = None
        self._sending = threading.Lock()
        self._connection = socket.create_connection(address, timeout=60.0)
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._say({"join": rank})
        self._left = threading.Event()
        for work in (self._listen, lambda: self._beat(timeout / 4)):
            threading.Thread(target=work, name="assay-seat", daemon=True).start()

    @property
    def broken(self) -> bool:
        """Whether somebody of this epoch is gone."""
        return self._broken or self._closed

    def wait(self, done: threading.Event | None, timeout: float | None = None) -> None:
        """Until it is done.

        Raises:
            Broken: the epoch ended first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.broken or (done is not None and done.is_set()), timeout)
        if done is None or not done.is_set():
            raise Broken

    def notify(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def complain(self) -> None:
        """Tell all that this epoch's group does not work here."""
        self._say({"broken": True, "epoch": self.epoch})

    def agree(self, value: Any, broken: bool = False) -> dict[int, Any]:
        """Everybody's values by rank, the same for all that are alive.

        Raises:
            PutOut: this replica was taken for dead, or the keeper is gone.
        """
        self._forget()
        self._say({"vote": value, "broken": broken})
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._closed)
            if self._answer is None:
                raise PutOut(f"replica {self.rank}: the keeper closed the connection; the others go on without it")
            return self._answer

    def _forget(self) -> None:
        with self._changed:
            self._answer = None

    def leave(self) -> None:
        """Say good-bye."""
        self._left.set()
        self._say({"leave": 1})
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _say(self, what: Mapping[str, Any]) -> None:
        with self._sending, suppress(OSError):  # a closed connection shows in listening
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def _beat(self, every: float) -> None:
        while not self._left.wait(every):
            self._say({"beat": 1})

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                with self._changed:
                    if "agreed" in said:
                        self._broken = False
                        self.epoch = said["agreed"]
                        self._answer = {int(rank): value for rank, value in said["votes"]}
                    elif said.get("broken") == self.epoch:
                        self._broken = True
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
