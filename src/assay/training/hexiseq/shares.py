"""Where tokens and heads of an unequal split lie: positions of each group, heads of each rank, what no group cuts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from assay.training.hexiseq.pace import Split, laid
from assay.training.interface import Ints


class Shares:
    """Heads of keys of each rank, as first and last; a group's ranks have theirs one after the other.

    >>> split = Split(np.array([0, 0, 1]), np.array([3, 1, 2]), np.array([6, 2, 8]))
    >>> Shares(split, kv_heads=4).keys.tolist()
    [[0, 3], [3, 4], [0, 4]]
    """

    def __init__(self, split: Split, kv_heads: int) -> None:
        order, ptr = laid(split.group)
        shared = int(split.heads.sum()) // split.groups // kv_heads
        if (split.heads % shared).any():
            raise ValueError(f"heads {split.heads.tolist()} are not multiples of {shared}, those of one head of keys")
        self.members = [order[a:b] for a, b in pairwise(ptr)]
        self.keys: Ints = np.zeros((len(order), 2), np.int64)
        for ranks in self.members:
            ends = np.cumsum(split.heads[ranks] // shared)
            self.keys[ranks] = np.stack([ends - split.heads[ranks] // shared, ends], axis=1)

    def owner(self, group: int, head: int) -> int:
        """Who of a group has this head."""
        return next(int(r) for r in self.members[group] if self.keys[r, 0] <= head < self.keys[r, 1])


def intervals(split: Split, kv_heads: int) -> list[tuple[int, int]]:
    """Heads of keys that no group cuts: the common refinement of all groups' cuts.

    >>> split = Split(np.array([0, 0, 1, 1]), np.array([3, 1, 2, 2]), np.array([6, 2, 4, 4]))
    >>> intervals(split, kv_heads=4)
    [(0, 2), (2, 3), (3, 4)]
    """
    cuts = np.unique(np.concatenate([Shares(split, kv_heads).keys.ravel(), [0, kv_heads]]))
    return [(int(a), int(b)) for a, b in pairwise(cuts)]


def positions(lengths: Ints) -> list[list[tuple[int, int]]]:
    """Stretches of the sequence of each group: one from the front, one from the back, so that all see equally much.

    >>> positions(np.array([4, 2, 1]))
    [[(0, 2), (5, 7)], [(2, 3), (4, 5)], [(3, 4)]]
    """
    found, front, back = [], 0, int(lengths.sum())
    for length in lengths.tolist():
        first, second = length - length // 2, length // 2
        stretches = [(front, front + first), (back - second, back)]
        found.append([(a, b) for a, b in stretches if a < b])
        front, back = front + first, back - second
    return found


def tokens_of(split: Split) -> list[Ints]:
    """Positions of each rank's own tokens: its group's stretches, dealt to its ranks in their order."""
    found: list[Ints] = [np.zeros(0, np.int64)] * len(split.group)
    for group, stretches in enumerate(positions(split.lengths)):
        places = np.concatenate([np.arange(a, b) for a, b in stretches] or [np.zeros(0, np.int64)])
        ranks = np.flatnonzero(split.group == group)
        for r, part in zip(ranks, np.split(places, np.cumsum(split.tokens[ranks])[:-1]), strict=True):
            found[r] = part
    return found
