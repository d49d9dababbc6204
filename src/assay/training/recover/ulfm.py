"""MPI's own fault tolerance, as the paper uses: an error, then revoke, shrink, agree. Needs the extra `mpi`.

Sums and votes are made of point-to-point messages here, whose requests are polled. MPI's own collectives are not to be
relied on in Open MPI 5.0.11 when a rank is killed inside one: with buffers of 1.6 MB, one job in twelve got an
`allgather` that returned without an error and with bytes that nobody had sent. A single message arrives or its request
fails. Deaths are told by mpirun, which sees them at once; MPI's heartbeats stay off: they are only sent while MPI is
called, so that a rank which computes for longer than their time-out is put out alive.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from assay.training.engine.mpi import watchdog
from assay.training.recover.keeper import Broken

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 600.0  # seconds that a rank may wait for the others, whose longest computation must be shorter
# Sockets of a killed process close. Its shared memory says nothing, and may hold a half-written message.
SETTINGS = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
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
        self._left: list[Any] = []  # requests of sums that failed, kept: MPI may still write to their buffers
        with self._bounded():
            self._comm = MPI.COMM_WORLD.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)

    @property
    def broken(self) -> bool:
        """Whether a member is known to be dead, or somebody said so."""
        self._mpi.COMM_SELF.Iprobe()  # MPI learns of it only while it is called
        failed = self._comm.Get_failed()
        dead = failed.Get_size() > 0
        failed.Free()
        return dead or bool(self._comm.Is_revoked())

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum it over the members, around a ring: every part is summed in one order and then passed on."""
        size, me = self._comm.Get_size(), self._comm.Get_rank()
        parts = list(buffer.clone().tensor_split(size))
        with self._bounded(), self._revoking():
            for passing in (0, 1):
                for turn in range(size - 1):
                    out, at = parts[(me - turn + passing) % size], (me - turn - 1 + passing) % size
                    got = out.new_empty(len(parts[at]))
                    self._exchange({(me - 1) % size: _bytes(got)}, {(me + 1) % size: _bytes(out)})
                    parts[at] = got if passing else parts[at].add_(got)
        for part, whole in zip(buffer.tensor_split(size), parts, strict=True):
            part.copy_(whole)

    def agree(self, value: Any) -> dict[int, Any]:
        """Everybody's vote, if MPI agrees that everybody has them all; else shrink and vote again."""
        with self._bounded():
            while True:
                votes: dict[int, Any] = {}
                try:
                    with self._revoking():
                        votes = self._votes(json.dumps([self.rank, value]).encode())
                except Broken:
                    pass
                try:
                    whole = self._comm.Agree(int(bool(votes)))
                except self._mpi.Exception:  # a failure nobody has acknowledged: all survivors see it here alike
                    whole = 0
                if whole:
                    return dict(sorted(votes.items()))
                self._comm = self._comm.Shrink()  # the old one stays: late messages in it find no new request
                self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)

    def leave(self) -> None:
        """MPI ends with the process, which now has little time for it."""
        self._clock.left = self._patience

    def _votes(self, mine: bytes) -> dict[int, Any]:
        """From everybody to everybody: how long a vote is, then the vote."""
        others = [one for one in range(self._comm.Get_size()) if one != self._comm.Get_rank()]
        sizes = {one: bytearray(8) for one in others}
        self._exchange(sizes, dict.fromkeys(others, len(mine).to_bytes(8, "big")))
        votes = {one: bytearray(int.from_bytes(size, "big")) for one, size in sizes.items()}
        self._exchange(votes, dict.fromkeys(others, mine))
        return dict(json.loads(bytes(vote)) for vote in (mine, *votes.values()))

    def _exchange(self, into: dict[int, Any], out: dict[int, Any]) -> None:
        """Receive and send, until all of it is done or a member is dead."""
        byte = self._mpi.BYTE
        requests = [self._comm.Irecv([buffer, byte], one) for one, buffer in into.items()]
        requests += [self._comm.Isend([buffer, byte], one) for one, buffer in out.items()]
        self._left += requests
        polls, looked = 0, time.monotonic()
        while not self._mpi.Request.Testall(requests):
            polls += 1
            if polls > SPIN:
                time.sleep(NAP)
                if time.monotonic() - looked > LOOK:  # not all of us stand beside the dead one
                    looked = time.monotonic()
                    if self.broken:
                        raise Broken
        del self._left[-len(requests) :]

    @contextmanager
    def _revoking(self) -> Iterator[None]:
        """Whatever goes wrong here, whoever still waits in this communicator learns of it."""
        try:
            yield
        except (self._mpi.Exception, Broken) as error:
            self._comm.Revoke()
            raise Broken from error

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        self._clock.left = self._patience
        yield
        self._clock.left = math.inf


def _bytes(some: Tensor) -> Sequence[int]:
    """The memory of a tensor of any type, bfloat16 as well, which NumPy has not."""
    import torch

    found: Sequence[int] = some.view(torch.uint8).numpy()
    return found
