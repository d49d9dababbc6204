"""Replay execution traces: every node starts when what it waits for is done, and collectives when all ranks are there.

:func:`replay` takes the traces of one or several ranks and a :class:`Network`, and says when each node starts and ends.
Compute keeps its recorded duration; a collective or a send with a known size takes the network's closed form. Without a
network, or where a trace does not tell what a collective does (`comm_type`, `comm_size`), it keeps the recorded
duration, and of several ranks' the shortest: the last to come waited for nobody.

>>> compute = {"id": [1, 2], "name": ["backward", "all_reduce"], "type": [chakra.COMP, chakra.COLL]}
>>> said = {"comm_type": [None, 0], "comm_size": [None, 1_000_000]}
>>> ranks = [chakra.Graph.of(**compute, data_deps=[[], [1]], duration_micros=[busy, 0], attributes=said, rank=rank)
...          for rank, busy in enumerate((100, 300))]
>>> outcome = replay(ranks, Network(Link(1e-6, 100e9)))
>>> round(outcome.makespan * 1e6), round(outcome.waited[1] * 1e6)  # the slower rank's 300 us, then 12; rank 0 waited
(312, 200)
>>> critical_path(outcome)["name"].to_list(), critical_path(outcome)["rank"].to_list()
(['backward', 'all_reduce'], [1, 1])

Rules of who waits for whom are in :mod:`assay.observe.graphs.plan`. A plan may be made once and replayed under many
networks: a million nodes take one to two seconds to plan and a tenth of that to replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from assay.observe.graphs import replay_kernels as kernels
from assay.observe.graphs.cycles import break_cycles
from assay.observe.graphs.network import Network
from assay.observe.graphs.path import KERNEL, arrivals, walk_back
from assay.observe.graphs.plan import Plan
from assay.sim.collectives import Link
from assay.workloads import chakra
from assay.workloads.chakra_frame import numbered
from assay.workloads.chakra_graph import printable

__all__ = ["Link", "Network", "Outcome", "Plan", "break_cycles", "critical_path", "longest_chain", "replay"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)  # millions of numbers
class Outcome:
    """When everything happened, in seconds from the start; nodes are numbered through all traces (`plan.locate`)."""

    plan: Plan
    ready: Floats  # what the node itself waited for is done
    start: Floats
    end: Floats
    because: npt.NDArray[np.int64]  # the edge of the plan that made it wait longest; -1: none
    priced: int  # collectives and sends that the network priced
    recorded: int  # those that kept their recorded duration

    def __repr__(self) -> str:
        return f"Outcome(makespan={self.makespan:.6g} s, {self.plan!r})"

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return float(self.end.max())

    @property
    def waited(self) -> Floats:
        """How long each node, ready itself, waited for the others of its meeting."""
        return self.start - self.ready

    @property
    def table(self) -> pl.DataFrame:
        """A row for each node: rank, id, name, type, ready, start, end."""
        graphs = self.plan.graphs
        lengths = [len(graph) for graph in graphs]
        names = [printable(graph.names[code]) for graph in graphs for code in graph.name]
        kinds = np.concatenate([graph.type for graph in graphs])
        return pl.DataFrame({
            "rank": np.repeat(self.plan.ranks, lengths), "id": np.concatenate([graph.id for graph in graphs]),
            "name": pl.Series(names, dtype=pl.String), "type": [type_name(kind) for kind in kinds.tolist()],
            "ready": self.ready, "start": self.start, "end": self.end,
        })  # fmt: skip


def type_name(number: int) -> str:
    """The word for a node's type; its number where there is none.

    >>> type_name(7), type_name(99)
    ('COMM_COLL', 'type 99')
    """
    return chakra.TYPES[number] if 0 <= number < len(chakra.TYPES) else f"type {number}"


def replay(
    graphs: chakra.Graph | Sequence[chakra.Graph] | Plan, network: Network | None = None, took: Floats | None = None
) -> Outcome:
    """Run the traces of one or several ranks; `took` are seconds of all nodes to take instead of those recorded.

    Raises:
        BadInput: what cannot be run: a cycle among data dependencies (named), a collective that a rank never issues,
            ranks that wait for each other, an id given twice.
    """
    plan = graphs if isinstance(graphs, Plan) else Plan.of(graphs)
    seconds, priced, recorded = _seconds(plan, network, took)
    head, following = plan.met
    ready, start, end, because, _ = kernels.walk(seconds, *plan.rows, plan.source, plan.target, head, following)
    return Outcome(plan, ready, start, end, because, priced, recorded)


def longest_chain(graphs: chakra.Graph | Sequence[chakra.Graph] | Plan, network: Network | None = None) -> float:
    """Seconds of the longest chain of data dependencies and meetings alone: no replay can be faster.

    >>> g = chakra.Graph.of([1, 2], ["a", "b"], chakra.COMP, data_deps=[[], []], duration_micros=[10, 30])
    >>> round(longest_chain(g) * 1e6), round(replay(g).makespan * 1e6)  # one lane runs one after the other
    (30, 40)
    """
    plan = graphs if isinstance(graphs, Plan) else Plan.of(graphs)
    seconds, _, _ = _seconds(plan, network)
    source, target = plan.source[~plan.by_lane], plan.target[~plan.by_lane]
    walked = kernels.walk(seconds, *kernels.children(plan.n, source, target), source, target, *plan.met)
    return float(walked[2].max())


def critical_path(outcome: Outcome) -> pl.DataFrame:
    """The chain of nodes that the makespan consists of, first to last, with its links.

    `because` says why a node started when it did: `data` (a dependency), `lane` (its thread, stream or channel was
    busy), `start` (nothing). A collective stands there with the rank that came last.
    """
    plan, graphs = outcome.plan, outcome.plan.graphs
    nodes = _nodes_back(outcome)[::-1]
    edge = outcome.because[nodes]
    why = np.where(edge < 0, 0, np.where(plan.by_lane[edge], 1, 2)) if len(plan.source) else np.zeros(len(nodes), int)
    trace = np.searchsorted(plan.first, nodes, side="right") - 1
    places = list(zip(trace.tolist(), (nodes - plan.first[trace]).tolist(), strict=True))
    return pl.DataFrame({
        "rank": np.array(plan.ranks)[trace],
        "id": pl.Series([int(graphs[trace].id[at]) for trace, at in places], dtype=pl.UInt64),
        "name": [printable(graphs[trace].names[graphs[trace].name[at]]) for trace, at in places],
        "type": [type_name(int(graphs[trace].type[at])) for trace, at in places],
        "start": outcome.start[nodes], "seconds": outcome.end[nodes] - outcome.start[nodes],
        "because": pl.Series(("start", "lane", "data")).gather(why.astype(np.uint32)),
    })  # fmt: skip


def _nodes_back(outcome: Outcome) -> npt.NDArray[np.int64]:
    """The nodes that led to the end, the last first; of a meeting, whoever was ready last."""
    plan, n = outcome.plan, outcome.plan.n
    ticks = min(1e12, 4e18 / max(outcome.makespan, 1e-9))  # of a second, as fine as whole numbers have room for
    ready, end = (np.round(times * ticks).astype(np.int64) for times in (outcome.ready, outcome.end))
    nothing, none, meeting = np.full(n, -1, np.int64), np.zeros(0, np.int64), np.full(n, -1, np.int64)
    meeting[plan.meetings.nodes] = np.repeat(np.arange(len(plan.meetings)), np.diff(plan.meetings.at))
    waited = outcome.because >= 0
    before = np.where(waited, plan.source[outcome.because], -1) if len(plan.source) else nothing
    last = int(outcome.end.argmax())
    pieces = walk_back(last, -1, int(end[last]), np.zeros(n, bool), np.zeros(n, np.int64), ready, end, nothing, before,
                       nothing, nothing, nothing, arrivals(meeting, ready), none, none, True)  # fmt: skip
    found: npt.NDArray[np.int64] = pieces[pieces[:, 0] == KERNEL, 1]
    return found


# ------------------------------------------------------------------------------------------------- what it costs


def _seconds(plan: Plan, network: Network | None, took: Floats | None = None) -> tuple[Floats, int, int]:
    """The duration of every node (of meetings: at their first member), and how many were priced and not."""
    seconds = np.concatenate([graph.duration for graph in plan.graphs]) if took is None else took.copy()
    meetings = plan.meetings
    if not len(meetings):
        return seconds, 0, 0
    shortest = np.minimum.reduceat(seconds[meetings.nodes], meetings.at[:-1])
    keys = np.column_stack([plan.said.T, meetings.party])
    firsts, inverse = numbered(*keys.T)
    costs = [_closed_form(network, meetings.parties[party], *said) for *said, party in keys[firsts].tolist()]
    cost = np.array([np.nan if one is None else one for one in costs])[inverse]
    known = ~np.isnan(cost)
    seconds[meetings.heads] = np.where(known, cost, shortest)
    return seconds, int(known.sum()), int((~known).sum())


def _closed_form(
    network: Network | None, ranks: tuple[int, ...], is_collective: int, operation: int, size: int, group_size: int
) -> float | None:
    """Seconds by the network, or None: keep what was recorded."""
    if network is None or size < 0:
        return None
    if not is_collective:
        return float(network.between(*ranks).seconds(float(size)))
    if not 0 <= operation < len(chakra.COLLECTIVES):
        return None
    if len(ranks) == 1:  # one trace of many is at hand: the group's size is said by the trace or by the caller
        size_of_group = group_size if group_size > 0 else network.ranks
        if size_of_group is None:
            return None
        ranks = tuple(range(size_of_group))
    return network.collective(chakra.COLLECTIVES[operation], ranks, float(size))
