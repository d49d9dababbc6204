"""How long a producer collects batches before it commits them: decided alone, from what its own commits met.

All producers want the next version of one manifest, and only one gets it. Who commits after every batch mostly loses;
who waits too long keeps batches back. The right pause grows with the number of producers and with the time of an
attempt, which grows with the manifest. Both can be seen without asking anybody: the version counter tells how many
others committed since one's own last success, and an attempt tells how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from assay.record.errors import BadInput


class Pace(Protocol):
    """A law for the pause between commits."""

    interval: float  # seconds

    def committed(self, took: float, versions: int) -> None:
        """An attempt succeeded after so many seconds; the manifest moved by so many versions since the last success."""

    def lost(self, took: float) -> None:
        """Another producer's commit came first."""


@dataclass
class Adaptive:
    """Decentralized adaptive commit: pause for (producers × seconds of an attempt) ÷ the share of time to be used.

    With N producers that each take an attempt's time L out of T, another one starts within mine about N·L/T times: at
    a share of 0.35, two of three attempts succeed at once. The control law is a reconstruction; the paper gives the
    goal and that producers do not talk.

    >>> pace = Adaptive()
    >>> for _ in range(30): pace.committed(took=0.2, versions=64)
    >>> round(pace.interval)
    37
    """

    share: float = 0.35
    least: float = 0.05
    most: float = 300.0
    interval: float = 0.05
    round_trip: float | None = None

    def committed(self, took: float, versions: int) -> None:
        """A fifth of the way to what would have been right."""
        self._seen(took)
        assert self.round_trip is not None
        right = max(1, versions) * self.round_trip / self.share
        self.interval = self._within(self.interval + 0.2 * (right - self.interval))

    def lost(self, took: float) -> None:
        """Half as long again."""
        self._seen(took)
        self.interval = self._within(1.5 * self.interval)

    def _seen(self, took: float) -> None:
        self.round_trip = took if self.round_trip is None else self.round_trip + 0.2 * (took - self.round_trip)

    def _within(self, seconds: float) -> float:
        return min(max(seconds, self.least), self.most)


@dataclass
class Aimd:
    """The rate of commits grows by a little with every success and is halved by every conflict.

    >>> pace = Aimd(interval=1.0)
    >>> pace.lost(0.1); pace.interval
    2.0
    """

    gain: float = 0.02  # commits a second, more with each success
    least: float = 0.05
    most: float = 300.0
    interval: float = 0.05

    def committed(self, took: float, versions: int) -> None:
        """A little faster."""
        self.interval = max(self.least, 1.0 / (1.0 / self.interval + self.gain))

    def lost(self, took: float) -> None:
        """Half as fast."""
        self.interval = min(self.most, 2.0 * self.interval)


@dataclass
class Fixed:
    """Always the same pause; 0 commits after every batch.

    >>> Fixed(0.05).interval
    0.05
    """

    interval: float = 0.05

    def committed(self, took: float, versions: int) -> None:
        """Nothing is learnt."""

    def lost(self, took: float) -> None:
        """Nothing is learnt."""


def pace_named(name: str) -> Pace:
    """A law by name: adaptive (adaptive-10: pauses of at most ten seconds), aimd, batch, or a fixed pause in seconds.

    >>> pace_named("0.5")
    Fixed(interval=0.5)
    """
    if name == "adaptive":
        return Adaptive()
    if name == "adaptive-10":
        return Adaptive(most=10.0)
    if name == "aimd":
        return Aimd()
    if name == "batch":
        return Fixed(0.0)
    try:
        seconds = float(name)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < 86400.0:
        raise BadInput(f"'{name}' is no pace of commits; adaptive, aimd, batch or seconds expected")
    return Fixed(seconds)
