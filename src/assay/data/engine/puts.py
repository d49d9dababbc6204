"""Puts whose answer may be lost: made again, which is harmless because name and bytes were fixed before the first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

from assay.data.interface import AlreadyExists, Buffer, Store, Unknown

ATTEMPTS = 8  # how often an unanswered put is tried before the store is called dead


async def put_surely(store: Store, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> bool:
    """Put an object that anybody who writes this name would write alike, until the store says that it is there.

    `if_absent`: one that is there already stays as it is, whoever wrote it. True where the store is done with the
    bytes; False where a try of which nobody heard may still be on its way.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> store = MemStore()
    >>> [asyncio.run(put_surely(store, "a", data, if_absent=True)) for data in (b"mine", b"later")]
    [True, True]
    >>> bytes(asyncio.run(store.get("a")))
    b'mine'
    """
    for attempt in itertools.count(1):
        try:
            with suppress(AlreadyExists):
                await store.put(key, data, if_absent=if_absent)
            break
        except Unknown as error:
            if attempt == ATTEMPTS:
                raise Unknown(f"{error} ({ATTEMPTS} times in a row); run it again") from error
    return attempt == 1
