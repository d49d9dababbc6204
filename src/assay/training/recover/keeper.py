"""Who is alive: a keeper outside the replicas that notices deaths, numbers the epochs and lets survivors agree.

A replica holds one connection to it. The system closes that connection when the process dies, whatever it died of, so
that a death is known at once and a replica that is merely slow is never taken for a dead one. Silence is the fallback
for a process that nobody sees: whose host vanished sends no heartbeat and is put out after the time-out. Where whoever
started the replicas says when a process exits, its silence means nothing: a call may hold the interpreter for long.

A process that runs may still be stopped, or hang. So what counts is progress: a replica says when it works and when it
waits for the others, and one that says nothing while it works is put out when others have waited for it too long. Who
has left waits for the others to leave: one that hangs after the last step keeps the job from ending.

`Keeper` serves; a `Seat` is a replica's end. All they exchange are lines of JSON. There is one question, `agree`:
everybody alive brings a value, and everybody alive gets the same values of the same members. As the keeper decides
once, a member that dies meanwhile is in all answers or in none.

The keeper may die as well. It holds nothing that the replicas do not know: the next one hears from each of them the
last answer that it got and the vote that is open, gives the latest answer to those that have not got it, and goes on
from there. Run as a program this file, which needs nothing but Python, is a keeper in a process of its own;
`KeeperProcess` starts it, and the next one.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

LONGEST = 1 << 24  # bytes of a line; one that is longer is not ours
TIMEOUT = 5.0
BACKLOG = 1024  # replicas that come at once


class Keeper:
    """Serves `size` replicas: in a thread within a `with` block, or by `serve` in the thread that calls it.

    Args:
        size: how many replicas there are in the beginning.
        timeout: seconds of silence after which one is put out.
        hang_after: seconds that the others wait for one that makes no progress.
        start: seconds in which all of them have to come; as many unless said otherwise.
        watched: whether `exited` is called for each process that ends, so that silence means nothing.
        listener: the socket to listen at; any free port of this machine else.
        control: a socket on which lines with the numbers of exited replicas arrive; its end is the keeper's.
        expected: who is in the job, where another keeper was there before.
        left: who has finished, by what that keeper said.
        on_event: called with a replica and why it is gone, before anybody else hears of it.
    """

    def __init__(
        self, size: int, timeout: float = TIMEOUT, *, hang_after: float = math.inf, start: float | None = None,
        watched: bool = False, listener: socket.socket | None = None, control: socket.socket | None = None,
        expected: Iterable[int] | None = None, left: Iterable[int] = (),
        on_event: Callable[[int, str], None] = lambda rank, why: None,
    ) -> None:  # fmt: skip
        self.size, self.timeout, self.hang_after = size, timeout, hang_after
        self.epoch = 0
        self.left = set(left)  # who finished
        self.lost: list[tuple[int, str, float]] = []  # who, why, when by the monotonic clock
        self._watched, self._on_event = watched, on_event
        self._turn = min(timeout, hang_after, 1.0) / 4
        self._now, self._start = 0.0, hang_after if start is None else start  # by a clock that runs while it serves
        self._working_since: dict[int, float] = {}  # since when a replica has said nothing while it works
        self._waiting_since: dict[int, float] = {}  # since when one waits for the others
        self._left_since = 0.0 if self.left else math.inf  # the same, of those that left
        self._alive: dict[int, socket.socket] = {}
        self._missing = set(range(size) if expected is None else expected)  # not here yet
        self._members = set(range(size))  # of this epoch
        self._votes: dict[int, Any] = {}
        self._broken = False
        self._answer: dict[str, Any] = {"round": 0}  # the last
        self._resuming = expected is not None
        self._rounds: dict[int, int] = {}  # the last answer that each replica had when it came
        self._broken_epochs: set[int] = set()  # those of which a replica that came back has heard so
        self._heard: dict[socket.socket, float] = {}
        self._rest: dict[socket.socket, bytearray] = {}
        self._listener = listener or socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._remote: socket.socket | None = None
        if control is None:
            control, self._remote = socket.socketpair()
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self.serve, name="assay-keeper", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._remote:
            self._remote.close()
        self._thread.join()
        for connection in [self._listener, *self._heard, self._control]:
            connection.close()
        self._selector.close()

    def exited(self, rank: int) -> None:
        """A replica's process has ended: there may be no connection that says so, or a child of it that holds it."""
        if self._remote:
            self._remote.sendall(f"{rank}\n".encode())

    def serve(self) -> None:
        """Work until the other end of the control socket is closed."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._control, selectors.EVENT_READ)
        before, rest = time.monotonic(), b""
        while True:
            exited: set[int] = set()
            for key, _ in self._selector.select(self._turn):
                if key.fileobj is self._control:
                    said = self._control.recv(1 << 16)
                    if not said:
                        return
                    *lines, rest = (rest + said).split(b"\n")
                    exited |= {int(line) for line in lines if line}
                    if b"" in lines:  # whoever restarts keepers asks whether this one is well
                        self._control.sendall(b"\n")
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            # A keeper that got no time itself, or was stopped, blames nobody for it: its clock stood meanwhile.
            self._now, before = self._now + min(time.monotonic() - before, 2 * self._turn), time.monotonic()
            for rank in exited:
                self._bury(rank)
            self._look_for_silence()
            self._look_for_hangs()
            self._decide()

    def _accept(self) -> None:
        with suppress(OSError):  # who knocked is gone
            connection, _ = self._listener.accept()
            connection.settimeout(self.timeout)
            self._selector.register(connection, selectors.EVENT_READ)
            self._heard[connection], self._rest[connection] = self._now, bytearray()

    def _bury(self, rank: int) -> None:
        """Its process has ended. What it said before counts."""
        while (connection := self._alive.get(rank)) and self._has_said(connection):
            self._read(connection)
        if rank in self._alive:
            self._put_out(self._alive[rank], "died")
        elif rank in self._missing:
            self._lose(rank, "never came")

    def _look_for_silence(self) -> None:
        for connection, heard in list(self._heard.items()):
            if self._now - heard <= self.timeout or self._has_said(connection):
                continue
            if not (self._watched and self._rank(connection) is not None):
                self._put_out(connection, "silent")

    def _look_for_hangs(self) -> None:
        """Put out who makes no progress while others wait for it; if all wait, who says nothing at all."""
        late = self._now - self.hang_after
        overdue = any(since < late for since in [self._left_since, *self._waiting_since.values()])
        if overdue if self._answer["round"] else self._now > self._start:
            for rank in sorted(self._missing):
                self._lose(rank, "never came")
        if not overdue:
            return
        stuck = [rank for rank, since in self._working_since.items() if since < late]
        if not self._working_since:  # in a sum that does not end
            if any(since >= late for since in self._waiting_since.values()):
                return
            silent = self._now - self.timeout
            stuck = [rank for rank in self._waiting_since if self._heard[self._alive[rank]] < silent]
            if not stuck:
                self._break()
        for rank in stuck:
            if rank in self._alive and not self._has_said(self._alive[rank]):
                self._put_out(self._alive[rank], "hung")

    def _works(self, rank: int) -> None:
        self._waiting_since.pop(rank, None)
        self._working_since[rank] = self._now

    def _waits(self, rank: int) -> None:
        self._working_since.pop(rank, None)
        self._waiting_since.setdefault(rank, self._now)

    @staticmethod
    def _has_said(connection: socket.socket) -> bool:
        """Whether something lies there unread, asked without waiting: a socket with a time-out would wait for it."""
        look = select.poll()
        look.register(connection, select.POLLIN)
        return bool(look.poll(0))

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
        self._heard[connection] = self._now
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
        rank = self._rank(connection)
        if rank is None:
            self._join(connection, said["join"], said)
            return
        if said.get("epoch") not in (self.epoch, None):
            return  # a word of an epoch that is over
        if "works" in said:
            self._works(rank)
        elif "waits" in said:
            self._waits(rank)
        elif "vote" in said:
            self._waits(rank)
            self._votes[rank] = said["vote"]
            self._broken |= bool(said["broken"])
        elif "broken" in said:
            self._break()
        elif "leave" in said:
            self.left.add(rank)
            self._left_since = min(self._left_since, self._now)
            self._put_out(connection, "left")
        elif "beat" not in said:
            raise ValueError(said)

    def _join(self, connection: socket.socket, rank: int, said: Mapping[str, Any]) -> None:
        """One comes, or comes back from a keeper that is gone, with the last answer that it got from there."""
        last = said.get("last") or {"round": 0}
        after, members = int(last["round"]), {member for member, _ in last.get("votes", [])}
        if rank not in self._missing:
            self._put_out(connection, "not expected")
            return
        self._missing.discard(rank)
        self._alive[rank], self._rounds[rank] = connection, after
        self._works(rank)
        if after > self._answer["round"]:
            self._answer, self.epoch, self._members = dict(last), last["agreed"], members
        if said.get("broken") is not None:
            self._broken_epochs.add(said["broken"])
        for word in said.get("then", []):
            if connection in self._heard:
                self._hear(connection, word)

    def _resume(self) -> None:
        """After another keeper: bring all to the same answer, and tell them whether its epoch still holds."""
        self._resuming = False
        for rank in sorted(self._alive.keys() - self._members):
            self._put_out(self._alive[rank], "put out")  # so the keeper before has told the others
        behind = {rank for rank in self._alive if self._rounds[rank] < self._answer["round"]}
        for rank in behind:  # what it voted was on this answer
            self._votes.pop(rank, None)
            self._works(rank)
        self._tell(self._answer, behind)
        if self._broken or self.epoch in self._broken_epochs or self._alive.keys() != self._members:
            self._break()

    def _rank(self, connection: socket.socket) -> int | None:
        return next((rank for rank, one in self._alive.items() if one is connection), None)

    def _put_out(self, connection: socket.socket, why: str) -> None:
        rank = self._rank(connection)
        if rank is not None:
            self._lose(rank, why)
        if rank is not None or why == "not expected":  # anybody else may come again
            with suppress(OSError):
                connection.sendall(json.dumps({"out": why}).encode() + b"\n")
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        self._heard.pop(connection, None)
        self._rest.pop(connection, None)
        connection.close()  # last: whoever finds it closed finds itself among the lost

    def _lose(self, rank: int, why: str) -> None:
        self.lost.append((rank, why, time.monotonic()))
        self._on_event(rank, why)
        self._missing.discard(rank)
        for table in (self._alive, self._votes, self._working_since, self._waiting_since):
            table.pop(rank, None)
        self._break()

    def _break(self) -> None:
        self._broken = True
        for rank in self._alive.keys() - self._votes.keys():  # it has to come and vote now
            self._works(rank)
        self._tell({"broken": self.epoch}, self._alive)

    def _decide(self) -> None:
        """Answer as soon as nobody alive is awaited."""
        if self._missing or not self._alive:
            return
        if self._resuming:
            self._resume()
        if self._votes.keys() != self._alive.keys():
            return
        members = set(self._alive)
        if self._broken or members != self._members:
            self.epoch += 1
        self._members, self._broken = members, False
        votes, self._votes = dict(sorted(self._votes.items())), {}
        for rank in members:
            self._works(rank)
        self._answer = {"agreed": self.epoch, "votes": list(votes.items()), "round": self._answer["round"] + 1}
        self._tell(self._answer, members)

    def _tell(self, what: Mapping[str, Any], ranks: Iterable[int]) -> None:
        line = json.dumps(what).encode() + b"\n"
        for rank in list(ranks):
            try:
                self._alive[rank].sendall(line)
            except OSError:  # it is dying; its connection will say so
                continue


def end_with(parent: int) -> None:
    """Linux ends this process when the one that started it is gone, also where it hangs or is stopped."""
    with suppress(OSError, AttributeError):  # elsewhere there is no such call
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def _main(listener: int, control: int, parent: int, asked: str) -> None:
    """A keeper in a process of its own, until whoever started it closes its end of `control` or is gone."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the launcher decides
    with socket.socket(fileno=listener) as listens, socket.socket(fileno=control) as events:

        def report(rank: int, why: str) -> None:
            events.sendall(json.dumps([rank, why]).encode() + b"\n")

        Keeper(**json.loads(asked), watched=True, listener=listens, control=events, on_event=report).serve()


if __name__ == "__main__":
    with suppress(OSError):  # the launcher is gone
        _main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
