"""How much memory a piece of work really took, as the operating system saw it.

>>> with Peak() as peak:
...     block = np.ones(1 << 26, np.uint8)
>>> peak.grown > 0.9 * len(block) or not peak.known
True
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

MAPPED = 128 << 10  # bytes from which on a block goes back when it is freed: glibc's own choice, as it begins
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Bytes of this process that are in memory now; 0 where the system does not tell."""
    return _field("VmRSS")


def _field(name: str) -> int:
    try:
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


class Peak:
    """The highest resident size while the block ran: `peak` bytes in all, `grown` bytes over its beginning.

    Linux keeps the highest size and lets a process begin anew; elsewhere `known` is False. What the process loaded
    before (interpreter, libraries, compiled code) is in `peak` and not in `grown`.
    """

    def __init__(self) -> None:
        self.peak = self.grown = self.before = 0
        self.known = True

    def __enter__(self) -> Peak:
        try:
            _CLEAR.write_text("5", encoding="ascii")
        except OSError:
            self.known = False
        self.before = resident()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.known:
            self.peak = _field("VmHWM")
            self.grown = max(self.peak - self.before, 0)


def return_freed(block: int | None = None) -> None:
    """Give back what is free; with `block`, blocks of so many bytes and more go back when freed, from now on.

    glibc otherwise keeps more and more of them for later: by the size of the largest it has seen, a heap for each
    thread. Work in 13 MB then took 18. In a few megabytes the smaller blocks that each heap keeps count as well, but
    pages that go back must be made anew: a gather in 7 MB took a fifth longer with 32 KiB than with 128. Elsewhere
    nothing happens.

    >>> return_freed(MAPPED)  # before work that is to keep to a limit
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if block is not None:
            libc.mallopt(_MMAP_THRESHOLD, block)
        libc.malloc_trim(0)


def parse_size(text: str) -> int:
    """Bytes of a size as people write it; K, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024.

    >>> parse_size("512MB"), parse_size("1.5Gi"), parse_size("4096")
    (512000000, 1610612736, 4096)
    """
    digits = text.strip().rstrip("bB").strip()
    unit = digits.lstrip("0123456789.")
    powers = {"": 1} | {f"{sign}{i}": (1024 if i else 1000) ** k for k, sign in enumerate("kmgt", 1) for i in ("", "i")}
    try:
        size = float(digits.removesuffix(unit)) * powers[unit.strip().lower()]
    except (ValueError, KeyError):
        raise ValueError(f"'{text}' is no size; 512MB, 1.5Gi or a number of bytes expected") from None
    return int(np.ceil(size))
