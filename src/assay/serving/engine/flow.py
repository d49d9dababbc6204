"""What comes and what goes while a load is steady: before it the fleet fills up, after it it drains.

A rate is sustained when completions keep up with what is offered, so that no more are on board at the end of the
window than at its beginning, but for chance. A trace may be so short that its fleet still fills up in the window: then
more are on board at its end, too, but no more wait for their first token. Whether such a fleet keeps up, a run that
ends so soon cannot tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from assay.serving.engine.outcome import Outcome

FILLING = 0.2  # of the time in which sessions begin: left out where a trace does not say when its load is steady
GROWS = 0.02  # of the requests of a window may be more on board at its end: below what a search tells apart


class Flow(NamedTuple):
    """A window of seconds and what happened in it."""

    start: float
    stop: float
    sent: int
    finished: int
    aboard: int  # at the start
    tokens: float  # generated
    prompts: float  # tokens of the prompts whose answer began
    share: float  # of all the tokens of the run, generated in it
    waiting: int = 0  # for their first token: so many more at the end than at the start
    settled: bool = True  # whether the fleet had the time to fill up before it

    @classmethod
    def of(cls, outcome: Outcome) -> Flow:
        """The steady window of a run."""
        served = outcome.served
        sent, first, finish, output = (
            np.asarray(outcome.records[name][served], np.float64) for name in ("arrival", "first", "finish", "output")
        )
        start, stop = _window(outcome, sent)
        inside = np.minimum(finish, stop) - np.maximum(first, start)
        inside = np.where(finish > first, np.clip(inside, 0, None) / np.maximum(finish - first, 1e-12),
                          (first >= start) & (first < stop))  # fmt: skip
        tokens = float((inside * output).sum())
        begun = (first >= start) & (first < stop)
        waiting = [int(((sent < moment) & (first >= moment)).sum()) for moment in (start, stop)]
        return cls(
            start, stop, int(((sent >= start) & (sent < stop)).sum()), int(((finish >= start) & (finish < stop)).sum()),
            int(((sent < start) & (finish >= start)).sum()), tokens,
            float(outcome.records["prompt"][served][begun].sum()), tokens / max(float(output.sum()), 1.0),
            waiting[1] - waiting[0], outcome.requests.steady is not None,
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """How long the window is."""
        return self.stop - self.start

    @property
    def offered(self) -> float:
        """Requests a second that were sent; in a closed loop who waits longer asks less often."""
        return self.sent / self.seconds if self.seconds else math.inf

    @property
    def completed(self) -> float:
        """Requests a second that were answered."""
        return self.finished / self.seconds if self.seconds else math.inf

    @property
    def sustained(self) -> bool:
        """Whether completions keep up: what is more on board at the end is little, or no more than chance brings.

        >>> Flow(0.0, 100.0, 1000, 985, 20, 0.0, 0.0, 1.0).sustained
        True
        >>> Flow(0.0, 100.0, 1000, 900, 20, 0.0, 0.0, 1.0).sustained
        False
        """
        return self.sent - self.finished <= self._chance

    @property
    def fills(self) -> bool:
        """Whether more come than leave only because the trace is short: the fleet fills up, and no queue grows.

        >>> Flow(0.0, 5.0, 300, 100, 80, 0.0, 0.0, 1.0, waiting=2, settled=False).fills
        True
        >>> Flow(0.0, 5.0, 300, 100, 80, 0.0, 0.0, 1.0, waiting=150, settled=False).fills
        False
        """
        return not self.settled and not self.sustained and self.waiting <= self._chance

    @property
    def _chance(self) -> float:
        """By how many requests a window's end may differ from its start."""
        return GROWS * self.sent + 3 * math.sqrt(self.aboard + 1)


def _window(outcome: Outcome, sent: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    if outcome.requests.steady is not None:
        return outcome.requests.steady
    if not len(sent):
        return 0.0, 0.0
    after = outcome.requests.after
    begun = sent if after is None else sent[after[outcome.served] < 0]
    begun = begun if len(begun) else sent
    first, last = float(begun.min()), float(begun.max())
    return first + FILLING * (last - first), last
