"""The same stores and components with plain calls, for code that has no event loop.

>>> from assay.data.store.memory import MemStore
>>> store = blocking(MemStore())
>>> store.put("a", b"1").size, [meta.key for meta in store.list()]
(1, ['a'])
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
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
    loop.set_default_executor(Lasting(thread_name_prefix="assay-calls"))
    thread = threading.Thread(target=loop.run_forever, name="assay-store", daemon=True)
    thread.start()
    atexit.register(_end, process, loop, thread)
    return loop


class Lasting(ThreadPoolExecutor):
    """Threads, until the main thread has ended and no pool takes any more: then who calls does the work itself.

    >>> with Lasting(1) as pool:
    ...     pool.submit(sum, [1, 2]).result()
    3
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """As of any executor."""
        try:
            return super().submit(fn, *args, **options)
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **options))
        except BaseException as error:
            done.set_exception(error)
        return done


def _end(process: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Let go of what is under way before the interpreter ends: an answer from compiled code after that would abort it.

    Whoever waits for something at the end has registered later, and has had it by now.
    """
    if os.getpid() != process or not thread.is_alive():
        return
    asyncio.run_coroutine_threadsafe(_cancel_others(), loop)
    thread.join(ENDS)
    _loop.cache_clear()  # what was to be called at the end before there was a loop may want another one


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    asyncio.get_running_loop().stop()


def before_exit(call: Callable[[], None]) -> None:
    """Have something waited for when the main thread has ended, while threads may still be used.

    `atexit` would be too late: the threads that a store's calls run in are gone by then. The call must not raise.
    """
    importlib.import_module("concurrent.futures.thread")  # its own end is registered then, and the last comes first
    threading._register_atexit(call)  # type: ignore[attr-defined]  # as concurrent.futures does; there is no other way


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
