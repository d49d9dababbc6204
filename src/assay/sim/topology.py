"""Networks of ranks: nodes with rails and pods, fat trees, dragonflies, tori plain and twisted, or any graph of a file.

A topology is a directed graph. Its first vertices are the ranks, the others switches. `path` gives the links from one
rank to another, `levels` what a group of ranks sees of the network: within a node, between nodes, between pods.

>>> eight = nodes(2, 4, inside=Link(1e-6, 400e9), outside=Link(5e-6, 50e9))
>>> eight.ranks, len(eight.path(0, 1)), len(eight.path(0, 4))
(8, 2, 2)
>>> [(level.name, level.link.bandwidth / 1e9) for level in eight.levels(range(8))]
[('node', 400.0), ('pod', 50.0)]

- Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008: the fat tree.
- Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008.
- Camara et al., "Twisted torus topologies for enhanced interconnection networks", TPDS 2010.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.sim.collectives import Link
from assay.sim.links import max_min

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Level:
    """What a group sees at one level: members with the same `unit` reach each other over it, each with `link`."""

    name: str  # node, pod, core; graph where there are no nodes
    unit: Ints
    link: Link


@dataclass(frozen=True, eq=False)
class Topology:
    """A directed graph whose vertices 0 to `ranks` - 1 compute.

    Ranks of one `node` also share `inside`, of one `pod` what lies between its nodes. `forwards`: ranks pass on what is
    not theirs, as in a torus. Build it with the functions below.
    """

    name: str
    ranks: int
    ends: Ints  # (links, 2): from, to
    bandwidth: Floats
    latency: Floats
    forwards: bool = False
    node: Ints | None = None
    pod: Ints | None = None
    tiers: tuple[Link, ...] = ()  # what one rank has within its node, its pod, and beyond
    _into: dict[int, list[tuple[int, int]]] = field(default_factory=dict, repr=False)
    _far: dict[int, Ints] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for number, (start, end) in enumerate(self.ends.tolist()):
            self._into.setdefault(end, []).append((start, number))

    @property
    def vertices(self) -> int:
        """Ranks and switches together."""
        return max(self.ranks, int(self.ends.max(initial=-1)) + 1)

    def path(self, source: int, target: int) -> Ints:
        """The links of a shortest path; where there are several, the pair of ends decides, so that traffic spreads.

        Raises:
            ValueError: no path leads there.
        """
        for rank in (source, target):
            if not 0 <= rank < self.ranks:
                raise ValueError(f"rank {rank} is not there; {self.name} has ranks 0 to {self.ranks - 1}")
        far = self.distances(source)
        if far[target] < 0:
            raise ValueError(f"{self.name}: no path leads from rank {source} to rank {target}")
        links, at = np.empty(far[target], np.int64), target
        for hop in range(far[target] - 1, -1, -1):
            nearer = [pair for pair in self._into[at] if far[pair[0]] == hop and self._passes(pair[0], source)]
            at, links[hop] = nearer[_mixed(source, target, hop) % len(nearer)]
        return links

    def distances(self, source: int) -> Ints:
        """Hops from one vertex to every other; -1 where no path leads."""
        if source not in self._far:
            self._far[source] = self._spread(source)
        return self._far[source]

    def _spread(self, source: int) -> Ints:
        far = np.full(self.vertices, -1, np.int64)
        far[source] = 0
        frontier, hops = np.array([source]), 0
        while frontier.size:
            hops += 1
            passing = frontier if self.forwards else frontier[(frontier >= self.ranks) | (frontier == source)]
            on = np.zeros(far.size, bool)
            on[passing] = True
            reached = self.ends[on[self.ends[:, 0]], 1]
            frontier = np.unique(reached[far[reached] < 0])
            far[frontier] = hops
        return far

    def _passes(self, vertex: int, source: int) -> bool:
        return self.forwards or vertex >= self.ranks or vertex == source

    def levels(self, group: Iterable[int] | Ints) -> tuple[Level, ...]:
        """The levels that a group spans, innermost first.

        Without nodes there is one, whose link is what the worst of the group's neighbours gets while all of them send.
        """
        members = np.fromiter(group, np.int64)
        if members.size == 0 or members.min() < 0 or members.max() >= self.ranks:
            raise ValueError(f"the group has ranks beyond {self.name}'s 0 to {self.ranks - 1}")
        if self.node is None:
            return (Level("graph", np.zeros(members.size, np.int64), self._between(members)),)
        units = [self.node[members], self.pod[members] if self.pod is not None else np.zeros_like(members)]
        units.append(np.zeros_like(members))
        found, apart = [], members.size
        for name, unit, link in zip(("node", "pod", "core"), units, self.tiers, strict=True):
            if (now := np.unique(unit).size) < apart:  # it brings some of them together
                found.append(Level(name, unit, link))
                apart = now
        return tuple(found) or (Level("node", units[0], self.tiers[0]),)

    def _between(self, members: Ints) -> Link:
        """What neighbours in a ring through the group get: the least fair rate, the longest delay."""
        if members.size == 1:
            return Link(0.0, math.inf)
        paths = [self.path(int(a), int(b)) for a, b in zip(members, np.roll(members, -1), strict=True)]
        delay = max(float(self.latency[path].sum()) for path in paths)
        return Link(delay, float(max_min(paths, self.bandwidth).min()))


def _mixed(*numbers: int) -> int:
    """A number that looks drawn, the same for the same numbers."""
    found = 0
    for number in numbers:
        found = (found ^ (number + 1)) * 0x9E3779B97F4A7C15 % 2**64
        found ^= found >> 29
    return found >> 33


def both_ways(pairs: Sequence[tuple[int, int, Link]]) -> tuple[Ints, Floats, Floats]:
    """Each cable as two directed links: their ends, bandwidths and latencies.

    >>> both_ways([(0, 1, Link(1e-6, 1e9))])[0].tolist()
    [[0, 1], [1, 0]]
    """
    ends = np.array([pair for a, b, _ in pairs for pair in ((a, b), (b, a))], np.int64).reshape(-1, 2)
    links = [link for _, _, link in pairs for _ in range(2)]
    return ends, np.array([link.bandwidth for link in links]), np.array([link.latency for link in links])


def nodes(
    count: int, per_node: int, inside: Link, outside: Link, *, pod: int = 0, oversubscribed: float = 1.0
) -> Topology:
    """Nodes of ranks behind one switch, a network card a rank, and a switch for each card's place: the rails.

    Args:
        count: nodes.
        per_node: ranks of a node.
        inside: a rank's link to its node's switch.
        outside: a rank's network card.
        pod: nodes whose rails meet without the core; 0: all.
        oversubscribed: how many times the cards of a rail carry what its links to the core do.
    """
    if count < 1 or per_node < 1 or pod < 0 or oversubscribed < 1:
        raise ValueError("a cluster has at least one node of one rank, and is oversubscribed at least once")
    pod, ranks = pod or count, count * per_node
    pods = -(-count // pod)
    rail, core = ranks + count, ranks + count + pods * per_node
    within, card = (Link(link.latency / 2, link.bandwidth) for link in (inside, outside))  # to the switch, and on
    cables = [(rank, ranks + rank // per_node, within) for rank in range(ranks)]
    cables += [(rank, rail + rank // per_node // pod * per_node + rank % per_node, card) for rank in range(ranks)]
    up = Link(outside.latency / 2, pod * outside.bandwidth / oversubscribed)
    cables += [(rail + place, core, up) for place in range(pods * per_node)]
    node = np.arange(ranks) // per_node
    beyond = Link(2 * outside.latency, outside.bandwidth / oversubscribed)
    return Topology(
        f"{count} nodes of {per_node}", ranks, *both_ways(cables), node=node, pod=node // pod,
        tiers=(inside, outside, beyond),
    )  # fmt: skip


def fat_tree(k: int, link: Link) -> Topology:
    """k pods of k/2 edge and k/2 aggregation switches below (k/2)² cores: k³/4 ranks at full bisection.

    >>> tree = fat_tree(4, Link(1e-6, 1e9))
    >>> tree.ranks, len(tree.path(0, 1)), len(tree.path(0, 15))
    (16, 2, 6)
    """
    if k < 2 or k % 2:
        raise ValueError(f"a fat tree has an even number of ports a switch, not {k}")
    half, ranks = k // 2, k**3 // 4
    edge, above, core = ranks, ranks + k * half, ranks + 2 * k * half
    cables = [(rank, edge + rank // half, link) for rank in range(ranks)]
    for pod in range(k):
        for low in range(half):
            cables += [(edge + pod * half + low, above + pod * half + high, link) for high in range(half)]
        for high in range(half):
            cables += [(above + pod * half + high, core + high * half + c, link) for c in range(half)]
    return Topology(f"fat tree of {k}-port switches", ranks, *both_ways(cables))


def dragonfly(groups: int, routers: int, hosts: int, local: Link, far: Link | None = None) -> Topology:
    """Groups of routers, each joined with all of its group, and one cable between any two groups.

    >>> fly = dragonfly(5, 4, 2, Link(1e-6, 1e9))
    >>> fly.ranks, max(len(fly.path(0, rank)) for rank in range(40))
    (40, 5)
    """
    if min(groups, routers, hosts) < 1:
        raise ValueError("a dragonfly has at least one group of one router with one rank")
    ranks, wide = groups * routers * hosts, far or local
    cables = [(rank, ranks + rank // hosts, local) for rank in range(ranks)]
    for group in range(groups):
        first = ranks + group * routers
        cables += [(first + a, first + b, local) for a in range(routers) for b in range(a + 1, routers)]
        for other in range(group + 1, groups):  # cables to other groups go round the routers
            mine, theirs = (other - 1) % routers, group % routers
            cables.append((first + mine, ranks + other * routers + theirs, wide))
    return Topology(f"dragonfly of {groups} groups", ranks, *both_ways(cables))


def torus(shape: Sequence[int], link: Link, twist: Mapping[int, Sequence[int]] | None = None) -> Topology:
    """A grid whose ends meet; with `twist`, whoever goes over the end of a dimension is also moved by so much.

    >>> ring, twisted = torus([4, 8], Link(1e-6, 1e9)), torus([4, 8], Link(1e-6, 1e9), twist={0: (0, 4)})
    >>> int(ring.distances(0).max()), int(twisted.distances(0).max())
    (6, 4)
    """
    size = np.array(shape, np.int64)
    if size.size == 0 or size.min() < 1:
        raise ValueError(f"a torus has at least one rank in each dimension, not {'x'.join(map(str, shape))}")
    moves = {d: np.array(by, np.int64) for d, by in (twist or {}).items()}
    places = np.stack(np.unravel_index(np.arange(size.prod()), tuple(size)), axis=1)
    cables = []
    for d in range(size.size):
        if size[d] < 2:
            continue
        there = places.copy()
        there[:, d] += 1
        over = there[:, d] == size[d]
        there[over] += moves.get(d, np.zeros(size.size, np.int64))
        there %= size
        to = np.ravel_multi_index(tuple(there.T), tuple(size))
        kept = range(len(places)) if size[d] > 2 or d in moves else np.flatnonzero(~over)
        cables += [(int(a), int(to[a]), link) for a in kept]
    words = "x".join(map(str, shape)) + (" twisted" if moves else "")
    return Topology(f"{words} torus", int(size.prod()), *both_ways(cables), forwards=True)


def read(path: str | Path) -> Topology:
    """A graph of one's own: JSON with `ranks` and `links`, each [from, to, bytes a second, seconds] and both ways.

    `ranks` says how many of the vertices compute, the first ones; `forwards` (true, unless there are switches) whether
    they pass on what is not theirs.

    Raises:
        BadInput: what is wrong, and in which link.
    """
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise BadInput(f"{path}: no JSON: {error}") from error
    shape = '{"ranks": 4, "links": [[0, 1, 5e10, 1e-6], …]} expected'
    if not isinstance(told, dict) or not isinstance(told.get("ranks"), int) or not isinstance(told.get("links"), list):
        raise BadInput(f"{path}: {shape}")
    if told["ranks"] < 1:
        raise BadInput(f"{path}: ranks is {told['ranks']}; at least one expected")
    cables = [_cable(f"{path}, link {number}", link) for number, link in enumerate(told["links"], 1)]
    topology = Topology(
        Path(path).stem, told["ranks"], *both_ways(cables),
        forwards=bool(told.get("forwards", max((max(a, b) for a, b, _ in cables), default=0) < told["ranks"])),
    )  # fmt: skip
    if (cut := np.flatnonzero(topology.distances(0)[: topology.ranks] < 0)).size:
        raise BadInput(f"{path}: no link leads from rank 0 to rank {cut[0]}; add one, or lower ranks")
    return topology


def _cable(where: str, link: Any) -> tuple[int, int, Link]:
    numbers = isinstance(link, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in link)
    if not numbers or not 3 <= len(link) <= 4:
        raise BadInput(f"{where}: [from, to, bytes a second, seconds] expected, not {json.dumps(link)[:60]}")
    start, end, bandwidth, latency = (*link, 0.0)[:4]
    if start != int(start) or end != int(end) or min(start, end) < 0 or start == end:
        raise BadInput(f"{where}: joins {start} and {end}; two different vertices, 0 or more, expected")
    if not (0 < bandwidth < math.inf and 0 <= latency < math.inf):
        raise BadInput(f"{where}: bandwidth {bandwidth}, latency {latency}; above 0, and 0 or more, expected")
    return int(start), int(end), Link(float(latency), float(bandwidth))
