"""`assay compare nccl-model`: models of a collective's time fitted to the user's own nccl-tests, and their errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim import topology
from assay.sim.collectives import Link
from assay.sim.hardware import device
from assay.sim.nccl import OPERATIONS, NcclModel
from assay.training.nccl_model import fitting, nccl_tests

SCALES = ((1.0, 1.0, 1.0), (1.0, 3.0, 0.6), (3.0, 1.0, 0.9))  # where fits start
TIE = 0.01  # of the measured times: what repeating nccl-tests changes
UNITS = {"fit_error": "share", "held_error": "share", "held_worst": "share", "measured": "s", "predicted": "s"}
NUMBERS = {
    "nccl-model": ("launch", "latency", "bandwidth"), "Simple alone": ("launch", "latency", "bandwidth"),
    "nested rings": ("start", "latency", "bandwidth"), "hockney": ("start", "rate"), "interpolated": (),
}  # fmt: skip


@click.command(epilog="Example:  assay compare nccl-model --input examples/nccl-tests.txt --cluster 2x8xh100")
@click.option(
    "--input", "path", required=True, type=click.Path(path_type=Path),
    help="What nccl-tests printed, or a CSV with the columns size (bytes) and time (microseconds).",
)  # fmt: skip
@click.option(
    "--cluster", help="NODESxGPUSxDEVICE, for example 2x8xh100, or a graph as .json.  [as the file's header says]"
)
@click.option("--op", type=click.Choice(OPERATIONS), help="The collective.  [as the file says, else all_reduce]")
def command(path: Path, cluster: str | None, op: str | None) -> dict[str, Any]:
    """Fit NCCL's rings, trees and protocols to your own nccl-tests: launch, latency and bandwidth, with residuals."""
    return compare(path, cluster, op)


