"""Two connections of a rank in a ring: one to the next, one from the one before, served by the thread that computes.

torch's gloo hands messages to a thread of its own. On a machine whose processors all compute, that thread waits for its
turn, three milliseconds a message on today's Linux, while the wire is idle. Here a message leaves when it is handed
over, as far as the system's buffers go; the rest follows while this rank waits for its next one.
"""

from __future__ import annotations

import os
import secrets
import select
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
HEAD = struct.Struct("<q2d")  # before a message: its length, and when it arrives by either clock
BUFFER = 4 << 20
PATIENCE = 600.0  # seconds that a message may take; a rank that died is known at once
MEETING = 60.0  # seconds in which the ring must be closed
TOKEN = 16


class Wire:
    """Messages to the next rank of a ring and from the one before; made by all its ranks together.

    `ranks` are global ones, in the ring's order; addresses are exchanged over `group`.
    """

    def __init__(self, dist: Any, ranks: Sequence[int], group: Any = None) -> None:
        me = ranks.index(dist.get_rank())
        self._names = ranks[(me + 1) % len(ranks)], ranks[me - 1]
        self._leaving: deque[memoryview] = deque()
        if len(ranks) > 1:
            self._to, self._of = _connected(dist, ranks, me, group)

    def send(self, message: Bytes, *arrives: float) -> None:
        """Begin to send; the message must not be changed afterwards."""
        self._leaving.append(memoryview(HEAD.pack(len(message), *arrives)))
        if len(message):
            self._leaving.append(message.data)
        self._push()

    def recv(self) -> tuple[Bytes, float, float]:
        """The next message, and when it arrives by either clock."""
        head = bytearray(HEAD.size)
        self._fill(memoryview(head))
        size, arrives, by_the_wall = HEAD.unpack(head)
        message = np.empty(size, np.uint8)
        self._fill(message.data)
        return message, arrives, by_the_wall

    def flush(self) -> None:
        """Wait until all that was sent has left."""
        while self._leaving:
            self._wait(reading=False)
            self._push()

    def _push(self) -> None:
        """Hand over as much as the system takes."""
        try:
            while self._leaving:
                sent = self._to.sendmsg([self._leaving[0], *([self._leaving[1]] if len(self._leaving) > 1 else [])])
                while self._leaving and sent >= len(self._leaving[0]):
                    sent -= len(self._leaving.popleft())
                if sent:
                    self._leaving[0] = self._leaving[0][sent:]
        except BlockingIOError:
            return
        except OSError as error:
            raise _broken(self._names[0], error) from error

    def _fill(self, room: memoryview) -> None:
        """Read until it is full; meanwhile what is to be sent leaves."""
        while len(room):
            try:
                got = self._of.recv_into(room)
                if not got:
                    raise ConnectionResetError("it hung up")
                room = room[got:]
            except BlockingIOError:
                self._wait(reading=True)
                self._push()
            except OSError as error:
                raise _broken(self._names[1], error) from error

    def _wait(self, reading: bool) -> None:
        either = select.poll()
        if reading:
            either.register(self._of, select.POLLIN)
        if self._leaving:
            either.register(self._to, select.POLLOUT)
        if not either.poll(PATIENCE * 1e3):
            raise _broken(self._names[reading], f"nothing moved in {PATIENCE:g} s")


def _broken(rank: int, why: object) -> RuntimeError:
    """The kind of error that torch's collectives raise."""
    return RuntimeError(f"the ring is broken at rank {rank}: {why}")


def _connected(dist: Any, ranks: Sequence[int], me: int, group: Any) -> tuple[socket.socket, socket.socket]:
    """Connections to the next rank and from the one before, which shows that it knows this rank's token."""
    token = secrets.token_bytes(TOKEN)
    with socket.create_server((_own_address(), 0)) as listener:
        addresses: list[Any] = [None] * len(ranks)
        dist.all_gather_object(addresses, (dist.get_rank(), listener.getsockname(), token), group=group)
        where, word = next((place, word) for rank, place, word in addresses if rank == ranks[(me + 1) % len(ranks)])
        to = socket.create_connection(where, MEETING)
        to.sendall(word)
        of = _accepted(listener, token, ranks[me - 1])
    for one in (to, of):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, kind, BUFFER)
        one.setblocking(False)
    return to, of


def _accepted(listener: socket.socket, token: bytes, before: int) -> socket.socket:
    """The connection of the rank before. Strangers are heard beside it: one that says nothing holds nobody up."""
    end, said = time.monotonic() + MEETING, dict[socket.socket, bytes]()
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        try:
            while (left := end - time.monotonic()) > 0:
                for key, _ in ready.select(left):
                    if key.fileobj is listener:
                        one = listener.accept()[0]
                        said[one] = b""
                        ready.register(one, selectors.EVENT_READ)
                        continue
                    one = cast(socket.socket, key.fileobj)
                    try:
                        said[one] += (heard := one.recv(TOKEN - len(said[one])))
                    except OSError:
                        heard = b""
                    if secrets.compare_digest(said[one], token):
                        del said[one]
                        return one
                    if not heard or len(said[one]) == TOKEN:
                        ready.unregister(one)
                        del said[one]
                        one.close()
            raise _broken(before, f"it did not connect in {MEETING:g} s")
        finally:
            for one in said:
                one.close()


def _own_address() -> str:
    """By which address other ranks reach this one: as the job's first rank would see it, on one machine the loop's."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
