"""Frames of whole numbers read bit by bit, codes by a heap, and rings whose ranks are threads: slow and plain."""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.training.ncclz.links import Link, Port


def code_bits(counts: Sequence[int]) -> int:
    """Bits of the best prefix code, of any length: merge the two rarest until one is left."""
    heap = sorted(count for count in counts if count)
    if len(heap) == 1:
        return heap[0]
    total = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


def read(frame: bytes) -> list[int]:
    """The symbols of a frame, as its layout is written down."""
    coder, count = frame[0], int.from_bytes(frame[4:8], "little")
    if coder == 0:
        return [_signed(frame, 8 + 4 * i) for i in range(count)]
    return _packed(frame, count) if coder == 1 else _huffman(frame, count)


def _signed(frame: bytes, at: int) -> int:
    return int.from_bytes(frame[at : at + 4], "little", signed=True)


def _packed(frame: bytes, count: int) -> list[int]:
    blocks = -(-count // 256)
    lows = 8 + blocks + -(8 + blocks) % 4
    at, out = lows + 4 * blocks, []
    for b in range(blocks):
        width, low = frame[8 + b], _signed(frame, lows + 4 * b)
        for k in range(256):
            row, lane = divmod(k, 8)
            value = 0
            for bit in range(width):  # a lane is every eighth word
                word, place = divmod(row * width + bit, 32)
                start = at + 4 * (8 * word + lane)
                value |= (int.from_bytes(frame[start : start + 4], "little") >> place & 1) << bit
            out.append(low + value)
        at += 32 * width
    return out[:count]


def _huffman(frame: bytes, count: int) -> list[int]:
    base, size, escaped, *ends = (_signed(frame, 8 + 4 * k) for k in range(7))
    lengths = [frame[44 + k // 2] >> 4 * (k % 2) & 15 for k in range(size + 1)]
    at = 44 + size // 2 + 1
    at += -at % 4
    book, code, last = {}, 0, 0
    for length, symbol in sorted((length, k) for k, length in enumerate(lengths) if length):
        code <<= length - last
        book[length, code] = symbol
        code, last = code + 1, length
    rest = [_signed(frame, ends[3] + 4 * k) for k in range(escaped)]
    out: list[int] = []
    for s in range(4):
        part = -(-count // 4)
        bits = int.from_bytes(frame[at : ends[s]], "little")
        for _ in range(min((s + 1) * part, count) - min(s * part, count)):
            length, code = 0, 0
            while (length, code) not in book:
                length, code, bits = length + 1, code << 1 | bits & 1, bits >> 1
            symbol = book[length, code]
            out.append(base + symbol if symbol < size else rest.pop(0))
        at = ends[s]
    return out


class Threaded(Port):
    """A place in a ring of threads; messages wait in queues, and time stands still."""

    def __init__(self, index: int, rooms: list[queue.Queue[Any]], on: Link) -> None:
        self.link, self.size, self.index, self._rooms = on, len(rooms), index, rooms
        self.start()

    def send(self, message: Any) -> None:
        self._rooms[(self.index + 1) % self.size].put(np.array(message))
        self.sent += len(message)

    def recv(self) -> Any:
        return self._rooms[self.index].get(timeout=120)

    def flush(self) -> None:
        pass


def ring(parts: Sequence[Any], job: Callable[[Port, Any], Any], on: Link) -> list[Any]:
    """What `job(port, part)` gives on every rank, each a thread."""
    rooms: list[queue.Queue[Any]] = [queue.Queue() for _ in parts]
    found: dict[int, Any] = {}

    def work(index: int) -> None:
        try:
            found[index] = job(Threaded(index, rooms, on), parts[index])
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for index in range(len(parts)):
        if isinstance(found[index], Exception):
            raise found[index]
    return [found[k] for k in range(len(parts))]
