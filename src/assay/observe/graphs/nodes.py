"""The pieces of work that a linked trace consists of, and the graph that they make."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from assay.observe.graphs.events import (
    Event,
    HostGraph,
    Operation,
    Profile,
    is_comm,
    is_step,
    nbytes,
    operation,
    peer,
    storages,
)
from assay.workloads.chakra import COLL, COMP, MEM_STORE, RECV, SEND, Graph
from assay.workloads.chakra_attributes import sized
from assay.workloads.kineto_names import element_size, point_to_point


@dataclass(eq=False)
class Node:
    """One piece of work while the trace is put together; times are microseconds from the first step's start."""

    name: str
    start: int
    end: int
    lane: tuple[str, Any]  # ("host", thread) or ("device", stream)
    event: Event | None = None
    op: Operation | None = None
    own: int = 0  # microseconds that count for it alone
    parent: Node | None = None
    call: Node | None = None  # that issued it, of a collective that the host runs
    deps: list[Node] = field(default_factory=list)
    id: int = 0

    @cached_property
    def reads(self) -> set[int]:
        """The storages of the tensors it is given."""
        return storages(self.op.inputs.values) if self.op else set()

    @cached_property
    def is_comm(self) -> bool:
        """Whether it is communication itself."""
        return self.event is not None and is_comm(self.event.name)


def steps(profile: Profile) -> list[float]:
    """Seconds of each profiled step."""
    return [event.dur / 1e6 for event in profile.events if event.ph == "X" and is_step(event.name)]


def assemble(nodes: list[Node], profile: Profile, host: HostGraph | None, source: str) -> Graph:
    """The graph of one rank; operations of the host graph keep their ids."""
    nodes.sort(key=lambda node: (node.start, -node.end))
    fresh = max((node.op.id for node in nodes if node.op), default=0)
    for node in nodes:
        fresh += node.op is None
        node.id = node.op.id if node.op else fresh
    said = [_attributes(node, profile) for node in nodes]
    names = list(dict.fromkeys(key for own in said for key in own))
    return Graph.of(
        [node.id for node in nodes], [node.name for node in nodes], [_type(node) for node in nodes],
        ctrl_deps=[_callers(node) for node in nodes],
        data_deps=[list(dict.fromkeys(dep.id for dep in node.deps)) for node in nodes],
        start_micros=[node.start for node in nodes], duration_micros=[max(0, node.own) for node in nodes],
        attributes={name: [own.get(name) for own in said] for name in names},
        io=[_tensors(node) for node in nodes],
        metadata={"schema": host.schema if host else "kineto", "steps": len(steps(profile))},
        rank=profile.rank, source=source,
    )  # fmt: skip


def _type(node: Node) -> int:
    if node.is_comm and point_to_point(node.name):
        return RECV if ":recv" in node.name.lower() else SEND
    if node.is_comm:
        return COLL
    return MEM_STORE if node.event and "mem" in node.event.cat.lower() else COMP


def _callers(node: Node) -> list[int]:
    if node.op is not None:
        return [node.op.ctrl_deps] if isinstance(node.op.ctrl_deps, int) else node.op.ctrl_deps
    return [node.parent.id] if node.parent else []


def _tensors(node: Node) -> bytes:
    if node.op is None:
        return b""
    parts = ((8, node.op.inputs), (9, node.op.outputs))
    return b"".join(
        sized(number, b"".join(sized(i, json.dumps(part).encode()) for i, part in enumerate(
            (tensors.values, tensors.shapes, tensors.types), 1)))
        for number, tensors in parts
    )  # fmt: skip


def _attributes(node: Node, profile: Profile) -> dict[str, Any]:
    out: dict[str, Any] = {"is_cpu_op": node.lane[0] == "host"}
    lane = node.lane[1] if type(node.lane[1]) is int else None
    out["tid" if node.lane[0] == "host" else "stream"] = lane
    for attr in node.op.attrs if node.op else ():
        if attr.name not in ("tid", "") and isinstance(attr.value, int | float | str):
            out.setdefault(attr.name, attr.value)
    if node.is_comm and node.event is not None:
        args, groups = node.event.args, profile.groups
        group = str(args.group) if args.group is not None else next(iter(groups), "0")
        out |= {"pg_name": group, "pg_size": groups.get(group) or None}
        what = operation(str(args.collective or "")) if args.collective else operation(node.name)
        size = _size(node, what, groups.get(group) or 1)
        if what is not None and size is not None:
            out |= {"comm_type": what, "comm_size": size}
        out |= _peer(node, profile)
    return out


def _peer(node: Node, profile: Profile) -> dict[str, int]:
    """Whom a send or a receive of the host is with, as the call that asked for it says."""
    kind = _type(node)
    call = node.call.event if node.call else None
    if call is None or call.name != {SEND: "c10d::send", RECV: "c10d::recv_"}.get(kind):
        return {}
    found = peer(call, profile.members or ())
    return {} if found is None else {"comm_dst" if kind == SEND else "comm_src": found[0], "comm_tag": found[1]}


def _size(node: Node, what: int | None, members: int) -> int | None:
    """The bytes of the whole vector; None where nobody says."""
    args = node.event.args if node.event else None
    if args is not None and type(args.sent) is int and type(args.received) is int:
        each = element_size(str(args.dtype or ""))
        return max(args.sent, args.received) * each if each else None
    op = node.op or (node.call.op if node.call else None)  # a collective that ended late is in no host graph
    return None if op is None else nbytes(op.inputs) * (members if what in (2, 3) else 1)
