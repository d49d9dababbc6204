"""Pipeline schedules: in which order a stage works through the forward and backward passes of its microbatches.

A schedule gives every stage a list of slots (what, chunk, microbatch). What is F (forward), B (backward) or W (the
gradients of the weights, where a schedule takes them out of B and puts them where the stage would wait). A chunk is
one of several parts of the model on the same stage; `virtual(chunk, stage)` says which part of the model that is. What
a slot has to wait for follows from that alone, so a schedule is nothing but an order.

>>> "".join("FBW"[what] + str(mb) + " " for what, _, mb, _ in OneFOneB().slots(stage=1, pp=2, m=3))
'F0 B0 F1 B1 F2 B2 '

- GPipe: Huang et al., NeurIPS 2019. 1F1B: Narayanan et al., SOSP 2019 (PipeDream) and ICML 2021 (flush).
- Interleaved: Narayanan et al., SC 2021. Zero bubble: Qi et al., ICLR 2024. DualPipe: DeepSeek-V3, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from assay.record.errors import BadInput
from assay.training.interface import Ints, Schedule

F, B, W = 0, 1, 2
NAMES = "FBW"


def _table(rows: list[tuple[int, int, int]]) -> Ints:
    return np.array([(*row, 0) for row in rows], np.int64).reshape(-1, 4)


@dataclass(frozen=True)
class _OneChunk:
    """Stages in a row, one part of the model each."""

    chunks: int = 1
    split: bool = False
    flush: bool = True

    def virtual(self, chunk: int, stage: int, pp: int) -> int:
        """Round after round over the stages."""
        return chunk * pp + stage

    def check(self, pp: int, m: int) -> None:
        """Any number of microbatches will do."""


@dataclass(frozen=True)
class GPipe(_OneChunk):
    """All forward passes, then all backward passes; every microbatch's activations are kept.

    >>> [len(GPipe().slots(stage, pp=2, m=4)) for stage in (0, 1)]
    [8, 8]
    """

    key = "gpipe"

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        return _table([(F, 0, i) for i in range(m)] + [(B, 0, i) for i in range(m)])


@dataclass(frozen=True)
class OneFOneB(_OneChunk):
    """As many forward passes as fill the pipeline, then one backward for every forward: few activations are kept."""

    key = "1f1b"

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        warm = min(m, pp - stage - 1)
        rows = [(F, 0, i) for i in range(warm)]
        for i in range(m - warm):
            rows += [(F, 0, warm + i), (B, 0, i)]
        return _table(rows + [(B, 0, i) for i in range(m - warm, m)])


@dataclass(frozen=True)
class Interleaved(_OneChunk):
    """Every stage holds `chunks` parts of the model, so the pipeline fills in smaller pieces and idles less.

    >>> Interleaved(2).virtual(chunk=1, stage=0, pp=4)
    4
    """

    key = "interleaved"
    chunks: int = 2

    def check(self, pp: int, m: int) -> None:
        """Refuse numbers that the order is not made for."""
        if m % pp:
            raise BadInput(f"interleaved: {m} microbatches do not go round {pp} stages; use a multiple of {pp}")

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        total, v = m * self.chunks, self.chunks
        at = np.arange(total)
        chunk, mb = at % (pp * v) // pp, at // (pp * v) * pp + at % pp
        warm = min(total, 2 * (pp - stage - 1) + (v - 1) * pp)
        what = np.concatenate([np.full(warm, F), np.tile([F, B], total - warm), np.full(warm, B)])
        rows = np.zeros((2 * total, 4), np.int64)
        rows[:, 0] = what
        rows[what == F, 1], rows[what == F, 2] = chunk, mb
        rows[what == B, 1], rows[what == B, 2] = v - 1 - chunk, mb
        return rows


@dataclass(frozen=True)
class ZeroBubbleH1(_OneChunk):
    """1F1B whose gradients of weights are put off, the longer the later the stage, to fill the end of the step."""

    key = "zb-h1"
    split: bool = True

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        warm = min(m, pp - stage - 1)
        rows = [(F, 0, i) for i in range(warm)]
        for i in range(m):
            rows += [(F, 0, warm + i)] if warm + i < m else []
            rows += [(B, 0, i)]
            rows += [(W, 0, i - stage)] if i >= stage else []
        return _table(rows + [(W, 0, i) for i in range(max(0, m - stage), m)])


@dataclass(frozen=True)
class DualPipe(_OneChunk):
    """Microbatches enter at both ends; a stage holds two parts of the model and mixes both directions.

    Half of the microbatches (chunk 0) run down the stages, half (chunk 1) run up, on a second copy of the weights.
    """

    key = "dualpipe"
    chunks: int = 2
    split: bool = True

    def virtual(self, chunk: int, stage: int, pp: int) -> int:
        """One direction begins at the first stage, the other at the last."""
        return stage if chunk == 0 else pp - 1 - stage

    def check(self, pp: int, m: int) -> None:
        """Refuse numbers that the order is not made for."""
        if pp % 2 or m % 2 or m < 2 * pp:
            raise BadInput(f"dualpipe: {m} microbatches on {pp} stages; both even, and at least two a stage")

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Schedule`."""
        half, mirrored = pp // 2, stage >= pp // 2
        near = min(stage, pp - 1 - stage)  # from the end at which chunk `a` enters
        a, b = (1, 0) if mirrored else (0, 1)
        mbs = {(what, chunk): chunk * (m // 2) for what in (F, B) for chunk in (0, 1)}
        rows: list[tuple[int, int, int, int]] = []
        put_off: list[tuple[int, int, int, int]] = []

        def forward(chunk: int) -> None:
            rows.append((F, chunk, mbs[F, chunk], 0))
            mbs[F, chunk] += 1

        def backward(chunk: int, later: bool = False, joined: int = 0) -> None:
            rows.append((B, chunk, mbs[B, chunk], joined))
            (put_off if later else rows).append((W, chunk, mbs[B, chunk], joined))
            mbs[B, chunk] += 1

        def overlapped(ahead: int, back: int) -> None:
            forward(ahead)
            backward(back, joined=1)

        for _ in range(2 * (half - near - 1)):
            forward(a)
        for _ in range(near + 1):
            forward(a)
            forward(b)
        for _ in range(half - near - 1):
            backward(b, later=True)
            rows.append(put_off.pop(0))
            forward(b)
        for _ in range(m // 2 - pp + near + 1):
            overlapped(a, b)
            overlapped(b, a)
        for _ in range(half - near - 1):
            backward(b)
            overlapped(b, a)
        for i in range(near + 1):  # the second half of these leaves its weights to the end
            backward(b, later=i > near // 2 or (i == near // 2 and near % 2 == 0))
            backward(a, later=i > near // 2 - 1 + near % 2)
        for _ in range(half - near - 1):
            rows.append(put_off.pop(0))
            backward(a, later=True)
        return np.array(rows + put_off, np.int64)


@dataclass(frozen=True)
class PipeDream(OneFOneB):
    """1F1B that never drains: the next step's microbatches follow at once, on weights that are some steps old."""

    key = "pipedream"
    flush: bool = False


SCHEDULES: dict[str, type[GPipe | OneFOneB | Interleaved | ZeroBubbleH1 | DualPipe | PipeDream]] = {
    each.key: each for each in (GPipe, OneFOneB, Interleaved, ZeroBubbleH1, DualPipe, PipeDream)
}


@lru_cache(maxsize=512)
def holders(order: Schedule, pp: int) -> tuple[tuple[int, ...], ...]:
    """The stages that hold each part of the model; where it is several, each has a copy of the weights.

    >>> holders(OneFOneB(), 2), holders(DualPipe(), 4)
    (((0,), (1,)), ((0, 3), (1, 2), (1, 2), (0, 3)))
    """
    found: dict[int, set[int]] = {}
    for stage in range(pp):
        for chunk in range(order.chunks):
            found.setdefault(order.virtual(chunk, stage, pp), set()).add(stage)
    return tuple(tuple(sorted(found[part])) for part in sorted(found))


@lru_cache(maxsize=512)
def named(name: str, chunks: int = 1) -> Schedule:
    """The schedule of this name; `chunks` for interleaved.

    >>> named("zb-h1").split
    True

    Raises:
        BadInput: no such schedule.
    """
    if name not in SCHEDULES:
        raise BadInput(f"unknown schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return Interleaved(chunks) if name == "interleaved" else SCHEDULES[name]()
