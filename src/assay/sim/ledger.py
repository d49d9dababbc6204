"""What a run used: requests, bytes, seconds, dollars, memory. Counted, never assumed.

A :class:`Ledger` has a line for each (operation, who, zone). Ledgers add up, so that each process keeps its own; a
:class:`PriceBook` turns counts into dollars afterwards.

>>> ledger = Ledger()
>>> ledger.add("put", who="producer", nbytes=10**6, seconds=0.06)
>>> ledger.add("get", who="trainer", zone="a>b", nbytes=10**6, seconds=0.03, requests=2)
>>> ledger.requests("put"), ledger.nbytes("get"), f"{ledger.usd(LIST_PRICES):.7f}"
(1, 1000000, '0.0000258')
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

GB = 1e9
STEPS = 16  # histogram buckets to a doubling: a quantile is at most 4.4 % too high


@dataclass(frozen=True, slots=True)
class PriceBook:
    """What a provider charges, in dollars; edit it with `dataclasses.replace`.

    >>> LIST_PRICES.put * 1000
    0.005
    """

    name: str
    as_of: str
    put: float  # a request; listing costs the same
    get: float
    gb_month: float  # a gigabyte kept for a month
    cross_zone_gb: float  # a gigabyte that leaves one zone and enters another, both directions billed
    function_gb_second: float
    function_call: float

    def request(self, op: str) -> float:
        """Dollars of one request; deleting, and what is no request at all, is free."""
        return {"put": self.put, "list": self.put, "get": self.get, "head": self.get, "call": self.function_call}.get(
            op, 0.0
        )


LIST_PRICES = PriceBook(
    "public list prices of S3 Standard, zone transfer and Lambda", "2026", put=5e-6, get=4e-7, gb_month=0.023,
    cross_zone_gb=0.02, function_gb_second=1.66667e-5, function_call=2e-7,
)  # fmt: skip


@dataclass(slots=True)
class Line:
    """One line of a ledger."""

    requests: int = 0
    nbytes: int = 0
    seconds: float = 0.0


def _no_lines() -> dict[tuple[str, str, str], Line]:
    return {}


@dataclass
class Ledger:
    """Counters by operation, who asked, and the zones the bytes went between ("a>b"; empty: within one).

    >>> both = Ledger() + Ledger()
    >>> both.rows()
    []
    """

    lines: dict[tuple[str, str, str], Line] = field(default_factory=_no_lines)
    waits: dict[str, Counter[int]] = field(default_factory=dict)  # operation → how many waited about so long
    cpu: float = 0.0
    peak_rss: int = 0

    def add(
        self, op: str, who: str = "", zone: str = "", nbytes: int = 0, seconds: float = 0.0, requests: int = 1
    ) -> None:
        """Count an operation; `requests` is what it costs at the provider, if not one."""
        line = self.lines.get((op, who, zone))
        if line is None:
            line = self.lines[op, who, zone] = Line()
        line.requests += requests
        line.nbytes += nbytes
        line.seconds += seconds
        if seconds > 0.0:
            waits = self.waits.get(op)
            if waits is None:
                waits = self.waits[op] = Counter()
            waits[math.ceil(math.log2(seconds) * STEPS)] += 1

    def requests(self, op: str | None = None, who: str | None = None) -> int:
        """Requests of an operation and of whoever, or of all."""
        return sum(line.requests for line in self._of(op, who))

    def nbytes(self, op: str | None = None, who: str | None = None) -> int:
        """Bytes moved."""
        return sum(line.nbytes for line in self._of(op, who))

    def seconds(self, op: str | None = None, who: str | None = None) -> float:
        """Seconds waited, summed over all who waited at once."""
        return sum(line.seconds for line in self._of(op, who))

    def quantile(self, op: str, q: float) -> float:
        """Seconds within which a share q of the operations was answered; NaN where none was.

        >>> ledger = Ledger()
        >>> for ms in (1, 2, 3, 4): ledger.add("get", seconds=ms / 1000)
        >>> 0.002 <= ledger.quantile("get", 0.5) < 0.0021
        True
        """
        waits = self.waits.get(op, Counter())
        left = q * waits.total()
        for bucket in sorted(waits):
            left -= waits[bucket]
            if left <= 1e-9:
                return float(2.0 ** (bucket / STEPS))
        return math.nan

    def usd(self, prices: PriceBook = LIST_PRICES, *, stored_gb_months: float = 0.0) -> float:
        """Dollars for the requests and the bytes that crossed zones; storage where it is told."""
        crossing = sum(line.nbytes for (_, _, zone), line in self.lines.items() if zone)
        asked = sum(prices.request(op) * line.requests for (op, _, _), line in self.lines.items())
        return asked + crossing / GB * prices.cross_zone_gb + stored_gb_months * prices.gb_month

    def rows(self) -> list[dict[str, Any]]:
        """The lines as a table."""
        return [{"op": op, "who": who, "zone": zone} | asdict(line) for (op, who, zone), line in self.lines.items()]

    def __add__(self, other: Ledger) -> Ledger:
        total = Ledger(cpu=self.cpu + other.cpu, peak_rss=max(self.peak_rss, other.peak_rss))
        for ledger in (self, other):
            for key, line in ledger.lines.items():
                sums = total.lines.setdefault(key, Line())
                sums.requests += line.requests
                sums.nbytes += line.nbytes
                sums.seconds += line.seconds
            for op, waits in ledger.waits.items():
                total.waits[op] = total.waits.get(op, Counter()) + waits
        return total

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Add this process's processor time within the block, and keep the most memory it ever held.

        >>> ledger = Ledger()
        >>> with ledger.measuring(): _ = sum(range(10**5))
        >>> ledger.cpu > 0 and ledger.peak_rss > 10**6
        True
        """
        forget_peak()
        began = time.process_time()
        try:
            yield
        finally:
            self.cpu += time.process_time() - began
            self.peak_rss = max(self.peak_rss, peak_rss())

    def _of(self, op: str | None, who: str | None) -> Iterator[Line]:
        return (line for (o, w, _), line in self.lines.items() if op in (None, o) and who in (None, w))


def rss() -> int:
    """Bytes of memory this process holds now; the peak where the system does not say.

    >>> rss() > 10**6
    True
    """
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return peak_rss()


def peak_rss() -> int:
    """The most bytes of memory this process has held since it began, or since :func:`forget_peak` where that works."""
    with suppress(OSError):
        for row in Path("/proc/self/status").read_text().splitlines():
            if row.startswith("VmHWM:"):
                return int(row.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> bool:
    """Let the peak start again from what is held now; False where the system does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
