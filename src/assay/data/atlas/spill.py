"""The cold tier: evicted partial sums in a log, by range of nodes within each eviction, added up range by range.

An eviction is copied in the order of nodes into one of two buffers and written in one piece while the other one fills.
A range's turn comes at the end, with as many nodes as fit into memory: its piece of every eviction is read, many at
once. Nothing is ever read to be changed. Where the pieces lie is on disk, too: it grows with what is evicted.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from assay.data.atlas.layers import Floats, Int32s
from assay.data.atlas.tiers import Int64s, merge
from assay.data.disk.pages import PAGE, Bytes, IoStats, PagedFile, Ticket, aligned
from assay.sim.compiled import njit

INDEX = 1 << 16  # bytes of the index that are read at a time


class Records:
    """Some spilled parts, as they lie in what was read: `counts` records each from `places` on, in floats."""

    def __init__(self, raw: Bytes, places: Int64s, counts: Int64s) -> None:
        self.raw, self.places, self.counts = raw, places, counts

    def fold(self, base: int, acc: Floats, reduce: int, columns: int, heads: int) -> None:
        """Add them to the accumulators of the nodes from `base` on."""
        _fold(
            self.raw.view(np.float32), self.raw.view(np.int32), self.places, self.counts, base, acc, reduce, columns,
            heads,
        )  # fmt: skip


class Spill:
    """A log of (node, accumulator) records for ranges of `rows` nodes, with two buffers of `records` each.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spill = Spill(Path(folder, "log"), n=10, rows=4, width=2, records=8)
    ...     spill.add(np.array([1, 9]), np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1], np.int32))
    ...     spill.end()
    ...     acc = np.zeros((4, 2), np.float32)
    ...     for part in spill.read(2, 1 << 20):
    ...         part.fold(8, acc, 0, 2, 0)
    ...     spill.close()
    ...     acc.tolist(), spill.records
    ([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], 2)
    """

    def __init__(self, path: Path, n: int, rows: int, width: int, records: int) -> None:
        self.path, self.rows, self.width = path, rows, width
        self.ranges = -(-n // rows)
        self._record, self._most = 4 * (width + 1), max(records, 1)
        self._buffers: list[Bytes] = []  # made when the first record comes: most runs that fit have none
        self._file: PagedFile | None = None
        self._index = path.with_name(path.name + ".index")
        self._writing: Ticket[None] | None = None
        self._end = 0  # the page behind the last one written
        self.records = 0

    @property
    def stats(self) -> IoStats:
        """What the log's file was asked."""
        return self._file.stats if self._file else IoStats()

    def add(self, nodes: Int64s, acc: Floats, slots: Int32s) -> None:
        """Append the accumulators in these slots, of these nodes, which ascend."""
        if not len(nodes):
            return
        if self._file is None:
            self._file = PagedFile.create(self.path)
            self._indexing = self._index.open("w+b")
            self._buffers = [aligned(-(-self._most * self._record // PAGE) * PAGE) for _ in range(2)]
        for at in range(0, len(nodes), self._most):
            self._append(nodes[at : at + self._most], acc, slots[at : at + self._most])
        self.records += len(nodes)

    def _append(self, nodes: Int64s, acc: Floats, slots: Int32s) -> None:
        """Copy one buffer's, and begin to write it."""
        assert self._file is not None
        pages = self._buffers[0][: -(-len(nodes) * self._record // PAGE) * PAGE]
        into = pages[: len(nodes) * self._record].view(np.float32).reshape(len(nodes), self.width + 1)
        _copy(into, into.view(np.int32), nodes, acc, slots)
        cuts = np.searchsorted(nodes, np.arange(self.ranges + 1) * self.rows)
        self._indexing.write(np.concatenate([[self._end], cuts]).astype(np.int64).tobytes())
        if self._writing is not None:
            self._writing.wait()
        self._writing = self._file.write_spans_async([(self._end, pages)])
        self._end += len(pages) // PAGE
        self._buffers.reverse()

    def end(self) -> None:
        """No more records come."""
        if self._writing is not None:
            self._writing.wait()
        self._buffers.clear()

    def read(self, k: int, memory: int) -> Iterator[Records]:
        """Yield the records of range k, about so many bytes at a time; the next ones are being read meanwhile."""
        coming: Callable[[], Records] | None = None
        for spans, places, counts in self._batches(k, memory):
            after = self._begin(spans, places, counts)
            if coming is not None:
                yield coming()
            coming = after
        if coming is not None:
            yield coming()

    def _batches(self, k: int, memory: int) -> Iterator[tuple[list[tuple[int, int]], list[int], list[int]]]:
        """What is read at once of range k: (page, pages) in the log, and where in that records lie, how many."""
        spans: list[tuple[int, int]] = []
        places: list[int] = []
        counts: list[int] = []
        total = 0
        for page, a, b in self._pieces(k):
            first, last = a * self._record // PAGE, -(-b * self._record // PAGE)
            if spans and (total + last - first) * PAGE > memory:
                yield spans, places, counts
                spans, places, counts, total = [], [], [], 0
            spans.append((page + first, last - first))
            places.append((total * PAGE + a * self._record - first * PAGE) // 4)
            counts.append(b - a)
            total += last - first
        if spans:
            yield spans, places, counts

    def _begin(self, spans: list[tuple[int, int]], places: list[int], counts: list[int]) -> Callable[[], Records]:
        assert self._file is not None
        reading = self._file.read_spans_async(spans)
        return lambda: Records(reading.wait(), np.array(places), np.array(counts))

    def _pieces(self, k: int) -> Iterator[tuple[int, int, int]]:
        """Range k's (page of the buffer, first record, behind the last) of every buffer that has any."""
        if self._file is None:
            return
        self._indexing.seek(0)
        entries = max(INDEX // (8 * (self.ranges + 2)), 1) * (self.ranges + 2)
        while len(some := np.fromfile(self._indexing, np.int64, entries)):
            table = some.reshape(-1, self.ranges + 2)
            yield from table[table[:, k + 1] < table[:, k + 2]][:, [0, k + 1, k + 2]].tolist()

    def close(self) -> None:
        """Drop the log."""
        if self._file is not None:
            self._file.close()
            self._indexing.close()
            self.path.unlink(missing_ok=True)
            self._index.unlink(missing_ok=True)


@njit(cache=True, nogil=True)
def _copy(records, names, nodes, acc, slots):
    for i in range(len(nodes)):
        names[i, 0] = nodes[i]
        of = np.uintp(slots[i])
        for j in range(acc.shape[1]):
            records[i, j + 1] = acc[of, j]


@njit(cache=True, nogil=True)
def _fold(parts, names, places, counts, base, acc, reduce, columns, heads):
    width = acc.shape[1]
    for piece in range(len(places)):
        at = places[piece]
        for _ in range(counts[piece]):
            merge(acc, names[at] - base, parts[at + 1 : at + 1 + width], reduce, columns, heads)
            at += width + 1
