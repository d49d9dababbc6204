"""Where a process sleeps until another has something for it.

Who looks in vain every few microseconds takes the processor from the rank beside it, and who naps instead comes late.
So nobody spins. Who has nothing to do says so in shared memory and sleeps on a socket; who has something for it rings,
and only then.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from assay.training.buddy.rings import Ints

APART = 8  # words between the flags of two processes: a cache line
NAP = 2e-5  # seconds: where nobody will ring
LONGEST = 2e-3  # seconds of sleep: a bell may be missed, for nothing here orders a flag and a ring's count


class Naps:
    """In place of a bell: short sleeps."""

    def wait(self, seconds: float, ready: Callable[[], bool], others: Sequence[socket.socket] = ()) -> None:
        """Sleep a little."""
        if not ready():
            time.sleep(NAP)

    def ring(self, index: int) -> None:
        """Nobody sleeps for long."""

    def close(self) -> None:
        """Nothing is open."""


class Bell(Naps):
    """This process's bell, and those of the others in the same folder; `asleep` is shared by all of them.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bell = Bell(folder, 0, np.zeros(APART, np.int64))
    ...     bell.ring(0)  # nobody is asleep: nothing is sent
    ...     bell.wait(0.001, ready=lambda: False)
    ...     bell.close()
    """

    def __init__(self, folder: str, index: int, asleep: Ints) -> None:
        self._folder, self._place, self._asleep = folder, index * APART, asleep
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._name(index))
        self._socket.setblocking(False)

    def _name(self, index: int) -> str:
        return str(Path(self._folder, f"bell-{index}"))

    def wait(self, seconds: float, ready: Callable[[], bool], others: Sequence[socket.socket] = ()) -> None:
        """Sleep until it rings, one of the `others` has something to read, or so long; not at all where it is ready."""
        self._asleep[self._place] = 1
        if not ready():
            heard, _, _ = select.select([self._socket, *others], (), (), min(seconds, LONGEST))
            if self._socket in heard:
                with suppress(BlockingIOError):
                    while self._socket.recv(1):
                        pass
        self._asleep[self._place] = 0

    def ring(self, index: int) -> None:
        """Wake a process if it sleeps."""
        if self._asleep[index * APART]:
            self._asleep[index * APART] = 0
            with suppress(OSError):  # its bell is full of rings, or it has gone
                self._socket.sendto(b"!", self._name(index))

    def close(self) -> None:
        """No more rings."""
        self._socket.close()
