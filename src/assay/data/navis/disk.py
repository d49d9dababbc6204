"""Where an index's pages lie: in local files past the page cache, or, for the crash lab, as objects of a store."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from assay.data.disk.pages import PAGE, Int64s, IoStats, PagedFile
from assay.data.interface import NotFound, Store, StoreError, Unknown
from assay.data.navis.seek import WORDS, Array

ATTEMPTS = 8  # how often an unanswered write is tried


class Disk(Protocol):
    """Files of pages by name. A name is written by one process only; what is written is there after `sync`."""

    direct: bool

    async def open(self, names: Sequence[str]) -> None:
        """Be ready to read these."""

    def descriptor(self, name: str) -> int:
        """The number under which the system knows a file."""

    def read(self, name: str, numbers: Int64s) -> Array:
        """Pages, (n, 1024) words."""

    async def write(self, name: str, numbers: Int64s, pages: Array) -> None:
        """Put pages where they belong; the file begins to exist with its first."""

    async def sync(self, name: str) -> None:
        """Return when all that was written is durable."""

    async def names(self) -> list[str]:
        """All files there are."""

    async def delete(self, names: Sequence[str]) -> None:
        """Let files go."""

    def close(self) -> None:
        """Let go of all descriptors."""


class LocalDisk:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.direct = folder, True
        self._files: dict[str, PagedFile] = {}

    @property
    def stats(self) -> IoStats:
        """What went through here; walks count their reads themselves."""
        return sum((file.stats for file in self._files.values()), IoStats())

    async def open(self, names: Sequence[str]) -> None:
        """Those that are missing are told by name."""
        for name in names:
            if name not in self._files:
                try:
                    self._add(name, os.O_RDONLY)
                except FileNotFoundError:
                    raise NotFound(f"{self.folder / name} is gone: restore it from a copy, or build again") from None

    def _add(self, name: str, flags: int) -> PagedFile:
        file = self._files[name] = PagedFile(self.folder / name, flags)
        self.direct &= file.direct
        return file

    def descriptor(self, name: str) -> int:
        """Of the open file."""
        return self._files[name].fileno()

    def read(self, name: str, numbers: Int64s) -> Array:
        """Sorted and merged, several at a time."""
        return self._files[name].read(numbers).view(np.int32)

    async def write(self, name: str, numbers: Int64s, pages: Array) -> None:
        """Neighbours go in one request."""
        try:
            if name not in self._files:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._add(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._files[name].write(numbers, np.ascontiguousarray(pages).view(np.uint8).reshape(-1, PAGE))
        except OSError as error:
            raise _told(error, self.folder / name) from error

    async def sync(self, name: str) -> None:
        """The file, and the folder that holds its name."""
        try:
            self._files[name].sync()
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _told(error, self.folder / name) from error

    async def names(self) -> list[str]:
        """By the folder."""
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []

    async def delete(self, names: Sequence[str]) -> None:
        """Close, then unlink."""
        for name in names:
            if name in self._files:
                self._files.pop(name).close()
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def close(self) -> None:
        """All of them."""
        while self._files:
            self._files.popitem()[1].close()


def _told(error: OSError, path: Path) -> StoreError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    cure = "; free some space there and run it again: nothing that was committed is lost" if full else ""
    return StoreError(f"{path} cannot be written: {error.strerror}{cure}")


class StoreDisk:
    """Every page an object: each write is a change that the crash lab can fail. Walks read a copy in memory."""

    def __init__(self, store: Store) -> None:
        self.store, self.direct = store, False
        self._copies: dict[str, int] = {}
        self._own: set[str] = set()
        weakref.finalize(self, _close, self._copies)  # who dies in the crash lab closes nothing

    async def open(self, names: Sequence[str]) -> None:
        """Copy the pages there are; others may have written since the last time."""
        for name in set(names) - self._own:
            copy = os.memfd_create(name)
            if name in self._copies:
                os.close(self._copies[name])
            self._copies[name] = copy
            async for meta in self.store.list(f"pages/{name}/"):
                number = int(meta.key.rpartition("/")[2])
                with suppress(NotFound):
                    os.pwrite(copy, await self.store.get(meta.key), number * PAGE)

    def descriptor(self, name: str) -> int:
        """Of the copy."""
        return self._copies[name]

    def read(self, name: str, numbers: Int64s) -> Array:
        """From the copy."""
        pages = [os.pread(self._copies[name], PAGE, number * PAGE) for number in numbers.tolist()]
        return np.frombuffer(b"".join(pages), np.int32).reshape(-1, WORDS)

    async def write(self, name: str, numbers: Int64s, pages: Array) -> None:
        """A put each; one whose answer is lost is put again, the same bytes under the same name."""
        if name not in self._own:
            self._copies[name] = os.memfd_create(name)
            self._own.add(name)
        for number, page in zip(numbers.tolist(), pages, strict=True):
            for attempt in range(ATTEMPTS):
                try:
                    await self.store.put(f"pages/{name}/{number:08d}", page.tobytes())
                    break
                except Unknown:
                    if attempt == ATTEMPTS - 1:
                        raise
            os.pwrite(self._copies[name], page.tobytes(), number * PAGE)

    async def sync(self, name: str) -> None:
        """A put is durable when it returns."""

    async def names(self) -> list[str]:
        """The second part of the keys."""
        return sorted({meta.key.split("/")[1] async for meta in self.store.list("pages/")})

    async def delete(self, names: Sequence[str]) -> None:
        """All pages of these."""
        for name in names:
            if name in self._copies:
                os.close(self._copies.pop(name))
            keys = [meta.key async for meta in self.store.list(f"pages/{name}/")]
            with suppress(Unknown):  # what stays is deleted the next time
                await self.store.delete(*keys)

    def close(self) -> None:
        """The copies."""
        _close(self._copies)


def _close(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
