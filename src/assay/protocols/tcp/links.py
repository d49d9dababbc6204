"""Connections between processes: who calls says who it is and proves it, then sends frames.

One connection serves one direction between two processes. Whatever comes in is bounded and checked before anybody
acts on it: a frame that is too long, no message, from a node that does not live at the caller or for one that does
not live here ends the connection, with a reason that is kept for the outcome.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Protocol, cast

from assay.protocols.interface import Message, NodeId
from assay.protocols.kernel import wire

TOKEN = 16
HELLO = b"assay node\n"
GREETING = len(HELLO) + TOKEN + 4
PATIENCE = 5.0
"""Seconds that a caller has to say who it is."""
STRANGERS = 256
"""Callers that may be about to say it. More than can be accepted before one that speaks at once is heard: the oldest is
cut off for the newest, so that nobody keeps the others out by calling and saying nothing."""
BACKLOG = 1 << 26
"""Bytes that wait for a process which does not read; what comes on top is lost, as on a network."""


class House(Protocol):
    """What a connection must know about the process it belongs to."""

    token: bytes
    homes: list[int]
    """The process of each node."""
    index: int
    """This process."""
    strangers: dict[Incoming, None]
    """Callers that have not said who they are, the oldest first."""

    def arrived(self, src: NodeId, dst: NodeId, msg: Message) -> None:
        """A message for a node of this process."""

    def refuse(self, why: str) -> None:
        """Somebody was cut off."""


def greeting(token: bytes, index: int) -> bytes:
    """What a caller says first."""
    return HELLO + token + index.to_bytes(4, "big")


class Incoming(asyncio.Protocol):
    """A connection from another process."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.caller = -1
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody calls; it has a few seconds to say who it is."""
        self.transport = cast(asyncio.Transport, transport)
        self.clock = asyncio.get_running_loop().call_later(PATIENCE, self.cut, "a caller did not say who it is")
        strangers = self.house.strangers
        strangers[self] = None
        if len(strangers) > STRANGERS:
            next(iter(strangers)).cut("too many callers that do not say who they are")

    def connection_lost(self, error: Exception | None) -> None:
        """It hung up, or was cut off."""
        self._known()

    def _known(self) -> None:
        """No stranger any more."""
        self.house.strangers.pop(self, None)
        self.clock.cancel()

    def cut(self, why: str) -> None:
        """Ends it, and says why."""
        self._known()
        self.house.refuse(why)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Frames, whole or in pieces."""
        if self.transport.is_closing():
            return
        self.buffer += data
        if self.caller < 0 and not self._greeted():
            return
        try:
            used = self._frames()
        except ValueError as error:
            self.cut(f"process {self.caller}: {error}")
            return
        del self.buffer[:used]

    def _greeted(self) -> bool:
        """Whether the caller has said who it is, and is that."""
        if not HELLO.startswith(self.buffer[: len(HELLO)]):
            self.cut("a caller that does not speak this protocol")
            return False
        if len(self.buffer) < GREETING:
            return False
        said = bytes(self.buffer[:GREETING])
        caller = int.from_bytes(said[-4:], "big")
        right = hmac.compare_digest(said[:-4], HELLO + self.house.token) and caller in self.house.homes
        if not right:
            self.cut("a caller with a wrong token")
            return False
        del self.buffer[:GREETING]
        self._known()
        self.caller = caller
        return True

    def _frames(self) -> int:
        """Hands over the whole frames in the buffer; the number of bytes used."""
        buffer, house, used = self.buffer, self.house, 0
        header, homes = wire.HEADER, house.homes
        while len(buffer) - used >= header.size:
            length, src, dst = header.unpack_from(buffer, used)
            if length > wire.LARGEST:
                raise ValueError(f"a frame of {length} bytes; at most {wire.LARGEST} are taken")
            if src >= len(homes) or homes[src] != self.caller:
                raise ValueError(f"a frame from node {src}, which does not live there")
            if dst >= len(homes) or homes[dst] != house.index:
                raise ValueError(f"a frame for node {dst}, which does not live here")
            end = used + header.size + length
            if len(buffer) < end:
                break
            message = wire.decode(bytes(buffer[used + header.size : end]))
            used = end
            house.arrived(src, dst, message)
        return used


class Outgoing(asyncio.Protocol):
    """A connection to another process; what is said while it is not there is lost."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.lost = lost
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone: the other process died."""
        self.transport = None
        self.lost()

    def send(self, frame: bytes) -> bool:
        """Whether the frame went out, as far as one can tell."""
        if self.transport is None or self.transport.get_write_buffer_size() > BACKLOG:
            return False
        self.transport.write(frame)
        return True


async def call(port: int, token: bytes, index: int, lost: Callable[[], None]) -> Outgoing:
    """Opens a connection to the process that listens there and says who is calling."""
    loop = asyncio.get_running_loop()
    transport, outgoing = await loop.create_connection(lambda: Outgoing(lost), "127.0.0.1", port)
    transport.write(greeting(token, index))
    return outgoing
