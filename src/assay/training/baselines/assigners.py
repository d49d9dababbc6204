"""Which copy of the model trains on which sample, and in which of its microbatches.

>>> RoundRobin().assign(np.array([5.0, 1.0, 4.0, 2.0]), copies=2, m=1).tolist()
[[0, 0], [1, 0], [0, 0], [1, 0]]
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from assay.training.interface import Floats, Ints


@dataclass(frozen=True)
class RoundRobin:
    """One after the other, as data loaders do: what a sample costs does not matter."""

    key = "round-robin"

    def assign(self, work: Floats, copies: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Assigner`."""
        at = np.arange(len(work))
        return np.column_stack([at % copies, at // copies % m])


@dataclass(frozen=True)
class Longest:
    """The dearest sample first, each to the copy and microbatch that has least to do (Graham's LPT rule)."""

    key = "longest-first"

    def assign(self, work: Floats, copies: int, m: int) -> Ints:
        """As in :class:`assay.training.interface.Assigner`.

        >>> Longest().assign(np.array([5.0, 1.0, 4.0, 2.0]), copies=2, m=1).tolist()
        [[0, 0], [0, 0], [1, 0], [1, 0]]
        """
        found = np.zeros((len(work), 2), np.int64)
        heap = [(0.0, mb, copy) for mb in range(m) for copy in range(copies)]
        for sample in np.argsort(-work, kind="stable").tolist():
            load, mb, copy = heapq.heappop(heap)
            found[sample] = copy, mb
            heapq.heappush(heap, (load + float(work[sample]), mb, copy))
        return found


ASSIGNERS = {one.key: one for one in (RoundRobin, Longest)}
