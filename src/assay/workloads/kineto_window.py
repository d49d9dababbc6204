"""The bytes of a large file, some at a time: a window that moves on, over a plain or a gzipped file."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import numpy as np

from assay.record.errors import BadInput
from assay.workloads.json_scan import MORE, at_fault, white

PIECE = 4 << 20  # bytes read at once
LARGEST_EVENT = 256 << 20
UNPACKED, RATIO = 256 << 20, 200  # a gzip file that unpacks beyond both is a bomb
Progress = Callable[[int, int], None]


class Stream(Protocol):
    """What is read from: an open file, or one that unpacks as it goes."""

    def readinto(self, room: memoryview, /) -> int | None:
        """Fill the room; how much of it was filled, 0 at the end."""


class Unpacked:
    """A gzip file unpacked as it is read. The standard library's drops what it had unpacked before a cut."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw, self.unpack, self.left = raw, zlib.decompressobj(wbits=31), b""

    def readinto(self, room: memoryview, /) -> int:
        """Fill some of the room; 0 at the end, be it the right one or a cut."""
        while True:
            if self.unpack.eof:  # another member may follow
                self.left, self.unpack = self.unpack.unused_data, zlib.decompressobj(wbits=31)
            packed = self.left or self.raw.read(1 << 16)
            if not packed:
                return 0
            found = self.unpack.decompress(packed, len(room))
            self.left = self.unpack.unconsumed_tail
            if found:
                room[: len(found)] = found
                return len(found)


class Window:
    """The bytes of a stream that are looked at now; what lies before `at` is forgotten."""

    def __init__(self, stream: Stream, name: str, size: int | None, progress: Progress | None) -> None:
        self.stream, self.name, self.size, self.progress = stream, name, size, progress
        self.text = np.empty(PIECE, np.uint8)
        self.at, self.end, self.before = 0, 0, 0

    def offset(self, position: int) -> int:
        """Where in the (unpacked) file a position of the window lies."""
        return self.before + position

    def more(self) -> bool:
        """Read on; False at the end of the stream."""
        left = self.end - self.at
        if left > len(self.text) // 2:
            if len(self.text) >= LARGEST_EVENT:
                where = self.offset(self.at)
                raise BadInput(f"{self.name}: one value at byte {where} takes over {LARGEST_EVENT >> 20} MiB")
            wider = np.empty(2 * len(self.text), np.uint8)
        else:
            wider = self.text
        wider[:left] = self.text[self.at : self.end]  # NumPy copies overlapping ranges rightly
        self.before, self.text, self.at, self.end = self.before + self.at, wider, 0, left
        got = self._read(memoryview(self.text.data)[left:])
        self.end += got
        if self.size and self.before + self.end > max(UNPACKED, RATIO * self.size):
            raise BadInput(f"{self.name}: unpacks to more than {RATIO} times its size; a trace does not")
        return got > 0

    def _read(self, room: memoryview) -> int:
        try:
            got = int(self.stream.readinto(room) or 0)
        except zlib.error as error:
            where = self.offset(self.end)
            raise BadInput(f"{self.name}: the gzip data is damaged behind unpacked byte {where}: {error}") from None
        if self.progress and got:
            self.progress(self.before + self.end + got, self.size or 0)
        return got

    def next(self) -> int | None:
        """The next byte that is no white space; None at the end."""
        while True:
            self.at = white(self.text, self.at, self.end)
            if self.at < self.end:
                return int(self.text[self.at])
            if not self.more():
                return None

    def passed(self, skip: Callable[[Any, int, int], int]) -> bytes | None:
        """Move behind what `skip` skips, and give its bytes; None if the stream ends within."""
        while True:
            answer = skip(self.text, self.at, self.end)
            if answer >= 0:
                found = self.text[self.at : answer].tobytes()
                self.at = answer
                return found
            if answer != MORE:
                self.refuse(at_fault(answer))
            if not self.more():
                return None

    def refuse(self, position: int) -> None:
        """Say which byte is wrong."""
        near = self.text[position : min(position + 20, self.end)].tobytes()
        shown = near.decode("utf-8", "replace").replace("\n", " ")
        raise BadInput(f"{self.name}: not JSON at byte {self.offset(position)}: found {shown!r}")
