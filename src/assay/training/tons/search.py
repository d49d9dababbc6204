"""Wirings of a pod: the best torus, plain or twisted, random shifts, and those that a local search finds.

The search changes the shift of one optical switch at a time and keeps what does not lengthen the sum of distances; the
few best are then judged by what an all-to-all can really send over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.training.tons.flows import throughput
from assay.training.tons.pods import CHIPS, PLACES, Pod, groups, shapes, spread, sums, torus, wire

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
JUDGED = 4  # candidates, the best by distance, that are judged by their flow
RANKING = 8  # rounds that tell which of two carries more
LATTICES = 4000  # twisted tori looked at, at most


def best_torus(cubes: int) -> Pod:
    """The plain torus that can send most.

    >>> best_torus(8).name
    '8x8x8 torus'
    """
    return _carries_most(torus(shape) for shape in shapes(cubes))


def _carries_most(pods: Iterable[Pod]) -> Pod:
    """The first of those that reach most; who cannot reach what another did is not judged to the end."""
    best, most = None, -1.0
    for pod in pods:
        reached = throughput(pod, RANKING, least=most).reached
        if reached > most:
            best, most = pod, reached
    if best is None:
        raise ValueError("no wirings to choose from")
    return best


def best_twisted(cubes: int, seed: int = 0) -> Pod:
    """The best torus of all, twisted ones too: any group, any three shifts, each the same at all places of a face."""
    found: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    random = stream(seed, "tons", "twisted", cubes)
    for factors in groups(cubes):
        triples = np.array(list(itertools.combinations_with_replacement(range(cubes), 3)), np.int64)
        if len(triples) > LATTICES:
            triples = triples[random.choice(len(triples), LATTICES, replace=False)]
        totals = _lattices(sums(factors), triples)
        best = np.argsort(totals, kind="stable")
        best = best[totals[best] > 0][:JUDGED]
        found += [(int(totals[i]), factors, tuple(triples[i].tolist())) for i in best]
    pods = [_lattice(factors, triple) for _, factors, triple in sorted(found)[:JUDGED]]
    return _carries_most(pods)


def _lattice(factors: tuple[int, ...], triple: tuple[int, ...]) -> Pod:
    return Pod("twisted torus", factors, np.repeat(np.array(triple, np.int64)[:, None], PLACES, axis=1))


def random_shifts(cubes: int, seed: int, draws: int = 4000) -> Pod:
    """Every switch with a shift of its own, drawn as often as the search may try; chosen as what it finds is chosen.

    In each group that with the least sum of distances, and of these the best by its flow.
    """
    found = []
    for factors in groups(cubes):
        random = stream(seed, "tons", "random", *factors)
        shift = np.empty((3, PLACES), np.int64)
        if _drawn(sums(factors), random.integers(0, cubes, (draws, 3, PLACES)), shift) < np.iinfo(np.int64).max:
            found.append(Pod("random shifts", factors, shift))
    return _carries_most(found)


def synthesise(cubes: int, seed: int = 0, steps: int = 4000) -> Pod:
    """The wiring that a local search finds in each group of so many cubes, from drawn shifts; the best by its flow.

    >>> pod = synthesise(2, steps=50)
    >>> throughput(pod).reached > throughput(best_torus(2)).reached
    True
    """
    found = []
    for factors in groups(cubes):
        random = stream(seed, "tons", "search", *factors)
        shift = random.integers(0, cubes, (3, PLACES))
        which, element = random.integers(0, 3 * PLACES, steps), random.integers(0, cubes, steps)
        _descend(sums(factors), shift, which, element)
        found.append(Pod("tons", factors, shift))
    return _carries_most(found)


@njit(cache=True)
def _lattices(add: Ints, triples: Ints) -> Ints:
    """The sum of distances from one chip, which is that of all, for each three shifts; -1 where they are not enough."""
    ranks = add.shape[0] * CHIPS
    neighbours, far, queue = np.empty((ranks, 6), np.int64), np.empty(ranks, np.int64), np.empty(ranks, np.int64)
    totals, shift = np.empty(len(triples), np.int64), np.empty((3, PLACES), np.int64)
    for i in range(len(triples)):
        for d in range(3):
            shift[d] = triples[i, d]
        wire(add, shift, neighbours)
        far[:] = -1
        totals[i] = spread(neighbours, 0, far, queue)
    return totals


@njit(cache=True)
def _drawn(add: Ints, shifts: Ints, chosen: Ints) -> int:
    """The least sum of distances of some drawn shifts, and those that have it; the greatest number if none is whole."""
    ranks = add.shape[0] * CHIPS
    neighbours, masks = np.empty((ranks, 6), np.int64), np.empty((3, ranks), np.uint64)
    best = np.iinfo(np.int64).max
    for i in range(len(shifts)):
        wire(add, shifts[i], neighbours)
        total = total_hops(neighbours, masks, best)
        if total < best:
            best = total
            chosen[:] = shifts[i]
    return best


@njit(cache=True)
def _descend(add: Ints, shift: Ints, which: Ints, element: Ints) -> int:
    """Change `shift`, a switch at a time, where the sum of distances does not rise; the sum in the end."""
    ranks = add.shape[0] * CHIPS
    neighbours = np.empty((ranks, 6), np.int64)
    masks = np.empty((3, ranks), np.uint64)
    wire(add, shift, neighbours)
    best = total_hops(neighbours, masks, np.iinfo(np.int64).max)
    for i in range(which.size):
        d, place = which[i] // PLACES, which[i] % PLACES
        before = shift[d, place]
        shift[d, place] = element[i]
        wire(add, shift, neighbours)
        total = total_hops(neighbours, masks, best)
        if total <= best:
            best = total
        else:
            shift[d, place] = before
    return best


@njit(cache=True)
def total_hops(neighbours: Ints, masks: Words, most: int) -> int:
    """The sum of distances from the first cube's 64 chips, a bit each; the greatest number if it is above `most`.

    All 64 spread at once: what a chip has heard of is a word, and each round it hears what its neighbours had.
    """
    seen, fresh, heard = masks[0], masks[1], masks[2]
    ranks = neighbours.shape[0]
    seen[:], fresh[:] = np.uint64(0), np.uint64(0)
    for chip in range(CHIPS):
        seen[chip] = fresh[chip] = np.uint64(1) << np.uint64(chip)
    total, left, hop = 0, CHIPS * ranks - CHIPS, 0
    while left > 0:
        hop += 1
        found = 0
        for chip in range(ranks):
            word = np.uint64(0)
            for port in range(6):
                if neighbours[chip, port] >= 0:
                    word |= fresh[neighbours[chip, port]]
            heard[chip] = word & ~seen[chip]
        for chip in range(ranks):
            seen[chip] |= heard[chip]
            fresh[chip] = heard[chip]
            found += _ones(heard[chip])
        total += hop * found
        left -= found
        if found == 0 or total + left * (hop + 1) > most:
            return np.iinfo(np.int64).max
    return total


@njit(cache=True)
def _ones(word: np.uint64) -> int:
    """Bits that are set."""
    x = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
