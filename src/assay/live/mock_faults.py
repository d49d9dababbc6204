"""What goes wrong in the mock engine, on request and always in the same way.

>>> parse("slow:0.1:3")
Fault(kind='slow', share=0.1, value=3.0, after=None)
>>> faults = Faults(["error:0.5:503"], seed=0)
>>> [bool(faults.next()) for _ in range(8)]
[False, True, True, False, False, False, False, False]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus

from assay.live.mock_text import uniform
from assay.record.errors import BadInput

KINDS = ("crash", "hang", "slow", "error", "disconnect", "spoil", "refuse")
_VALUES = {"slow": 3.0, "error": 503.0, "spoil": 0.5}  # what a third part says, where there may be one
_STATUSES = {status.value for status in HTTPStatus if status.value >= 400}


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls a share of the requests; or, for a crash, when it comes."""

    kind: str
    share: float
    value: float = 0.0  # slow: how many times; error: the status; spoil: after which part of the answer
    after: float | None = None  # seconds


def parse(text: str) -> Fault:
    """A fault from `kind:share[:value]` or `crash@seconds`.

    >>> parse("crash@5").after
    5.0
    """
    kind, _, seconds = text.partition("@")
    parts = text.split(":")
    try:
        if kind == "crash" and seconds:
            after = float(seconds)
            if not 0.0 <= after < math.inf:
                raise ValueError
            return Fault("crash", 0.0, 0.0, after)
        if parts[0] not in KINDS or not 2 <= len(parts) <= (3 if parts[0] in _VALUES else 2):
            raise ValueError
        share, value = float(parts[1]), float(parts[2]) if len(parts) == 3 else _VALUES.get(parts[0], 0.0)
        if not 0.0 <= share <= 1.0 or (parts[0] == "slow" and not 1.0 <= value < math.inf):
            raise ValueError
        if parts[0] == "spoil" and not 0.0 <= value <= 1.0:
            raise ValueError
        if parts[0] == "error" and value not in _STATUSES:
            raise ValueError
    except ValueError:
        raise BadInput(
            f"fault '{text}': write crash:0.01, crash@5 (after 5 s), hang:0.05, slow:0.1:3 (3 times as slow), "
            "error:0.1:503, disconnect:0.1, spoil:0.1:0.5 (an error event after half of a stream) or refuse:0.1, with "
            "the share of requests it befalls"
        ) from None
    return Fault(parts[0], share, value)


class Faults:
    """Which request meets which fault: settled by the seed and by the number of the request."""

    def __init__(self, texts: list[str], seed: int) -> None:
        self.texts = texts
        self._faults = [parse(text) for text in texts]
        self._seed = seed
        self._number = 0

    def set(self, texts: list[str]) -> None:
        """Others from now on. Raises BadInput, and then nothing changes."""
        self._faults = [parse(text) for text in texts]
        self.texts = texts

    @property
    def crash_after(self) -> float | None:
        """When the process is to end, in seconds."""
        return min((fault.after for fault in self._faults if fault.after is not None), default=None)

    def next(self) -> Fault | None:
        """What befalls the request that has just come."""
        number, self._number = self._number, self._number + 1
        for position, fault in enumerate(self._faults):
            if fault.share and self.draw(number, f"fault {position}") < fault.share:
                return fault
        return None

    def draw(self, number: int, what: str) -> float:
        """A number in [0, 1) for a request."""
        return uniform(self._seed, f"{number} {what}")
