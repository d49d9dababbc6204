"""What communication costs in a replay: two tiers of links, and a closed form for each collective.

Ranks are node-contiguous: with `per_node=8`, ranks 0 to 7 share a node and the link `inside` it; ranks of different
nodes talk over `outside`. A group within one node, with one member a node, or with several in each is priced alike by
:mod:`assay.sim.collectives`.

>>> net = Network(Link(1e-6, 100e9), Link(1e-5, 10e9), per_node=4)
>>> inside, across = net.collective("ALL_REDUCE", range(4), 1e6), net.collective("ALL_REDUCE", (0, 4, 8, 12), 1e6)
>>> round(inside * 1e6), round(across * 1e6)
(21, 210)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from assay.record.errors import BadInput
from assay.sim import collectives
from assay.sim.collectives import Link

_GATHERS = ("ALL_GATHER", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "GATHER", "SCATTER")


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a cluster. `outside=None`: one tier. `ranks`: how large a group is of which one trace is at hand."""

    inside: Link
    outside: Link | None = None
    per_node: int = 8
    ranks: int | None = None

    def __post_init__(self) -> None:
        links = [self.inside] + ([self.outside] if self.outside else [])
        for link in links:
            if not (link.bandwidth > 0 and math.isfinite(link.latency) and link.latency >= 0):
                raise BadInput(f"a link needs a bandwidth above 0 and a latency of 0 or more, not {link}")
        if self.per_node < 1 or (self.ranks is not None and self.ranks < 1):
            raise BadInput("a network needs at least one rank, and one rank a node")

    def scaled(self, bandwidth: float = 1.0, latency: float = 1.0) -> Network:
        """The same network with bandwidths and latencies multiplied.

        >>> Network(Link(1e-6, 1e9)).scaled(bandwidth=2).inside
        Link(latency=1e-06, bandwidth=2000000000.0)
        """

        def faster(link: Link) -> Link:
            return Link(link.latency * latency, link.bandwidth * bandwidth)

        return replace(self, inside=faster(self.inside), outside=self.outside and faster(self.outside))

    def between(self, one: int, other: int) -> Link:
        """The link from one rank to another."""
        apart = self.outside is not None and one // self.per_node != other // self.per_node
        return self.outside if apart and self.outside is not None else self.inside

    def collective(self, operation: str, members: Iterable[int], nbytes: float) -> float:
        """Seconds of a collective among these ranks. `nbytes` is the whole vector: what an all-reduce reduces, what an
        all-gather ends with, what a reduce-scatter begins with, all that a rank sends in an all-to-all."""
        per_node = Counter(rank // self.per_node for rank in members)
        p = sum(per_node.values())
        if p <= 1:
            return 0.0
        nodes, together = len(per_node), max(per_node.values())
        if self.outside is None or nodes == 1:
            return _flat(operation, p, nbytes, self.inside)
        if together == 1:
            return _flat(operation, p, nbytes, self.outside)
        return _nested(operation, p, together, nodes, nbytes, self.inside, self.outside)


def _flat(operation: str, p: int, nbytes: float, link: Link) -> float:
    match operation:
        case "ALL_REDUCE":
            return float(collectives.all_reduce(p, nbytes, link))
        case "BARRIER":
            return float(collectives.all_reduce(p, 0.0, link))
        case "ALL_TO_ALL":
            return float(collectives.all_to_all(p, nbytes, link))
        case "BROADCAST" | "REDUCE":  # down a tree, or up: half of a reduction that every rank learns
            return float(collectives.tree_all_reduce(p, nbytes, link)) / 2
    if operation in _GATHERS:
        return float(collectives.all_gather(p, nbytes / p, link))
    raise BadInput(f"no closed form for the collective '{operation}'; there are ALL_REDUCE, REDUCE, BROADCAST, "
                   f"ALL_TO_ALL, BARRIER, {', '.join(_GATHERS)}")  # fmt: skip


def _nested(operation: str, p: int, together: int, nodes: int, nbytes: float, inside: Link, outside: Link) -> float:
    if operation in ("ALL_REDUCE", "BARRIER"):
        size = nbytes if operation == "ALL_REDUCE" else 0.0
        within = 2 * collectives.all_gather(together, size / together, inside)
        return float(within + collectives.all_reduce(nodes, size / together, outside))
    if operation == "ALL_TO_ALL":
        return float(collectives.nested_all_to_all(p, together, nbytes, inside, outside))
    if operation in _GATHERS:  # the nodes exchange a part for each place within them, then each node shares all
        return float(
            collectives.all_gather(nodes, nbytes / p, outside)
            + collectives.all_gather(together, nbytes / together, inside)
        )
    return _flat(operation, nodes, nbytes, outside) + _flat(operation, together, nbytes, inside)
