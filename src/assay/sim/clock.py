"""Time as a component sees it: the machine's own, or one that jumps to the next event when nothing is left to do.

A component asks a :class:`Clock` and never `time`, so the same object serves real users and simulates an hour of
requests in seconds. :func:`run_virtual` runs a coroutine on a loop whose time is virtual: sleeping costs nothing, two
runs have the same order of events, and a wait that nobody will end is an error instead of a hang.

>>> import asyncio
>>> async def an_hour() -> float:
...     await asyncio.gather(VirtualClock().sleep(1800), VirtualClock().sleep(3600))
...     return VirtualClock().now()
>>> run_virtual(an_hour())
3600.0
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What a component may know of time: seconds since a fixed moment, and how to let some pass."""

    def now(self) -> float:
        """Seconds since this clock's zero; all processes that share a store share it."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""


class WallClock:
    """The machine's time, in seconds since 1970: processes that come later can compare with it.

    >>> WallClock().now() > 1.7e9
    True
    """

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Really wait."""
        await asyncio.sleep(seconds)


class VirtualClock:
    """The time of the loop that runs: virtual under :func:`run_virtual`."""

    def now(self) -> float:
        """Seconds since the loop began."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Be woken when the loop's time has come this far."""
        loop = asyncio.get_running_loop()
        if seconds > 0 and isinstance(loop, VirtualLoop):
            await loop.alarm(seconds)
        else:
            await asyncio.sleep(seconds)


class Stuck(RuntimeError):  # noqa: N818 - a finding about the simulated processes
    """Every task waits for something that no timer and no other task will ever bring."""


class _Jump(selectors.SelectSelector):
    """Waits for no file: where the loop would sleep until its next timer, time jumps there."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when nothing else can. It has no sockets, and its threads run at once.

    >>> loop = VirtualLoop(start=100.0)
    >>> loop.run_until_complete(asyncio.to_thread(lambda: 7)), loop.time()
    (7, 100.0)
    >>> loop.close()
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._alarms: list[tuple[float, int, asyncio.Future[None]]] = []  # asyncio's own timers cost twice as much
        self._set = 0
        super().__init__(_Jump(self._jump))
        # asyncio's timers ring within this. Far from zero (since 1970, say) its nanosecond is lost in rounding, and the
        # loop would wait for ever for a moment that has come.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def alarm(self, seconds: float) -> asyncio.Future[None]:
        """A future that is done so many seconds from now; equal times ring in the order they were set."""
        woken = self.create_future()
        self._set += 1
        heapq.heappush(self._alarms, (self._now + seconds, self._set, woken))
        return woken

    def _jump(self, seconds: float | None) -> None:
        """Go to the next alarm, or to asyncio's next timer, which is so many seconds away (None: there is none)."""
        alarms = self._alarms
        if alarms and (seconds is None or alarms[0][0] <= self._now + seconds):
            self._now = now = alarms[0][0]
            while alarms and alarms[0][0] == now:
                sleeper = heapq.heappop(alarms)[2]
                if not sleeper.done():  # cancelled meanwhile
                    sleeper.set_result(None)
        elif seconds is None:
            raise Stuck("every task waits, and no timer is left to wake one")
        else:
            self._now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run it here and now: a thread would finish at a time that no seed decides."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """Run a coroutine to its end in virtual time; tasks it leaves behind are cancelled.

    >>> run_virtual(asyncio.wait_for(asyncio.sleep(1), timeout=5))
    >>> async def forgotten() -> None:
    ...     await asyncio.get_running_loop().create_future()
    >>> run_virtual(forgotten())
    Traceback (most recent call last):
    assay.sim.clock.Stuck: every task waits, and no timer is left to wake one
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        return runner.run(main)
