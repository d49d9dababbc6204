"""A model of a 504-GPU training cluster under a monitor: 63 nodes, 751 metrics each, a scrape every 30 seconds.

Days of it are too large to hold (136 million values each), so any hour is drawn on its own, in any order, and the same
seed gives the same hour: :meth:`Cluster.block`. :meth:`Cluster.incident` gives the time around one planted failure as
a frame with its truth; :meth:`Cluster.healthy` a stretch of time without one.

Healthy telemetry is not white noise around a level. Metrics follow the job (sessions, saves every half hour whose NFS
traffic comes from :mod:`assay.observe.cluster.nfs_queue`), the time of day, their machine and slow drifts; a fifth
never move, some count events that hardly ever happen, some have heavy tails; scrapes fail; harmless things happen.
Nothing here is fitted to a real cluster: it is a model, and its detection figures say how methods compare, not how a
site will fare.

>>> cluster = Cluster(seed=1, days=2, nodes=4, failures=3)
>>> block = cluster.block(5)
>>> block.values.shape, bool((cluster.block(5).values == block.values)[~np.isnan(block.values)].all())
((120, 4, 751), True)
>>> cluster.plan.failures[0].fault.name in [fault.name for fault in FAULTS]
True

- "From Detection to Recovery: Operational Analysis on LLM Pre-training with 504 GPUs", arXiv:2605.09370 (the shape of
  the cluster and of its monitoring).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.observe.cluster.incidents import Incident, Truth
from assay.observe.cluster.metrics import COLUMN, GPUS, METRICS
from assay.observe.cluster.nfs_queue import saves
from assay.observe.cluster.plan import FAULTS, HOUR, SCRAPE, Failure, Plan, Shift, make
from assay.record.errors import BadInput
from assay.sim.random import stream
from assay.sim.telemetry import Block, Frame

__all__ = ["FAULTS", "METRICS", "Cluster", "Dense", "truth_of"]

NS = 1_000_000_000
_SAVE_EVERY = HOUR // 2
_SAVED = 32e9  # bytes of a node in each save
_LOST = 4e-4  # of a node's scrapes
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Dense:
    """An hour, or a part of one: a value for each scrape, node and metric; NaN where none was scraped."""

    first: int
    """The number of its first scrape."""
    values: Floats

    @property
    def times(self) -> NDArray[np.int64]:
        """Of its scrapes, in ns from the cluster's start."""
        return (self.first + np.arange(len(self.values), dtype=np.int64)) * SCRAPE * NS


@cache
def _column(field: str) -> Floats:
    """A field of all metrics."""
    made = np.array([getattr(metric, field) for metric in METRICS], np.float32)
    made.flags.writeable = False
    return made


