"""A load of OpenAI requests on some connections, each of which asks again when its answer is complete: one JSON line.

.venv/bin/python benchmarks/load.py http://127.0.0.1:8000 --connections 32 --seconds 3 --stream

The prompt tells benchmarks/peers/instant_engine.py how the stream goes. With --gap connections start one after the
other over the length of a stream, so that at any time all stages are under way. Times of events come from the clock
readings in their text: "there" is how long the request took to the engine and the first event back from it, "way" how
long an event was under way, "gap" how much longer the wait between two events was for the client than for the engine.
The key of the requests is $OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import resource
import time
from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import uvloop

STAMP = re.compile(rb"@(\d{19})@(\d{19})")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
GROUPS = 16  # shared beginnings of prompts
FAILURES = 100  # after so many nothing more is asked


def times() -> array[int]:
    return array("q")


@dataclass
class Seen:
    """What the connections saw between the end of the warm-up and the end, in nanoseconds."""

    events: int  # that a right stream has; 0: whole answers
    start: int = 0
    end: int = 1 << 62  # until somebody says stop
    done: int = 0
    answers: int = 0  # with those of the warm-up and those that were under way at the end
    failed: list[str] = field(default_factory=list)
    first: array[int] = field(default_factory=times)
    total: array[int] = field(default_factory=times)
    there: array[int] = field(default_factory=times)
    way: array[int] = field(default_factory=times)
    gap: array[int] = field(default_factory=times)


class Client(asyncio.Protocol):
    """One connection: ask, read to the last byte, ask again."""

    numbers = iter(range(10**8))

    def __init__(self, parts: list[tuple[bytes, bytes]], seen: Seen) -> None:
        self.parts = parts
        self.seen = seen
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remembers the way to write."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing may be under way."""
        if self.busy:
            self.busy = False
            self.seen.failed.append(f"connection lost: {exc}")

    def ask(self) -> None:
        """Writes the next request."""
        number = next(self.numbers)
        before, after = self.parts[number % len(self.parts)]
        self.rest = b""
        self.busy, self.head = True, False
        self.status = b""
        self.length = -1
        self.events = self.way = 0
        self.asked = time.monotonic_ns()
        self.counts = self.seen.start <= self.asked
        self.transport.write(b"%b%08d%b" % (before, number, after))

    def data_received(self, data: bytes) -> None:
        """Reads on, by length or to the last chunk."""
        now = time.monotonic_ns()
        data = self.rest + data
        if not self.head:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self.rest = data
                return
            self.head = True
            self.status = data[9:12]
            length = LENGTH.search(data, 0, end + 2)
            self.length = int(length[1]) if length else -1
            data = data[end + 4 :]
        if self.length < 0:
            self.rest = self.stamps(data, now)
            if self.rest.endswith(b"0\r\n\r\n"):
                self.complete(now)
        else:
            self.rest = data
            if len(data) >= self.length:
                self.complete(now)

    def stamps(self, data: bytes, now: int) -> bytes:
        """Notes the events whose readings are complete; gives back what follows the last one."""
        after = 0
        for stamp in STAMP.finditer(data):
            after = stamp.end()
            way = now - int(stamp[1])
            if self.counts:
                self.seen.way.append(way)
                if self.events:
                    self.seen.gap.append(way - self.way)
                else:
                    self.seen.first.append(now - self.asked)
                    self.seen.there.append(int(stamp[2]) - self.asked + way)
            self.events += 1
            self.way = way
        return data[after:]

    def complete(self, now: int) -> None:
        """Counts the answer if it is right, and asks again."""
        seen = self.seen
        self.busy = False
        whole = self.events == seen.events and (not seen.events or b"[DONE]" in self.rest)
        if self.status != b"200" or not whole:
            seen.failed.append(f"{self.status!r} after {self.events} events: {self.rest[:300]!r}")
        else:
            seen.answers += 1
            seen.done += seen.start <= now < seen.end
            if self.counts:
                seen.total.append(now - self.asked)
        if now < seen.end and len(seen.failed) < FAILURES:
            self.ask()


