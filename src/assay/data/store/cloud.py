"""Objects in S3 and what speaks its language, over obstore."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Literal

from assay.data.interface import (
    AlreadyExists,
    Buffer,
    Meta,
    NotFound,
    OutOfRange,
    Span,
    Store,
    StoreError,
    Unknown,
    checked_key,
    nbytes,
)  # fmt: skip
from assay.record.errors import AssayError, BadInput


class S3Store(Store):
    """A bucket, or a folder of one: `s3://bucket/folder`, also `gs://` and `az://`.

    `config` is handed to obstore: `endpoint`, `region`, `access_key_id`, …; the rest comes from the
    environment. A request that gets no
    answer is not retried blindly where that could matter: a create-only put that may have happened is
    :class:`~assay.data.interface.Unknown`.
    """

    def __init__(self, url: str, **config: Any) -> None:
        from obstore.store import from_url

        options: Any = {"timeout": timedelta(seconds=30), "allow_http": True}
        # Changes get one attempt: a second create-only put would meet the first and call it somebody else's.
        retries: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}
        self.url = url
        try:
            self._changing = from_url(url, client_options=options, retry_config=retries, **config)
            self._store = from_url(url, client_options=options, **config)
        except Exception as error:
            raise BadInput(f"'{url}' is no address of a store: {_said(error)}; s3://bucket/folder expected") from error

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """One request; S3 answers when the object is durable."""
        import obstore

        whole = data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        mode: Literal["create", "overwrite"] = "create" if if_absent else "overwrite"
        try:
            await obstore.put_async(self._changing, checked_key(key), whole, mode=mode, use_multipart=False)
        except Exception as error:
            raise self._told(error, key, changing=True) from error
        return Meta(key, nbytes(whole), time.time())  # S3 answers without its own time, and asking costs a request

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """All, or one range request."""
        import obstore

        try:
            if start == 0 and length is None:
                return memoryview(await (await obstore.get_async(self._store, checked_key(key))).bytes_async())
            if length is None or length == 0:
                size = await self._size(key)
                end = size if length is None else start
                if not 0 <= start <= end <= size:
                    raise OutOfRange(f"{key} has {size} bytes, not {end}")
                length = end - start
            if length == 0:
                return b""
            found = await obstore.get_range_async(self._store, checked_key(key), start=start, length=length)
        except Exception as error:
            raise self._told(error, key) from error
        return self._whole(key, found, start, length)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Neighbours are fetched in one request, as obstore joins them."""
        import obstore

        if any(length == 0 for _, length in spans):
            return [await self.get(key, start, length) for start, length in spans]
        starts, lengths = [start for start, _ in spans], [length for _, length in spans]
        try:
            found = await obstore.get_ranges_async(self._store, checked_key(key), starts=starts, lengths=lengths)
        except Exception as error:
            raise self._told(error, key) from error
        return [self._whole(key, part, *span) for part, span in zip(found, spans, strict=True)]

    async def head(self, key: str) -> Meta | None:
        """One request without the bytes."""
        import obstore

        try:
            return _meta(await obstore.head_async(self._store, checked_key(key)))
        except Exception as error:
            told = self._told(error, key)
            if isinstance(told, NotFound):
                return None
            raise told from error

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """A thousand keys a request. obstore lists whole folders, so the rest of the prefix is compared here."""
        import obstore

        folder = prefix.rpartition("/")[0] or None
        try:
            async for page in obstore.list(self._store, folder, offset=start_after or None, chunk_size=1000):
                for found in page:
                    if found["path"].startswith(prefix) and found["path"] > start_after:
                        yield _meta(found)
        except StoreError:
            raise
        except Exception as error:
            raise self._told(error, f"what begins with '{prefix}'") from error

    async def delete(self, *keys: str) -> None:
        """One request for a thousand."""
        import obstore

        try:
            await obstore.delete_async(self._changing, [checked_key(key) for key in keys])
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._told(error, ", ".join(keys[:3]), changing=True) from error

    async def _size(self, key: str) -> int:
        found = await self.head(key)
        if found is None:
            raise NotFound(f"there is no {key} in {self.url}")
        return found.size

    def _whole(self, key: str, found: Any, start: int, length: int) -> Buffer:
        if len(found) != length:
            raise OutOfRange(f"{key} ends at {start + len(found)}, before {start + length}")
        return memoryview(found)

    def _told(self, error: Exception, key: str, changing: bool = False) -> AssayError:
        from obstore import exceptions

        if isinstance(error, AssayError):  # of our own, said already
            return error
        if isinstance(error, FileNotFoundError):
            return NotFound(f"there is no {key} in {self.url}")
        if isinstance(error, exceptions.AlreadyExistsError):
            return AlreadyExists(f"{key} is there already")
        said = _said(error)
        if "status code: 416" in said or ("Range" in said and "out of" in said):
            return OutOfRange(f"{key} ends before the bytes asked for")
        denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if changing and not denied:
            return Unknown(f"{self.url} did not say whether {key} changed: {said}")
        return StoreError(f"{self.url} refused {key}: {said}")


def _said(error: Exception) -> str:
    """Obstore's words, without those for who wrote it."""
    return " ".join(str(error).split()).partition(" Debug source:")[0][:300]


def _meta(found: Any) -> Meta:
    return Meta(found["path"], found["size"], found["last_modified"].timestamp())
