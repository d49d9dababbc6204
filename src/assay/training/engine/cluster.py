"""The machines of a job: so many devices of a kind, how they are joined, and what of their peaks programs attain.

>>> sixty_four = read("64xh100:ib400")
>>> sixty_four.ranks, sixty_four.nodes, sixty_four.outside.bandwidth / 1e9
(64, 8, 50.0)
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim import collectives
from assay.sim.collectives import Link
from assay.sim.hardware import Device, device, devices
from assay.sim.nccl import NcclModel
from assay.training.interface import CollectiveModel, Floats, Ints

Group = range | tuple[int, ...]  # ranks, in order
MEASURED = "h200"  # the device whose shares are assumed of chips that were not measured
MOST_RANKS = 2**20  # of a cluster
USABLE = 0.94  # of a device's memory; the rest is the driver's, the communication library's and fragmentation (assumed)


@dataclass(frozen=True)
class Efficiency:
    """What of a device's peak programs attain; shares of 1. Assumed unless measured, or the cluster's file says them.

    A product of m x k and k x n attains `matrix`, less where a side is not much longer than `half`: tiles are cut off
    and waves half full. Attention attains `attention` where many tokens are seen, half of it where `short` are, times
    (head width / 128) ** `narrow`; its backward pass `backward` times as much.
    """

    matrix: float = 0.83
    attention: float = 0.55
    memory: float = 0.85
    links: float = 0.8
    half: float = 110.0
    backward: float = 1.0
    short: float = 0.0
    narrow: float = 0.0

    def of(self, m: float, n: float, k: float) -> float:
        """The share of the peak that a product attains.

        >>> round(Efficiency().of(8192, 8192, 8192), 2), Efficiency().of(64, 8192, 8192) < 0.35
        (0.8, True)
        """
        return self.matrix * (m / (m + self.half)) * (n / (n + self.half)) * (k / (k + self.half))

    def attending(self, width: float) -> float:
        """The share that attention over very many tokens attains, forward, with heads so wide.

        >>> Efficiency().attending(64), Efficiency(attention=0.6, narrow=1.0).attending(64)
        (0.55, 0.3)
        """
        return float(self.attention * (width / 128) ** self.narrow)


@dataclass(frozen=True)
class Precision:
    """What training computes in, and the bytes of a weight or activation, of a gradient, of an optimizer's state.

    >>> Precision().update  # state read and written, the gradient read and cleared, the weight written
    34.0
    """

    dtype: str = "bf16"
    item: float = 2.0
    gradient: float = 4.0  # summed in fp32
    optimizer: float = 12.0  # a master copy and Adam's two moments
    summed: float = 8.0  # read and written to add a microbatch's gradient of a weight to the sum
    products: str = ""  # a narrower dtype of the layers' products; attention, router and head stay in `dtype`

    @property
    def update(self) -> float:
        """Bytes moved for a parameter's update."""
        return 2 * (self.optimizer + self.gradient) + self.item


FP8 = Precision(products="fp8")  # as Transformer Engine: weights and sums stay as they are
FP32 = Precision("fp32", 4.0, 4.0, 8.0, 0.0)  # plain torch: the first microbatch's gradients are the sum


