"""A machine like Frontier: nodes of eight dies, four network cards, switches in dragonfly groups, and traffic on it.

Two dies share a card, a node's four cards are at four switches of its group, the switches of a group are joined with
each other, and a few cables lead from any group to any other. What messages take is played event by event: they share
cards, switches and cables fairly, a rank has a number of them under way at a time, and each costs a while before its
first byte, as a rendezvous does. There is no single bandwidth anywhere.

>>> machine = Machine(nodes=16)
>>> machine.ranks, len(machine.path(0, 1)), len(machine.path(0, 8)), len(machine.path(0, 127))
(128, 2, 4, 6)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.collectives import Link
from assay.sim.links import Rows, deliver, rows
from assay.sim.topology import Topology, both_ways

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """`nodes` of `per_node` ranks, `cards` a node, `group` nodes a dragonfly group.

    What a message takes to start within and between nodes is from NCCL's tuner; the taper, the size of a group (what
    of one a job is given) and the messages that a rank has under way are assumed.
    """

    nodes: int
    per_node: int = 8
    cards: int = 4
    group: int = 8
    inside: float = 50e9  # bytes a second of a die to the others of its node, each way
    card: float = 25e9
    local: float = 200e9  # between two switches of a group: eight ports
    taper: float = 0.5  # what leaves a group over what its nodes can inject; spread evenly over the other groups
    start_inside: float = 4e-6
    start_outside: float = 14e-6
    window: int = 8  # messages that a rank has under way

    @property
    def ranks(self) -> int:
        """How many."""
        return self.nodes * self.per_node

    @property
    def groups(self) -> int:
        """Dragonfly groups."""
        return -(-self.nodes // self.group)

    @property
    def far(self) -> float:
        """Bytes a second between two groups."""
        return self.taper * self.group * self.cards * self.card / max(1, self.groups - 1)

    @property
    def shape(self) -> Machine:
        """The same dies, cards and groups, at usual speeds: on these alone paths and orders of messages hang."""
        return Machine(self.nodes, self.per_node, self.cards, self.group)

    def path(self, source: int, target: int) -> Ints:
        """The links from rank to rank."""
        return _topology(self).path(source, target)


@lru_cache(maxsize=16)
def _topology(machine: Machine) -> Topology:
    """Ranks; a switch inside each node; its cards; the switches of each group."""
    ranks, nodes, cards = machine.ranks, machine.nodes, machine.cards
    card, switch = ranks + nodes, ranks + nodes + nodes * cards
    within, port = Link(0.0, machine.inside), Link(0.0, machine.card)
    cables = [(rank, ranks + rank // machine.per_node, within) for rank in range(ranks)]
    for rank in range(ranks):
        node, die = divmod(rank, machine.per_node)
        cables.append((rank, card + node * cards + die * cards // machine.per_node, port))
    for node in range(nodes):
        group = node // machine.group
        cables += [(card + node * cards + c, switch + group * cards + c, port) for c in range(cards)]
    for group in range(machine.groups):
        first = switch + group * cards
        cables += [(first + a, first + b, Link(0.0, machine.local)) for a in range(cards) for b in range(a + 1, cards)]
        for other in range(group + 1, machine.groups):  # cables to other groups go round the switches
            cables.append((first + (other - 1) % cards, switch + other * cards + group % cards,
                           Link(0.0, machine.far)))  # fmt: skip
    return Topology(f"{nodes} nodes of {machine.per_node}", ranks, *both_ways(cables))


@lru_cache(maxsize=16)
def _known(shape: Machine) -> dict[int, Ints]:
    """Paths that were asked for, by source times ranks plus target."""
    return {}


def _paths(machine: Machine, src: Ints, dst: Ints) -> Rows:
    """The links of every message; each pair of ends is looked up once for all machines of this shape."""
    known, ranks = _known(machine.shape), machine.ranks
    pairs, which = np.unique(src * ranks + dst, return_inverse=True)
    for pair in pairs.tolist():
        if pair not in known:
            known[pair] = machine.shape.path(*divmod(pair, ranks))
    return rows([known[pair] for pair in pairs.tolist()]).take(which)


def arrivals(machine: Machine, src: Ints, dst: Ints, nbytes: Floats, after: Sequence[ArrayLike] | Rows) -> Floats:
    """When each message has arrived; a rank's messages begin in their order, `window` at a time.

    >>> machine = Machine(nodes=2, start_outside=1e-5)
    >>> one, other = arrivals(machine, np.array([0, 1]), np.array([8, 9]), np.array([25e6, 25e6]), [[], []])
    >>> float(round(one * 1e3, 2)), float(round(other * 1e3, 2))  # two dies share a card
    (2.01, 2.01)
    """
    network, count = _topology(machine), len(src)
    near = src // machine.per_node == dst // machine.per_node
    queue = src * machine.window + _place_in_queue(src) % machine.window
    # A message is two: its start takes a while and no link, its bytes follow.
    links, size, latency = _paths(machine, src, dst), np.zeros(2 * count), np.zeros(2 * count)
    size[1::2] = nbytes
    latency[0::2] = np.where(near, machine.start_inside, machine.start_outside)
    twice = Rows(np.append(np.repeat(links.indptr[:-1], 2), links.indptr[-1]), links.indices)
    waits = _waits(rows(after))
    ends = deliver(twice, size, network.bandwidth, latency=latency, after=waits, queue=np.repeat(queue, 2))
    return np.asarray(ends[1::2])


def _waits(before: Rows) -> Rows:
    """Of starts and bytes in turn: a start waits for the bytes of the messages before, bytes wait for their start."""
    count = len(before.indptr) - 1
    sizes, indptr = np.ones(2 * count, np.int64), np.zeros(2 * count + 1, np.int64)
    sizes[0::2] = np.diff(before.indptr)
    np.cumsum(sizes, out=indptr[1:])
    found, of_bytes = np.empty(indptr[-1], np.int64), np.zeros(indptr[-1], np.bool_)
    of_bytes[indptr[1::2]] = True
    found[of_bytes], found[~of_bytes] = 2 * np.arange(count), 2 * before.indices + 1
    return Rows(indptr, found)


def _place_in_queue(src: Ints) -> Ints:
    """The how-manieth message of its rank each is."""
    order = np.argsort(src, kind="stable")
    ordered = src[order]
    first = np.searchsorted(ordered, ordered)
    place = np.empty(len(src), np.int64)
    place[order] = np.arange(len(src)) - first
    return place
