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


def _shared_out(blocks: Any, workers: int) -> Any:
    """Where to cut so that no worker has parts of two sequences: workers by the blocks of each, one at least."""
    some = np.flatnonzero(blocks)
    if workers < len(some) or not len(some):
        return None
    team = np.ones(len(some), np.int64)
    for _ in range(workers - len(some)):  # one after the other to whoever has most for each of its workers
        most = np.argmax(-(-blocks[some] // team))
        team[most] += 1
    longest = (-(-blocks[some] // team)).max()
    team = -(-blocks[some] // longest)  # fewer do as well
    ends = np.concatenate([[0], np.cumsum(blocks[some])])
    return np.concatenate(
        [ends[i] + blocks[s] * np.arange(team[i]) // team[i] for i, s in enumerate(some)] + [ends[-1:]]
    )


def plan(lengths: Any, workers: int, block: int, whole: bool = False) -> Plan:
    """Equal shares of the blocks for so many workers, fewer where there are fewer blocks.

    With `whole` no worker's share goes on into another sequence, where there are workers for that: shares are less
    equal, but nobody begins twice.

    >>> made = plan([130, 1, 60], workers=2, block=64)  # five blocks: 3 + 1 + 1
    >>> made.pieces.tolist()
    [[0, 0, 2], [0, 2, 3], [1, 0, 1], [2, 0, 1]]
    >>> made.workers.tolist(), made.sequences.tolist()
    ([0, 1, 4], [0, 2, 3, 4])
    >>> plan([256, 256], workers=5, block=64, whole=True).pieces.tolist()
    [[0, 0, 2], [0, 2, 4], [1, 0, 2], [1, 2, 4]]
    """
    ends = np.concatenate([[0], np.cumsum(-(-np.asarray(lengths, np.int64) // block))])
    total = int(ends[-1])
    count = max(1, min(workers, total))
    cuts: Any = total * np.arange(count + 1) // count
    if whole and (found := _shared_out(np.diff(ends), count)) is not None:
        cuts = found
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
