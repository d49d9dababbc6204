"""Pods of 4x4x4 cubes whose faces meet in optical switches, and their distances.

Within a cube chips are a mesh of electrical links. Each of the 6 faces has 16 optical ports; one switch serves one
dimension and one place of the face, and joins the + port of each cube there with the - port of any: a permutation of
cubes. Here it is a shift: cubes are the elements of an abelian group, and `shift[d, p]` is added. A torus has the same
shift at every place of a dimension; a twisted one too, in another group. What looks the same from every cube is
measured from the chips of one.

>>> plain = torus((2, 2, 2))
>>> plain.ranks, round(float(distances(plain)[0].mean()), 3)  # an 8-ary torus: 3 times 8 / 4
(512, 6.0)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from assay.sim.collectives import Link
from assay.sim.compiled import njit
from assay.sim.topology import Topology

Ints = NDArray[np.int64]
SIDE = 4
CHIPS = SIDE**3
PLACES = SIDE * SIDE  # of a face
PORTS = 6  # x+, x-, y+, y-, z+, z-
_PLACE = np.stack(np.unravel_index(np.arange(CHIPS), (SIDE,) * 3), axis=1)


@dataclass(frozen=True, eq=False)
class Pod:
    """Cubes, the elements of the group with these cyclic factors, and the shift of each optical switch.

    `broken` is a switch (dimension, place) that is out of order: its links are not there.
    """

    name: str
    factors: tuple[int, ...]
    shift: Ints  # (3, 16): numbers of cubes
    broken: tuple[int, int] | None = None

    @property
    def cubes(self) -> int:
        """How many."""
        return math.prod(self.factors)

    @property
    def ranks(self) -> int:
        """Chips."""
        return CHIPS * self.cubes

    @cached_property
    def neighbours(self) -> Ints:
        """(ranks, 6): the chip behind each port, -1 where a switch is broken. Chip = 64 cube + place in the cube."""
        found = np.empty((self.ranks, PORTS), np.int64)
        wire(sums(self.factors), self.shift, found)
        if self.broken is not None:
            d, place = self.broken
            for chip in range(CHIPS):
                if face_place(chip, d) == place and _PLACE[chip, d] in (0, SIDE - 1):
                    found[chip::CHIPS, 2 * d + int(_PLACE[chip, d] == 0)] = -1
        return found

    def without(self, d: int, place: int) -> Pod:
        """The pod with one switch out of order."""
        return Pod(f"{self.name} without a switch", self.factors, self.shift, (d, place))

    def topology(self, link: Link) -> Topology:
        """As a topology that every tool of the room takes; both directions of every link are there once."""
        chip, port = np.nonzero(self.neighbours >= 0)
        ends = np.stack([chip, self.neighbours[chip, port]], axis=1)
        rates, delays = np.full(len(ends), link.bandwidth), np.full(len(ends), link.latency)
        return Topology(self.name, self.ranks, ends, rates, delays, forwards=True)


def face_place(chip: int, d: int) -> int:
    """Which of a face's 16 places a chip has in dimension d."""
    a, b = (int(x) for i, x in enumerate(_PLACE[chip]) if i != d)
    return a * SIDE + b


def sums(factors: Sequence[int]) -> Ints:
    """The group's table: `sums[a, b]` is the number of a + b.

    >>> sums((2, 2)).tolist()
    [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]
    """
    places = np.stack(np.unravel_index(np.arange(math.prod(factors)), tuple(factors)), axis=1)
    total = (places[:, None] + places[None]) % np.array(factors)
    return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(total, -1, 0)), tuple(factors)), np.int64)


def torus(shape: tuple[int, int, int]) -> Pod:
    """The torus of so many cubes in each dimension."""
    steps = [np.ravel_multi_index(tuple(int(i == d) % n for i, n in enumerate(shape)), shape) for d in range(3)]
    name = "x".join(str(SIDE * n) for n in shape) + " torus"
    return Pod(name, shape, np.repeat(np.array(steps, np.int64)[:, None], PLACES, axis=1))


def shapes(cubes: int) -> list[tuple[int, int, int]]:
    """The tori of so many cubes, each once, sides descending.

    >>> shapes(8)
    [(2, 2, 2), (4, 2, 1), (8, 1, 1)]
    """
    return [
        (a, b, c) for c, b in itertools.combinations_with_replacement(range(1, cubes + 1), 2)
        for a in [cubes // (b * c)] if a * b * c == cubes and a >= b
    ][::-1]  # fmt: skip


def groups(cubes: int) -> Iterator[tuple[int, ...]]:
    """The abelian groups of this order that three elements can generate, as at most three cyclic factors.

    >>> list(groups(8))
    [(8,), (4, 2), (2, 2, 2)]
    """
    for c, b in itertools.product(range(1, cubes + 1), repeat=2):
        if cubes % (b * c) == 0 and b % c == 0 and (a := cubes // (b * c)) % b == 0:
            yield tuple(n for n in (a, b, c) if n > 1) or (1,)


@njit(cache=True)
def wire(add: Ints, shift: Ints, found: Ints) -> None:
    """The chip behind each port, into `found`."""
    stride = (SIDE * SIDE, SIDE, 1)
    for chip in range(CHIPS):
        place = (chip // stride[0], chip // stride[1] % SIDE, chip % SIDE)
        for d in range(3):
            a, b = (place[1], place[2]) if d == 0 else (place[0], place[2]) if d == 1 else (place[0], place[1])
            inside = place[d] + 1 < SIDE
            there = chip + stride[d] if inside else chip - (SIDE - 1) * stride[d]
            for cube in range(add.shape[0]):
                other = cube if inside else add[shift[d, a * SIDE + b], cube]
                found[cube * CHIPS + chip, 2 * d] = other * CHIPS + there
                found[other * CHIPS + there, 2 * d + 1] = cube * CHIPS + chip


def distances(pod: Pod) -> Ints:
    """Hops from each chip of the first cube to every chip; -1 where no path leads."""
    found = np.full((CHIPS, pod.ranks), -1, np.int64)
    queue = np.empty(pod.ranks, np.int64)
    for source in range(CHIPS):
        spread(pod.neighbours, source, found[source], queue)
    return found


@njit(cache=True)
def spread(neighbours: Ints, source: int, far: Ints, queue: Ints) -> int:
    """Hops from one chip into `far`, which holds -1; the sum of them, or -1 where some chip is not reached."""
    far[source], queue[0], head, tail, total = 0, source, 0, 1, 0
    while head < tail:
        at = queue[head]
        head += 1
        total += far[at]
        for port in range(neighbours.shape[1]):
            there = neighbours[at, port]
            if there >= 0 and far[there] < 0:
                far[there] = far[at] + 1
                queue[tail] = there
                tail += 1
    return total if tail == far.size else -1
