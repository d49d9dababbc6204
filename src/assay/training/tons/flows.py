"""How much an all-to-all can send: the greatest common rate of all pairs, between two certain bounds.

Every chip sends the same to every other; the rate is limited by the busiest link. Links get a length that grows with
their load, everything goes by shortest paths, and the mean of such rounds approaches the best routing: its busiest link
gives a rate that is reached. Any lengths give one that cannot be: what all links hold over what all pairs need. Both
are kept, so the answer says how far it can be off. Links that look alike from every cube share one length.

- Garg, Könemann, "Faster and simpler algorithms for multicommodity flow", SIAM J. Comput. 2007.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.training.tons.pods import CHIPS, Pod, distances

SPREAD = 0.3  # of a mean link: ways that are longer by so much still get a third
STEP = 0.5
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Throughput:
    """What every chip can send to all others together, in bandwidths of a link: reached, and never exceeded."""

    reached: float
    bound: float

    @property
    def gap(self) -> float:
        """How far apart they are, of the bound."""
        return 1 - self.reached / self.bound


def throughput(pod: Pod, rounds: int = 60, gap: float = 0.03, least: float = 0.0) -> Throughput:
    """Of a uniform all-to-all, until the gap is closed, the rounds are over, or more than `least` cannot be.

    >>> from assay.training.tons.pods import torus
    >>> round(throughput(torus((1, 1, 1))).bound, 2)  # 8 / k of a link, times 63 / 64 who are others
    1.97

    Raises:
        ValueError: chips that do not reach each other.
    """
    if (distances(pod) < 0).any():
        raise ValueError(f"{pod.name}: some chips do not reach others")
    reached, bound = _balance(pod.neighbours, CHIPS, rounds, gap, least / (pod.ranks - 1))
    return Throughput(reached * (pod.ranks - 1), bound * (pod.ranks - 1))


def distance_bound(pod: Pod) -> float:
    """What no routing exceeds, from distances alone: links over hops, a chip.

    >>> from assay.training.tons.pods import torus
    >>> round(distance_bound(torus((2, 2, 2))), 3)
    0.998
    """
    hops = distances(pod)
    links = float((pod.neighbours[:CHIPS] >= 0).sum())
    return links * (pod.ranks - 1) / float(hops.sum())


@njit(cache=True)
def _balance(neighbours: Ints, sources: int, rounds: int, gap: float, least: float) -> tuple[float, float]:
    """Rates of a pair that are reached, and that cannot be exceeded."""
    length = np.ones((sources, neighbours.shape[1]))
    for place in range(sources):
        for port in range(neighbours.shape[1]):
            if neighbours[place, port] < 0:
                length[place, port] = 0.0
    total, done = np.zeros_like(length), 0.0
    reached, bound = 0.0, np.inf
    for turn in range(rounds):
        load, far = _routed(neighbours, sources, length, SPREAD / (1.0 + turn / 10.0))
        bound = min(bound, length.sum() / far)
        weight = turn + 1.0  # later rounds know more
        total += weight * load
        done += weight
        reached = max(reached, done / total.max(), 1.0 / load.max())
        if reached >= (1 - gap) * bound or bound < least:
            break
        length *= np.exp(STEP / np.sqrt(turn + 1.0) * load / load.max())
        length /= length.max()
    return reached, bound


@njit(cache=True)
def _routed(neighbours: Ints, sources: int, length: Floats, spread: float) -> tuple[Floats, float]:
    """Loads when everybody sends one unit to everybody, and the sum of the shortest ways.

    What reaches a chip is split over all links that come from nearer the source, the more the shorter the way over
    them: where ways are about equal, one alone would be full in this round and another in the next.
    """
    count, ports = neighbours.shape
    load = np.zeros((sources, ports))
    far_sum = 0.0
    far, order = np.empty(count), np.empty(count, np.int64)
    units, part = np.empty(count), np.empty(ports)
    soft = spread * length.mean()
    for source in range(sources):
        _dijkstra(neighbours, sources, length, source, far, order)
        far_sum += far.sum()
        units[:] = 1.0
        for i in range(count - 1, 0, -1):
            at = order[i]
            whole = 0.0
            for port in range(ports):
                before = neighbours[at, port]
                part[port] = 0.0
                if before >= 0 and far[before] < far[at]:
                    more = far[before] + length[before % sources, port ^ 1] - far[at]
                    part[port] = np.exp(-more / soft)
                    whole += part[port]
            for port in range(ports):
                if part[port] > 0.0:
                    share = units[at] * part[port] / whole
                    units[neighbours[at, port]] += share
                    load[neighbours[at, port] % sources, port ^ 1] += share
    return load, far_sum


@njit(cache=True)
def _dijkstra(neighbours: Ints, sources: int, length: Floats, source: int, far: Floats, order: Ints) -> None:
    """Distances from one chip, and chips by distance."""
    count, ports = neighbours.shape
    far[:] = np.inf
    done = np.zeros(count, np.bool_)
    heap_far, heap_at = np.empty(count * ports), np.empty(count * ports, np.int64)
    size, found = 1, 0
    heap_far[0], heap_at[0], far[source] = 0.0, source, 0.0
    while size > 0:
        key, at = heap_far[0], heap_at[0]
        size -= 1
        last_key, last, i = heap_far[size], heap_at[size], 0
        while 2 * i + 1 < size:
            child = 2 * i + 1
            if child + 1 < size and heap_far[child + 1] < heap_far[child]:
                child += 1
            if heap_far[child] >= last_key:
                break
            heap_far[i], heap_at[i] = heap_far[child], heap_at[child]
            i = child
        heap_far[i], heap_at[i] = last_key, last
        if done[at]:
            continue
        done[at] = True
        order[found] = at
        found += 1
        for port in range(ports):
            there = neighbours[at, port]
            if there < 0 or done[there]:
                continue
            new = key + length[at % sources, port]
            if new < far[there] - 1e-15:
                far[there] = new
                i = size
                size += 1
                while i > 0 and heap_far[(i - 1) // 2] > new:
                    heap_far[i], heap_at[i] = heap_far[(i - 1) // 2], heap_at[(i - 1) // 2]
                    i = (i - 1) // 2
                heap_far[i], heap_at[i] = new, there
