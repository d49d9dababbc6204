"""A function whose process ends by itself, without any cleanup, in the middle of some of its requests."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from assay.data.graphflash.function import Call, serving
from assay.data.store.directory import DirStore
from assay.data.store.wrappers import Op, Wrapper
from assay.sim.faas import Context

T = TypeVar("T")
DEADLY = (4, 11, 17, 26)  # requests, counted over all processes


class Doomed(Wrapper):
    """Counts requests in a file that all processes share."""

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """End the process at some of them, half before and half after the effect."""
        assert isinstance(self.inner, DirStore)
        with Path(self.inner.root, "requests.count").open("ab") as file:
            file.write(b".")
            file.flush()
            number = os.fstat(file.fileno()).st_size
        if number in DEADLY[::2]:
            os._exit(137)
        found = await call()
        if number in DEADLY[1::2]:
            os._exit(137)
        return found


async def handle(argument: bytes, context: Context) -> bytes:
    """As the real one, on a store that kills."""
    call = msgspec.msgpack.decode(argument, type=Call)
    return await serving(Doomed(DirStore(call.store, fsync=False)))(argument, context)
