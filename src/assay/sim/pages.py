"""Large pages for memory that is there to stay: who sleeps between two messages finds its way back to it sooner.

A process that wakes for a message of some hundred bytes touches hundreds of pages of four kilobytes, scattered over its
heap, and another process has meanwhile had the processor's table of them. In pages of two megabytes the same memory
takes a handful of entries. Linux gathers them when asked to (since 6.1, whatever its usual setting is, unless that is
"never"); gaps between what is used are filled, so the process grows a little.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

LARGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE


def gather() -> int:
    """Ask for large pages under all private memory of this process; the number of bytes that now lie in them."""
    if not sys.platform.startswith("linux"):
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0
    starts = [
        start for first, last in private(maps) for start in range(-(-first // LARGE) * LARGE, last - LARGE + 1, LARGE)
    ]
    return LARGE * len([start for start in starts if advise(start, LARGE, _COLLAPSE) == 0])


def private(maps: list[str]) -> list[tuple[int, int]]:
    """Where memory lies that belongs to no file and to this process only, of the lines of Linux' `maps`.

    >>> private(["1000-3000 rw-p 0 0:0 0 [heap]", "5000-6000 r-xp 0 8:1 7 /bin/sh", "7000-8000 rw-p 0 0:0 0"])
    [(4096, 12288), (28672, 32768)]
    """
    found = []
    for line in maps:
        fields = line.split(maxsplit=5)
        if fields[1] == "rw-p" and (len(fields) == 5 or fields[5] == "[heap]"):
            first, _, last = fields[0].partition("-")
            found.append((int(first, 16), int(last, 16)))
    return found
