"""A group of replicas in threads whose members die where they are told to, and whose sums end as unluckily as can be.

What a real network may do and a test cannot wait for: a member dies after its part of a sum has left, and some of the
others get the sum while others do not. Here a drawn coin decides for each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from assay.training.recover.seat import Broken


class Died(BaseException):
    """The end of a thread that plays a process."""


class Group:
    """The members, the sum and the vote that are under way."""

    def __init__(self, size: int, coin: Callable[[], bool]) -> None:
        self.changed = threading.Condition()
        self.alive, self.members = set(range(size)), set(range(size))
        self.coin, self.broken = coin, False
        self.parts: dict[tuple[int, int], dict[int, Any]] = {}  # of each sum of each epoch
        self.votes: dict[int, Any] = {}
        self.answer: dict[int, Any] | None = None
        self.round = 0

    def die(self, rank: int) -> None:
        with self.changed:
            self.alive.discard(rank)
            self.votes.pop(rank, None)
            self.broken = True
            self.changed.notify_all()
        raise Died


class Member:
    """One replica's end of it; a `Backend`."""

    def __init__(self, group: Group, rank: int, dies_in_sum: int | None = None) -> None:
        self.group, self.rank = group, rank
        self.sums, self.dies_in_sum = 0, dies_in_sum
        self.turn, self.here = -1, 0

    @property
    def broken(self) -> bool:
        return self.group.broken

    def all_reduce(self, buffer: Any) -> None:
        group = self.group
        with group.changed:
            if group.broken:
                raise Broken
            self.sums += 1
            self.here = self.here + 1 if self.turn == group.round else 1
            self.turn = group.round
            which = self.turn, self.here
            parts = group.parts.setdefault(which, {})
            parts[self.rank] = buffer.clone()
            group.changed.notify_all()
        if self.sums == self.dies_in_sum:
            group.die(self.rank)
        with group.changed:
            assert group.changed.wait_for(lambda: parts.keys() == group.members or group.broken, 60)
            if parts.keys() != group.members or (group.broken and group.coin()):
                group.broken = True
                group.changed.notify_all()
                raise Broken
            buffer.copy_(sum(parts[rank] for rank in sorted(parts)))

    def agree(self, value: Any) -> dict[int, Any]:
        group = self.group
        with group.changed:
            turn = group.round
            group.votes[self.rank] = value
            group.changed.notify_all()
            assert group.changed.wait_for(lambda: group.round > turn or set(group.votes) == group.alive, 60)
            if group.round == turn:
                group.answer, group.votes = dict(sorted(group.votes.items())), {}
                group.members, group.broken = set(group.answer), False
                group.parts = {}
                group.round += 1
                group.changed.notify_all()
            assert group.answer is not None
            return group.answer

    def leave(self) -> None:
        with self.group.changed:
            self.group.alive.discard(self.rank)
            self.group.changed.notify_all()
