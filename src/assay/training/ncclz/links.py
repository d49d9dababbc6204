"""A rank's place in a ring: it sends to the next one, receives from the one before, and knows what time it is.

Messages are real: sockets carry them from process to process. A shaped link delivers a message when one of its
bandwidth and latency would have: each carries the moment of its arrival, and the receiver waits for that. The sender
goes on computing meanwhile, as a network card lets it.

Two clocks run. One is the wall's. The other is the ring's own: a rank's processor time while it computes, and the
modelled wire while it waits; handing messages over is not in it, as a card would do that. Other work on the machine
delays the first clock and leaves the second alone.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.engine.shaped import Link as Link
from assay.training.engine.shaped import link as link
from assay.training.ncclz.wire import HEAD, Wire

Bytes = NDArray[np.uint8]


class Port:
    """This rank's end of a ring over the processes of a group, in their order."""

    def __init__(self, dist: Any, on: Link, *, group: Any = None) -> None:
        self.dist, self.link, self.group = dist, on, group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)
        ranks = list(range(self.size))
        if group is not None:
            ranks = [dist.get_global_rank(group, rank) for rank in ranks]
        self._wire = Wire(dist, ranks, group)
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
        """Hand a message to the link; it must not be changed afterwards."""
        taken = (HEAD.size + len(message)) / self.link.bandwidth
        self._free = max(self._free, self.now()) + taken
        self._wall_free = max(self._wall_free, time.perf_counter()) + taken
        late = self.link.latency
        self._wire.send(message, self._free + late, self._wall_free + late)
        self.sent += HEAD.size + len(message)
        self._mark = time.thread_time()

    def recv(self) -> Bytes:
        """The next message, when it has arrived."""
        self.now()
        found, arrives, by_the_wall = self._wire.recv()
        if self.link.shaped:
            self.clock = max(self.clock, arrives)
            time.sleep(max(0.0, by_the_wall - time.perf_counter()))
        self._mark = time.thread_time()
        return found

    def flush(self) -> None:
        """Wait until all that was sent has left."""
        self.now()
        self._wire.flush()
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
