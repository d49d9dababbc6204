"""Which documents of a batch to keep: in order, against everything kept before, looked up a group at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.fold.bands import Bands, mates
from assay.data.fold.graph import Found, Graph, apart
from assay.data.fold.sketch import BITS, SLOTS, Sketches, agreement, jaccard
from assay.record.errors import BadInput

GROUP = 128  # documents that are looked up at once
LOOSE = 3.5  # standard deviations of a sketch's estimate within which a candidate is looked at closely
PAPER_CUT = 0.30  # the paper's bitmap distance; for its tau of 0.7 it is stricter than it looks

VERIFY = ("none", "minhash", "exact")
BY = ("graph", "bands")
Fetch = Callable[[list[int]], Awaitable[dict[int, NDArray[np.uint32]]]]


class Settings(msgspec.Struct, frozen=True):
    """What an index was made with; it cannot change later.

    `verify` says what decides: "none" the bitmaps' distance, with the paper's cut of 0.30 or the one that means tau
    ("calibrated"); "minhash" the slots; "exact" the shingles themselves.
    """

    tau: float = 0.7
    verify: str = "exact"
    cut: str = "calibrated"
    bits: int = 512  # a cache line (the paper has 4,096); among 60,000 documents it found more than 2,048, in less time
    links: int = 32
    ef: int = 96  # the pool of a look-up; 64 lose 8 % of those alike by 0.7 among 60,000 documents, 96 lose 2 %
    near: int = 8  # candidates that are looked at closely
    by: str = "graph"  # where candidates come from; "bands" is FOLD's rival: tables in memory

    @property
    def limit(self) -> float:
        """The bitmap distance up to which a document is a candidate."""
        if self.cut == "paper":
            return PAPER_CUT
        loose = 0.0 if self.verify == "none" else LOOSE * (self.tau * (1 - self.tau) / SLOTS) ** 0.5
        return bitmap_distance(max(0.05, self.tau - loose))


PAPER = Settings(verify="none", cut="paper", bits=BITS, links=128, ef=400, near=4)
"""What the paper's code runs with, on larger machines."""


def bitmap_distance(tau: float) -> float:
    """The Jaccard distance of bitmaps whose documents agree in a share tau of their slots.

    >>> f"{bitmap_distance(0.7):.3f} {bitmap_distance(0.8235):.3f}"
    '0.462 0.300'
    """
    return 1 - tau / (2 - tau)


def checked(settings: Settings) -> Settings:
    """The settings, if they make sense."""
    if not 0 < settings.tau <= 1:
        raise BadInput(f"tau {settings.tau} is no similarity; a number above 0 and up to 1 expected")
    if settings.verify not in VERIFY or settings.cut not in ("calibrated", "paper"):
        raise BadInput(f"verify is {', '.join(VERIFY)}; cut is calibrated or paper")
    if settings.by not in BY or (settings.by == "bands" and settings.verify == "none"):
        raise BadInput(f"by is {' or '.join(BY)}, and candidates by bands must be verified")
    if settings.bits < 64 or settings.bits & (settings.bits - 1):
        raise BadInput(f"bits {settings.bits} must be a power of two, 64 at least")
    return settings


class Near(Protocol):
    """Where candidates come from: an index that numbers what it is given as it comes. A graph, bands, one's own."""

    size: int

    def search(self, vectors: NDArray[Any]) -> Found:
        """The nearest of each, nearest first, with their bitmap distances (0 where nobody knows)."""

    def add(self, vectors: NDArray[Any], found: Found) -> None:
        """Take up what is kept, with what was found near it."""

    @property
    def nbytes(self) -> int:
        """Memory that grows with the documents."""


