"""`assay compare maestro`: the user's own graph of sections, beside one layout for everything and other orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.sim.random import stream
from assay.training import maestro
from assay.training.engine.cluster import Cluster
from assay.training.engine.cluster import read as read_cluster
from assay.training.engine.planning import TIE
from assay.training.maestro import pace
from assay.training.maestro.graph import Graph, edge, read
from assay.training.maestro.wavefront import ORDERS
from assay.workloads import multimodal
from assay.workloads.multimodal import Samples

UNITS = {"seconds": "s", "idle": "s", "bytes": "bytes a token", "logits": "bytes a token"}
BATCHES = 4


@click.command(epilog="Example:  assay compare maestro --graph examples/sections.toml")
@click.option("--graph", "path", required=True, type=click.Path(path_type=Path), help="A TOML file of sections.")
@click.option(
    "--machines", default="8xh100", show_default=True, help="COUNTxDEVICE[:ibGb/s] or TOML; as many as needed."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the batches drawn.")
def command(path: Path, machines: str, seed: int) -> dict[str, Any]:
    """Your sections, each with its own layout, and their samples in order, beside one layout for everything."""
    graph = read(path)
    samples = multimodal.read(graph.samples) if graph.samples else pace.packed(4096, maestro.LENGTH, seed)
    on = read_cluster(machines)
    return compare(graph, on, samples, seed=seed, progress=click.get_current_context().obj)


def compare(
    graph: Graph, on: Cluster, samples: Samples, *, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every system on the same batches, drawn from the samples.

    >>> found = compare(maestro.job("vlm-80b"), read_cluster("64xh100"), pace.packed(512, 4096, seed=0))
    >>> sorted(row["system"] for row in found["table"])
    ['arrival', 'johnson', 'longest first', 'one layout', 'wavefront']
    """
    if not any(not node.merge for node in graph.auxiliary) and not samples.image.any():
        raise BadInput("no sample has an image and all auxiliary sections see images: there is nothing to order")
    on = replace(on, ranks=graph.critical.ranks, name=f"{graph.critical.ranks} GPUs as of {on.name}")
    plan = pace.planned(graph, on, samples)
    random = stream(seed, "maestro", "batches")
    batches = [samples[random.integers(0, len(samples), graph.batch)] for _ in range(BATCHES)]
    found: dict[str, list[pace.Step]] = {order: [] for order in ORDERS}
    try:
        choices = pace.ranked(graph, on, samples)
    except BadInput:
        choices = []
    for done, batch in enumerate(batches):
        progress(done, len(batches))
        for order in ORDERS:
            found[order].append(pace.stepped(plan, batch, order))
        if choices:
            found.setdefault("one layout", []).append(pace.uniform(graph, on, batch, choices))
    table = [_row(system, some) for system, some in found.items()]
    table.sort(key=lambda row: -row["per_gpu"])
    sections = [
        {"section": one.node.name, "gpus": one.ranks, "layout": one.name, "fan_out": plan.layout.dp / one.layout.dp,
         "output_layer": f"moves to {graph.critical.name}" if one.moved else "stays",
         "bytes": edge(one.node, graph.critical, on.precision.item).nbytes,
         "logits": edge(one.node, graph.critical, on.precision.item).logits or None}
        for one in plan.placed
    ]  # fmt: skip
    facts = {"critical": graph.critical.name, "gpus": plan.ranks, "gpu": on.device.name, "layout": plan.layout.name,
             "batch": graph.batch, "samples": len(samples)}  # fmt: skip
    return {
        "job": facts,
        "sections": sections,
        "table": table,
        "why": why(table),
        "trust": maestro.trust,
        "units": UNITS,
    }


def _row(system: str, some: list[pace.Step]) -> dict[str, Any]:
    return {
        "system": system, "seconds": float(np.mean([one.seconds for one in some])),
        "per_gpu": float(np.mean([one.per_gpu for one in some])), "gpus": some[0].ranks,
        "idle": float(np.mean([one.idle for one in some])), "layout": some[0].layout,
    }  # fmt: skip


def why(table: list[dict[str, Any]]) -> str:
    """Who gets most of a GPU, and what order and layout have to do with it."""
    by = {row["system"]: row for row in table}
    ours = by["wavefront"]
    told = f"In wavefront order a step takes {ours['seconds']:.3g} s on {ours['gpus']} GPUs"
    if "one layout" in by:
        times = ours["per_gpu"] / by["one layout"]["per_gpu"]
        said = "as much" if abs(times - 1) < TIE else f"{times:.2f} times as much"
        told += f", {said} of a GPU as one layout for everything"
    else:
        told += "; no single layout for everything fits"
    order = by["arrival"]["seconds"] / ours["seconds"]
    return told + f"; in the samples' own order it takes {order:.2f} times as long."
