"""An engine that answers at once: what is left of a router's time in front of it is the router's own.

.venv/bin/python benchmarks/peers/instant_engine.py PORT

The OpenAI API as far as routers look at it. The prompt says how a stream goes, so that one engine serves every part of
a benchmark and routers start once: a message with "[8 events, first 0.05, gap 0.02]" in it gets 8 events, the first
after 50 ms and the next every 20 ms. Headers go out at once and each event by itself, as engines send them. An event's
text holds two readings of the monotonic clock in nanoseconds, "@when sent@when the request was here", which another
process on the same machine can compare with its own. HTTP only as strict as it must be behind a router.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from typing import cast

import uvloop

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STREAM = re.compile(rb'"stream": ?true')
PLAN = re.compile(rb"\[(\d+) events, first ([\d.]+), gap ([\d.]+)\]")

MODEL = b'{"id":"instant","object":"model","created":0,"owned_by":"assay"}'
METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="instant"} 0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="instant"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="instant"} 0
"""
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"instant","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Eight words are enough for a short answer."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":64,"completion_tokens":8,"total_tokens":72}}'
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"instant",'
    b'"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n'
)


def answer(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """A whole answer."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


def chunk(data: bytes) -> bytes:
    """One piece of a body of unknown length."""
    return b"%x\r\n%b\r\n" % (len(data), data)


PAGES = {
    b"/health": answer(b""),
    b"/v1/models": answer(b'{"object":"list","data":[%b]}' % MODEL),
    b"/metrics": answer(METRICS, b"text/plain; version=0.0.4"),
    b"/get_model_info": answer(b'{"is_generation":true}'),
    b"/get_server_info": answer(b'{"served_model_name":"instant","version":"0"}'),
}
PAGES |= {b"/model_info": PAGES[b"/get_model_info"], b"/server_info": PAGES[b"/get_server_info"]}
NOT_FOUND = answer(b'{"error":{"message":"not found"}}', status=b"404 Not Found")
WHOLE = answer(ANSWER)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = chunk(EVENT % (b"{}", b'"stop"') + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection of a router: a request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.data = b""
        self.timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remembers the way to write."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for the rest of a stream."""
        if self.timer:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answers when the request is complete."""
        self.data += data
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = LENGTH.search(self.data, 0, end + 2)
        size = int(length[1]) if length else 0
        if len(self.data) < end + 4 + size:
            return
        path, body = self.data.split(b" ", 2)[1], self.data[end + 4 :]
        self.data = b""
        if path not in (b"/v1/chat/completions", b"/v1/completions"):
            self.transport.write(PAGES.get(path, NOT_FOUND))
        elif STREAM.search(body):
            self.stream(PLAN.search(body))
        else:
            self.transport.write(WHOLE)

    def stream(self, plan: re.Match[bytes] | None) -> None:
        """The head at once, the events on their own times."""
        self.left = int(plan[1]) if plan else 8
        self.gap, wait = (float(plan[3]), float(plan[2])) if plan else (0.0, 0.0)
        self.arrived = time.monotonic_ns()
        self.due = self.loop.time() + wait
        self.transport.write(STREAM_HEAD)
        self.later()

    def later(self) -> None:
        """Puts the next event on the clock."""
        soon = self.due <= self.loop.time()
        self.timer = self.loop.call_soon(self.event) if soon else self.loop.call_at(self.due, self.event)

    def event(self) -> None:
        """Sends one event, or the end after the last."""
        self.left -= 1
        stamp = b'{"content":"@%019d@%019d"}' % (time.monotonic_ns(), self.arrived)
        self.transport.write(chunk(EVENT % (stamp, b"null")))
        self.due += self.gap
        if self.left:
            self.later()
        else:
            self.timer = self.loop.call_soon(self.transport.write, STREAM_END)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(loop), "127.0.0.1", port)
    gc.disable()  # a collection would show up as a router's slowest percent; connections hold no cycles worth one
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
