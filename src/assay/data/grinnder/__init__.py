"""GriNNder: train on the whole graph part by part from disk, and gather inputs a second time instead of storing copies.

Full-batch training keeps every layer's rows and gradients, so a graph must fit into memory, or neighbours are sampled
and the gradients are no longer the whole graph's. Here the graph is cut into parts. Layer by layer, each part gathers
its own rows and its neighbours', computes, and writes its new rows once. For the gradients the inputs are gathered
again from those rows and the layer is computed again, where others store each gathered input: as many rows as all parts
gather together, several times the graph. Memory is a cache of parts under a plan; disk holds the rest. Losses are
summed and degrees counted over the whole graph, so that the cut changes nothing but rounding.

The paper's code was read; its partitioner was not at hand, and is reconstructed. The paper asks for memory for a whole
layer's gradients: with less, gradients are logged here and added up part by part. Its device is a GPU beside host
memory; here a process's memory is the device, and the study runs on real files past the page cache.

MLSys 2026, arXiv:2605.11517.

>>> import tempfile
>>> from pathlib import Path
>>> import numpy as np
>>> from assay.data.grinnder import Network, fit
>>> with tempfile.TemporaryDirectory() as folder:
...     np.save(Path(folder, "x.npy"), np.eye(4, dtype=np.float32))
...     ring = np.array([(0, 1), (1, 2), (2, 3), (3, 0)])
...     network = Network("gcn", (4, 8, 2))
...     labels = np.array([0, 1, 0, 1])
...     done = fit(network, lambda: iter([ring]), Path(folder, "x.npy"), labels, memory=1 << 26, epochs=60, lr=0.1)
>>> done.losses[-1] < done.losses[0], len(done.epochs)
(True, 60)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from assay.data.grinnder import trials
from assay.data.grinnder.crashing import Job
from assay.data.grinnder.trials import GRAPHS, MAPPED, MEMORY, OURS, SNAPSHOT
from assay.record import measures
from assay.record.measures import Measure
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind

if TYPE_CHECKING:
    import altair as alt

    from assay.data.grinnder.layers import Network
    from assay.data.grinnder.trainer import Epoch, Fitted, fit
    from assay.record.lab import Lab

__all__ = ["Epoch", "Fitted", "Network", "fit"]

evidence = Evidence.REAL
needs = ("torch", "data")
use_when = (
    "A graph with its features and layers is larger than memory, its full-batch gradients are wanted, and there is a "
    "fast local disk."
)
avoid_when = (
    "All fits into memory, sampled neighbours are good enough, or the graph has no communities: then every part needs "
    "nearly every row, however it is cut."
)
own_input = (
    "assay data gnn train examples/web.txt --features examples/web.npy --labels examples/topics.npy --out gnn.npz "
    "--epochs 5"
)
references = (
    "HongTu: Wang et al., SIGMOD 2024: partitions on one server, gathered inputs stored for the gradients.",
    "Chen et al., Training deep nets with sublinear memory cost, 2016: computing again instead of keeping.",
    "Spinner: Martella et al., ICDE 2017: balanced label propagation.",
)
offers = {"crashable": Job}
RIVALS = (SNAPSHOT, MAPPED)


def __getattr__(name: str) -> Any:
    """What loads torch is loaded when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from assay.data.grinnder import layers, trainer

    return getattr(layers if name == "Network" else trainer, name)


def study(lab: Lab) -> Tables:
    """A quarter of the activations in memory, beside rivals; gradients beside memory's; cuts; bytes really held."""
    some = lab.with_seeds(quick=2, full=5)
    size = lab.pick(
        quick={"nodes": 1 << 12, "width": 128, "degree": 8, "parts": 8, "epochs": 2, "shares": "0.25"},
        full={"nodes": 1 << 17, "width": 256, "degree": 16, "parts": 16, "epochs": 3, "shares": "0.1 0.25 0.5 1"},
    )
    kinds = lab.pick(quick=("gcn",), full=("gcn", "sage", "gat"))
    parts = lab.pick(quick=(4,), full=(1, 2, 4, 16))
    graphs = lab.pick(quick=GRAPHS[:1], full=GRAPHS)
    small = {"nodes": lab.pick(quick=512, full=1 << 14), "width": 32}
    cuts = {"nodes": lab.pick(quick=1 << 13, full=1 << 17), "degree": 16, "parts": 8}
    large = lab.pick(
        quick={"nodes": 3 << 12, "width": 128, "degree": 8}, full={"nodes": 1 << 19, "width": 256, "degree": 16}
    )
    lab.cases.update(("share", "method", "mode"))
    speed = [{"graph": graph, "kind": kind, **size} for graph in graphs for kind in kinds]
    exact = [{"kind": kind, "parts": p, **small} for kind in ("gcn", "sage", "gat") for p in parts]
    # One new process for both, first for what is timed: to load torch takes as long as all cases of the second.
    trained = some.run(
        trials.trained,
        [{"table": "speed", **case} for case in speed] + [{"table": "exact", **case} for case in exact],
        per="case", alone=True,
    )  # fmt: skip
    return {
        "speed": _part(trained, "speed").drop("shares"),
        "exact": _part(trained, "exact"),
        "cuts": some.run(trials.cuts, [{"graph": graph, **cuts} for graph in GRAPHS], per="how"),
        "memory": some.run(trials.held, [{"kind": kind, "share": 0.6, **large} for kind in kinds]),
    }  # fmt: skip


