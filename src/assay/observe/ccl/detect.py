"""When to ask: each rank's own watch over its own record, which sees a hang or a slow-down and nothing else.

A hang is an operation under way for longer than `hang_after`. A slow-down is `repeats` rounds in a row, of the same
kind, type and size, that took more than `factor` times what is usual, and more than usual rounds scatter; one slow
round is jitter. What is usual is the median of the rounds that were not slow, their scatter the median deviation. A
watch reads its own rank's record by its own clock, so it costs the job nothing, and nothing is sent anywhere before it
raises its hand.

The paper waits five minutes for a hang and one for a slow-down; here the times are parameters, and the lab scales them
to seconds. How many repeats and which factor the paper uses is not known: both are reconstructed.

>>> import numpy as np
>>> from assay.observe.ccl.probe import WORDS, Probe
>>> words = np.zeros(WORDS, np.int64)
>>> probe, watch = Probe(memoryview(words), rank=0, size=2), Watch(hang_after=5.0)
>>> for index, took in enumerate([10, 11, 10, 12, 10, 11, 30, 31, 30]):
...     probe.enter("all_reduce", 0, 64, now=1000 * index)
...     probe.leave(now=1000 * index + took)
...     alarm = watch.look(words, now=float(index))
>>> alarm
Symptom(kind='slow', rank=0, operation=9, base=1.05e-08)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from assay.observe.ccl.probe import ENTERED, FINISHED, HISTORY, RANK, Records

HANG_AFTER, FACTOR, REPEATS, WARM = 5.0, 1.5, 3, 5
SCATTER = 7.0  # median deviations: about five standard deviations of normal noise
_KEPT = 64  # rounds that the usual duration is taken from
_SIZES = 8  # collectives told apart: kind, type, size to the nearest power of two


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a watch saw: a hang or a slow-down, in which of its rank's operations, and what is usual (seconds)."""

    kind: str  # "hang" or "slow"
    rank: int
    operation: int
    base: float | None = None


@dataclass
class Watch:
    """One rank's watch. `look` at its record as often as you like; a symptom is reported once."""

    hang_after: float = HANG_AFTER
    factor: float = FACTOR
    repeats: int = REPEATS
    warm: int = WARM  # rounds before anything is called usual
    _seen: int = 0
    _since: tuple[int, float] = (0, 0.0)
    _usual: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    _slow: dict[tuple[int, int], int] = field(default_factory=dict)
    _hung: int = 0

    def look(self, words: NDArray[np.int64], now: float) -> Symptom | None:
        """The first new symptom; `now` is any clock that runs evenly, in seconds."""
        entered, finished, rank = int(words[ENTERED]), int(words[FINISHED]), int(words[RANK])
        found = self._rounds(words, finished, rank)
        if entered > finished:
            if self._since[0] != entered:
                self._since = entered, now
            elif now - self._since[1] > self.hang_after and self._hung != entered:
                self._hung = entered
                return Symptom("hang", rank, entered)
        return found

    def base(self, kind: tuple[int, int] | None = None) -> float | None:
        """The usual seconds of a collective (by signature and size), or of the one seen last."""
        usual = self._usual.get(kind) if kind else next(reversed(self._usual.values()), None)
        return median(usual) if usual and len(usual) >= self.warm else None

    def _rounds(self, words: NDArray[np.int64], finished: int, rank: int) -> Symptom | None:
        row = Records(words.reshape(1, -1))
        for operation in range(max(self._seen, finished - HISTORY) + 1, finished + 1):
            past = row.past(operation)
            self._seen = operation
            if not past["known"][0]:
                continue
            kind = int(past["signature"][0]), int(past["count"][0]).bit_length()
            took = float(past["duration"][0]) / 1e9
            base = self.base(kind) if kind in self._usual else None
            if base is not None and took > max(self.factor * base, base + SCATTER * self._deviation(kind, base)):
                self._slow[kind] = self._slow.get(kind, 0) + 1
                if self._slow[kind] == self.repeats:
                    return Symptom("slow", rank, operation, base)
                continue
            self._slow[kind] = 0
            self._remember(kind, took)
        return None

    def _deviation(self, kind: tuple[int, int], base: float) -> float:
        """The median distance from the median: on a busy machine usual rounds are far apart."""
        return median(abs(took - base) for took in self._usual[kind])

    def _remember(self, kind: tuple[int, int], took: float) -> None:
        """Slow rounds are not remembered: a lasting fault must not become what is usual."""
        kept = self._usual.pop(kind, None) or deque(maxlen=_KEPT)
        kept.append(took)
        self._usual[kind] = kept  # last in the order of use
        if len(self._usual) > _SIZES:
            self._usual.pop(next(iter(self._usual)))


def watch_all(
    record: Callable[[int], NDArray[np.int64]], watches: Sequence[Watch], clock: Callable[[], float]
) -> list[Symptom]:
    """One look of every rank's watch at its own record."""
    now = clock()
    found = [watch.look(record(rank), now) for rank, watch in enumerate(watches)]
    return [symptom for symptom in found if symptom is not None]
