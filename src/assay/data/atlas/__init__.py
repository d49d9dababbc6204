"""ATLAS: read every node's row once, in the order of the file, and push it to its neighbours' running sums.

A layer of a graph neural network adds up the rows of each node's neighbours. Fetched node by node, a graph larger than
memory is read many times over, a page for each row. Here the stream goes the other way: rows and edges are read
sequentially, once a layer; each row is added to the accumulators of the nodes it has edges to, and a node whose last
message has come is finished and written. What memory cannot hold of the accumulators is the only traffic beside.

The paper's text was not at hand beyond its abstract: who leaves memory (the node with the fewest messages to come) is
the paper's; how is reconstructed. Evicted accumulators are partial sums, appended to a log by range of nodes and added
up at the end of the layer: a node may come back with an empty accumulator, and nothing is read to be changed. Sum,
mean, maximum and softmax-weighted sums (as pairs of maximum and weights) can all be taken in parts, so GCN, GraphSAGE,
GIN and GAT give the rows that they give in memory. With eviction, GAT reads its rows twice: what a target brings to the
attention must be known before its first message comes. Without, two passes over its edges weigh them, and its rows
are summed up like any others.

`auto`, ours, tries fewest-to-come and least-recently-touched on a sample of targets, because where neighbours lie
together a node that lacks few messages is about to be complete, and the worst one to evict. Where even the better one
would move more bytes than that, nobody is evicted: columns are taken in strips so narrow that all nodes fit.

The study runs on real files, past the page cache, in a tenth of the features' bytes, beside gathers with a cache of
the same memory. They read sorted, merged, sixteen at a time.

Naman and Simmhan, arXiv:2605.09402.

>>> import tempfile
>>> from pathlib import Path
>>> import numpy as np
>>> from assay.data.disk.arrays import write_rows
>>> from assay.data.disk.graphs import DiskGraph
>>> with tempfile.TemporaryDirectory() as folder:
...     graph = DiskGraph.build(Path(folder, "graph"), [np.array([(0, 1), (2, 1)])])
...     write_rows(Path(folder, "x.npy"), np.eye(3, dtype=np.float32))
...     model = layers({"convs.0.lin.weight": np.eye(3)})
...     _ = infer(model, graph, Path(folder, "x.npy"), Path(folder, "y.npy"), memory=1 << 20)
...     print(np.load(Path(folder, "y.npy")).round(2))
[[1.   0.   0.  ]
 [0.58 0.33 0.58]
 [0.   0.   1.  ]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from assay.data.atlas import trials
from assay.data.atlas.choosing import STRIPS
from assay.data.atlas.layers import Layer, layers, read_model
from assay.data.atlas.run import Inferred, infer
from assay.data.atlas.trials import AUTO, LRU, MEMORY, OURS, ROOMY, STATIC
from assay.record import measures
from assay.record.measures import Measure
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Inferred", "Layer", "infer", "layers", "read_model"]

evidence = Evidence.REAL
use_when = (
    "Every node of a graph needs its output, features and layers do not fit into memory, and there is a local disk: "
    "embeddings for a whole catalogue, nightly scores."
)
avoid_when = (
    "Only some nodes are asked for (then their neighbourhoods are less than the whole), all fits into memory, or the "
    "order of nodes follows communities and a plain cache of rows already hits."
)
own_input = (
    "assay data gnn infer examples/web.txt --features examples/web.npy --model examples/gcn.npz "
    "--out rows.npy --memory 600MB"
)
references = (
    "Ginex: Park, Min and Lee, VLDB 2022: a cache of rows chosen beforehand.",
    "DGL and PyTorch Geometric: feature stores with caches of rows; layer-wise inference.",
    "Zheng et al., TPDS 2017: semi-external sparse products, the dense matrix in strips of columns.",
    "SHARDS: Waldspurger et al., FAST 2015: a cache's behaviour from a sample of its keys.",
)

GRAPHS = ("rmat", "shuffled", "ordered")
GATHERS = (LRU, STATIC)


def study(lab: Lab) -> Tables:
    """A tenth of the memory beside gathers, room for all beside memory; eviction rules counted; bytes really held."""
    some = lab.with_seeds(quick=2, full=5)
    size = lab.pick(
        quick={"nodes": 20_480, "width": 256, "degree": 8},  # R-MAT links the first 2^14 of them
        full={"nodes": 1 << 18, "width": 256, "degree": 16},
    )
    timed = lab.pick(quick=GRAPHS[:1], full=GRAPHS)
    gathers = lab.pick(quick=(STATIC,), full=GATHERS)  # on R-MAT a cache of popular rows is the better one
    counted = {"nodes": lab.pick(quick=1 << 12, full=1 << 16), "degree": 16}
    shares = lab.pick(quick=(0.1,), full=(0.03, 0.1, 0.3))
    tried = [(kind, policy) for kind in ("gcn", "sage", "gin", "gat") for policy in ("min-pending", STRIPS)]
    large = lab.pick(
        quick={"nodes": 1 << 16, "width": 128, "degree": 2, "share": 0.2},  # 7 MB
        full={"nodes": 1 << 20, "width": 256, "degree": 16, "share": 0.1},
    )
    weighed = lab.pick(quick=(OURS, AUTO), full=(OURS, AUTO, LRU, STATIC))
    return {
        "speed": some.run(
            trials.speed,
            [{"graph": graph, "kind": "gcn", "share": 0.1, "gathers": " ".join(gathers), **size} for graph in timed],
            per="method", alone=True,
        ).drop("gathers"),
        "exact": lab.with_seeds(quick=1, full=5).run(
            trials.exact,
            [{"kind": kind, "policy": policy, "share": 0.7, "nodes": 4096, "width": 64} for kind, policy in tried],
        ),
        "policies": some.run(
            trials.policies, [{"graph": graph, "share": share, **counted} for graph in GRAPHS for share in shares],
            per="policy",
        ),
        "memory": some.run(trials.held, [{"methods": " ".join(weighed), **large}], per="method").drop("methods"),
    }  # fmt: skip


def faster(graph: str, method: str = OURS) -> Measure:
    """How many times as long the best gather takes on a kind of graph."""

    def measure(table: pl.DataFrame) -> Estimate:
        means = {
            gather: measures.mean("seconds", experiment="speed", graph=graph, method=gather)(table).value
            for gather in GATHERS
            if gather in table["method"]
        }
        best = min(means, key=lambda gather: means[gather])
        return measures.ratio("seconds", of={"method": best}, to={"method": method}, experiment="speed", graph=graph)(
            table
        )

    return measure


def spills(policy: str, graph: str, share: float = 0.1) -> Measure:
    """How many times as many records a rule spills as the least recently touched first."""
    return measures.ratio(
        "spilled_per_node", of={"policy": policy}, to={"policy": "lru"}, experiment="policies", graph=graph, share=share
    )


def _ordered(table: pl.DataFrame) -> Estimate:
    """Records spilled in order of community over those in a shuffled order, paired by seed."""
    return measures.ratio(
        "spilled_per_node", of={"graph": "ordered"}, to={"graph": "shuffled"}, experiment="policies", policy="lru",
        share=0.1,
    )(table)  # fmt: skip


def _by_clock(measure: Measure) -> Measure:
    return measures.clocked(measure, experiment="speed")


def _farthest(table: pl.DataFrame) -> Estimate:
    rows = table.filter(pl.col("difference").is_not_null())
    worst = float(rows["difference"].max())  # type: ignore[arg-type]
    return measures.counted(worst, len(rows))


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of every method in a tenth of the features' bytes."""
    import altair as alt

    shown = table.filter(pl.col("experiment") == "speed")
    means = shown.group_by("graph", "method", maintain_order=True).agg(pl.col("seconds").mean())
    chart: alt.Chart = (
        alt.Chart(means, title=alt.Title("One layer in a tenth of the features' bytes", subtitle="Mean over seeds"))
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="seconds (log)"),
            y=alt.Y("method:N", title=None, sort=[OURS, AUTO, LRU, STATIC, ROOMY, MEMORY]),
            color=alt.Color("graph:N"),
        )
    )
    return chart


