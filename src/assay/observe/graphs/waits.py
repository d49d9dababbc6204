"""Who waited for whom on the device: kernels for their launches, their streams and other streams, the host for kernels.

A wait across streams is taken from the best that the trace has:

1. *Told*: the profiler's own account (`cuda_sync`, written where the job asked for it) names the stream that waits, the
   stream waited for, and the call that recorded the event.
2. *Called*: `cudaEventRecord` and `cudaStreamWaitEvent` are in the trace, but not on which streams. An event stands
   for what its thread launched last before it, a wait holds up what its thread launches next; and a collective,
   without such calls, waits for what the other streams were given before it.
3. *Seen*: a kernel that began right after one of another stream had ended, though its launch was done and its own
   stream idle for longer than a launch takes, was waiting for it.

Of these only waits that the recorded times allow are kept: who was waited for had ended when the other began. So
a replay under its own parameters cannot be slowed down by a wrong guess, and kernels never wait in a circle.

A kernel that sat ready while one of another stream ran waited for room, which is nobody's end: a node `crowded` of
that length stands before it, or a replay would run in parallel what the device could not.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.observe.graphs.events import Event, makes_wait, records, synchronises
from assay.observe.graphs.nodes import Node

Lane = tuple[str, Any]
_LAUNCH = 5  # us in which a kernel begins that waits for nothing but its launch; on an H200 0.5 to 3
_HANDOVER = 10  # us in which a stream goes on after what it waited for on another one; on an H200 2 to 8


@dataclass(frozen=True, eq=False)
class Streams:
    """The kernels and copies of a trace in the order in which they began, which within a stream is the queue's."""

    kernels: list[Node]
    place: dict[int, int]  # of each kernel in that order
    launch: dict[int, Node]  # the call that launched it, where that is in the trace
    queue: dict[Lane, list[Node]]
    issued: dict[int, int]  # when it was put into its queue; its start, where nobody knows

    @classmethod
    def of(cls, nodes: Sequence[Node], calls: dict[Any, Node]) -> Streams:
        """From a trace's nodes and its host's calls by correlation."""
        kernels = [node for node in nodes if node.lane[0] == "device"]
        kernels.sort(key=lambda node: (node.event.ts if node.event else node.start, node.end))
        launch = {id(n): calls[n.event.args.correlation]
                  for n in kernels if n.event and n.event.args.correlation in calls}  # fmt: skip
        queue: dict[Lane, list[Node]] = defaultdict(list)
        issued: dict[int, int] = {}
        for node in kernels:
            mine = queue[node.lane]
            when = launch.get(id(node), node).start
            issued[id(node)] = max(when, issued[id(mine[-1])]) if mine else when
            mine.append(node)
        return cls(kernels, {id(node): place for place, node in enumerate(kernels)}, launch, dict(queue), issued)

    def before(self, lane: Lane, when: int) -> Node | None:
        """What was put into a stream last before then."""
        mine = self.queue.get(lane, [])
        at = bisect.bisect_left(mine, when, key=lambda node: self.issued[id(node)])
        return mine[at - 1] if at else None

    def behind(self, lane: Lane, when: int) -> Node | None:
        """What was put into a stream first, then or later."""
        mine = self.queue.get(lane, [])
        at = bisect.bisect_left(mine, when, key=lambda node: self.issued[id(node)])
        return mine[at] if at < len(mine) else None

    def hold(self, node: Node | None, other: Node | None) -> bool:
        """Let a kernel wait for one of another stream, if the recording allows it; whether it does.

        It does where the other was issued no later, which a synchronisation behind them relies on, and had ended.
        """
        if node is None or other is None or node.lane == other.lane or other.end > node.start:
            return False
        if self.issued[id(other)] > self.issued[id(node)] or self.place[id(other)] > self.place[id(node)]:
            return False
        node.deps.append(other)
        return True


def order_streams(nodes: Sequence[Node], syncs: Sequence[Event]) -> list[Node]:
    """Kernels behind what they waited for, and the host behind kernels; `syncs` is what `cuda_sync` told, if it did.

    Returns the nodes that stand for waiting for room.
    """
    host = [node for node in nodes if node.lane[0] == "host"]
    calls = {node.event.args.correlation: node for node in host if node.event and node.event.args.correlation}
    streams = Streams.of(nodes, calls)
    for mine in streams.queue.values():
        for before, node in zip([None, *mine], mine, strict=False):
            node.deps += [streams.launch[id(node)]] if id(node) in streams.launch else []
            node.deps += [before] if before else []
    if not _told(streams, syncs, calls):
        _called(streams, host)
        _seen(streams)
    _synchronise(streams, [node for node in host if synchronises(node.name)], _awaited(streams, syncs, calls))
    return _crowded(streams)


# ------------------------------------------------------------------------------------------------- streams


def _told(streams: Streams, syncs: Sequence[Event], calls: dict[Any, Node]) -> bool:
    """Waits that the profiler names; whether there are any that could be followed."""
    followed = False
    for sync in syncs:
        call = calls.get(sync.args.correlation)
        if sync.name == "Stream Wait Event" and call is not None:
            node = streams.behind(("device", sync.args.stream), call.start)
            followed |= streams.hold(node, _recorded(streams, sync, calls))
    return followed


def _recorded(streams: Streams, sync: Event, calls: dict[Any, Node]) -> Node | None:
    """The kernel whose end the event of a wait stands for."""
    record = calls.get(sync.args.recorded_by)
    return streams.before(("device", sync.args.wait_on), record.start) if record is not None else None


