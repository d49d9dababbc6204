"""Writes of one turn of the event loop, done together at its end.

A write to another process on the machine wakes it, and under load that is most of what a write costs. Done one after
the other, all but the first find the other side awake. A loop with one thing to do writes as soon as it is done.
"""

from __future__ import annotations

from typing import Any


class Outbox:
    """What is to be written when everything that can be read has been read; without a loop, at once."""

    __slots__ = ("_flushing", "_waiting", "loop")

    def __init__(self, loop: Any = None) -> None:
        self.loop = loop
        self._waiting: list[tuple[Any, bytes]] = []
        self._flushing = False

    def send(self, transport: Any, data: bytes) -> None:
        """Write `data` at the end of this turn."""
        self._waiting.append((transport, data))
        if self.loop is None:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write now: before a connection is closed, what was sent must have left."""
        self._flushing = False
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
