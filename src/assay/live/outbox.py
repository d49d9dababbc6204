"""Writes of one turn of the event loop: the first at once, all others together at its end.

A write to another process on the machine wakes it, and under load that is most of what a write costs. Done one after
the other, all but the first find the other side awake. A loop with one thing to do has one write, and that goes past
the loop, before what it was about is written down: somebody waits for it.
"""

from __future__ import annotations

import os
from typing import Any


def file_of(transport: Any) -> int:
    """What can be written to past the loop; -1 where all must go through the transport, as TLS must."""
    plain = transport.get_extra_info("sslcontext") is None
    plug = transport.get_extra_info("socket") if plain else None
    return -1 if plug is None else int(plug.fileno())


class Outbox:
    """What is to be written when everything that can be read has been read; without a loop, at once."""

    __slots__ = ("_flushing", "_waiting", "loop")

    def __init__(self, loop: Any = None) -> None:
        self.loop = loop
        self._waiting: list[tuple[Any, bytes]] = []
        self._flushing = False  # something was written in this turn, or will be at its end

    def send(self, transport: Any, data: bytes, file: int = -1) -> None:
        """Write `data` at the end of this turn; at once if it is the first and `file`, its own, is idle."""
        if self.loop is None:
            self._waiting.append((transport, data))
            self.flush()
            return
        if not self._flushing:
            self._flushing = True
            if file >= 0 and not transport.get_write_buffer_size() and not transport.is_closing():
                data = data[_written(file, data) :]
            self.loop.call_soon(self.flush)
        if data:
            self._waiting.append((transport, data))

    def flush(self) -> None:
        """Write now: before a connection is closed, what was sent must have left."""
        self._flushing = False
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)


def _written(file: int, data: bytes) -> int:
    """How much went; where there is no room or no connection, the transport finds out."""
    try:
        return os.write(file, data)
    except OSError:
        return 0