def compare(path: Path, cluster: str | None = None, op: str | None = None) -> dict[str, Any]:
    """Fit on every other size, judge on the rest; the table, the residuals, and who is nearest.

    >>> import tempfile
    >>> from assay.sim.hardware import device
    >>> sizes = [2**k for k in range(10, 28)]
    >>> seconds = NcclModel.of(device("h100"), nodes=2, latency=1.5).seconds("all_reduce", range(16), sizes)
    >>> mine = Path(tempfile.mkdtemp()) / "mine.csv"
    >>> rows = [f"{size},{1e6 * t:.3f}" for size, t in zip(sizes, seconds)]
    >>> _ = mine.write_text("\\n".join(["size,time", *rows]))
    >>> answer = compare(mine, "2x8xh100")
    >>> answer["fitted"]["latency"], answer["table"][0]["model"]
    (1.5, 'nccl-model')
    """
    measured = nccl_tests.read(path)
    place = _place(path, cluster, measured)
    what, ranks = op or measured.op or "all_reduce", place.model.topology.ranks
    if ranks < 2:
        raise BadInput(f"--cluster {cluster}: a collective has at least two ranks")
    sizes, used = measured.held(what, ranks), fitting.every_other(len(measured.sizes))
    first = float(measured.seconds[0])
    starts = {"hockney": ((first, 1e10), (first, 1e11)), "nested rings": tuple((first, *x[1:]) for x in SCALES)}
    found = {
        name: fitting.fit(model, starts.get(name, SCALES), sizes, measured.seconds, used)
        for name, model in _models(place, what, ranks).items()
    }
    found["interpolated"] = fitting.interpolated(sizes, measured.seconds, used)
    table = [_row(name, fitted) for name, fitted in found.items()]
    table.sort(key=lambda row: float(row["held_error"]))
    fitted = [float(f"{value:.4g}") for value in found["nccl-model"].numbers]
    scaled = replace(place.model, launch=fitted[0], latency=fitted[1], bandwidth=fitted[2])
    return {
        "collective": {"op": what, "cluster": place.title, "ranks": ranks, "sizes": len(sizes)},
        "fitted": dict(zip(NUMBERS["nccl-model"], fitted, strict=True)), "table": table,
        "residuals": _residuals(measured, found["nccl-model"], scaled, what, ranks, used), "units": UNITS,
        "why": why(table), "trust": "Errors are those at your own sizes that were held back from the fit.",
        "shown": ["model", "numbers", "fit_error", "held_error", "held_worst", "parameters"],
    }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where the times were measured: a model of it, and the links within a node and between nodes."""

    title: str
    model: NcclModel
    per_node: int
    inside: Link
    outside: Link


def _models(place: Place, op: str, ranks: int) -> dict[str, fitting.Model]:
    models = {"nccl-model": fitting.of_nccl(place.model, op, ranks), "hockney": fitting.hockney}
    if op not in ("broadcast", "reduce", "send"):  # nested rings have no such form
        nodes = ranks // place.per_node
        models["nested rings"] = fitting.of_nested(op, nodes, place.per_node, place.inside, place.outside)
    if op == "all_reduce":
        models["Simple alone"] = fitting.of_nccl(replace(place.model, protocols=("Simple",)), op, ranks)
    return models


def _place(path: Path, cluster: str | None, measured: nccl_tests.Measured) -> Place:
    if cluster is not None and cluster.endswith(".json"):
        network = topology.read(cluster)
        link = network.levels(range(network.ranks))[0].link
        return Place(network.name, NcclModel(network), 1, link, link)
    if cluster is None:
        if not (measured.nodes and measured.per_node and measured.gpu):
            raise BadInput(f"{path} does not tell its ranks and GPUs; give --cluster, for example 2x8xh100")
        cluster = f"{measured.nodes}x{measured.per_node}x{measured.gpu}"
    found = re.fullmatch(r"(\d{1,4})x(\d{1,3})x([\w.-]+)", cluster.strip())
    if not found or int(found[1]) < 1 or int(found[2]) < 1:
        raise BadInput(f"--cluster '{cluster}': write NODESxGPUSxDEVICE, for example 2x8xh100, or name a .json")
    on = device(found[3])
    return Place(cluster, NcclModel.of(on, int(found[1]), int(found[2])), int(found[2]), on.nvlink, on.nic)


def _row(name: str, fitted: fitting.Fitted) -> dict[str, Any]:
    numbers = zip(NUMBERS[name], fitted.numbers, strict=True)
    return {
        "model": name, "numbers": len(fitted.numbers), "fit_error": fitted.fit_error, "held_error": fitted.held_error,
        "held_worst": fitted.held_worst, "parameters": ", ".join(f"{key} {value:.3g}" for key, value in numbers),
    }  # fmt: skip


def _residuals(
    measured: nccl_tests.Measured,
    fitted: fitting.Fitted,
    model: NcclModel,
    op: str,
    ranks: int,
    used: Any,
) -> list[dict[str, Any]]:
    chosen = model.choose(op, range(ranks), measured.held(op, ranks))
    return [
        {
            "size": float(size), "measured": float(seconds), "predicted": float(guess),
            "error": float(guess / seconds - 1), "in_fit": bool(fits), "algorithm": plan.algorithm,
            "protocol": plan.protocol, "channels": plan.channels,
        }
        for size, seconds, guess, fits, plan in zip(
            measured.sizes, measured.seconds, fitted.predicted, used, chosen, strict=True
        )
    ]  # fmt: skip


def why(table: list[dict[str, Any]]) -> str:
    """Who is nearest to the sizes held back, against the best rival that is a model too.

    >>> rows = [{"model": "nccl-model", "held_error": 0.03}, {"model": "hockney", "held_error": 0.4}]
    >>> why(rows)
    'nccl-model is off by 3.0 % at the sizes held back, hockney by 40.0 %.'
    """
    models = [row for row in table if row["model"] != "interpolated"]
    first, second = models[0], models[1]
    errors = [f"{100 * row['held_error']:.1f} %" for row in (first, second)]
    if second["held_error"] - first["held_error"] < TIE:
        said = f"{first['model']} and {second['model']} tie at the sizes held back: {errors[0]} and {errors[1]} off."
    else:
        said = f"{first['model']} is off by {errors[0]} at the sizes held back, {second['model']} by {errors[1]}."
    lines = next((row for row in table if row["model"] == "interpolated"), None)
    if lines is None or lines["held_error"] > first["held_error"] + TIE:
        return said
    lined = f"{100 * lines['held_error']:.1f} %"
    return f"{said} Lines between the points are off by {lined}, and know nothing of another cluster or collective."
