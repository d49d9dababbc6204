"""A file read and written in pages, past the operating system's page cache, with every request counted.

The page cache would hide all input and output of a study on a machine with more memory than data. Files are opened
with O_DIRECT where the file system allows it; elsewhere what was read is dropped from the cache at once, and
:attr:`PagedFile.direct` says so.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, PagedFile.create(Path(folder, "pages")) as file:
...     file.write(np.array([3, 1]), np.stack([np.full(PAGE, 33, np.uint8), np.full(PAGE, 11, np.uint8)]))
...     file.read(np.array([1, 3, 1]))[:, 0].tolist(), file.stats.reads, file.stats.read_bytes // PAGE
([11, 33, 11], 2, 2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from numba import types

from assay.sim.compiled import njit

PAGE = 4096
DEPTH = 16  # requests in flight: where random reads of an SSD stop getting faster
LONGEST = 1 << 20  # bytes of one request; a longer run of pages is cut, so that its parts overlap

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass
class IoStats:
    """What a file was asked, and what it cost.

    `reads` and `writes` are requests to the operating system, `asked` pages as callers named them (repeats counted),
    `waited` the seconds in which a caller stood still.
    """

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0
    asked: int = 0
    waited: float = 0.0

    def __add__(self, other: IoStats) -> IoStats:
        return IoStats(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def aligned(nbytes: int) -> Bytes:
    """Uninitialised memory that begins on a page's boundary, as O_DIRECT wants it.

    >>> aligned(10).ctypes.data % PAGE, len(aligned(10))
    (0, 10)
    """
    raw = np.empty(nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(DEPTH, thread_name_prefix="pages")


@cache
def _tickets() -> ThreadPoolExecutor:
    # Apart from the threads above: a ticket waits for them, and would wait for ever in their place.
    return ThreadPoolExecutor(4, thread_name_prefix="tickets")


class Ticket(Generic[T]):
    """Work under way in another thread; `wait` returns what it came to, and counts the time stood still."""

    def __init__(self, work: Callable[[], T], stats: IoStats) -> None:
        self._future: Future[T] = _tickets().submit(work)
        self._stats = stats

    def wait(self) -> T:
        """Return the outcome when it is there."""
        began = perf_counter()
        try:
            return self._future.result()
        finally:
            self._stats.waited += perf_counter() - began


class PagedFile:
    """A file of 4096-byte pages. Open one with :meth:`open` (to read) or :meth:`create` (to write and read)."""

    def __init__(self, path: Path, flags: int, direct: bool = True) -> None:
        self.path = path
        self.stats = IoStats()
        self.direct = direct and hasattr(os, "O_DIRECT")
        self._lock = Lock()
        try:
            self._fd = os.open(path, flags | (os.O_DIRECT if self.direct else 0), 0o644)
        except OSError as error:
            if not self.direct or isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
                raise
            self.direct = False  # tmpfs, some network and container file systems
            self._fd = os.open(path, flags, 0o644)
        self.size = os.fstat(self._fd).st_size

    @classmethod
    def open(cls, path: Path, direct: bool = True) -> PagedFile:
        """Open an existing file to read it."""
        return cls(path, os.O_RDONLY, direct)

    @classmethod
    def create(cls, path: Path, direct: bool = True) -> PagedFile:
        """Create an empty file, or empty an existing one, to write and read it."""
        return cls(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, direct)

    def __enter__(self) -> PagedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; once more does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """The number under which the system knows the file, for compiled code that reads by itself."""
        return self._fd

    @property
    def pages(self) -> int:
        """How many pages the file has, a partial last one included."""
        return -(-self.size // PAGE)

    def read(self, page_ids: Int64s) -> Bytes:
        """The pages of these numbers, (n, 4096), in the order asked: sorted, repeats and neighbours read once."""
        began = perf_counter()
        out = self._gather(np.asarray(page_ids, np.int64))
        self.stats.waited += perf_counter() - began
        return out

    def read_async(self, page_ids: Int64s) -> Ticket[Bytes]:
        """Begin to read; the ticket returns the pages."""
        ids = np.array(page_ids, np.int64)
        return Ticket(lambda: self._gather(ids), self.stats)

    def read_span(self, first: int, count: int) -> Bytes:
        """`count` pages from `first` on, as one row of bytes: the sequential read."""
        began = perf_counter()
        out = self._span(first, count)
        self.stats.waited += perf_counter() - began
        return out

    def read_span_async(self, first: int, count: int) -> Ticket[Bytes]:
        """Begin a sequential read; the ticket returns the bytes."""
        return Ticket(lambda: self._span(first, count), self.stats)

    def read_into(self, spans: Sequence[tuple[int, Bytes]]) -> None:
        """Read several runs of pages, each from a page on, into memory that begins on a page's boundary."""
        began = perf_counter()
        self._each(self._read_run, [(first, len(out) // PAGE, out) for first, out in spans])
        self.stats.waited += perf_counter() - began

    def read_into_async(self, first: int, out: Bytes) -> Ticket[None]:
        """Begin such a read, of one run; the memory is the caller's again when the ticket was waited for."""
        return Ticket(lambda: self._each(self._read_run, [(first, len(out) // PAGE, out)]), self.stats)

    def read_spans_async(self, spans: Sequence[tuple[int, int]]) -> Ticket[Bytes]:
        """Begin to read several (first, count) runs of pages at once; the ticket returns them one behind the other."""
        return Ticket(lambda: self._spans(spans), self.stats)

    def write_spans_async(self, spans: Sequence[tuple[int, Bytes]]) -> Ticket[None]:
        """Begin to write several runs of whole pages, each from a page on; they stay as they are until waited for."""
        runs = [(first, len(data) // PAGE, data) for first, data in spans]
        return Ticket(lambda: self._each(self._write_run, runs), self.stats)

    def write_spans(self, spans: Sequence[tuple[int, Bytes]]) -> None:
        """Write several runs of whole pages, each from a page on."""
        began = perf_counter()
        self._each(self._write_run, [(first, len(data) // PAGE, data) for first, data in spans])
        self.stats.waited += perf_counter() - began

    def write(self, page_ids: Int64s, pages: Bytes, *, barrier: bool = False) -> None:
        """Write pages, neighbours in one request; with `barrier` they are on the disk when this returns."""
        ids = np.asarray(page_ids, np.int64)
        order = np.argsort(ids, kind="stable")
        data = aligned(len(ids) * PAGE).reshape(-1, PAGE)
        np.take(pages.reshape(-1, PAGE), order, axis=0, out=data)
        began = perf_counter()
        self._each(self._write_run, _runs(ids[order], data.reshape(-1)))
        if barrier:
            os.fsync(self._fd)
        self.stats.asked += len(ids)
        self.stats.waited += perf_counter() - began

    def write_span(self, first: int, data: Bytes) -> None:
        """Write whole pages from `first` on: the sequential write. `data` begins on a page's boundary of memory."""
        self.write_spans([(first, data)])

    def truncate(self, size: int) -> None:
        """Make the file this long."""
        os.ftruncate(self._fd, size)
        self.size = size

    def reserve(self, size: int) -> None:
        """Take so many bytes of the disk for the file, where the system can: it is written in many places at once then.

        A write that takes new room keeps all others of the file out meanwhile: 2,048 of 32 KiB, some at once, took
        0.2 s, and 0.07 to 0.12 s where it was reserved.
        """
        with suppress(OSError, AttributeError):  # what is lacking in the end, the writes will say
            os.posix_fallocate(self._fd, 0, size)
            self.size = max(self.size, size)

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        os.fsync(self._fd)

    def _span(self, first: int, count: int) -> Bytes:
        return self._spans([(first, count)])

    def _spans(self, spans: Sequence[tuple[int, int]]) -> Bytes:
        out = aligned(sum(count for _, count in spans) * PAGE)
        at, runs = 0, []
        for first, count in spans:
            runs.append((first, count, out[at : at + count * PAGE]))
            at += count * PAGE
        self._each(self._read_run, runs)
        return out

    def _gather(self, ids: Int64s) -> Bytes:
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.pages):
            raise IndexError(f"{self.path} has pages 0 to {self.pages - 1}; {ids.min()} to {ids.max()} asked")
        unique, place = np.unique(ids, return_inverse=True)
        found = aligned(len(unique) * PAGE)
        if not (self.direct and len(unique) > 4 and self._read_scattered(unique, found)):
            self._each(self._read_run, _runs(unique, found))
        self.stats.asked += len(ids)
        rows = found.reshape(-1, PAGE)
        return rows if len(unique) == len(ids) and bool((place[1:] > place[:-1]).all()) else rows[place]

    def _read_scattered(self, ids: Int64s, out: Bytes) -> bool:
        """Read pages of ascending numbers by compiled code, up to DEPTH at once; False where a read fell short."""
        starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        bounds = np.append(starts, len(ids))
        runs = np.stack([ids[starts] * PAGE, np.diff(bounds) * PAGE, starts * PAGE], axis=1)
        depth = min(DEPTH, -(-len(runs) // 4))
        perform = partial(_read_lane, self._fd, out, runs, self.size, depth)
        whole = list(_threads().map(perform, range(depth))) if depth > 1 else [perform(0)]
        if not all(whole):
            return False  # read again, by whoever can say what was wrong
        with self._lock:
            self.stats.reads += len(runs)
            self.stats.read_bytes += len(ids) * PAGE
        return True

    def _each(self, act: Callable[[int, int, Bytes], None], runs: list[tuple[int, int, Bytes]]) -> None:
        """Perform requests, up to DEPTH of them at once."""
        most = LONGEST // PAGE
        parts = [
            (first + at, min(most, count - at), data[at * PAGE : min(at + most, count) * PAGE])
            for first, count, data in runs
            for at in range(0, count, most)
        ]
        if len(parts) <= 1:
            for part in parts:
                act(*part)
            return
        # To hand work to a thread costs as much as a small read: a few requests each, where there are few.
        depth = min(DEPTH, -(-len(parts) // 4)) if len(parts) > 4 else len(parts)
        lanes = [parts[lane::depth] for lane in range(depth)]

        def perform(lane: list[tuple[int, int, Bytes]]) -> None:
            for part in lane:
                act(*part)

        for _ in _threads().map(perform, lanes):
            pass

    def _read_run(self, first: int, count: int, out: Bytes) -> None:
        start, want = first * PAGE, min(count * PAGE, self.size - first * PAGE)
        got = 0
        while got < want:
            part = os.preadv(self._fd, [out[got:].data], start + got)
            if part == 0:
                raise EOFError(f"{self.path} ends at byte {start + got}, expected {start + want}; it was cut meanwhile")
            got += part
        out[got:] = 0
        if not self.direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, start, want, os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.stats.reads += 1
            self.stats.read_bytes += count * PAGE

    def _write_run(self, first: int, count: int, data: Bytes) -> None:
        done = 0
        while done < count * PAGE:
            done += os.pwrite(self._fd, data[done:].data, first * PAGE + done)
        with self._lock:
            self.size = max(self.size, first * PAGE + done)
            self.stats.writes += 1
            self.stats.write_bytes += done


_pread: Any = types.ExternalFunction("pread", types.intp(types.intc, types.uintp, types.uintp, types.intp))


@njit(cache=True, nogil=True)
def _read_lane(fd: int, out: Bytes, runs: Int64s, size: int, depth: int, lane: int) -> bool:
    """Read every `depth`-th run, (place in the file, bytes, place in memory), from `lane` on; False where one fails."""
    for i in range(lane, len(runs), depth):
        got = 0
        while got < min(runs[i, 1], size - runs[i, 0]):
            part = _pread(fd, out.ctypes.data + runs[i, 2] + got, runs[i, 1] - got, runs[i, 0] + got)
            if part <= 0:
                return False
            got += part
        out[runs[i, 2] + got : runs[i, 2] + runs[i, 1]] = 0  # behind the file's end
    return True


def _runs(ids: Int64s, data: Bytes) -> list[tuple[int, int, Bytes]]:
    """Cut ascending page numbers where they do not follow on: (first, count, their bytes in `data`)."""
    if not len(ids):
        return []
    cuts = np.flatnonzero(np.diff(ids) != 1) + 1
    starts, stops = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(ids)]])
    return [
        (int(ids[a]), int(b - a), data[a * PAGE : b * PAGE])
        for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
