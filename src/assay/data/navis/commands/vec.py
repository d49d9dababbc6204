"""`assay data vec`: an index of vectors on disk: build it, add to it, replace, delete, search it."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from assay.data.navis.metrics import METRICS
from assay.data.navis.vector_index import VectorIndex
from assay.data.vectors.files import read_vectors
from assay.record import reading
from assay.record.errors import BadInput, unreadable
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
    "--memory", default="256MB", show_default=True, help="For edge lists; codes take some 120 bytes a vector beside."
)


tags_option = click.option(
    "--tags", type=click.Path(path_type=Path, dir_okay=False), help="A text file: each vector's tag, a line each."
)
ids_option = click.option(
    "--ids", type=click.Path(path_type=Path, dir_okay=False), help="Their ids: .npy, or a text file, a line each."
)


def _lines(path: Path | None, what: str) -> list[str]:
    """Lines of a text file, without the end of the last."""
    if path is None:
        return []
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(
            path, error if isinstance(error, OSError) else None, f"{what}, a line each, expected"
        ) from error


def _ids(path: Path) -> Any:
    """Whole numbers."""
    if path.suffix == ".npy":
        try:
            found = np.load(path, allow_pickle=False).reshape(-1)
        except (OSError, ValueError, EOFError) as error:
            raise BadInput(f"cannot read {path}: {reading.no_array(error)}; whole numbers as .npy expected") from error
    else:
        lines = _lines(path, "whole numbers")
        if bad := [(i, line) for i, line in enumerate(lines, 1) if not line.strip().isdecimal()]:
            raise BadInput(f"{path}, line {bad[0][0]}: '{bad[0][1][:40]}' is no id; a whole number a line expected")
        found = np.array([int(line) for line in lines], dtype=object)
        if any(one >= 1 << 63 for one in found):
            raise BadInput(f"{path}: an id is {max(found)}; numbers below 2**63 expected")
    return found.astype(np.int64) if found.dtype.kind in "iuO" else found


@command.command(epilog="Example:  assay data vec build vectors.index examples/vectors.fvecs")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("vectors", type=click.Path(path_type=Path))
@click.option("--degree", type=click.IntRange(4, 512), default=32, show_default=True, help="Edges of a node, at most.")
@click.option("--breadth", type=click.IntRange(8, 1024), default=96, show_default=True, help="Of insertions' walks.")
@click.option(
    "--metric", type=click.Choice(METRICS), default="l2", show_default=True, help="What is near; ip: products."
)
@click.option("--longest", type=float, help="Under ip: how long a vector may be that comes later.")
@tags_option
@memory_option
def build(
    index: Path, vectors: Path, degree: int, breadth: int, metric: str, longest: float | None, tags: Path | None,
    memory: str,
) -> dict[str, Any]:  # fmt: skip
    """Build INDEX, a folder, from VECTORS; ids are the rows' numbers. The graph is made in memory."""
    rows = _read(vectors)
    began = perf_counter()
    with VectorIndex.build(
        index, rows, memory=_memory(memory), progress=_progress(), source=vectors, degree=degree, breadth=breadth,
        metric=metric, longest=longest, tags=_lines(tags, "tags"),
    ) as made:  # fmt: skip
        facts = {"vectors": len(made), "width": made.width, "degree": degree, "metric": metric}
    took = perf_counter() - began
    return {
        "index": facts | {"bytes": _size(index), "seconds": took},
        "why": f"{index} holds {len(rows):,} vectors; assay data vec insert {index} FILE adds to it.",
    }


@command.command(epilog="Example:  assay data vec insert vectors.index examples/vectors.fvecs")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("vectors", type=click.Path(path_type=Path))
@ids_option
@click.option("--upsert", is_flag=True, help="With --ids: replace those that are there, instead of leaving them.")
@tags_option
@memory_option
def insert(
    index: Path, vectors: Path, ids: Path | None, upsert: bool, tags: Path | None, memory: str
) -> dict[str, Any]:
    """Add VECTORS to INDEX under the next ids, or under --ids. A run that was stopped goes on where it stopped."""
    rows = _read(vectors)
    if upsert and ids is None:
        raise BadInput("--upsert replaces vectors by their ids; --ids FILE expected")
    numbers = None if ids is None else _ids(ids)
    if numbers is not None and len(numbers) != len(rows):
        raise BadInput(f"{vectors} has {len(rows)} vectors and {ids} {len(numbers)} ids; one for each expected")
    began = perf_counter()
    with VectorIndex(index, write=True, memory=_memory(memory)) as opened:
        if numbers is None:
            there, added = opened.insert_file(vectors, _progress(), _lines(tags, "tags"))
        else:
            put = opened.upsert if upsert else opened.insert
            put(np.asarray(rows, np.float32), numbers, _lines(tags, "tags"))
            added = opened.inside.did.inserts
            there = len(rows) - added
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