def emptiness(settings: Settings) -> Graph | Bands:
    """An index of nothing."""
    if settings.by == "bands":  # one pair in a thousand that is alike by 0.7 agrees in none of 28 bands of 4
        return Bands(28, 4, most=settings.near)
    return Graph(settings.bits // 64, links=settings.links, ef=settings.ef)


@dataclass
class Plan:
    """A batch that is decided and not yet committed."""

    fates: NDArray[np.int64]  # the number of a kept document, or −1 − the number of the one it is like
    alike: NDArray[np.float32]
    kept: list[int] = field(default_factory=list)  # which
    groups: list[int] = field(default_factory=list)  # how many were kept of each group
    where: dict[int, int] = field(default_factory=dict)  # number → which


class Decision:
    """One batch on its way; the graph grows as it goes."""

    def __init__(self, settings: Settings, near: Near, sketches: Sketches, fetch: Fetch) -> None:
        self.settings, self.near, self.docs, self._fetch = settings, near, sketches, fetch
        self._committed = near.size
        n = len(sketches)
        self.plan = Plan(np.full(n, -1, np.int64), np.zeros(n, np.float32))

    async def made(self) -> Plan:
        """Group by group: bands within the batch, then the graph, then one another."""
        inside, plan = mates(self.docs.slots), self.plan
        for begin in range(0, len(self.docs), GROUP):
            left = [i for i in range(begin, min(len(self.docs), begin + GROUP)) if not self._has_mate(i, inside[i])]
            bitmaps = self.docs.bitmaps[left]
            vectors: NDArray[Any] = bitmaps if self.settings.by == "graph" else self.docs.slots[left]
            found = self.near.search(vectors)
            near = await self._near(found)
            between = apart(bitmaps)
            kept = self._settle(left, found, near, between)
            self.near.add(vectors[kept], found.of(kept))
            plan.groups.append(len(kept))
        return plan

    def _has_mate(self, i: int, inside: NDArray[np.int32]) -> bool:
        """Whether an earlier document of the batch that shares a band with it was kept, and is alike."""
        for other in inside:
            if other < 0:
                break
            number = int(self.plan.fates[other])
            if number >= 0:
                alike = self._alike(i, int(other))
                if alike >= self.settings.tau:
                    self.plan.fates[i], self.plan.alike[i] = -1 - number, alike
                    return True
        return False

    def _alike(self, i: int, j: int) -> float:
        if self.settings.verify == "exact":
            return jaccard(self.docs.shingles_of(i), self.docs.shingles_of(j))
        return agreement(self.docs.slots[i], self.docs.slots[j])

    async def _near(self, found: Found) -> dict[int, NDArray[np.uint32]]:
        """What is needed of committed candidates to look at them closely."""
        if self.settings.verify == "none":
            return {}
        near = found.ids[:, : self.settings.near][found.far[:, : self.settings.near] <= self.settings.limit]
        return await self._fetch([int(one) for one in np.unique(near) if one < self._committed])

    def _settle(
        self, left: list[int], found: Found, near: dict[int, NDArray[np.uint32]], between: NDArray[np.float32]
    ) -> list[int]:
        """The fates of a group's documents; returns those that are kept."""
        limit, plan, kept = self.settings.limit, self.plan, list[int]()
        close, mutual = _columns(found.far[:, : self.settings.near] <= limit), _columns(between <= limit)
        number = self.near.size
        for k, i in enumerate(left):
            options = [(float(found.far[k, c]), int(found.ids[k, c])) for c in close[k]]
            fates = [(float(between[k, j]), int(plan.fates[left[j]])) for j in mutual[k]]
            options += [(far, fate) for far, fate in fates if fate >= 0]  # those that were kept
            match = self._match(i, sorted(options), near)
            if match is not None:
                plan.fates[i], plan.alike[i] = -1 - match[0], match[1]
                continue
            plan.fates[i], plan.alike[i], plan.where[number] = number, 1.0, i
            plan.kept.append(i)
            kept.append(k)
            number += 1
        return kept

    def _match(
        self, i: int, options: list[tuple[float, int]], near: dict[int, NDArray[np.uint32]]
    ) -> tuple[int, float] | None:
        """The nearest of the candidates that really is alike."""
        for far, other in options:
            if self.settings.verify == "none":
                return other, 2 * (1 - far) / (2 - far)
            if other in self.plan.where:
                alike = self._alike(i, self.plan.where[other])
            elif self.settings.verify == "exact":
                alike = jaccard(self.docs.shingles_of(i), near[other])
            else:
                alike = agreement(self.docs.slots[i], near[other])
            if alike >= self.settings.tau:
                return other, alike
        return None


def _columns(mask: NDArray[np.bool_]) -> list[list[int]]:
    """Of each row, where it is true."""
    found: list[list[int]] = [[] for _ in mask]
    for row, column in zip(*(one.tolist() for one in np.nonzero(mask)), strict=True):
        found[row].append(column)
    return found
