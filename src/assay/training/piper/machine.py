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

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from assay.sim.collectives import Link
from assay.sim.links import deliver
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


def arrivals(machine: Machine, src: Ints, dst: Ints, nbytes: Floats, after: list[list[int]]) -> Floats:
    """When each message has arrived; a rank's messages begin in their order, `window` at a time.

    >>> machine = Machine(nodes=2, start_outside=1e-5)
    >>> one, other = arrivals(machine, np.array([0, 1]), np.array([8, 9]), np.array([25e6, 25e6]), [[], []])
    >>> float(round(one * 1e3, 2)), float(round(other * 1e3, 2))  # two dies share a card
    (2.01, 2.01)
    """
    network, count = _topology(machine), len(src)
    near = src // machine.per_node == dst // machine.per_node
    place = _place_in_queue(src)
    queue = src * machine.window + place % machine.window
    # A message is two: its start takes a while and no link, its bytes follow.
    known: dict[tuple[int, int], Ints] = {}
    paths: list[Ints] = []
    none = np.empty(0, np.int64)
    for a, b in zip(src.tolist(), dst.tolist(), strict=True):
        if (a, b) not in known:
            known[a, b] = network.path(a, b)
        paths += [none, known[a, b]]
    waits: list[list[int]] = []
    for i, before in enumerate(after):
        waits += [[2 * j + 1 for j in before], [2 * i]]
    size = np.zeros(2 * count)
    size[1::2] = nbytes
    latency = np.zeros(2 * count)
    latency[0::2] = np.where(near, machine.start_inside, machine.start_outside)
    ends = deliver(paths, size, network.bandwidth, latency=latency, after=waits, queue=np.repeat(queue, 2))
    return np.asarray(ends[1::2])


def _place_in_queue(src: Ints) -> Ints:
    """The how-manieth message of its rank each is."""
    order = np.argsort(src, kind="stable")
    ordered = src[order]
    first = np.searchsorted(ordered, ordered)
    place = np.empty(len(src), np.int64)
    place[order] = np.arange(len(src)) - first
    return place
