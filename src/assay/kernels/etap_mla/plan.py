"""Who reads what: the blocks of all sequences in one row, cut into equal shares, one a worker.

A worker's share may end one sequence and begin the next; each such piece leaves a partial result of its own, in the
order of the row, so that the pieces of a sequence lie side by side for the pass that combines them. NumPy alone: the
benchmark on a GPU reads this file without assay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Plan:
    """Pieces (sequence, first block, last block), the pieces of each worker, and those of each sequence."""

    pieces: Any  # int32 [n, 3]
    workers: Any  # int32 [workers + 1]: where each worker's pieces begin
    sequences: Any  # int32 [batch + 1]: where each sequence's pieces begin
    block: int

    @property
    def splits(self) -> int:
        """The most pieces that a sequence has."""
        return int(np.diff(self.sequences).max(initial=0))


def plan(lengths: Any, workers: int, block: int) -> Plan:
    """Equal shares of the blocks for so many workers, fewer where there are fewer blocks.

    >>> made = plan([130, 1, 60], workers=2, block=64)  # five blocks: 3 + 1 + 1
    >>> made.pieces.tolist()
    [[0, 0, 2], [0, 2, 3], [1, 0, 1], [2, 0, 1]]
    >>> made.workers.tolist(), made.sequences.tolist()
    ([0, 1, 4], [0, 2, 3, 4])
    """
    ends = np.concatenate([[0], np.cumsum(-(-np.asarray(lengths, np.int64) // block))])
    total = int(ends[-1])
    count = max(1, min(workers, total))
    cuts: Any = total * np.arange(count + 1) // count
    bounds = np.unique(np.concatenate([ends, cuts]))
    begin, end = bounds[:-1], bounds[1:]
    of = np.searchsorted(ends, begin, side="right") - 1
    pieces = np.stack([of, begin - ends[of], end - ends[of]], axis=1)
    return Plan(
        np.ascontiguousarray(pieces, np.int32),
        np.searchsorted(bounds, cuts).astype(np.int32),
        np.searchsorted(bounds, ends).astype(np.int32),
        block,
    )
