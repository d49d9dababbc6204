"""One layer as a stream: rows are read once in the order of the file and pushed along their edges.

Memory is planned before the first page is read. Twelve bytes a node go to degrees, missing messages and slots; more
than half of the rest are accumulators, and a fifth are rows in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from assay.data.atlas.layers import SUM, Floats, Int32s, Layer, degrees, facing, finish, message, own
from assay.data.atlas.spill import Spill
from assay.data.atlas.tiers import DONE, FULL, MORE, HotTier, Int64s, clear_all, fold
from assay.data.disk.arrays import DiskArray
from assay.data.disk.graphs import DiskGraph
from assay.sim.blas import threads_for

CHOICE = ("min-pending", "lru")  # what `auto` chooses from
LEAST = 64  # accumulators below which a plan is refused
# Shares of the memory that nodes leave over; what is missing to 1 is for what libraries allocate in passing.
SLOTS, ROWS, EDGES, BLOCK, BUFFERS = 0.50, 0.12, 0.04, 0.06, 0.22
CHOOSING = 0.6  # for the sample of messages, which are gone before the tier comes
RANGE = 0.58  # for the accumulators of a range, when the tier and the rows in flight are gone
ENDS = 4096  # nodes whose ends of edges are read together
RUN = 1 << 16  # bytes of rows side by side that are worth a write of their own

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Plan:
    """How much of everything one layer holds at once."""

    slots: int  # accumulators
    rows: int  # of a chunk of the stream
    edges: int  # of a piece of the edges
    finish: int  # rows that go through the weights at once
    write: int  # rows that are written at once
    buffers: int  # bytes of the cold tier's logs
    range_rows: int  # nodes whose accumulators are added up together at the end
    choosing: int  # messages of the sample on which rules of eviction are tried, before anything else is held

    @staticmethod
    def of(layer: Layer, n: int, group: int, memory: int) -> Plan:
        """Divide `memory` bytes; a ValueError tells how many it would take.

        >>> layer = Layer("gcn", {"lin": np.ones((128, 128), np.float32)}, False)
        >>> Plan.of(layer, 10**6, 8, 64 << 20).slots > 30_000
        True
        """
        fixed = n * (12 + 4 * (layer.heads if layer.kind == "gat" else 0)) + 8 * (n // group)
        inner = max((step[0].shape[0] for step in layer.steps), default=0)
        record = 4 * layer.width + 64  # an accumulator, and what choosing victims takes
        flying = 4 * (2 * layer.in_width + 3 * layer.message_width + 2 * layer.width)
        finishing = 4 * (2 * layer.width + 3 * layer.out_width + 2 * inner)
        writing = 8 * layer.out_width
        least = max(
            LEAST * record / SLOTS, LEAST / 4 * flying / ROWS, LEAST / 4 * finishing / BLOCK,
            4 * group * writing, 2**14 / EDGES,
        )  # fmt: skip
        rest = memory - fixed
        if rest < least:
            raise ValueError(f"{memory:,} bytes are too few for {n:,} nodes; {fixed + int(least):,} or more expected")
        whole = -(-n // group) * group
        range_rows = max(int(rest * RANGE) // (4 * layer.width) // group, 1) * group
        return Plan(
            slots=min(int(rest * SLOTS) // record, n),
            rows=min(int(rest * ROWS) // flying, n),
            edges=min(int(rest * EDGES) // 16, 1 << 22),
            finish=int(rest * BLOCK / 2) // finishing,
            write=min(max(int(rest * BLOCK / 2) // writing // group, 1) * group, whole),
            buffers=min(int(rest * BUFFERS), 64 << 20),
            range_rows=min(range_rows, whole),
            choosing=min(int(rest * CHOOSING) // 80, 200_000),
        )


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

    def as_row(self) -> dict[str, float | str]:
        """The fields by name."""
        return asdict(self)


def run_layer(
    layer: Layer, graph: DiskGraph, source: DiskArray, target: DiskArray, memory: int, scratch: Path,
    policy: str = "auto", seed: int = 0, progress: Progress = lambda rows: None,
) -> Ran:  # fmt: skip
    """Compute `target`, the layer's rows, from `source` with at most about `memory` bytes."""
    plan = Plan.of(layer, graph.n, target.group, memory)
    with threads_for(max(plan.rows, plan.finish) * layer.in_width * layer.out_width):
        return _run_planned(layer, graph, source, target, plan, scratch, policy, seed, progress)


