"""NAVIS: an index of vectors on disk whose insertions read edges, not vectors, and begin near where they must go.

To insert into a graph on disk is to search it first: a walk of some seventy nodes, each a page. In DiskANN's layout a
page holds a node's vector with its edges, so that at 768 dimensions every step reads four kilobytes for 130 bytes of
edges. Here edges lie apart, fifteen to thirty lists to a page, with those of neighbours; vectors are read for the few
nearest only, begun while the walk still runs out. A small graph in memory, which follows the data, says where to begin;
and memory keeps the lists around these beginnings rather than whole pages.

The paper's text was not at hand beyond its abstract: the three parts are the paper's, how they are laid out is
reconstructed. Ours: a search reads more vectors while they change its answer; every node has a parent that never drops
it, so that all of them can be reached; changed lists are laid into new pages at checkpoints, and a log of create-only
records is the truth until then, so that torn and late writes do no harm.

The study runs on real files past the page cache, with a cache of a twentieth of all edges. Its rival, `packed`, is the
same code with DiskANN's nodes, entry points that stay and a cache of pages: what OdinANN does. `layout`, `entrance` and
`cache` have one of the three parts each. usearch, in memory and not durable, is what could be reached at best.

arXiv:2605.11523.

>>> import tempfile
>>> import numpy as np
>>> rows = np.random.default_rng(1).normal(size=(120, 32)).astype(np.float32)
>>> with tempfile.TemporaryDirectory() as folder, VectorIndex.build(folder, rows[:100]) as index:
...     _ = index.insert(rows[100:])
...     index.search(rows[110], k=1)[0].tolist()
[[110]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from assay.data.navis import trials
from assay.data.navis.crashing import Growing
from assay.data.navis.entrance import SHARE, TOP
from assay.data.navis.trials import DESIGNS, OURS, PACKED, RAM
from assay.data.navis.vector_index import VectorIndex
from assay.record import measures
from assay.record.measures import Measure
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["VectorIndex"]

evidence = Evidence.REAL
offers = {"crashable": Growing}
use_when = (
    "Vectors of some hundred dimensions and more come all day, must be found at once, do not fit into memory, and lie "
    "on a local SSD: documents for retrieval, images, users."
)
avoid_when = (
    "All of it fits into memory (then HNSW there is many times as fast), vectors are short (edges are most of a node "
    "anyway), or nothing is ever added."
)
own_input = "assay data vec build vectors.index examples/vectors.fvecs"
references = (
    "DiskANN: Subramanya et al., NeurIPS 2019: Vamana, and a node's vector and edges in one page.",
    "FreshDiskANN: Singh et al., arXiv:2105.09613: insertions into it, merged from memory.",
    "OdinANN (PipeANN): insertions in place, on the SSD.",
)

WIDTHS = (768, 96)
LARGE = TOP * round(1 / SHARE)  # vectors whose entrance has levels
MOVED = 10  # nodes that must have joined the entrance before its walks say anything


def study(lab: Lab) -> pl.DataFrame:
    """A drifting stream inserted, then searched; searched while it is inserted; each at two widths."""
    some = lab.with_seeds(quick=2, full=5)
    size = lab.pick(
        quick={"base": 1200, "inserts": 160, "queries": 32}, full={"base": 50_000, "inserts": 4000, "queries": 400}
    )
    cases = [{"width": width, "every": width == WIDTHS[0], **size} for width in WIDTHS]
    return some.run(trials.trial, cases, per="design", alone=True)


def against(column: str, width: int) -> Measure:
    """How many times as much as `packed`."""
    return measures.ratio(column, of={"design": OURS}, to={"design": PACKED}, width=width)


def _widths(column: str) -> Measure:
    return measures.best({f"width {width}": against(column, width) for width in WIDTHS})


def _least(column: str) -> Measure:
    return measures.best({f"width {width}": measures.mean(column, design=OURS, width=width) for width in WIDTHS}, min)


def _walked(table: pl.DataFrame) -> Estimate:
    """Hops with an entrance that moves over those with one that stays, if it is more than a list of all near nodes."""
    if (base := int(table["base"].max())) < LARGE:  # type: ignore[arg-type]
        raise NotMeasured(f"an index of {base:,} vectors looks at its whole entrance, and walks end at once; --full")
    moved = measures.rows(table, {"design": OURS, "width": WIDTHS[0]})["joined"]
    if (least := int(moved.min())) < MOVED:  # type: ignore[arg-type]
        raise NotMeasured(f"the entrance took in {least} nodes in so short a stream; --full has a longer one")
    return measures.ratio("hops", of={"design": OURS}, to={"design": "layout"}, width=WIDTHS[0])(table)


def plot(table: pl.DataFrame) -> alt.Chart:
    """Insertions a second and kilobytes read for each, by design."""
    import altair as alt

    shown = table.filter(pl.col("width") == WIDTHS[0])
    means = shown.group_by("design", maintain_order=True).agg(
        pl.col("inserts_per_s").mean(), pl.col("kib_read_per_insert").mean(), pl.col("recall").mean()
    )
    chart: alt.Chart = (
        alt.Chart(
            means.filter(pl.col("design") != RAM),
            title=alt.Title(
                f"Insertions into {WIDTHS[0]} dimensions", subtitle="Mean over seeds; one part each, or all"
            ),
        )
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=alt.X("kib_read_per_insert:Q", title="KiB read per insertion"),
            y=alt.Y("inserts_per_s:Q", title="insertions per second"),
            color=alt.Color("design:N", sort=list(DESIGNS)),
        )
    )
    return chart


claims = [
    Claim("insertion", measures.clocked(_widths("inserts_per_s"))),
    Claim("search", measures.clocked(_widths("searches_per_s_meanwhile"))),
    Claim(
        "latency",
        measures.clocked(
            measures.best(
                {
                    f"width {width}": measures.change(
                        "search_ms_meanwhile", new={"design": OURS}, old={"design": PACKED}, width=width
                    )
                    for width in WIDTHS
                },
                min,
            )
        ),
    ),
    Claim(
        "bytes",
        against("kib_read_per_insert", 768),
        asks="At 768 dimensions an insertion reads at most 0.5 of the bytes that it reads from packed nodes.",
        kind=Kind.AT_MOST, value=0.5, unit="ratio",
    ),
    Claim(
        "bytes-short",
        against("kib_read_per_insert", 96),
        asks="At 96 dimensions, too, it reads fewer bytes.",
        kind=Kind.RATIO, toward="down",
    ),
    Claim(
        "recall",
        _least("recall"),
        asks="Of the ten nearest, at least 0.95 are found after the insertions.",
        kind=Kind.AT_LEAST, value=0.95, unit="share",
    ),
    Claim(
        "recall-meanwhile",
        _least("recall_meanwhile"),
        asks="So are at least 0.95 while others are inserted.",
        kind=Kind.AT_LEAST, value=0.95, unit="share",
    ),
    Claim(
        "drift",
        _walked,
        asks="With an entrance that follows the data, insertions walk fewer hops than with one that stays.",
        kind=Kind.RATIO, toward="down",
    ),
]  # fmt: skip
