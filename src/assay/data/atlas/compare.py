"""`assay compare atlas`: streaming and gathering in the same memory, side by side on the user's own graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from assay.data.atlas.layers import Layer, read_model
from assay.data.atlas.trials import AUTO, LRU, MEMORY, OURS, STATIC, Bench, model_of, random_rows, warm_all
from assay.data.disk.arrays import DiskArray
from assay.data.disk.edges import read_edges
from assay.data.disk.graphs import DiskGraph
from assay.record.errors import BadInput
from assay.sim.memory import parse_size
from assay.sim.scratch import scratch

TIE = 1.1  # times as long, at most: within that, two runs of the same differ on a disk that others use


@click.command(epilog="Example:  assay compare data --job atlas --input examples/web.txt --memory 4MB")
@click.option("--input", "edges", type=click.Path(path_type=Path), required=True, help="The graph's edges.")
@click.option(
    "--features", type=click.Path(path_type=Path), help="A .npy of floats; without it, --width random columns."
)
@click.option("--model", type=click.Path(path_type=Path), help="A state_dict; without it, a GCN of one layer.")
@click.option("--width", type=click.IntRange(1, 65536), default=256, show_default=True, help="Of random features.")
@click.option("--memory", help="For inference, beside the program: 64MB, 1.5Gi; without it, a tenth of the features.")
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Turns; the middle one counts."
)
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
def command(
    edges: Path, features: Path | None, model: Path | None, width: int, memory: str | None, rounds: int,
    undirected: bool,
) -> dict[str, Any]:  # fmt: skip
    """All layers over your own graph: streamed, gathered through a cache of rows, and all in memory where it fits.

    Everybody reads the same files past the page cache and has the same memory.
    """
    progress = click.get_current_context().obj or (lambda done, total: None)
    try:
        with scratch() as folder:
            rows = features or _random(folder / "x.npy", edges, width)
            with DiskArray.open(rows) as array:
                n, columns, nbytes = len(array), array.shape[-1], array.nbytes
            layers = read_model(model) if model else model_of("gcn", (columns, columns), 0)
            given = parse_size(memory) if memory else nbytes // 10
            bench = Bench(folder, DiskGraph.build(folder / "out", read_edges(edges, undirected), n), rows)
            table = _rounds(bench, layers, given, rounds, progress)
            graph = {"nodes": n, "edges": bench.graph.m, "features_bytes": nbytes, "memory_bytes": given}
    except (ValueError, EOFError) as error:
        raise BadInput(str(error)) from error
    shown = ["method", "seconds", "read_ratio", "spilled_ratio", "difference", "policy"]
    return {"graph": graph, "table": table, "why": why(table), "shown": shown}


def _random(path: Path, edges: Path, width: int) -> Path:
    n = 1 + max((int(block.max()) for block in read_edges(edges) if len(block)), default=-1)
    random_rows(path, n, width, 0)
    return path


def _rounds(bench: Bench, layers: list[Layer], memory: int, rounds: int, progress: Any) -> list[dict[str, Any]]:
    """Every method in turns; each one's middle seconds, with all that belongs to it, the quickest first."""
    whole = 4 * bench.graph.n * max(layer.in_width + layer.out_width + 2 * layer.width for layer in layers)
    fits = whole < os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    names = (OURS, AUTO, LRU, STATIC, *[MEMORY] * fits)
    warm_all(layers)
    ran = []
    for turn in range(rounds):
        ran.append(bench.compared(layers, memory, names, turn))
        progress(turn + 1, rounds)
    middle = {name: sorted((one[name] for one in ran), key=lambda row: row["seconds"])[rounds // 2] for name in names}
    return sorted(({"method": name, **row} for name, row in middle.items()), key=lambda row: float(row["seconds"]))


def why(table: list[dict[str, Any]]) -> str:
    """Who is quickest in the memory given, and by what."""
    rows = {row["method"]: row for row in table}
    ours = min((rows[name] for name in (OURS, AUTO)), key=lambda row: float(row["seconds"]))
    gather = min((rows[name] for name in (LRU, STATIC)), key=lambda row: float(row["seconds"]))
    first, second = sorted((ours, gather), key=lambda row: float(row["seconds"]))
    times = second["seconds"] / first["seconds"]
    told = f"{first['method']} is {times:.1f} times as fast as {second['method']}"
    if times < TIE:
        told = f"{first['method']} and {second['method']} tie"
    told += (
        f": streamed ({ours['policy']}), rows are read {ours['read_ratio']:.1f} times and "
        f"{ours['spilled_ratio']:.1f} times their bytes are set aside in between; gathered, they are read "
        f"{gather['read_ratio']:.1f} times, a page for each that the cache misses."
    )
    if MEMORY not in rows:
        return told + " All in memory was left out: this machine has not enough of it."
    return told + f" All in memory it takes {rows[MEMORY]['seconds'] / first['seconds']:.2f} of that time."
