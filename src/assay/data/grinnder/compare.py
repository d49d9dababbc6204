"""`assay compare grinnder`: ways to train on a whole graph in little memory, side by side on the user's own graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.disk.arrays import DiskArray
from assay.data.disk.edges import read_edges
from assay.data.grinnder import bench as benches
from assay.data.grinnder import trials
from assay.data.grinnder.files import read_labels
from assay.data.grinnder.layers import KINDS, Network
from assay.data.grinnder.trainer import checked, warm, widths_of
from assay.sim.memory import parse_size
from assay.sim.random import stream
from assay.sim.scratch import scratch


@click.command(epilog="Example:  assay compare data --job grinnder --input examples/web.txt --memory 64MB")
@click.option("--input", "edges", type=click.Path(path_type=Path), required=True, help="The graph's edges.")
@click.option("--features", type=click.Path(path_type=Path), help="A .npy of floats; without it, 64 random columns.")
@click.option("--labels", type=click.Path(path_type=Path), help="A class a node; without it, 8 random classes.")
@click.option("--kind", type=click.Choice(KINDS), default="gcn", show_default=True, help="The layers.")
@click.option("--hidden", type=click.IntRange(1, 65536), default=64, show_default=True, help="Columns between layers.")
@click.option("--layers", type=click.IntRange(2, 64), default=3, show_default=True)
@click.option("--memory", default="256MB", show_default=True, help="For training, beside the program: 64MB, 1.5Gi.")
@click.option("--parts", type=click.IntRange(1), help="Cut the graph into so many; without it, as memory demands.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Timed epochs of each.")
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
def command(
    edges: Path, features: Path | None, labels: Path | None, kind: str, hidden: int, layers: int, memory: str,
    parts: int | None, rounds: int, undirected: bool,
) -> dict[str, Any]:  # fmt: skip
    """An epoch on your own graph: gathering again, stored inputs, mapped files, and all in memory where it fits."""
    limit = parse_size(memory)
    with scratch() as folder:
        source = features or _random_rows(folder / "random.npy", edges, undirected)
        with DiskArray.open(source) as rows:
            n, columns = len(rows), rows.shape[-1]
            known = read_labels(labels, n) if labels else stream(0, "grinnder", n).integers(0, 8, n)
            network = Network(kind, widths_of(columns, hidden, layers, int(known.max(initial=0)) + 1))
            checked(network, rows, known, None)
        warm(kind)
        bench = benches.Bench(folder, lambda: read_edges(edges, undirected), source, known, network)
        fits = 2 * benches.activations(network, n) < _available() // 2
        progress = click.get_current_context().obj or (lambda done, total: None)
        found = benches.compared(bench, limit, parts, rounds, 0, in_memory=fits, progress=progress)
    table = sorted(({"method": name, **row} for name, row in found.items()), key=lambda row: row["seconds"])
    first = table[0]
    facts = {name: first[name] for name in ("parts", "amplification")}
    shown = ["method", "seconds", "read_bytes", "written_bytes", "difference"]
    rest = [{name: value for name, value in row.items() if name not in facts} for row in table]
    return {"graph": {"nodes": n, **facts}, "table": rest, "why": _why(table), "shown": shown}


def _random_rows(path: Path, edges: Path, undirected: bool) -> Path:
    """Random features for every node that has an edge: what an epoch costs does not hang on values."""
    n = 1 + max((int(block.max()) for block in read_edges(edges, undirected) if len(block)), default=-1)
    np.save(path, stream(0, "grinnder", "rows", n).standard_normal((n, 64), np.float32))
    return path


def _available() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _why(table: list[dict[str, Any]]) -> str:
    """Who is quickest in the memory given; within a tenth is a tie on a disk that others use."""
    rivals = [row for row in table if row["method"] != trials.MEMORY]
    first, second = rivals[:2]
    moved = [row["read_bytes"] + row["written_bytes"] for row in (first, second)]
    if second["seconds"] < 1.1 * first["seconds"]:
        told = f"{first['method']} and {second['method']} tie"
    else:
        told = f"{first['method']} is {second['seconds'] / first['seconds']:.1f} times as fast as {second['method']}"
    told += f", with {moved[0]:,} bytes moved to and from disk beside {moved[1]:,}."
    whole = [row["seconds"] for row in table if row["method"] == trials.MEMORY]
    if not whole:
        return told + " All in memory was left out: this machine has not enough of it."
    return told + f" All in memory, where it fits, an epoch takes {whole[0] / first['seconds']:.2f} of that time."
