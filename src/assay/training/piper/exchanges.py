"""All-to-alls as messages: who sends which blocks to whom, after which others, in which order.

Block (i, j) is what rank i has for rank j; blocks may have any sizes, also none. One list of messages is played on a
model of a machine, and performed by real processes.

- *flat* (the vendors'): every rank sends every other one its block, nearest first.
- *two-level* (Tutel): within a node, die g collects what goes to die g of any node, and sends it there.
- *HALO*: within a node, die g collects what goes to the nodes that it is in charge of, one message for a whole node
  goes to the die of the same place there, which hands it out. The nodes n and m are joined by the dies of place
  (n + m) mod dies at both ends (inferred: the paper's rule by m alone would have all that a node receives arrive at one
  die). A die first serves nodes of its own group; the nodes of a group then begin with different groups, so that no
  cable carries two of them in a round. Streamed, phases one and three have a message for each node and pass on what has
  arrived; else one for each neighbour, which is better where messages are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from assay.sim.links import Rows, rows
from assay.training.piper.machine import Machine, arrivals

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Block = tuple[int, int]


@dataclass
class Messages:
    """In an order in which each comes after those that it waits for; a rank sends its own in this order.

    All are added before any is asked for its bytes.
    """

    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    blocks: list[list[Block]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.src)

    def add(self, src: int, dst: int, blocks: list[Block], after: Sequence[int] = ()) -> int:
        """One more; its number."""
        self.src.append(src)
        self.dst.append(dst)
        self.blocks.append(blocks)
        self.after.append(list(after))
        return len(self.src) - 1

    def nbytes(self, sizes: Floats) -> Floats:
        """Bytes of each, where block (i, j) has `sizes[i, j]`."""
        owner, sources, targets = self._owned
        return np.bincount(owner, sizes[sources, targets], len(self)).astype(np.float64)

    @cached_property
    def _owned(self) -> tuple[Ints, Ints, Ints]:
        """Of all blocks the message, the source and the target."""
        owner = np.repeat(np.arange(len(self)), [len(some) for some in self.blocks])
        pairs = np.array([pair for some in self.blocks for pair in some], np.int64).reshape(-1, 2)
        return owner, pairs[:, 0].copy(), pairs[:, 1].copy()

    @cached_property
    def _before(self) -> Rows:
        return rows(self.after)

    def seconds(self, machine: Machine, sizes: Floats) -> float:
        """Until the last has arrived; what has nothing to carry is not sent."""
        nbytes = self.nbytes(sizes)
        if not nbytes.any():
            return 0.0
        # Empty messages stay in the order, for others wait for them, but they cost next to nothing.
        ends = arrivals(machine, np.array(self.src), np.array(self.dst), nbytes, self._before)
        return float(ends.max())


Schedule = Callable[[Machine, Sequence[Sequence[int]]], Messages]


def _members(machine: Machine, group: Sequence[int]) -> list[list[int]]:
    """The ranks of a group node by node; equally many in each."""
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(rank // machine.per_node, []).append(rank)
    found = list(nodes.values())
    if len({len(some) for some in found}) != 1:
        raise ValueError(f"a group of {len(group)} ranks lies unevenly on nodes of {machine.per_node}")
    return found


def flat(machine: Machine, groups: Sequence[Sequence[int]]) -> Messages:
    """Every rank of every group to every other of its group, nearest first; all groups at once.

    >>> len(flat(Machine(nodes=2), [range(16)]))
    240
    """
    made = Messages()
    for ahead in range(1, max(len(group) for group in groups)):
        for group in groups:
            for at, rank in enumerate(group):
                other = group[(at + ahead) % len(group)]
                made.add(rank, other, [(rank, other)])
    return made


def two_level(machine: Machine, groups: Sequence[Sequence[int]]) -> Messages:
    """Within nodes by the place of the target, then between equal places."""
    made = Messages()
    for group in groups:
        nodes = _members(machine, group)
        arrived: dict[int, list[int]] = {rank: [] for rank in group}
        for mine in nodes:
            for ahead in range(1, len(mine)):
                for at, rank in enumerate(mine):
                    to = (at + ahead) % len(mine)
                    blocks = [(rank, theirs[to]) for theirs in nodes]
                    arrived[mine[to]].append(made.add(rank, mine[to], blocks))
        for ahead in range(1, len(nodes)):
            for n, mine in enumerate(nodes):
                theirs = nodes[(n + ahead) % len(nodes)]
                for at, rank in enumerate(mine):
                    made.add(rank, theirs[at], [(source, theirs[at]) for source in mine], arrived[rank])
    return made


def _order(machine: Machine, nodes: list[list[int]], n: int) -> list[int]:
    """The other nodes as node n serves them: its own dragonfly group, then groups from one on that is its own."""
    physical = [mine[0] // machine.per_node for mine in nodes]
    group, place = (np.array(physical) // machine.group).tolist(), physical[n] % machine.group
    groups = max(group) + 1

    def key(m: int) -> tuple[int, int, int]:
        ahead = (group[m] - group[n]) % groups
        turn = (ahead - 1 - place) % (groups - 1) if ahead else 0
        return (min(ahead, 1), turn, (m - n) % len(nodes))

    return sorted((m for m in range(len(nodes)) if m != n), key=key)


def halo(machine: Machine, groups: Sequence[Sequence[int]], streamed: bool = False) -> Messages:
    """Three phases, a die in charge of each pair of nodes.

    >>> bundled = halo(Machine(nodes=16), [range(128)])
    >>> between = [a // 8 != b // 8 for a, b in zip(bundled.src, bundled.dst)]
    >>> sum(between), len(flat(Machine(nodes=16), [range(128)])) - 128 * 7  # one for a pair of nodes, not 64
    (240, 15360)
    """
    made = Messages()
    for group in groups:
        nodes = _members(machine, group)
        dies = len(nodes[0])
        orders = [_order(machine, nodes, n) for n in range(len(nodes))]
        ready = _collected(made, nodes, orders, streamed)
        carried: list[dict[int, list[int]]] = [{} for _ in nodes]  # by target node and die: what phase two brings
        turns = max((len(order) for order in orders), default=0)
        landed: dict[tuple[int, int], int] = {}
        for turn in range(turns):
            for n, order in enumerate(orders):
                m = order[turn]
                die = (n + m) % dies
                blocks = [(a, b) for a in nodes[n] for b in nodes[m]]
                landed[n, m] = made.add(nodes[n][die], nodes[m][die], blocks, ready[n, m])
                carried[m].setdefault(die, []).append(n)
        _handed_out(made, nodes, carried, landed, streamed)
    return made


def _collected(
    made: Messages, nodes: list[list[int]], orders: list[list[int]], streamed: bool
) -> dict[tuple[int, int], list[int]]:
    """Phase one, with what stays in the node; for each pair of nodes the messages that bring what goes there."""
    ready: dict[tuple[int, int], list[int]] = {}
    dies = len(nodes[0])
    for n, mine in enumerate(nodes):
        loads: list[tuple[int, list[int]]] = []  # die in charge, nodes it collects for
        for m in orders[n]:
            ready[n, m] = []
            if streamed:
                loads.append(((n + m) % dies, [m]))
        if not streamed:
            loads = [(die, [m for m in orders[n] if (n + m) % dies == die]) for die in range(dies)]
        local = {(a, b) for a in mine for b in mine if a != b}
        for die, some in loads:
            for ahead in range(1, dies):
                source = mine[(die - ahead) % dies]
                blocks = [(source, b) for m in some for b in nodes[m]]
                if not streamed:
                    local.discard((source, mine[die]))
                    blocks.append((source, mine[die]))
                if blocks:
                    number = made.add(source, mine[die], blocks)
                    for m in some:
                        ready[n, m].append(number)
        for a, b in sorted(local):
            made.add(a, b, [(a, b)])
    return ready


def _handed_out(
    made: Messages, nodes: list[list[int]], carried: list[dict[int, list[int]]], landed: dict[tuple[int, int], int],
    streamed: bool,
) -> None:  # fmt: skip
    """Phase three: from the die where a node's blocks arrived to those that they are for."""
    for m, mine in enumerate(nodes):
        for die, sources in carried[m].items():
            for some in [[n] for n in sources] if streamed else [sources]:
                for ahead in range(1, len(mine)):
                    to = mine[(die + ahead) % len(mine)]
                    blocks = [(a, to) for n in some for a in nodes[n]]
                    made.add(mine[die], to, blocks, [landed[n, m] for n in some])


SCHEDULES: dict[str, Schedule] = {
    "flat": flat,
    "two-level": two_level,
    "halo": halo,
    "halo, streamed": lambda machine, groups: halo(machine, groups, streamed=True),
}


@lru_cache(maxsize=16)
def planned(algorithm: str, shape: Machine, groups: tuple[range, ...]) -> Messages:
    """The messages of an algorithm on all machines of a shape, whatever their speeds; kept, do not add to them.

    >>> len(planned("flat", Machine(nodes=2).shape, (range(16),)))
    240
    """
    return SCHEDULES[algorithm](shape, groups)
