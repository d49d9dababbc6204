"""What goes wrong, when, and for how long.

>>> slow = Fault("slow", target=3, start=10.0, stop=20.0, factor=2.0)
>>> active([slow], 15.0) == [slow], active([slow], 20.0)
(True, [])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.record.errors import BadInput

KINDS = ("crash", "hang", "slow", "delay", "drop", "duplicate", "corrupt")


@dataclass(frozen=True)
class Fault:
    """One fault of one target, from `start` until `stop`; `factor`: how many times as long things take meanwhile."""

    kind: str
    target: int
    start: float
    stop: float = math.inf
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"unknown fault {self.kind!r}; there are {', '.join(KINDS)}")
        if not self.start < self.stop or self.factor < 1.0:
            raise BadInput(f"{self.kind} of {self.target}: should start before it stops, with a factor of at least 1")


def active(faults: Iterable[Fault], when: float) -> list[Fault]:
    """Those that are on at this instant."""
    return [fault for fault in faults if fault.start <= when < fault.stop]


def instants(faults: Iterable[Fault], after: float) -> Sequence[float]:
    """When something begins or ends after this, soonest first.

    >>> instants([Fault("slow", 0, 1.0, 5.0, 2.0)], after=1.0)
    [5.0]
    """
    times = {time for fault in faults for time in (fault.start, fault.stop)}
    return sorted(time for time in times if after < time < math.inf)
