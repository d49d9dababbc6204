"""The keeper in a process of its own, and the next one when it is killed, stopped or crashes.

The launcher holds the socket that keepers listen at, so that whoever connects while there is none waits for the next.
It asks the keeper whether it is well, and replaces one that does not answer: a keeper put in place of a healthy one
costs nothing, for replicas tell it where they stand.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from assay.record.errors import AssayError
from assay.training.recover import keeper

SILENT = 10.0  # seconds without an answer after which a keeper is replaced
IN_VAIN = 5  # keepers in a row that end without a word: it would be our mistake, and is not repeated for ever


class KeeperLost(AssayError):  # noqa: N818
    """Keepers end as soon as they begin."""

    exit_code = 1


class KeeperProcess:
    """A keeper that may be killed; `poll` has to be called several times a second.

    Args:
        size: how many replicas there are.
        on_restart: called when another keeper has taken over, with its process and why.
        options: a `Keeper`'s: `timeout`, `hang_after`, `start`.
    """

    def __init__(
        self, size: int, on_restart: Callable[[int, str], None] = lambda pid, why: None, **options: Any
    ) -> None:
        self.size, self._options, self._on_restart = size, options, on_restart
        self.left: set[int] = set()  # who finished
        self.lost: list[tuple[int, str]] = []  # who is gone, and why
        self.restarts = 0
        self._in_vain = 0
        self._heard = self._asked = 0.0  # when it last answered, and was last asked
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=keeper.BACKLOG)
        self._begin(None)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, and all that come after it."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def __enter__(self) -> KeeperProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._listener.close()
        self._process.kill()
        self._process.wait()

    def exited(self, rank: int) -> None:
        """A replica's process has ended."""
        self._say(f"{rank}\n".encode())

    def poll(self, running: Iterable[int]) -> None:
        """Hear what it decided; replace it where it is gone, given the replicas whose processes run."""
        over = self._hear()
        now = time.monotonic()
        if not over and now - self._asked > SILENT / 4:
            self._asked = now
            self._say(b"\n")
        silent = not over and now - self._heard > SILENT
        if not (over or silent):
            return
        self._process.kill()
        code = self._process.wait()
        self._hear()  # what it said last
        self._control.close()
        self._in_vain += 1
        if self._in_vain > IN_VAIN:
            raise KeeperLost(f"{IN_VAIN} keepers in a row ended at once, the last with code {code}")
        gone = {rank for rank, _ in self.lost}
        self._begin([rank for rank in running if rank not in gone])
        self.restarts += 1
        self._on_restart(self.pid, "did not answer" if silent else f"ended with code {code}")

    def _begin(self, expected: list[int] | None) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        asked = json.dumps({"size": self.size, "expected": expected, "left": sorted(self.left), **self._options})
        numbers = self._listener.fileno(), theirs.fileno()
        # The file itself: a keeper is there at once, as it loads nothing of the library.
        line = [sys.executable, "-I", keeper.__file__, *map(str, numbers), str(os.getpid()), asked]
        self._process = subprocess.Popen(line, pass_fds=numbers, stdin=subprocess.DEVNULL)
        theirs.close()
        self._rest = b""
        self._heard = self._asked = time.monotonic()
        self._say(b"\n")

    def _say(self, line: bytes) -> None:
        with suppress(OSError):  # it is gone, or full: `poll` finds out
            self._control.sendall(line)

    def _hear(self) -> bool:
        """Take in all that it has said; whether its end is closed."""
        while True:
            try:
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not data:
                return True
            self._heard, self._in_vain = time.monotonic(), 0
            *lines, self._rest = (self._rest + data).split(b"\n")
            for rank, why in (json.loads(line) for line in lines if line):
                self.lost.append((rank, why))
                if why == "left":
                    self.left.add(rank)
