"""`assay data graph`: PageRank, components, distances, communities and triangles by short-lived functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from assay.data.graphflash.job import MODES, PINNED, Design
from assay.data.graphflash.run import Ran, run_graph
from assay.record.errors import BadInput
from assay.record.store import write_whole
from assay.sim.memory import parse_size
from assay.sim.partitions import PARTITIONERS

F = TypeVar("F", bound=Callable[..., Any])
SHOWN = 10


@click.group(epilog="Example:  assay data graph pagerank examples/web.txt")
def command() -> None:
    """Graph analytics by functions: real processes that come and go, and meet in a store alone.

    EDGES is a SNAP list, CSV, parquet, Matrix Market, .npy, .npz or an OGB folder; a third column is the weight.
    """


def _common(function: F) -> F:
    for option in reversed(
        (
            click.argument("edges", type=click.Path(path_type=Path)),
            click.option("--mode", type=click.Choice(MODES), default=PINNED, show_default=True,
                         help="Keep functions and their state, or load one part after the other."),
            click.option("--workers", type=click.IntRange(1, 512), default=None,
                         help="Functions at once; as many as processors."),
            click.option("--parts", type=click.IntRange(1, 100_000), default=None, help="Of the graph; four a worker."),
            click.option("--cut", type=click.Choice(PARTITIONERS), default="metis", show_default=True),
            click.option("--memory", default="512MB", show_default=True, help="Of a function, at most."),
            click.option("--store", help="A folder or address; there a killed run goes on. Else a temporary folder."),
            click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="All values: .csv or .npy."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


@command.command(epilog="Example:  assay data graph pagerank examples/web.txt --mode rotating --out ranks.csv")
@_common
@click.option("--damping", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.85, show_default=True)
@click.option("--tolerance", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=1e-6, show_default=True,
              help="How far all ranks may be off together.")  # fmt: skip
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
def pagerank(edges: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """The share of time that a walker who sometimes jumps spends at each vertex of EDGES."""
    ran = _run("pagerank", edges, options, out)
    return _answer(ran, "rank", np.argsort(-ran.values, kind="stable"), out, f"ranks sum to {ran.values.sum():.6f}")


@command.command(epilog="Example:  assay data graph components examples/web.txt")
@_common
def components(edges: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """Which vertices of EDGES hang together, whatever the direction; a component has its first vertex's name."""
    ran = _run("components", edges, options, out)
    return _sizes(ran, "component", out)


@command.command(epilog="Example:  assay data graph labels examples/web.txt --rounds 10")
@_common
@click.option("--rounds", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most.")
def labels(edges: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """Communities of EDGES: round after round each vertex takes the commonest label around it."""
    ran = _run("labels", edges, options, out)
    return _sizes(ran, "community", out)


@command.command(epilog="Example:  assay data graph bfs examples/web.txt --root 0")
@_common
@click.option("--root", type=int, required=True, help="The vertex to start from, by its name in the file.")
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
def bfs(edges: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """How many edges of EDGES away from --root each vertex is."""
    ran = _run("bfs", edges, options, out)
    return _far(ran, "hops", out, ran.values >= 0)


@command.command(epilog="Example:  assay data graph sssp examples/roads.csv --root 100")
@_common
@click.option("--root", type=int, required=True, help="The vertex to start from, by its name in the file.")
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
def sssp(edges: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """How far away from --root each vertex of EDGES is, by its weights."""
    ran = _run("sssp", edges, options, out)
    return _far(ran, "distance", out, np.isfinite(ran.values))


@command.command(epilog="Example:  assay data graph triangles examples/web.txt")
@_common
def triangles(edges: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """How many triangles EDGES has, whatever the directions."""
    ran = _run("triangles", edges, options, out)
    note = f"{int(ran.values.sum()):,} triangles, each counted at its vertex of middle degree"
    return _answer(ran, "triangles", np.argsort(-ran.values, kind="stable"), out, note)


# ------------------------------------------------------------------------------------------------------------ answers


def _run(program: str, edges: Path, options: dict[str, Any], out: Path | None) -> Ran:
    if out is not None and out.suffix not in (".csv", ".npy"):
        raise BadInput(f"--out {out}: .csv or .npy expected")
    try:
        memory = parse_size(options.pop("memory"))
        ran = run_graph(
            program, edges, design=Design(mode=options.pop("mode")), memory=memory, how=options.pop("cut"),
            workers=options.pop("workers") or os.cpu_count() or 1,
            progress=click.get_current_context().obj or (lambda done, total: None), **options,
        )  # fmt: skip
    except ValueError as error:
        raise BadInput(str(error)) from error
    if out is not None:
        _write(out, ran)
    return ran


def _write(out: Path, ran: Ran) -> None:
    import io

    if out.suffix == ".npy":
        held = io.BytesIO()
        np.save(held, ran.values)
        write_whole(out, held.getvalue())
        return
    rows = (f"{name},{value}" for name, value in zip(ran.names.tolist(), ran.values.tolist(), strict=True))
    write_whole(out, "\n".join(["vertex,value", *rows, ""]).encode())


def _answer(ran: Ran, what: str, order: Any, out: Path | None, note: str) -> dict[str, Any]:
    rows = [{"vertex": ran.names[at].item(), what: ran.values[at].item()} for at in order[:SHOWN]]
    return _facts(ran) | {"table": rows, "why": _why(note, out)}


def _sizes(ran: Ran, what: str, out: Path | None) -> dict[str, Any]:
    firsts, sizes = np.unique(ran.values, return_counts=True)
    order = np.argsort(-sizes, kind="stable")[:SHOWN]
    rows = [{what: ran.names[firsts[at]].item(), "vertices": int(sizes[at])} for at in order]
    plural = what if len(firsts) == 1 else {"component": "components", "community": "communities"}[what]
    return _facts(ran) | {"table": rows, "why": _why(f"{len(firsts):,} {plural}", out)}


def _far(ran: Ran, what: str, out: Path | None, reached: Any) -> dict[str, Any]:
    there = ran.values[reached]
    order = np.flatnonzero(reached)[np.argsort(-there, kind="stable")]
    note = f"{len(there):,} of {len(ran.values):,} vertices are reached, the farthest at {there.max():g}"
    return _answer(ran, what, order, out, note)


def _facts(ran: Ran) -> dict[str, Any]:
    return {
        "graph": {"vertices": len(ran.values), "parts": ran.parts, "held_bytes": ran.largest},
        "supersteps": {"steps": ran.steps, "resumed": ran.resumed, "calls": ran.bill.calls, "cold": ran.bill.cold,
                       "retried": ran.bill.retried, "messages": ran.messages, "edges_scanned": ran.scanned},
        "used": {"seconds": round(ran.seconds, 3), "requests": ran.requests, "bytes": ran.ledger.nbytes(),
                 "gb_seconds": round(ran.bill.gb_seconds, 4), "peak_bytes": ran.bill.peak, "usd": ran.usd()},
    }  # fmt: skip


def _why(note: str, out: Path | None) -> str:
    written = f" All values are in {out}." if out else ""
    return (
        f"{note[0].upper()}{note[1:]}.{written} The dollars are what these calls and requests would cost at the list "
        "prices of S3 and Lambda."
    )
