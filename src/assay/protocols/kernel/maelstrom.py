"""A node under Maelstrom: JSON lines on standard input and output, so its workloads and its checker can be used.

    maelstrom test -w echo --bin run-echo --node-count 3 --time-limit 5

with `run-echo` a script that executes `assay protocol maelstrom assay.protocols.kernel.maelstrom:Echo`. Nodes talk to
each other in messages of type ``assay``, which carry the frame of the kernel. What a client asks reaches the node as
``("rpc", type, number, fields)``, fields being pairs of name and value; the node answers its client with the same. An
object in a field is :class:`Pairs`, so that it goes back as it came; an answer may hold dicts, too.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel import wire
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.signatures import Ideal
from assay.protocols.kernel.world import World
from assay.protocols.tcp.house import LiveCtx

LONGEST = 1 << 26


class Echo(Node):
    """Says what it was told: Maelstrom's first exercise."""

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Answers a client."""
        if msg[0] == "rpc" and msg[1] == "echo":
            ctx.send(src, ("rpc", "echo_ok", msg[2], msg[3]))


class Stage:
    """The one node of this process, between two streams of lines."""

    def __init__(self, make: Callable[[NodeId], Node], write: Callable[[str], None], log: TextIO) -> None:
        self.make, self.write, self.log = make, write, log
        self.names: list[str] = []
        self.timers: list[tuple[float, int, Tag]] = []
        self.local: deque[Message] = deque()
        self.begun = self.set = 0
        self.epoch = time.monotonic()
        self.meter = Meter(0)
        self.node: Node | None = None
        self.replied = 0

    # ------------------------------------------------------------------------------------- what a context needs

    def post(self, ctx: LiveCtx, to: Iterable[NodeId], msg: Message) -> None:
        """To other nodes as frames, to clients as answers."""
        for dst in to:
            if dst == ctx.id:
                self.local.append(msg)
            elif dst < self.world.n:
                frame = base64.b64encode(wire.encode(msg)).decode()
                self._say(dst, {"type": "assay", "frame": frame})
            else:
                _, kind, number, fields = msg
                self.replied += 1
                answer = {name: _unpaired(value) for name, value in fields}
                self._say(dst, {"type": kind, "in_reply_to": number, "msg_id": self.replied, **answer})

    def _say(self, dst: NodeId, body: dict[str, Any]) -> None:
        self.write(json.dumps({"src": self.names[self.ctx.id], "dest": self.names[dst], "body": body}))

    def alarm(self, ctx: LiveCtx, delay: float, tag: Tag) -> None:
        """A timer of the node."""
        self.set += 1
        heapq.heappush(self.timers, (time.monotonic() + max(0.0, delay), self.set, tag))

    def tell(self, news: Any) -> None:
        """What the node put out goes to the log."""
        print(*news, file=self.log, flush=True)

    # -------------------------------------------------------------------------------------------------- what comes in

    def heard(self, line: str) -> None:
        """One line; rubbish is logged and left. What goes wrong in the node itself is not rubbish, and is raised."""
        try:
            told = json.loads(line)
            body, source = told["body"], told["src"]
            kind = body["type"]
            if not isinstance(source, str) or not isinstance(kind, str):
                raise TypeError("src and type must be strings")
            if kind == "init":
                self._init(body, source)
            elif self.node is None:
                raise ValueError("the first message must be init")
            elif kind == "assay":
                src, msg = self.names.index(source), wire.decode(base64.b64decode(body["frame"], validate=True))
            else:
                src, msg = self._asked(source, kind, body)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            print(f"left: {type(error).__name__}: {error}", file=self.log, flush=True)
            return
        assert self.node is not None
        if kind == "init":
            self.node.start(self.ctx)
        else:
            self.node.recv(self.ctx, src, msg)
        self._settle()

    def _init(self, body: dict[str, Any], source: str) -> None:
        if self.node is not None:
            raise ValueError("a second init")
        names, own = list(body["node_ids"]), body["node_id"]
        number = names.index(own)
        self.world = World(n=len(names), node=self.make, f=(len(names) - 1) // 3)
        self.names, self.scheme, self.meter = names, Ideal(0), Meter(len(names))
        peers = [node for node in range(len(names)) if node != number]
        self.ctx = LiveCtx(self, number, peers)  # type: ignore[arg-type]
        self.write(json.dumps({"src": own, "dest": source, "body": {"type": "init_ok", "in_reply_to": body["msg_id"]}}))
        self.node = self.make(number)

    def _asked(self, source: str, kind: str, body: dict[str, Any]) -> tuple[NodeId, Message]:
        if source not in self.names:
            self.names.append(source)
        fields = {name: value for name, value in body.items() if name not in ("type", "msg_id", "in_reply_to")}
        return self.names.index(source), ("rpc", kind, body.get("msg_id"), _pairs(fields))

    def _settle(self) -> None:
        assert self.node is not None
        while self.local:
            self.node.recv(self.ctx, self.ctx.id, self.local.popleft())

    def ring(self) -> float:
        """Fires what is due; seconds until the next timer."""
        while self.timers and self.timers[0][0] <= time.monotonic():
            _, _, tag = heapq.heappop(self.timers)
            assert self.node is not None
            self.node.timeout(self.ctx, tag)
            self._settle()
        return max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else math.inf


class Pairs(tuple[Any, ...]):
    """The names and values of a JSON object, which an array of pairs is not: in an answer it is an object again."""


def _pairs(value: Any) -> Any:
    """JSON as plain values: objects become pairs of name and value, arrays tuples."""
    if isinstance(value, dict):
        return Pairs((name, _pairs(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return tuple(_pairs(inner) for inner in value)
    return value


def _unpaired(value: Any) -> Any:
    """The way back."""
    if isinstance(value, Pairs):
        return {name: _unpaired(inner) for name, inner in value}
    if isinstance(value, tuple):
        return [_unpaired(inner) for inner in value]
    return value


def serve(make: Callable[[NodeId], Node]) -> None:
    """Runs a node on standard input and output until the input ends."""

    def write(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    stage = Stage(make, write, sys.stderr)
    rest = b""
    while True:
        wait = stage.ring()
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], None if wait == math.inf else wait)
        if not ready:
            continue
        data = os.read(sys.stdin.fileno(), 1 << 16)
        if not data or len(rest) > LONGEST:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                stage.heard(line.decode("utf-8", "replace"))
