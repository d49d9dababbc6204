"""What an all-to-all takes on a machine, flat or by HALO, as planners ask for it: played once, read off between sizes.

>>> network = Network.of(frontier(64), halo=True)
>>> chosen = network.choice(range(64), 64e3)
>>> chosen.algorithm, chosen.seconds < chosen.flat
('halo', True)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from assay.sim.hardware import device
from assay.training.engine.cluster import ClosedForms, Cluster, Efficiency
from assay.training.interface import Floats, Ints
from assay.training.piper.exchanges import planned
from assay.training.piper.machine import Machine

PER_PEER = (2e3, 32e3, 1e6)  # bytes that a rank has for another, where the machine is played; a line between and beyond
MOST = 128  # ranks that are played at most: two dragonfly groups of eight nodes
HALO = ("halo", "halo, streamed")


class Choice(NamedTuple):
    """An algorithm, its seconds, and what a flat all-to-all takes."""

    algorithm: str
    seconds: float
    flat: float


def frontier(ranks: int, efficiency: Efficiency | None = None) -> Cluster:
    """Dies of Frontier, eight a node."""
    die = device("mi250x")
    return Cluster(die, ranks, 8, die.nvlink, die.nic, efficiency or Efficiency(), name=f"frontier-{ranks}")


@dataclass(frozen=True)
class Network:
    """Collectives of a cluster: all-to-alls between nodes are played on a machine, the others are closed forms.

    Without `halo` an all-to-all is flat; with it, whatever is quickest of flat and HALO.
    """

    cluster: Cluster
    machine: Machine  # as if of one node; a group says how many there are
    halo: bool

    @classmethod
    def of(cls, cluster: Cluster, halo: bool, machine: Machine | None = None) -> Network:
        """On the links of this cluster, whose devices have a card each unless a machine says otherwise."""
        share = cluster.efficiency.links
        made = machine or Machine(
            1, inside=share * cluster.inside.bandwidth, card=2 * share * cluster.outside.bandwidth,
            start_inside=cluster.inside.latency, start_outside=cluster.outside.latency, per_node=cluster.per_node,
            cards=max(1, cluster.per_node // 2),
        )  # fmt: skip
        return cls(replace(cluster, collectives=None), replace(made, nodes=1), halo)

    def seconds(self, op: str, group: Ints, nbytes: Floats) -> Floats:
        """As in :class:`assay.training.interface.CollectiveModel`."""
        span = int(group[-1] - group[0]) + 1
        if op != "all_to_all" or span <= self.machine.per_node:
            return ClosedForms(self.cluster).seconds(op, group, nbytes)
        stride = int(group[1] - group[0])
        tables = self._tables(len(group), stride)
        peers = np.asarray(nbytes) / len(group)
        return np.asarray(np.min([_line(peers, table) for table in tables.values()], axis=0))

    def choice(self, group: range, nbytes: float) -> Choice:
        """Which algorithm for so many bytes of each rank of a group, and what it takes."""
        tables = self._tables(len(group), group.step)
        times = {name: float(_line(np.array([nbytes / len(group)]), table)[0]) for name, table in tables.items()}
        name = min(times, key=lambda key: times[key])
        return Choice(name, times[name], times["flat"])

    def _tables(self, size: int, stride: int) -> dict[str, Floats]:
        names = ("flat", *HALO) if self.halo and stride == 1 else ("flat",)
        return {name: _played(self.machine, name, size, stride) for name in names}


def _line(peers: Floats, times: Floats) -> Floats:
    """Seconds at these sizes: between those that were played, and on from the last as between the last two."""
    slope = (times[-1] - times[-2]) / (PER_PEER[-1] - PER_PEER[-2])
    beyond = np.maximum(0.0, peers - PER_PEER[-1]) * slope
    return np.asarray(np.interp(peers, PER_PEER, times) + beyond)


@lru_cache(maxsize=512)
def _played(machine: Machine, algorithm: str, size: int, stride: int) -> Floats:
    """Seconds at the sizes of `PER_PEER`, while the groups beside exchange as much."""
    ranks = size * stride
    nodes = -(-ranks // machine.per_node)
    whole = replace(machine, nodes=nodes)
    messages = planned(algorithm, whole.shape, tuple(range(first, ranks, stride) for first in range(stride)))
    block = np.ones((whole.ranks, whole.ranks))
    return np.array([messages.seconds(whole, nbytes * block) for nbytes in PER_PEER])
