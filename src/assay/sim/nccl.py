"""What a collective of NCCL takes: rings and double trees, three protocols, channels and chunks, and the best of them.

A collective is cut over channels; each passes chunks from rank to rank. The *protocol* says how large a chunk is, how
much of the wire carries data, and what a hop costs: Simple moves slots of 512 KiB behind a memory fence, LL marks every
4 bytes with 4 bytes of flag, LL128 every 120 with 8. The *algorithm* says how many hops follow one another. Each
combination has a closed form below, which the sends of :mod:`assay.sim.sends` follow event by event; as NCCL's tuner
does, `NcclModel` takes the quickest.

>>> from assay.sim.hardware import device
>>> model = NcclModel.of(device("h100"), nodes=2)
>>> best = model.choose("all_reduce", range(16), [4096.0, 1e9])
>>> [(c.algorithm, c.protocol) for c in best]
[('tree', 'LL'), ('ring', 'Simple')]
>>> round(2 * 15 / 16 * 1e9 / best[1].seconds / 1e9)  # GB/s on the bus, of 8 network cards with 50 each
398

Latencies, and what one channel carries, are those of NCCL's own tuner; sizes of buffers those of NCCL 2.19.

- Hu et al., "Demystifying NCCL: An In-depth Analysis of GPU Communication Protocols and Algorithms", 2025.
- NCCL, src/graph/tuning.cc: hwLat, baseLat, llMaxBws, perChMaxRingLL128Bws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim import sends as lowering
from assay.sim import topology
from assay.sim.hardware import Device
from assay.sim.sends import Sends
from assay.sim.topology import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KIB = 1024
CHANNELS = (1, 2, 4, 8, 16, 32)
RING, TREE = "ring", "tree"
CHAIN, DIRECT = "chain", "direct"  # broadcasts and reductions; all-to-alls and sends
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send")


@dataclass(frozen=True)
class Protocol:
    """How ranks hand chunks over: sizes in bytes of data, `wire` is the share of what is sent that is data."""

    name: str
    chunk: int  # of a ring's step
    slices: int  # pieces of it that are passed on as soon as they are there
    slot: int  # of a tree or a chain
    wire: float
    launch: MappingProxyType[str, float]  # seconds by algorithm
    hop: MappingProxyType[tuple[str, str], float]  # seconds by kind of link and algorithm


def _protocol(
    name: str, chunk: int, slices: int, slot: int, wire: float, launch: Sequence[float], hop: Sequence[Sequence[float]]
) -> Protocol:
    """From the tuner's tables, in microseconds: launches of tree and ring, hops over NVLink, PCIe and network."""
    begin = {TREE: launch[0], RING: launch[1], CHAIN: launch[1], DIRECT: launch[1]}
    step = {
        (kind, algorithm): pair[algorithm != TREE]
        for kind, pair in zip(("nvlink", "pcie", "net"), hop, strict=True)
        for algorithm in (TREE, RING, CHAIN, DIRECT)
    }
    us = {key: value * 1e-6 for key, value in begin.items()}, {key: value * 1e-6 for key, value in step.items()}
    return Protocol(name, chunk, slices, slot, wire, MappingProxyType(us[0]), MappingProxyType(us[1]))


