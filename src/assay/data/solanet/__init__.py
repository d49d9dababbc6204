"""SOLANET: every process builds its own part's neighbour graph; then points search the others', pulled without asking.

A graph of near neighbours over points that no one machine holds. Each rank builds the graph of its part alone, by an
NN-descent whose threads never lock. Then parts are merged along a tree: in each round a point searches one finished
graph of the group opposite, and follows that group's links, merged in the rounds before, into its other parts. Rows and
lists are read from their owners' memory while those go on computing.

The paper's text was at hand as a digest: the two phases, lock-free NN-descent, one-sided pulls and the tree are the
paper's; how a round goes is reconstructed. Were every part of the group opposite searched in turn, as between all
pairs of parts, a rank's work would not shrink with more ranks, and the paper's speed-ups could not be. So one part is
searched and the rest reached through the links. `refine="all-pairs"` is the rival.

Ranks here are processes of one machine that share no memory: windows are read over sockets. A build that was killed
goes on with the parts' graphs that it had finished.

arXiv:2605.27691.

>>> import numpy as np
>>> from assay.data import knn_graph
>>> points = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
>>> graph = knn_graph(points, k=10, ranks=2)
>>> graph.ids.shape, graph.edge_index().shape  # neighbours of each point; edges for PyTorch Geometric
((300, 10), (2, 3000))
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from assay.data.solanet import trials
from assay.data.solanet.crashing import Job
from assay.data.solanet.graph import Knn, knn_graph
from assay.data.solanet.rank import ALL_PAIRS, TREE, Effort
from assay.data.solanet.trials import IN_PLACE, LOCK_FREE
from assay.record import measures
from assay.record.intervals import bootstrap, ratio
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Effort", "Knn", "knn_graph"]

evidence = Evidence.REAL
needs = ("data",)
use_when = (
    "Every point of a large set needs its neighbours (for a graph network, clustering, near-duplicates), one process "
    "cannot hold the points, and 99 % of the neighbours are enough."
)
avoid_when = (
    "Points come and go (an index takes inserts), there are so few that all distances are computed in seconds, or the "
    "data has so many dimensions of its own that no graph finds its neighbours."
)
own_input = "assay data knn examples/points.fbin -k 10 --ranks 2 --out knn"
references = (
    "NN-descent: Dong, Moses and Li, WWW 2011.",
    "DNND, the authors' earlier system for processors, in LLNL's saltatlas.",
    "PyNNDescent (McInnes), the usual tool of one process.",
)
trust = (
    "Builds on hundreds of APUs are counted, not run: distances and bytes a point of real builds on sixteen parts, "
    "extended by fitted logarithms, at the speeds of data sheets. Nobody has measured how far that is off."
)
offers = {"crashable": Job}
PARTS = (1, 2, 4)


def study(lab: Lab) -> Tables:
    """Real ranks: what they find; two ways to refine, counted; one part's graph timed; memory; the paper's machines."""
    some = lab.with_seeds(quick=2, full=5)
    size = lab.pick(quick={"n": 2400, "width": 48, "k": 32}, full={"n": 100_000, "width": 96, "k": 32})
    refined = lab.pick(quick={"n": 2048, "width": 32, "k": 32}, full={"n": 32768, "width": 96, "k": 32})
    one = lab.pick(quick={"n": 2000, "width": 48, "k": 32, "rounds": 1}, full=size | {"rounds": 3})
    small = lab.pick(quick={"size": 256, "width": 32, "k": 16}, full={"size": 4096, "width": 96, "k": 32})
    return {  # ranks are processes themselves, and a worker may not have any
        "quality": replace(some, workers=0).run(trials.quality, [size | {"parts": parts} for parts in PARTS]),
        "refine": some.run(trials.refinements, [refined | {"parts": 8}], per="setting"),
        "scaling": some.run(trials.scaling, [small | {"parts": 16}], per="build"),
        "local": some.run(trials.local, [one], per="method", alone=True),
        "memory": some.run(trials.memory, [lab.pick(quick={"n": 6000, "width": 48, "k": 32}, full=size)], alone=True),
    }


def _recall(parts: int) -> measures.Measure:
    return measures.mean("recall", experiment="quality", parts=parts)


def _loss(table: pl.DataFrame) -> Estimate:
    """Recall of one part minus that of four, paired by seed."""
    rows = table.filter(pl.col("experiment") == "quality").sort("seed")
    one, four = (rows.filter(pl.col("parts") == parts)["recall"].to_list() for parts in (1, 4))
    return bootstrap([a - b for a, b in zip(one, four, strict=True)])


def _fewer(table: pl.DataFrame) -> Estimate:
    """Distances of the tree over those of all pairs where both find the same: 99 %, or the least that both find."""
    rows = table.filter(pl.col("experiment") == "refine").sort("recall")
    found: dict[str, list[float]] = {TREE: [], ALL_PAIRS: []}
    for seed in rows["seed"].unique(maintain_order=True):
        ways = {way: rows.filter((pl.col("seed") == seed) & (pl.col("refine") == way)) for way in found}
        same = max([ENOUGH, *(float(way["recall"][0]) for way in ways.values())])
        if any(way["recall"][-1] < same for way in ways.values()):
            raise NotMeasured(f"a way to refine did not find {same:.1%} at any effort")
        for name, way in ways.items():
            found[name].append(float(np.interp(same, way["recall"].to_numpy(), way["distances"].to_numpy())))
    return ratio(found[TREE], found[ALL_PAIRS])


def _faster(points: str, few: int, many: int, refine: str = TREE) -> measures.Measure:
    return measures.ratio(
        "seconds", of={"apus": few}, to={"apus": many}, experiment="scaling", points=points, refine=refine
    )


def _moved(table: pl.DataFrame) -> Estimate:
    """Bytes that four ranks pull over those of NN-descent over all points, which sends a row for each distance between
    parts (and numbers and the answer): counted, every message at its least.
    """
    rows = table.filter(pl.col("experiment") == "quality").sort("seed")
    one, four = (rows.filter(pl.col("parts") == parts) for parts in (1, 4))
    sent = one["local_distances"] * 0.75 * (4 * one["width"] + 16)
    return ratio(four["pulled_bytes"].to_list(), sent.to_list())


def _kept(table: pl.DataFrame) -> Estimate:
    rows = table.filter(pl.col("experiment") == "quality")
    broken, lists = int(rows["wrong"].sum()), int(rows["n"].sum())
    return measures.counted(1 - broken / lists, lists)


ENOUGH = 0.99
claims = [
    Claim("billion", _faster("1e9", 32, 512), evidence=Evidence.MODEL),
    Claim("two-billion", _faster("2e9", 64, 512), evidence=Evidence.MODEL),
    Claim(
        "billion-pairs", _faster("1e9", 32, 512, ALL_PAIRS), kind=Kind.RATIO, toward="up",
        evidence=Evidence.MODEL,
        asks="By all pairs of parts, too, a build of 1 billion points is faster on 512 APUs than on 32.",
    ),
    Claim("recall", measures.best({f"{parts} parts": _recall(parts) for parts in PARTS}, min, every=True)),
    Claim("single", measures.not_here("needs a GPU, and a leading library for it (cuVS) beside")),
    Claim(
        "parts", _loss, asks="Four parts find at most 0.005 of the neighbours less than one.", kind=Kind.AT_MOST,
        value=0.005, unit="share",
    ),
    Claim(
        "tree", _fewer,
        asks="Of eight parts, the tree takes fewer distances than all pairs where both find the same, 99 % or more.",
        kind=Kind.RATIO, toward="down",
    ),
    Claim("lists", _kept, asks="No list holds its own point or one twice, is unsorted, or has a wrong distance.",
          kind=Kind.EVERY),
    Claim(
        "bytes", _moved, asks="Four ranks pull fewer bytes than NN-descent that sends a message for each distance.",
        kind=Kind.RATIO, toward="down", evidence=Evidence.MODEL,
    ),
    Claim(
        "lock-free", measures.ratio("seconds", of={"method": IN_PLACE}, to={"method": LOCK_FREE}, experiment="local"),
        asks="On one core, buffers merged in turn are faster than lists changed at every offer.",
        kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "memory", measures.mean("taken_ratio", experiment="memory"),
        asks="A part's graph takes at most 1.0 times three lists of eight bytes an entry beside its points.",
        kind=Kind.AT_MOST, value=1.0, unit="ratio",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Recall against distances, for both ways to refine."""
    import altair as alt

    shown = table.filter(pl.col("experiment") == "refine")
    means = shown.group_by("refine", "narrow", maintain_order=True).agg(
        pl.col("recall").mean(), pl.col("distances").mean()
    )
    chart: alt.Chart = (
        alt.Chart(means, title=alt.Title("Eight parts refined", subtitle="Mean over seeds, by effort"))
        .mark_line(point=True)
        .encode(
            x=alt.X("distances:Q", title="distances a point"),
            y=alt.Y("recall:Q", scale=alt.Scale(zero=False)),
            color=alt.Color("refine:N", title=None),
        )
    )
    return chart
