"""`assay compare doppler`: placers on the user's own graph of operators, or a torch module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim import own_code
from assay.sim.random import stream
from assay.training import doppler
from assay.training.doppler import graphs, rivals, runtime
from assay.training.doppler.graphs import OpGraph
from assay.training.interface import Ints

MOST = 2000  # operators
TIE = 0.01


@click.command(epilog="Example:  assay compare doppler --graph examples/operators.json --devices 2 --episodes 400")
@click.option(
    "--graph", "path", type=click.Path(path_type=Path),
    help="JSON: nodes with name, inputs by name, bytes of the result, and seconds or flops.",
)  # fmt: skip
@click.option("--module", help="Instead: a torch module, package.module:Class or file.py:Class, traced by torch.fx.")
@click.option("--shape", "shapes", multiple=True, help="Of an input of the module, such as 64x256; one for each.")
@click.option("--devices", type=click.IntRange(2, 8), default=4, show_default=True)
@click.option("--episodes", type=click.IntRange(8), default=1000, show_default=True, help="To learn from.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(
    path: Path | None, module: str | None, shapes: tuple[str, ...], devices: int, episodes: int, seed: int
) -> dict[str, Any]:
    """Your operators on several devices: a learned placement beside list scheduling, enumeration and rules of thumb."""
    if (path is None) == (module is None):
        raise BadInput("give either --graph FILE.json or --module file.py:Class")
    graph = read_module(module, shapes) if module else read_graph(Path(path or ""))
    work = int((~graph.data).sum())
    if not 2 <= work <= MOST:
        raise BadInput(f"{graph.name} has {work} operators that take time; 2 to {MOST} can be placed")
    return compare(graph, devices, episodes, seed)


def read_graph(path: Path) -> OpGraph:
    """A graph's JSON file."""
    try:
        return graphs.read(json.loads(reading.text(path, "a graph's JSON file is expected")), str(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON ({error})") from error


def read_module(name: str, shapes: tuple[str, ...]) -> OpGraph:
    """The user's module on inputs of the shapes given."""
    from assay.training.doppler.modules import traced

    try:
        sizes = [tuple(int(part) for part in shape.split("x")) for shape in shapes]
    except ValueError as error:
        raise BadInput(f"--shape {' '.join(shapes)}: numbers joined by x expected, such as 64x256") from error
    if not sizes or min(min(size) for size in sizes) < 1:
        raise BadInput("--module needs --shape for each input, such as --shape 64x256")
    made = own_code.load(name)
    try:
        made = made() if isinstance(made, type) else made
    except Exception as error:
        raise BadInput(f"{name}: {type(error).__name__}: {error}") from error
    return traced(made, sizes, name)


def compare(graph: OpGraph, devices: int, episodes: int, seed: int = 0) -> dict[str, Any]:
    """Every placer on one graph.

    >>> from assay.training.doppler.graphs import chainmm
    >>> answer = compare(chainmm(2), devices=2, episodes=16)
    >>> "doppler" in {row["placer"] for row in answer["table"]}
    True
    """
    ours = rivals.chosen(graph, doppler.trained(graph, devices, "doppler", episodes, seed), devices, seed)
    places = {"doppler": ours} | doppler.rules(graph, devices, seed, luck=episodes)
    table = [_row(graph, name, place, devices, seed) for name, place in places.items()]
    table.sort(key=lambda row: row["seconds"])
    facts = {"name": graph.name, "operators": int((~graph.data).sum()), "devices": devices, "episodes": episodes}
    return {
        "graph": facts, "placement": placement(graph, places[table[0]["placer"]], devices), "table": table,
        "why": why(table), "trust": doppler.trust, "units": {"seconds": "s"},
    }  # fmt: skip


def _row(graph: OpGraph, name: str, place: Ints, devices: int, seed: int) -> dict[str, Any]:
    run = runtime.play(graph, place, devices)
    busy = np.bincount(place, weights=graph.seconds, minlength=devices)
    seconds = runtime.seconds(graph, place, devices, doppler.RUNS, stream(seed, "doppler", "judge"))
    return {
        "placer": name, "seconds": seconds, "over_ideal": seconds * devices / float(graph.seconds.sum()),
        "messages": len(run.ends) - graph.nodes, "busiest": float(busy.max() / busy.sum()) * devices,
    }  # fmt: skip


def placement(graph: OpGraph, place: Ints, devices: int) -> list[dict[str, Any]]:
    """What the fastest placer puts on each device."""
    found = []
    for d in range(devices):
        mine = np.flatnonzero((place == d) & ~graph.data)
        names = [graph.labels[v] if graph.labels else str(v) for v in mine]
        shown = " ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        found.append({"device": d, "busy": float(graph.seconds[mine].sum()), "operators": shown})
    return found


def why(table: list[dict[str, Any]]) -> str:
    """Who is fastest, and how doppler does."""
    first, second = table[0], table[1]
    lead = second["seconds"] / first["seconds"]
    told = f"{first['placer']} takes {first['seconds']:.4g} s"
    told += f"; {second['placer']} {lead:.2f} times as long" if lead > 1 + TIE else f", a tie with {second['placer']}"
    ours = next(row for row in table if row["placer"] == "doppler")
    listed = next(row for row in table if row["placer"] == "critical path")
    return told + f". doppler is at {ours['seconds'] / listed['seconds']:.2f} of critical-path list scheduling."
