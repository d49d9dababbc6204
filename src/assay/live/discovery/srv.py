"""Engines from DNS: the SRV records of a name, such as those of a headless Service or of Consul.

The system's own resolver knows no SRV records, so the question is asked here: one datagram there, one back, over TCP
where the answer is too long for one.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from assay.live.discovery import Found, address, engine
from assay.live.settings import DiscoverSettings

_SRV, _IN = 33, 1
_NO_SUCH_NAME = 3
_PATIENCE = 2.0  # seconds for an answer, and three tries
_TRIES = 3
_LONGEST = 255  # bytes of a name


async def resolve(name: str, settings: DiscoverSettings) -> AsyncIterator[Found]:
    """The targets of a name, asked for every so often. That there are none is believed when it is said twice."""
    empty = 0
    while True:
        records = await ask(name, *_server(settings.at))
        empty = 0 if records else empty + 1
        if records or empty > 1:
            yield tuple(engine(settings, host, port, f"{host.split('.')[0]}:{port}") for host, port in records)
        await asyncio.sleep(settings.every)


def _server(told: str) -> tuple[str, int]:
    """The name server: told, or the system's first."""
    if told:
        return address(told, 53)
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            return words[1], 53
    raise OSError("/etc/resolv.conf names no nameserver; say which with 'at'")


async def ask(name: str, host: str, port: int) -> list[tuple[str, int]]:
    """Hosts and ports of a name, those of the best priority, sorted; OSError where there is no answer."""
    for _ in range(_TRIES):
        number = secrets.randbelow(1 << 16)
        message = question(name, number)
        try:
            async with asyncio.timeout(_PATIENCE):
                reply = await _datagram(message, host, port)
                if reply[2] & 2:  # cut short
                    reply = await _stream(message, host, port)
            return answer(reply, number)
        except TimeoutError:
            continue
    raise OSError(f"no answer from the name server {host}:{port}")


def question(name: str, number: int) -> bytes:
    """The message that asks for the SRV records of a name.

    >>> question("_a._tcp.b", 7)[12:]
    b'\\x02_a\\x04_tcp\\x01b\\x00\\x00!\\x00\\x01'
    """
    labels = [label.encode("idna" if not label.isascii() else "ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) < 64 for label in labels) or sum(map(len, labels)) + len(labels) > _LONGEST:
        raise OSError(f"'{name}' is no name")
    head = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0)  # recursion is wanted
    return head + b"".join(bytes([len(label)]) + label for label in labels) + b"\0" + struct.pack(">HH", _SRV, _IN)


def answer(reply: bytes, number: int) -> list[tuple[str, int]]:
    """The records in an answer; OSError where it is none, or says that something is wrong."""
    try:
        got, flags, questions, answers, _, _ = struct.unpack_from(">HHHHHH", reply)
        if got != number or not flags & 0x8000:
            raise OSError("the name server answers something else")
        if flags & 15 not in (0, _NO_SUCH_NAME):
            raise OSError(f"the name server says error {flags & 15}")
        at = 12
        for _ in range(questions):
            at = _name(reply, at)[1] + 4
        found: list[tuple[int, str, int]] = []
        for _ in range(answers):
            at = _name(reply, at)[1]
            kind, _, _, size = struct.unpack_from(">HHIH", reply, at)
            at += 10
            if kind == _SRV:
                priority, _, port = struct.unpack_from(">HHH", reply, at)
                host = _name(reply, at + 6)[0]
                if host and port:  # a lone dot says that there is no such service
                    found.append((priority, host, port))
            at += size
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise OSError("the name server's answer cannot be read") from error
    best = min((priority for priority, _, _ in found), default=0)
    return sorted({(host, port) for priority, host, port in found if priority == best})


def _name(message: bytes, at: int) -> tuple[str, int]:
    """A name, and where it ends; names may go on elsewhere in the message, further back every time."""
    labels: list[str] = []
    end, limit = 0, at
    while (size := message[at]) != 0:
        if size >= 0xC0:
            end = end or at + 2
            at = (size & 0x3F) << 8 | message[at + 1]
            if at >= limit:
                raise IndexError("a name that never ends")
            limit = at
            continue
        labels.append(message[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    return ".".join(labels), end or at + 1


class _Reply(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, source: object) -> None:
        if not self.got.done():
            self.got.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.got.done():
            self.got.set_exception(error)


async def _datagram(message: bytes, host: str, port: int) -> bytes:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(_Reply, remote_addr=(host, port))
    try:
        transport.sendto(message)
        return await protocol.got
    finally:
        transport.close()


async def _stream(message: bytes, host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(len(message).to_bytes(2, "big") + message)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
    except asyncio.IncompleteReadError as error:
        raise OSError("the name server hung up") from error
    finally:
        writer.close()
