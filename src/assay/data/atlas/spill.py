"""The cold tier: evicted partial sums, sorted by range of nodes in memory, written in long runs, added up by range.

A buffer of records is dealt into ranges when it is full and written in one piece, while the next one fills. A range's
turn comes at the end, with as many nodes as fit into memory: its piece of every buffer is read, many at once. Nothing
is ever read to be changed.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from assay.data.atlas.layers import Floats, Int32s
from assay.data.atlas.tiers import Int64s
from assay.data.disk.pages import PAGE, IoStats, PagedFile, Ticket, aligned
from assay.sim.compiled import njit


class Spill:
    """A log of (node, accumulator) records for ranges of `rows` nodes, with about `memory` bytes of buffers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spill = Spill(Path(folder, "log"), n=10, rows=4, width=2, memory=1 << 16)
    ...     spill.add(np.array([9, 1]), np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1], np.int32))
    ...     [part[1:].tolist() for k in range(3) for records in spill.read(k) for part in records], spill.records
    ([[3.0, 4.0], [1.0, 2.0]], 2)
    """

    def __init__(self, path: Path, n: int, rows: int, width: int, memory: int) -> None:
        self.path, self.rows, self.width, self.memory = path, rows, width, memory
        self.ranges = -(-n // rows)
        self._record = 4 * (width + 1)
        per = max(memory // 2 // self._record, 1)
        self._filling = np.empty((per, width + 1), np.float32)
        self._pages = aligned(-(-per * self._record // PAGE) * PAGE)
        self._held = 0
        self._cuts: list[Int64s] = []  # of every buffer written: where each range begins, in records
        self._at: list[int] = []  # and the page it was written to
        self._file: PagedFile | None = None
        self._writing: Ticket[None] | None = None
        self.records = 0

    @property
    def stats(self) -> IoStats:
        """What the log's file was asked."""
        return self._file.stats if self._file else IoStats()

    def add(self, nodes: Int64s, acc: Floats, slots: Int32s) -> None:
        """Append the accumulators in these slots, of these nodes."""
        at = 0
        while at < len(nodes):
            part = min(len(self._filling) - self._held, len(nodes) - at)
            _copy(self._filling, self._filling.view(np.int32), self._held, nodes[at : at + part], acc, slots[at:])
            self._held, at = self._held + part, at + part
            if self._held == len(self._filling):
                self._flush()
        self.records += len(nodes)

    def _flush(self) -> None:
        """Deal the buffer into ranges and begin to write it."""
        if self._writing is not None:
            self._writing.wait()
        into = self._pages[: self._held * self._record].view(np.float32).reshape(self._held, self.width + 1)
        cuts = np.zeros(self.ranges + 1, np.int64)
        _deal(self._filling, self._filling.view(np.int32), self._held, self.rows, cuts, into)
        if self._file is None:
            self._file = PagedFile.create(self.path)
        pages = -(-self._held * self._record // PAGE)
        first = self._at[-1] + -(-int(self._cuts[-1][-1]) * self._record // PAGE) if self._at else 0
        self._writing = self._file.write_span_async(first, self._pages[: pages * PAGE])
        self._at.append(first)
        self._cuts.append(cuts)
        self._held = 0

    def end(self) -> None:
        """Write what is held; no more records come."""
        if self._held and self._at:
            self._flush()
        if self._writing is not None:
            self._writing.wait()
            self._filling = np.empty((0, self.width + 1), np.float32)
            self._pages = aligned(0)

    def read(self, k: int) -> Iterator[Floats]:
        """Yield the records of range k, some at a time."""
        names = self._filling.view(np.int32)[: self._held, 0]
        if len(kept := np.flatnonzero(names // self.rows == k)):
            yield self._filling[kept]
        if self._file is None:
            return
        batches = list(self._batches(k))
        following = self._file.read_spans_async([span[:2] for span in batches[0]]) if batches else None
        for turn, batch in enumerate(batches):
            assert following is not None
            raw = following.wait()
            if turn + 1 < len(batches):
                following = self._file.read_spans_async([span[:2] for span in batches[turn + 1]])
            at = 0
            for _, pages, skip, count in batch:
                part = raw[at * PAGE + skip : at * PAGE + skip + count * self._record]
                yield part.view(np.float32).reshape(count, self.width + 1)
                at += pages

    def _batches(self, k: int) -> Iterator[list[tuple[int, int, int, int]]]:
        """Range k's (first page, pages, bytes to skip, records) of every buffer, as many together as memory holds."""
        batch: list[tuple[int, int, int, int]] = []
        total = 0
        for page, cuts in zip(self._at, self._cuts, strict=True):
            a, b = int(cuts[k]) * self._record, int(cuts[k + 1]) * self._record
            if a == b:
                continue
            pages = -(-b // PAGE) - a // PAGE
            if batch and (total + pages) * PAGE > self.memory // 2:  # two batches at a time
                yield batch
                batch, total = [], 0
            batch.append((page + a // PAGE, pages, a % PAGE, (b - a) // self._record))
            total += pages
        if batch:
            yield batch

    def close(self) -> None:
        """Drop the log."""
        if self._file is not None:
            self._file.close()
            self.path.unlink(missing_ok=True)


@njit(cache=True)
def _copy(records, names, held, nodes, acc, slots):
    for i in range(len(nodes)):
        names[held + i, 0] = nodes[i]
        for j in range(acc.shape[1]):
            records[held + i, j + 1] = acc[slots[i], j]


@njit(cache=True)
def _deal(records, names, count, rows, cuts, into):
    """A counting sort by range; `cuts` tells where each begins."""
    for i in range(count):
        cuts[names[i, 0] // rows + 1] += 1
    for k in range(1, len(cuts)):
        cuts[k] += cuts[k - 1]
    at = cuts[:-1].copy()
    for i in range(count):
        k = names[i, 0] // rows
        for j in range(records.shape[1]):
            into[at[k], j] = records[i, j]
        at[k] += 1
