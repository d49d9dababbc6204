"""What a replay needs to know of some ranks' traces, whatever the network: who waits for whom, and who meets whom.

- *Data dependencies* are followed; control dependencies (the call tree) are not.
- *Lanes* run one node at a time, in the order of the recording: a host thread, a device stream, the channel to or from
  a peer, and for collectives that do not say where they ran the channel of their process group. The order is fixed
  before any time is known, as a stream's queue is, so a faster network can never make a replay slower.
- *Meetings*: the k-th collective of a group on every rank that has the group, and the k-th send from a to b with the
  k-th receive of b from a (and the same tag), start when the last member is ready and end together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from assay.observe.graphs import cycles
from assay.observe.graphs import replay_kernels as kernels
from assay.record.errors import BadInput
from assay.workloads.chakra import COLL, METADATA, RECV, SEND, Graph
from assay.workloads.chakra_frame import lanes, numbered, numbered_through

Int64s = npt.NDArray[np.int64]
_HOST, _DEVICE, _GROUP, _SEND, _RECV = range(5)  # kinds of lanes


@dataclass(frozen=True, eq=False)
class Meetings:
    """Nodes (numbered through all traces) that start and end together: a collective, or a send and its receive.

    The members of meeting m are `nodes[at[m]:at[m + 1]]`, on the ranks `parties[party[m]]`.
    """

    at: Int64s
    nodes: Int64s
    party: Int64s
    parties: list[tuple[int, ...]]

    @classmethod
    def of(cls, matched: Sequence[tuple[tuple[int, ...], npt.NDArray[np.int64]]]) -> Meetings:
        """From parties of ranks and their meetings, a row for each meeting and a column for each rank."""
        sizes = np.repeat([len(ranks) for ranks, _ in matched], [len(rows) for _, rows in matched]).astype(np.int64)
        party = np.repeat(np.arange(len(matched)), [len(rows) for _, rows in matched])
        nodes = np.concatenate([np.empty(0, np.int64), *(rows.reshape(-1) for _, rows in matched)])
        at = np.concatenate([[0], np.cumsum(sizes)])
        return cls(at.astype(np.int64), nodes, party.astype(np.int64), [ranks for ranks, _ in matched])

    def __len__(self) -> int:
        return len(self.party)

    @property
    def heads(self) -> Int64s:
        """The first member of each."""
        return self.nodes[self.at[:-1]]


@dataclass(frozen=True, eq=False, repr=False)  # millions of numbers
class Plan:
    """Traces made ready for replay. Make it with :meth:`of`; nodes are numbered through all of them."""

    graphs: tuple[Graph, ...]
    ranks: tuple[int, ...]
    first: Int64s  # the number of each trace's first node, and of all nodes
    source: Int64s
    target: Int64s
    by_lane: npt.NDArray[np.bool_]  # which edges are the order of a lane
    meetings: Meetings
    lane: Int64s
    dangling: int  # data dependencies on nodes that are not in the trace, taken as met

    @classmethod
    def of(cls, graphs: Graph | Sequence[Graph]) -> Plan:
        """From the traces of one or several ranks.

        Raises:
            BadInput: a cycle among data dependencies, named; an id given twice; a collective that a rank never issues.
        """
        given = (graphs,) if isinstance(graphs, Graph) else tuple(graphs)
        if not sum(len(graph) for graph in given):
            names = ", ".join(_named(graph) for graph in given) or "no trace"
            raise BadInput(f"{names}: nothing to replay: the trace has no nodes")
        ranks = _ranks(given)
        first = np.concatenate([[0], np.cumsum([len(graph) for graph in given])]).astype(np.int64)
        parts = [_one(graph, int(begin)) for graph, begin in zip(given, first, strict=False)]
        source, target = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        by_lane = np.concatenate([part[2] for part in parts])
        lane = np.concatenate([part[3] for part in parts])
        dangling = sum(len(g.data_deps.values) for g in given) - int((~by_lane).sum())
        meetings = _meetings(given, ranks, first, [part[4] for part in parts])
        plan = cls(given, ranks, first, source, target, by_lane, meetings, lane, dangling)
        plan._refuse_deadlock()
        return plan

    def __repr__(self) -> str:
        return f"Plan(ranks={len(self.ranks)}, nodes={self.n}, meetings={len(self.meetings)})"

    @property
    def n(self) -> int:
        """The number of nodes of all traces."""
        return int(self.first[-1])

    @cached_property
    def rows(self) -> tuple[Int64s, Int64s]:
        """The edges that leave each node, as compressed rows."""
        at, edge = kernels.children(self.n, self.source, self.target)
        return at, edge

    @cached_property
    def met(self) -> tuple[Int64s, Int64s]:
        """The first member of each node's meeting (itself, where it meets nobody), and the next after each member."""
        head, following = np.arange(self.n), np.full(self.n, -1, np.int64)
        nodes, at = self.meetings.nodes, self.meetings.at
        head[nodes] = np.repeat(self.meetings.heads, np.diff(at))
        following[nodes[:-1]] = nodes[1:]
        following[nodes[at[1:] - 1]] = -1
        return head, following

    @cached_property
    def said(self) -> npt.NDArray[np.int64]:
        """What each meeting's first member says: whether it is a collective, which, its bytes, its group's size."""
        made = np.empty((4, len(self.meetings)), np.int64)
        trace = np.searchsorted(self.first, self.meetings.heads, side="right") - 1
        for number in np.unique(trace).tolist():
            graph, mine = self.graphs[number], np.flatnonzero(trace == number)
            heads = self.meetings.heads[mine] - self.first[number]
            among = np.zeros(len(graph), np.bool_)
            among[heads] = True
            made[0, mine] = is_collective(graph)[heads]
            for row, name in enumerate(("comm_type", "comm_size", "pg_size"), 1):
                made[row, mine] = graph.whole_numbers(name, among=among)[heads]
        return made

    def locate(self, node: int) -> tuple[int, int]:
        """The trace and the place in it of a node.

        >>> one = Graph.of([1], ["a"], 4, data_deps=[[]])
        >>> Plan.of([one, one]).locate(1)
        (1, 0)
        """
        trace = int(np.searchsorted(self.first, node, side="right")) - 1
        return trace, node - int(self.first[trace])

    def label(self, node: int) -> str:
        """A node as a message names it, with its rank where there are several."""
        trace, place = self.locate(node)
        label = self.graphs[trace].label(place)
        return label if len(self.graphs) == 1 else f"rank {self.ranks[trace]} {label}"

    def _refuse_deadlock(self) -> None:
        head, following = self.met
        *_, stuck = kernels.walk(np.zeros(self.n), *self.rows, self.source, self.target, head, following)
        if not stuck.any():
            return
        heads = (head[self.source], head[self.target])
        circle = cycles.find_cycle(*heads, stuck)
        named = " → ".join(self.label(int(self.source[edge])) for edge in circle[:6])
        raise BadInput(f"cannot replay: ranks wait for each other in a circle: {named}")


