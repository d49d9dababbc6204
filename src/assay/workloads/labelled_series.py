"""Series that carry labels, as telemetry: which labels say *who* was measured, and which belong to *what*.

Monitoring systems name a series by a metric and a set of labels. Here the labels that name a machine, a GPU, a rank or
a pod make the entity; all others stay with the metric, sorted, as in `http_requests_total{code="500"}`. So the same
quantity of two machines has one name, and peers can be compared. Nothing is lost but what only repeats the entity (a
GPU's serial number beside its index) and the scraper's `job`, which returns in the name if one address has two jobs.

>>> series = Labelled()
>>> series.add("DCGM_FI_DEV_GPU_TEMP", {"instance": "n1:9400", "gpu": "3", "UUID": "GPU-5f"}, [10, 20], [61.0, 62.0])
>>> series.add("http_requests_total", {"instance": "n1:8000", "code": "500"}, [10], [7.0])
>>> frame = series.frame("example")
>>> frame.entities.select("kind", "name").rows()
[('node', 'n1:9400'), ('gpu', 'n1:9400/gpu 3'), ('node', 'n1:8000')]
>>> frame.samples["metric"].unique().sort().to_list()
['DCGM_FI_DEV_GPU_TEMP', 'http_requests_total{code="500"}']
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from assay.record.errors import BadInput
from assay.sim.telemetry import ONE_CLOCK, Frame

_MACHINE = ("instance", "node", "Hostname", "hostname", "nodename", "host")
_PARTS = frozenset(("gpu", "rank", "pod"))
_WHO = _PARTS | {*_MACHINE, "job"}
_REPEATS = {"gpu": {"UUID", "uuid", "device", "modelName", "pci_bus_id", "DCGM_FI_DRIVER_VERSION", "Hostname"}}
_NUMBERS = ("le", "quantile")
_COUNTS = re.compile(r"_(total|count|sum|bucket)$")
_UNIT = re.compile(r"_(seconds|bytes|celsius|joules|watts|volts|amperes|meters|ratio|grams|hertz)(?:_total|_sum)?$")
LATEST = 2**63 - 1
"""The last nanosecond that a time can be: in the year 2262."""


def metric_name(name: str, labels: Mapping[str, str]) -> str:
    """The metric with the labels that are its own, in one spelling: sorted, bounds of buckets as numbers.

    >>> metric_name("x_bucket", {"path": "/", "le": "1"})
    'x_bucket{le="1.0",path="/"}'
    """
    if not labels:
        return name
    return f"{name}{{{','.join([_spelled(*label) for label in sorted(labels.items())])}}}"


@lru_cache(maxsize=1 << 12)
def _spelled(key: str, value: str) -> str:
    if key in _NUMBERS:
        with suppress(ValueError):
            value = "+Inf" if (number := float(value)) == float("inf") else repr(number)
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{key}="{escaped}"'


class _Place(NamedTuple):
    """Who: the scraped address, the job that scraped it, and perhaps a part of the machine."""

    machine: str
    job: str
    part: str = ""
    number: str = ""
    clock: str = ONE_CLOCK


class Labelled:
    """Gathers series, then makes one frame of them."""

    def __init__(self) -> None:
        self.repairs: dict[str, int] = {}
        self.units: dict[str, str] = {}
        self._about: dict[str, tuple[bool, str]] = {}  # of a metric's bare name: whether it counts, its unit
        self._kinds: dict[_Place, str] = {}
        self._places: dict[_Place, int] = {}
        self._machines: dict[tuple[str, str, str], int] = {}
        self._metrics: dict[str, int] = {}
        self._columns: list[tuple[int, int]] = []  # of each series: entity, metric
        self._known: dict[tuple[int, int], int] = {}
        self._counters: list[bool] = []
        self._times: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []
        self._series: list[NDArray[np.int32]] = []
        self._events: list[dict[str, Any]] = []

    def count(self, what: str, times: int = 1) -> None:
        """Note that something was mended while reading."""
        if times:
            self.repairs[what] = self.repairs.get(what, 0) + times

    def entity(self, machine: str, kind: str = "node", *, job: str = "", clock: str = ONE_CLOCK) -> int:
        """The number of an entity of its own."""
        key = machine, job, clock
        if key not in self._machines:
            self._machines[key] = self._number(_Place(machine, job, clock=clock), kind)
        return self._machines[key]

    def part(self, machine: str, kind: str, name: str, *, job: str = "", clock: str = ONE_CLOCK) -> int:
        """The number of a part of a machine: a GPU, a pod, a service."""
        self.entity(machine, job=job, clock=clock)
        return self._number(_Place(machine, job, kind, name, clock), kind)

    def _number(self, place: _Place, kind: str) -> int:
        self._kinds.setdefault(place, kind)
        return self._places.setdefault(place, len(self._places))

    def series(self, name: str, labels: Mapping[str, str], fallback: str = "", *, counter: bool | None = None) -> int:
        """The number of the series of a metric and its labels; `fallback` names who has no label that does."""
        own = dict(labels)
        entity = self._who(own, fallback) if not _WHO.isdisjoint(own) else self.entity(fallback or "unnamed")
        if name not in self._about:
            self._about[name] = bool(_COUNTS.search(name)), self.units.get(name) or next(iter(_UNIT.findall(name)), "")
        rises, unit = self._about[name]
        return self.column(entity, metric_name(name, own), counter=rises if counter is None else counter, unit=unit)

    def _who(self, own: dict[str, str], fallback: str) -> int:
        """The entity that labels name; those that do are taken out of them."""
        job = own.pop("job", "")
        where = next((own.pop(label) for label in _MACHINE if own.get(label)), "")
        part = "" if _PARTS.isdisjoint(own) else next((label for label in ("gpu", "rank", "pod") if own.get(label)), "")
        if part:
            number = self.part(where or fallback or "unnamed", part, own.pop(part), job=job)
            for label in _REPEATS.get(part, ()):
                own.pop(label, None)
            return number
        if not where and job and not fallback:
            return self.entity(job, "service")
        return self.entity(where or fallback or "unnamed", job=job)

    def column(self, entity: int, metric: str, *, counter: bool = False, unit: str = "") -> int:
        """The number of the series of an entity and a finished metric name."""
        key = entity, self._metrics.setdefault(metric, len(self._metrics))
        number = self._known.setdefault(key, len(self._columns))
        if number == len(self._columns):
            self._columns.append(key)
            self._counters.append(counter)
            if unit:
                self.units.setdefault(metric, unit)
        return number

    def extend(self, series: int, times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Samples of a series, as they came."""
        self.scatter(np.full(len(times), series, np.int32), times, values)

    def scatter(self, series: ArrayLike, times: ArrayLike, values: ArrayLike) -> None:
        """Samples of many series at once, each with its series' number, as they came."""
        self._series.append(np.asarray(series, np.int32))
        self._times.append(np.asarray(times, np.int64))
        self._values.append(np.asarray(values, float))

    def add(self, name: str, labels: Mapping[str, str], times: ArrayLike, values: ArrayLike) -> None:
        """A series with its samples."""
        self.extend(self.series(name, labels), np.asarray(times, np.int64), np.asarray(values, float))

    def event(self, t: int, series: int, name: str, text: str) -> None:
        """Something that happened to the entity of a series."""
        self._events.append({"t": t, "entity": self._columns[series][0], "name": name, "text": text})

    def frame(self, source: str) -> Frame:
        """All of it."""
        samples = self._samples()
        units = {metric: unit for metric, unit in self.units.items() if metric in self._metrics}
        return Frame.of(self.entities(), samples, None, self._events, units=units, source=source, repairs=self.repairs)

    def _samples(self) -> pl.DataFrame | None:
        if not self._columns:
            return None
        series = np.concatenate(self._series)
        times, values = np.concatenate(self._times), np.concatenate(self._values)
        self._times, self._values, self._series = [], [], []  # never two copies of all
        self._note_clock_jumps(series, times, values)
        entity, metric = (np.asarray(column, np.uint32) for column in zip(*self._columns, strict=True))
        names = pl.Series(list(self._metrics), dtype=pl.Categorical)
        return pl.DataFrame(
            {"t": times, "entity": entity[series], "metric": names.gather(metric[series]), "value": values}
        )

    def _note_clock_jumps(self, series: NDArray[np.int32], t: NDArray[np.int64], v: NDArray[np.float64]) -> None:
        """A counter that rises while its times fall was not shuffled: the clock that stamped it was set back."""
        s = series
        if bool((s[1:] < s[:-1]).any()):
            order = np.argsort(series, kind="stable")
            s, t, v = series[order], t[order], v[order]
        back = (s[1:] == s[:-1]) & (t[1:] < t[:-1]) & (v[1:] > v[:-1]) & np.asarray(self._counters, bool)[s[1:]]
        self.count("times of a rising counter that go back (its clock was set back)", int(back.sum()))

    def entities(self) -> list[dict[str, Any]]:
        """The rows of the table of entities; an address that two jobs scrape is told apart by the job."""
        jobs: dict[str, set[tuple[str, str]]] = {}
        for place in self._places:
            jobs.setdefault(place.machine, set()).add((place.job, place.clock))
        rows = []
        for place, number in self._places.items():
            name = place.machine + (f" ({place.job})" if len(jobs[place.machine]) > 1 and place.job else "")
            parent = None
            if place.part:
                parent = self._places.get(place._replace(part="", number=""))
                name += f"/{place.number}" if place.part in ("pod", "service") else f"/{place.part} {place.number}"
            kind = self._kinds[place]
            rows.append({"id": number, "kind": kind, "name": name, "parent": parent, "clock": place.clock})
        return rows


def nanoseconds(seconds: NDArray[np.float64], where: str) -> NDArray[np.int64]:
    """Seconds since 1970 as nanoseconds; a float of today's date is good to a microsecond, so that is kept.

    >>> nanoseconds(np.array([1_700_000_000.123]), "x").tolist()
    [1700000000123000000]
    """
    if not bool(np.all(np.abs(seconds) < LATEST / 1e9)):
        odd = seconds[~(np.abs(seconds) < LATEST / 1e9)][0]
        raise BadInput(f"{where}: the time {odd:g} s is none; seconds since 1970, before the year 2262, would be right")
    whole = np.floor(seconds)
    return whole.astype(np.int64) * 1_000_000_000 + np.rint((seconds - whole) * 1e6).astype(np.int64) * 1000
