"""A policy's time is bounded: it is called where all bytes pass, so while it thinks, everybody waits.

A thread looks now and then whether the same call is still under way, and interrupts it with a signal, be it computing
or asleep; only compiled code that never looks up cannot be. So a call costs next to nothing. A policy that is late
again and again is not asked for a while. Needs the main thread, where signals arrive.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

_STRIKES = 3  # times late in a row
_REST = 10.0  # seconds in which it is not asked then
_LOOKS = 4  # in the time that a call may take


class TooSlowError(Exception):
    """It took longer than it may."""


class Guard:
    """Calls that end in time, one way or the other.

    >>> guard = Guard(0.05)
    >>> guard.install()
    >>> guard.call(lambda: 6 * 7)
    42
    >>> def blocks():
    ...     while True: pass
    >>> guard.call(blocks)
    Traceback (most recent call last):
        ...
    assay.live.guard.TooSlowError: it took longer than 0.05 s
    >>> guard.remove()
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls = 0  # so far
        self._calling = False
        self._strikes = 0
        self._until = float("-inf")  # it rests
        self._before: Any = None
        self._main = 0  # the thread that is interrupted
        self._over: threading.Event | None = None  # of the looking

    def install(self) -> None:
        """Begin to look."""
        self._before = signal.signal(signal.SIGALRM, self._ring)
        self._main, self._over = threading.get_ident(), threading.Event()
        threading.Thread(target=self._look, args=(self._over,), name="guard", daemon=True).start()

    def remove(self) -> None:
        """Look no more."""
        if self._over is not None:
            self._over.set()
            signal.signal(signal.SIGALRM, self._before)
            self._over = None

    def call(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """What it returns; TooSlowError where it does not in time, or was late too often just now."""
        if self._strikes >= _STRIKES:
            if monotonic() < self._until:
                raise TooSlowError(f"it was late {_STRIKES} times in a row, and rests for {_REST:g} s")
            self._strikes -= 1  # one more chance
        self._calls += 1
        try:
            self._calling = True
            answer = what(*arguments)
            self._calling = False
        except TooSlowError:
            self._strikes += 1
            self._until = monotonic() + _REST
            raise
        finally:
            self._calling = False
        self._strikes = 0
        return answer

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._calling:
            raise TooSlowError(f"it took longer than {self.seconds:g} s")

    def _look(self, over: threading.Event) -> None:
        call, since = 0, 0.0
        while not over.wait(self.seconds / _LOOKS):
            if not self._calling or self._calls != call:
                call, since = self._calls, monotonic()
            elif monotonic() - since >= self.seconds and not over.is_set():
                signal.pthread_kill(self._main, signal.SIGALRM)  # again and again: it may catch what is raised