def _part(trained: pl.DataFrame, name: str) -> pl.DataFrame:
    """One table of two that were measured together, with the columns that it has values in."""
    mine = trained.filter(pl.col("table") == name).drop("table", "case")
    return mine.select(column.name for column in mine if column.null_count() < len(column))


def faster(graph: str, kind: str, share: float) -> Measure:
    """How many times as long the best of the rivals takes for an epoch."""
    where = {"experiment": "speed", "graph": graph, "kind": kind, "share": share}

    def measure(table: pl.DataFrame) -> Estimate:
        means = {rival: measures.mean("seconds", method=rival, **where)(table).value for rival in RIVALS}
        best = min(means, key=lambda rival: means[rival])
        return measures.ratio("seconds", of={"method": best}, to={"method": OURS}, **where)(table)

    return measure


def _over_cases(choose: object = max, share: float | None = None) -> Measure:
    """The best (or worst) of the cases that were run."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "speed"}).select("graph", "kind", "share").unique().sort(pl.all())
        cases = {
            f"{graph}, {kind}, {part:g} of the rows in memory": faster(graph, kind, part)
            for graph, kind, part in rows.iter_rows()
            if share is None or part == share
        }
        return measures.best(cases, choose)(table)  # type: ignore[arg-type]

    return measure


def _bytes(graph: str) -> Measure:
    """How many times our bytes a quarter of memory makes the snapshots move, read and written, in an epoch."""

    def measure(table: pl.DataFrame) -> Estimate:
        moved = table.with_columns(moved=pl.col("read_bytes") + pl.col("written_bytes"))
        return measures.ratio(
            "moved", of={"method": SNAPSHOT}, to={"method": OURS}, experiment="speed", graph=graph, kind="gcn",
            share=0.25,
        )(moved)  # fmt: skip

    return measure


def _farthest(column: str) -> Measure:
    """The largest value over every case, and how many there were."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = table.filter(pl.col(column).is_not_null() & (pl.col("method").is_null() | (pl.col("method") == OURS)))
        return measures.counted(float(rows[column].max()), len(rows))  # type: ignore[arg-type]

    return measure


def _as_good(graph: str) -> Measure:
    return measures.ratio(
        "amplification", of={"how": "switch-aware"}, to={"how": "metis"}, experiment="cuts", graph=graph
    )


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of an epoch by each method."""
    import altair as alt

    shown = table.filter((pl.col("experiment") == "speed") & (pl.col("kind") == "gcn") & (pl.col("share") == 0.25))
    means = shown.group_by("graph", "method", maintain_order=True).agg(pl.col("seconds").mean())
    chart: alt.Chart = (
        alt.Chart(means, title=alt.Title("An epoch with a quarter of the rows in memory", subtitle="Mean over seeds"))
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="seconds (log)"),
            y=alt.Y("method:N", title=None, sort=[OURS, SNAPSHOT, MAPPED, MEMORY]),
            color=alt.Color("graph:N"),
        )
    )
    return chart


claims = [
    Claim("speed", measures.clocked(_over_cases(), experiment="speed")),
    Claim("distributed", measures.not_here("it takes a cluster of GPU servers with a distributed trainer")),
    Claim("larger", measures.not_here("it takes a GPU that a graph does not fit; below is memory of the host's")),
    Claim(
        "larger-here",
        measures.share("trained", experiment="memory"),
        asks="A graph trains in 0.6 of the memory that its activations take, on processors.",
        kind=Kind.EVERY,
    ),
    Claim(
        "twice",
        measures.clocked(_over_cases(min, 0.25), experiment="speed"),
        asks="With a quarter of the rows in memory, an epoch is at least 2 times as fast as with the best rival.",
        kind=Kind.AT_LEAST, value=2.0, unit="ratio",
    ),
    Claim(
        "gradients",
        _farthest("difference"),
        asks="Away from kinks, gradients differ from those in memory by at most 0.0001 of their size, in each case.",
        kind=Kind.AT_MOST, value=1e-4, unit="share",
    ),
    Claim(
        "bytes",
        measures.best({graph: _bytes(graph) for graph in GRAPHS}, min),
        asks="Storing gathered inputs moves more bytes than gathering again.",
        kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "held",
        measures.mean("taken_ratio", experiment="memory"),
        asks="The memory that training takes is at most 1.1 times what it was given.",
        kind=Kind.AT_MOST, value=1.1, unit="ratio",
    ),
    Claim(
        "cut",
        measures.best({graph: _as_good(graph) for graph in GRAPHS}),
        asks="Cut by labels in a few bytes a node, all parts gather at most 1.3 times as many rows as by METIS.",
        kind=Kind.AT_MOST, value=1.3, unit="ratio",
    ),
]  # fmt: skip