def _called(streams: Streams, host: Sequence[Node]) -> None:
    """Waits that the host's calls tell of, their streams guessed from what the same thread launches."""
    launched: dict[int, list[Node]] = defaultdict(list)
    for node in streams.kernels:
        launched[id(streams.launch.get(id(node), node))].append(node)
    latest: dict[Lane, Node] = {}  # by thread: what it launched last
    given: dict[Lane, Node] = {}  # by stream: what it was given last
    events: dict[Lane, Node] = {}  # by stream: what its newest event stands for; the newest of all is last
    waits: dict[Lane, list[list[Node]]] = defaultdict(list)  # by thread: for each wait, the events there were
    calls = [node for node in [*host, *streams.kernels]
             if id(node) in launched or records(node.name) or makes_wait(node.name)]  # fmt: skip
    for call in sorted(calls, key=lambda node: node.start):
        if records(call.name) and call.lane in latest:
            _newest(events, latest[call.lane])
        elif makes_wait(call.name):
            waits[call.lane].append([*events.values()])
        for node in launched.get(id(call), ()):
            others = [next((other for other in reversed(there) if other.lane != node.lane), None)
                      for there in waits.pop(call.lane, ())]  # fmt: skip
            held = [other for other in others if streams.hold(node, other)]
            if node.is_comm:
                for other in given.values() if not held else ():
                    if not other.is_comm:
                        streams.hold(node, other)
                _newest(events, node)  # who waits for a collective waits for an event right behind it
            latest[call.lane] = given[node.lane] = node


def _newest(events: dict[Lane, Node], node: Node) -> None:
    events.pop(node.lane, None)
    events[node.lane] = node


def _seen(streams: Streams) -> None:
    """Waits that only the times tell of."""
    ends = sorted(streams.kernels, key=lambda node: node.end)
    times = [node.end for node in ends]
    for node in streams.kernels:
        ready = max((dep.end for dep in node.deps), default=node.start)
        if node.start - ready <= _LAUNCH:
            continue
        at = bisect.bisect_right(times, node.start)
        while at and times[at - 1] > max(ready, node.start - _HANDOVER):
            at -= 1
            if streams.hold(node, ends[at]):
                break


def _crowded(streams: Streams) -> list[Node]:
    """Waits for room on the device: before each kernel that began while others ran, though nothing held it up."""
    made = []
    busy, until = 0, 0  # since when and until when kernels ran without a break; collectives take little room
    for node in streams.kernels:
        if node.is_comm:
            continue
        since = max((dep.end for dep in node.deps), default=node.start)
        if node.start >= until:
            busy = node.start
        elif node.start - (since := max(since, busy)) > _LAUNCH:
            made.append(Node("crowded", since, node.start, node.lane, own=node.start - since, deps=node.deps))
            node.deps = [made[-1]]
        until = max(until, node.end)
    return made


# ------------------------------------------------------------------------------------------------- the host


def _awaited(streams: Streams, syncs: Sequence[Event], calls: dict[Any, Node]) -> dict[int, Node]:
    """The kernels that the host's synchronisations waited for, where the profiler names them."""
    out = {}
    for sync in syncs:
        call = calls.get(sync.args.correlation)
        node = None
        if call is not None and sync.name == "Event Sync":
            node = _recorded(streams, sync, calls)
        elif call is not None and sync.name == "Stream Sync":
            node = streams.before(("device", sync.args.stream), call.start)
        if call is not None and node is not None and node.end <= call.end:
            out[id(call)] = node
    return out


def _synchronise(streams: Streams, calls: Sequence[Node], awaited: dict[int, Node]) -> None:
    """Synchronisations behind the kernels they waited for: those named, or the last to end during the call."""
    ends = sorted(streams.kernels, key=lambda node: node.end)
    times = [node.end for node in ends]
    for call in calls:
        node = awaited.get(id(call))
        at = bisect.bisect_right(times, call.end)
        while node is None and at and times[at - 1] > call.start:
            at -= 1
            node = ends[at] if streams.issued[id(ends[at])] <= call.start else None
        if node is not None:
            call.deps.append(node)
            call.own = min(call.own, call.end - max(node.end, call.start))


def split_blocking(nodes: Sequence[Node], lanes: dict[Lane, list[Node]]) -> list[Node]:
    """Calls that launched something and returned when it was over, as two: the launch, and behind it the wait.

    A copy to pageable memory is one (`cudaMemcpyAsync`, whatever its name says), every launch of a job that blocks on
    them is. As one node it would be the host's own time, however fast the device got. Gives the waits; they are put
    into their lanes.
    """
    calls = {node.event.args.correlation: node for node in nodes
             if node.lane[0] == "host" and node.event and node.event.args.correlation}  # fmt: skip
    last: dict[int, Node] = {}
    for kernel in nodes:
        linked = kernel.event.args.correlation if kernel.lane[0] == "device" and kernel.event else None
        asked = calls.get(linked) if linked is not None else None
        if asked is not None and (id(asked) not in last or kernel.end > last[id(asked)].end):
            last[id(asked)] = kernel
    made = []
    for call in calls.values():
        done = last.get(id(call))
        if done is None or not call.start <= done.start <= done.end <= call.end:
            continue
        launched = min(_LAUNCH, done.start - call.start, call.own)
        wait = Node(f"{call.name} waits", call.start + launched, call.end, call.lane, own=call.end - done.end,
                    parent=call, deps=[done])  # fmt: skip
        call.own = launched
        mine = lanes[call.lane]
        mine.insert(mine.index(call) + 1, wait)
        made.append(wait)
    return made
