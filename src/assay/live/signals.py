"""What an engine says of itself: its page of metrics, in the Prometheus text format, as one typed reading.

Engines name the same thing differently, and names move between versions. `signals.toml` holds the names; this module
looks for them. It reads only the lines it wants: of the 1,600 lines of a vLLM page about forty count.

>>> page = b'vllm:num_requests_running{engine="0"} 3\\nvllm:num_requests_running{engine="1"} 4\\n'
>>> reading = read(page)
>>> reading.family, reading.running, reading.waiting
('vllm', 7.0, None)
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

NAMES = Path(__file__).with_name("signals.toml")

# The labels of one sample, then its value; a quoted label value may hold anything, a closing brace too.
_SAMPLE = re.compile(rb'[ \t]*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?[ \t]*([^\s#{]+)')
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"')


@dataclass(frozen=True, slots=True)
class Total:
    """The sum and the count of a histogram since the engine started."""

    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One page of metrics. A field is None where the engine does not say."""

    family: str = ""
    running: float | None = None  # sequences
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    kv_tokens: float | None = None  # capacity
    kv_used: float | None = None
    hit_ratio: float | None = None  # as the engine computes it; hits and queries are better where they are
    hits: float | None = None  # prompt tokens found in the prefix cache, since the start
    queries: float | None = None  # prompt tokens looked for
    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    throughput: float | None = None  # output tokens a second, as the engine computes it
    ttft: Total | None = None
    itl: Total | None = None
    queue_time: Total | None = None
    prefill_time: Total | None = None
    step_tokens: Total | None = None

    @property
    def found(self) -> tuple[str, ...]:
        """The fields this page answered."""
        return tuple(name for name in FIELDS if getattr(self, name) is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields this page left open."""
        return tuple(name for name in FIELDS if getattr(self, name) is None)


FIELDS = tuple(field.name for field in fields(Reading) if field.name != "family")


@dataclass(frozen=True, slots=True)
class _Family:
    key: str
    title: str
    sources: dict[str, dict[str, Any]]  # our field -> how to combine -> names
    flags: dict[str, str]
    enable: str
    events: str
    repeated: frozenset[bytes]
    parts: frozenset[bytes]

    def names(self) -> set[str]:
        """Every name of a sample that this family may use."""
        found: set[str] = set()
        for source in self.sources.values():
            how, entries = next(iter(source.items()))
            for entry in entries:
                if how == "histogram":
                    found |= {f"{entry}_sum", f"{entry}_count"}
                else:
                    found |= set([entry] if isinstance(entry, str) else entry)
        return found


@cache
def _families() -> tuple[_Family, ...]:
    tables = tomllib.loads(NAMES.read_text(encoding="utf-8"))
    return tuple(
        _Family(
            key=key,
            title=table["title"],
            sources=table["fields"],
            flags=table.get("flags", {}),
            enable=table.get("enable", ""),
            events=table.get("events", ""),
            repeated=frozenset(label.encode() for label in table.get("repeated", ())),
            parts=frozenset(label.encode() for label in table.get("parts", ())),
        )
        for key, table in tables.items()
    )


@cache
def _wanted() -> dict[bytes, tuple[int, str]]:
    """A name as it stands in a page -> the family it belongs to, and the name of our table."""
    wanted = {}
    for index, family in enumerate(_families()):
        for name in family.names():
            for spelling in (name, name.replace(":", "_", 1)):
                wanted[spelling.encode()] = (index, name)
    return wanted


Samples = dict[str, list[bytes]]  # a name of our table -> what stands behind it on its lines


def read(text: bytes) -> Reading:
    """What a page of metrics says. Lines that make no sense are passed over; nothing known: a reading of no family.

    >>> read(b"<html>not a page of metrics</html>").family
    ''
    """
    families = _families()
    pages: list[Samples] = [{} for _ in families]
    wanted = _wanted()
    for line in text.split(b"\n"):
        name, brace, _ = line.partition(b"{")
        known = wanted.get(name)
        if known is None:
            # Most lines end here. Else there are no labels, a blank stands before them, or the brace is an exemplar's.
            if brace and name[-1:] > b" ":
                continue
            name = next(iter(name.split(None, 1)), b"")
            if (known := wanted.get(name)) is None:
                continue
            line = line.lstrip()
        pages[known[0]].setdefault(known[1], []).append(line[len(name) :])
    index = max(range(len(families)), key=lambda i: len(pages[i]))
    return _reading(families[index], pages[index]) if pages[index] else Reading()


def _reading(family: _Family, page: Samples) -> Reading:
    values: dict[str, Any] = {}
    for field, source in family.sources.items():
        how, entries = next(iter(source.items()))
        # The first spelling that the page has, so that a deprecated one beside it does not count twice.
        for entry in entries:
            value = _COMBINE[how](family, page, entry, source)
            if value is not None:
                values[field] = value
                break
    reading = Reading(family=family.key, **values)
    usage, capacity = reading.kv_usage, reading.kv_tokens
    if usage is not None and usage > 1.0:
        usage = 1.0
        reading = replace(reading, kv_usage=usage)
    if reading.kv_used is None and usage is not None and capacity is not None:
        reading = replace(reading, kv_used=usage * capacity)
    return reading


def _values(family: _Family, lines: Iterable[bytes]) -> list[float]:
    """One value for each label set that counts: ranks that repeat one another once, parts of a total not at all."""
    values: list[float] = []
    largest: dict[frozenset[tuple[bytes, bytes]], float] = {}
    for line in lines:
        sample = _SAMPLE.match(line)
        value = _number(sample[2]) if sample else None
        if sample is None or value is None:
            continue
        if not family.repeated and not family.parts:
            values.append(value)
            continue
        labels = _LABEL.findall(sample[1] or b"")
        if any(name in family.parts and content for name, content in labels):
            continue
        key = frozenset(label for label in labels if label[0] not in family.repeated)
        largest[key] = max(value, largest.get(key, 0.0))
    return values or list(largest.values())


def _number(text: bytes) -> float | None:
    """A count or a ratio; what is negative, infinite, not a number or not a number's text is no signal."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < math.inf and b"_" not in text else None


def _sum(family: _Family, page: Samples, entry: str | list[str], source: dict[str, Any]) -> float | None:
    total = 0.0
    for name in [entry] if isinstance(entry, str) else entry:
        values = _values(family, page.get(name, ()))
        if not values:
            return None
        total += sum(values)
    return total


def _mean(family: _Family, page: Samples, entry: str, source: dict[str, Any]) -> float | None:
    values = _values(family, page.get(entry, ()))
    return sum(values) / len(values) if values else None


def _pair(family: _Family, page: Samples, entry: list[str], source: dict[str, Any]) -> Total | None:
    total, count = (_sum(family, page, name, source) for name in entry)
    return None if total is None or count is None else Total(total, count)


def _histogram(family: _Family, page: Samples, entry: str, source: dict[str, Any]) -> Total | None:
    return _pair(family, page, [f"{entry}_sum", f"{entry}_count"], source)


def _labels(family: _Family, page: Samples, entry: str, source: dict[str, Any]) -> float | None:
    total = None
    for line in page.get(entry, ()):
        sample = _SAMPLE.match(line)
        labels = dict(_LABEL.findall(sample[1] or b"")) if sample else {}
        for names in source["product"]:
            factors = [_number(labels.get(name.encode(), b"None")) for name in names]
            if None not in factors:
                total = (total or 0.0) + math.prod(factor or 0.0 for factor in factors)
                break
    return total


_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "pair": _pair,
    "histogram": _histogram,
    "labels": _labels,
}


