"""The agent of a node: takes rows off its ranks, gathers them by destination, sends packets, deals out what arrives.

The same router runs in a process of its own (the proxy) or inside the application's (inline): only who spends the time
differs. A packet leaves when a buffer is full, when no row came for `quiet` seconds, or when a rank waits in a barrier.
It never waits: what a ring or a socket has no room for stays in its lists.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.training.buddy.bells import LONGEST, NAP
from assay.training.buddy.rings import Ints, Ring

DEST = (1 << 32) - 1  # of a row's first word; the handler's number lies above
FULL = 4096  # rows of a buffer
QUIET = 2e-4  # seconds
PIECES = 64  # that a socket is given at once


class Direct:
    """In place of a ring where the router lies in the rank's own process: nothing is copied."""

    def __init__(self) -> None:
        self.batches: list[Ints] = []

    def put(self, rows: Ints) -> int:
        """All of them."""
        self.batches.append(rows)
        return len(rows)

    def take_all(self) -> list[Ints]:
        """What was put."""
        found, self.batches = self.batches, []
        return found

    views = take_all

    def release(self, count: int) -> None:
        """Nothing is kept that could be freed."""


class Inflow:
    """What comes from a node: a count of rows and then these, read to where they stay."""

    def __init__(self, words: int) -> None:
        self._words, self._head = words, np.empty(1, np.int64)
        self._rows: Ints | None = None
        self._left = self._head.view(np.uint8).data

    def read(self, peer: socket.socket) -> Ints | None:
        """One piece of it; rows, where they are complete now.

        Raises:
            BlockingIOError: nothing is there.
            EOFError: nothing will be.
        """
        got = peer.recv_into(self._left)
        if not got:
            raise EOFError
        self._left = self._left[got:]
        if len(self._left):
            return None
        whole, self._rows = self._rows, None
        if whole is None:
            self._rows = np.empty((int(self._head[0]), self._words), np.int64)
        self._left = (self._head if self._rows is None else self._rows.reshape(-1)).view(np.uint8).data
        return whole


@dataclass
class Router:
    """One node's: rings from and to its ranks, and a socket to every other node."""

    node: int
    per_node: int
    words: int
    outgoing: Sequence[Ring]
    incoming: Sequence[Ring | Direct]
    peers: dict[int, socket.socket]
    full: int = FULL
    quiet: float = QUIET
    pause: Callable[[], None] = lambda: None  # where tests delay it
    packets: int = 0
    routed: int = 0
    delivered: Callable[[int], None] = lambda place: None  # told of which of its ranks got something
    _buffers: dict[int, list[Ints]] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)
    _unsent: dict[int, deque[memoryview]] = field(default_factory=dict)
    _read: dict[int, Inflow] = field(default_factory=dict)
    _waiting: list[deque[Ints]] = field(default_factory=list)
    _last: float = 0.0

    def __post_init__(self) -> None:
        nodes = [self.node, *self.peers]
        self._buffers, self._held = {node: [] for node in nodes}, dict.fromkeys(nodes, 0)
        self._unsent = {node: deque() for node in self.peers}
        self._read = {node: Inflow(self.words) for node in self.peers}
        self._waiting = [deque() for _ in self.incoming]
        self.sockets = list(self.peers.values())
        self._rank = np.arange(len(nodes) * self.per_node)
        self._node = self._rank // self.per_node  # looked up: a division takes longer

    @property
    def patience(self) -> float:
        """Seconds that it may be left alone, unless rows or packets come."""
        if any(self._unsent.values()) or any(self._waiting):
            return NAP
        return min(self.quiet, LONGEST) if any(self._held.values()) else LONGEST

    def awaited(self) -> bool:
        """Whether rows are in the rings of its ranks."""
        return any(ring.views() for ring in self.outgoing)

    def turn(self, hurry: bool = False) -> bool:
        """Do what there is to do; whether there was anything."""
        self.pause()
        worked = False
        for ring in self.outgoing:
            for rows in ring.views():
                worked = True
                for first in range(0, len(rows), FULL):  # who waits for room, or for rows, need not wait for all
                    some = rows[first : first + FULL]
                    self.route(some)
                    ring.release(len(some))
                    self._exchange()
        if any(self._held.values()) and (hurry or time.perf_counter() - self._last > self.quiet):
            worked = True
            for node, held in self._held.items():
                if held:
                    self._flush(node)
        worked |= self._exchange()
        return self._deliver() or worked

    def route(self, rows: Ints) -> None:
        """Rows into the buffers of their nodes, copied; full ones leave."""
        self._dealt(*bucket(rows, self._node))

    def post(self, dest: Ints, payload: Ints, tag: int) -> None:
        """The same of rows that are not made yet: each is written into its node's buffer, and nowhere else."""
        self._dealt(*bucket_new(dest, payload, tag, self._node))

    def _dealt(self, dealt: Ints, ends: Ints) -> None:
        self.routed += len(dealt)
        self._last = time.perf_counter()
        first = 0
        for node in range(len(ends)):
            part = dealt[first : ends[node]]
            first = ends[node]
            if not len(part):
                continue
            if node == self.node:
                self._local(part)
                continue
            self._buffers[node].append(part)
            self._held[node] += len(part)
            if self._held[node] >= self.full:
                self._flush(node)

    def _flush(self, node: int) -> None:
        """A packet: how many rows, and they themselves, from where they lie."""
        parts, self._buffers[node] = self._buffers[node], []
        self._unsent[node].append(np.array([self._held[node]]).view(np.uint8).data)
        self._unsent[node].extend(part.reshape(-1).view(np.uint8).data for part in parts)
        self._held[node] = 0
        self.packets += 1

    def _exchange(self) -> bool:
        worked = False
        for node, peer in self.peers.items():
            unsent = self._unsent[node]
            while unsent:
                try:
                    sent = peer.sendmsg(list(islice(unsent, PIECES)))
                except BlockingIOError:
                    break
                worked = True
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]
            worked |= self._receive(node, peer)
        return worked

    def _receive(self, node: int, peer: socket.socket) -> bool:
        worked = False
        with suppress(BlockingIOError, ConnectionResetError, EOFError):  # nothing yet, or the other node has ended
            while True:
                rows = self._read[node].read(peer)
                worked = True
                if rows is not None:
                    self._local(rows)
        return worked

    def _local(self, rows: Ints) -> None:
        """Rows for the ranks of this node."""
        if self.per_node == 1:
            self._waiting[0].append(rows)
            return
        dealt, ends = bucket(rows, self._rank)
        first = int(ends[self.node * self.per_node - 1]) if self.node else 0
        for place in range(self.per_node):
            last = int(ends[self.node * self.per_node + place])
            if last > first:
                self._waiting[place].append(dealt[first:last])
            first = last

    def _deliver(self) -> bool:
        worked = False
        for place, (ring, waiting) in enumerate(zip(self.incoming, self._waiting, strict=True)):
            some = False
            while waiting:
                count = ring.put(waiting[0])
                some |= count > 0
                if count < len(waiting[0]):
                    waiting[0] = waiting[0][count:]
                    break
                waiting.popleft()
            if some:
                self.delivered(place)
            worked |= some
        return worked


