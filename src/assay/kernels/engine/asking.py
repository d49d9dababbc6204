"""What the room's comparisons share: their options, their answer, and the roofline as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.kernels.engine.runner import Outcome, break_even, speedup
from assay.kernels.interface import Cost, Machine, Record
from assay.record.errors import BadInput
from assay.record.store import write_whole

if TYPE_CHECKING:
    import altair as alt

F = TypeVar("F", bound=Callable[..., Any])
SHOWN = ["implementation", "seconds", "fraction", "bound_by", "prepare", "break_even", "right"]
UNITS = {"seconds": "s", "limit": "s", "prepare": "s", "low": "s", "high": "s"}


def options(command: F) -> F:
    """The options that every comparison of the room has: rounds, the machine, a plot."""
    for option in (
        click.option("--plot", type=click.Path(path_type=Path), help="Write the roofline as SVG or PNG."),
        click.option("--machine", "where", default="here", show_default=True,
                     help="Whose limit counts: here, measured once, or h200, as it was measured there."),
        click.option("--rounds", type=click.IntRange(2, 1000), default=5, show_default=True,
                     help="Interleaved timed rounds."),
    ):  # fmt: skip
        command = option(command)
    return command


def answer(
    outcome: Outcome, machine: Machine, cost: Cost, facts: dict[str, Any], ours: str, where: str, plot: Path | None
) -> dict[str, Any]:
    """The table of a comparison, who wins and why, and the limit of another machine where that was asked for."""
    peers = [record for record in outcome.records if not record.implementation.startswith(ours)]
    best_peer = peers[0] if peers else outcome.records[0]
    table = [row(record, best_peer) for record in outcome.records]
    if plot is not None:
        write_plot(outcome, machine, cost, plot)
    told: dict[str, Any] = {"input": facts, "machine": _machine(machine), "table": table}
    told |= {"why": why(outcome), "shown": SHOWN, "units": UNITS}
    if where != "here":
        told["why"] += " " + _elsewhere(outcome, cost, where)
    return told


def row(record: Record, peer: Record) -> dict[str, Any]:
    """One implementation as a line of a table."""
    pays = break_even(record, peer)
    return {
        "implementation": record.implementation, "seconds": record.run, "fraction": record.fraction,
        "bound_by": record.bound_by, "prepare": record.prepare,
        "break_even": "never" if math.isinf(pays) else int(pays), "right": record.match.right,
        "backend": record.backend, "threads": record.threads, "limit": record.limit, "low": record.low,
        "high": record.high, "rounds": len(record.rounds), "error": record.match.error,
    }  # fmt: skip


def why(outcome: Outcome) -> str:
    """Who is fastest of those that are right, by how much over the next, and what is missing."""
    good = [record for record in outcome.records if record.match.right]
    wrong = [record.implementation for record in outcome.records if not record.match.right]
    said = []
    if good:
        first = good[0]
        bound = f"{first.fraction:.0%} of what {first.bound_by} allows".replace("%", " %")
        said.append(f"{first.implementation} is fastest, at {bound}.")
        for other in good[1:2]:
            found = speedup(first, other)
            said.append(
                f"It is {found.value:.2g} times as fast as {other.implementation} "
                f"({found.low:.2g} to {found.high:.2g} over the rounds)."
                if found
                else f"These rounds cannot tell it from {other.implementation}."
            )
    if wrong:
        said.append(f"Wrong results: {', '.join(wrong)}.")
    if outcome.skipped:
        said.append("Not run: " + "; ".join(f"{name} ({reason})" for name, reason in outcome.skipped.items()) + ".")
    return " ".join(said)


def _machine(machine: Machine) -> dict[str, Any]:
    wide = max(machine.bandwidth)
    return {"name": machine.name, "bandwidth": machine.bandwidth[wide], "threads": wide, "measured": machine.measured}


def _elsewhere(outcome: Outcome, cost: Cost, where: str) -> str:
    from assay.kernels.engine.machine import named

    there = named(where)
    limit, by = there.limit(cost)
    return (
        f"On {there.name} {by} would allow {limit:.3g} s at best, {outcome.records[0].limit / limit:.3g} times less "
        f"than here ({there.measured})."
    )


def roofline(outcome: Outcome, machine: Machine, cost: Cost) -> alt.LayerChart:
    """Operations a second against operations a byte, under the machine's two roofs.

    A kernel without floating-point work counts a move of eight bytes as one operation.
    """
    import altair as alt
    import polars as pl

    work = cost.flops or cost.bytes / 8
    intensity = work / cost.bytes if cost.bytes else 1.0
    bandwidth, peak = max(machine.bandwidth.values()), machine.peaks.get(cost.dtype, max(machine.peaks.values()))
    xs = [intensity / 30, peak / bandwidth, max(intensity, peak / bandwidth) * 30]
    roof = pl.DataFrame({"intensity": xs, "rate": [min(peak, x * bandwidth) / 1e9 for x in xs]})
    points = pl.DataFrame(
        [
            {"intensity": intensity, "rate": work / r.run / 1e9, "implementation": r.implementation}
            for r in outcome.records
        ]
    )
    x = alt.X("intensity:Q", scale=alt.Scale(type="log"), title="operations a byte (log)")
    y = alt.Y("rate:Q", scale=alt.Scale(type="log"), title="billion operations a second (log)")
    line = alt.Chart(roof).mark_line(color="grey").encode(x=x, y=y)
    dots = (
        alt.Chart(points)
        .mark_point(filled=True, size=80)
        .encode(x=x, y=y, color=alt.Color("implementation:N", title=None))
    )
    title = alt.Title(f"{outcome.kernel} under the roofs of {machine.name}", subtitle="least work over median time")
    chart: alt.LayerChart = (line + dots).properties(width=520, height=320, title=title)
    return chart


def write_plot(outcome: Outcome, machine: Machine, cost: Cost, path: Path) -> None:
    """The roofline as a file, by its ending."""
    import vl_convert

    spec = roofline(outcome, machine, cost).to_json()
    if path.suffix == ".svg":
        write_whole(path, vl_convert.vegalite_to_svg(spec).encode())
    elif path.suffix == ".png":
        write_whole(path, vl_convert.vegalite_to_png(spec, scale=2))
    else:
        raise BadInput(f"--plot {path}: end it with .svg or .png")
