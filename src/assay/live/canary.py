"""A second policy that gets a share of the real traffic, and an answer with an interval: which of the two is better?

Conversations are shared out, not requests: the turns of one reuse each other's cache, so what one turn gets depends on
where the others went. A conversation belongs to one of 200 groups, a group to one policy as long as the canary runs.
Groups are what is independent, so the interval comes from their spread, not from that of requests. Both policies place
requests on the same engines: what one of them does to the load, both feel. So the difference tells which choices serve
the request better, not what a fleet would be like that followed only one of them; `--shadow` and `assay compare
serving` with the access log tell more of that.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.live.relay import Relay

GROUPS = 200
_Z = 1.959963984540054  # of the normal distribution: 95 % lie within
_ENOUGH = 5  # groups of a policy, for an interval
MEASURES = ("ttft", "e2e", "reuse", "failed")


def read(text: str) -> tuple[str, float]:
    """The policy and its share.

    >>> read("vllm-v1=10%")
    ('vllm-v1', 0.1)
    """
    found = re.fullmatch(r"(.+)=(\d+(?:\.\d+)?)%", text.strip())
    share = float(found[2]) / 100 if found else 0.0
    if found is None or not 1 / GROUPS <= share <= 1 - 1 / GROUPS:
        raise BadInput(f"canary: '{text}': write a policy and its share of the traffic, 0.5% to 99.5%: vllm-v1=10%")
    return found[1], share


@dataclass
class Sums:
    """What one group of conversations got: for each measure a sum, and what it is divided by."""

    requests: int = 0
    above: list[float] = field(default_factory=lambda: [0.0] * len(MEASURES))
    below: list[float] = field(default_factory=lambda: [0.0] * len(MEASURES))

    def add(self, *values: tuple[float, float]) -> None:
        """One more request."""
        self.requests += 1
        for i, (above, below) in enumerate(values):
            self.above[i] += above
            self.below[i] += below


class Canary:
    """The share of a second policy, and what became of both."""

    def __init__(self, policy: str, share: float, router: Any, usual: str) -> None:
        self.policy, self.share, self.router, self._usual = policy, share, router, usual
        self._first = max(1, min(GROUPS - 1, round(share * GROUPS)))  # groups below this one are the canary's
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._groups = [Sums() for _ in range(GROUPS)]

    def takes(self, relay: Relay) -> bool:
        """Whether this policy decides about a request."""
        return self._group(relay) < self._first

    def ended(self, relay: Relay, now: float) -> None:
        """A request is over; one whose client left says nothing of who served it."""
        if relay.endpoint == "other" or relay.status == 499 or relay.sent is None:
            return
        good = relay.status < 400
        streamed = good and relay.streaming and relay.first is not None
        cached = relay.usage.cached if relay.usage and relay.usage.cached is not None else relay.matched
        self._groups[self._group(relay)].add(
            (relay.first - relay.arrival, 1.0) if streamed and relay.first is not None else (0.0, 0.0),
            (now - relay.arrival, 1.0) if good else (0.0, 0.0),
            (float(cached), float(relay.request.prompt)) if good else (0.0, 0.0),
            (float(relay.status >= 500), 1.0),
        )

    def _group(self, relay: Relay) -> int:
        session = relay.request.session
        name = relay.request.id if session is None else session
        return zlib.crc32(str(name).encode(), self._salt) % GROUPS

    def report(self) -> dict[str, Any]:
        """Both policies in numbers, their differences with intervals, and what follows."""
        arms = {True: self._groups[: self._first], False: self._groups[self._first :]}
        found: dict[str, Any] = {
            "policy": self.policy, "usual": self._usual, "share": self.share,
            "requests": sum(g.requests for g in arms[True]), "requests_usual": sum(g.requests for g in arms[False]),
        }  # fmt: skip
        for i, name in enumerate(MEASURES):
            mine, theirs = (
                ratio([(g.above[i], g.below[i]) for g in arms[arm] if g.below[i] > 0]) for arm in (True, False)
            )
            found[name] = {"canary": mine[0], "usual": theirs[0], **difference(mine, theirs)}
        found["verdict"] = self._verdict(found)
        return found

    def _verdict(self, found: dict[str, Any]) -> str:
        """In a sentence: by the first token where there are streams, else by the whole answer."""
        name = "ttft" if found["ttft"]["low"] is not None else "e2e"
        what = {"ttft": "the first token", "e2e": "the answer"}[name]
        low, high = found[name]["low"], found[name]["high"]
        if low is None:
            return f"too few conversations to tell; {_ENOUGH} groups of each policy are needed"
        if low <= 0.0 <= high:
            return f"no difference can be told: {what} comes {_ms(low)} to {_ms(high)} later with {self.policy}"
        first, second, sign = ("later", "worse", 1) if low > 0 else ("earlier", "better", -1)
        early, late = sorted((sign * low, sign * high))
        by = f"{_ms(early)} to {_ms(late)} {first}"
        return f"{self.policy} serves {second}: {what} comes {by} than with {self._usual}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def ratio(groups: list[tuple[float, float]]) -> tuple[float | None, float, int]:
    """A ratio of sums over groups, its variance by how the groups differ, and how many there are.

    >>> mean, variance, groups = ratio([(1.0, 1.0), (6.0, 2.0)])
    >>> round(mean, 3), round(variance, 3), groups
    (2.333, 0.79, 2)
    """
    n, total = len(groups), sum(below for _, below in groups)
    if not n:
        return None, 0.0, 0
    mean = sum(above for above, _ in groups) / total
    squares = sum((above - mean * below) ** 2 for above, below in groups)
    return mean, squares / total**2 * n / (n - 1) if n > 1 else math.inf, n


def difference(mine: tuple[float | None, float, int], theirs: tuple[float | None, float, int]) -> dict[str, Any]:
    """Mine less theirs, with an interval of 95 % (Welch's); none where there are too few groups."""
    if mine[0] is None or theirs[0] is None or min(mine[2], theirs[2]) < _ENOUGH:
        return {"low": None, "high": None}
    one, two = mine[1], theirs[1]
    spread = one**2 / (mine[2] - 1) + two**2 / (theirs[2] - 1)
    freedom = (one + two) ** 2 / spread if spread > 0 else math.inf
    half = student(freedom) * math.sqrt(one + two)
    return {"low": mine[0] - theirs[0] - half, "high": mine[0] - theirs[0] + half}


def student(freedom: float) -> float:
    """How many standard errors to each side hold 95 %, by an expansion that is right to 1 % from 4 degrees on.

    >>> round(student(10), 2), round(student(math.inf), 2)
    (2.23, 1.96)
    """
    if math.isinf(freedom):
        return _Z
    z, n = _Z, freedom
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / n ** (k + 1) for k, term in enumerate(terms))