def _run_planned(
    layer: Layer, graph: DiskGraph, source: DiskArray, target: DiskArray, plan: Plan, scratch: Path, policy: str,
    seed: int, progress: Progress,
) -> Ran:  # fmt: skip
    began = perf_counter()
    n = graph.n
    before = source.stats.read_bytes, graph.indices.stats.read_bytes + graph.indptr.stats.read_bytes
    degree = degrees(layer, graph.in_degree(), graph.loops())
    halves = _facing(layer, source, plan.rows) if layer.kind == "gat" else None
    if policy == "auto":
        policy = choose_policy(graph, plan.slots, layer.drops_loops, plan.choosing)
    tier = HotTier(plan.slots, n, layer.width, degree + np.int32(1), target.group, layer.reduce)
    spill = Spill(scratch / "spilled", n, plan.range_rows, layer.width, plan.buffers)
    work = _Work(layer, degree, halves, tier, spill, target, plan, policy, seed)
    work.stream(graph, source, progress)
    work.drain()
    evicted = tier.evicted
    held = np.sort(tier.owner[tier.owner >= 0].astype(np.int64))
    tier.evict(held, spill.add)  # what is not complete in one piece: its other parts are in the logs
    written = ~tier.broken
    returns, live = tier.returns, tier.live
    spill.end()
    del tier, work.tier, halves
    work.put_together(written)
    spill.close()
    target.finish()
    return Ran(
        perf_counter() - began,
        source.stats.read_bytes - before[0],
        graph.indices.stats.read_bytes + graph.indptr.stats.read_bytes - before[1],
        spill.stats.read_bytes + spill.stats.write_bytes,
        target.stats.write_bytes,
        evicted,
        returns,
        live,
        policy,
    )


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

    def stream(self, graph: DiskGraph, source: DiskArray, progress: Progress) -> None:
        """Push every row along its edges."""
        chunk = -1
        sent = mine = np.empty((0, 0), np.float32)
        for first, x, bounds, start, targets in pieces(graph, source, self.plan.rows, self.plan.edges):
            if first != chunk:
                chunk, last = first, first + len(x)
                sent = message(self.layer, x, self.degree[first:last])
                half = None if self.halves is None else self.halves[first:last]
                mine = own(self.layer, x, self.degree[first:last], sent, half)
                self.tier.begin_chunk()
                progress(first)
            while True:
                ended = self.tier.push(first, sent, mine, bounds, start, targets, self.layer.drops_loops, self.halves)
                if ended != FULL:
                    break
                self.make_room()
            assert ended in (DONE, MORE)

    def make_room(self) -> None:
        """Let complete groups go; where that frees no slot, evict an eighth of the tier."""
        if not self.drain():
            victims = self.tier.victims(max(len(self.tier.owner) // 8, 1), self.policy, self.seed)
            self.tier.evict(victims, self.spill.add)

    def drain(self) -> int:
        """Finish and write the groups that are complete; how many rows left the tier.

        Groups that lie alone go to the log: a small write costs more than to append a record and read it once.
        """
        rows = self.tier.ready_rows()
        row_bytes = self.target.row_bytes
        for a, b in _runs(rows):
            nodes = rows[a:b]
            if (b - a) * row_bytes < RUN and len(rows) < self.tier.n:
                self.tier.evict(nodes, self.spill.add)
                continue
            self._write(int(nodes[0]), int(nodes[-1]) + 1, lambda a, b: self.tier.take(np.arange(a, b)))
        return len(rows)

    def put_together(self, written: npt.NDArray[np.bool_]) -> None:
        """Add up the parts of each range, and write the groups that are not there yet."""
        layer, group, n = self.layer, self.target.group, len(self.degree)
        heads = layer.heads if layer.kind == "gat" else 0
        acc = np.empty((min(self.spill.rows, n), layer.width), np.float32)
        for k in range(self.spill.ranges):
            base = k * self.spill.rows
            stop = min(base + self.spill.rows, n)
            missing = ~written[base // group : -(-stop // group)]
            if missing.any():
                clear_all(acc, layer.reduce, layer.message_width, heads)
                for records in self.spill.read(k):
                    fold(records, base, acc, layer.reduce, layer.message_width, heads)
                for a, b in _runs(np.flatnonzero(missing)):
                    first = int(np.flatnonzero(missing)[a]) * group + base
                    self._write(first, min(first + (b - a) * group, stop), lambda a, b: acc[a - base : b - base])  # noqa: B023

    def _write(self, first: int, stop: int, totals: Callable[[int, int], Floats]) -> None:
        """Finish the rows of these nodes and write them; `totals` gives the accumulators of some."""
        plan = self.plan
        for start in range(first, stop, plan.write):
            end = min(start + plan.write, stop)
            out = np.empty((end - start, self.layer.out_width), np.float32)
            for a in range(start, end, plan.finish):
                b = min(a + plan.finish, end)
                out[a - start : b - start] = finish(self.layer, totals(a, b), self.degree[a:b])
            self.target.write(start, out)


def _runs(numbers: Int64s) -> list[tuple[int, int]]:
    """Positions [a, b) of ascending numbers that follow on one another."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    ends = [0, *cuts.tolist(), len(numbers)] if len(numbers) else [0]
    return list(pairwise(ends))


def pieces(
    graph: DiskGraph, source: DiskArray, rows: int, edges: int
) -> Iterator[tuple[int, Floats, Int64s, int, Int32s]]:
    """Yield (first node, its chunk's rows, bounds of their edges, first edge, targets); the next is under way.

    A chunk with more than `edges` edges comes in several pieces.
    """
    reading = graph.indices.stream(edges)
    held, targets = 0, np.empty(0, np.int32)
    ends_at, ends = 0, np.empty(0, np.int64)
    for first, raw in source.stream(rows):
        x = raw.astype(np.float32, copy=False)
        if first + len(x) + 1 > ends_at + len(ends):
            ends_at, ends = first, graph.indptr.rows(first, min(first + max(len(x), ENDS), graph.n) + 1)
        bounds = ends[first - ends_at : first - ends_at + len(x) + 1]
        start, stop = int(bounds[0]), int(bounds[-1])
        while True:
            if start < stop and start >= held + len(targets):
                held, targets = next(reading)
            piece = targets[start - held : stop - held]
            yield first, x, bounds, start, piece
            start += len(piece)
            if start >= stop:
                break


def choose_policy(graph: DiskGraph, slots: int, drop: bool, sample: int = 200_000) -> str:
    """The rule of eviction that spills less on a sample of targets, with the tier as much smaller as the sample is.

    A target is in the sample with all of its messages or not at all, so it comes and goes as in the whole stream. Few
    pending messages are a good reason to leave where neighbours lie anywhere; where they lie together, a target that
    lacks only a few is about to be complete, and the one not touched for longest is the better victim.
    """
    if slots >= graph.n or not graph.m:
        return "min-pending"
    every = max(-(-(graph.m + graph.n) // sample), 1)
    stream, targets = [], []
    for sources, ends in graph.stream(min(sample, 1 << 16)):
        kept = (ends % every == 0) & ~(drop & (sources == ends))
        stream.append(sources[kept])
        targets.append(ends[kept] // every)
    n = -(-graph.n // every)
    arrive = np.concatenate([*stream, np.arange(n) * every])
    nodes = np.concatenate([*targets, np.arange(n)]).astype(np.int64)
    order = np.argsort(arrive, kind="stable")
    spilled = {rule: count_spills(arrive[order], nodes[order], n, max(slots // every, 8), rule)[0] for rule in CHOICE}
    return min(CHOICE, key=lambda rule: spilled[rule])


def count_spills(
    arrive: Int64s, nodes: Int64s, n: int, slots: int, policy: str, seed: int = 0, chunk: int = 64
) -> tuple[int, int, int]:
    """Records spilled, returns, and most slots in use of a tier whose messages come in this order; no row is moved.

    Message i is for `nodes[i]`, from the source `arrive[i]`, which never falls; `chunk` sources are one moment.
    """
    expected = np.bincount(nodes, minlength=n).astype(np.int32)
    tier = HotTier(slots, n, 0, expected, 1, SUM)
    known = None
    if policy == "belady":
        known = np.concatenate([[0], np.cumsum(expected, dtype=np.int64)]), arrive[np.lexsort((arrive, nodes))]
    # Messages are edges of sources without rows or own terms: each source comes with its own, which takes no slot.
    starts = np.flatnonzero(np.diff(arrive, prepend=-1))
    targets = nodes.astype(np.int32)
    for block in range(0, len(starts), chunk):
        a = int(starts[block])
        b = int(starts[block + chunk]) if block + chunk < len(starts) else len(nodes)
        tier.begin_chunk()
        while tier.count(targets[a:b], a) == FULL:
            ready = tier.ready_rows()
            if len(ready):
                tier.take(ready)
            else:
                tier.evict(tier.victims(max(slots // 8, 1), policy, seed, known), lambda nodes, acc, slots: None)
    tier.take(tier.ready_rows())
    return tier.evicted + int((tier.owner >= 0).sum()), tier.returns, tier.live
