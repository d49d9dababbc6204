"""How a rank's reports leave the job: by datagrams or into a folder, from a thread of its own, or not at all.

The job's own threads only note what they pass, in the collector. What cannot be sent is dropped and counted: a watcher
that is late, dead or slow, a full disk or a hung file system cost the job nothing.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, time_ns

from assay.live.watch.wire import MOST_RANKS, Report, encode
from assay.observe.frontier.collector import Collector
from assay.observe.frontier.vectors import Vectors
from assay.record.errors import BadInput

PORT = 9099
PERIOD = 0.5  # seconds between looks into the queue
BEAT = 1.0  # seconds between reports of a rank that has nothing new to say
SEGMENT = 16 << 20  # bytes of a file, after which the next begins; the last two are kept
_DATAGRAM = 1100  # bytes of stage times in one, so that it fits one Ethernet frame
_FILE_BLOCK = 16 << 10
_GOODBYE = 1.0  # seconds that the end of a job may wait for its last words to be sent


class Outlet(ABC):
    """Where reports go. `send` never waits for a reader, and raises OSError where it cannot."""

    block: int
    """Bytes of stage times in one report."""

    @abstractmethod
    def send(self, record: bytes) -> None:
        """One record, whole or not at all."""

    @abstractmethod
    def close(self) -> None:
        """No more will come."""


class Datagrams(Outlet):
    """To a watcher's UDP port."""

    block = _DATAGRAM

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._socket: socket.socket | None = None
        self._again = -math.inf  # when a name may be asked for again

    def send(self, record: bytes) -> None:
        """Hand it to the kernel, which keeps or drops it."""
        if self._socket is None:
            self._socket = self._open()
        self._socket.send(record)

    def _open(self) -> socket.socket:
        if monotonic() < self._again:
            raise OSError("the name did not resolve a moment ago")
        self._again = monotonic() + 30.0  # asking a name server takes seconds where it does not answer
        family, kind, protocol, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        try:
            opened.connect(address)  # so that a port where nobody listens is noticed
        except OSError:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        """Give the socket back."""
        if self._socket is not None:
            self._socket.close()


class Files(Outlet):
    """Into a folder that the watcher reads too: a file a process, each record appended with one write."""

    block = _FILE_BLOCK

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"{socket.gethostname()[:64]}-{os.getpid()}-{time_ns():x}"
        self._file = -1
        self._segment, self._size = 0, 0

    def path(self, segment: int) -> Path:
        """The file of a segment."""
        return self._folder / f"{self._name}.{segment}.stages"

    def send(self, record: bytes) -> None:
        """Append it."""
        if self._file < 0 or self._size + len(record) > SEGMENT:
            self._next()
        written = os.write(self._file, record)
        self._size += written
        if written < len(record):  # the disk is full; the reader skips the torn record
            raise OSError("only a part could be written")

    def _next(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._segment += 1
            with suppress(OSError):
                self.path(self._segment - 2).unlink(missing_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path(self._segment), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._size = 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def outlet(to: str) -> Outlet:
    """Where `ASSAY_WATCH` points: `host:port`, a port of this machine, or a folder.

    >>> type(outlet("node7:9099")).__name__, type(outlet("9099")).__name__, type(outlet("/scratch/run3")).__name__
    ('Datagrams', 'Datagrams', 'Files')
    """
    to = to.strip()
    if to.startswith(("/", ".", "~")):
        return Files(Path(to).expanduser())
    host, _, port = to.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise BadInput(f"'{to}' is no place to report to; write HOST:{PORT}, or a folder such as /scratch/watch")
    return Datagrams(host.strip("[]") or "127.0.0.1", int(port))


Identity = Callable[[], tuple[int, int] | None]
"""Which rank of how many this process is; None where that is not known yet."""


class Speaker(threading.Thread):
    """Sends what the collector finished, and a heartbeat."""

    def __init__(self, collector: Collector, way: Outlet, identity: Identity, deferred: Callable[[], bool]) -> None:
        super().__init__(name="assay-monitor", daemon=True)
        self.dropped = 0  # steps
        self.sent = 0  # reports
        self._collector, self._way, self._identity, self._deferred = collector, way, identity, deferred
        self._over = threading.Event()
        self._start = time_ns()
        self._known: tuple[int, int] | None = None
        self._certain = False
        self._host = socket.gethostname()[:64]
        self._beat = -math.inf  # when it last spoke
        self._before = 0  # steps in the last report

    def run(self) -> None:
        """Until the job ends."""
        while not self._over.wait(PERIOD):
            self._try(last=False)
        self._try(last=True)
        with suppress(OSError):
            self._way.close()

    def finish(self) -> None:
        """Send what is left and say goodbye, in a bounded time."""
        self._over.set()
        if self.is_alive():
            self.join(_GOODBYE)

    def _try(self, last: bool) -> None:
        # Whatever goes wrong here must not end the thread, let alone the job.
        try:
            self._speak(last)
        except Exception:
            self._beat = monotonic()

    def _speak(self, last: bool) -> None:
        if not self._certain:
            self._who(last)
        if self._known is None:
            return
        blocks = list(self._blocks())
        if not blocks and not last and monotonic() - self._beat < BEAT:
            return
        self._beat = monotonic()
        for block in blocks:
            self._send(block)
        if last or not blocks:
            self._send(None, last)

    def _who(self, last: bool) -> None:
        """Learn the rank. Once told it is kept: a process group is destroyed before its job ends."""
        told = self._identity()
        self._certain = told is not None
        if told is None and not (self._collector.steps or last):
            return  # torch.distributed may still say
        if self._known is not None and told is not None and told != self._known:
            self._start = time_ns()  # what it said until now was somebody else's
        self._known = told or self._known or (0, 1)

    def _blocks(self) -> Iterator[Vectors]:
        """All finished steps, those that follow one another together, as many as a report carries."""
        rank, size = self._known or (0, 1)
        most = max(self._way.block // (4 * len(self._collector.stages)), 1)
        while (block := self._collector.take(most)) is not None:
            yield replace(block, rank=rank, size=size)

    def _send(self, block: Vectors | None, last: bool = False) -> None:
        rank, size = self._known or (0, 1)
        stage, since = self._collector.doing()
        report = Report(
            rank=rank, size=min(size, MOST_RANKS), start=self._start, host=self._host, pid=os.getpid(),
            steps=self._collector.steps, stage=stage, since=since, dropped=self.dropped + self._collector.lost,
            last=last, deferred=self._deferred(), vectors=block.to_bytes() if block else b"",
        )  # fmt: skip
        steps = len(block.durations) if block else 0
        try:
            try:
                self._way.send(encode(report))
            except ConnectionRefusedError:  # nobody listened when the one before arrived: that one is gone
                self.dropped += self._before
                self._way.send(encode(report))
            self.sent += 1
            self._before = steps
        except OSError:
            self.dropped += steps
