"""The same stores and components with plain calls, for code that has no event loop.

>>> from assay.data.store.memory import MemStore
>>> store = blocking(MemStore())
>>> store.put("a", b"1").size, [meta.key for meta in store.list()]
(1, ['a'])
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from functools import cache, wraps
from typing import Any, TypeVar

T = TypeVar("T")
ENDS = 5.0  # seconds that what was cancelled may take to end


def background() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, one for the process."""
    return _loop(os.getpid())


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """A forked process has its parent's loop and not the thread that runs it, so it gets another."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="assay-store", daemon=True)
    thread.start()
    atexit.register(_end, process, loop, thread)
    return loop


def _end(process: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Let go of what is under way before the interpreter ends: an answer from compiled code after that would abort it.

    Whoever waits for something at the end has registered later, and has had it by now.
    """
    if os.getpid() != process or not thread.is_alive():
        return
    asyncio.run_coroutine_threadsafe(_cancel_others(), loop)
    thread.join(ENDS)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    asyncio.get_running_loop().stop()


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for what it returns."""
    return asyncio.run_coroutine_threadsafe(coroutine, background()).result()


async def _all(found: AsyncIterator[T]) -> list[T]:
    return [one async for one in found]


class Blocking:
    """Whatever is inside, with its coroutines awaited and its async iterators drawn into lists."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inside, name)
        if inspect.iscoroutinefunction(found):

            @wraps(found)
            def call(*args: Any, **options: Any) -> Any:
                return wait(found(*args, **options))

            return call
        if inspect.isasyncgenfunction(found):
            return wraps(found)(lambda *args, **options: wait(_all(found(*args, **options))))
        return found


def blocking(inside: Any) -> Any:
    """A store, or anything with coroutines, for plain calls."""
    return Blocking(inside)
