"""`assay data knn`: the graph of nearest neighbours of your own vectors, built by several processes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.spatial.distance import cdist

from assay.data.solanet.graph import Knn, knn_graph
from assay.data.solanet.rank import ALL_PAIRS, METRICS, TREE, Effort, load
from assay.data.solanet.trials import spent
from assay.data.vectors.files import read_vectors
from assay.record.errors import BadInput, StudyFailed
from assay.record.store import write_whole
from assay.sim.random import stream
from assay.sim.ranks import RankFailed

ASKED = 200  # points whose neighbours are computed exactly, to tell how many were found
BLOCK = 1 << 14


@click.command(epilog="Example:  assay data knn examples/points.fbin -k 10 --ranks 2 --out knn")
@click.argument("vectors", type=click.Path(path_type=Path))
@click.option("-k", type=click.IntRange(1, 1024), default=32, show_default=True, help="Neighbours a point.")
@click.option("--ranks", type=click.IntRange(1, 256), default=2, show_default=True, help="Processes, a part each.")
@click.option("--out", required=True, help="A folder or the address of a store, for ids.npy and dist.npy.")
@click.option("--metric", type=click.Choice(METRICS), default="euclidean", show_default=True)
@click.option("--refine", type=click.Choice([TREE, ALL_PAIRS]), default=TREE, show_default=True, help="How to merge.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="Of each process.")
@click.option("--edges", is_flag=True, help="Write edge_index.npy, too, as PyTorch Geometric reads it.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(
    vectors: Path, k: int, ranks: int, out: str, metric: str, refine: str, threads: int, edges: bool, seed: int
) -> dict[str, Any]:
    """Find the k nearest neighbours of every row of VECTORS (fvecs, fbin, npy, hdf5, …), nearly all of them.

    One --out is one graph. A build that was killed goes on with the parts that were finished; asked for again, a
    finished graph is opened and checked. The same seed gives the same graph, with one thread a process.
    """
    progress = click.get_current_context().obj or (lambda done, total: None)
    try:
        graph = knn_graph(
            vectors, k, ranks=ranks, out=out, metric=metric, refine=refine, seed=seed, effort=Effort(threads=threads),
            progress=progress,
        )  # fmt: skip
    except ValueError as error:
        raise BadInput(str(error)) from error
    except RankFailed as error:
        raise StudyFailed(f"{error}; run it again: it goes on with the parts that are finished") from error
    if edges:
        _write_edges(graph, out)
    sure = _recall(graph, vectors, metric, seed)
    facts = {"points": len(graph.ids), "k": k, "ranks": ranks, "reused_parts": _reused(graph)}
    table = [
        {"part": i, **{name: one[name] for name in SHOWN if name in one}} for i, one in enumerate(graph.facts["parts"])
    ]
    return {
        "graph": facts, "a_point": {name: round(value, 1) for name, value in spent(graph).items() if "_" in name},
        "found": {"recall": sure, "asked": min(ASKED, len(graph.ids))}, "table": table,
        "why": f"{out} holds ids.npy and dist.npy: {sure:.1%} of the neighbours of {min(ASKED, len(graph.ids))} points "
        "drawn at random are right.",
    }  # fmt: skip


SHOWN = ("local", "refine", "waited", "local_distances", "search_distances", "follow_distances", "pulled_bytes")


def _reused(graph: Knn) -> int:
    return sum(one["reused"] for one in graph.facts["parts"])


def _recall(graph: Knn, vectors: Path, metric: str, seed: int) -> float:
    """The share of the neighbours found that are right, for some points: nearer than, or as near as, the k-th."""
    rows, k = read_vectors(vectors), graph.ids.shape[1]
    some = np.sort(stream(seed, "knn recall", len(rows)).permutation(len(rows))[:ASKED])
    asked = load(vectors, some, metric)
    nearest = np.full((len(some), 0), np.inf, np.float32)
    for start in range(0, len(rows), BLOCK):
        some_rows = load(vectors, np.arange(start, min(start + BLOCK, len(rows))), metric)
        far = cdist(asked, some_rows).astype(np.float32)
        nearest = np.sort(np.concatenate([nearest, far], axis=1), axis=1)[:, : k + 1]  # itself and k more
    found = np.linalg.norm(
        load(vectors, graph.ids[some].ravel(), metric).reshape(len(some), k, -1) - asked[:, None], axis=2
    )
    return float((found <= nearest[:, k:] * np.float32(1 + 1e-5) + np.float32(1e-9)).mean())


def _write_edges(graph: Knn, out: str) -> None:
    if "://" in out and not out.startswith("file://"):
        raise BadInput("--edges writes a file; take edge_index() in Python where --out is a store")
    held = io.BytesIO()
    np.save(held, graph.edge_index())
    write_whole(Path(out.removeprefix("file://")) / "edge_index.npy", held.getvalue())