claims = [
    Claim("best", _by_clock(measures.best({graph: faster(graph) for graph in GRAPHS}))),
    Claim("least", _by_clock(measures.best({graph: faster(graph) for graph in GRAPHS}, min))),
    Claim(
        "fits",
        _by_clock(
            measures.change("seconds", new={"method": ROOMY}, old={"method": MEMORY}, experiment="speed", graph="rmat")
        ),
    ),
    Claim(
        "auto",
        _by_clock(measures.best({graph: faster(graph, AUTO) for graph in GRAPHS}, min)),
        asks="With the way chosen by sampling, a GCN layer in a tenth of the features' bytes is at least 5 times as "
        "fast as by the best gather.",
        kind=Kind.AT_LEAST, value=5.0, unit="ratio",
    ),
    Claim(
        "exact",
        _farthest,
        asks="Rows differ from those in memory by at most 0.0001 of the largest, for each layer and memory tried.",
        kind=Kind.AT_MOST, value=1e-4, unit="share",
    ),
    Claim(
        "once",
        measures.best(
            {g: measures.mean("read_ratio", experiment="speed", graph=g, method=OURS) for g in GRAPHS}
        ),
        asks="A layer reads at most 1.1 times the bytes of its features.",
        kind=Kind.AT_MOST, value=1.1, unit="ratio",
    ),
    Claim(
        "held",
        measures.best(
            {name: measures.mean("taken_ratio", experiment="memory", method=name) for name in (OURS, AUTO)}
        ),
        asks="The process takes at most 1.1 times the memory that it was given.",
        kind=Kind.AT_MOST, value=1.1, unit="ratio",
    ),
    Claim(
        "evicts",
        spills("min-pending", "rmat"),
        asks="On R-MAT, evicting the fewest messages to come spills less than the least recently touched.",
        kind=Kind.RATIO, toward="down", evidence=Evidence.MODEL,  # counted: the same tier, without rows
    ),
    Claim(
        "evicts-local",
        spills("min-pending", "ordered"),
        asks="So it does where nodes are in order of community.",
        kind=Kind.RATIO, toward="down", evidence=Evidence.MODEL,  # counted: the same tier, without rows
    ),
    Claim(
        "order",
        _ordered,
        asks="In order of community, fewer records are spilled than in a shuffled order.",
        kind=Kind.RATIO, toward="down", evidence=Evidence.MODEL,  # counted: the same tier, without rows
    ),
]  # fmt: skip
