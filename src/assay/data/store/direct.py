"""Large files past the page cache: what is written once and synced at once gains nothing from a copy in memory.

What the cache has already is taken from it.

A direct transfer begins and ends on a block, in the file and in memory. It is cut into requests of at most so many
pieces of memory, 254 on the disk we measured: in small pages that is 1 MB, in huge ones all of it. Reads then went at
2.6 GB/s instead of 1.1, writes at 3.1 instead of 1.7. So memory of our own has huge pages, and bytes go straight from
and to it; those of others pass through a buffer that has. Where the file system knows no direct transfers, callers use
plain ones.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 4096
CHUNK = 4 << 20  # bytes to a transfer
STRAIGHT = 256 << 10  # bytes that are worth a transfer of their own
POPULATE = 23  # MADV_POPULATE_WRITE, which Python has no name for
HUGE = 2 << 20  # bytes of a huge page
LARGE = 4 << 20  # below, the cache does it as well


class _Memory(mmap.mmap):
    """Memory of our own: of no file."""


def aligned(nbytes: int) -> memoryview:
    """Zeroed memory that begins on a page, a huge one where that fits: those come four times as fast as small ones.

    Private: faults of memory that could be shared take twice as long.

    >>> len(aligned(10))
    10
    """
    room = nbytes + HUGE if nbytes >= HUGE else max(nbytes, 1)
    whole = memoryview(_Memory(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    if nbytes < HUGE:
        return whole[:nbytes]
    first = -_address(whole) % HUGE
    found = whole[first : first + nbytes]
    if _libc() is not None:  # the end has small pages: no more is taken than was asked for
        _libc().madvise(_address(found), nbytes // HUGE * HUGE, mmap.MADV_HUGEPAGE)
    return found


@cache
def _libc() -> Any:
    """The system's C library, whose calls leave the interpreter's lock alone; None where it is not Linux's."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None)
    found.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return found


class _Pages:
    """Gives memory its pages at once, huge ones as long as they come quickly.

    The host of a virtual machine may have to find the memory behind a huge page that was not touched lately: that was
    seen to take 2.5 s a GB, where small pages of memory that was in use before took 0.4 s. After a slow one, small ones
    are asked for; the longer, the more often that happened.
    """

    QUICK = 1e9  # bytes a second
    LEAST, MOST = 64 << 20, 1 << 30  # bytes in small pages before the next huge one is tried

    def __init__(self) -> None:
        self.small, self.pause = 0, self.LEAST

    def give(self, start: int, length: int) -> bool:
        """Whether the last of them is huge, as far as it can be."""
        end, huge = start + length, True
        while start < end:
            huge = self.small <= 0
            step = min(HUGE - start % HUGE, end - start) if huge else end - start
            if huge:
                self._huge(start, step)
            else:
                self.small -= step
                _libc().madvise(start, step, mmap.MADV_NOHUGEPAGE)
                _libc().madvise(start, step, POPULATE)  # older systems refuse, and fault later
            start += step
        return huge

    def _huge(self, start: int, length: int) -> None:
        began = time.thread_time()  # of the processor: a host's search counts in it, and waiting for a turn does not
        _libc().madvise(start, length, POPULATE)
        if length == HUGE:  # what is less than one says nothing of them
            slow = HUGE / max(time.thread_time() - began, 1e-9) < self.QUICK
            if slow:
                self.small = self.pause
            self.pause = min(2 * self.pause, self.MOST) if slow else self.LEAST


_pages = _Pages()


def touch(view: memoryview) -> bool:
    """Have the system give memory of ours its pages at once, a third less of its time than one fault after another.

    True where they are huge.
    """
    if _libc() is None or not isinstance(view.obj, _Memory):
        return False
    start = _address(view) // BLOCK * BLOCK
    return _pages.give(start, _address(view) + len(view) - start)


