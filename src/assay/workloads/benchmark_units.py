"""What a column of benchmark results counts, as far as its name tells: the unit, and whether less or more is better.

>>> told("parse_ms"), told("decode throughput (MB/s)"), told("parse")
(Measure(unit='ms', better='less'), Measure(unit='MB/s', better='more'), Measure(unit='', better=''))
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TIMES = {"s", "sec", "secs", "second", "seconds", "ms", "msec", "millisecond", "milliseconds", "us", "µs", "μs", "usec",
         "microsecond", "microseconds", "ns", "nsec", "nanosecond", "nanoseconds"}  # fmt: skip
SIZES = {"b", "byte", "bytes", "kb", "kib", "mb", "mib", "gb", "gib"}
COUNTS = {"instructions", "cycles", "joules", "allocs", "allocations"}
RATES = {"qps", "rps", "tps", "fps", "iops", "hz", "flops", "gflops", "tflops", "bps", "mbps", "gbps"}
BAD = {"error", "errors", "miss", "misses", "faults", "failures", "drops", "retries"}
LESS = {"latency", "duration", "runtime", "elapsed", "time", "memory", "rss", "p50", "p90", "p95", "p99"}
MORE = {"throughput", "bandwidth", "speedup", "goodput"}
RATE = re.compile(r"[\w%µμ]+(?:/|\s?per\s)(?:s|sec|second|min|minute|h|hour)\b", re.IGNORECASE)
EACH = re.compile(r"(?:/|\s?per\s)(?:op|call|iter|iteration|request|item|row|token)\b.*", re.IGNORECASE)  # ns/op


@dataclass(frozen=True, slots=True)
class Measure:
    """A unit ('' where none is told), and what is better: 'less', 'more', or '' where that is not told either."""

    unit: str
    better: str


def told(name: str) -> Measure:
    """What a name tells by its last words; a rate (`ops/s`, `tokens_per_second`) is better when it is more.

    >>> told("encode ns/op"), told("errors/s").better
    (Measure(unit='ns', better='less'), 'less')
    """
    spaced = EACH.sub("", name.replace("_", " "))
    words = re.findall(r"[\w%]+", spaced)
    known = {word.lower() for word in words}
    last = words[-1] if words else ""
    if rate := RATE.search(spaced):
        return Measure(rate[0], "less" if known & BAD else "more")
    if last.lower() in RATES:
        return Measure(last, "more")
    unit = last if last.lower() in TIMES | SIZES | COUNTS else ""
    if known & MORE:
        return Measure(unit, "more")
    return Measure(unit, "less" if unit or known & (LESS | BAD) else "")
