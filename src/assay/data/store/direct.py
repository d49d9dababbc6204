"""Large files past the page cache: what is written once and synced at once gains nothing from a copy in memory.

On the disk we measured, writing 1 GB through the cache and syncing it went at 0.3 GB/s, and directly at 1.6 GB/s.
What is read once, into memory of its own, is not copied there by the processor either; what the cache has already is
taken from it. A direct transfer begins and ends on a block, in the file and in memory: a writer's bytes pass through a
small buffer that does, and a reader's places lie as the file does. Where the file system knows no direct transfers,
callers use plain ones.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 4096
CHUNK = 4 << 20  # bytes to a transfer
BETWEEN = 1 << 20  # bytes to a transfer that is copied on
POPULATE = 23  # MADV_POPULATE_WRITE, which Python has no name for
LARGE = 4 << 20  # below, the cache does it as well


def aligned(nbytes: int) -> memoryview:
    """Zeroed memory that begins on a page.

    Private: faults of memory that could be shared take twice as long. Huge pages are not asked for: a guest whose host
    takes free memory back waits 2 s a GB for those it has not touched lately, and 0.4 s for small ones.

    >>> len(aligned(10))
    10
    """
    return memoryview(mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:nbytes]


@cache
def _libc() -> Any:
    """The system's C library, whose calls leave the interpreter's lock alone; None where it is not Linux's."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None)
    found.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return found


def touch(view: memoryview) -> None:
    """Have the system give memory its pages at once: a third less of its time than one fault after another."""
    if _libc() is not None and isinstance(view.obj, mmap.mmap):
        start = _address(view) // BLOCK * BLOCK
        _libc().madvise(start, _address(view) + len(view) - start, POPULATE)  # older systems refuse, and fault later


def write(path: Path, parts: Sequence[memoryview]) -> int | None:
    """Write buffers in a row to a new file, sync it, and return its size; None where nothing was written."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
    except (OSError, AttributeError):  # tmpfs and others refuse; macOS has no such flag
        path.unlink(missing_ok=True)  # some create before they refuse
        return None
    try:
        buffer = aligned(CHUNK)
        array = np.frombuffer(buffer, np.uint8)
        filled = size = 0
        for part in parts:
            done = 0
            while done < len(part):
                step = min(CHUNK - filled, len(part) - done)
                # NumPy copies without the interpreter's lock: another thread hashes meanwhile.
                array[filled : filled + step] = np.frombuffer(part[done : done + step], np.uint8)
                filled, done = filled + step, done + step
                if filled == CHUNK:
                    _whole(file, buffer)
                    size, filled = size + CHUNK, 0
        if filled:
            end = -(-filled // BLOCK) * BLOCK
            buffer[filled:end] = bytes(end - filled)
            _whole(file, buffer[:end])
            size += filled
        os.ftruncate(file, size)
        os.fsync(file)
        return size
    finally:
        os.close(file)


def read(path: Path, file: int, start: int, into: memoryview) -> int:
    """Fill a buffer from an open file, past the cache where that has nothing; how many bytes are there, from the first.

    The caller reads the rest, which is less than a block where all goes well, and everything where it is little or the
    file system refuses. What lies in memory as it does in the file is not copied on its way.
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
        between = _between() if (_address(into) + done) % BLOCK else None
        step = CHUNK if between is None else len(between)
        first, end = done, done + (len(into) - done) // BLOCK * BLOCK
        cached = _cached(file, start + first, end - first)
        while done < end:
            part = into[done : min(done + step, end)]
            touch(part)
            if cached[(done - first) // BLOCK :][: len(part) // BLOCK].all():
                got = os.preadv(file, [part], start + done)
            else:
                got = _past(past, part, start + done, between)
            done += got
            if got < len(part):
                break
        return done
    finally:
        os.close(past)


_threads = threading.local()


def _between() -> memoryview:
    """A thread's buffer for bytes on their way, kept: it stays in the processor's cache."""
    if not hasattr(_threads, "between"):
        _threads.between = aligned(BETWEEN)
    found: memoryview = _threads.between
    return found


def _past(file: int, into: memoryview, start: int, between: memoryview | None) -> int:
    if between is None:
        return os.preadv(file, [into], start)
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


def _whole(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