@dataclass(frozen=True)
class Cluster:
    """A cluster for so many days, with so many failures in them."""

    seed: int = 0
    days: float = 55.0
    nodes: int = 63
    failures: int = 50

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.failures < 0 or not 0 < self.days < 4000:
            told = f"{self.nodes} nodes, {self.failures} failures, {self.days:g} days"
            raise BadInput(f"cluster: {told}; at least one node and some time would be right")

    @property
    def hours(self) -> int:
        """How many blocks there are."""
        return max(int(np.ceil(self.days * 24)), 1)

    @cached_property
    def plan(self) -> Plan:
        """What happens."""
        return make(self.seed, self.hours, self.nodes, self.failures)

    # ------------------------------------------------------------------------------------------------- samples

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[Dense]:
        """The hours from `first` up to `last`, one at a time."""
        for hour in range(first, self.hours if last is None else min(last, self.hours)):
            yield self.block(hour)

    def block(self, hour: int) -> Dense:
        """One hour."""
        scrapes = np.arange(hour * HOUR, (hour + 1) * HOUR)
        draw = stream(self.seed, "cluster504", "hour", hour)
        values = draw.standard_normal((HOUR, self.nodes, len(METRICS)), dtype=np.float32)
        np.power(values, 3, out=values, where=_column("heavy") > 0)
        values *= _column("noise")
        along = (np.arange(HOUR, dtype=np.float32) / HOUR)[:, None, None]
        here, there = self._drift(hour), self._drift(hour + 1)
        values += here
        values += along * (there - here)
        self._follow(values, scrapes, draw)
        counting = np.flatnonzero(_column("rate"))
        values[:, :, counting] = draw.poisson(_column("rate")[counting], (HOUR, self.nodes, len(counting)))
        self._disturb(values, hour, draw)
        np.maximum(values, 0.0, out=values)  # none of them can be negative; what is missing stays so
        values[draw.random((HOUR, self.nodes)) < _LOST] = np.nan
        return Dense(hour * HOUR, values)

    def columns(self) -> list[tuple[str, str]]:
        """Whose and what the values of a block are, node after node."""
        return [(_name(node, metric.gpu), metric.name) for node in range(self.nodes) for metric in METRICS]

    def flat(self, hour: int) -> Block:
        """One hour as a matrix, without the way through a frame."""
        dense = self.block(hour)
        values = dense.values.reshape(len(dense.values), -1).astype(float)
        return Block(dense.times, self.columns(), values, ~np.isnan(values))

    def _drift(self, hour: int) -> Floats:
        """Where the slow part of each series stands at the full hour, and how its machine differs from others."""
        knots = stream(self.seed, "cluster504", "drift", hour)
        slow = knots.standard_normal((self.nodes, len(METRICS)), dtype=np.float32) * _column("drift")
        return slow + self._machines

    @cached_property
    def _machines(self) -> Floats:
        draw = stream(self.seed, "cluster504", "machines")
        unlike = draw.standard_normal((self.nodes, len(METRICS)), dtype=np.float32) * _column("unlike")
        return unlike + _column("level")

    def _follow(self, values: Floats, scrapes: NDArray[np.int64], draw: np.random.Generator) -> None:
        """Add what the job, its saves and the time of day do, one node at a time lest a second block be made."""
        load, save = self.activity(scrapes)
        load = load * (1 + 0.01 * draw.standard_normal(load.shape, dtype=np.float32))
        day = np.sin(2 * np.pi * scrapes * SCRAPE / 86_400).astype(np.float32)
        for node in range(self.nodes):
            values[:, node] += load[:, node, None] * _column("load") + day[:, None] * _column("warm")
            values[:, node] += save[:, node, None] * self._saving

    @cached_property
    def _saving(self) -> Floats:
        """What a save adds to each metric; to those of NFS what the queues of so many nodes give."""
        queues = saves(self.nodes)
        known = {"rpc_rtt_seconds": queues.latency, "rpc_execute_seconds": queues.latency,
                 "rpc_slots_used": queues.waiting, "rpc_write_bytes": queues.throughput * SCRAPE}  # fmt: skip
        added = _column("save").copy()
        for name, value in known.items():
            added[COLUMN[(f"node_nfs_{name}", -1)]] = value
        return added

    def activity(self, scrapes: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """How busy each node is, and the share of each scrape's time that it spent saving; both by scrape and node."""
        runs = np.zeros((len(scrapes), self.nodes), np.float32)
        writes = np.zeros_like(runs)
        takes = _SAVED / saves(self.nodes).throughput / SCRAPE  # scrapes
        for start, end in self.plan.sessions:
            if end <= scrapes[0] or start > scrapes[-1]:
                continue
            inside = (scrapes >= start) & (scrapes < end)
            since = (scrapes - start) % _SAVE_EVERY
            runs[inside] = 1.0
            writes[inside & (scrapes - start >= _SAVE_EVERY)] = np.clip(
                takes - since[inside & (scrapes - start >= _SAVE_EVERY)], 0.0, 1.0
            )[:, None]
        for failure in self.plan.failures:
            out = (scrapes >= failure.breaks) & (scrapes < failure.repaired)
            runs[out, failure.node] = writes[out, failure.node] = 0.0
        return runs, writes

    def _disturb(self, values: Floats, hour: int, draw: np.random.Generator) -> None:
        first, last = hour * HOUR, (hour + 1) * HOUR
        for one in self.plan.disturbances:
            if one.start < last and one.end > first:
                for node in one.nodes:
                    _shift(values[:, node], first, one.start, one.end, one.shifts, draw)
        for failure in self.plan.failures:
            if failure.onset < last and failure.repaired > first:
                _shift(values[:, failure.node], first, failure.onset, failure.breaks, failure.shifts, draw)
                if failure.fault.goes_dark:
                    dark = slice(max(failure.breaks - first, 0), max(failure.repaired - first, 0))
                    values[dark, failure.node, _column("gpu") == failure.gpu] = np.nan

    # ------------------------------------------------------------------------------------------------- frames

    def incident(self, number: int, before: float = 3600.0, after: float = 600.0) -> Incident:
        """The time from so many seconds before a failure to so many after it, with its truth."""
        failure = self.plan.failures[number]
        start, end = failure.breaks - int(before / SCRAPE), failure.breaks + int(after / SCRAPE)
        return Incident(self.frame(start, end), truth_of(failure))

    def healthy(self, start: float, length: float) -> Incident:
        """A stretch of time, in seconds from the start; BadInput if a failure reaches into it."""
        first, last = int(start / SCRAPE), int((start + length) / SCRAPE)
        if any(failure.onset < last and failure.repaired > first for failure in self.plan.failures):
            raise BadInput(
                f"cluster: between {start:g} s and {start + length:g} s something fails; choose another time"
            )
        return Incident(self.frame(first, last), None)

    def frame(self, start: int, end: int) -> Frame:
        """The scrapes from `start` up to `end` as telemetry: nodes, GPUs below them, errors and sessions as events."""
        start, end = max(start, 0), min(end, self.hours * HOUR)
        hours = [self.block(hour) for hour in range(start // HOUR, -(-end // HOUR))]
        if not hours:
            raise BadInput(f"cluster: scrapes {start} to {end} are none of its {self.hours * HOUR}")
        values = np.concatenate([hour.values for hour in hours])[start - hours[0].first : end - hours[0].first]
        gpu = np.array([metric.gpu for metric in METRICS])
        names = sorted({metric.name for metric in METRICS})
        code = np.array([names.index(metric.name) for metric in METRICS], np.uint32)
        t, node, column = np.nonzero(~np.isnan(values))
        samples = pl.DataFrame({
            "t": (start + t) * (SCRAPE * NS),
            "entity": (1 + node * (GPUS + 1) + 1 + gpu[column]).astype(np.uint32),
            "metric": pl.Series(names, dtype=pl.Categorical).gather(code[column]),
            "value": values[t, node, column].astype(float),
        })  # fmt: skip
        return Frame.of(self._entities(), samples, events=self._events(start, end), source=f"cluster504:{self.seed}")

    def _entities(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = [{"id": 0, "kind": "cluster", "name": "cluster504", "parent": None}]
        for node in range(self.nodes):
            own = 1 + node * (GPUS + 1)
            rows.append({"id": own, "kind": "node", "name": _name(node), "parent": 0})
            rows += [{"id": own + 1 + g, "kind": "gpu", "name": _name(node, g), "parent": own} for g in range(GPUS)]
        return rows

    def _events(self, start: int, end: int) -> list[dict[str, object]]:
        found: list[tuple[int, int, str]] = []
        for begins, ends in self.plan.sessions:
            found += [(begins, 0, "session starts"), (ends, 0, "session ends")]
            found += [(save, 0, "save") for save in range(begins + _SAVE_EVERY, ends, _SAVE_EVERY)]
        for failure in self.plan.failures:
            if failure.fault.xid:
                found.append((failure.breaks, 2 + failure.node * (GPUS + 1) + failure.gpu, f"XID {failure.fault.xid}"))
        return [
            {"t": t * SCRAPE * NS, "entity": entity, "name": name, "severity": 17 if "XID" in name else 9}
            for t, entity, name in sorted(found) if start <= t < end
        ]  # fmt: skip


def _name(node: int, gpu: int = -1) -> str:
    return f"node{node:02d}" + (f"/gpu {gpu}" if gpu >= 0 else "")


def truth_of(failure: Failure) -> Truth:
    """Who broke, what showed it most, from when to when. Without symptoms there is no indicator."""
    most = max(failure.shifts, key=_strength, default=None)
    indicator = METRICS[most.column].name if most else None
    who = _name(failure.node, METRICS[most.column].gpu if most else failure.gpu)
    times = failure.onset * SCRAPE * NS, failure.repaired * SCRAPE * NS
    return Truth(failure.fault.name, who, indicator, *times, severity=failure.severity)


def _strength(shift: Shift) -> float:
    metric = METRICS[shift.column]
    return abs(shift.by) / (metric.noise + metric.drift + math.sqrt(metric.rate) + 1e-3)


def _shift(
    values: Floats, first: int, start: int, end: int, shifts: tuple[Shift, ...], draw: np.random.Generator
) -> None:
    """Move the columns of one node between two scrapes; those that count draw events, the others move."""
    low, high = max(start, first), min(end, first + len(values))
    if low >= high:
        return
    way = (np.arange(low, high) - start + 1) / max(end - start, 1)
    for shift in shifts:
        size = shift.by * way**shift.power * (draw.random(len(way)) < shift.burst)
        metric = METRICS[shift.column]
        moved = draw.poisson(np.maximum(size, 0.0)) if metric.rate else size
        values[low - first : high - first, shift.column] += moved.astype(np.float32)
