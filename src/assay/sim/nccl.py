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
- NCCL, src/graph/tuning.cc: hwLat, baseLat, perChMaxRingLL128Bws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
CHANNEL_BANDWIDTH = {"a100": 20e9, "a100-40g": 20e9, "h100": 36.7e9, "h200": 36.7e9, "h20": 36.7e9, "b200": 40e9}


@dataclass(frozen=True)
class Choice:
    """What a collective is made of, and how long it takes at the size it was chosen for."""

    algorithm: str
    protocol: str
    channels: int
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Wires:
    """What a group's members have between them, by level."""

    units: tuple[Ints, ...]  # by level, innermost first: the unit of each member, in the ring's order
    kinds: tuple[str, ...]
    rank: Floats  # bytes a second that one member has, at each level
    node: Floats  # what all members of a node have together

    @property
    def size(self) -> int:
        """Members."""
        return self.units[0].size

    def level(self, a: Any, b: Any) -> Ints:
        """The level over which members reach each other: the innermost whose unit they share."""
        found = np.full(np.broadcast(a, b).shape, len(self.units) - 1, np.int64)
        for number in range(len(self.units) - 2, -1, -1):
            found[self.units[number][a] == self.units[number][b]] = number
        return found


@dataclass(frozen=True, eq=False)
class NcclModel:
    """Seconds of collectives on a topology, where nothing else is on the wires: a `CollectiveModel` of training.

    `launch`, `latency` and `bandwidth` multiply the tuner's launches, its hops, and the links: what a fit to measured
    times finds. `protocols` and `algorithms` leave others out, as NCCL_PROTO and NCCL_ALGO do.
    """

    topology: Topology
    kind: str = "nvlink"  # within a node: nvlink or pcie
    channel_bandwidth: float = 36.7e9  # what one thread block copies a second
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
        known["channel_bandwidth"] = CHANNEL_BANDWIDTH.get(device.name, 20e9)
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
        parents = trees(wires) if plan.algorithm == TREE else (lowering.chain(wires.size),)
        return begin + _piped(op, sizes / plan.channels, wires, parents, alpha, beta, protocol.slot)

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
        rate = np.minimum.reduce([np.full(shared.size, self.channel_bandwidth), wires.rank, shared / streams])
        alpha = np.array([protocol.hop[kind, plan.algorithm] for kind in wires.kinds])
        return self.latency * alpha, 1.0 / (self.bandwidth * rate * protocol.wire)

    def lower(self, op: str, group: Iterable[int], nbytes: int, plan: Choice) -> tuple[Sends, Floats, Floats]:
        """A plan as sends of bytes, and for each its seconds a byte and its hop: what `sends.arrivals` takes."""
        wires, protocol = self.wires(group), PROTOCOLS[plan.protocol]
        made = _lowered(op, wires, nbytes, plan, protocol)
        alpha, beta = self.costs(wires, plan)
        level = wires.level(made.src, made.dst)
        return made, beta[level], alpha[level]


def trees(wires: Wires) -> tuple[Ints, ...]:
    """The double tree over nodes, with a chain within each; over ranks where each is alone in its node."""
    if wires.kinds[0] == "net":
        return lowering.double_tree(np.arange(wires.size))
    return lowering.double_tree(wires.units[0])


def _steps(op: str, size: int) -> int:
    return (size - 1) * (2 if op == "all_reduce" else 1)


def _ring(
    op: str, nbytes: Floats, wires: Wires, alpha: Floats, beta: Floats, protocol: Protocol, channels: int
) -> Floats:
    """Loops of equal chunks, 2(k-1) or k-1 steps each; a rank begins the next loop with its last chunk of this one.

    What takes longest is a link that is never idle, from loop to loop perhaps the next such link of the ring; or the
    way of a chunk from hop to hop through all loops, or from such a link to such a link.
    """
    size = wires.size
    hop = wires.level(np.arange(size), np.roll(np.arange(size), -1))
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
    for rounds in np.unique(loops):
        here, hops = loops == rounds, int(rounds) * steps
        for moves in {hops, hops - (hops - 1) % (apart + 1)}:
            way = _windows(alpha[hop], beta[hop], moves)
            waits = (rounds * (chunk - piece) + (hops - moves) * chunk)[here] * slow
            passed = np.max(way[0] + np.multiply.outer(piece[here], way[1]), axis=-1)
            longest[here] = np.maximum(longest[here], passed + waits)
    return np.asarray(longest)


