"""How many robust standard deviations: each series against its peers at the same time and against its own past.

The simplest detector worth comparing with. From every value is taken what its peers share at that moment (a new phase
of the job moves all machines alike) and how it always differed from them (no two machines are equal). What is left is
measured, in either direction, by its usual spread or by that among the peers right now, whichever is larger, and must
last for some scrapes. A series that should be there and is not, while its peers are, scores highest. All of it by
medians, which a few faulty machines cannot move.

>>> heat = lambda t, i: 50.0 + i + (t * 7 + i * 3) % 5 + 30 * (i == 2 and t > 14)
>>> samples = [{"t": t, "entity": i, "metric": "heat", "value": heat(t, i)} for t in range(20) for i in range(6)]
>>> frame = Frame.of([{"id": i, "kind": "node", "name": f"n{i}"} for i in range(6)], samples)
>>> NSigma().explain(frame).suspects[0].entity
'n2'

- Iglewicz, Hoaglin, "How to detect and handle outliers", 1993 (the modified z-score, and what to do where MAD is zero).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from assay.observe.interface import Alarm, Attributor, Detector, Diagnosis
from assay.record.errors import BadInput
from assay.sim.telemetry import Block, Frame

Floats = NDArray[np.float64]
HIGHEST = 100.0
"""No score is higher: beyond, the size of a deviation says more of its unit than of the fault."""
_PEERS = 4  # fewer have no majority to differ from
_MISSING = 2  # scrapes: one may be lost on the way
_EXPECTED = 0.9  # the share of its past at which a series was there


def deviation(values: Floats, axis: int) -> tuple[Floats, Floats]:
    """The median and the robust standard deviation along an axis, without what is missing; both keep the axis.

    Where more than half are equal the median deviation is zero; then the mean deviation takes its place.
    """
    with np.errstate(all="ignore"):
        middle = _median(values, axis)
        away = np.abs(values - middle)
        spread = 1.4826 * _median(away, axis)
        there = ~np.isnan(away)
        mean = np.where(there, away, 0.0).sum(axis, keepdims=True) / there.sum(axis, keepdims=True)
    spread = np.where(spread > 0, spread, 1.2533 * mean)
    return middle, np.maximum(spread, 1e-6 * np.abs(middle) + 1e-12)


def _median(values: Floats, axis: int) -> Floats:
    """As `np.nanmedian`, which is many times slower: what is missing sorts behind the rest."""
    ordered = np.sort(values, axis)
    count = (~np.isnan(values)).sum(axis, keepdims=True)
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, values.shape[axis] - 1)
    middle = (np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)) / 2
    return np.where(count > 0, middle, np.nan)


def peers(metrics: Sequence[str]) -> list[NDArray[np.intp]]:
    """The columns of each metric that enough entities have."""
    names, group = np.unique(np.asarray(metrics), return_inverse=True)
    order = np.argsort(group, kind="stable")
    each = np.split(order, np.cumsum(np.bincount(group, minlength=len(names)))[:-1])
    return [columns for columns in each if len(columns) >= _PEERS]


def unshared(values: Floats, groups: Iterable[NDArray[np.intp]]) -> Floats:
    """What is left of each value without the median of its peers at the same time.

    >>> unshared(np.array([[1.0, 2.0, 3.0, 9.0], [11.0, 12.0, 13.0, 19.0]]), peers(["x"] * 4)).tolist()
    [[-1.5, -0.5, 0.5, 6.5], [-1.5, -0.5, 0.5, 6.5]]
    """
    rest = values.copy()
    for columns in groups:
        rest[:, columns] -= _median(values[:, columns], 1)
    return rest


def lasting(scores: Floats, scrapes: int) -> Floats:
    """The score that each series kept for so many scrapes up to each; a gap breaks it. The first ones have no past.

    >>> lasting(np.array([[5.0], [9.0], [7.0], [1.0]]), 2).ravel().tolist()
    [0.0, 5.0, 7.0, 1.0]
    """
    filled = np.nan_to_num(scores, nan=0.0)
    kept = filled.copy()
    for back in range(1, scrapes):
        kept[back:] = np.minimum(kept[back:], filled[:-back])
    kept[: scrapes - 1] = 0.0
    return kept


def missing_scores(valid: NDArray[np.bool_], metrics: Sequence[str], expected: NDArray[np.bool_]) -> Floats:
    """`HIGHEST` where an expected series was absent for some scrapes while most series of its metric were there."""
    _, group = np.unique(np.asarray(metrics), return_inverse=True)
    size = np.bincount(group)
    present = np.stack([np.bincount(group, weights=row, minlength=len(size)) for row in valid]) / size
    alone = ~valid & expected & (present[:, group] > 0.5)
    return lasting(np.where(alone, HIGHEST, 0.0), _MISSING)


@dataclass(frozen=True)
class Past:
    """What is normal for each series beside its peers, and which of them are always there."""

    columns: list[tuple[str, str]]
    middle: Floats
    spread: Floats
    expected: NDArray[np.bool_]

    @classmethod
    def of(cls, block: Block) -> Past:
        """From a stretch of time without a fault, or one that is mostly so."""
        middle, spread = deviation(unshared(block.values, peers([metric for _, metric in block.columns])), 0)
        return cls(block.columns, middle[0], spread[0], block.valid.mean(0) >= _EXPECTED)

    @cached_property
    def groups(self) -> list[NDArray[np.intp]]:
        """The columns of each metric that enough entities have."""
        return peers([metric for _, metric in self.columns])

    def scores(self, values: Floats, valid: NDArray[np.bool_], scrapes: int) -> Floats:
        """How far out of the ordinary each series has been for so many scrapes, up to each scrape."""
        rest = unshared(values, self.groups) - self.middle
        scale = np.broadcast_to(self.spread, rest.shape).copy()
        for columns in self.groups:
            scale[:, columns] = np.fmax(scale[:, columns], deviation(rest[:, columns], 1)[1])
        found = lasting(np.minimum(np.abs(rest) / scale, HIGHEST), scrapes)
        return np.maximum(found, missing_scores(valid, [metric for _, metric in self.columns], self.expected))


@dataclass(frozen=True)
class NSigma(Attributor):
    """Blames whoever is farthest out of the ordinary in the later part of a frame."""

    past: float = 0.5
    """The share of the frame's scrapes that are taken for normal."""
    lasts: int = 3
    """For how many scrapes a deviation must last."""

    def explain(self, frame: Frame) -> Diagnosis:
        """Series, ranked by their highest lasting score."""
        block = frame.block()
        split = int(len(block.times) * self.past)
        if split < 2 or len(block.times) - split < self.lasts:
            return Diagnosis(why=f"{len(block.times)} scrapes are too few to tell the ordinary from the rest")
        early = Block(block.times[:split], block.columns, block.values[:split], block.valid[:split])
        scores = Past.of(early).scores(block.values[split:], block.valid[split:], self.lasts)
        return Diagnosis.ranked(block.columns, scores.max(0))


