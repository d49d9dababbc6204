"""Who leaves memory, or nobody: the way that takes least time for its bytes, by trying the rules on some targets.

A target is in the sample with all of its messages or not at all, so it comes and goes as in the whole stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from assay.data.atlas.layers import SUM, Layer
from assay.data.atlas.strips import StripPlan
from assay.data.atlas.tiers import FULL, HotTier, Int64s
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import PAGE

RULES = ("min-pending", "lru")
LEAVING = 4  # one part in so many of the tier is evicted together
STRIPS = "strips"
SCATTERED = 1.5  # an evicted byte takes as long as so many that stream: 1.5 to 2 measured, with one width or another
RUN = 1 << 16  # bytes of rows side by side that are worth a write of their own


class Moved(NamedTuple):
    """Bytes that a way reads and writes: in order, and of accumulators that leave and come back."""

    streamed: float
    evicted: float = 0.0

    @property
    def cost(self) -> float:
        """Bytes that would stream in the same time."""
        return self.streamed + SCATTERED * self.evicted


def choose(
    layer: Layer, graph: DiskGraph, slots: int, strips: StripPlan | None, sample: int = 50_000, ranges: int = 1
) -> str:
    """A rule of eviction, or strips where rows and accumulators of the better rule would take longer to cross the disk.

    Few pending messages are a good reason to leave where neighbours lie anywhere; where they lie together, a target
    that lacks only a few is about to be complete, and the one not touched for longest is the better victim.
    """
    if slots >= graph.n or not graph.m:
        return RULES[0]
    moved = estimates(layer, graph, slots, strips, sample, ranges, enough=True)
    return min(moved, key=lambda way: moved[way].cost)


def estimates(
    layer: Layer, graph: DiskGraph, slots: int, strips: StripPlan | None, sample: int, ranges: int,
    enough: bool = False,
) -> dict[str, Moved]:  # fmt: skip
    """What each way would read and write; evicted accumulators are read back by `ranges` of nodes.

    With `enough`, a rule that is worse than strips already is not tried to its end.

    A range's part of an eviction is read in whole pages and begins and ends within one: a page more for each part. In
    little memory, where evictions are small and ranges many, that was up to a third of what is read.
    """
    rows = 4 * graph.n * (layer.in_width * (2 if layer.kind == "gat" else 1) + layer.out_width) + 4 * graph.m
    moved = {} if strips is None else {STRIPS: Moved(strips.moved(layer, graph))}
    each = 8 * (layer.width + 1)
    most = max(moved[STRIPS].cost - rows, 0) / (SCATTERED * each * graph.n) if enough and moved else np.inf
    spilled = sampled_spills(graph, slots, layer.drops_loops, sample, max(RUN // (4 * layer.out_width), 1), most)
    for rule, per_node in spilled.items():
        records = per_node * graph.n
        parts = min(records / max(slots // LEAVING, 1) * ranges, records)
        moved[rule] = Moved(rows, each * records + PAGE * parts)
    return moved


def sampled_spills(
    graph: DiskGraph, slots: int, drop: bool, sample: int, run: int = 1, most: float = np.inf
) -> dict[str, float]:
    """Accumulators spilled a node by each rule, with a tier as much smaller as the sample is.

    One that is complete is spilled all the same unless all of the `run` rows that are written together are. Of a rule
    that spills more than `most` a node, no more is known.
    """
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
    few = max(slots // every, 8)
    spilled = {}
    for rule in RULES:
        gone, _, _, whole = count_spills(arrive[order], nodes[order], n, few, rule, leaving=LEAVING, most=most * n)
        spilled[rule] = (gone + whole * (1 - (whole / n) ** (run - 1))) / n
    return spilled


def count_spills(
    arrive: Int64s, nodes: Int64s, n: int, slots: int, policy: str, seed: int = 0, chunk: int = 64, leaving: int = 8,
    most: float = np.inf,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Records spilled, returns, most slots in use, and nodes that left complete, of a tier; no row is moved.

    Message i is for `nodes[i]`, from the source `arrive[i]`, which never falls; `chunk` sources are one moment. One
    part in `leaving` of the tier is evicted together. Counting ends where more than `most` are spilled.
    """
    expected = np.bincount(nodes, minlength=n).astype(np.int32)
    tier = HotTier(slots, n, 0, expected, 1, SUM)
    known, whole = None, 0
    if policy == "belady":
        known = np.concatenate([[0], np.cumsum(expected, dtype=np.int64)]), arrive[np.lexsort((arrive, nodes))]
    # Messages are edges of sources without rows or own terms: each source comes with its own, which takes no slot.
    starts = np.flatnonzero(np.diff(arrive, prepend=-1))
    targets = nodes.astype(np.int32)
    for block in range(0, len(starts), chunk):
        a = int(starts[block])
        b = int(starts[block + chunk]) if block + chunk < len(starts) else len(nodes)
        if tier.evicted > most:
            break
        tier.begin_chunk()
        while tier.count(targets[a:b], a) == FULL:
            ready = tier.ready_rows()
            if len(ready):
                whole += len(tier.take(ready))
            else:
                tier.evict(tier.victims(max(slots // leaving, 1), policy, seed, known), lambda nodes, acc, slots: None)
    whole += len(tier.take(tier.ready_rows()))
    return tier.evicted + int((tier.owner >= 0).sum()), tier.returns, tier.live, whole
