"""Where the watcher's reports come from: a UDP port, or a folder into which the ranks write.

Whatever arrives may be wrong: what is no report is counted and left. Nothing here grows with what strangers send.
"""

from __future__ import annotations

import math
import os
import select
import socket
import stat
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep, time

from assay.live.watch.wire import LARGEST, Report, decode, records
from assay.record.errors import AssayError, BadInput

MOST_FILES = 8192  # of one folder
_BURST = 20_000  # datagrams taken before the view gets its turn
_BUFFER = 8 << 20  # bytes that the kernel may keep while the watcher draws
_PIECE = 1 << 20  # bytes of a file read at once
_POLL = 0.25  # seconds between looks into a folder


class Source(ABC):
    """Reports of ranks, as they come."""

    refused: Counter[str]
    """What was no report, by reason."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What a job's `ASSAY_WATCH` must be to report here."""

    @abstractmethod
    def read(self) -> Iterator[tuple[float, Report]]:
        """What has come since the last time, and how many seconds ago; never waits."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Until something may have come, but no longer."""

    @abstractmethod
    def close(self) -> None:
        """No more is wanted."""

    def _decoded(self, record: bytes) -> Report | None:
        try:
            return decode(record)
        except BadInput:
            self.refused["malformed"] += 1
            return None


class Port(Source):
    """A UDP port. Datagrams that come faster than they are read are dropped by the kernel, not by us."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.refused = Counter()
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind, protocol)
        except OSError as error:
            raise BadInput(f"cannot listen on {host}: {error.strerror or error}; an address of this machine") from error
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            cure = "choose another with --port, or 0 for any"
            raise AssayError(f"cannot listen on {host}:{port}: {(error.strerror or '').lower()}; {cure}") from error

    @property
    def place(self) -> str:
        """Host and port."""
        host, port = self._socket.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def read(self) -> Iterator[tuple[float, Report]]:
        """Datagrams that have come."""
        for _ in range(_BURST):
            try:
                record = self._socket.recv(LARGEST + 64)
            except OSError:  # nothing more is there, or an ICMP error of a sender
                return
            report = self._decoded(record)
            if report is not None:
                yield 0.0, report

    def wait(self, seconds: float) -> None:
        """Until a datagram comes."""
        select.select([self._socket], [], [], max(seconds, 0.0))

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


class Folder(Source):
    """A folder of files that grow. What lay there before the watcher came is read too."""

    def __init__(self, folder: Path | str) -> None:
        self.refused = Counter()
        self._folder = Path(folder)
        self._read: dict[str, int] = {}  # bytes of each file that are done with
        self._again = -math.inf
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{folder} is no folder that ranks could report into: {error.strerror}") from error

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._folder.resolve())

    def read(self) -> Iterator[tuple[float, Report]]:
        """Whole records that were added."""
        for name in self._names():
            yield from self._file(name)

    def _names(self) -> list[str]:
        try:
            found = [entry.name for entry in os.scandir(self._folder) if entry.name.endswith(".stages")]
        except OSError:
            return []  # removed under our feet; it may come back
        found.sort(key=_order)
        if len(found) > MOST_FILES:
            self.refused["too many files"] = len(found) - MOST_FILES
            found = found[-MOST_FILES:]
        present = set(found)
        self._read = {name: place for name, place in self._read.items() if name in present}
        return found

    def _file(self, name: str) -> Iterator[tuple[float, Report]]:
        try:
            # Neither a link to somewhere else nor a pipe that would hold us up.
            opened = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode):
                return
            place = self._read.get(name, 0)
            age = max(time() - about.st_mtime, 0.0)  # of the last record; those before it do not matter
            while place < about.st_size:
                done, reports = self._piece(os.pread(opened, _PIECE, place))
                yield from ((age, report) for report in reports)
                if not done:
                    break
                place += done
                self._read[name] = place
        except OSError:
            return
        finally:
            os.close(opened)

    def _piece(self, data: bytes) -> tuple[int, list[Report]]:
        done, reports = 0, []
        for end, record in records(data):
            done = end
            report = self._decoded(record) if record is not None else None
            if record is None:
                self.refused["malformed"] += 1
            if report is not None:
                reports.append(report)
        return done, reports

    def wait(self, seconds: float) -> None:
        """Files do not call; look again soon."""
        end = monotonic() + max(seconds, 0.0)
        sleep(max(min(self._again - monotonic(), end - monotonic()), 0.0))
        self._again = monotonic() + _POLL

    def close(self) -> None:
        """Nothing is held open."""


def _order(name: str) -> tuple[str, int]:
    """Segments of one process in their order."""
    stem, _, segment = name.removesuffix(".stages").rpartition(".")
    return stem, int(segment) if segment.isascii() and segment.isdigit() else 0
