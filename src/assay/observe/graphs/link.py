"""Link what PyTorch recorded into a Chakra trace: the host's operations, the kernels they launched, and who waited.

:func:`link` takes a profiler's trace (Kineto JSON) and, if there is one, the host graph of the same steps
(`ExecutionTraceObserver` JSON), and gives one rank's :class:`~assay.workloads.chakra.Graph`:

- a node for each host operation with the time spent in it alone (its callees' taken out), for each kernel or copy, for
  each collective, and for the host's own time between operations (`host`: Python, loops, data): leave that out, and a
  replay is too fast;
- data dependencies: the order of each host thread and each stream; launch → kernel; kernel → host at synchronisations;
  what filled a collective's tensors → the collective, and the collective → who reads them first. The latter two are
  known from the tensors' storages in the host graph; without one the nearest call and the wait that ended with the
  collective stand for them.

Collectives therefore never start at time 0 and nobody goes on without their result. What a wait cost is not copied
into the trace: it comes out again, or differently, when the trace is replayed.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.observe.graphs.events import (
    SYNCS,
    WAITS,
    Event,
    HostGraph,
    Profile,
    is_comm,
    is_step,
    read_host,
    read_profile,
)
from assay.observe.graphs.nodes import Node, assemble, steps
from assay.record.errors import BadInput
from assay.workloads.chakra import Graph
from assay.workloads.kineto_names import is_device

_HOST = ("cpu_op", "operator", "cuda_runtime", "cuda_driver")
__all__ = ["link", "linked", "steps"]


def link(device: str | Path, host: str | Path | None = None) -> Graph:
    """One rank's trace from its profiler's file and, where there is one, its host graph.

    Raises:
        BadInput: a file that is not what it should be, or files of different steps.
    """
    profile = read_profile(device)
    return linked(profile, read_host(host) if host is not None else None, str(device))


def linked(profile: Profile, host: HostGraph | None, source: str = "") -> Graph:
    """The same from what was read already."""
    low, high = _window(profile.events, source)
    nodes = _nodes(profile.events, low, high)
    if host is not None:
        known = {op.record: op for op in host.nodes if op.record is not None}
        for node in nodes:
            node.op = known.pop(node.event.args.record, None) if node.event else None
        if not any(node.op for node in nodes):
            raise BadInput(f"{source}: no operation of the host graph is in it: record both over the same steps")
    lanes = _in_lanes(nodes)
    calls = {n.event.args.correlation: n for n in nodes if n.lane[0] == "host" and n.event and n.event.args.correlation}
    _order_streams(lanes, calls)
    _tie_collectives(nodes, lanes)
    for lane, mine in lanes.items():
        if lane[0] == "host":
            nodes += _order_thread(mine, nodes, high - low if _is_main(lane, lanes) else None)
    return assemble(nodes, profile, host, source)


# ------------------------------------------------------------------------------------------------- nodes


def _window(events: Sequence[Event], source: str) -> tuple[float, float]:
    """From the first step's start to the last one's end; the whole trace where no steps are marked."""
    spans = [event for event in events if event.ph == "X"]
    marked = [event for event in spans if is_step(event.name)] or spans
    if not marked:
        raise BadInput(f"{source}: no event with a duration is in it")
    return min(event.ts for event in marked), max(event.ts + event.dur for event in marked)


def _nodes(events: Sequence[Event], low: float, high: float) -> list[Node]:
    out = []
    for event in events:
        if event.ph != "X" or not low <= event.ts < high or event.dur < 0:
            continue
        on_device = is_device(event.cat)
        if on_device or event.cat in _HOST or is_comm(event.name):
            stream = event.args.stream if event.args.stream is not None else event.tid
            lane = ("device", stream) if on_device else ("host", event.tid)
            start, end = round(event.ts - low), round(event.ts + event.dur - low)
            out.append(Node(event.name, start, end, lane, event, own=end - start))
    return sorted(out, key=lambda node: (node.start, -node.end))


def _in_lanes(nodes: Sequence[Node]) -> dict[tuple[str, Any], list[Node]]:
    """Nodes by thread and stream, callees below their callers and their time taken out of the callers'."""
    lanes: dict[tuple[str, Any], list[Node]] = defaultdict(list)
    for node in nodes:
        lanes[node.lane].append(node)
    for (kind, _), mine in lanes.items():
        open_calls: list[Node] = []
        for node in mine if kind == "host" else ():
            while open_calls and open_calls[-1].end <= node.start:
                open_calls.pop()
            if open_calls:
                node.parent = open_calls[-1]
                node.parent.own -= min(node.end, node.parent.end) - node.start
            open_calls.append(node)
    return lanes


def _is_main(lane: tuple[str, Any], lanes: dict[tuple[str, Any], list[Node]]) -> bool:
    hosts = [key for key in lanes if key[0] == "host"]
    return lane == max(hosts, key=lambda key: sum(node.own for node in lanes[key] if not node.is_comm))


# ------------------------------------------------------------------------------------------------- who waited


