"""The machines of a job: so many devices of a kind, how they are joined, and what of their peaks programs attain.

>>> sixty_four = read("64xh100:ib400")
>>> sixty_four.ranks, sixty_four.nodes, sixty_four.outside.bandwidth / 1e9
(64, 8, 50.0)
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim import collectives
from assay.sim.collectives import Link
from assay.sim.hardware import Device, device
from assay.sim.nccl import NcclModel
from assay.training.interface import CollectiveModel, Floats, Ints

Group = range | tuple[int, ...]  # ranks, in order


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

    @property
    def update(self) -> float:
        """Bytes moved for a parameter's update."""
        return 2 * (self.optimizer + self.gradient) + self.item


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
def attained(name: str) -> Efficiency:
    """What was measured of a device (:mod:`assay.training.engine.gpu`), or what is assumed of those that were not.

    >>> attained("h100") == Efficiency(), attained("h200") == Efficiency()
    (True, False)
    """
    path = Path(__file__).with_name(f"{name}.toml")
    return (
        Efficiency(**tomllib.loads(path.read_text(encoding="utf-8"))["efficiency"]) if path.exists() else Efficiency()
    )


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
    outside = Link(on.nic.latency, int(found[3]) * 1e9 / 8) if found[3] else on.nic
    return Cluster(on, ranks, on.gpus_per_node, on.nvlink, outside, attained(on.name), text.strip().lower())


FIELDS = ("device", "nodes", "per_node", "inside", "outside", "efficiency", "mem_bytes", "peak_flops", "usd_per_hour")


def read_toml(path: Path) -> dict[str, Any]:
    """The fields of a cluster's file; BadInput where it cannot be read or is no TOML."""
    return reading.toml(path, "a cluster's TOML file is expected")


def _from_file(path: Path) -> Cluster:
    fields = read_toml(path)
    if odd := sorted(set(fields) - set(FIELDS)):
        raise BadInput(f"{path}: unknown field '{odd[0]}'; there are {', '.join(FIELDS)}")
    on = device(needed(fields, "device", path, str))
    per_node = int(number(fields.get("per_node", on.gpus_per_node), "per_node", path))
    nodes = int(number(needed(fields, "nodes", path, int), "nodes", path))
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
    return Link(
        number(table["latency"], f"{name}.latency", path), number(table["bandwidth"], f"{name}.bandwidth", path)
    )


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
        nodes = np.unique(np.asarray(group) // self.cluster.per_node)
        return np.asarray(self.of_size(op, len(group), len(nodes), nbytes))

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

    Times are computed at sizes an eighth of an octave apart, once for a kind of group, and read off between them.

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
        """On the links of this cluster."""
        return cls(cluster.device, cluster.nodes, cluster.per_node, cluster.inside, cluster.outside)

    def seconds(self, op: str, group: Ints, nbytes: Floats) -> Floats:
        """As in :class:`assay.training.interface.CollectiveModel`."""
        sizes, times = _tabled(self, op, _kept_by(group))
        return np.asarray(np.exp(np.interp(np.log(np.maximum(nbytes, 1.0)), sizes, times)))


@lru_cache(maxsize=16)
def _nccl(at: Nccl) -> NcclModel:
    return NcclModel.of(replace(at.device, nvlink=at.inside, nic=at.outside), at.nodes, at.per_node)


@lru_cache(maxsize=4096)
def _tabled(at: Nccl, op: str, group: Group) -> tuple[Floats, Floats]:
    sizes = 2.0 ** np.arange(6, 38, 0.125)
    return np.log(sizes), np.log(np.asarray(_nccl(at).seconds(op, list(group), sizes)))


def _kept_by(group: Ints) -> Group:
    """From rank 0 on, and as short as it can be said: groups that lie alike are one."""
    apart = np.unique(np.diff(group))
    if len(apart) > 1:
        return tuple((group - group[0]).tolist())
    return strided(len(group), int(apart[0]) if len(apart) else 1)


def strided(size: int, stride: int) -> range:
    """`size` ranks that are `stride` apart, from rank 0 on.

    >>> list(strided(3, 4))
    [0, 4, 8]
    """
    return range(0, size * stride, stride)


@lru_cache(maxsize=4096)
def spread(group: Group, per_node: int) -> int:
    """Nodes over which a group of ranks lies.

    >>> spread(strided(8, 1), 8), spread(strided(8, 8), 8), spread((0, 1, 16, 17), 8)
    (1, 8, 2)
    """
    return len({rank // per_node for rank in group})
