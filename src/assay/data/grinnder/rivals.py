"""What grinnder is compared with, on the same cut, the same memory and the same layers.

`Snapshots` stores every gathered input and reads it back for the gradients, as HongTu does. `Mapped` leaves rows and
gradients to the operating system: mapped files, of which at most the same memory stays resident. `InMemory` is what
everybody does while it fits.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from assay.data.disk.arrays import DiskArray
from assay.data.disk.pages import IoStats
from assay.data.grinnder.blocks import CutGraph, rows_in_order
from assay.data.grinnder.host import PartRows
from assay.data.grinnder.layers import Block, Floats, Int64s, Network
from assay.data.grinnder.trainer import Epoch, Progress, Trainer
from assay.sim.byte_cache import ByteCache, Key

EXTENT = 1 << 17  # bytes that a mapping lets go of at once; about what a fault reads ahead


class Snapshots(Trainer):
    """Keeps what was gathered on the way forward. That of the features is written once, for they never change."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._kept = {
            i: PartRows(self.folder / f"snapshot-{i}.npy", self.graph.inputs, self.network.widths[i])
            for i in range(len(self.network.convs) - 1)
        }

    def inputs(self, i: int, block: Block, buffer: Floats) -> Floats:
        """Backward from the snapshot, where there is one."""
        if self.backwards and i in self._kept:
            buffer[:] = self._kept[i].read(block.part)
            return buffer
        rows = super().inputs(i, block, buffer)
        if not self.backwards and i in self._kept and not (i == 0 and self._kept[0].written[block.part]):
            self._kept[i].write(block.part, rows)
        return rows

    @property
    def stats(self) -> IoStats:
        """Snapshots included."""
        return sum((kept.array.stats for kept in self._kept.values()), super().stats)

    def close(self) -> None:
        """Close the snapshots, too."""
        super().close()
        for kept in self._kept.values():
            kept.array.close()


class _Resident:
    """Which extents of mapped files may be in memory: those used last, in so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self.cache = ByteCache(max(nbytes, 2 * EXTENT))
        self.stats = IoStats()

    def use(self, rows: _MappedRows, extents: npt.NDArray[np.int64]) -> None:
        for extent in extents.tolist():
            if self.cache.get((rows, extent)):
                continue
            self.stats.read_bytes += EXTENT
            for key in self.cache.put((rows, extent), EXTENT):
                self._let_go(key)

    def _let_go(self, key: Key) -> None:
        mapped: tuple[_MappedRows, int] = key  # type: ignore[assignment]
        self.stats.write_bytes += mapped[0].drop(mapped[1])

    def forget(self, rows: _MappedRows) -> None:
        for extent in range(rows.extents):
            if (rows, extent) in self.cache:
                self.cache.drop((rows, extent))


class _MappedRows:
    """Rows of a file mapped into memory."""

    def __init__(self, path: Path, n: int, width: int, resident: _Resident) -> None:
        self.width, self.resident, self.path = width, resident, path
        self.extents = max(-(-4 * n * width // EXTENT), 1)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.ftruncate(self._fd, self.extents * EXTENT)
        self._map = mmap.mmap(self._fd, self.extents * EXTENT)
        self.rows: Floats = np.frombuffer(self._map, np.float32, n * width).reshape(n, width)
        self._changed = np.zeros(self.extents, np.bool_)

    def use(self, ids: Int64s | slice, writes: bool = False) -> None:
        """About to touch these rows, in ascending order."""
        size = 4 * self.width
        if isinstance(ids, slice):
            extents = np.arange(ids.start * size // EXTENT, max(ids.stop * size - 1, 0) // EXTENT + 1)
        else:
            extents = np.unique(np.concatenate([ids * size // EXTENT, (ids * size + size - 1) // EXTENT]))
        self.resident.use(self, extents)
        if writes:
            self._changed[extents] = True

    def drop(self, extent: int) -> int:
        """Let an extent leave memory; the bytes that had to be written for it."""
        at, written = extent * EXTENT, 0
        if self._changed[extent]:
            self._map.flush(at, EXTENT)
            self._changed[extent], written = False, EXTENT
        self._map.madvise(mmap.MADV_DONTNEED, at, EXTENT)
        os.posix_fadvise(self._fd, at, EXTENT, os.POSIX_FADV_DONTNEED)
        return written

    def close(self) -> None:
        self.resident.forget(self)
        self.rows = np.empty((0, self.width), np.float32)
        self._map.close()
        os.close(self._fd)
        self.path.unlink()


class _MappedGradients:
    """A layer's gradients in a mapped file."""

    def __init__(self, rows: _MappedRows, graph: CutGraph) -> None:
        self._rows, self.graph = rows, graph
        self.stats = IoStats()  # counted with all other mapped rows

    def add(self, block: Block, rows: Floats) -> None:
        own = block.first + np.arange(block.n)
        for ids, some in ((own, rows[: block.n]), (block.outside.astype(np.int64), rows[block.n :])):
            for at in range(0, len(ids), 512):
                part = ids[at : at + 512]
                self._rows.use(part, writes=True)
                self._rows.rows[part] += some[at : at + 512]

    def take(self, part: int) -> Floats:
        found = slice(int(self.graph.ptr[part]), int(self.graph.ptr[part + 1]))
        out = np.empty((found.stop - found.start, self._rows.width), np.float32)
        for at in range(0, len(out), 512):
            some = slice(found.start + at, min(found.start + at + 512, found.stop))
            self._rows.use(some)
            out[at : at + 512] = self._rows.rows[some]
        return out

    def close(self) -> None:
        self._rows.close()


