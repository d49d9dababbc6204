"""What a replica needs of its peers, and how it gets it over gloo and a keeper; `ulfm` does it over MPI.

A back end sums a buffer over the members of an epoch, or says that it could not; lets the survivors agree, after which
there is a new epoch if somebody is gone; and knows between two calls whether the epoch still holds.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from assay.training.recover.keeper import TIMEOUT
from assay.training.recover.seat import Broken, Seat

if TYPE_CHECKING:
    from torch import Tensor


OFTEN = 0.2  # seconds between two words of progress


class Backend(Protocol):
    """A group of replicas that shrinks."""

    rank: int

    @property
    def broken(self) -> bool:
        """Whether a member is known to be gone, asked without waiting."""
        ...

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum it over the members, in place; raises `Broken`, and then the buffer holds nothing of use."""
        ...

    def agree(self, value: Any) -> dict[int, Any]:
        """The values of all that are alive, the same everywhere; they are the members from then on."""
        ...

    def leave(self) -> None:
        """Nothing more will be asked."""
        ...


class Gloo:
    """Process groups of gloo, a new one for every epoch, found over a store beside the keeper.

    A collective is waited for together with the keeper's word: who stands in the middle of a ring when somebody
    elsewhere dies would otherwise wait for the time-out of gloo.
    """

    def __init__(self, keeper: tuple[str, int], store: tuple[str, int], rank: int, timeout: float = TIMEOUT) -> None:
        import torch.distributed as dist

        self.rank = rank
        self._limit = timedelta(seconds=max(60.0, timeout))  # of gloo's own patience, which only a dead link uses up
        self._dist = dist
        self._group: Any = None
        self._store = store
        self._seat = Seat(keeper, rank, timeout)
        self._members: list[int] = []
        self._failed = False
        self._told = 0.0

    @property
    def broken(self) -> bool:
        """Whether the keeper has reported a death; who asks, between two microbatches, has made progress."""
        now = time.monotonic()
        if now - self._told > OFTEN:
            self._told = now
            self._seat.works()
        return self._seat.broken

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum it over the members."""
        if self._seat.broken:
            raise Broken
        if len(self._members) == 1:
            return
        self._seat.works(waits=True)
        try:
            group = self._group or self._joined()
            done = threading.Event()
            work = group.allreduce([buffer])

            def over(_: Any) -> None:
                done.set()
                self._seat.notify()

            work.get_future().add_done_callback(over)
            self._seat.wait(done)
            work.wait()  # raises what went wrong
            self._seat.works()
        except (RuntimeError, Broken) as error:
            self._failed = True
            self._abandon()
            if not self._seat.broken:  # nobody died, the connection did: let all of them know
                self._seat.complain()
            raise Broken from error

    def agree(self, value: Any) -> dict[int, Any]:
        """By the keeper's decision."""
        before = self._seat.epoch
        votes = self._seat.agree(value, self._failed)
        if self._seat.epoch != before or self._failed:
            self._abandon()
        self._failed = False
        self._members = sorted(votes)
        return votes

    def leave(self) -> None:
        """Give the seat back."""
        self._abandon()
        self._seat.leave()

    def _joined(self) -> Any:
        """The group of this epoch.

        Built in a thread that is left behind if the epoch ends: to wait for a member that died a moment ago takes until
        the time-out. For the same reason each has its own connection to the store, which waits for one at a time.
        """
        found: list[Any] = []
        done = threading.Event()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        at, size = self._members.index(self.rank), len(self._members)
        # Also by its members: an answer that only one got, who died with the keeper, is given anew without it.
        name = f"epoch-{self._seat.epoch}-of-{'-'.join(map(str, self._members))}"
        limit = self._limit

        def build() -> None:
            try:
                store = self._dist.TCPStore(*self._store, is_master=False, timeout=limit)
                prefixed = self._dist.PrefixStore(name, store)
                found.append(self._dist.ProcessGroupGloo(prefixed, at, size, limit))
            except RuntimeError:
                pass  # `found` stays empty
            done.set()
            self._seat.notify()

        threading.Thread(target=build, name="assay-gloo", daemon=True).start()
        self._seat.wait(done)
        if not found:
            raise Broken
        self._group = found[0]
        return self._group

    def _abandon(self) -> None:
        """Close the group's connections, so that whoever still waits in it learns of it.

        In a thread that holds the group until all it waited for is over: its end may wait for what cannot be aborted,
        such as a connection to a member that is gone.
        """
        if self._group is not None:
            threading.Thread(target=_close, args=(self._group, self._limit), name="assay-gloo", daemon=True).start()
            self._group = None


def _close(group: Any, limit: timedelta) -> None:
    group.abort()
    time.sleep(limit.total_seconds() + 1.0)
