"""PipeDream's slots: who does what when, and how old the weights are that an update was computed with.

In a slot every stage does one pass of one microbatch. The first stage admits a microbatch while fewer than `most` are
on their way; a pass can begin in the slot after its input was ready. A stage takes a backward pass where one is ready
and a forward pass where not, which makes it alternate once the pipeline is full.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from assay.sim.compiled import njit
from assay.training.interface import Ints


def timeline(stages: int, microbatches: int, most: int | None = None) -> Ints:
    """[slot, stage]: m + 1 for a forward pass of microbatch m, -(m + 1) for a backward pass, 0 for nothing.

    >>> timeline(2, 3).T.tolist()
    [[1, 2, 0, -1, 3, -2, 0, -3], [0, 1, -1, 2, -2, 3, -3, 0]]
    """
    if stages < 1 or microbatches < 1:
        raise ValueError(f"{stages} stages and {microbatches} microbatches; at least one of each is needed")
    return _timeline(stages, microbatches, stages if most is None else most)


@njit(cache=True)
def _timeline(stages: int, microbatches: int, most: int) -> Ints:
    forward = np.zeros(stages, np.int64)  # the next microbatch of each stage
    backward = np.zeros(stages, np.int64)
    # The slot in which a pass of (microbatch, stage) was done; -1 before.
    went = np.full((microbatches, stages), -1, np.int64)
    came = np.full((microbatches, stages), -1, np.int64)
    rows = np.zeros((4 * (microbatches + 2 * stages) * max(1, stages // max(1, most)), stages), np.int64)
    slot = 0
    while backward[0] < microbatches:
        for s in range(stages):
            f, b = forward[s], backward[s]
            can_f = f < microbatches
            if can_f:
                can_f = f - b < most if s == 0 else 0 <= went[f, s - 1] < slot
            can_b = b < f and went[b, s] < slot
            if can_b and s < stages - 1:
                can_b = 0 <= came[b, s + 1] < slot
            if can_b:
                came[b, s], backward[s] = slot, b + 1
                rows[slot, s] = -(b + 1)
            elif can_f:
                went[f, s], forward[s] = slot, f + 1
                rows[slot, s] = f + 1
        slot += 1
    return rows[:slot].copy()


class Delays(NamedTuple):
    """Of every (microbatch, stage): how many updates of blocks had been made at its forward pass and at its update."""

    read: Ints
    updated: Ints

    @property
    def of_updates(self) -> Ints:
        """[microbatch, stage]: the age, in updates of any block, of the oldest block behind an update."""
        return np.asarray(self.updated - self.read.min(axis=1)[:, None])

    def steady(self) -> int:
        """The largest in the middle half of the run, where the pipeline is neither filling nor draining."""
        quarter = len(self.read) // 4
        return int(self.of_updates[quarter : len(self.read) - quarter].max())


def delays(slots: Ints) -> Delays:
    """Count updates in the order of slots, and of stages within a slot.

    >>> delays(timeline(4, 40)).steady()
    14
    """
    microbatches, stages = int(slots.max()), slots.shape[1]
    read, updated = (np.zeros((microbatches, stages), np.int64) for _ in range(2))
    flat = slots.ravel()
    stage = np.tile(np.arange(stages), len(slots))
    before: Ints = np.cumsum(flat < 0) - (flat < 0)
    f, b = flat > 0, flat < 0
    read[flat[f] - 1, stage[f]] = before[f]
    updated[-flat[b] - 1, stage[b]] = before[b]
    return Delays(read, updated)