PROTOCOLS = {
    # 8 slots of 512 KiB; a ring's chunk is four of them in two slices
    "Simple": _protocol("Simple", 2048 * KIB, 2, 512 * KIB, 1.0, (0.0, 8.4), ((4.0, 3.4), (4.0, 5.7), (14.0, 14.0))),
    # slots of 32 KiB, half of which is flags
    "LL": _protocol("LL", 16 * KIB, 1, 16 * KIB, 4 / 8, (6.8, 6.6), ((0.6, 0.6), (1.0, 1.0), (5.0, 2.7))),
    # slots of 600 KiB with 120 bytes of data in 128
    "LL128": _protocol("LL128", 576_000, 1, 576_000, 120 / 128, (14.0, 14.0), ((1.25, 1.9), (1.9, 2.5), (8.5, 4.0))),
}
AMPERE, HOPPER, BLACKWELL = "ampere", "hopper", "blackwell"
FAMILY = {"GH100": HOPPER, "h20": HOPPER, "GB100": BLACKWELL}  # by chip; others copy no faster than Ampere
CHANNEL = {AMPERE: 20e9, HOPPER: 36.7e9, BLACKWELL: 40e9}  # bytes a second that one thread block copies
# LL polls flags, between nodes in host memory: bytes a second at most on one node, on two, and on more.
LL_MOST = {
    AMPERE: (87.7e9, 22.5e9, 19e9), HOPPER: (141e9, 45e9, 35e9), BLACKWELL: (282e9, 90e9, 70e9),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What a collective is made of, and how long it takes at the size it was chosen for."""

    algorithm: str
    protocol: str
    channels: int
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Wires:
    """What a group's members have between them, by level; ways through the group as how many hops of each level."""

    units: tuple[Ints, ...]  # by level, innermost first: the unit of each member, in the ring's order
    kinds: tuple[str, ...]
    rank: Floats  # bytes a second that one member has, at each level
    node: Floats  # what all members of a node have together
    _kept: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Members."""
        return self.units[0].size

    @cached_property
    def nodes(self) -> int:
        """How many nodes the members lie in."""
        return self.size if self.kinds[0] == "net" else np.unique(self.units[0]).size

    def level(self, a: Any, b: Any) -> Ints:
        """The level over which members reach each other: the innermost whose unit they share."""
        found = np.full(np.broadcast(a, b).shape, len(self.units) - 1, np.int64)
        for number in range(len(self.units) - 2, -1, -1):
            found[self.units[number][a] == self.units[number][b]] = number
        return found

    @cached_property
    def hops(self) -> Ints:
        """The level of each hop round the ring."""
        return self.level(np.arange(self.size), np.roll(np.arange(self.size), -1))

    def trees(self, algorithm: str) -> tuple[Ints, ...]:
        """Parents: of a chain; or of two trees over nodes, with a chain within each, over ranks if each is alone."""
        if algorithm != TREE:
            return (lowering.chain(self.size),)
        return lowering.double_tree(np.arange(self.size) if self.kinds[0] == "net" else self.units[0])

    def ways(self, algorithm: str) -> list[tuple[Ints, int]]:
        """For each tree its ways from the top, equal ones once, and its depth."""
        if (algorithm, 0) not in self._kept:
            self._kept[algorithm, 0] = [self._ways(parent) for parent in self.trees(algorithm)]
        return self._kept[algorithm, 0]  # type: ignore[no-any-return]

    def _ways(self, parent: Ints) -> tuple[Ints, int]:
        counts, depth = np.zeros((self.size, len(self.units)), np.int64), lowering.depths(parent)
        for deep in range(1, int(depth.max()) + 1):
            there = np.flatnonzero(depth == deep)
            counts[there] = counts[parent[there]]
            counts[there, self.level(there, parent[there])] += 1
        return np.unique(counts, axis=0), int(depth.max())

    def beyond(self, steps: int) -> Ints:
        """Of `steps` hops in a row round the ring: how many go beyond each level, at least and at most."""
        if ("ring", steps) not in self._kept:
            found = np.zeros((2, len(self.units)), np.int64)
            for level in range(len(self.units) - 1):
                along = np.concatenate([[0], np.cumsum(np.tile(self.hops > level, 2))])
                sums = along[steps : steps + self.size] - along[: self.size]
                found[:, level] = sums.min(), sums.max()
            self._kept["ring", steps] = found
        return self._kept["ring", steps]  # type: ignore[no-any-return]

    def lanes(self, channels: int) -> Ints:
        """What the channels of an all-to-all do, equal ones once: parts that a rank sends over each level."""
        if ("direct", channels) not in self._kept:
            ahead, first = np.arange(1, self.size), np.arange(0, self.size, max(1, self.size // 128))
            level = self.level(first[:, None], (first[:, None] + ahead) % self.size)
            there = np.eye(len(self.units), dtype=np.int64)[level]  # (rank, round, level)
            sums = [there[:, lane::channels].sum(axis=1) for lane in range(min(channels, ahead.size))]
            self._kept["direct", channels] = np.unique(np.concatenate(sums), axis=0)
        return self._kept["direct", channels]  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class NcclModel:
    """Seconds of collectives on a topology, where nothing else is on the wires: a `CollectiveModel` of training.

    `launch`, `latency` and `bandwidth` multiply the tuner's launches, its hops, and the links: what a fit to measured
    times finds. `protocols` and `algorithms` leave others out, as NCCL_PROTO and NCCL_ALGO do.
    """

    topology: Topology
    kind: str = "nvlink"  # within a node: nvlink or pcie
    family: str = HOPPER  # of GPUs: how fast one channel copies, and how fast LL can be
    protocols: tuple[str, ...] = ("LL", "LL128", "Simple")
    algorithms: tuple[str, ...] = (RING, TREE)
    launch: float = 1.0
    latency: float = 1.0
    bandwidth: float = 1.0
    _wires: dict[bytes, Wires] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, device: Device, nodes: int = 1, per_node: int | None = None, **options: Any) -> NcclModel:
        """On so many nodes of this device, with one network card each and rails."""
        linked = device.nvlink != device.pcie
        known: dict[str, Any] = {"kind": "nvlink" if linked else "pcie"}
        known["family"] = FAMILY.get(device.silicon or device.name, AMPERE)
        if not linked:
            known["protocols"] = ("LL", "Simple")  # 128 bytes arrive whole over NVLink only
        ranks = per_node or device.gpus_per_node
        return cls(topology.nodes(nodes, ranks, device.nvlink, device.nic), **(known | options))

    def seconds(self, op: str, group: Iterable[int], nbytes: ArrayLike) -> Floats:
        """How long a collective of each size takes; `nbytes` is what one rank holds before it."""
        members = np.fromiter(group, np.int64)
        return np.min([self.timed(op, members, nbytes, plan) for plan in self.plans(op)], axis=0)  # type: ignore[no-any-return]

    def choose(self, op: str, group: Iterable[int], nbytes: ArrayLike) -> list[Choice]:
        """The quickest algorithm, protocol and number of channels for each size; of equals, the fewest channels."""
        members, plans = np.fromiter(group, np.int64), self.plans(op)
        times = np.array([self.timed(op, members, nbytes, plan) for plan in plans])
        first = np.argmax(times <= times.min(axis=0) * (1 + 1e-9), axis=0)
        return [replace(plans[i], seconds=float(times[i, j])) for j, i in enumerate(first)]

    def plans(self, op: str) -> list[Choice]:
        """Everything that NCCL may do for a collective, those with few channels first."""
        if op not in OPERATIONS:
            raise ValueError(f"no collective is called '{op}'; there are {', '.join(OPERATIONS)}")
        able: tuple[str, ...] = (DIRECT,)
        if op == "all_reduce":
            able = self.algorithms
        elif op in ("all_gather", "reduce_scatter"):
            able = (RING,)
        elif op in ("broadcast", "reduce"):
            able = (CHAIN,)
        found = [Choice(a, p, c) for c in CHANNELS for a in able for p in self.protocols]
        found = [x for x in found if not (x.algorithm == TREE and x.channels == 1)]  # half of the data in each tree
        found = [x for x in found if not (x.algorithm == DIRECT and x.protocol == "LL128")]
        if not found:
            raise ValueError(f"nothing does {op} with {', '.join(self.protocols)} and {', '.join(self.algorithms)}")
        return found

    def timed(self, op: str, group: Iterable[int], nbytes: ArrayLike, plan: Choice) -> Floats:
        """The time of one plan at each size, in closed form."""
        sizes, protocol = np.atleast_1d(np.asarray(nbytes, np.float64)), PROTOCOLS[plan.protocol]
        wires = self.wires(group)
        if wires.size == 1:
            return np.zeros_like(sizes)
        alpha, beta = self.costs(wires, plan)
        begin = self.launch * protocol.launch[plan.algorithm]
        if plan.algorithm == RING:
            return begin + _ring(op, sizes, wires, alpha, beta, protocol, plan.channels)
        if plan.algorithm == DIRECT:
            return begin + _direct(op, sizes, wires, alpha, beta, plan.channels)
        return begin + _piped(op, sizes / plan.channels, wires, plan.algorithm, alpha, beta, protocol.slot)

    def wires(self, group: Iterable[int]) -> Wires:
        """The group's links by level, its members ordered so that a ring leaves each node once."""
        members = np.fromiter(group, np.int64)
        if (key := members.tobytes()) not in self._wires:
            levels = self.topology.levels(members)
            order = np.lexsort([level.unit for level in levels])
            units = tuple(level.unit[order] for level in levels)
            kinds = tuple(self.kind if level.name == "node" else "net" for level in levels)
            rank = np.array([level.link.bandwidth for level in levels])
            inside = levels[0].name == "node"
            cards = np.unique(units[0], return_counts=True)[1].min() if inside else 1
            shared = rank * np.where(np.array(kinds) == "net", cards, 1)
            self._wires[key] = Wires(units, kinds, rank, shared)
        return self._wires[key]

    def costs(self, wires: Wires, plan: Choice) -> tuple[Floats, Floats]:
        """Seconds of a hop, and seconds a byte of one channel on one link, at each level.

        A tree's channel sends up and down at once, so that links carry twice as many streams as there are channels.
        What leaves a node goes over the cards of all its members; each member of an all-to-all has its own alone.
        """
        protocol, streams = PROTOCOLS[plan.protocol], plan.channels * (2 if plan.algorithm == TREE else 1)
        shared = wires.rank if plan.algorithm == DIRECT else wires.node
        rate = protocol.wire * np.minimum.reduce(
            [np.full(shared.size, CHANNEL[self.family]), wires.rank, shared / streams]
        )
        if plan.protocol == "LL":
            rate = np.minimum(rate, LL_MOST[self.family][min(wires.nodes, 3) - 1] / streams)
        alpha = np.array([protocol.hop[kind, plan.algorithm] for kind in wires.kinds])
        return self.latency * alpha, 1.0 / (self.bandwidth * rate)

    def lower(self, op: str, group: Iterable[int], nbytes: int, plan: Choice) -> tuple[Sends, Floats, Floats]:
        """A plan as sends of bytes, and for each its seconds a byte and its hop: what `sends.arrivals` takes."""
        wires, protocol = self.wires(group), PROTOCOLS[plan.protocol]
        made = _lowered(op, wires, nbytes, plan, protocol)
        alpha, beta = self.costs(wires, plan)
        level = wires.level(made.src, made.dst)
        return made, beta[level], alpha[level]


def _steps(op: str, size: int) -> int:
    return (size - 1) * (2 if op == "all_reduce" else 1)


def _ring(
    op: str, nbytes: Floats, wires: Wires, alpha: Floats, beta: Floats, protocol: Protocol, channels: int
) -> Floats:
    """Loops of equal chunks, 2(k-1) or k-1 steps each; a rank begins the next loop with its last chunk of this one.

    What takes longest is a link that is never idle, from loop to loop perhaps the next such link of the ring; or the
    way of a chunk from hop to hop through all loops, or from such a link to such a link.
    """
    size, hop = wires.size, wires.hops
    per = nbytes / channels / (1 if op == "all_gather" else size)  # of each chunk, were there one loop
    loops = np.maximum(1.0, np.ceil(per / protocol.chunk))
    chunk, steps = per / loops, (size - 1) * (2 if op == "all_reduce" else 1)
    piece = chunk / protocol.slices
    slowest = int(np.lexsort([alpha[hop], beta[hop]])[-1])
    apart = int(np.argmax(np.roll(hop, -slowest - 1) == hop[slowest]))  # hops up to the next such link
    between = hop[(slowest + 1 + np.arange(apart)) % size]
    slow, busy = beta[hop[slowest]], chunk * beta[hop[slowest]]
    onward = alpha[hop[slowest]] + alpha[between].sum() + piece * beta[between].sum() - apart * busy
    longest = loops * steps * busy + alpha[hop[slowest]] + (loops - 1) * np.maximum(0.0, onward)
    hops = (loops * steps).astype(np.int64)
    for moves in (hops, hops - (hops - 1) % (apart + 1)):
        waits = (loops * (chunk - piece) + (hops - moves) * chunk) * slow
        longest = np.maximum(longest, _passed(moves, wires, alpha, beta, piece) + waits)
    return np.asarray(longest)


def _passed(moves: Ints, wires: Wires, alpha: Floats, beta: Floats, piece: Floats) -> Floats:
    """The longest way of a piece over so many hops in a row, for each size."""
    total = moves * (alpha[0] + piece * beta[0])
    whole, rest = np.divmod(moves, wires.size)
    for level in range(len(wires.units) - 1):
        more = alpha[level + 1] - alpha[level] + piece * (beta[level + 1] - beta[level])
        around = int((wires.hops > level).sum())
        least, most = np.array([wires.beyond(int(r))[:, level] for r in rest]).T
        total = total + (whole * around + np.where(more > 0, most, least)) * more
    return np.asarray(total)


def _piped(op: str, per: Floats, wires: Wires, algorithm: str, alpha: Floats, beta: Floats, slot: int) -> Floats:
    """Up trees and down again, or along a chain: the first chunk's way, then one chunk after the other."""
    found = np.zeros_like(per)
    for ways, depth in wires.ways(algorithm):
        pieces = np.maximum(1.0, np.ceil(per / _slot(per, slot, depth)))
        chunk = per / pieces
        once = np.max(ways @ alpha + np.multiply.outer(chunk, ways @ beta), axis=-1)
        times = 2 if op == "all_reduce" else 1
        busiest = beta[ways.any(axis=0)].max()
        found = np.maximum(found, times * once + (pieces - 1) * chunk * busiest)
    return found


def _slot(per: Floats, slot: int, depth: int) -> Floats:
    """The size of chunks: halved while they are too few to fill a pipeline so deep, down to a sixteenth."""
    wanted = np.log2(np.maximum(1.0, slot * depth / np.maximum(per, 1.0)))
    return slot / 2.0 ** np.clip(np.ceil(wanted), 0, 4)


def _direct(op: str, nbytes: Floats, wires: Wires, alpha: Floats, beta: Floats, channels: int) -> Floats:
    """Each channel's parts one after the other; a send is cut over all channels."""
    if op == "send":
        level = wires.level(np.zeros(1, np.int64), np.array([wires.size - 1]))
        return alpha[level] + nbytes / channels * beta[level]
    lanes = wires.lanes(channels)
    return np.asarray(np.max(lanes @ alpha + np.multiply.outer(nbytes / wires.size, lanes @ beta), axis=-1))


def _lowered(op: str, wires: Wires, nbytes: int, plan: Choice, protocol: Protocol) -> Sends:
    size = wires.size
    if plan.algorithm == RING:
        count = nbytes * (size if op == "all_gather" else 1)
        cut = {"channels": plan.channels, "chunk": protocol.chunk, "slices": protocol.slices}
        return lowering.ring_sends(op, size, count, **cut)
    if plan.algorithm == DIRECT:
        return lowering.direct_sends(size, nbytes, channels=plan.channels)
    depth = max(depth for _, depth in wires.ways(plan.algorithm))
    chunk = int(_slot(np.array([nbytes / plan.channels]), protocol.slot, depth)[0])
    return lowering.tree_sends(op, wires.trees(plan.algorithm), nbytes, channels=plan.channels, chunk=chunk)
