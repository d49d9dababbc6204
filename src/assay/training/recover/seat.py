"""A replica's end of the keeper: whether the epoch holds, and what everybody agreed on.

A keeper that was killed is started anew, and comes without memory. So a seat remembers for it: which answer it got
last, whether it works or waits, the vote that is not answered yet. It says so to the next one, at the same address.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from assay.record.errors import AssayError
from assay.training.recover.keeper import TIMEOUT

AGAIN, PAUSE = 200, 0.05  # connections in a row that bring nothing, seconds between two


class Broken(Exception):  # noqa: N818 - what happened to the group, and expected
    """A member of this epoch is gone, or a connection between two members is."""


class PutOut(AssayError):  # noqa: N818
    """The others went on without this replica."""

    exit_code = 1


class Seat:
    """A replica's place at the keeper.

    Args:
        address: the keeper's, and that of whoever keeps after it.
        rank: the replica's number.
        timeout: seconds of silence that the keeper bears.
    """

    def __init__(self, address: tuple[str, int], rank: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.epoch = rank, 0
        self._address = address
        self._changed = threading.Condition()
        self._broken, self._closed, self._out = False, False, ""
        self._answer: dict[int, Any] = {}  # empty while there is none
        self._last: dict[str, Any] | None = None  # of the keeper's answers
        self._vote: dict[str, Any] | None = None  # that is not answered
        self._state = "works"
        self._left = threading.Event()
        self._sending = threading.Lock()
        self._connection = self._connect()
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

    def works(self, waits: bool = False) -> None:
        """Tell of progress: this replica works, or begins to wait for the others."""
        self._state = "waits" if waits else "works"
        self._say({self._state: 1})

    def notify(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def complain(self) -> None:
        """Tell all that this epoch's group does not work here."""
        with self._changed:
            self._broken = True
        self._say({"broken": True, "epoch": self.epoch})

    def agree(self, value: Any, broken: bool = False) -> dict[int, Any]:
        """Everybody's values by rank, the same for all that are alive.

        Raises:
            PutOut: this replica was taken for dead, or there is no keeper any more.
        """
        with self._changed:
            self._answer = {}
        with self._sending:
            self._vote = {"vote": value, "broken": broken}
            self._send(self._vote)
        with self._changed:
            self._changed.wait_for(lambda: self._answer or self._closed)
            if not self._answer:
                why = f"it was put out ({self._out})" if self._out else "the keeper is gone"
                raise PutOut(f"replica {self.rank}: {why}; the others go on without it")
            return self._answer

    def leave(self) -> None:
        """Say good-bye, and hear that it was heard."""
        with self._sending:
            self._left.set()
            self._send({"leave": 1})
        with self._changed:
            self._changed.wait_for(lambda: self._closed)
        self._connection.close()

    @property
    def _round(self) -> int:
        return 0 if self._last is None else int(self._last["round"])

    def _connect(self) -> socket.socket:
        """A connection to the keeper, which hears first all that it must know."""
        connection = socket.create_connection(self._address, timeout=60.0)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._sending:
            self._connection = connection
            broken = self.epoch if self._broken else None
            then = [
                {self._state: 1},
                *([self._vote] if self._vote else []),
                *([{"leave": 1}] if self._left.is_set() else []),
            ]
            self._send({"join": self.rank, "last": self._last, "broken": broken, "then": then})
        return connection

    def _say(self, what: Mapping[str, Any]) -> None:
        with self._sending:
            self._send(what)

    def _send(self, what: Mapping[str, Any]) -> None:
        with suppress(OSError):  # a closed connection shows in listening
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def _beat(self, every: float) -> None:
        while not self._left.wait(every) and not self._closed:
            self._say({"beat": 1})

    def _listen(self) -> None:
        silent = 0
        while silent < AGAIN:
            silent += 1
            with suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
                for line in lines:
                    self._hear(json.loads(line))
                    silent = 0
            self._connection.close()
            if self._out:
                break
            time.sleep(PAUSE)
            try:
                self._connect()
            except OSError:  # nobody listens there any more
                break
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _hear(self, said: dict[str, Any]) -> None:
        with self._changed:
            if "out" in said:
                self._out = said["out"]
            elif said.get("broken") == self.epoch:
                self._broken = True
            elif said.get("round") == self._round + 1:
                with self._sending:
                    self._last, self._vote, self._state = said, None, "works"
                self._broken, self.epoch = False, said["agreed"]
                self._answer = {int(rank): value for rank, value in said["votes"]}
            self._changed.notify_all()
