"""One process: some nodes, a listening socket, a line to whoever conducts the run."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.protocols.interface import Ctx, Message, NodeId, Tag
from assay.protocols.kernel import wire
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.net import Net, Sampler, sampler
from assay.protocols.kernel.run import ENDLESS, blame, endless
from assay.protocols.kernel.signatures import Ed25519, Scheme
from assay.protocols.tcp.links import Incoming, Outgoing, call
from assay.sim.streams import stream

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

REPORT = 0.02
"""Seconds between two reports to the conductor, if there is something to tell."""
ASKED = "asked"
"""What the conductor says where it wants a report in any case."""
REFUSALS = 100
"""Reasons that are kept; more would be somebody's way to fill the memory."""

Keys = tuple[dict[int, bytes], dict[int, bytes]]


class LiveCtx(Ctx):
    """A node's context over sockets."""

    __slots__ = ("_rng", "f", "house", "id", "input", "n", "peers")

    def __init__(self, house: House, node: NodeId, peers: Sequence[NodeId]) -> None:
        world = house.world
        self.house, self.id, self.peers, self.n, self.f = house, node, peers, world.n, world.f
        self.input = world.inputs[node] if world.inputs is not None and node < len(world.inputs) else None
        self._rng: np.random.Generator | None = None

    @property
    def now(self) -> float:
        """Seconds since the start, on the machine's monotonic clock."""
        return time.monotonic() - self.house.epoch

    @property
    def rng(self) -> np.random.Generator:
        """The same randomness as in simulation."""
        if self._rng is None:
            self._rng = stream(self.house.world.seed, "node", self.id)
        return self._rng

    def send(self, to: NodeId, msg: Message) -> None:
        """Send to one node."""
        self.house.post(self, (to,), msg)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        """Send to all peers and itself, or to those named."""
        self.house.post(self, (*self.peers, self.id) if to is None else to, msg)

    def timer(self, delay: float, tag: Tag) -> None:
        """Set a timer."""
        self.house.alarm(self, delay, tag)

    def decide(self, value: Any, slot: Hashable = 0) -> None:
        """Put out a value."""
        hash(slot)  # fails here, where it can be seen whose it is
        self.house.tell(("decide", self.now, self.id, slot, value))

    def invoke(self, f: str, key: Any, value: Any) -> int:
        """Begin an operation."""
        self.house.begun += 1
        self.house.tell(("invoke", self.now, self.id, self.house.begun, f, key, value))
        return self.house.begun

    def complete(self, operation: int, result: Any, status: str = "ok") -> None:
        """End an operation."""
        self.house.tell(("complete", self.now, self.id, operation, result, status))

    def sign(self, data: bytes) -> bytes:
        """Sign, for real."""
        self.house.meter.signatures += 1
        return self.house.scheme.sign(self.id, data)

    def verify(self, who: NodeId, data: bytes, signature: bytes) -> bool:
        """Verify, for real."""
        self.house.meter.checks += 1
        return self.house.scheme.verify(who, data, signature)


