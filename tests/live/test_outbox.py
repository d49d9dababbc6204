"""Writes of a turn: the first goes past the loop, nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from assay.live.outbox import Outbox, file_of


class Pipe:
    """A transport on one end of a socket pair, the other end read by hand."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)

    async def __aenter__(self) -> Pipe:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_connection(asyncio.Protocol, sock=self.near)
        self.file = file_of(self.transport)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.transport.abort()
        self.far.close()
        await asyncio.sleep(0)

    def read(self) -> bytes:
        """All that has arrived."""
        got = b""
        while True:
            try:
                piece = self.far.recv(1 << 20)
            except BlockingIOError:
                return got
            if not piece:
                return got
            got += piece

    async def read_until(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            got += self.read()
            await asyncio.sleep(0)
        return got


def drive(scenario: Callable[[Pipe, Outbox], object]) -> None:
    async def run() -> None:
        async with Pipe() as pipe:
            await scenario(pipe, Outbox(asyncio.get_running_loop()))  # type: ignore[misc]

    asyncio.run(run())


def test_the_first_write_of_a_turn_is_there_before_the_turn_ends_and_the_others_after() -> None:
    async def scenario(pipe: Pipe, outbox: Outbox) -> None:
        outbox.send(pipe.transport, b"one", pipe.file)
        outbox.send(pipe.transport, b"two", pipe.file)
        assert pipe.read() == b"one"
        await asyncio.sleep(0)
        assert pipe.read() == b"two"
        outbox.send(pipe.transport, b"three", pipe.file)  # another turn, another first
        assert pipe.read() == b"three"

    drive(scenario)


def test_what_waits_for_the_end_of_a_turn_is_not_overtaken() -> None:
    async def scenario(pipe: Pipe, outbox: Outbox) -> None:
        outbox.send(pipe.transport, b"interim ")  # not past the loop
        outbox.send(pipe.transport, b"answer", pipe.file)
        assert pipe.read() == b""
        await asyncio.sleep(0)
        assert pipe.read() == b"interim answer"

    drive(scenario)


def test_more_than_the_system_takes_at_once_arrives_whole_and_in_order() -> None:
    async def scenario(pipe: Pipe, outbox: Outbox) -> None:
        large = os.urandom(8 << 20)
        outbox.send(pipe.transport, large, pipe.file)
        outbox.send(pipe.transport, b"end", pipe.file)
        assert await pipe.read_until(len(large) + 3) == large + b"end"

    drive(scenario)


def test_a_reader_that_left_is_the_transports_business() -> None:
    async def scenario(pipe: Pipe, outbox: Outbox) -> None:
        pipe.far.close()
        outbox.send(pipe.transport, b"nobody reads this", pipe.file)
        await asyncio.sleep(0.01)
        outbox.send(pipe.transport, b"nor this", pipe.file)
        assert pipe.transport.is_closing()

    drive(scenario)


def test_a_closed_transports_file_is_not_written_to() -> None:
    """Its number may be another connection's by then."""

    async def scenario(pipe: Pipe, outbox: Outbox) -> None:
        async with Pipe() as other:
            pipe.transport.abort()
            outbox.send(pipe.transport, b"secret", other.file)
            await asyncio.sleep(0)
            assert other.read() == b""

    drive(scenario)


@pytest.mark.parametrize("told", ["sslcontext", "socket"])
def test_over_tls_or_without_a_socket_nothing_goes_past_the_loop(told: str) -> None:
    class Transport:
        def get_extra_info(self, name: str) -> object:
            return object() if name == told == "sslcontext" else None

    assert file_of(Transport()) == -1
