"""A row store: the rows of a two-dimensional array on disk, read in order or by number, never as a whole.

Files are NumPy's own `.npy`, so that `numpy.load(path, mmap_mode="r")` opens what is written here. Ours have a header
of one whole page, and rows begin on a page's boundary; those of others, with shorter headers, are read just the same.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     rows = np.arange(12, dtype=np.float32).reshape(4, 3)
...     write_rows(Path(folder, "rows.npy"), rows)
...     with DiskArray.open(Path(folder, "rows.npy")) as array:
...         array.shape, array.rows(1, 3).tolist(), array.take(np.array([3, 0])).tolist()
((4, 3), [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]], [[9.0, 10.0, 11.0], [0.0, 1.0, 2.0]])
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.disk.pages import PAGE, Bytes, Int64s, IoStats, PagedFile, Ticket, aligned
from assay.sim.compiled import njit

Array = npt.NDArray[Any]


class DiskArray:
    """Rows on disk. `group` rows fill whole pages exactly: writing in such groups needs no page to be read first."""

    def __init__(self, file: PagedFile, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> None:
        self.file, self.shape, self.dtype, self.offset = file, shape, dtype, offset
        self.row_bytes = dtype.itemsize * math.prod(shape[1:])
        self.group = self.group_of(self.row_bytes)

    @staticmethod
    def group_of(row_bytes: int) -> int:
        """How many rows of so many bytes fill whole pages exactly.

        >>> DiskArray.group_of(1024), DiskArray.group_of(12)
        (4, 1024)
        """
        return PAGE // math.gcd(PAGE, max(row_bytes, 1))

    @classmethod
    def open(cls, path: Path, direct: bool = True) -> DiskArray:
        """Open a `.npy` file of one or more dimensions; a ValueError of one line says what is wrong with it."""
        shape, dtype, offset = _header(path)
        file = PagedFile.open(path, direct)
        need = offset + dtype.itemsize * math.prod(shape)
        if file.size < need:
            file.close()
            raise ValueError(f"{path} ends after {file.size} bytes; its header promises {need}: copy it again")
        return cls(file, shape, dtype, offset)

    @classmethod
    def create(cls, path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, direct: bool = True) -> DiskArray:
        """Create a `.npy` file of this shape; what is not written is zero."""
        file = PagedFile.create(path, direct)
        kind = np.dtype(dtype)
        file.write_span(0, _page_header(shape, kind))
        made = cls(file, shape, kind, PAGE)
        file.truncate(PAGE + made.row_bytes * shape[0])
        return made

    def __enter__(self) -> DiskArray:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def stats(self) -> IoStats:
        """What the file was asked."""
        return self.file.stats

    @property
    def nbytes(self) -> int:
        """The bytes of all rows."""
        return self.row_bytes * len(self)

    def rows(self, start: int, stop: int) -> Array:
        """Rows from `start` to before `stop`, in one sequential read."""
        first, count, skip = self._cover(start, stop)
        return self._shaped(self.file.read_span(first, count)[skip:], stop - start)

    def rows_async(self, start: int, stop: int) -> Callable[[], Array]:
        """Begin to read rows; calling what is returned waits for them."""
        first, count, skip = self._cover(start, stop)
        ticket = self.file.read_span_async(first, count)
        return lambda: self._shaped(ticket.wait()[skip:], stop - start)

    def room(self, rows: int) -> int:
        """Bytes into which any so many rows can be read: with the pages that they begin and end in."""
        return (-(-rows * self.row_bytes // PAGE) + 1) * PAGE

    def rows_into(self, start: int, stop: int, room: Bytes) -> Array:
        """Read rows into :func:`aligned` memory of :meth:`room` bytes; they are there until it is used again."""
        first, count, skip = self._cover(start, stop)
        self.file.read_into([(first, room[: count * PAGE])])
        return self._shaped(room[skip:], stop - start)

    def rows_into_async(self, start: int, stop: int, room: Bytes) -> Callable[[], Array]:
        """Begin such a read; calling what is returned waits for the rows."""
        first, count, skip = self._cover(start, stop)
        ticket = self.file.read_into_async(first, room[: count * PAGE])

        def wait() -> Array:
            ticket.wait()
            return self._shaped(room[skip:], stop - start)

        return wait

    def _cover(self, start: int, stop: int) -> tuple[int, int, int]:
        """The pages that hold these rows, (first, count), and where in them the rows begin."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"{self.file.path} has {len(self)} rows; {start} to {stop} asked")
        a, b = self.offset + start * self.row_bytes, self.offset + stop * self.row_bytes
        first = a // PAGE
        return first, max(-(-b // PAGE) - first, 0), a - first * PAGE

    def take(self, ids: Int64s) -> Array:
        """The rows of these numbers, by as many page reads as there are different pages."""
        wanted = np.asarray(ids, np.int64)
        if not wanted.size or not self.row_bytes:
            return np.empty((len(wanted), *self.shape[1:]), self.dtype)
        begin = self.offset + wanted * self.row_bytes
        first, last = begin // PAGE, (begin + self.row_bytes - 1) // PAGE
        span = int((last - first).max()) + 1
        needed = np.unique(np.minimum(first[:, None] + np.arange(span), last[:, None]))
        raw = self.file.read(needed).reshape(-1)
        # Where a row lies in two pages they are neighbours, and so they are in `raw`.
        at = np.searchsorted(needed, first) * PAGE + begin - first * PAGE
        out = np.empty((len(wanted), self.row_bytes), np.uint8)
        _copy_rows(raw, at, out)
        return self._shaped(out.reshape(-1), len(wanted))

    def write(self, start: int, rows: Array) -> None:
        """Write rows from `start` on: a multiple of `group` into whole pages; the array's last rows end anywhere."""
        self.file.write_span(*self._pages(start, rows))

    def write_async(self, start: int, rows: Array) -> Ticket[None]:
        """Begin such a write; `rows` must stay as they are until the ticket was waited for."""
        return self.file.write_spans_async([self._pages(start, rows)])

    def _pages(self, start: int, rows: Array) -> tuple[int, Bytes]:
        """The page on which these rows begin, and their bytes as whole pages: copied only where they are not."""
        stop = start + len(rows)
        if start % self.group or (stop % self.group and stop != len(self)) or self.offset % PAGE:
            raise ValueError(f"rows {start} to {stop} do not fill whole pages; multiples of {self.group} expected")
        if stop > len(self):
            raise IndexError(f"{self.file.path} has {len(self)} rows; {start} to {stop} written")
        first = (self.offset + start * self.row_bytes) // PAGE
        nbytes = len(rows) * self.row_bytes
        raw = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8)
        if nbytes % PAGE == 0 and raw.ctypes.data % PAGE == 0:
            return first, raw
        data = aligned(-(-nbytes // PAGE) * PAGE)
        data[:nbytes] = raw
        data[nbytes:] = 0
        return first, data

    def buffer(self, rows: int) -> Array:
        """Uninitialised memory for so many rows that begins on a page's boundary: written without another copy."""
        return self._shaped(aligned(rows * self.row_bytes), rows)

    def finish(self) -> None:
        """Cut the last page's padding, and return when all is on the disk."""
        self.file.truncate(self.offset + self.nbytes)
        self.file.sync()

    def stream(self, rows: int) -> Iterator[tuple[int, Array]]:
        """Yield (first row, rows) in order; the next part is being read while one is worked on."""
        following: Callable[[], Array] | None = None
        for start in range(0, len(self), rows):
            block = following() if following else self.rows(start, min(start + rows, len(self)))
            after = start + rows
            following = self.rows_async(after, min(after + rows, len(self))) if after < len(self) else None
            yield start, block

    def _shaped(self, raw: Bytes, count: int) -> Array:
        return raw[: count * self.row_bytes].view(self.dtype).reshape(count, *self.shape[1:])


class RowWriter:
    """Appends rows of any number to a :class:`DiskArray` from its beginning, in whole pages.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = RowWriter(DiskArray.create(Path(folder, "a.npy"), (5,), np.int32))
    ...     for part in ([1, 2], [3], [4, 5]):
    ...         writer.append(np.array(part, np.int32))
    ...     writer.close()
    ...     np.load(Path(folder, "a.npy")).tolist()
    [1, 2, 3, 4, 5]
    """

    def __init__(self, array: DiskArray, buffer: int = 1 << 20) -> None:
        self.array = array
        size = array.group * array.row_bytes
        groups = max(min(buffer // 2 // max(size, 1), -(-len(array) // array.group)), 1)
        self._buffers = [array.buffer(groups * array.group) for _ in range(2)]  # one fills, one is written
        self._writing: Ticket[None] | None = None
        self._held, self._at = 0, 0

    def append(self, rows: Array) -> None:
        """Add rows behind those before."""
        taken = 0
        while taken < len(rows):
            filling = self._buffers[0]
            part = min(len(filling) - self._held, len(rows) - taken)
            filling[self._held : self._held + part] = rows[taken : taken + part]
            self._held, taken = self._held + part, taken + part
            if self._held == len(filling):
                self._flush()

    def _flush(self) -> None:
        if self._writing is not None:
            self._writing.wait()
            self._writing = None
        if self._held:
            self._writing = self.array.write_async(self._at, self._buffers[0][: self._held])
            self._buffers.reverse()
            self._at, self._held = self._at + self._held, 0

    def end(self) -> None:
        """Write what is held. All rows must have come; they can be read, and are not yet safe from a crash."""
        self._flush()
        self._flush()  # waits for the last write
        self._buffers.clear()
        if self._at != len(self.array):
            raise ValueError(f"{self.array.file.path} got {self._at} rows of {len(self.array)}")

    def close(self) -> None:
        """Write what is held, see it on the disk, and close the file. All rows must have come."""
        self.end()
        self.array.finish()
        self.array.close()


def write_rows(path: Path, rows: Array) -> None:
    """Write a whole array as a row store.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rows(Path(folder, "a.npy"), np.arange(3))
    ...     np.load(Path(folder, "a.npy")).tolist()
    [0, 1, 2]
    """
    with DiskArray.create(path, rows.shape, rows.dtype) as array:
        array.write(0, rows)
        array.finish()


@njit(cache=True)
def _copy_rows(raw: Bytes, at: Int64s, out: Bytes) -> None:
    for i in range(len(at)):
        out[i] = raw[at[i] : at[i] + out.shape[1]]


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except (ValueError, EOFError) as error:
            raise ValueError(
                f"{path} is no .npy file ({' '.join(str(error).split())}); write it by numpy.save"
            ) from None
        if dtype.hasobject:
            raise ValueError(f"{path} holds Python objects, which are never unpickled; save numbers")
        if fortran and len(shape) > 1:
            raise ValueError(f"{path} lies column by column; save numpy.ascontiguousarray(x)")
        if not shape:
            raise ValueError(f"{path} holds a single number; an array with rows expected")
        return shape, dtype, file.tell()


def _page_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Bytes:
    """NumPy's header, version 1, filled with blanks to a whole page."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        text, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    words = text.getvalue()[10:].rstrip()
    page = aligned(PAGE)
    page[:] = ord(" ")
    page[:10] = np.frombuffer(b"\x93NUMPY\x01\x00" + (PAGE - 10).to_bytes(2, "little"), np.uint8)
    page[10 : 10 + len(words)] = np.frombuffer(words, np.uint8)
    page[-1] = ord("\n")
    return page
