"""Which ranks need not be told apart: those that do the same, and whose partners do the same, end at the same instants.

Colour refinement: everybody begins with the colour of what is its own (its speed, its work). A group's colour is what
colours its members have; a member's new colour is its old one and those of its groups. When nothing splits any more,
equal colours mean equal times, for a collective starts when the last of its members is there, whichever it is. One
representative of each colour is simulated, and counts for all of them.

>>> speed = np.ones(8); speed[5] = 0.5  # 4 data-parallel copies (rows) of 2 tensor-parallel slices
>>> grid = np.arange(8).reshape(4, 2)
>>> fold(speed, tensor=grid, data=grid.T).colour.tolist()
[0, 1, 0, 1, 2, 3, 0, 1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.training.interface import Ints


@dataclass(frozen=True)
class Folded:
    """The colour of everyone, one representative and the number of members of each colour, and its groups."""

    colour: Ints
    first: Ints
    count: Ints
    groups: dict[str, Ints]  # by kind of group: which of its colours a member's colour belongs to

    def __len__(self) -> int:
        return len(self.first)


def fold(signature: object, **groups: Ints) -> Folded:
    """Fold members with equal signatures (rows, where it has several columns) and like partners.

    Args:
        signature: what is a member's own, [members] or [members, anything].
        groups: of each kind, [groups, members a group]; a member is in at most one group of a kind.
    """
    rows = np.asarray(signature)
    colour = _numbered(rows.reshape(len(rows), -1))
    while True:
        seen = [colour] + [_of_members(colour, lists)[1] for lists in groups.values()]
        finer = _numbered(np.column_stack(seen))
        if finer.max(initial=0) == colour.max(initial=0):
            break
        colour = finer
    _, first, count = np.unique(colour, return_index=True, return_counts=True)
    found = {}
    for kind, lists in groups.items():
        found[kind] = _numbered(_of_members(colour, lists)[1][first].reshape(-1, 1))
    return Folded(colour, first, count, found)


def _of_members(colour: Ints, lists: Ints) -> tuple[Ints, Ints]:
    """The colour of every group, and of each member the colour of its group (-1: in none)."""
    of_group = _numbered(np.sort(colour[lists], axis=1))
    mine = np.full(len(colour), -1, np.int64)
    mine[lists] = of_group[:, None]
    return of_group, mine


def _numbered(rows: object) -> Ints:
    """Equal rows get equal numbers, in the order in which they first appear."""
    table = np.asarray(rows)
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]