def _order_streams(lanes: dict[tuple[str, Any], list[Node]], calls: dict[Any, Node]) -> None:
    """Kernels behind their launches and their streams; host synchronisations behind the kernels they waited for."""
    waits = sorted((n for key, mine in lanes.items() if key[0] == "host" for n in mine if n.name in WAITS),
                   key=lambda node: node.start)  # fmt: skip
    kernels = [node for key, mine in lanes.items() if key[0] == "device" for node in mine]
    launches = {id(node): calls.get(node.event.args.correlation) if node.event else None for node in kernels}
    issued = sorted(kernels, key=lambda node: call.start if (call := launches[id(node)]) else node.start)
    last: dict[Any, Node] = {}
    last_comm: Node | None = None
    for node in issued:
        launch = launches[id(node)]
        node.deps += [launch] if launch else []
        node.deps += [last[node.lane]] if node.lane in last else []
        when = launch.start if launch else node.start
        waited = waits and bisect.bisect_left(waits, when, key=lambda wait: wait.start) > 0
        if node.is_comm:  # its inputs were made by what the other streams were given before it
            node.deps += [other for lane, other in last.items() if lane != node.lane and not other.is_comm]
            last_comm = node
        elif waited and last_comm is not None and last_comm.end <= node.start:
            node.deps.append(last_comm)
        last[node.lane] = node
    ends = sorted(kernels, key=lambda node: node.end)
    for sync in (n for key, mine in lanes.items() if key[0] == "host" for n in mine if n.name in SYNCS):
        at = bisect.bisect_right(ends, sync.end, key=lambda node: node.end)
        if at and ends[at - 1].end > sync.start:
            sync.deps.append(ends[at - 1])
            sync.own = min(sync.own, sync.end - ends[at - 1].end)


def _tie_collectives(nodes: Sequence[Node], lanes: dict[tuple[str, Any], list[Node]]) -> None:
    """Host-run collectives behind the call that issued them, and their first reader behind them."""
    calls = [node for node in nodes if node.name.startswith("c10d::")]
    readers: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        for storage in node.reads if not node.is_comm else ():
            readers[storage].append(node)
    for comm in (node for node in nodes if node.is_comm and node.lane[0] == "host"):
        before = [call for call in calls if call.start <= comm.start]
        issuer = next((call for call in before if call.reads & comm.reads), before[0] if before else None)
        if issuer is not None:
            calls.remove(issuer)
            comm.deps.append(issuer)
        reads = comm.reads or (issuer.reads if issuer is not None else set())  # one that ended late is in no host graph
        later = [node for storage in reads for node in _from(readers[storage], comm.start, issuer)[:1]]
        first = min(later, key=lambda node: node.start, default=None if reads else _waiter(comm, lanes))
        if first is not None:
            _read_by(comm, first)


def _from(nodes: Sequence[Node], start: int, issuer: Node | None) -> Sequence[Node]:
    """Those that start then or later, without what the call that issued the collective did itself."""
    behind = nodes[bisect.bisect_left(nodes, start, key=lambda node: node.start) :]
    return [node for node in behind if issuer is None or issuer not in _callers(node)]


def _callers(node: Node) -> list[Node]:
    """The node, who called it, and so on."""
    out = [node]
    while out[-1].parent is not None:
        out.append(out[-1].parent)
    return out


def _read_by(comm: Node, first: Node) -> None:
    """The first reader waited for the collective: the outermost of its callers that began when that was over.

    gloo wakes those who wait before it notes the end, so on a busy host the recorded end may lie behind the first read.
    """
    comm.end = max(comm.start, min(comm.end, first.start))
    comm.own = comm.end - comm.start
    [node for node in _callers(first) if node.start >= comm.end][-1].deps.append(comm)


def _waiter(comm: Node, lanes: dict[tuple[str, Any], list[Node]]) -> Node | None:
    """Without a host graph: who came next after doing nothing while the collective ended."""
    for (kind, _), mine in lanes.items():
        tops = [node for node in mine if kind == "host" and node.parent is None and not node.is_comm]
        at = bisect.bisect_left(tops, comm.end, key=lambda node: node.start)
        if 0 < at < len(tops) and tops[at - 1].end < comm.end:
            return tops[at]
    return None


def _order_thread(mine: Sequence[Node], every: Sequence[Node], length: float | None) -> list[Node]:
    """The order of one thread, and new nodes for the time in which it ran none of its operations.

    Of such time only what is left after the end of what it waited for counts.
    """
    work = [node for node in mine if not node.is_comm]
    ends = sorted((n for n in every if n.lane[0] == "host" and n.lane != mine[0].lane and not n.is_comm),
                  key=lambda node: node.end)  # fmt: skip
    extra: list[Node] = []
    before: Node | None = None
    done = 0
    for node in work:
        if node.parent is None and (length is not None or before is not None):
            waited = [dep.end for dep in node.deps if done < dep.end <= node.start]
            at = bisect.bisect_right(ends, node.start, key=lambda other: other.end)
            if not waited and at and done < ends[at - 1].end:
                node.deps.append(ends[at - 1])
                waited = [ends[at - 1].end]
            idle = node.start - max([done, *waited])
            if idle > 0:
                gap = Node("host", node.start - idle, node.start, node.lane, own=idle)
                gap.deps = [*([before] if before else []), *node.deps]
                extra.append(gap)
                before = gap
        node.deps += [before] if before else []
        before = node
        done = max(done, node.end)
    if length is not None and before is not None and done < length:
        extra.append(Node("host", done, round(length), mine[0].lane, own=round(length) - done, deps=[before]))
    return extra
