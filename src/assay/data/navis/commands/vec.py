"""`assay data vec`: an index of vectors on disk: build it, add to it, search it."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from assay.data.navis.vector_index import VectorIndex
from assay.data.vectors.files import read_vectors
from assay.record.errors import BadInput
from assay.sim.memory import parse_size

SHOWN = 20  # queries that a table lists


@click.group(epilog="Example:  assay data vec build vectors.index examples/vectors.fvecs")
def command() -> None:
    """Nearest neighbours on disk, with point insertions.

    Vectors come as fvecs, bvecs, fbin, u8bin, i8bin, npy, ann-benchmarks' HDF5, or white space between numbers.
    """


def _progress() -> Any:
    return click.get_current_context().obj or (lambda done, total: None)


def _memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise BadInput(f"--memory: {error}") from error


def _read(path: Path) -> Any:
    try:
        return read_vectors(path)
    except ValueError as error:
        raise BadInput(str(error)) from error


memory_option = click.option(
    "--memory", default="256MB", show_default=True, help="For edge lists; codes take some 80 bytes a vector beside."
)


@command.command(epilog="Example:  assay data vec build vectors.index examples/vectors.fvecs")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("vectors", type=click.Path(path_type=Path))
@click.option("--degree", type=click.IntRange(4, 512), default=32, show_default=True, help="Edges of a node, at most.")
@click.option("--breadth", type=click.IntRange(8, 1024), default=96, show_default=True, help="Of insertions' walks.")
@memory_option
def build(index: Path, vectors: Path, degree: int, breadth: int, memory: str) -> dict[str, Any]:
    """Build INDEX, a folder, from VECTORS; ids are the rows' numbers. The graph is made in memory."""
    rows = _read(vectors)
    began = perf_counter()
    with VectorIndex.build(
        index, rows, memory=_memory(memory), progress=_progress(), degree=degree, breadth=breadth
    ) as made:
        facts = {"vectors": len(made), "width": made.width, "degree": degree}
    took = perf_counter() - began
    return {
        "index": facts | {"bytes": _size(index), "seconds": took},
        "why": f"{index} holds {len(rows):,} vectors; assay data vec insert {index} FILE adds to it.",
    }


@command.command(epilog="Example:  assay data vec insert vectors.index examples/vectors.fvecs")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("vectors", type=click.Path(path_type=Path))
@memory_option
def insert(index: Path, vectors: Path, memory: str) -> dict[str, Any]:
    """Add VECTORS to INDEX under the next ids. A run that was stopped goes on where it stopped."""
    _read(vectors)
    began = perf_counter()
    with VectorIndex(index, write=True, memory=_memory(memory)) as opened:
        there, added = opened.insert_file(vectors, _progress())
        took = perf_counter() - began
        did, total = opened.inside.did, len(opened)
    per = max(did.inserts, 1)
    facts = {
        "added": added, "there_before": there, "vectors": total, "inserts_per_s": round(added / took, 1),
        "reads_per_insert": round((did.insert_reads + did.flush_reads) / per, 1),
        "cached_share": round(did.cached / max(did.expanded, 1), 3), "entrance_joined": did.joined,
    }  # fmt: skip
    why = f"All {added:,} are durable." if added else f"All {there:,} rows of {vectors} are in the index already."
    return {"index": facts, "why": why}


@command.command(epilog="Example:  assay data vec search vectors.index examples/queries.fvecs -k 5")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("queries", type=click.Path(path_type=Path))
@click.option("-k", type=click.IntRange(1, 1000), default=10, show_default=True, help="Neighbours of each query.")
@click.option("--breadth", type=click.IntRange(1, 10_000), help="Of the walk: more finds more, and takes longer.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Ids of all queries, as .npy.")
@memory_option
def search(index: Path, queries: Path, k: int, breadth: int | None, out: Path | None, memory: str) -> dict[str, Any]:
    """The nearest vectors of INDEX to each of QUERIES, with their squared distances."""
    rows = np.asarray(_read(queries), np.float32)
    with VectorIndex(index, memory=_memory(memory)) as opened:
        began = perf_counter()
        ids, far = opened.search(rows, k, breadth)
        took = perf_counter() - began
        reads = opened.inside.did.search_reads / max(len(rows), 1)
    if out is not None:
        with out.open("wb") as file:
            np.save(file, ids)
    table = [
        {"query": i, "nearest": " ".join(map(str, ids[i].tolist())), "squared": float(far[i, 0])}
        for i in range(min(len(rows), SHOWN))
    ]
    facts = {"queries": len(rows), "k": k, "searches_per_s": round(len(rows) / took, 1), "reads": round(reads, 1)}
    written = f" All ids are in {out}." if out else ""
    more = f" The first {SHOWN} are shown." if len(rows) > SHOWN else ""
    return {"search": facts, "table": table, "why": f"Distances are exact, of what was found.{more}{written}"}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
