"""Engines that do as a test tells them, on real sockets, and a client that reads bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from assay.live.serve import Running
from assay.live.server import JSON, Exchange, Server
from assay.live.settings import Settings, convert

EVENT_STREAM = b"content-type: text/event-stream"
PATIENCE = 120.0  # seconds for what will happen soon, but for a busy machine


class FakeEngine:
    """Answers with its name, unless `behave` says otherwise; remembers what it was asked."""

    def __init__(self, name: str = "a", models: tuple[str, ...] = ("m",)) -> None:
        self.name, self.models = name, models
        self.asked: list[Exchange] = []
        self.left = 0
        self.behave: Callable[[Exchange], None] = self.answer
        self.healthy = True
        self.server = Server(self._take)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> FakeEngine:
        self.port = await self.server.start("127.0.0.1", port)
        return self

    async def stop(self) -> None:
        await self.server.drain(0.01)

    def _take(self, exchange: Exchange) -> None:
        path = exchange.head.path
        if path == b"/health":
            if self.healthy:
                exchange.reply(200, [], b"")
            elif self.healthy is None:
                pass
            else:
                exchange.refuse(503, "ill")
        elif path == b"/metrics":
            exchange.refuse(404, "none")
        elif path == b"/v1/models":
            listed = [{"id": model, "object": "model"} for model in self.models]
            exchange.reply(200, [JSON], json.dumps({"object": "list", "data": listed}).encode())
        else:
            self.asked.append(exchange)
            exchange.left = self._gone
            self.behave(exchange)

    def _gone(self) -> None:
        self.left += 1

    def answer(self, exchange: Exchange) -> None:
        body = json.loads(exchange.body or b"{}")
        if body.get("stream"):
            exchange.begin(b"200 OK", [EVENT_STREAM])
            for n in range(3):
                exchange.write(b'data: {"from":"%b","n":%d}\n\n' % (self.name.encode(), n))
            exchange.finish(b"data: [DONE]\n\n")
        else:
            answer = {"from": self.name, "usage": {"prompt_tokens": 8, "completion_tokens": 3}}
            exchange.reply(200, [JSON], json.dumps(answer).encode())


def settings(engines: list[FakeEngine], **more: Any) -> Settings:
    quick = {"port": 0, "probe": 0.05, "scrape": 0.05, "pause": 0.2, "wait": 0.5, "start": 0.5, "grace": 1.0}
    quick |= {"connect": 1.0, "policy_time": 60.0}  # no decision of a test is late on a busy machine
    return convert(quick | {"engine": [{"url": e.url, "name": e.name} for e in engines]} | more, "test")


@asynccontextmanager
async def engines(*names: str):
    made = [await FakeEngine(name).start() for name in names]
    try:
        yield made
    finally:
        for engine in made:
            await engine.stop()


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: test", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines if line)
        return int(first.split(" ")[1]), fields

    async def chunk(self) -> bytes:
        size = int((await self.reader.readline()).strip(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, fields = await self.head()
        if "content-length" in fields:
            return status, fields, await self.reader.readexactly(int(fields["content-length"]))
        pieces = []
        if fields.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                pieces.append(piece)
        else:
            pieces.append(await self.reader.read())
        return status, fields, b"".join(pieces)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        self.send(method, path, body, **headers)
        return await asyncio.wait_for(self.answer(), PATIENCE)


async def ask(
    port: int, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    async with Client(port) as client:
        return await client.ask(method, path, body, **headers)


def chat(text: str = "hello", **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for something that will happen; fail where it does not."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def run(test):
    return asyncio.run(asyncio.wait_for(test, 2 * PATIENCE))


def balanced(running: Running) -> bool:
    """Nothing is on board any more, anywhere."""
    gateway = running.gateway
    fleet = gateway.fleet
    return (
        not gateway.relays and not gateway.placing.waiting and not fleet.paths
        and not any(e.aboard for e in fleet.engines)
        and not any(np.any(getattr(fleet, name)) for name in ("running", "waiting", "prefill_tokens", "kv_tokens"))
    )  # fmt: skip