def _windows(alpha: Floats, beta: Floats, steps: int) -> tuple[Floats, Floats]:
    """Sums over `steps` hops in a row round the ring, from wherever they start; equal ones once."""
    whole, rest = divmod(steps, alpha.size)
    sums = []
    for values in (alpha, beta):
        along = np.concatenate([[0.0], np.cumsum(np.tile(values, 2))])
        sums.append(whole * values.sum() + along[rest : rest + values.size] - along[: values.size])
    found = np.unique(np.round(np.stack(sums), 18), axis=1)
    return found[0], found[1]


def _piped(
    op: str, per: Floats, wires: Wires, parents: Sequence[Ints], alpha: Floats, beta: Floats, slot: int
) -> Floats:
    """Up trees and down again, or along a chain: the first chunk's way, then one chunk after the other."""
    found = np.zeros_like(per)
    for parent in parents:
        way_alpha, way_beta = _ways(wires, parent, alpha, beta)
        pieces = np.maximum(1.0, np.ceil(per / _slot(per, slot, int(lowering.depths(parent).max()))))
        chunk = per / pieces
        once = np.max(way_alpha + np.multiply.outer(chunk, way_beta), axis=-1)
        times = 2 if op == "all_reduce" else 1
        below = np.flatnonzero(parent >= 0)
        busiest = float(beta[wires.level(below, parent[below])].max())
        found = np.maximum(found, times * once + (pieces - 1) * chunk * busiest)
    return found


def _slot(per: Floats, slot: int, depth: int) -> Floats:
    """The size of chunks: halved while they are too few to fill a pipeline so deep, down to a sixteenth."""
    wanted = np.log2(np.maximum(1.0, slot * depth / np.maximum(per, 1.0)))
    return slot / 2.0 ** np.clip(np.ceil(wanted), 0, 4)


def _ways(wires: Wires, parent: Ints, alpha: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """The sums of hops from the top to each rank, equal ones once."""
    sums, depth = np.zeros((2, parent.size)), lowering.depths(parent)
    for deep in range(1, int(depth.max()) + 1):
        there = np.flatnonzero(depth == deep)
        level = wires.level(there, parent[there])
        sums[:, there] = sums[:, parent[there]] + np.stack([alpha[level], beta[level]])
    found = np.unique(np.round(sums, 18), axis=1)
    return found[0], found[1]


def _direct(op: str, nbytes: Floats, wires: Wires, alpha: Floats, beta: Floats, channels: int) -> Floats:
    """Each channel's parts one after the other; a send is cut over all channels."""
    size = wires.size
    if op == "send":
        level = wires.level(np.zeros(1, np.int64), np.array([size - 1]))
        return alpha[level] + nbytes / channels * beta[level]
    ahead, first = np.arange(1, size), np.arange(0, size, max(1, size // 128))  # ranks enough to see every node
    level = wires.level(first[:, None], (first[:, None] + ahead) % size)
    lane = (ahead - 1) % channels
    sums = [[np.bincount(lane, cost[row], channels) for row in level] for cost in (alpha, beta)]
    hop, byte = (np.stack(part).reshape(-1) for part in sums)
    return np.max(hop + np.multiply.outer(nbytes / size, byte), axis=-1)  # type: ignore[no-any-return]


def _lowered(op: str, wires: Wires, nbytes: int, plan: Choice, protocol: Protocol) -> Sends:
    size = wires.size
    if plan.algorithm == RING:
        count = nbytes * (size if op == "all_gather" else 1)
        cut = {"channels": plan.channels, "chunk": protocol.chunk, "slices": protocol.slices}
        return lowering.ring_sends(op, size, count, **cut)
    if plan.algorithm == DIRECT:
        return lowering.direct_sends(size, nbytes, channels=plan.channels)
    parents = trees(wires) if plan.algorithm == TREE else (lowering.chain(size),)
    depth = max(lowering.depths(parent).max() for parent in parents)
    chunk = int(_slot(np.array([nbytes / plan.channels]), protocol.slot, int(depth))[0])
    return lowering.tree_sends(op, parents, nbytes, channels=plan.channels, chunk=chunk)