def report(reading: Reading) -> str:
    """One line for the log of a gateway: what was found, what is missing, and what to start the engine with.

    >>> print(report(Reading()))
    no metrics of an engine known here; SGLang needs --enable-metrics, llama.cpp needs --metrics
    >>> report(read(b"vllm:prompt_tokens_total 1\\n")).partition(", waiting")[0]
    'vLLM: found prompt_tokens; missing running'
    """
    by_key = {family.key: family for family in _families()}
    if reading.family not in by_key:
        needs = ", ".join(f"{family.title} needs {family.enable}" for family in by_key.values() if family.enable)
        return f"no metrics of an engine known here; {needs}"
    family = by_key[reading.family]
    # What this family never tells is no fault of how it was started.
    missing = [name for name in reading.missing if name in family.sources]
    line = f"{family.title}: found {', '.join(reading.found)}"
    if missing:
        line += f"; missing {', '.join(missing)}"
    cures = list(dict.fromkeys(family.flags[name] for name in missing if name in family.flags))
    return line + (f"; start the engine with {' '.join(cures)}" if cures else "")


def events_flag(family: str) -> str:
    """The flag that makes an engine of this family publish what its prefix cache holds; empty where none does.

    >>> events_flag("vllm")
    '--kv-events-config'
    """
    return next((known.events for known in _families() if known.key == family), "")


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two readings of one engine. None where nothing happened, or the engine does not say."""

    seconds: float
    ttft: float | None = None  # means, seconds
    itl: float | None = None
    queue_time: float | None = None
    prefill_time: float | None = None
    step_tokens: float | None = None
    hit_ratio: float | None = None
    prompt_rate: float | None = None  # tokens a second
    output_rate: float | None = None
    preemption_rate: float | None = None  # preemptions a second


def between(before: Reading, after: Reading, seconds: float) -> Window:
    """The window between two readings that were taken so many seconds apart.

    A counter that fell tells of an engine that was started anew: what it counts now is what happened since.

    >>> old, new = Reading(ttft=Total(10.0, 100)), Reading(ttft=Total(13.0, 110))
    >>> between(old, new, 5.0).ttft
    0.3
    """
    hits, queries = _growth(before.hits, after.hits), _growth(before.queries, after.queries)
    return Window(
        seconds=seconds,
        ttft=_window_mean(before.ttft, after.ttft),
        itl=_window_mean(before.itl, after.itl),
        queue_time=_window_mean(before.queue_time, after.queue_time),
        prefill_time=_window_mean(before.prefill_time, after.prefill_time),
        step_tokens=_window_mean(before.step_tokens, after.step_tokens),
        hit_ratio=min(hits / queries, 1.0) if hits is not None and queries else after.hit_ratio,
        prompt_rate=_rate(before.prompt_tokens, after.prompt_tokens, seconds),
        output_rate=_rate(before.output_tokens, after.output_tokens, seconds),
        preemption_rate=_rate(before.preemptions, after.preemptions, seconds),
    )


def _growth(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return after - before if after >= before else after


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    growth = _growth(before, after)
    return None if growth is None or seconds <= 0.0 else growth / seconds


def _window_mean(before: Total | None, after: Total | None) -> float | None:
    if before is None or after is None:
        return None
    if after.count < before.count or after.sum < before.sum:
        before = Total(0.0, 0.0)
    count = after.count - before.count
    return (after.sum - before.sum) / count if count > 0.0 else None
