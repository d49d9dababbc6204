"""Watch a training job: gather what its ranks report, and hand out summaries as they become due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from assay.live.watch.gather import KEPT, Gathering
from assay.live.watch.picture import frame
from assay.live.watch.sources import Source
from assay.live.watch.summary import Summary, summarise

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 1.0  # seconds between summaries

Over = Callable[[Summary], bool]
Second = Callable[[Summary, Gathering], Summary]


def endless(_: Summary) -> bool:
    """Until somebody interrupts."""
    return False


def at_the_end(seen: Summary) -> bool:
    """Until no rank reports any more, or the job has hung for too long to go on."""
    return seen.over or seen.given_up


class Watch:
    """A source, what was gathered from it, and the latest summary."""

    def __init__(self, source: Source, watched: Gathering, second: Second | None = None) -> None:
        self.source, self.watched, self._second = source, watched, second
        self.latest = Summary(expected=0, reporting=0, ranks=[])
        self._window = -1  # the last one that was told
        self._restarts = 0
        self._states: tuple[object, ...] = ()
        self._hung: Summary | None = None  # since when no step was finished

    def poll(self, seconds: float = EVERY) -> Summary:
        """Listen for some seconds, then summarise."""
        end = monotonic() + seconds
        while True:
            for age, report in self.source.read():
                self.watched.take(report, monotonic() - age)
            left = end - monotonic()
            if left <= 0.0:
                break
            self.source.wait(left)
        self.latest = self._summary()
        if self.latest.hang and (self._hung is None or self.latest.reporting >= self._hung.reporting):
            self._hung = self.latest  # who dies of the hang, or is ended with it, is not whom the others waited for
        elif self._hung is not None and _farthest(self.latest) > _farthest(self._hung):
            self._hung = None  # it went on
        return self.latest

    def _summary(self, **which: int) -> Summary:
        found = summarise(self.watched, monotonic(), self.source.refused, **which)
        return found if self._second is None else self._second(found, self.watched)

    def whole(self) -> Summary:
        """All steps that are still known, at the end of a job; of one that hangs, or ended while it hung, the hang."""
        found = self._summary(window=KEPT)
        hung = self._hung
        if hung is None:
            return found
        return replace(found, stuck=True, hang=True, label=hung.label, why=hung.why, suspects=hung.suspects)

    def polls(self, over: Over = endless, seconds: float | None = None, every: float = EVERY) -> Iterator[Summary]:
        """A summary every second, until it is over or so many seconds have passed."""
        end = None if seconds is None else monotonic() + seconds
        while True:
            left = every if end is None else min(every, end - monotonic())
            yield self.poll(max(left, 0.0))
            if over(self.latest) or (end is not None and monotonic() >= end):
                return

    def due(self) -> Iterator[Summary]:
        """Windows that were finished since the last time, and the latest summary where a rank's state changed."""
        seen, size = self.latest, self.watched.window
        restarts = sum(row.restarts for row in seen.ranks)
        newest = (seen.last_step + 1) // size - 1  # the last whole window; windows begin at multiples of their size
        if restarts != self._restarts or newest < self._window:
            self._restarts, self._window = restarts, min(self._window, newest)
        told = False
        for window in range(max(self._window + 1, newest - KEPT // size + 2), newest + 1):
            one = self._summary(last=(window + 1) * size - 1)
            if one.steps:
                told = True
                yield one
        self._window = max(self._window, newest)
        states = (seen.hang, seen.stuck, *((row.rank, row.state, row.restarts) for row in seen.ranks))
        if states != self._states and (not told or seen.hang):
            yield seen
        self._states = states


def _farthest(seen: Summary) -> int:
    return max((row.last_step for row in seen.ranks), default=-1)


def follow(watch: Watch, console: Console, over: Over = endless, seconds: float | None = None) -> None:
    """Draw until it is over or interrupted."""
    from rich.live import Live

    place = watch.source.place
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(frame(watch.latest, *console.size, title=place), refresh=True)
        for summary in watch.polls(over, seconds):
            live.update(frame(summary, *console.size, title=place), refresh=True)