@dataclass
class NSigmaDetector(Detector):
    """Raises an alarm when a series leaves the ordinary, once for each entity until that has been quiet for an hour."""

    past: Past
    threshold: float = 10.0
    lasts: int = 3
    quiet: float = 3600.0
    """Seconds after which the same entity may raise an alarm again."""

    def __post_init__(self) -> None:
        self._place = {column: i for i, column in enumerate(self.past.columns)}
        self._tail = np.empty((0, len(self._place)))
        self._last: dict[str, int] = {}

    @classmethod
    def calibrated(cls, past: Iterable[Block], more: Iterable[Block], per_day: float) -> NSigmaDetector:
        """What is normal from `past`; the threshold from `more`, healthy too: it would have raised `per_day` alarms."""
        blocks = list(past)
        joined = replace(
            blocks[0],
            times=np.concatenate([b.times for b in blocks]),
            values=np.concatenate([b.values for b in blocks]),
            valid=np.concatenate([b.valid for b in blocks]),
        )
        made = cls(Past.of(joined))
        highest: list[float] = []
        seconds = 0.0
        owners, number = np.unique([entity for entity, _ in joined.columns], return_inverse=True)
        for block in more:
            best = np.zeros(len(owners))
            np.maximum.at(best, number, made._scores(block).max(0))
            highest += best.tolist()
            seconds += len(block.times) * float(np.median(np.diff(block.times))) / 1e9
        if not highest:
            raise BadInput("nsigma: no healthy time is left to set the threshold on")
        allowed = int(per_day * seconds / 86_400)
        threshold = float(np.sort(highest)[::-1][min(allowed, len(highest) - 1)])
        return cls(made.past, np.nextafter(threshold, np.inf))

    def update(self, frame: Frame) -> list[Alarm]:
        """The alarms of the next piece."""
        return self.watch(frame.block())

    def watch(self, block: Block) -> list[Alarm]:
        """The same, for a block."""
        scores = self._scores(block)
        alarms = []
        rows, columns = np.nonzero(scores >= self.threshold)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            entity, metric = self.past.columns[column]
            t = int(block.times[row])
            if t - self._last.get(entity, -(1 << 62)) > self.quiet * 1e9:
                alarms.append(Alarm(t, entity, metric, float(scores[row, column])))
            self._last[entity] = t
        return alarms

    def _scores(self, block: Block) -> Floats:
        """Of the known series, in their order; the last scrapes of the piece before are the past of the first ones."""
        values = np.full((len(block.times), len(self._place)), np.nan)
        known = [(self._place[column], i) for i, column in enumerate(block.columns) if column in self._place]
        if known:
            ours, theirs = (list(side) for side in zip(*known, strict=True))
            values[:, ours] = block.values[:, theirs]
        before = len(self._tail)
        longer = np.concatenate([self._tail, values])
        self._tail = longer[len(longer) - min(len(longer), max(self.lasts, _MISSING) - 1) :]
        return self.past.scores(longer, ~np.isnan(longer), self.lasts)[before:]
