"""A directed graph on disk in compressed rows, its edges streamed; built from any edge blocks in bounded memory.

A folder of row stores: `indptr.npy` (where each node's targets begin), `indices.npy` (the targets, ascending, repeats
kept), `in_degree.npy`, and `loops.npy` (self-loops a node) where there are any. Nothing here holds all edges at once.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     made = DiskGraph.build(Path(folder, "g"), [np.array([(0, 2), (2, 1), (0, 1)])])
...     made.n, made.m, [targets.tolist() for _, targets in made.stream(2)], made.in_degree().tolist()
(3, 3, [[1, 2], [1]], [0, 2, 1])
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.edges import MOST, Edges
from assay.data.disk.pages import Int64s

Int32s = npt.NDArray[np.int32]


class DiskGraph:
    """Out-edges of n nodes. Open a folder that :meth:`build` made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "indptr.npy").is_file():
            raise ValueError(f"{folder} holds no graph; DiskGraph.build makes one from edges")
        self.indptr = DiskArray.open(folder / "indptr.npy")
        self.indices = DiskArray.open(folder / "indices.npy")
        self.n, self.m = len(self.indptr) - 1, len(self.indices)

    def close(self) -> None:
        """Close its files."""
        self.indptr.close()
        self.indices.close()

    def in_degree(self) -> Int32s:
        """How many edges end at each node, self-loops included: four bytes a node."""
        return self._whole("in_degree.npy")

    def loops(self) -> Int32s | None:
        """How many self-loops each node has; None where no node has any."""
        return self._whole("loops.npy") if (self.folder / "loops.npy").is_file() else None

    def _whole(self, name: str) -> Int32s:
        with DiskArray.open(self.folder / name) as array:
            return array.rows(0, len(array))

    def stream(self, edges: int) -> Iterator[tuple[Int64s, Int32s]]:
        """Yield (sources, targets) of up to so many edges at a time, in the order of sources."""
        for start in range(0, self.n, 1 << 16):
            bounds = self.indptr.rows(start, min(start + (1 << 16), self.n) + 1)
            for e0 in range(int(bounds[0]), int(bounds[-1]), edges):
                e1 = min(e0 + edges, int(bounds[-1]))
                first, last = np.searchsorted(bounds, e0, side="right") - 1, np.searchsorted(bounds, e1)
                counts = np.diff(np.clip(bounds[first : last + 1], e0, e1))
                yield np.repeat(np.arange(start + first, start + last), counts), self.indices.rows(e0, e1)

    def reversed(self, folder: Path, memory: int = 1 << 28) -> DiskGraph:
        """The graph with every edge turned round: who is gathered from, by target."""
        turned = (np.stack([t.astype(np.int64), s], axis=1) for s, t in self.stream(1 << 18))
        return DiskGraph.build(folder, turned, self.n, memory)

    @classmethod
    def build(cls, folder: Path, blocks: Iterable[Edges], n: int | None = None, memory: int = 1 << 28) -> DiskGraph:
        """Sort edges into a folder with about `memory` bytes beside twelve a node; `n` defaults to the largest + 1.

        Edges are spooled once, dealt into ranges of sources that fit into memory, and each range is sorted by itself.
        """
        work = folder.with_name(folder.name + ".part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            degrees = _spool(work / "spool", blocks, n)
            _sort(work, degrees, memory)
            for name in ("spool", "dealt"):
                (work / name).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)  # whole or not at all
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        return cls(folder)


def _spool(path: Path, blocks: Iterable[Edges], n: int | None) -> tuple[Int32s, Int32s, Int32s]:
    """Write pairs of int32 as they come; out-degrees, in-degrees and loops of every node."""
    counts = np.zeros((3, n or 1024), np.int32)
    top = 0
    with path.open("wb") as file:
        for block in blocks:
            if not len(block):
                continue
            least, most = int(block.min()), int(block.max())
            if least < 0 or most >= (MOST if n is None else n):
                bound = "2**31 - 1" if n is None else f"{n}, the number of nodes"
                raise ValueError(f"an edge joins nodes {least} and {most}; 0 to below {bound}, expected")
            top = max(top, most + 1)
            if top > counts.shape[1]:
                counts = np.pad(counts, ((0, 0), (0, max(top, 2 * counts.shape[1]) - counts.shape[1])))
            sources, targets = block[:, 0], block[:, 1]
            for row, nodes in enumerate((sources, targets, sources[sources == targets])):
                counts[row, :top] += np.bincount(nodes, minlength=top).astype(np.int32)
            file.write(block.astype(np.int32).tobytes())
    size = top if n is None else n
    return counts[0, :size], counts[1, :size], counts[2, :size]


def _sort(work: Path, degrees: tuple[Int32s, Int32s, Int32s], memory: int) -> None:
    out, into, loops = degrees
    n = len(out)
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(out, out=indptr[1:])
    write_rows(work / "indptr.npy", indptr)
    write_rows(work / "in_degree.npy", into)
    if loops.any():
        write_rows(work / "loops.npy", loops)
    most = max(memory // 40, 1 << 16)  # edges sorted at once: pairs, keys and their order
    ranges = np.unique(np.searchsorted(indptr, np.arange(0, int(indptr[-1]) + most, most), side="left").clip(0, n))
    ranges = np.union1d(ranges, [0, n])
    writer = RowWriter(DiskArray.create(work / "indices.npy", (int(indptr[-1]),), np.int32))
    if len(ranges) <= 2:
        writer.append(_sorted(np.fromfile(work / "spool", np.int32).reshape(-1, 2), n))
    else:
        _deal(work, indptr, ranges)
        with (work / "dealt").open("rb") as file:
            for a, b in zip(ranges[:-1].tolist(), ranges[1:].tolist(), strict=True):
                pairs = np.fromfile(file, np.int32, 2 * int(indptr[b] - indptr[a])).reshape(-1, 2)
                writer.append(_sorted(pairs, n))
    writer.close()


def _sorted(pairs: Int32s, n: int) -> Int32s:
    """The targets of these edges, by source and then by target."""
    keys = pairs[:, 0].astype(np.int64) * max(n, 1) + pairs[:, 1]
    keys.sort()
    return (keys % max(n, 1)).astype(np.int32)


def _deal(work: Path, indptr: Int64s, ranges: Int64s) -> None:
    """Copy the spool into one file in which every range of sources has its place."""
    places = indptr[ranges[:-1]] * 8
    with (work / "spool").open("rb") as spool, (work / "dealt").open("wb") as dealt:
        while True:
            pairs = np.fromfile(spool, np.int32, 1 << 19).reshape(-1, 2)
            if not len(pairs):
                return
            which = np.searchsorted(ranges, pairs[:, 0], side="right") - 1
            order = np.argsort(which, kind="stable")
            cuts = np.searchsorted(which[order], np.arange(len(places) + 1))
            for k in np.unique(which).tolist():
                _place(dealt, int(places[k]), pairs[order[cuts[k] : cuts[k + 1]]])
                places[k] += 8 * int(cuts[k + 1] - cuts[k])


def _place(file: IO[bytes], at: int, pairs: Int32s) -> None:
    file.seek(at)
    file.write(pairs.tobytes())
