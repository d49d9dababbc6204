"""A policy's time is bounded: it is called where all bytes pass, so while it thinks, everybody waits.

The system's interval timer interrupts it, be it computing or asleep; only compiled code that never looks up cannot be.
One that is late again and again is not asked for a while. Needs the main thread, where signals arrive.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

_STRIKES = 3  # times late in a row
_REST = 10.0  # seconds in which it is not asked then


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
        self._calling = False
        self._strikes = 0
        self._until = float("-inf")  # it rests
        self._before: Any = None
        self._installed = False

    def install(self) -> None:
        """Take the alarm."""
        self._before = signal.signal(signal.SIGALRM, self._ring)
        self._installed = True

    def remove(self) -> None:
        """Give it back."""
        if self._installed:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._before)
            self._installed = False

    def call(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """What it returns; TooSlowError where it does not in time, or was late too often just now."""
        if not self._installed:
            return what(*arguments)
        if self._strikes >= _STRIKES:
            if monotonic() < self._until:
                raise TooSlowError(f"it was late {_STRIKES} times in a row, and rests for {_REST:g} s")
            self._strikes -= 1  # one more chance
        try:
            self._calling = True
            signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)  # again: it may catch what is raised
            answer = what(*arguments)
            self._calling = False
        except TooSlowError:
            self._strikes += 1
            self._until = monotonic() + _REST
            raise
        finally:
            self._calling = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._strikes = 0
        return answer

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._calling:
            raise TooSlowError(f"it took longer than {self.seconds:g} s")
