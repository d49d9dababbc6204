"""`assay compare tons`: wirings of the user's own pod, or what a topology of theirs carries beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from assay.record.errors import unreadable
from assay.record.store import write_whole
from assay.sim.collectives import Link
from assay.training import tons
from assay.training.tons.pods import Pod

TIE = 0.03  # what the bounds of the flow leave open
UNITS = {"all_to_all": "links/chip", "bound": "links/chip", "uniform": "links/chip", "hops_mean": "hops"}


@click.command(epilog="Example:  assay compare tons --cubes 4")
@click.option("--cubes", type=click.IntRange(1, 64), default=8, show_default=True, help="Cubes of 64 chips.")
@click.option("--steps", type=click.IntRange(1, 1_000_000), default=3000, show_default=True, help="Of the search.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the search and the draws.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the wiring found: JSON that assay.training.read_topology reads.",
)
@click.option("--bandwidth", type=click.FloatRange(1.0), default=45e9, show_default=True, help="Bytes/s of a link.")
def command(cubes: int, steps: int, seed: int, out: Path | None, bandwidth: float) -> dict[str, Any]:
    """Wirings of your pod's optical switches: tori plain and twisted, drawn, and searched; what each carries."""
    found = tons.networks(cubes, seed, steps)
    table = [{"network": name, **tons.measured(pod), **tons.with_a_fault(pod)} for name, pod in found.items()]
    table.sort(key=lambda row: -float(row["all_to_all"]))
    if out is not None:
        export(found["tons"], out, Link(1e-6, bandwidth))
    return {
        "pod": {"cubes": cubes, "chips": 64 * cubes, "steps": steps}, "table": table, "units": UNITS,
        "shown": ["network", "all_to_all", "bound", "uniform", "channels", "channels_broken", "hops_mean", "hops_max"],
        "why": why(table), "trust": tons.trust,
    }  # fmt: skip


def export(pod: Pod, path: Path, link: Link) -> None:
    """Write a wiring as the edge list that every tool of the room reads."""
    ends = pod.topology(link).ends
    once = ends[ends[:, 0] < ends[:, 1]]  # a link both ways stands there once for each direction
    content = {
        "ranks": pod.ranks,
        "links": [[int(a), int(b), link.bandwidth, link.latency] for a, b in once],
    }
    try:
        write_whole(path, json.dumps(content).encode())
    except OSError as error:
        raise unreadable(path, error) from error


def why(table: list[dict[str, Any]]) -> str:
    """Who carries most, against the best torus and against drawn shifts.

    >>> rows = [("tons", 1.3, 4.0), ("random shifts", 1.28, 4.1), ("torus", 1.0, 6.0)]
    >>> why([{"network": n, "all_to_all": x, "hops_mean": h} for n, x, h in rows])
    'tons carries 1.30 times the all-to-all of the best torus (4.00 hops, not 6.00); it ties with drawn shifts.'
    """
    ours = next(row for row in table if row["network"] == "tons")
    torus = max((row for row in table if row["network"] in tons.TORI), key=lambda row: float(row["all_to_all"]))
    drawn = next(row for row in table if row["network"] == "random shifts")
    ahead, over = ours["all_to_all"] / torus["all_to_all"], ours["all_to_all"] / drawn["all_to_all"]
    hops = f"({ours['hops_mean']:.2f} hops, not {torus['hops_mean']:.2f})"
    first = f"tons carries {ahead:.2f} times the all-to-all of the best torus {hops}"
    if abs(ahead - 1) < TIE:
        first = "tons and the best torus tie"
    return (
        f"{first}; it ties with drawn shifts."
        if abs(over - 1) < TIE
        else f"{first}, {over:.2f} times that of drawn shifts."
    )