class House:
    """The nodes of one process and their way to the others."""

    def __init__(self, line: Connection, world: World, homes: list[int], index: int, token: bytes, keys: Keys) -> None:
        self.line, self.world, self.homes, self.index, self.token = line, world, homes, index, token
        self.scheme: Scheme = Ed25519(*keys)
        self.meter = Meter(len(homes))
        self.epoch = time.monotonic()
        self.ways = world.neighbours()
        everybody = tuple(range(world.n))
        self.nodes = {node: world.make(node) for node, home in enumerate(homes) if home == index}
        self.ctxs = {node: LiveCtx(self, node, self._peers(node, everybody)) for node in self.nodes}
        self.copies: dict[NodeId, Sampler] = {}
        if world.net != Net():
            self.copies = {node: sampler(world.net, world.seed, node) for node in self.nodes}
        self.out: dict[int, Outgoing] = {}
        self.news: list[Any] = []
        self.local: deque[tuple[NodeId, Message]] = deque()
        self.early: list[tuple[NodeId, NodeId, Message]] | None = []
        """What came before the nodes here had started, which is later than elsewhere by some moments."""
        self.begun = self.timers = self.sent = self.got = self.refused = 0
        self.strangers: dict[Incoming, None] = {}
        self.over = asyncio.Event()
        self.busy = self.reporting = False

    def _peers(self, node: NodeId, everybody: tuple[NodeId, ...]) -> Sequence[NodeId]:
        if node >= self.world.n:
            return everybody
        return self.ways[node] if self.ways is not None else everybody[:node] + everybody[node + 1 :]

    # ------------------------------------------------------------------------------------------------ messages

    def post(self, ctx: LiveCtx, to: Iterable[NodeId], msg: Message) -> None:
        """A node sends."""
        src, body = ctx.id, b""
        for dst in to:
            if not 0 <= dst < len(self.homes):
                raise ValueError(f"node {src} sends to {dst}, but there are nodes 0 to {len(self.homes) - 1} only")
            if dst == src:
                self.local.append((src, msg))
                continue
            if self.ways is not None and max(src, dst) < self.world.n and dst not in self.ways[src]:
                raise ValueError(f"node {src} sends to {dst}, which is no neighbour of it")
            body = body or wire.encode(msg)
            self.meter.count(0, src, dst, msg)
            if not self.copies:
                self.sent += 1
                self.dispatch(src, dst, body)
                continue
            for delay in self.copies[src](dst):
                self.sent += 1
                self.timers += 1
                asyncio.get_running_loop().call_later(delay / 1e6, self._travelled, src, dst, body)

    def _travelled(self, src: NodeId, dst: NodeId, body: bytes) -> None:
        self.timers -= 1
        self.dispatch(src, dst, body)
        self._soon()

    def dispatch(self, src: NodeId, dst: NodeId, body: bytes) -> None:
        """Onto the wire, or to a neighbour in the same process: through the same encoding in any case."""
        home = self.homes[dst]
        if home == self.index:
            asyncio.get_running_loop().call_soon(self.arrived, src, dst, wire.decode(body))
        elif home not in self.out or not self.out[home].send(wire.frame(src, dst, body)):
            self.meter.dropped += 1
            self.got += 1  # by nobody

    def arrived(self, src: NodeId, dst: NodeId, msg: Message) -> None:
        """A message for a node of this process."""
        if self.early is not None:
            self.early.append((src, dst, msg))
        elif not self.over.is_set():
            self.meter.deliveries += 1
            self.got += 1
            self.step(lambda: self.nodes[dst].recv(self.ctxs[dst], src, msg))

    def alarm(self, ctx: LiveCtx, delay: float, tag: Tag) -> None:
        """A node sets a timer."""
        self.timers += 1
        asyncio.get_running_loop().call_later(max(0.0, delay), self._rings, ctx, tag)

    def _rings(self, ctx: LiveCtx, tag: Tag) -> None:
        self.timers -= 1
        if not self.over.is_set():
            self.step(lambda: self.nodes[ctx.id].timeout(ctx, tag))

    def step(self, act: Any) -> None:
        """One step of one node, and what it sends itself; an error in it ends the run and is told."""
        try:
            act()
            for _ in range(ENDLESS):
                if not self.local:
                    break
                node, msg = self.local.popleft()
                self.nodes[node].recv(self.ctxs[node], node, msg)
            else:
                raise endless(node)
        except (Exception, SystemExit) as error:
            self.local.clear()
            self.tell(("failed", blame(error), traceback.format_exc(limit=-3)))
            self.over.set()
        self._soon()

    # ----------------------------------------------------------------------------------------------- reports

    def tell(self, news: Any) -> None:
        """Something for the conductor."""
        self.news.append(news)

    def refuse(self, why: str) -> None:
        """Somebody was cut off."""
        self.refused += 1
        if self.refused <= REFUSALS:
            self.tell(("refused", why))
        self._soon()

    def _soon(self) -> None:
        if not self.reporting:
            self.reporting = True
            asyncio.get_running_loop().call_later(REPORT if not self.news else 0.0, self.report)

    def report(self) -> None:
        """Sends the news; a killed process has told all but its last turn of the loop."""
        self.reporting = False
        news, self.news = self.news, []
        counts, spent = (self.sent, self.got, self.timers), self.meter.summary()
        try:
            self.line.send(("news", news, counts, spent))
        except OSError:  # the conductor is gone, so there is nothing to go on for
            self.over.set()
        except Exception as error:  # pickle's: a node put out what cannot be sent
            why = f"what a node put out cannot be sent ({error}); plain values expected"
            with contextlib.suppress(OSError):
                self.line.send(("news", [("failed", why, traceback.format_exc(limit=-3))], counts, spent))
            self.over.set()

    # ------------------------------------------------------------------------------------------------ the run

    async def live(self) -> None:
        """Listen, meet the others, start, go on until told to stop."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Incoming(self), "127.0.0.1", 0)
        self.line.send(("listening", server.sockets[0].getsockname()[1]))
        ports = await self._hear()
        for home, port in enumerate(ports):
            if home != self.index:
                self.out[home] = await call(port, self.token, self.index, lambda: None)
        self.line.send(("ready",))
        self.epoch = await self._hear()
        loop.add_reader(self.line.fileno(), self._told)
        await asyncio.sleep(max(0.0, self.epoch - time.monotonic()))
        for node, ctx in self.ctxs.items():
            self.step(lambda node=node, ctx=ctx: self.nodes[node].start(ctx))
        early, self.early = self.early or [], None
        for src, dst, msg in early:
            self.arrived(src, dst, msg)
        await self.over.wait()
        loop.remove_reader(self.line.fileno())
        self.report()
        server.close()

    async def _hear(self) -> Any:
        """What the conductor says next."""
        return await asyncio.get_running_loop().run_in_executor(None, self.line.recv)

    def _told(self) -> None:
        """Stop; or the conductor is gone, which means the same; or it asks whether anything moves."""
        with contextlib.suppress(EOFError, OSError):
            if self.line.recv() == ASKED:
                self._soon()  # not at once: what lies in the sockets is taken first
                return
        self.over.set()


def inhabit(line: Connection, world: World, homes: list[int], index: int, token: bytes, keys: Keys) -> None:
    """The main function of a process."""

    async def main() -> None:
        await House(line, world, homes, index, token, keys).live()

    try:
        asyncio.run(main())
    except (OSError, EOFError, KeyboardInterrupt):
        pass  # the conductor is gone: nobody to tell
    except Exception as error:
        line.send(("news", [("failed", blame(error), traceback.format_exc(limit=-3))], (0, 0, 0), {}))
