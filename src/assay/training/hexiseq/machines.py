"""Mixed clusters: of every rank what it computes, holds and sends, and which ranks share a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.collectives import Link
from assay.sim.hardware import device
from assay.training.engine import cluster
from assay.training.engine.cluster import usable
from assay.training.interface import Floats, Ints

# What kernels attain of a data sheet's peak: low and high. FlashAttention-2 is published with up to 0.72 of an A100 and
# about 0.35 of an H100, FlashAttention-3 with up to 0.75 of an H100; matrices and links are an engineer's guess.
ATTENTION = {"h100": (0.35, 0.72), "h200": (0.35, 0.72)}
OTHER_ATTENTION, MATRIX, LINKS = (0.5, 0.72), (0.6, 0.8), (0.65, 0.9)
NETWORK = 25e9  # bytes a second of a port


@dataclass(frozen=True)
class Machines:
    """Ranks in the order of their nodes; rates are what programs attain, not what data sheets promise."""

    kind: tuple[str, ...]
    node: Ints
    peak: Floats  # FLOP/s of the data sheet
    matrix: Floats  # FLOP/s of products
    attention: Floats  # FLOP/s of attention
    memory: Floats  # bytes
    inside: Floats  # bytes/s to ranks of the node
    outside: Floats  # bytes/s to others
    near: float  # latency within a node
    far: float  # and between nodes

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.kind)

    @property
    def kinds(self) -> list[str]:
        """The kinds of devices, fastest first.

        >>> mixed("8xa100+8xh100").kinds
        ['h100', 'a100']
        """
        speed = {kind: self.matrix[self.kind.index(kind)] for kind in dict.fromkeys(self.kind)}
        return sorted(speed, key=lambda kind: -speed[kind])

    def only(self, kinds: Sequence[str]) -> Machines:
        """The ranks of these kinds."""
        kept = np.flatnonzero([kind in kinds for kind in self.kind])
        arrays = {
            name: getattr(self, name)[kept]
            for name in ("node", "peak", "matrix", "attention", "memory", "inside", "outside")
        }
        return replace(self, kind=tuple(self.kind[r] for r in kept), **arrays)


@dataclass(frozen=True)
class _Nodes:
    device: str
    count: int
    per_node: int
    inside: Link
    outside: Link
    attention: float
    matrix: float


def _joined(parts: Sequence[_Nodes], links: float) -> Machines:
    rows = [part for part in parts for _ in range(part.count * part.per_node)]
    sizes = [part.per_node for part in parts for _ in range(part.count)]
    peak = np.array([device(part.device).flops("bf16") for part in rows])
    return Machines(
        tuple(part.device for part in rows), np.repeat(np.arange(len(sizes)), sizes), peak,
        peak * [part.matrix for part in rows], peak * [part.attention for part in rows],
        np.array([usable(device(part.device)) for part in rows]),
        links * np.array([part.inside.bandwidth for part in rows]),
        links * np.array([part.outside.bandwidth for part in rows]),
        max(part.inside.latency for part in parts), max(part.outside.latency for part in parts),
    )  # fmt: skip


def middle(span: tuple[float, float]) -> float:
    """The middle of a range."""
    return (span[0] + span[1]) / 2


def mixed(text: str, random: np.random.Generator | None = None, port: str = "gpu") -> Machines:
    """`16xh100+16xa100`: whole nodes of eight of each kind (fewer where fewer are asked for), joined at 25 GB/s.

    `port`: whether every GPU has such a port of its own, or every node one that its GPUs share. `random` draws what
    kernels and links attain of their peaks, once for a kind; without it, the middle of the ranges.

    >>> mixed("16xh100+8xl40s").node.tolist()[::8]
    [0, 1, 2]
    """

    def drawn(span: tuple[float, float]) -> float:
        return middle(span) if random is None else float(random.uniform(*span))

    parts = []
    for piece in text.split("+"):
        found = re.fullmatch(r"(\d+)x([\w-]+)", piece.strip())
        if found is None or int(found[1]) < 1:
            raise BadInput(f"machines {text!r}: write COUNTxDEVICE, joined by +, such as 16xh100+16xa100")
        count, on = int(found[1]), device(found[2])
        size = min(count, on.gpus_per_node)
        if count % size:
            raise BadInput(f"machines {piece!r}: a multiple of {size} expected, whole nodes")
        attention, matrix = drawn(ATTENTION.get(on.name, OTHER_ATTENTION)), drawn(MATRIX)
        outside = Link(on.nic.latency, NETWORK / (size if port == "node" else 1))
        parts.append(_Nodes(on.name, count // size, size, on.nvlink, outside, attention, matrix))
    return _joined(parts, drawn(LINKS))


FIELDS = ("device", "nodes", "per_node", "inside", "attention", "matrix")


def read(text: str) -> Machines:
    """`16xh100+16xa100`, or a TOML file with `outside` (the network) and a table `[[machines]]` for each kind.

    Raises:
        BadInput: not understood; the message names file and field.
    """
    if not text.endswith(".toml"):
        return mixed(text.lower())
    path = Path(text)
    fields = cluster.read_toml(path)
    listed = fields.get("machines")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise BadInput(f"{path}: no [[machines]]; one table for each kind expected, with device and nodes")
    if odd := sorted(set(fields) - {"machines", "outside", "links"}):
        raise BadInput(f"{path}: unknown field '{odd[0]}'; there are machines, outside, links")
    if "outside" not in fields:
        raise BadInput(f"{path}: no network; add outside = {{ bandwidth = 25e9, latency = 8e-6 }}")
    outside = cluster.link(fields["outside"], "outside", path)
    parts = [_read_part(one, outside, path) for one in listed]
    return _joined(parts, cluster.number(fields.get("links", middle(LINKS)), "links", path, 1.0))


def _read_part(fields: dict[str, Any], outside: Link, path: Path) -> _Nodes:
    if odd := sorted(set(fields) - set(FIELDS)):
        raise BadInput(f"{path}: unknown field '{odd[0]}' of [[machines]]; there are {', '.join(FIELDS)}")
    on = device(cluster.needed(fields, "device", path, str))
    fields = {"per_node": on.gpus_per_node} | fields
    nodes, per_node = (
        int(cluster.number(cluster.needed(fields, name, path, int), name, path)) for name in ("nodes", "per_node")
    )
    shares = {
        name: cluster.number(fields.get(name, middle(span)), name, path, 1.0)
        for name, span in (("attention", ATTENTION.get(on.name, OTHER_ATTENTION)), ("matrix", MATRIX))
    }
    inside = cluster.link(fields["inside"], "inside", path) if "inside" in fields else on.nvlink
    return _Nodes(on.name, nodes, per_node, inside, outside, **shares)