class Mapped(Trainer):
    """The same passes, with rows and gradients in mapped files and the operating system's paging instead of a plan."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        inner = [4 * self.graph.n * width for width in self.network.widths[1:-1]]
        self._resident = _Resident(self.plan.cache + (max(inner, default=0) if self.plan.gradients else 0))
        self._mapped = [
            _MappedRows(self.folder / f"mapped-{i}", self.graph.n, width, self._resident)
            for i, width in enumerate(self.network.widths[:-1])
        ]
        self.host.put = self._put  # type: ignore[method-assign]

    def load(self, features: DiskArray) -> None:
        """Copy the features into the mapping."""
        at = 0
        for rows in rows_in_order(features, self.graph.order, 512):
            self._set(0, at, rows)
            at += len(rows)

    def _put(self, layer: int, part: int, rows: Floats) -> None:
        for at in range(0, len(rows), 512):
            self._set(layer, int(self.graph.ptr[part]) + at, rows[at : at + 512])

    def _set(self, layer: int, first: int, rows: Floats) -> None:
        where = slice(first, first + len(rows))
        self._mapped[layer].use(where, writes=True)
        self._mapped[layer].rows[where] = rows

    def inputs(self, i: int, block: Block, buffer: Floats) -> Floats:
        """Index the mapping, some rows at a time."""
        ids = np.concatenate([block.first + np.arange(block.n), block.outside.astype(np.int64)])
        for at in range(0, len(ids), 512):
            some = ids[at : at + 512]
            self._mapped[i].use(some)
            buffer[at : at + 512] = self._mapped[i].rows[some]
        return buffer

    def new_gradients(self, i: int) -> _MappedGradients:
        """In a mapped file of zeros."""
        rows = _MappedRows(self.folder / f"blame-{i}", self.graph.n, self.network.widths[i], self._resident)
        return _MappedGradients(rows, self.graph)

    @property
    def stats(self) -> IoStats:
        """Extents that came in and went out; the kernel may have moved less of each."""
        return super().stats + self._resident.stats

    def close(self) -> None:
        """Unmap."""
        super().close()
        for rows in self._mapped:
            rows.close()


class InMemory:
    """The whole graph as one block, all rows at once, differentiated by torch as it is."""

    def __init__(
        self, network: Network, graph: CutGraph, features: DiskArray, labels: Int64s, train: npt.NDArray[np.bool_]
    ) -> None:
        if graph.parts != 1:
            raise ValueError(f"the graph is cut into {graph.parts} parts; one expected")
        self.network, self.block = network, graph.block(0)
        self.x = torch.from_numpy(features.rows(0, len(features)).astype(np.float32))
        self.labels, self.train = torch.from_numpy(labels), torch.from_numpy(train)

    def nearest_kink(self) -> float:
        """How near to zero a number comes before it is rectified, over the root of their mean square.

        There the gradient jumps: sums in another order may be on the other side of it, and both are right.
        """
        near, rows = 1.0, self.x
        with torch.no_grad():
            for conv in self.network.convs[:-1]:
                before = conv(rows, self.block)
                near = min(near, float(before.abs().min() / before.square().mean().sqrt()))
                rows = before.relu_()
        return near

    def epoch(self, progress: Progress = lambda done, total: None) -> Epoch:
        """Forward and backward."""
        began = perf_counter()
        self.network.zero_grad(set_to_none=False)
        rows = self.x
        for i in range(len(self.network.convs)):
            rows = self.network.layer(i, rows, self.block)
        loss = functional.cross_entropy(rows[self.train], self.labels[self.train])
        loss.backward()
        right = (rows.detach().argmax(1) == self.labels)[self.train]
        return Epoch(float(loss.detach()), float(right.float().mean()), None, perf_counter() - began, 0, 0)