@njit(cache=True)
def bucket(rows: Any, of: Any) -> Any:
    """Rows by the bucket `of` their destination, in their order within each; where every bucket ends (a counting sort).

    The last destination is in the last bucket.
    """
    buckets = of[-1] + 1
    ends = np.zeros(buckets, np.int64)
    for i in range(len(rows)):
        ends[of[rows[i, 0] & DEST]] += 1
    for b in range(1, buckets):
        ends[b] += ends[b - 1]
    place = np.zeros(buckets, np.int64)
    for b in range(1, buckets):
        place[b] = ends[b - 1]
    out = np.empty_like(rows)
    for i in range(len(rows)):
        b = of[rows[i, 0] & DEST]
        for w in range(rows.shape[1]):
            out[place[b], w] = rows[i, w]
        place[b] += 1
    return out, ends


@njit(cache=True)
def bucket_new(dest: Any, payload: Any, tag: int, of: Any) -> Any:
    """Rows of a destination, a payload and a tag, dealt like those of :func:`bucket`."""
    buckets = of[-1] + 1
    ends = np.zeros(buckets, np.int64)
    for i in range(len(dest)):
        ends[of[dest[i]]] += 1
    for b in range(1, buckets):
        ends[b] += ends[b - 1]
    place = np.zeros(buckets, np.int64)
    for b in range(1, buckets):
        place[b] = ends[b - 1]
    out = np.empty((len(dest), 1 + payload.shape[1]), np.int64)
    for i in range(len(dest)):
        b = of[dest[i]]
        at = place[b]
        place[b] = at + 1
        out[at, 0] = dest[i] | (tag << 32)
        for w in range(payload.shape[1]):
            out[at, w + 1] = payload[i, w]
    return out, ends


def connected(folder: str, node: int, nodes: int, meet: Callable[[], None]) -> dict[int, socket.socket]:
    """A socket to every other node: the lower one listens, the higher one calls; `meet` waits for all of them.

    By TCP, as between machines, though here it is on the loopback: a shorter way than nodes have would flatter whoever
    pays for it.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=nodes)
    Path(folder, f"node-{node}").write_text(str(listening.getsockname()[1]), encoding="ascii")
    meet()
    found: dict[int, socket.socket] = {}
    for other in range(node):
        port = int(Path(folder, f"node-{other}").read_text(encoding="ascii"))
        call = socket.create_connection(("127.0.0.1", port))
        call.sendall(node.to_bytes(4, "little"))
        found[other] = call
    for _ in range(node + 1, nodes):
        caller, _ = listening.accept()
        found[int.from_bytes(caller.recv(4, socket.MSG_WAITALL), "little")] = caller
    listening.close()
    for one in found.values():
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, side, 1 << 20)
    return dict(sorted(found.items()))