@dataclass(frozen=True)
class Cluster:
    """`ranks` devices, `per_node` of them joined by `inside`, the nodes by `outside` (a link of each device's own)."""

    device: Device
    ranks: int
    per_node: int
    inside: Link
    outside: Link
    efficiency: Efficiency = Efficiency()
    name: str = ""
    precision: Precision = Precision()
    collectives: CollectiveModel | None = None  # closed forms where none is given; hashable, for costs are kept by it

    @property
    def nodes(self) -> int:
        """Machines, the last perhaps not full."""
        return -(-self.ranks // self.per_node)


@cache
def measured_on(name: str) -> str:
    """The device whose measurements hold for this one: itself, or one cut from the same chip; "" where there is none.

    >>> measured_on("h100"), measured_on("h200"), measured_on("a100")
    ('h200', 'h200', '')
    """
    on = device(name)
    same = [on, *(one for one in devices() if on.silicon and one.silicon == on.silicon)]
    return next((one.name for one in same if Path(__file__).with_name(f"{one.name}.toml").exists()), "")


@cache
def attained(name: str) -> Efficiency:
    """What was measured of a device or of its chip (:mod:`assay.training.engine.gpu`).

    Of a chip that nobody measured the same is assumed as was measured of another: no device is ahead of a measured one
    because of a guess.

    >>> attained("h100") == attained("h200") == attained("b200"), attained("h100").matrix < 0.75
    (True, True)
    """
    path = Path(__file__).with_name(f"{measured_on(name) or MEASURED}.toml")
    return Efficiency(**tomllib.loads(path.read_text(encoding="utf-8"))["efficiency"])


@cache
def uncounted() -> float:
    """How many times what is counted a rank holds at its fullest: by the steps that were held out on the H200, whose
    peaks the counts of weights, gradients, optimizer and activations fall short of.

    >>> 1.0 < uncounted() < 1.1
    True
    """
    off = tomllib.loads(Path(__file__).with_name(f"{MEASURED}.toml").read_text(encoding="utf-8"))["memory"].values()
    return float(1.0 / (1.0 + sum(off) / len(off)))


def usable(on: Device) -> float:
    """The bytes that may be counted on a device for what is held to fit.

    >>> usable(device("h100")) < USABLE * device("h100").mem_bytes
    True
    """
    return USABLE * on.mem_bytes / uncounted()


def read(text: str) -> Cluster:
    """`64xh100:ib400`: so many devices, so many Gb/s of network for each; or the path of a TOML file.

    >>> read("8xh200").per_node
    8

    Raises:
        BadInput: not understood, an unknown device, a file with a field missing or out of range.
    """
    if text.endswith(".toml"):
        return _from_file(Path(text))
    found = re.fullmatch(r"(\d+)x([\w.-]+?)(?::(?:ib|roce|eth)(\d+))?", text.strip().lower())
    if found is None:
        raise BadInput(f"cluster {text!r}: write count x device : network, such as 64xh100:ib400, or give a TOML file")
    ranks, on = int(found[1]), device(found[2])
    if ranks < 1:
        raise BadInput(f"cluster {text!r}: needs at least one device")
    _simulated(ranks, f"cluster {text!r}")
    if found[3] and int(found[3]) < 1:
        raise BadInput(
            f"cluster {text!r}: a network of 0 Gb/s moves nothing; write one such as {ranks}x{on.name}:ib400"
        )
    outside = Link(on.nic.latency, int(found[3]) * 1e9 / 8) if found[3] else on.nic
    return Cluster(on, ranks, on.gpus_per_node, on.nvlink, outside, attained(on.name), text.strip().lower())


def _simulated(ranks: int, of: str) -> None:
    if ranks > MOST_RANKS:
        raise BadInput(f"{of}: {ranks:,} devices; at most {MOST_RANKS:,} are simulated")


FIELDS = ("device", "nodes", "per_node", "inside", "outside", "efficiency", "mem_bytes", "peak_flops", "usd_per_hour")


def read_toml(path: Path) -> dict[str, Any]:
    """The fields of a cluster's file; BadInput where it cannot be read or is no TOML."""
    return reading.toml(path, "a cluster's TOML file is expected")


def _from_file(path: Path) -> Cluster:
    fields = read_toml(path)
    if odd := sorted(set(fields) - set(FIELDS)):
        raise BadInput(f"{path}: unknown field '{odd[0]}'; there are {', '.join(FIELDS)}")
    on = device(needed(fields, "device", path, str))
    fields = {"per_node": on.gpus_per_node} | fields
    per_node, nodes = (int(number(needed(fields, name, path, int), name, path)) for name in ("per_node", "nodes"))
    _simulated(nodes * per_node, f"{path}: {nodes:,} nodes of {per_node:,}")
    if nodes > 1 and "outside" not in fields:
        raise BadInput(
            f"{path}: {nodes} nodes and no link between them; add outside = {{ bandwidth = 50e9, latency = 8e-6 }}"
        )
    changes: dict[str, Any] = {
        key: number(fields[key], key, path) for key in ("mem_bytes", "usd_per_hour") if key in fields
    }
    if "peak_flops" in fields:
        changes["peak_flops"] = dict(on.peak_flops) | {"bf16": number(fields["peak_flops"], "peak_flops", path)}
    return Cluster(
        replace(on, **changes), nodes * per_node, per_node,
        link(fields["inside"], "inside", path) if "inside" in fields else on.nvlink,
        link(fields["outside"], "outside", path) if "outside" in fields else on.nic,
        _efficiency(fields.get("efficiency", {}), on.name, path), name=path.stem,
    )  # fmt: skip


def needed(fields: dict[str, Any], name: str, path: Path, kind: type) -> Any:
    """A field that must be there; BadInput that names it otherwise."""
    if not isinstance(fields.get(name), kind) or isinstance(fields.get(name), bool):
        raise BadInput(f"{path}: '{name}' is missing or no {kind.__name__}")
    return fields[name]


def number(value: Any, name: str, path: Path, most: float = float("inf")) -> float:
    """A number above 0; BadInput otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise BadInput(
            f"{path}: {name} is {value!r}, should be a number above 0" + (f", at most {most:g}" if most < 1e9 else "")
        )
    return float(value)


def link(table: Any, name: str, path: Path) -> Link:
    """A table of bandwidth and latency; BadInput otherwise."""
    if not isinstance(table, dict) or set(table) != {"bandwidth", "latency"}:
        raise BadInput(f"{path}: {name} should be {{ bandwidth = bytes/s, latency = seconds }}")
    bandwidth = number(table["bandwidth"], f"{name}.bandwidth", path)
    if bandwidth < 1:
        raise BadInput(f"{path}: {name}.bandwidth is {bandwidth:g}, should be bytes a second, such as 50e9")
    return Link(number(table["latency"], f"{name}.latency", path), bandwidth)


MOST = {"half": 1e5, "short": 1e5, "backward": 2.0}  # of what is no share of a peak


def _efficiency(table: Any, on: str, path: Path) -> Efficiency:
    known = tuple(Efficiency.__dataclass_fields__)
    if not isinstance(table, dict) or set(table) - set(known):
        raise BadInput(f"{path}: efficiency should be a table of {', '.join(known)}")
    return replace(attained(on), **{
        key: number(value, f"efficiency.{key}", path, MOST.get(key, 1.0)) for key, value in table.items()
    })  # fmt: skip


@dataclass(frozen=True)
class ClosedForms:
    """Collectives by closed forms over two levels: a node's own links, and one link of every device to other nodes.

    >>> cluster = read("64xh100")
    >>> forms = ClosedForms(cluster)
    >>> near, far = np.arange(8), 8 * np.arange(8)
    >>> quick, slow = (forms.seconds("all_reduce", group, np.array([1e9]))[0] for group in (near, far))
    >>> bool(quick < slow)
    True
    """

    cluster: Cluster

    def seconds(self, op: str, group: Ints, nbytes: Floats) -> Floats:
        """As in :class:`assay.training.interface.CollectiveModel`."""
        return np.asarray(self.of_group(op, tuple(np.asarray(group).tolist()), nbytes))

    def of_group(self, op: str, group: Group, nbytes: Any) -> Any:
        """The same for ranks as they lie, on some nodes perhaps fewer than on others.

        What a node sends and receives passes the links of those of its ranks that take part: fewer take longer.
        """
        counts = on_nodes(group, self.cluster.per_node)
        most, fewest = max(counts), min(counts)
        if most == fewest or op in ("send", "broadcast"):
            return self.of_size(op, len(group), len(counts), nbytes)
        share, ranks = self.cluster.efficiency.links, len(group)
        inside, outside = self.cluster.inside.derated(share), self.cluster.outside.derated(share)
        if op == "all_reduce":
            within = 2 * collectives.all_gather(most, nbytes / most, inside)
            return within + collectives.all_reduce(len(counts), nbytes / fewest, outside)
        if op in ("all_gather", "reduce_scatter"):
            part = nbytes if op == "all_gather" else nbytes / ranks
            within = collectives.all_gather(most, ranks * part / most, inside)
            return within + (len(counts) - 1) * outside.latency + (ranks / fewest - 1) * part / outside.bandwidth
        if op == "all_to_all":
            within = inside.latency + (most - 1) / ranks * nbytes / inside.bandwidth
            return np.maximum(within, outside.latency + (ranks - fewest) / ranks * nbytes / outside.bandwidth)
        raise BadInput(f"unknown collective {op!r}")

    def of_size(self, op: str, ranks: int, nodes: int, nbytes: Any) -> Any:
        """The same for `ranks` spread evenly over `nodes`."""
        share = self.cluster.efficiency.links
        inside, outside = self.cluster.inside.derated(share), self.cluster.outside.derated(share)
        if ranks == 1:
            return 0.0 * nbytes
        each = max(1, ranks // nodes)
        link = inside if nodes == 1 else outside
        if op in ("send", "broadcast"):
            return collectives.send(nbytes, link)
        if op == "all_reduce":
            return collectives.nested_all_reduce(ranks, each, nbytes, inside, outside)
        if op in ("all_gather", "reduce_scatter"):
            part = nbytes if op == "all_gather" else nbytes / ranks
            return collectives.nested_all_gather(ranks, each, part, inside, outside)
        if op == "all_to_all":
            return collectives.nested_all_to_all(ranks, each, nbytes, inside, outside)
        raise BadInput(f"unknown collective {op!r}")


@dataclass(frozen=True)
class Nccl:
    """Collectives as NCCL would choose them (:mod:`assay.sim.nccl`): algorithm, protocol and channels by size.

    Links carry the share of their data sheets that the cluster's efficiency says, as closed forms have it: packets
    have headers, and what nccl-tests prints is short of the line rate by them. Times are computed at sizes an eighth
    of an octave apart, once for a kind of group, and read off between them.

    >>> near = Nccl.of(read("16xh100")).seconds("all_reduce", np.arange(8), np.array([1e3, 1e9]))
    >>> bool(near[0] < 1e-4 < near[1])
    True
    """

    device: Device
    nodes: int
    per_node: int
    inside: Link
    outside: Link

    @classmethod
    def of(cls, cluster: Cluster) -> Nccl:
        """On the links of this cluster, at the share of them that programs attain."""
        share = cluster.efficiency.links
        inside, outside = cluster.inside.derated(share), cluster.outside.derated(share)
        return cls(cluster.device, cluster.nodes, cluster.per_node, inside, outside)

    @property
    def sentence(self) -> str:
        """Why it is short of data sheets, and what it was held against, for whoever reads an answer that rests on it.

        >>> print(Nccl.of(read("8xh100")).sentence)  # doctest: +ELLIPSIS
        By this model NCCL's all-reduces in a node reach 359 GB/s on the bus of 450 on the data sheet: ...
        """
        ranks, size = min(self.per_node, 8), 2.0**33
        took = float(self.seconds("all_reduce", np.arange(ranks), np.array([size]))[0])
        bus = 2 * (ranks - 1) / ranks * size / took if took else 0.0
        return (
            f"By this model NCCL's all-reduces in a node reach {bus / 1e9:.0f} GB/s on the bus of "
            f"{self.device.nvlink.bandwidth / 1e9:.0f} on the data sheet: [efficiency] links says which share headers "
            f"of packets leave. {NCCL_TESTS} NVLink SHARP is not in it. Fit your own nccl-tests: assay compare "
            "nccl-model --input."
        )

    def seconds(self, op: str, group: Ints, nbytes: Floats) -> Floats:
        """As in :class:`assay.training.interface.CollectiveModel`."""
        sizes, times = _tabled(self, op, _kept_by(np.asarray(group), self.per_node))
        return np.asarray(np.exp(np.interp(np.log(np.maximum(nbytes, 1.0)), sizes, times)))


# What maintainers of NCCL say that nccl-tests prints (github.com/NVIDIA/nccl-tests, issues 212 and 290).
NCCL_TESTS = (
    "Rings of nccl-tests print 370 GB/s of an H100's 450 within a node (82 %), and 46 to 48 of a network card's 50 "
    "(92 to 96 %, more than the default of 80 %)."
)


@lru_cache(maxsize=16)
def _nccl(at: Nccl) -> NcclModel:
    return NcclModel.of(replace(at.device, nvlink=at.inside, nic=at.outside), at.nodes, at.per_node)


@lru_cache(maxsize=4096)
def _tabled(at: Nccl, op: str, group: Group) -> tuple[Floats, Floats]:
    sizes = 2.0 ** np.arange(6, 38, 0.125)
    return np.log(sizes), np.log(np.asarray(_nccl(at).seconds(op, list(group), sizes)))


def _kept_by(group: Ints, per_node: int) -> Group:
    """From the first node on, and as short as it can be said: groups that lie alike on their nodes are one."""
    shifted = group - group[0] // per_node * per_node
    apart = np.unique(np.diff(shifted))
    if len(apart) != 1 or apart[0] < 1:
        return tuple(shifted.tolist())
    return range(int(shifted[0]), int(shifted[-1]) + 1, int(apart[0]))


def strided(size: int, stride: int) -> range:
    """`size` ranks that are `stride` apart, from rank 0 on.

    >>> list(strided(3, 4))
    [0, 4, 8]
    """
    return range(0, size * stride, stride)


@lru_cache(maxsize=4096)
def on_nodes(group: Group, per_node: int) -> tuple[int, ...]:
    """How many of a group's ranks lie on each of its nodes.

    >>> on_nodes(range(12), 8), on_nodes((0, 1, 16, 17), 8)
    ((8, 4), (2, 2))
    """
    return tuple(Counter(rank // per_node for rank in group).values())


def spread(group: Group, per_node: int) -> int:
    """Nodes over which a group of ranks lies.

    >>> spread(strided(8, 1), 8), spread(strided(8, 8), 8), spread((0, 1, 16, 17), 8)
    (1, 8, 2)
    """
    return len(on_nodes(group, per_node))


@lru_cache(maxsize=4096)
def widest(group: Group, per_node: int, ranks: int) -> Group:
    """Of all groups of a cluster that are cut like this one, which begins at rank 0, one that lies on most nodes, and
    of these one with the fewest ranks on a node: everybody waits for the slowest of them.

    >>> widest(strided(3, 1), per_node=4, ranks=12), widest(strided(4, 1), per_node=8, ranks=64)
    (range(3, 6), range(0, 4))
    """
    if isinstance(group, tuple) or ranks <= per_node:
        return group
    size, stride = len(group), group.step
    extent = size * stride
    if per_node % extent == 0 or stride % per_node == 0 or (per_node % stride == 0 and extent % per_node == 0):
        return group  # all of them lie alike
    starts = (np.arange(max(1, ranks // extent))[:, None] * extent + np.arange(stride)).ravel()
    starts = starts[np.unique(starts % per_node, return_index=True)[1]]  # those that begin alike lie alike
    groups = [range(first, first + extent, stride) for first in sorted(starts.tolist())]
    return max(groups, key=lambda one: (spread(one, per_node), -min(on_nodes(one, per_node))))


def slowest_hop(group: Group, per_node: int) -> tuple[int, int]:
    """Two neighbours on the ring of a group, on different nodes if there are such: what goes round waits for them.

    >>> slowest_hop(strided(4, 1), 8), slowest_hop(strided(4, 4), 8)
    ((0, 1), (4, 8))
    """
    ring = [*group, group[0]]
    hops = list(pairwise(ring))
    return next((hop for hop in hops if hop[0] // per_node != hop[1] // per_node), hops[0])


@lru_cache(maxsize=1024)
def crossings(stages: int, size: int, per_node: int) -> NDArray[np.bool_]:
    """Whether any rank of a stage of `size` ranks has its partner of another stage on another node: [from, to].

    >>> crossings(4, 4, 8)[[0, 1, 2], [1, 2, 3]].tolist()
    [False, True, False]
    """
    node = np.arange(stages * size).reshape(stages, size) // per_node
    return np.asarray((node[:, None] != node[None]).any(axis=-1))
