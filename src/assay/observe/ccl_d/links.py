"""The connections of a ring: each rank listens once, and calls the next for every ring it joins.

>>> listener = listen()
>>> ends = connect(listener, [listener.getsockname()[1]], position=0)  # a ring of one calls itself
>>> len(ends.inlets), len(ends.outlets)
(1, 1)
>>> ends.close(), listener.close()
(None, None)
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GLANCE = 0.05  # seconds between two looks at whether to stop
_HELLO = struct.Struct("<qqq")


class Aborted(Exception):  # noqa: N818 - an order from outside, not an error
    """Somebody ended the collective."""


@dataclass(frozen=True)
class Neighbours:
    """Connections of one rank, one a channel: from the rank before it and to the one after it."""

    position: int
    size: int
    inlets: tuple[socket.socket, ...]
    outlets: tuple[socket.socket, ...]

    def close(self) -> None:
        """Hang up."""
        for connection in (*self.inlets, *self.outlets):
            connection.close()


def listen() -> socket.socket:
    """A listener on a free loopback port; it serves every ring this rank will be in."""
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def connect(
    listener: socket.socket, ports: Sequence[int], position: int, *,
    channels: int = 1, ring: int = 0, stopped: Callable[[], bool] = lambda: False,
) -> Neighbours:  # fmt: skip
    """Join the ring number `ring` of the ranks that listen on `ports`; calls from other rings are turned away."""
    outlets = []
    after = ports[(position + 1) % len(ports)]
    for channel in range(channels):
        outlet = socket.create_connection(("127.0.0.1", after), timeout=10)
        outlet.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outlet.sendall(_HELLO.pack(ring, position, channel))
        outlet.setblocking(False)
        outlets.append(outlet)
    before = (position - 1) % len(ports)
    inlets: dict[int, socket.socket] = {}
    listener.settimeout(GLANCE)
    while len(inlets) < channels:
        if stopped():
            raise Aborted
        try:
            inlet, _ = listener.accept()
        except TimeoutError:
            continue
        answered = _answer(inlet, ring, before)
        if answered is None:
            inlet.close()
        else:
            inlets[answered] = inlet
    return Neighbours(position, len(ports), tuple(inlets[channel] for channel in range(channels)), tuple(outlets))


def _answer(inlet: socket.socket, ring: int, before: int) -> int | None:
    inlet.settimeout(2.0)
    try:
        hello = inlet.recv(_HELLO.size, socket.MSG_WAITALL)
    except OSError:
        return None
    inlet.setblocking(False)
    if len(hello) < _HELLO.size:
        return None
    theirs, position, channel = _HELLO.unpack(hello)
    return channel if (theirs, position) == (ring, before) else None
