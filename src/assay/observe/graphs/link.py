"""Link what PyTorch recorded into a Chakra trace: the host's operations, the kernels they launched, and who waited.

:func:`link` takes a profiler's trace (Kineto JSON) and, if there is one, the host graph of the same steps
(`ExecutionTraceObserver` JSON), and gives one rank's :class:`~assay.workloads.chakra.Graph`:

- a node for each host operation with the time spent in it alone (its callees' taken out), for each kernel or copy, for
  each collective, and for the host's own time between operations (`host`: Python, loops, data): leave that out, and a
  replay is too fast;
- data dependencies: the order of each host thread and each stream; launch → kernel; kernel → kernel where a stream
  waited for another, and kernel → host at synchronisations (:mod:`assay.observe.graphs.waits`); what filled a
  collective's tensors → the collective, and the collective → who reads them first. The latter two are known from the
  tensors' storages in the host graph; without one the nearest call and the wait that ended with the collective stand
  for them.

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
    Event,
    HostGraph,
    Profile,
    is_comm,
    is_step,
    on_host,
    read_host,
    read_profile,
    synchronises,
)
from assay.observe.graphs.nodes import Node, assemble, steps
from assay.observe.graphs.waits import order_streams, split_blocking
from assay.record.errors import BadInput
from assay.workloads.chakra import Graph
from assay.workloads.kineto_names import is_device

_SHADOWS = ("gpu_user_annotation",)  # of host spans on the device: a host-run collective would be there twice
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
            record = node.event.args.record if node.event else None
            node.op = known.pop(record, None) if record is not None else None
        if not any(node.op for node in nodes):
            raise BadInput(f"{source}: no operation of the host graph is in it: record both over the same steps")
    lanes = _in_lanes(nodes)
    crowded = order_streams(nodes, [event for event in profile.events if event.cat == "cuda_sync"])
    nodes += split_blocking(nodes, lanes)
    _tie_collectives(nodes, lanes)
    for lane, mine in lanes.items():
        if lane[0] == "host":
            nodes += _order_thread(mine, nodes, high - low if _is_main(lane, lanes) else None)
    return assemble(nodes + crowded, profile, host, source)


# ------------------------------------------------------------------------------------------------- nodes


def _window(events: Sequence[Event], source: str) -> tuple[float, float]:
    """From the first step's start to the last one's end; the whole trace where no steps are marked.

    The profiler's own span (`Trace`) also holds its start and its end, which are not the job's.
    """
    spans = [event for event in events if event.ph == "X" and event.cat != "Trace"]
    marked = [event for event in spans if is_step(event.name)] or spans
    if not marked:
        raise BadInput(f"{source}: no event with a duration is in it")
    return min(event.ts for event in marked), max(event.ts + event.dur for event in marked)


def _nodes(events: Sequence[Event], low: float, high: float) -> list[Node]:
    out = []
    for event in events:
        if event.ph != "X" or not low <= event.ts < high or event.dur < 0 or event.cat in _SHADOWS:
            continue
        on_device = is_device(event.cat)
        if on_device or on_host(event.cat) or is_comm(event.name):
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


def _tie_collectives(nodes: Sequence[Node], lanes: dict[tuple[str, Any], list[Node]]) -> None:
    """Host-run collectives behind the call that issued them and their inputs, and their first reader behind them."""
    copied_back = _behind_inputs(nodes)
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
            comm.call = issuer
        reads = comm.reads or (issuer.reads if issuer is not None else set())  # one that ended late is in no host graph
        later = [found for storage in reads if (found := _reader(readers[storage], comm, issuer))]
        first = min(later, key=lambda node: node.start, default=None if reads else _waiter(comm, lanes))
        if first is not None:
            _read_by(comm, first, copied_back.get(id(comm)))


def _behind_inputs(nodes: Sequence[Node]) -> dict[int, Node]:
    """Host-run collectives behind the synchronisations they begin with; gives what each did last after those.

    With tensors of a device these are the wait for the copy to the host and the copy back.
    """
    last: dict[int, Node] = {}
    for node in nodes:
        comm = node.parent
        if comm is None or not comm.is_comm:
            continue
        if synchronises(node.name) and id(comm) not in last:
            comm.deps.append(node)
        else:
            last[id(comm)] = node
    return last


def _begun(comm: Node) -> int:
    """When a collective had its inputs."""
    return max([comm.start, *(dep.end for dep in comm.deps if dep.parent is comm)])


def _reader(nodes: Sequence[Node], comm: Node, issuer: Node | None) -> Node | None:
    """The first to start with the exchange or later, without what it or the call that issued it did itself."""
    at = bisect.bisect_left(nodes, _begun(comm), key=lambda node: node.start)
    behind = (nodes[i] for i in range(at, len(nodes)))
    return next((node for node in behind if not any(one in (comm, issuer) for one in _callers(node))), None)


def _callers(node: Node) -> list[Node]:
    """The node, who called it, and so on."""
    out = [node]
    while out[-1].parent is not None:
        out.append(out[-1].parent)
    return out


def _read_by(comm: Node, first: Node, copied_back: Node | None) -> None:
    """The first reader waited for the collective: the outermost of its callers that began when that was over.

    gloo wakes those who wait before it notes the end, so on a busy host the recorded end may lie behind the first read.
    """
    comm.end = max(comm.start, min(comm.end, first.start))
    comm.own = min(comm.own, comm.end - _begun(comm))
    reader = [node for node in _callers(first) if node.start >= comm.end][-1]
    reader.deps.append(comm)
    if copied_back is not None and copied_back.end <= reader.start:
        reader.deps.append(copied_back)


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
    others = [n for n in every if n.lane[0] == "host" and n.lane != mine[0].lane and not n.is_comm]
    ends = sorted((n for n in others if n.start < n.end), key=lambda node: node.end)  # no two wait for each other
    extra: list[Node] = []
    before: Node | None = None
    done = 0
    for node in work:
        if node.parent is None:
            waited = [dep for dep in node.deps if dep.lane[0] == "host" and done < dep.end <= node.start]
            at = bisect.bisect_right(ends, node.start, key=lambda other: other.end)
            if not waited and at and done < ends[at - 1].end:
                waited = [ends[at - 1]]
                node.deps += waited
            idle = node.start - max([done, *(dep.end for dep in waited)])
            if idle > 0 and (waited or before is not None or length is not None):
                gap = Node("host", node.start - idle, node.start, node.lane, own=idle)
                gap.deps = [*([before] if before else []), *waited]
                extra.append(gap)
                before = gap
        node.deps += [before] if before else []
        before = node
        done = max(done, node.end)
    if length is not None and before is not None and done < length:
        extra.append(Node("host", done, round(length), mine[0].lane, own=round(length) - done, deps=[before]))
    return extra
