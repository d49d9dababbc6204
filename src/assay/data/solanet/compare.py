"""`assay compare solanet`: ways to find all points' neighbours, side by side on the user's own vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.solanet.trials import side_by_side
from assay.data.vectors.files import read_vectors
from assay.sim.random import stream

GOOD = 0.99  # of the neighbours: who finds less is not compared by time
TIE = 1.1  # times as long: within it, this machine cannot tell


@click.command(epilog="Example:  assay compare data --job knn --input examples/points.fbin -k 10 --without-pynndescent")
@click.option("--input", "path", required=True, type=click.Path(path_type=Path), help="Vectors: fbin, fvecs, npy, ….")
@click.option("-k", type=click.IntRange(1, 256), default=32, show_default=True, help="Neighbours a point.")
@click.option("--ranks", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes of ours.")
@click.option("--points", type=click.IntRange(100), default=20_000, show_default=True, help="At most; drawn at random.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Turns; the median counts.")
@click.option(
    "--with-pynndescent/--without-pynndescent", "peer", default=True, show_default=True,
    help="Where it is installed; it compiles for half a minute.",
)  # fmt: skip
def command(path: Path, k: int, ranks: int, points: int, rounds: int, peer: bool) -> dict[str, Any]:
    """Seconds and recall on your vectors: ranks with the tree, with all pairs, one process, PyNNDescent, exactly."""
    rows = read_vectors(path)
    n = len(rows)
    if n > points:
        rows = rows[np.sort(stream(0, "compared", n).permutation(n)[:points])]
    found = side_by_side(np.ascontiguousarray(rows, np.float32), k, ranks, rounds, peer)
    table = sorted(({"method": name, **row} for name, row in found.items()), key=lambda row: row["seconds"])
    facts = {"file": str(path), "points": n, "compared": len(rows), "width": rows.shape[1]}
    return {"input": facts, "table": table, "why": _why(table), "shown": ["method", "seconds", "recall", "processes"]}


def _why(table: list[dict[str, Any]]) -> str:
    """Who is fastest of those who find enough; a tie within a tenth."""
    good = [row for row in table if row["recall"] >= GOOD]
    missed = [f"{row['method']} finds {row['recall']:.1%}" for row in table if row["recall"] < GOOD]
    told = f" {'; '.join(missed)}." if missed else ""
    first, *others = good  # what is computed exactly always finds all
    near = [row["method"] for row in others if row["seconds"] < TIE * first["seconds"]]
    if near:
        return f"{first['method']} and {', '.join(near)} tie.{told}"
    if not others:
        return f"Only {first['method']} finds {GOOD:.0%} of the neighbours.{told}"
    second = others[0]
    times = second["seconds"] / first["seconds"]
    reason = {
        "exact": "so few points need no graph",
        "solanet": "parts are built at once, and joined by a search a round",
        "all-pairs": "with few parts, searching all of them is no more than following links",
    }.get(first["method"], "one process needs no start of others, and no joining")
    return f"{first['method']} is {times:.1f} times as fast as {second['method']}: {reason}.{told}"