def _ranks(graphs: Sequence[Graph]) -> tuple[int, ...]:
    told = [graph.rank for graph in graphs]
    known = [rank for rank in told if rank is not None]
    if len(known) == len(graphs) and len(set(known)) == len(known):
        return tuple(known)
    if len(set(known)) < len(known):
        raise BadInput(f"two traces are of rank {max(known, key=known.count)}; one of each rank can be replayed")
    return tuple(range(len(graphs)))


def _one(graph: Graph, first: int) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_], Int64s, Int64s]:
    """One trace's edges, which of them are a lane's order, its lanes, and its nodes in a possible order."""
    if not numbered_through(graph.id):
        ids, counts = np.unique(graph.id, return_counts=True)
        if len(ids) < len(graph):
            raise BadInput(f"{_named(graph)}: cannot replay: {counts.max()} nodes have the id {ids[counts.argmax()]}")
    source, target, _ = cycles.edges_of(graph)
    by_turn = np.argsort(graph.start_micros, kind="stable")
    order, missing = kernels.linear(len(graph), source, target, by_turn)
    if len(order) < len(graph):
        circle = cycles.find_cycle(source, target, missing > 0)
        raise BadInput(
            f"{_named(graph)}: cannot replay: data dependencies form a cycle: "
            f"{cycles.name_cycle(graph, source, target, circle)}; break_cycles (assay trace --break-cycles) removes one"
        )
    lane, count = _lanes(graph)
    queue = kernels.lane_edges(order, lane, count)
    by_lane = np.repeat([False, True], [len(source), len(queue[0])])
    edges = (np.concatenate([a, b]) + first for a, b in zip((source, target), queue, strict=True))
    return *edges, by_lane, lane, order + first


