"""Objects as files of a folder, durable when a put returns.

A put writes aside, syncs the file, gives it its name by a link (create-only) or a rename, and syncs the folder that now
holds the name: any earlier, a power cut could leave a name without its bytes or lose the name. What a killed process
left aside lies in `.aside` and never has a name.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from assay.data.interface import (
    AlreadyExists,
    Buffer,
    Meta,
    NotFound,
    OutOfRange,
    Span,
    Store,
    StoreError,
    checked_key,
    nbytes,
)  # fmt: skip
from assay.data.store import direct
from assay.record.errors import BadInput

ASIDE = ".aside"
FORGOTTEN = 24 * 3600.0  # seconds after which what lies aside belongs to nobody
AT_ONCE = 1 << 16  # bytes that are written faster than a thread is found for them
_VECTORS = 512  # buffers to a system call; the limit is 1,024


class DirStore(Store):
    """A folder. `fsync=False` leaves durability to the operating system, and says so in every benchmark.

    >>> import asyncio, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = DirStore(folder)
    ...     _ = asyncio.run(store.put("log/1", b"first", if_absent=True))
    ...     bytes(asyncio.run(store.get("log/1")))
    b'first'
    """

    def __init__(self, root: str | Path, *, fsync: bool = True) -> None:
        self.root, self.fsync = Path(root), fsync
        self._numbers, self._mark = itertools.count(), os.urandom(4).hex()  # hosts that share a folder share pids, too
        self._aside = self.root / ASIDE
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot keep objects in {root}: {error.strerror}; a folder that can be written expected"
            ) from error
        self._sweep()

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Write, sync, name, sync."""
        checked_key(key)
        if nbytes(data) <= AT_ONCE and not self.fsync:
            return self._put(key, data, if_absent)
        return await asyncio.to_thread(self._put, key, data, if_absent)

    def _put(self, key: str, data: Buffer | Sequence[Buffer], if_absent: bool) -> Meta:
        path = self.root / key
        aside = self._aside / f"{os.getpid()}-{self._mark}-{next(self._numbers)}"
        try:
            size = self._write(aside, [data] if isinstance(data, bytes | bytearray | memoryview) else data)
            self._make_folder(path.parent)
            try:
                os.link(aside, path) if if_absent else aside.replace(path)
            except FileExistsError:
                raise AlreadyExists(f"{key} is there already") from None
            if self.fsync:
                _sync_folder(path.parent)
            return Meta(key, size, path.stat().st_mtime)
        except OSError as error:
            raise _told(error, f"cannot write {key}", self.root) from error
        finally:
            aside.unlink(missing_ok=True)

    def _write(self, path: Path, parts: Sequence[Buffer]) -> int:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        if self.fsync and sum(map(len, views)) >= direct.LARGE:
            written = direct.write(path, views)
            if written is not None:
                return written
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            size = 0
            while views:
                written = os.writev(file, views[:_VECTORS])
                size += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if written:
                    views[0] = views[0][written:]
            if self.fsync:
                os.fsync(file)
            return size
        finally:
            os.close(file)

    def _make_folder(self, folder: Path) -> None:
        """Make it, and sync whoever holds the new names."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        if self.fsync:
            _sync_folder(folder.parent)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Read, in a thread where it may take long."""
        if length is not None and length <= AT_ONCE:
            return self._read(key, [(start, length)])[0]
        return (await asyncio.to_thread(self._read, key, [(start, length)]))[0]

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """One file, opened once."""
        return await asyncio.to_thread(self._read, key, spans)

    async def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Straight into the buffer, past the page cache where it is large: such bytes have found their place."""
        await asyncio.to_thread(self._fill, key, start, into)

    def _read(self, key: str, spans: Sequence[tuple[int, int | None]]) -> list[Buffer]:
        file = self._open(key)
        try:
            size = os.fstat(file).st_size
            found: list[Buffer] = []
            for start, length in spans:
                end = size if length is None else start + length
                if not 0 <= start <= end <= size:
                    raise OutOfRange(f"{key} has {size} bytes, not {end}")
                buffer = (
                    direct.aligned(end - start) if end - start >= direct.LARGE else memoryview(bytearray(end - start))
                )
                _pread(file, buffer, start, key)
                found.append(buffer)
            return found
        except OSError as error:
            raise _told(error, f"cannot read {key}", self.root) from error
        finally:
            os.close(file)

    def _fill(self, key: str, start: int, into: memoryview) -> None:
        file = self._open(key)
        try:
            done = direct.read(self.root / key, file, start, into)
            _pread(file, into[done:], start + done, key)
        except OSError as error:
            raise _told(error, f"cannot read {key}", self.root) from error
        finally:
            os.close(file)

    def _open(self, key: str) -> int:
        try:
            return os.open(self.root / checked_key(key), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no {key} in {self.root}") from None

    async def head(self, key: str) -> Meta | None:
        """What the file system says of the file."""
        try:
            found = (self.root / checked_key(key)).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Meta(key, found.st_size, found.st_mtime)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Walk the folders in key order."""
        folder = prefix.rpartition("/")[0]
        for meta in _walk(self.root / folder, f"{folder}/" if folder else "", prefix, start_after):
            yield meta

    async def delete(self, *keys: str) -> None:
        """Unlink, and sync the folders: what was deleted does not come back."""
        await asyncio.to_thread(self._delete, keys)

    def _delete(self, keys: Sequence[str]) -> None:
        folders = set()
        for key in keys:
            path = self.root / checked_key(key)
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                folders.add(path.parent)
        for folder in folders if self.fsync else ():
            _sync_folder(folder)

    def _sweep(self) -> None:
        """Remove what killed processes left aside long ago; a living one needs seconds."""
        for entry in os.scandir(self._aside):
            with suppress(OSError):
                if time.time() - entry.stat().st_mtime > FORGOTTEN:
                    Path(entry.path).unlink()


def _walk(folder: Path, start: str, prefix: str, start_after: str) -> Iterator[Meta]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    # A folder sorts as its keys do: behind "a-b", whose "-" comes before "/".
    named = sorted((start + entry.name + ("/" if entry.is_dir() else ""), entry) for entry in entries)
    for key, entry in named:
        if key.endswith("/"):
            inside = key.startswith(prefix) or prefix.startswith(key)
            if inside and key != f"{ASIDE}/" and not (key < start_after and not start_after.startswith(key)):
                yield from _walk(Path(entry.path), key, prefix, start_after)
        elif key.startswith(prefix) and key > start_after:
            with suppress(FileNotFoundError):  # deleted since
                found = entry.stat()
                yield Meta(key, found.st_size, found.st_mtime)


def _pread(file: int, into: memoryview, start: int, key: str) -> None:
    done = 0
    while done < len(into):
        got = os.preadv(file, [into[done:]], start + done)
        if got == 0:
            raise OutOfRange(f"{key} ends at {start + done}, before {start + len(into)}")
        done += got


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _told(error: OSError, what: str, root: Path) -> StoreError:
    cure = {
        errno.ENOSPC: "; free some space there and run it again: nothing that was committed is lost",
        errno.EDQUOT: "; free some of your quota and run it again: nothing that was committed is lost",
        errno.ENOTDIR: "; one key is the folder of another",
        errno.EISDIR: "; one key is the folder of another",
    }.get(error.errno or 0, "")
    return StoreError(f"{what} in {root}: {error.strerror}{cure}")
