"""MPI's own fault tolerance: deaths are told, acknowledged, and agreed on. Needs the extra `mpi`.

The paper goes from an error over revoke and shrink to an agreement. Two of these means are left out, for what they do
in Open MPI 5.0.11 when ranks are killed at any moment. `Shrink` ends all survivors by SIGSEGV if another dies while
the new communicator is made (in `ompi_comm_activate`). Collectives may return without an error and with bytes that
nobody sent. So there is one communicator, which stays; who is a member of it is agreed on; sums and votes are made of
messages between two ranks, each of which arrives or fails; and a number in their tags keeps those of a sum that failed
apart from all that follow. Nobody has to be told by `Revoke`: mpirun sees every death and tells all ranks. MPI's
heartbeats stay off: by default they are sent while MPI is called, and a rank that computes for longer than their
time-out would be put out alive.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from assay.training.engine.mpi import watchdog
from assay.training.recover.seat import Broken

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 600.0  # seconds that a rank may wait for the others, whose longest computation must be shorter
# Sockets of a killed process close. Its shared memory says nothing, and may hold a half-written message.
SETTINGS = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
TURNS, BITS = 1 << 29, 30  # tags and agreements are of 31 bits
SPIN, NAP, LOOK = 50, 0.0002, 0.01  # polls at once, then seconds between two; seconds between two looks for deaths


class Ulfm:
    """Replicas that `mpirun --with-ft ulfm -n 4 python train.py` started.

    Args:
        patience: seconds after which a rank that still waits for the others ends itself, with one line on standard
            error. The others take that for a death and go on.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        for name, value in SETTINGS.items():  # read when MPI begins, which importing it does
            os.environ.setdefault(name, value)
        from mpi4py import MPI

        self._mpi = MPI
        self._patience = patience
        self.rank = MPI.COMM_WORLD.Get_rank()
        self._clock = watchdog(math.inf, f"replica {self.rank}")
        self._turn = 0  # votes so far, the same on all members
        self._left: list[Any] = []  # requests that nobody waits for, kept: MPI may still use their buffers
        with self._bounded():
            self._comm = MPI.COMM_WORLD.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._group = self._comm.Get_group()
        self._members = list(range(self._comm.Get_size()))

    @property
    def broken(self) -> bool:
        """Whether a member is known to be dead."""
        return not self._dead().isdisjoint(self._members)

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum it over the members, around a ring: every part is summed in one order and then passed on."""
        size, me = len(self._members), self._members.index(self.rank)
        left, right = self._members[me - 1], self._members[(me + 1) % size]
        parts = list(buffer.clone().tensor_split(size))
        with self._bounded():
            for passing in (0, 1):
                for turn in range(size - 1):
                    out, at = parts[(me - turn + passing) % size], (me - turn - 1 + passing) % size
                    got = out.new_empty(len(parts[at]))
                    self._exchange({left: _bytes(got)}, {right: _bytes(out)}, 2 * self._turn)
                    parts[at] = got if passing else parts[at].add_(got)
        for part, whole in zip(buffer.tensor_split(size), parts, strict=True):
            part.copy_(whole)

    def agree(self, value: Any) -> dict[int, Any]:
        """The votes that MPI agrees everybody has; where somebody misses the vote of one who lives, vote again.

        Who died after voting may be among the members: all of them have its vote, and find it dead in the next sum.
        """
        mine = json.dumps([self.rank, value]).encode()
        with self._bounded():
            while True:
                self._turn = (self._turn + 1) % TURNS
                self._comm.Ack_failed()
                dead = self._dead()
                self._members = [one for one in self._members if one not in dead]
                votes = {self.rank: value}
                try:
                    votes |= self._votes(mine)
                    whole = True
                except Broken:
                    whole = False
                if (common := self._common(set(votes), whole)) is not None:
                    self._members = sorted(common)
                    return {one: votes[one] for one in self._members}

    def _common(self, mine: set[int], whole: bool) -> set[int] | None:
        """The ranks that are in everybody's set, if all sets are whole; MPI agrees on a few bits at a time."""
        found: set[int] | None = set()
        for first in range(0, self._comm.Get_size(), BITS):
            ranks = range(first, first + BITS)
            try:
                bits = self._comm.Agree(whole << BITS | sum((one in mine) << (one - first) for one in ranks))
            except self._mpi.Exception:  # a death that not all have acknowledged: all survivors see it here alike
                bits = 0
            if found is not None and bits >> BITS:
                found |= {one for one in ranks if bits >> (one - first) & 1}
            else:
                found = None
        return found

    def leave(self) -> None:
        """MPI ends with the process, which now has little time for it."""
        self._clock.left = self._patience

    def _dead(self) -> set[int]:
        self._mpi.COMM_SELF.Iprobe()  # MPI learns of deaths only while it is called
        failed = self._comm.Get_failed()
        found = set(failed.Translate_ranks(None, self._group))
        failed.Free()
        return found

    def _votes(self, mine: bytes) -> dict[int, Any]:
        """From every member to every other: how long a vote is, then the vote.

        Both are sent before anything is waited for. One that gives up here because of a death leaves others behind who
        had heard of it before they asked: to them nobody is missing, and they wait for this vote.
        """
        others, tag = [one for one in self._members if one != self.rank], 2 * self._turn + 1
        self._left = [one for one in self._left if not self._done(one)]
        for one in others:
            for part in (len(mine).to_bytes(8, "big"), mine):
                with suppress(self._mpi.Exception):  # it is dead, which is found out below
                    self._left.append(self._comm.Isend([part, self._mpi.BYTE], one, tag))
        sizes = {one: bytearray(8) for one in others}
        self._exchange(sizes, {}, tag)
        votes = {one: bytearray(int.from_bytes(size, "big")) for one, size in sizes.items()}
        self._exchange(votes, {}, tag)
        return dict(json.loads(bytes(vote)) for vote in votes.values())

    def _done(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception:
            return False

    def _exchange(self, into: dict[int, Any], out: dict[int, Any], tag: int) -> None:
        """Receive and send, until all of it is done or a member is dead."""
        byte = self._mpi.BYTE
        requests: list[Any] = []
        polls, looked = 0, time.monotonic()
        try:
            for one, buffer in into.items():
                requests.append(self._comm.Irecv([buffer, byte], one, tag))
            for one, buffer in out.items():
                requests.append(self._comm.Isend([buffer, byte], one, tag))
            while not all(one.Test() for one in requests):
                polls += 1
                if polls > SPIN:
                    time.sleep(NAP)
                if time.monotonic() - looked > LOOK:  # not all of us stand beside the dead one
                    looked = time.monotonic()
                    if self.broken:
                        raise Broken
        except (self._mpi.Exception, Broken) as error:
            for one in requests:
                with suppress(self._mpi.Exception):  # it was the one that failed
                    one.Cancel()  # or MPI waits for it when the process ends
            self._left += requests
            raise Broken from error

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        self._clock.left = self._patience
        try:
            yield
        finally:
            self._clock.left = math.inf


def _bytes(some: Tensor) -> Any:
    """The memory of a tensor of any type, bfloat16 as well, which NumPy has not."""
    import torch

    return some.view(torch.uint8).numpy()
