"""How many parts, and what lies in memory: decided before anything is trained, from sizes alone."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.grinnder.blocks import Blocks, CutGraph, cut
from assay.data.grinnder.host import LAYERS, PARTS, ROWS
from assay.data.grinnder.layers import Int32s, Network

MARGIN = 12 << 20  # buffers of files, allocators, threads
MOST_PARTS = 1024


@dataclass(frozen=True)
class Plan:
    """Bytes: `fixed` stay all the time, `work` is one block's computation and the next one's inputs, `cache` the rest.

    `blocks` says whether the graph's edges stay in memory, `gradients` whether a layer's gradients do; else they are
    read again, or logged on disk.
    """

    fixed: int
    work: int
    cache: int
    gradients: bool
    mode: str
    blocks: bool = False

    @classmethod
    def of(cls, network: Network, graph: CutGraph, memory: int, regathers: bool = True) -> Plan:
        """Share out the memory; a ValueError tells how much it would take at least.

        Who `regathers` inputs on the way back wants them near; who has stored them rather has memory for gradients.
        """
        widths, n = network.widths, graph.n
        fixed = _fixed(network, n)
        work = max(_work(network, i, graph) for i in range(len(widths) - 1))
        rest = memory - fixed - work
        if rest < 0:
            raise ValueError(f"{memory:,} bytes are too few for {graph.parts} parts; {fixed + work:,} or more expected")
        blocks = graph.nbytes <= rest // 4
        if blocks:
            fixed, rest = fixed + graph.nbytes, rest - graph.nbytes
        layers = [4 * n * width for width in widths[:-1]]
        blamed = max(layers[1:], default=0)
        needed = max(_needed(graph, width) for width in widths[:-1])
        # Gradients are logged in long runs: better than to hold them and fetch every block's inputs page by page.
        gradients = rest >= blamed and (rest - blamed >= needed or rest < needed or not regathers)
        cache = rest - blamed if gradients else rest
        mode = PARTS
        if gradients and cache >= max(layers) + blamed:
            mode = LAYERS
        elif needed > cache:
            mode = ROWS
        return cls(fixed, work, cache, gradients, mode, blocks)


def _fixed(network: Network, n: int) -> int:
    """Bytes that stay: order, degree, label and split of every node; weights, their gradients and moments."""
    return 17 * n + 4 * 4 * sum(p.numel() for p in network.parameters()) + MARGIN


def _needed(graph: CutGraph, width: int) -> int:
    """The most bytes that a part's neighbours take as whole parts."""
    return max(4 * width * int(graph.sizes[graph.needs(p)].sum()) for p in range(graph.parts))


def _work(network: Network, i: int, graph: CutGraph) -> int:
    """Bytes while a block's layer i is differentiated, the next block's inputs come in and the last one's go out."""
    into, out, heads = network.widths[i], network.widths[i + 1], network.heads
    n, inputs, edges = (a.astype(np.float64) for a in (graph.sizes, graph.inputs, graph.edges))
    last = i == len(network.convs) - 1
    buffers = 2 * inputs * max(network.widths[:-1]) + 2 * (edges + 2 * inputs + 2 * n)
    floats = buffers + 2 * inputs * into + 6 * n * out  # gradients of inputs: this block's and the last one's
    if network.kind == "gat":
        floats += 5 * inputs * out * (heads if last else 1) + 2 * edges * heads + 4 * inputs * heads
    elif out < into:
        floats += 2 * inputs * out + 2 * n * out
    else:
        floats += 2 * n * into
    if network.kind == "sage":
        floats += 2 * inputs * into + 2 * n * out
    return int(4 * floats.max())


def planned(
    folder: Path, edges: Blocks, n: int, network: Network, memory: int, parts: int | None, part: Int32s | None = None
) -> tuple[CutGraph, Plan]:
    """Cut the graph into `parts`, or into the fewest with which a block's work takes half of the memory."""
    if parts is not None and not 1 <= parts <= max(n, 1):
        raise ValueError(f"{parts} parts of {n} nodes; 1 to {n} expected")
    if memory < (least := _fixed(network, n)):
        raise ValueError(f"{memory:,} bytes are too few for {n:,} nodes; more than {least:,} expected")
    trying, before = parts or _first_guess(network, n, memory), 0
    kept: tuple[CutGraph, Plan] | None = None
    while True:
        graph = cut(folder / f"cut-{trying}", edges, n, trying, network.own_loops, memory // 3, part)
        try:
            plan, why = Plan.of(network, graph, memory), None
        except ValueError as error:
            plan, why = None, error
        largest = int(graph.inputs.max(initial=0))
        hopeless = 2 * trying > min(MOST_PARTS, n) or (before and largest > 0.9 * before)
        if plan is not None:
            if kept is not None:
                _drop(kept[0])
            kept = graph, plan
        else:
            _drop(graph)
        if parts is not None or hopeless or (plan is not None and 2 * plan.work <= memory):
            if kept is None:
                assert why is not None
                raise why
            return kept
        trying, before = 2 * trying, largest


def _first_guess(network: Network, n: int, memory: int) -> int:
    """A power of two with which a block would fit if nodes heard from nobody outside."""
    needed, trying = 4 * 8 * n * max(network.widths), 1
    while trying < n and needed / trying > memory:
        trying *= 2
    return min(trying, max(n, 1))


def _drop(graph: CutGraph) -> None:
    graph.close()
    shutil.rmtree(graph.folder)