def _named(graph: Graph) -> str:
    return graph.source or ("the trace" if graph.rank is None else f"rank {graph.rank}")


def is_collective(graph: Graph) -> npt.NDArray[np.bool_]:
    """Which nodes are collectives that run: where a device runs them, the host's calls of the same type only launch."""
    every = graph.type == COLL
    on_device = every & ~graph.is_cpu_op
    return np.asarray(on_device if on_device.any() else every)


def _lanes(graph: Graph) -> tuple[Int64s, int]:
    """The lane of each node, -1 for those that occupy none, and how many there are."""
    number, on_host = lanes(graph)
    kind = np.where(on_host == 1, _HOST, _DEVICE)
    unplaced = is_collective(graph) & (number < 0)
    to, of = (graph.whole_numbers(name, among=graph.type == kind_of) for name, kind_of in
              (("comm_dst", SEND), ("comm_src", RECV)))  # fmt: skip
    rows = (
        (unplaced, _GROUP, graph.texts("pg_name", unplaced).codes),
        ((graph.type == SEND) & (to >= 0), _SEND, to),  # a peer that nobody names has no channel
        ((graph.type == RECV) & (of >= 0), _RECV, of),
    )
    for chosen, what, which in rows:
        kind, number = np.where(chosen, what, kind), np.where(chosen, which, number)
    firsts, lane = numbered(kind, number)
    return np.where(graph.type == METADATA, -1, lane), len(firsts)


# ------------------------------------------------------------------------------------------------ who meets whom


def _meetings(graphs: Sequence[Graph], ranks: Sequence[int], first: Int64s, orders: Sequence[Int64s]) -> Meetings:
    groups: dict[str, dict[int, Int64s]] = {}
    channels: dict[tuple[int, int, int], dict[int, Int64s]] = {}
    for graph, rank, begin, order in zip(graphs, ranks, first, orders, strict=False):
        name, collective = graph.texts("pg_name", is_collective(graph)), order[is_collective(graph)[order - begin]]
        for code in np.unique(name.codes[collective - begin]).tolist():
            group = name.values[code] if code >= 0 else ""
            groups.setdefault(group, {})[rank] = collective[name.codes[collective - begin] == code]
        for channel, nodes in _channels(graph, rank, order - begin).items():
            channels.setdefault(channel, {})[rank] = nodes + begin

    def label(rank: int, node: int) -> str:
        trace = list(ranks).index(rank)
        return graphs[trace].label(node - int(first[trace]))

    matched = [_matched(f"group '{group}'", members, label) for group, members in groups.items()]
    for (src, dst, tag), members in channels.items():
        if src in ranks and dst in ranks and src != dst:
            both = {rank: members.get(rank, np.empty(0, np.int64)) for rank in (src, dst)}
            matched.append(_matched(f"the channel from rank {src} to rank {dst}, tag {tag},", both, label))
    return Meetings.of(matched)


def _channels(graph: Graph, rank: int, order: Int64s) -> dict[tuple[int, int, int], Int64s]:
    """The sends and receives of a trace, in order, by (from, to, tag)."""
    chosen = order[np.isin(graph.type[order], (SEND, RECV))]
    if not len(chosen):
        return {}
    sends = graph.type[chosen] == SEND
    talks = np.isin(graph.type, (SEND, RECV))
    peers = [graph.whole_numbers(name, default, talks)[chosen] for name, default in
             (("comm_src", -1), ("comm_dst", -1), ("comm_tag", 0))]  # fmt: skip
    keys = np.where(sends, rank, peers[0]), np.where(sends, peers[1], rank), peers[2]
    firsts, code = numbered(*keys)
    found = zip(*(key[firsts].tolist() for key in keys), strict=True)
    return {channel: chosen[code == i] for i, channel in enumerate(found)}


def _matched(
    what: str, members: dict[int, Int64s], label: Callable[[int, int], str]
) -> tuple[tuple[int, ...], npt.NDArray[np.int64]]:
    """The ranks, and a row for each meeting: the k-th of every rank."""
    counts = {rank: len(nodes) for rank, nodes in members.items()}
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[least] < counts[most]:
        lone = label(most, int(members[most][counts[least]]))
        raise BadInput(
            f"cannot replay: rank {most} waits in {lone} of {what} for rank {least}, "
            f"which takes part {counts[least]} times and not {counts[most]}"
        )
    order = sorted(members)
    return tuple(order), np.stack([members[rank] for rank in order], axis=1)
