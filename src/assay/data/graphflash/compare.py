"""`assay compare graphflash`: functions with bundled mail beside functions with a key a vertex, on the user's graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.data.graphflash.files import read_network
from assay.data.graphflash.programs import PROGRAMS
from assay.data.graphflash.trials import KEYS, MEMORY, OURS, TURNS, VERTICES, Row, side_by_side
from assay.record.errors import BadInput

SYSTEMS = (OURS, TURNS, KEYS, VERTICES)
TIE = 1.15  # times as long, at most: as far apart as two runs of the same are on a machine that others use
MANY = 200_000  # edges from which an object a vertex takes minutes


@click.command(epilog="Example:  assay compare data --job graph --input examples/web.txt --program components")
@click.option("--input", "path", required=True, type=click.Path(path_type=Path), help="Edges: text, CSV, parquet, mtx.")
@click.option("--program", type=click.Choice(list(PROGRAMS)), default="components", show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Functions at once.")
@click.option("--parts", type=click.IntRange(1, 10_000), default=None, help="Of the graph; four a worker.")
@click.option("--root", type=int, default=None, help="Where bfs and sssp start; else the first vertex.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns; the middle one counts.")
def command(path: Path, program: str, workers: int, parts: int | None, root: int | None, rounds: int) -> dict[str, Any]:
    """Seconds, requests and dollars of each design on your graph: real processes, a local folder, list prices.

    Beside them what needs no functions: one function for the whole graph, threads in one process, igraph if installed.
    """
    graph = read_network(path)
    if len(graph.edges) > MANY:
        raise BadInput(f"{path}: {len(graph.edges):,} edges; with an object a vertex up to {MANY:,} are bearable")
    options: dict[str, Any] = {"parts": parts, "root": root, "tolerance": 1e-2}
    several = [side_by_side(graph, program, workers, _turned(turn), **options) for turn in range(rounds)]
    table = [{"system": name, **_middle([rows[name] for rows in several])} for name in several[0]]
    table.sort(key=lambda row: row["seconds"])
    return {
        "graph": {"file": str(path), "vertices": graph.n, "edges": len(graph.edges), "program": program},
        "table": table,
        "shown": ["system", "seconds", "gb_seconds", "usd", "requests", "calls", "steps"],
        "why": why(table),
    }


def _turned(turn: int) -> tuple[str, ...]:
    turn %= len(SYSTEMS)
    return SYSTEMS[turn:] + SYSTEMS[:turn]


def _middle(rows: list[Row]) -> Row:
    """The run whose seconds are in the middle, with all that belongs to it."""
    return sorted(rows, key=lambda row: row["seconds"])[len(rows) // 2]


def why(table: list[Row]) -> str:
    """Which functions are fastest and by what; whether functions pay at all."""
    rows = {row["system"]: row for row in table}
    first, second = sorted((rows[name] for name in SYSTEMS if name in rows), key=lambda row: row["seconds"])[:2]
    times = second["seconds"] / first["seconds"]
    if times < TIE:
        told = [f"{first['system']} and {second['system']} tie"]
    else:
        told = [f"{first['system']} is {times:.1f} times as fast as {second['system']}"]
    ours, theirs = rows[OURS], rows[VERTICES]
    told.append(
        f"bundled mail, waking by mail and running on inside parts take {ours['requests']:,} requests where a key a "
        f"vertex takes {theirs['requests']:,}, and {ours['usd'] / theirs['usd']:.1%} of its dollars"
    )
    memory = rows[MEMORY]["seconds"]
    if first["seconds"] > TIE * memory:
        told.append(f"in one machine's memory it takes {memory:.3g} s: functions pay where no machine waits for it")
    wrong = [row["system"] for row in table if not row["same"]]
    return "; ".join(told) + "." + (f" {', '.join(wrong)} gave another answer." if wrong else "")
