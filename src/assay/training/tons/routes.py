"""One path for each pair of chips, and virtual channels on which they cannot block each other for ever.

Paths have the fewest hops. Links get longer with their load; pair after pair takes its path out and chooses it again,
among those with the fewest hops the shortest at that time. A path holds a link while it waits for the next: where such
waits form a circle, packets may stand still for good. So a path goes on to the next virtual channel before a turn that
would close a circle on this one, and never back. All copies of a path, one from each cube, do the same.

- Dally, Seitz, "Deadlock-free message routing in multiprocessor interconnection networks", IEEE ToC 1987.
- Skeie, Lysne, Theiss, "Layered shortest path (LASH) routing in irregular system area networks", IPDPS 2002.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.training.tons.pods import CHIPS, PORTS, Pod, distances, sums

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SHARP = 6.0  # power of a link's load in its length


@dataclass(frozen=True, eq=False)
class Routes:
    """Paths from the first cube's chips, as ports: those from other cubes are the same, shifted."""

    ports: Ints  # (pairs, longest): the port taken at each hop, -1 beyond the end
    channel: Ints  # (pairs, longest): the virtual channel of each hop
    pairs: Ints  # (pairs, 2): source, target
    load: Ints  # (64, 6): paths over the link behind each port, the same in every cube

    @property
    def channels(self) -> int:
        """Virtual channels that are needed."""
        return int(self.channel.max()) + 1

    def throughput(self, ranks: int) -> float:
        """What every chip can send under uniform traffic before the busiest link is full, in bandwidths of a link."""
        return (ranks - 1) / float(self.load.max())


def route(pod: Pod, seed: int = 0, passes: int = 3) -> Routes:
    """Paths with little load on the busiest link, and their virtual channels.

    >>> from assay.training.tons.pods import torus
    >>> found = route(torus((1, 1, 1)))
    >>> found.pairs.shape, found.channels > 1  # round a ring of four, waits form circles on one channel
    ((4032, 2), True)

    Raises:
        ValueError: chips that do not reach each other.
    """
    far = distances(pod)
    if (far < 0).any():
        raise ValueError(f"{pod.name}: some chips do not reach others")
    random = stream(seed, "tons", "routes", pod.ranks)
    pairs = np.argwhere(far > 0)
    ports = np.full((len(pairs), int(far.max())), -1, np.int64)
    load = np.zeros((CHIPS, PORTS), np.int64)
    order = np.concatenate([random.permutation(len(pairs)) for _ in range(passes)])
    _choose(pod.neighbours, far, pairs, order, ports, load)
    mixed = random.permutation(len(pairs))
    short_first = mixed[np.argsort(far[tuple(pairs[mixed].T)], kind="stable")]  # their turns are those of many others
    channel = _channels(pod.neighbours, sums(pod.factors), pairs, ports, short_first)
    return Routes(ports, channel, pairs, load)


@njit(cache=True)
def _choose(neighbours: Ints, far: Ints, pairs: Ints, order: Ints, ports: Ints, load: Ints) -> None:
    """Paths with the fewest hops, over links with little load; each pair is taken out and chosen again several times.

    From the target back, hop by hop, every chip on a shortest path learns its cheapest way on; then the path is walked.
    """
    count = neighbours.shape[0]
    cost, onward, stamp = np.empty(count), np.empty(count, np.int64), np.full(count, -1, np.int64)
    layer, below = np.empty(count, np.int64), np.empty(count, np.int64)
    length, top = np.ones(load.shape), 1.0
    for turn in range(order.size):
        source, target = pairs[order[turn]]
        path = ports[order[turn]]
        _count(neighbours, path, source, load, -1, length, top)
        if load.max() + 1.0 != top:
            top = load.max() + 1.0
            for place in range(CHIPS):
                for port in range(PORTS):
                    length[place, port] = ((load[place, port] + 1.0) / top) ** SHARP
        layer[0], size, cost[target] = target, 1, 0.0
        for hop in range(far[source, target] - 1, -1, -1):
            found = 0
            for i in range(size):
                at = layer[i]
                for port in range(PORTS):
                    before = neighbours[at, port]
                    if before < 0 or far[source, before] != hop:
                        continue
                    new = cost[at] + length[before % CHIPS, port ^ 1]
                    if stamp[before] != turn:
                        stamp[before], cost[before] = turn, np.inf
                        below[found] = before
                        found += 1
                    if new < cost[before]:
                        cost[before], onward[before] = new, port ^ 1
            layer[:found] = below[:found]
            size = found
        at = source
        for hop in range(far[source, target]):
            path[hop] = onward[at]
            at = neighbours[at, onward[at]]
        _count(neighbours, path, source, load, 1, length, top)


