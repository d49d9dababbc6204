"""A shaped link between two ranks with a card at either end that moves data while the rank computes.

Two transports. `message`: gloo carries the bytes, the receiver's card puts them where they belong. `window`: the
sender's card stores into memory that both ranks map. With either, data is where it belongs when a link of the given
bandwidth and latency would have brought it, not before: who reads too early reads what was there. Counters in shared
memory tell how many tiles have arrived and how many chunks were read; they are not shaped.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import numpy as np

from assay.sim import turns
from assay.sim.ranks import Rank
from assay.training.cuco.program import Array, Lowered, Stage
from assay.training.engine.shaped import Link

WIRES = 4  # at most, of a program
ARRIVED, READ = 0, 1  # rows of a rank's counters
NAP = 1e-4


class Card:
    """One rank's end of the link, for one run of a program."""

    def __init__(self, dist: Any, rank: Rank, link: Link, low: Lowered, wires: list[Stage], tile: dict[str, Any]):
        self.dist, self.me, self.peer, self.link, self.low = dist, rank.index, 1 - rank.index, link, low
        self.words, self.when = rank.array("words"), rank.array("when")  # when: each message arrives
        self.words[self.me] = 0
        self.at = {wire.name: k for k, wire in enumerate(wires)}
        hears = [wire for wire in wires if self.peer in wire.ranks]
        shapes = {wire.name: (low.depth, low.chunk, *tile[wire.name]) for wire in wires}
        self.mine: dict[str, Array] = {}
        self.theirs: dict[str, Array] = {}
        offset, window = 0, rank.array("window")
        for wire in wires:
            shape, nbytes = shapes[wire.name], 4 * int(np.prod(shapes[wire.name]))
            room = [window[who, offset : offset + nbytes].view(np.float32).reshape(shape) for who in range(2)]
            self.mine[wire.name] = room[self.me] if low.transport == "window" else np.empty(shape, np.float32)
            self.theirs[wire.name] = room[self.peer]
            self.mine[wire.name].fill(np.nan)
            offset += nbytes
        self.late = 0.0  # seconds that whatever this card sends is late
        self._changed, self._free = threading.Condition(), 0.0
        self._leaving: list[Any] = []
        self._posted: SimpleQueue[Any] = SimpleQueue()
        self._threads = [threading.Thread(target=self._deliver, daemon=True)] if low.transport == "window" else []
        if low.transport == "message":
            self._threads = [threading.Thread(target=self._receive, args=self._expect(w), daemon=True) for w in hears]

    def _expect(self, wire: Stage) -> tuple[str, list[Any]]:
        """Ask gloo for all messages of a wire beforehand, so that none of them waits for this rank to do so."""
        import torch

        tiles = self.low.chunk if self.low.grain == "chunk" else 1
        shape = (tiles, *self.mine[wire.name].shape[2:])
        bodies = [torch.empty(shape) for _ in range(self.low.chunks * self.low.chunk // tiles)]
        return wire.name, [(self.dist.irecv(one, self.peer, tag=self.at[wire.name]), one) for one in bodies]

    def begin(self) -> None:
        """The card works from here on; all ranks have made theirs."""
        self._free = time.perf_counter() + self.late
        for thread in self._threads:
            thread.start()

    def put(self, wire: str, chunk: int, part: int, tiles: Array) -> None:
        """Hand tiles over, those from `part` of a chunk on; they must not change afterwards."""
        self._free = max(self._free, time.perf_counter()) + tiles.nbytes / self.link.bandwidth
        arrives = self._free + self.link.latency
        if self.low.transport == "window":
            self._posted.put((arrives, wire, chunk, part, tiles))
            return
        import torch

        self.when[self.peer, self.at[wire], chunk * self.low.chunk + part] = arrives
        body = torch.from_numpy(tiles)
        self._leaving.append((self.dist.isend(body, self.peer, tag=self.at[wire]), body))

    def _deliver(self) -> None:
        """The sender's card: store into the other's memory when the link would have brought it."""
        turns.ask()
        while (job := self._posted.get()) is not None:
            arrives, wire, chunk, part, tiles = job
            time.sleep(max(0.0, arrives - time.perf_counter()))
            self.theirs[wire][chunk % self.low.depth, part : part + len(tiles)] = tiles
            self.words[self.peer, ARRIVED, self.at[wire]] += len(tiles)

    def _receive(self, wire: str, expected: list[Any]) -> None:
        """The receiver's card: put what gloo brought where it belongs, on time."""
        turns.ask()
        room, done = self.mine[wire], 0
        for work, body in expected:
            work.wait()
            chunk, part = divmod(done, self.low.chunk)
            time.sleep(max(0.0, self.when[self.me, self.at[wire], done] - time.perf_counter()))
            room[chunk % self.low.depth, part : part + len(body)] = body.numpy()
            done += len(body)
            with self._changed:
                self.words[self.me, ARRIVED, self.at[wire]] = done
                self._changed.notify_all()

    def slot(self, wire: str, chunk: int) -> Array:
        """The room in which a chunk arrives."""
        found: Array = self.mine[wire][chunk % self.low.depth]
        return found

    def arrived(self, wire: str, chunk: int) -> bool:
        """Whether all of a chunk is here."""
        return bool(self.words[self.me, ARRIVED, self.at[wire]] >= (chunk + 1) * self.low.chunk)

    def delivered(self, wire: str, chunk: int) -> bool:
        """Whether all of a chunk is at the other rank."""
        return bool(self.words[self.peer, ARRIVED, self.at[wire]] >= (chunk + 1) * self.low.chunk)

    def read(self, wire: str) -> None:
        """Tell the sender that a chunk's room is free."""
        self.words[self.me, READ, self.at[wire]] += 1

    def room(self, wire: str, chunk: int) -> bool:
        """Whether the other rank has read what lay where this chunk will."""
        return bool(self.words[self.peer, READ, self.at[wire]] > chunk - self.low.depth)

    def pause(self) -> None:
        """A moment of waiting, as the directive says."""
        if self.low.wait == "poll":
            time.sleep(0)
        elif self.low.transport == "window":
            time.sleep(NAP)  # nobody wakes us when memory changes
        else:
            with self._changed:
                self._changed.wait(NAP)

    def end(self) -> None:
        """All that was sent has left, and all that will come has come."""
        self._posted.put(None)
        for work, _ in self._leaving:
            work.wait()
        for thread in self._threads:
            thread.join()
