"""One layer as a stream: rows are read once in the order of the file and pushed along their edges.

Memory is planned before the first page is read. Twelve bytes a node go to degrees, missing messages and slots; more
than half of the rest are accumulators, and a fifth are rows in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from assay.data.atlas.choosing import LEAVING, RUN, STRIPS, choose
from assay.data.atlas.layers import Floats, Int32s, Layer, degrees, facing, finish, message, own
from assay.data.atlas.spill import Records, Spill
from assay.data.atlas.streaming import Progress, ahead, pieces
from assay.data.atlas.strips import BOOKS, StripPlan, run_strips
from assay.data.atlas.tiers import FULL, HotTier, Int64s, clear_all
from assay.data.disk.arrays import DiskArray
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import IoStats, Ticket
from assay.sim.blas import threads_for
from assay.sim.memory import return_freed

LEAST = 64  # accumulators below which a plan is refused
# Shares of the memory that nodes leave over; what is missing to 1 is for what libraries allocate in passing.
SLOTS, ROWS, EDGES, BLOCK = 0.46, 0.13, 0.03, 0.06
CHOOSING = 0.6  # for the sample of messages, which are gone before the tier comes
RANGE, FOLDING = 0.52, 0.09  # for a range's accumulators, and parts that are read, when the tier is gone
FLOW = 1 << 21  # bytes of rows that are worth a step of the pipeline


@dataclass(frozen=True)
class _Sizes:
    """Bytes that one of each takes."""

    node: int
    record: int  # an accumulator, and what choosing victims takes
    flying: int  # a row of the stream
    finishing: int
    writing: int

    @staticmethod
    def of(layer: Layer) -> _Sizes:
        inner = max((step[0].shape[0] for step in layer.steps), default=0)
        own_rows = 0 if layer.kind == "gcn" else 3 * layer.width
        return _Sizes(
            node=12 + 4 * (layer.heads if layer.kind == "gat" else 0),
            record=4 * layer.width + 64,
            flying=4 * (3 * layer.in_width + 3 * layer.message_width + own_rows),
            finishing=4 * (2 * layer.width + 3 * layer.out_width + 2 * inner),
            writing=8 * layer.out_width,
        )

    def fixed(self, n: int, group: int) -> int:
        """What stays as long as the layer runs, of nodes most of all."""
        return BOOKS + n * self.node + 8 * (n // group)


@dataclass(frozen=True)
class Plan:
    """How much of everything one layer holds at once."""

    slots: int  # accumulators
    rows: int  # of a chunk of the stream
    edges: int  # of a piece of the edges
    finish: int  # rows that go through the weights at once
    write: int  # rows that are written at once
    leaving: int  # accumulators that are evicted at once
    range_rows: int  # nodes whose accumulators are added up together at the end
    folding: int  # bytes of evicted accumulators that are read at once
    choosing: int  # messages of the sample on which rules of eviction are tried, before anything else is held

    @staticmethod
    def of(layer: Layer, n: int, group: int, memory: int) -> Plan:
        """Divide `memory` bytes; a ValueError tells how many it would take.

        >>> layer = Layer("gcn", {"lin": np.ones((128, 128), np.float32)}, False)
        >>> Plan.of(layer, 10**6, 8, 64 << 20).slots > 30_000
        True
        """
        sizes = _Sizes.of(layer)
        rest = memory - sizes.fixed(n, group)
        if memory < (least := Plan.least(layer, n, group)):
            raise ValueError(f"{memory:,} bytes are too few for {n:,} nodes; {least:,} or more expected")
        whole = -(-n // group) * group
        range_rows = max(int(rest * RANGE) // (4 * layer.width) // group, 1) * group
        slots = min(int(rest * SLOTS) // sizes.record, n)
        return Plan(
            slots=slots,
            rows=min(int(rest * ROWS) // sizes.flying, n, _enough(layer.in_width)),
            edges=min(int(rest * EDGES) // 12, 1 << 22),
            finish=min(int(rest * BLOCK / 2) // sizes.finishing, _enough(layer.width)),
            write=min(max(int(rest * BLOCK / 2) // sizes.writing // group, 1), -(-_enough(layer.out_width) // group))
            * group,
            leaving=max(slots // LEAVING, 1),  # copied twice while they are written
            range_rows=min(range_rows, whole),
            folding=int(rest * FOLDING),
            choosing=min(int(rest * CHOOSING) // 80, 50_000),
        )

    @staticmethod
    def least(layer: Layer, n: int, group: int) -> int:
        """The fewest bytes that can be divided."""
        sizes = _Sizes.of(layer)
        rest = max(
            LEAST * sizes.record / SLOTS, LEAST / 4 * sizes.flying / ROWS, LEAST / 4 * sizes.finishing / BLOCK,
            4 * group * sizes.writing, 2**13 / EDGES,
        )  # fmt: skip
        return sizes.fixed(n, group) + int(rest) + 1


def _enough(width: int) -> int:
    """Rows of which more at a time make nothing faster: what reads, multiplies, adds and writes would take turns."""
    return max(FLOW // (4 * width), 256)


@dataclass(frozen=True)
class Ran:
    """What a layer took: seconds, bytes by what they were for, and what the tiers did."""

    seconds: float
    feature_bytes: int
    edge_bytes: int
    spill_bytes: int
    output_bytes: int
    evicted: int
    returns: int
    live: int
    policy: str = ""


def run_layer(
    layer: Layer, graph: DiskGraph, source: DiskArray, target: DiskArray, memory: int, scratch: Path,
    policy: str = "auto", seed: int = 0, progress: Progress = lambda rows: None,
) -> Ran:  # fmt: skip
    """Compute `target`, the layer's rows, from `source` with at most about `memory` bytes."""
    began = perf_counter()
    plan = Plan.of(layer, graph.n, target.group, memory)
    strips = StripPlan.of(layer, graph.n, memory)
    before = source.stats.read_bytes, graph.indices.stats.read_bytes + graph.indptr.stats.read_bytes
    degree = degrees(layer, graph.in_degree(), graph.loops())
    if policy == "auto":
        policy = choose(layer, graph, plan.slots, strips, plan.choosing, -(-graph.n // plan.range_rows))
        return_freed()  # the sample was made of many small blocks
    evicted = returns = live = 0
    if policy != STRIPS:
        with threads_for(max(plan.rows, plan.finish) * layer.in_width * layer.out_width):
            spilled, evicted, returns, live = _spilling(
                layer, graph, degree, source, target, plan, scratch, policy, seed, progress
            )
    elif strips is None:
        raise ValueError(f"{memory:,} bytes are too few for strips of {graph.n:,} nodes; name a rule of eviction")
    else:
        spilled = run_strips(layer, graph, degree, source, target, strips, scratch, progress)
    target.finish()
    return Ran(
        perf_counter() - began,
        source.stats.read_bytes - before[0],
        graph.indices.stats.read_bytes + graph.indptr.stats.read_bytes - before[1],
        spilled.read_bytes + spilled.write_bytes,
        target.stats.write_bytes,
        evicted,
        returns,
        live,
        policy,
    )


def _spilling(
    layer: Layer, graph: DiskGraph, degree: Int32s, source: DiskArray, target: DiskArray, plan: Plan, scratch: Path,
    policy: str, seed: int, progress: Progress,
) -> tuple[IoStats, int, int, int]:  # fmt: skip
    """The layer with a tier of accumulators; what the log was asked, records evicted, returns, most slots in use."""
    halves = _facing(layer, source, plan.rows) if layer.kind == "gat" else None
    tier = HotTier(plan.slots, graph.n, layer.width, degree + np.int32(1), target.group, layer.reduce)
    spill = Spill(scratch / "spilled", graph.n, plan.range_rows, layer.width, plan.leaving)
    work = _Work(layer, degree, halves, tier, spill, target, plan, policy, seed)
    work.stream(graph, source, progress)
    work.drain()
    evicted, returns, live = tier.evicted, tier.returns, tier.live
    held = np.sort(tier.owner[tier.owner >= 0].astype(np.int64))
    tier.evict(held, spill.add)  # what is not complete in one piece: its other parts are in the log
    written = ~tier.broken
    spill.end()
    del tier, work.tier, halves
    work.put_together(written)
    work.written()
    spill.close()
    return spill.stats, evicted, returns, live


def _facing(layer: Layer, source: DiskArray, rows: int) -> Floats:
    """Every node's half of the attention as a target: one pass more over the rows, of a few columns."""
    out = np.empty((len(source), layer.heads), np.float32)
    for start, x in source.stream(rows):
        out[start : start + len(x)] = facing(layer, x.astype(np.float32, copy=False))
    return out


@dataclass
class _Work:
    layer: Layer
    degree: Int32s
    halves: Floats | None
    tier: HotTier
    spill: Spill
    target: DiskArray
    plan: Plan
    policy: str
    seed: int
    writing: Ticket[None] | None = None

    def stream(self, graph: DiskGraph, source: DiskArray, progress: Progress) -> None:
        """Push every row along its edges; the next rows are read and multiplied meanwhile."""
        chunk, drop = -1, self.layer.drops_loops
        for first, sent, mine, bounds, start, targets in ahead(self._messages(graph, source)):
            if first != chunk:
                chunk = first
                self.tier.begin_chunk()
                progress(first)
            while self.tier.push(first, sent, mine, bounds, start, targets, drop, self.halves) == FULL:
                self.make_room()

    def _messages(
        self, graph: DiskGraph, source: DiskArray
    ) -> Iterator[tuple[int, Floats, Floats, Int64s, int, Int32s]]:
        """Yield (first node, what its chunk sends, own terms, bounds of their edges, first edge, targets)."""
        chunk = -1
        sent = mine = np.empty((0, 0), np.float32)
        streams = source.stream(self.plan.rows), graph.indices.stream(self.plan.edges)
        for first, x, bounds, start, targets in pieces(graph, *streams):
            if first != chunk:
                chunk, last = first, first + len(x)
                sent = message(self.layer, x, self.degree[first:last])
                half = None if self.halves is None else self.halves[first:last]
                mine = own(self.layer, x, self.degree[first:last], sent, half)
            yield first, sent, mine, bounds, start, targets

    def make_room(self) -> None:
        """Let complete groups go; where that frees no slot, evict a part of the tier."""
        if not self.drain():
            self.tier.evict(self.tier.victims(self.plan.leaving, self.policy, self.seed), self.spill.add)

    def drain(self) -> int:
        """Finish and write the groups that are complete; how many rows left the tier.

        Groups that lie alone stay, and are the first to be evicted: a small write costs more than to append a record
        and read it once.
        """
        rows, gone = self.tier.ready_rows(), 0
        for a, b in _runs(rows):
            if (b - a) * self.target.row_bytes >= RUN or len(rows) == self.tier.n:
                self._write(int(rows[a]), int(rows[b - 1]) + 1, lambda a, b: self.tier.take(np.arange(a, b)))
                gone += b - a
        return gone

    def put_together(self, written: npt.NDArray[np.bool_]) -> None:
        """Add up the parts of each range, and write the groups that are not there yet."""
        layer, group, n = self.layer, self.target.group, len(self.degree)
        heads = layer.heads if layer.kind == "gat" else 0
        acc = np.empty((min(self.spill.rows, n), layer.width), np.float32)
        wanted = [k for k in range(self.spill.ranges) if not self._groups(written, k).all()]
        parts = ahead(self._parts(wanted))
        for k in wanted:
            base = k * self.spill.rows
            stop = min(base + self.spill.rows, n)
            clear_all(acc, layer.reduce, layer.message_width, heads)
            while (part := next(parts)[0]) is not None:
                part.fold(base, acc, layer.reduce, layer.message_width, heads)
            missing = np.flatnonzero(~self._groups(written, k))
            for a, b in _runs(missing):
                first = int(missing[a]) * group + base
                self._write(first, min(first + (b - a) * group, stop), lambda a, b: acc[a - base : b - base])  # noqa: B023

    def _parts(self, ranges: list[int]) -> Iterator[tuple[Records | None]]:
        """Yield what the log has of each range, some at a time, and (None,) behind it: so the next is read ahead."""
        for k in ranges:
            for part in self.spill.read(k, self.plan.folding):
                yield (part,)
            yield (None,)

    def _groups(self, written: npt.NDArray[np.bool_], k: int) -> npt.NDArray[np.bool_]:
        """Which groups of range k are written."""
        per = self.spill.rows // self.target.group
        return written[k * per : (k + 1) * per]

    def _write(self, first: int, stop: int, totals: Callable[[int, int], Floats]) -> None:
        """Finish the rows of these nodes and begin to write them; `totals` gives the accumulators of some."""
        plan = self.plan
        for start in range(first, stop, plan.write):
            end = min(start + plan.write, stop)
            out = self.target.buffer(end - start)
            for a in range(start, end, plan.finish):
                b = min(a + plan.finish, end)
                out[a - start : b - start] = finish(self.layer, totals(a, b), self.degree[a:b])
            self.written()
            self.writing = self.target.write_async(start, out)

    def written(self) -> None:
        """Return when no write is under way."""
        if self.writing is not None:
            self.writing.wait()
            self.writing = None


def _runs(numbers: Int64s) -> list[tuple[int, int]]:
    """Positions [a, b) of ascending numbers that follow on one another."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    ends = [0, *cuts.tolist(), len(numbers)] if len(numbers) else [0]
    return list(pairwise(ends))