@njit(cache=True)
def _count(neighbours: Ints, path: Ints, source: int, load: Ints, by: int, length: Floats, top: float) -> None:
    """Add so much to the load of every link of a path, which makes it longer; powers are dear, others keep theirs."""
    at = source
    for port in path:
        if port < 0:
            break
        place = at % CHIPS
        load[place, port] += by
        length[place, port] = ((load[place, port] + 1.0) / top) ** SHARP
        at = neighbours[at, port]


@njit(cache=True)
def _channels(neighbours: Ints, add: Ints, pairs: Ints, ports: Ints, order: Ints) -> Ints:
    """The virtual channel of each hop: the next one before a turn that would close a circle of waits."""
    count, longest = neighbours.shape[0], ports.shape[1]
    waits = np.zeros((longest, count * PORTS, PORTS), np.bool_)  # link, then the port of the next link
    closed = np.zeros((longest, CHIPS * PORTS, PORTS), np.bool_)  # turns that were found to close a circle
    channel = np.zeros(ports.shape, np.int64)
    stack, seen = np.empty(count * PORTS, np.int64), np.zeros(count * PORTS, np.int64)
    mark = 0
    for which in order:
        at, here = pairs[which, 0], 0
        for hop in range(longest):
            port = ports[which, hop]
            if port < 0:
                channel[which, hop:] = here
                break
            channel[which, hop] = here
            link = at * PORTS + port
            at = neighbours[at, port]
            if hop + 1 == longest or ports[which, hop + 1] < 0:
                continue
            turn = ports[which, hop + 1]
            if waits[here, link, turn]:
                continue
            bad = closed[here, link % (CHIPS * PORTS), turn]
            if not bad:
                mark += 1
                _set(waits[here], add, link, turn, True)
                bad = _circle(neighbours, waits[here], link, at * PORTS + turn, stack, seen, mark)
            if bad:
                _set(waits[here], add, link, turn, False)
                closed[here, link % (CHIPS * PORTS), turn] = True
                here += 1
    return channel


@njit(cache=True)
def _set(waits: NDArray[np.bool_], add: Ints, link: int, turn: int, value: bool) -> None:
    """A wait and its copies in all cubes."""
    cube, rest = link // (CHIPS * PORTS), link % (CHIPS * PORTS)
    for by in range(add.shape[0]):
        waits[add[by, cube] * CHIPS * PORTS + rest, turn] = value


@njit(cache=True)
def _circle(
    neighbours: Ints, waits: NDArray[np.bool_], first: int, start: int, stack: Ints, seen: Ints, mark: int
) -> bool:
    """Whether waits lead from link `start` back to link `first`."""
    stack[0], size = start, 1
    seen[start] = mark
    while size > 0:
        size -= 1
        link = stack[size]
        if link == first:
            return True
        head = neighbours[link // PORTS, link % PORTS]
        for turn in range(PORTS):
            there = head * PORTS + turn
            if waits[link, turn] and seen[there] != mark:
                seen[there] = mark
                stack[size] = there
                size += 1
    return False
