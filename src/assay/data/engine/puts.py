"""Puts whose answer may be lost: made again, which is harmless because name and bytes were fixed before the first."""

from __future__ import annotations

from collections.abc import Sequence

from assay.data.interface import AlreadyExists, Buffer, Store, Unknown

ATTEMPTS = 8  # how often an unanswered put is tried before the store is called dead


async def put_surely(store: Store, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> None:
    """Put an object that anybody who writes this name would write alike, until the store says that it is there.

    `if_absent`: one that is there already stays as it is, whoever wrote it.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> store = MemStore()
    >>> asyncio.run(put_surely(store, "a", b"mine")); asyncio.run(put_surely(store, "a", b"later", if_absent=True))
    >>> bytes(asyncio.run(store.get("a")))
    b'mine'
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await store.put(key, data, if_absent=if_absent)
            return
        except AlreadyExists:
            return
        except Unknown as error:
            if attempt == ATTEMPTS:
                raise Unknown(f"{error} ({ATTEMPTS} times in a row); run it again") from error
