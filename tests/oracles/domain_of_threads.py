"""A domain whose ranks are threads of one process: who waits in vain is told so, and a job takes milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from assay.training.shardtensor.shards import Domain, Unsupported


class Waited(Exception):  # noqa: N818 - what happened to a rank
    """The others did something else, or died."""


class Room:
    """Where the ranks meet."""

    def __init__(self, size: int, patience: float) -> None:
        self.size, self.patience = size, patience
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size
        self.sent: dict[tuple[int, int], list[Any]] = {(a, b): [] for a in range(size) for b in range(size)}
        self.asked = dict.fromkeys(self.sent, 0)  # receipts begun
        self.changed = threading.Condition()

    def meet(self) -> None:
        try:
            self.barrier.wait(self.patience)
        except threading.BrokenBarrierError:
            raise Waited("in a reduction") from None


class Received:
    """A message under way: receipts get messages in the order in which they were begun, not waited for."""

    def __init__(self, room: Room, of: int, to: int, into: Any) -> None:
        self.room, self.way, self.into = room, (of, to), into
        self.turn = room.asked[of, to]
        room.asked[of, to] += 1

    def wait(self) -> None:
        room, letters = self.room, self.room.sent[self.way]
        with room.changed:
            if not room.changed.wait_for(lambda: len(letters) > self.turn or room.barrier.broken, room.patience):
                raise Waited("for a message")
        if len(letters) <= self.turn:
            raise Waited("for a message")
        found = letters[self.turn]
        assert found.shape == self.into.shape and found.dtype == self.into.dtype, "another message was expected"
        self.into.copy_(found)


class Sent:
    """A message that has left."""

    def wait(self) -> None:
        return


class ThreadedDomain(Domain):
    """One rank's view of the room."""

    def __init__(self, room: Room, rank: int) -> None:
        self.group, self.room, self.rank, self.size, self.sent, self.moves = None, room, rank, room.size, 0, 0

    def reduce_(self, found: Any, how: str = "sum") -> Any:
        room = self.room
        room.values[self.rank] = found.detach().clone()
        room.meet()
        every = list(room.values)
        room.meet()
        assert len({(x.shape, x.dtype) for x in every}) == 1, "ranks reduce different things"
        total = every[0]
        for other in every[1:]:
            total = total + other if how == "sum" else getattr(total, f"{how}imum")(other)
        return found.detach().copy_(total)

    def send(self, values: Any, to: int) -> Any:
        with self.room.changed:
            self.room.sent[self.rank, to].append(values.detach().clone())
            self.room.changed.notify_all()
        return Sent()

    def receive(self, values: Any, of: int) -> Any:
        return Received(self.room, of, self.rank, values)


def on_threads(size: int, work: Callable[[Domain], Any], patience: float = 60.0) -> list[Any]:
    """What `work(domain)` gives on every rank, or the error that it raised there."""
    room, found = Room(size, patience), [None] * size

    def one(rank: int) -> None:
        try:
            found[rank] = work(ThreadedDomain(room, rank))
        except Exception as error:
            found[rank] = error
            if not isinstance(error, Unsupported):  # the others refuse as well, or wait in vain
                room.barrier.abort()
                with room.changed:
                    room.changed.notify_all()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
