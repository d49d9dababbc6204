"""A rank's place in a ring: it sends to the next one, receives from the one before, and knows what time it is.

Messages are real: gloo carries them from process to process. A shaped link delivers a message when one of its bandwidth
and latency would have: each carries the moment of its arrival, and the receiver waits for that. The sender goes on
computing meanwhile, as a network card lets it.

Two clocks run. One is the wall's. The other is the ring's own: a rank's processor time while it computes, and the
modelled wire while it waits; handing messages over is not in it, as a card would do that. Other work on the machine
delays the first clock and leaves the second alone.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.engine.shaped import Link as Link
from assay.training.engine.shaped import link as link

Bytes = NDArray[np.uint8]
HEAD = struct.Struct("<q2d")  # before a message: its length, and when it arrives by either clock


class Port:
    """This rank's end of a ring over the processes of a group, in their order."""

    def __init__(self, dist: Any, on: Link, *, group: Any = None) -> None:
        self.dist, self.link, self.group = dist, on, group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)
        self.speeds: Any = None  # of coding, once the ranks have agreed on them
        self._leaving: list[tuple[Any, Bytes]] = []  # kept until they have left
        self.start()

    def start(self) -> None:
        """Both clocks at nothing, an idle link, no bytes sent, no processor time spent."""
        self.clock, self.spent, self.sent, self._free = 0.0, 0.0, 0, 0.0
        self._mark, self._began, self._wall_free = time.thread_time(), time.perf_counter(), 0.0

    def now(self) -> float:
        """Seconds by the ring's own clock."""
        mark = time.thread_time()
        self.clock += mark - self._mark
        self.spent += mark - self._mark
        self._mark = mark
        return self.clock

    def wall(self) -> float:
        """Seconds by the wall's."""
        return time.perf_counter() - self._began

    def send(self, message: Bytes) -> None:
        """Hand a message to the link; it must not be changed before the next flush."""
        taken = (HEAD.size + len(message)) / self.link.bandwidth
        self._free = max(self._free, self.now()) + taken
        self._wall_free = max(self._wall_free, time.perf_counter()) + taken
        late = self.link.latency
        head = bytearray(HEAD.pack(len(message), self._free + late, self._wall_free + late))
        for part in (np.frombuffer(head, np.uint8), message):
            if len(part):
                after = (self.index + 1) % self.size
                self._leaving.append((self.dist.isend(_tensor(part), group=self.group, group_dst=after), part))
        self.sent += HEAD.size + len(message)
        self._mark = time.thread_time()

    def recv(self) -> Bytes:
        """The next message, when it has arrived."""
        self.now()
        size, arrives, by_the_wall = HEAD.unpack(self._next(HEAD.size).tobytes())
        found = self._next(size)
        if self.link.shaped:
            self.clock = max(self.clock, arrives)
            time.sleep(max(0.0, by_the_wall - time.perf_counter()))
        self._mark = time.thread_time()
        return found

    def _next(self, size: int) -> Bytes:
        room = np.empty(size, np.uint8)
        if size:
            self.dist.recv(_tensor(room), group=self.group, group_src=(self.index - 1) % self.size)
        return room

    def flush(self) -> None:
        """Wait until all that was sent has left."""
        self.now()
        for work, _ in self._leaving:
            work.wait()
        self._leaving.clear()
        self._mark = time.thread_time()

    def gather(self, mine: Bytes) -> list[Bytes]:
        """Everybody's message, from whoever is first in the ring on."""
        found = {self.index: mine}
        passed = mine
        for step in range(1, self.size):
            self.send(passed)
            passed = self.recv()
            found[(self.index - step) % self.size] = passed
        self.flush()
        return [found[k] for k in range(self.size)]


def _tensor(x: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(x)


def probed(dist: Any, group: Any = None, rounds: int = 20) -> Link:
    """The link as it is found: bytes a second of a plain all-reduce, the same on every rank.

    It is the quickest of some, of the slowest rank: others that compute for a moment are not the link.
    """
    import torch

    ranks, x, times = dist.get_world_size(group), torch.zeros(1 << 18), []
    if ranks == 1:
        return Link(1e12)
    for _ in range(rounds):
        dist.barrier(group=group)
        began = time.perf_counter()
        dist.all_reduce(x, group=group)
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(min(times), dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return Link(2 * (ranks - 1) / ranks * 4 * len(x) / max(float(slowest), 1e-9))
