"""What an application calls: send and forget, poll for what came, and a barrier that knows when nothing is under way.

`quiet` ends when two successive sums over all ranks say the same: as many rows handled as sent. One sum is not enough:
ranks give their counts at different moments, and a row may pass behind the counting. While it waits, rows that arrive
are set aside unhandled, so that no handler runs for a rank that has already left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.sim.compiled import njit
from assay.training.buddy.bells import LONGEST, NAP, Naps
from assay.training.buddy.rings import Ints, Ring, Sums
from assay.training.buddy.router import Direct, Router

Handler = Callable[[Ints], None]  # of the payloads of many rows at once
TIMEOUT = 120.0  # seconds without any progress


class Comm:
    """A rank's connection to its agent; inline, the agent is a router of its own.

    Args:
        rank: who this is, of `size`.
        size: how many ranks there are.
        words: of a payload.
        out: the ring to the agent.
        into: the ring from it.
        sums: over all ranks.
        hurry: where a rank says that it waits, so that buffers leave.
        router: of this process, where there is no agent.
        bell: where it sleeps, and by which it wakes the others.
        agent: whose bell it rings.
    """

    def __init__(
        self, rank: int, size: int, words: int, out: Ring, into: Ring | Direct, sums: Sums, hurry: Any,
        router: Router | None = None, pause: Callable[[], None] = lambda: None, bell: Naps | None = None,
        agent: int = 0,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.words = rank, size, words
        self.sent = self.handled = self.rounds = 0
        self.touched = 0  # bytes that the application says it read and wrote
        self.idle = 0.0  # seconds of a processor that went into looking in vain
        self._waited = 0.0
        self._out, self._into, self._sums, self._hurry, self._router = out, into, sums, hurry, router
        self._pause, self._bell, self._agent = pause, bell or Naps(), agent
        self._handlers: dict[int, Handler] = {}
        self._tags = np.empty(0, np.int64)
        self._inbox: list[Ints] = []

    def on(self, tag: int, handler: Handler) -> None:
        """Run `handler` on payloads, [rows, words], that were sent with this tag."""
        self._handlers[tag] = handler
        self._tags = np.array(sorted(self._handlers), np.int64)

    def send(self, dest: ArrayLike, payload: ArrayLike, tag: int = 0) -> None:
        """Rows to the ranks in `dest`, one each; returns when they are in the ring, not when they arrived."""
        to = np.ascontiguousarray(dest, np.int64)
        rows = np.ascontiguousarray(payload, np.int64).reshape(len(to), self.words)
        self.sent += len(to)
        if self._router is not None:
            if len(to):
                self._router.post(to, rows, tag)
            self._router.turn()
            return
        if self._hurry[self.rank]:
            to, rows = self._kept(to, rows, tag)
        while len(to):
            count = self._out.post(to, rows, tag)
            to, rows = to[count:], rows[count:]
            if count:
                self._waited = 0.0
                self._bell.ring(self._agent)
            else:
                self._look(NAP)

    def _kept(self, to: Ints, rows: Ints, tag: int) -> tuple[Ints, Ints]:
        """Those for others: who has come to a barrier has time to keep its own, and would only wait for them."""
        own = to == self.rank
        if not own.any():
            return to, rows
        kept = np.empty((int(own.sum()), 1 + self.words), np.int64)
        kept[:, 0], kept[:, 1:] = self.rank | (tag << 32), rows[own]
        self._inbox.append(kept)
        return to[~own], rows[~own]

    def poll(self) -> int:
        """Run the handlers of what arrived, each on all of its rows at once; how many rows that were.

        Small packets thus become large batches for whoever was busy meanwhile.
        """
        self._pause()
        if self._router is not None:
            self._router.turn(bool(self._hurry[self.rank]))
        arrived = self._into.views()
        parts, self._inbox = self._inbox + arrived, []
        payload, ends = split(parts, self._tags, self.words)
        self._into.release(sum(map(len, arrived)))  # what was copied may be written over
        if not len(payload):
            return 0
        first = 0
        for tag, end in zip(self._tags.tolist(), ends.tolist(), strict=True):
            if end > first:
                self._handlers[tag](payload[first:end])
                self.handled += end - first  # after its handler, whose own rows are counted as sent by then
            first = end
        return len(payload)

    def quiet(self) -> None:
        """Wait until every row of every rank was handled, those that handlers sent included.

        Raises:
            TimeoutError: nothing moved for two minutes.
        """
        self._hurry[self.rank] = 1
        if self._router is None:
            self._bell.ring(self._agent)
        before: tuple[int, ...] | None = None
        while True:
            while self.poll():
                self._waited = 0.0
            self._sums.give(self.sent, self.handled)
            self.rounds += 1
            if self._sums.ready():
                for other in range(self.size):
                    self._bell.ring(other)  # who waits for the last one
            while not self._sums.ready():
                self._look(LONGEST)
            sums = self._sums.total()
            if sums[0] == sums[1] and sums == before:
                break
            if sums == before:
                self._look(NAP)
            before = sums
        self._hurry[self.rank] = 0

    def leave(self) -> None:
        """Wake the agent, which may be the last one to know that all is done."""
        self._bell.ring(self._agent)

    def _look(self, seconds: float) -> None:
        """Set aside what came, or sleep; looking in vain is not the application's time.

        Of a nap that a paused machine made long, no more than a tenth of a second counts towards the time-out.
        """
        began, now = time.thread_time(), time.monotonic()
        if self._drain():
            self._waited = 0.0
            return
        if self._waited > TIMEOUT:
            raise TimeoutError(f"nothing moved for {TIMEOUT:g} s: a rank or an agent is gone")
        others = self._router.sockets if self._router else ()
        self._bell.wait(min(seconds, self._router.patience if self._router else seconds), self._awaited, others)
        self._waited += min(time.monotonic() - now, 0.1)
        self.idle += time.thread_time() - began

    def _awaited(self) -> bool:
        """Whether what it sleeps for is there already."""
        return self._sums.ready() if self._router else bool(self._sums.ready() or self._into.views())

    def _drain(self) -> bool:
        """Rows from the ring to the inbox."""
        if self._router is not None:
            self._router.turn(bool(self._hurry[self.rank]))
        batches = self._into.take_all()
        self._inbox += batches
        return bool(batches)


def split(parts: list[Ints], tags: Ints, words: int) -> tuple[Ints, Ints]:
    """Payloads of all rows by tag, in their order; and where those of every tag end.

    Raises:
        KeyError: a row has none of the tags.

    >>> payload, ends = split([np.array([[1 << 32, 5], [0, 6]]), np.array([[1 << 32, 7]])], np.array([0, 1]), words=1)
    >>> payload.ravel().tolist(), ends.tolist()
    ([6, 5, 7], [1, 3])
    """
    total = sum(map(len, parts))
    payload, place, counts = np.empty((total, words), np.int64), np.zeros(len(tags), np.int64), np.zeros_like(tags)
    if len(tags) != 1:  # with one handler all is copied in one pass, and a strange tag found on the way
        for rows in parts:
            strange = count_tags(rows, tags, counts)
            if strange >= 0:
                raise KeyError(strange)
        place[:] = counts.cumsum() - counts
    for rows in parts:
        strange = place_payloads(rows, tags, place, payload)
        if strange >= 0:
            raise KeyError(strange)
    return payload, place


@njit(cache=True)
def count_tags(rows: Any, tags: Any, counts: Any) -> int:
    """Add how many rows have each tag; a tag that is none of them, or -1."""
    k = 0
    for i in range(len(rows)):
        tag = rows[i, 0] >> 32
        if k >= len(tags) or tags[k] != tag:  # neighbours mostly have the same one
            k = 0
            while k < len(tags) and tags[k] != tag:
                k += 1
            if k == len(tags):
                return int(tag)
        counts[k] += 1
    return -1


@njit(cache=True)
def place_payloads(rows: Any, tags: Any, place: Any, payload: Any) -> int:
    """Copy payloads to where those of their tag go on; a tag that is none of them, or -1."""
    k = 0
    for i in range(len(rows)):
        tag = rows[i, 0] >> 32
        if tags[k] != tag:
            k = 0
            while k < len(tags) and tags[k] != tag:
                k += 1
            if k == len(tags):
                return int(tag)
        at = place[k]
        place[k] = at + 1
        for w in range(payload.shape[1]):
            payload[at, w] = rows[i, w + 1]
    return -1