def write(path: Path, parts: Sequence[memoryview]) -> int | None:
    """Write buffers in a row to a new file, sync it, and return its size; None where nothing was written."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
    except (OSError, AttributeError):  # tmpfs and others refuse; macOS has no such flag
        path.unlink(missing_ok=True)  # some create before they refuse
        return None
    try:
        writer = _Writer(file)
        for part in _joined(parts):
            writer.add(part)
        size = writer.end()
        os.ftruncate(file, size)
        os.fsync(file)
        return size
    finally:
        os.close(file)


def _joined(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    """The parts, those that follow one another in one buffer as one."""
    whole = memoryview(b"")
    for part in parts:
        if whole and part and part.obj is whole.obj and _address(whole) + len(whole) == _address(part):
            buffer = memoryview(part.obj).cast("B")
            first = _address(whole) - _address(buffer)
            whole = buffer[first : first + len(whole) + len(part)]
            continue
        yield whole
        whole = part
    yield whole


class _Writer:
    """Puts buffers in a row: memory of ours that lies as it will in the file as it is, the rest by a buffer."""

    def __init__(self, file: int) -> None:
        self.file, self.buffer = file, _between()
        self.array = np.frombuffer(self.buffer, np.uint8)
        self.size = self.filled = 0  # bytes in the file, always whole blocks; bytes that wait

    def add(self, part: memoryview) -> None:
        first = -self.filled % BLOCK
        if len(part) >= STRAIGHT and isinstance(part.obj, _Memory) and (_address(part) + first) % BLOCK == 0:
            self._copy(part[:first])
            self._flush()
            last = first + (len(part) - first) // BLOCK * BLOCK
            for at in range(first, last, CHUNK):
                self._out(part[at : min(at + CHUNK, last)])
            part = part[last:]
        self._copy(part)

    def end(self) -> int:
        """All that waits, and the size of the file; its last block may hold more."""
        size, rest = self.size + self.filled, -self.filled % BLOCK
        self._copy(memoryview(bytes(rest)))
        self._flush()
        return size

    def _copy(self, part: memoryview) -> None:
        done = 0
        while done < len(part):
            step = min(len(self.buffer) - self.filled, len(part) - done)
            # NumPy copies without the interpreter's lock: another thread hashes meanwhile.
            self.array[self.filled : self.filled + step] = np.frombuffer(part[done : done + step], np.uint8)
            self.filled, done = self.filled + step, done + step
            if self.filled == len(self.buffer):
                self._flush()

    def _flush(self) -> None:
        self._out(self.buffer[: self.filled])
        self.filled = 0

    def _out(self, data: memoryview) -> None:
        self.size += len(data)
        while data:
            data = data[os.write(self.file, data) :]


def read(path: Path, file: int, start: int, into: memoryview) -> int:
    """Fill a buffer from an open file, past the cache where that has nothing; how many bytes are there, from the first.

    The caller reads the rest, which is less than a block where all goes well, and everything where it is little or the
    file system refuses.
    """
    done = -start % BLOCK
    if len(into) < LARGE:
        return 0
    try:
        past = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError):
        return 0
    try:
        if done and os.preadv(file, [into[:done]], start) < done:
            return 0
        as_the_file = (_address(into) + done) % BLOCK == 0
        first, end = done, done + (len(into) - done) // BLOCK * BLOCK
        cached = _cached(file, start + first, end - first)
        while done < end:
            part = into[done : min(done + CHUNK, end)]
            huge = touch(part)
            if cached[(done - first) // BLOCK :][: len(part) // BLOCK].all():
                got = os.preadv(file, [part], start + done)
            else:
                got = _past(past, part, start + done, straight=huge and as_the_file)
            done += got
            if got < len(part):
                break
        return done
    finally:
        os.close(past)


_threads = threading.local()


def _between() -> memoryview:
    """A thread's buffer for bytes on their way, kept. Its huge pages are worth waiting for."""
    if not hasattr(_threads, "between"):
        _threads.between = aligned(CHUNK)
    found: memoryview = _threads.between
    return found


def _past(file: int, into: memoryview, start: int, *, straight: bool) -> int:
    if straight:
        return os.preadv(file, [into], start)
    between = _between()
    got = os.preadv(file, [between[: len(into)]], start)
    np.frombuffer(into, np.uint8)[:got] = np.frombuffer(between, np.uint8)[:got]
    return got


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def _cached(file: int, start: int, length: int) -> npt.NDArray[np.bool_]:
    """Which blocks the page cache holds. (To ask by a read that must not wait would begin to read ahead.)"""
    found = np.zeros(length // BLOCK, np.uint8)
    try:
        seen = mmap.mmap(file, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start)
    except (OSError, ValueError):  # shorter than that: the caller will find out
        return found.view(np.bool_)
    with seen:
        if _libc() is not None:
            _libc().mincore(_address(memoryview(seen)), length, found.ctypes.data)
    found &= 1  # the other bits may mean something one day
    return found.view(np.bool_)
