"""Objects wherever fsspec reaches: `sftp://`, `hdfs://`, `webdav://`, …

A create-only put is as atomic as that file system's own exclusive create, and an interrupted one may leave part of an
object under its name; readers of this room check digests and notice. Directories and S3 have better stores here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from assay.data.interface import AlreadyExists, Buffer, Meta, NotFound, OutOfRange, Store, StoreError, checked_key

T = TypeVar("T")


class FsspecStore(Store):
    """A folder of any file system that fsspec knows.

    >>> store = FsspecStore("memory://demo")
    >>> asyncio.run(store.put("a", b"bytes")).size
    5
    """

    def __init__(self, url: str, **options: Any) -> None:
        import fsspec

        self.url = url
        self._files, root = fsspec.core.url_to_fs(url, **options)
        self._root = root.rstrip("/") + "/"

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Write it in one call."""
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        path = self._root + checked_key(key)

        def write() -> Meta:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, whole, mode="create" if if_absent else "overwrite")
            return self._meta(key, self._files.info(path))

        try:
            return await self._away(write, key)
        except FileExistsError:
            raise AlreadyExists(f"{key} is there already") from None

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Read the span."""
        path = self._root + checked_key(key)

        def read() -> bytes:
            size = self._files.info(path)["size"]
            end = size if length is None else start + length
            if not 0 <= start <= end <= size:
                raise OutOfRange(f"{key} has {size} bytes, not {end}")
            return bytes(self._files.cat_file(path, start=start, end=end)) if end > start else b""

        return await self._away(read, key)

    async def head(self, key: str) -> Meta | None:
        """What the file system says."""
        path = self._root + checked_key(key)
        try:
            found = await self._away(lambda: self._files.info(path), key)
        except NotFound:
            return None
        return self._meta(key, found) if found["type"] == "file" else None

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Find all below the folder of the prefix, then sort."""
        folder = self._root + prefix.rpartition("/")[0]

        def find() -> dict[str, Any]:
            self._files.invalidate_cache()
            return dict(self._files.find(folder, detail=True))

        found = {path.removeprefix(self._root): info for path, info in (await self._away(find, prefix)).items()}
        for key in sorted(found):
            if key.startswith(prefix) and key > start_after:
                yield self._meta(key, found[key])

    async def delete(self, *keys: str) -> None:
        """One by one."""
        for key in keys:
            path = self._root + checked_key(key)
            try:
                await self._away(partial(self._files.rm_file, path), key)
            except NotFound:
                continue

    async def _away(self, call: Callable[[], T], key: str) -> T:
        try:
            return await asyncio.to_thread(call)
        except (StoreError, FileExistsError):
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no {key} in {self.url}") from None
        except Exception as error:
            raise StoreError(f"{self.url} refused {key}: {' '.join(str(error).split())[:300]}") from error

    def _meta(self, key: str, info: dict[str, Any]) -> Meta:
        when = info.get("mtime", info.get("LastModified", info.get("created", 0.0)))
        return Meta(key, int(info["size"]), when.timestamp() if hasattr(when, "timestamp") else float(when))
