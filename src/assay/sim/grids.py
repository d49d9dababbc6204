"""Ranks in a grid, tensors cut over it, and who sends which slice to whom when the cut changes.

Several grids may lie over the same ranks: attention cut one way and experts another, an encoder's layout and a
decoder's. A grid names its axes, the one that changes fastest first.

>>> grid = Grid.of(tp=2, dp=3)
>>> grid.ranks, grid.coordinates(3), grid.groups("dp").tolist()
(6, {'tp': 1, 'dp': 1}, [[0, 2, 4], [1, 3, 5]])
>>> rows, columns = Cut(Grid.of(tp=2), ("tp", None)), Cut(Grid.of(tp=2), (None, "tp"))
>>> for move in moves((4, 4), rows, columns):
...     print(move.source, "->", move.target, move.low, move.high)
0 -> 0 (0, 0) (2, 2)
1 -> 0 (2, 0) (4, 2)
0 -> 1 (0, 2) (2, 4)
1 -> 1 (2, 2) (4, 4)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput

Ints = NDArray[np.int64]
Box = tuple[tuple[int, int], ...]  # from and to, in each dimension


@dataclass(frozen=True)
class Grid:
    """Axes by name and size, the fastest first; its first rank is `first`."""

    axes: tuple[tuple[str, int], ...]
    first: int = 0

    @classmethod
    def of(cls, first: int = 0, **axes: int) -> Grid:
        """From names and sizes."""
        if bad := [name for name, size in axes.items() if size < 1]:
            raise BadInput(f"{bad[0]} is {axes[bad[0]]}, should be at least 1")
        return cls(tuple(axes.items()), first)

    @property
    def ranks(self) -> int:
        """How many."""
        return math.prod(size for _, size in self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank lies on each axis."""
        rest, found = rank - self.first, {}
        if not 0 <= rest < self.ranks:
            raise BadInput(f"rank {rank} is not among the {self.ranks} from {self.first} on")
        for name, size in self.axes:
            rest, found[name] = divmod(rest, size)
        return found

    def rank(self, **at: int) -> int:
        """The rank at these coordinates; 0 where an axis is not named.

        >>> Grid.of(tp=2, dp=3).rank(tp=1, dp=2)
        5
        """
        found, stride = self.first, 1
        for name, size in self.axes:
            found += stride * at.get(name, 0)
            stride *= size
        return found

    def groups(self, *names: str) -> Ints:
        """Ranks that differ only on these axes, a row a group."""
        sizes = [size for _, size in self.axes]
        table = self.first + np.arange(self.ranks).reshape(sizes[::-1]).T  # axis i of the table is axis i of the grid
        inside = [at for at, (name, _) in enumerate(self.axes) if name in names]
        others = [at for at in range(len(sizes)) if at not in inside]
        width = math.prod(sizes[at] for at in inside)
        return np.asarray(table.transpose([*others[::-1], *inside[::-1]]).reshape(-1, width))


@dataclass(frozen=True)
class Cut:
    """How a tensor lies on a grid: the axis that cuts each dimension, or several, the slowest first; None where it is
    whole; copies elsewhere."""

    grid: Grid
    dims: tuple[str | tuple[str, ...] | None, ...]

    def box(self, rank: int, shape: Sequence[int]) -> Box:
        """The slice that a rank holds; sizes that do not divide are cut as evenly as they can be.

        >>> Cut(Grid.of(tp=2), ("tp",)).box(1, (5,))
        ((2, 5),)
        >>> Cut(Grid.of(tp=2, cp=3), (("cp", "tp"),)).box(3, (12,))  # the second half of the middle third
        ((6, 8),)
        """
        at, sizes = self.grid.coordinates(rank), dict(self.grid.axes)
        axes = [() if dim is None else (dim,) if isinstance(dim, str) else dim for dim in self.dims]
        if len(shape) != len(axes) or any(name not in sizes for names in axes for name in names):
            raise BadInput(f"cut {self.dims} of a tensor of {len(shape)} dimensions on {', '.join(sizes)}")
        found = []
        for names, n in zip(axes, shape, strict=True):
            low, high = 0, n
            for name in names:
                size, part = high - low, sizes[name]
                low, high = low + at[name] * size // part, low + (at[name] + 1) * size // part
            found.append((low, high))
        return tuple(found)


@dataclass(frozen=True)
class Move:
    """A slice, from `low` to `high` in the whole tensor's coordinates, that one rank has and another needs."""

    source: int
    target: int
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def items(self) -> int:
        """Elements."""
        return math.prod(high - low for low, high in zip(self.low, self.high, strict=True))


def moves(shape: Sequence[int], old: Cut, new: Cut) -> list[Move]:
    """Every slice that a rank of the new cut needs, from who has it: itself, else the copy that sent least so far."""

    def held(cut: Cut) -> dict[int, list[Box]]:
        return {rank: [cut.box(rank, shape)] for rank in range(cut.grid.first, cut.grid.first + cut.grid.ranks)}

    return transfers(held(old), held(new))


def transfers(have: Mapping[int, Sequence[Box]], need: Mapping[int, Sequence[Box]]) -> list[Move]:
    """The same for ranks that have and need any boxes: of unequal sizes, several a rank, none.

    Boxes of different ranks are the same (copies) or share nothing.

    >>> [(move.source, move.target) for move in transfers({0: [((0, 3),)], 1: [((3, 4),)]}, {2: [((1, 4),)]})]
    [(0, 2), (1, 2)]
    """
    holders: dict[Box, list[int]] = {}
    for rank, boxes in have.items():
        for box in boxes:
            holders.setdefault(box, []).append(rank)
    sent: dict[int, int] = {}
    found = []
    for target, boxes in need.items():
        for wanted in boxes:
            for box, ranks in holders.items():
                shared = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True)]
                if any(low >= high for low, high in shared):
                    continue
                source = target if target in ranks else min(ranks, key=lambda rank: (sent.get(rank, 0), rank))
                move = Move(source, target, tuple(low for low, _ in shared), tuple(high for _, high in shared))
                if source != target:
                    sent[source] = sent.get(source, 0) + move.items
                found.append(move)
    return found
