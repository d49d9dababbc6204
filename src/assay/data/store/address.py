"""A store by its address: `file:///ckpts`, a plain path, `mem://`, `s3://bucket/folder`, whatever fsspec knows."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from assay.data.interface import Store
from assay.data.store.directory import DirStore
from assay.data.store.memory import MemStore
from assay.record.errors import BadInput
from assay.record.extras import missing_module

CLOUD = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


def open_store(url: str, *, fsync: bool = True) -> Store:
    """The store at an address; BadInput where there is no such kind.

    >>> type(open_store("mem://")).__name__
    'MemStore'
    >>> open_store("nonsense://here")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    assay.record.errors.BadInput: no store is called 'nonsense://here': a folder, file://, s3://, gs://, az://, mem://...
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return DirStore(unquote(parts.path) if parts.scheme else url, fsync=fsync)
    if parts.scheme == "mem":
        return MemStore()
    try:
        if parts.scheme in CLOUD:
            from assay.data.store.cloud import S3Store

            return S3Store(url)
        import fsspec

        if parts.scheme in fsspec.available_protocols():
            from assay.data.store.foreign import FsspecStore

            return FsspecStore(url)
    except (ModuleNotFoundError, ImportError) as error:
        missing = error if isinstance(error, ModuleNotFoundError) else ModuleNotFoundError(str(error), name=error.name)
        raise BadInput(missing_module(f"a store at {parts.scheme}://", missing)) from error
    except ValueError as error:
        raise BadInput(f"'{url}' is no address of a store: {error}") from error
    raise BadInput(
        f"no store is called '{url}': a folder, file://, s3://, gs://, az://, mem:// or a protocol of fsspec expected"
    )