def request(host: str, group: int, asked: argparse.Namespace) -> tuple[bytes, bytes]:
    """What stands before and after the eight digits that make each request another; a quarter of a prompt is its own.

    >>> asked = arguments(["http://127.0.0.1:1", "--prompt=8000", "--stream"])
    >>> before, after = request("127.0.0.1:1", 3, asked)
    >>> before[:5], len(before + after) > 8000
    (b'POST ', True)
    """
    plan = f"[{asked.events} events, first {asked.first}, gap {asked.gap}]"
    shared = f"{plan} Group {group:03d}. " + "All work and no play. " * (asked.prompt * 3 // 4 // 22)
    own = " is the number; say it. " + "Then say why it is so. " * ((asked.prompt - len(shared)) // 23)
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": f"########{own}"}]
    body = json.dumps({"model": "instant", "messages": messages, "stream": asked.stream, "max_tokens": 64})
    key = os.environ.get("OPENAI_API_KEY", "-")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    before, after = f"{head}{body}".encode().split(b"########")
    return before, after


async def connect(asked: argparse.Namespace, seen: Seen) -> list[Client]:
    """Connections to all addresses by turns."""
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(asked.connections):
        address = urlsplit(asked.urls[number % len(asked.urls)])
        parts = [request(address.netloc, group, asked) for group in range(GROUPS)]
        _, client = await loop.create_connection(partial(Client, parts, seen), address.hostname, address.port)
        clients.append(client)
    return clients


async def load(asked: argparse.Namespace) -> dict[str, object]:
    """Asks for so many seconds, waits for what is under way, and says what was seen."""
    loop = asyncio.get_running_loop()
    seen = Seen(asked.events if asked.stream else 0)
    clients = await connect(asked, seen)
    length = asked.first + asked.gap * asked.events
    warm = max(asked.warm, 1.2 * length)
    seen.start = time.monotonic_ns() + int(warm * 1e9)
    gc.disable()  # a collection would look like a slow router
    for number, client in enumerate(clients):
        loop.call_later(length * number / len(clients), client.ask)
    await asyncio.sleep(warm + asked.seconds)
    patience = loop.time() + asked.patience
    while seen.done < len(clients) and len(seen.failed) < FAILURES and loop.time() < patience:
        await asyncio.sleep(0.02)  # fewer answers than connections say little about a rate
    seen.end = time.monotonic_ns()
    while any(client.busy for client in clients) and loop.time() < patience:
        await asyncio.sleep(0.02)  # whoever comes next finds the router idle
    stuck = sum(client.busy for client in clients)
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures: dict[str, object] = {"rate": seen.done / (seen.end - seen.start) * 1e9, "answers": seen.answers}
    figures |= {"failed": len(seen.failed) + stuck, "client_cpu": used.ru_utime + used.ru_stime}
    figures["reason"] = seen.failed[0] if seen.failed else f"no answer in {asked.patience:g} s" if stuck else ""
    return figures | {name: quantiles(getattr(seen, name)) for name in ("first", "total", "there", "way", "gap")}


def quantiles(nanoseconds: array[int]) -> dict[str, float]:
    """Seconds at the usual shares.

    >>> quantiles(array("q", [10**9, 2 * 10**9, 3 * 10**9]))
    {'p50': 2.0, 'p90': 3.0, 'p99': 3.0}
    """
    ordered = sorted(nanoseconds)
    return {f"p{share}": ordered[len(ordered) * share // 100] / 1e9 for share in (50, 90, 99) if ordered}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0, help="longer where fewer answers than connections came")
    parser.add_argument("--warm", type=float, default=0.5, help="seconds that do not count")
    parser.add_argument("--patience", type=float, default=60.0, help="more seconds for slow answers")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--prompt", type=int, default=300, help="characters")
    parser.add_argument("--events", type=int, default=8)
    parser.add_argument("--first", type=float, default=0.0, help="seconds to the first event")
    parser.add_argument("--gap", type=float, default=0.0, help="seconds between events")
    return parser.parse_args(words)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(arguments()))))