@command.command(epilog="Example:  assay data vec delete vectors.index 5 7")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("id", nargs=-1, type=click.IntRange(0, (1 << 63) - 1))
@ids_option
def delete(index: Path, id: tuple[int, ...], ids: Path | None) -> dict[str, Any]:
    """Forget vectors of INDEX by their IDs; they are no longer found when it returns."""
    numbers = np.concatenate([np.array(id, np.int64), *([_ids(ids)] if ids else [])])
    if not len(numbers):
        raise BadInput("no ids; assay data vec delete INDEX 5 7, or --ids FILE")
    with VectorIndex(index, write=True) as opened:
        gone = opened.delete(numbers)
        left = len(opened)
    absent = f" {len(np.unique(numbers)) - gone:,} ids were not there." if gone < len(np.unique(numbers)) else ""
    return {"index": {"deleted": gone, "vectors": left}, "why": f"{gone:,} vectors are gone.{absent}"}


@command.command(epilog="Example:  assay data vec compact vectors.index")
@click.argument("index", type=click.Path(path_type=Path))
@memory_option
def compact(index: Path, memory: str) -> dict[str, Any]:
    """Build INDEX anew without what was deleted or replaced. By itself it does so where three nodes of ten are dead."""
    before = _size(index)
    with VectorIndex(index, write=True, memory=_memory(memory)) as opened:
        gone, left = opened.compact(), len(opened)
    facts = {"vectors": left, "nodes_gone": gone, "bytes_before": before, "bytes": _size(index)}
    return {"index": facts, "why": f"{gone:,} dead nodes are gone." if gone else "No node was dead."}


@command.command(epilog="Example:  assay data vec search vectors.index examples/queries.fvecs -k 5")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("queries", type=click.Path(path_type=Path))
@click.option("-k", type=click.IntRange(1, 1000), default=10, show_default=True, help="Neighbours of each query.")
@click.option("--breadth", type=click.IntRange(1, 10_000), help="Of the walk: more finds more, and takes longer.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Ids of all queries, as .npy.")
@click.option("--tag", help="Only vectors with this tag.")
@click.option("--check", type=click.IntRange(1), help="Of so many of the queries, tell the recall, by looking at all.")
@memory_option
def search(
    index: Path, queries: Path, k: int, breadth: int | None, out: Path | None, tag: str | None, check: int | None,
    memory: str,
) -> dict[str, Any]:  # fmt: skip
    """The nearest vectors of INDEX to each of QUERIES, with their squared distances, cosines or inner products."""
    rows = np.asarray(_read(queries), np.float32)
    with VectorIndex(index, memory=_memory(memory)) as opened:
        began = perf_counter()
        ids, far = opened.search(rows, k, breadth, tag)
        took = perf_counter() - began
        reads = opened.inside.did.search_reads / max(len(rows), 1)
        far_is = {"l2": "squared", "cosine": "cosine", "ip": "product"}[opened.metric]
        checked = {}
        if check is not None:
            some = rows[np.linspace(0, len(rows) - 1, min(check, len(rows))).astype(int)]
            share, error = opened.check(some, k, breadth, tag)
            checked = {"recall": round(share, 4), "recall_error": round(error, 4), "checked": len(some)}
    if out is not None:
        with out.open("wb") as file:
            np.save(file, ids)
    table = [
        {"query": i, "nearest": " ".join(map(str, ids[i].tolist())), far_is: float(far[i, 0])}
        for i in range(min(len(rows), SHOWN))
    ]
    facts = {
        "queries": len(rows),
        "k": k,
        "searches_per_s": round(len(rows) / took, 1),
        "reads": round(reads, 1),
    } | checked
    written = f" All ids are in {out}." if out else ""
    more = f" The first {SHOWN} are shown." if len(rows) > SHOWN else ""
    return {"search": facts, "table": table, "why": f"Distances are exact, of what was found.{more}{written}"}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
