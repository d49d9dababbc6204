"""`assay plan training`: which layout, which schedule, what a step takes and needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from assay.sim.models import model
from assay.training.engine import cluster as clusters
from assay.training.engine import planning


@click.command(name="training", epilog="Example:  assay plan training --model llama-3-8b --cluster 64xh100:ib400")
@click.option("--model", "name", required=True, help="A model's name, or its config.json.")
@click.option(
    "--cluster", "machines", required=True, help="COUNTxDEVICE[:ibGb/s], such as 64xh100:ib400, or a TOML file."
)
@click.option("--batch", type=click.IntRange(1), default=512, show_default=True, help="Sequences of a step.")
@click.option("--seq", type=click.IntRange(1), default=4096, show_default=True, help="Tokens of a sequence.")
@click.option(
    "--lengths", type=click.Path(path_type=Path),
    help="A JSONL file of your documents' lengths (a number, or an object with tokens or length, a line), packed into "
    "sequences: attention then costs what they cost.",
)  # fmt: skip
@click.option(
    "--search", type=click.Choice(list(planning.SEARCHES)), default="exhaustive", show_default=True,
    help="All plans, or those that a Bayesian search asks for.",
)  # fmt: skip
@click.option(
    "--collectives", type=click.Choice(["closed", "nccl"]), default="closed", show_default=True,
    help="What exchanges take: closed forms of rings and trees, or NCCL's own choice of algorithm and protocol.",
)  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="Layouts to show.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the winner's step for Perfetto.")
@click.option("--chakra", type=click.Path(path_type=Path), help="Write it as Chakra traces into this folder.")
def command(
    name: str, machines: str, batch: int, seq: int, lengths: Path | None, search: str, collectives: str, top: int,
    timeline: Path | None, chakra: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """The best layouts of a model on a cluster, with step time, memory and cost, and why the winner wins."""
    job = planning.job(batch, seq, lengths)
    progress = click.get_current_context().obj
    cluster = clusters.read(machines)
    if collectives == "nccl":
        cluster = replace(cluster, collectives=clusters.Nccl.of(cluster))
    found = planning.best(model(name), cluster, job, search=search, progress=progress)
    if timeline is not None:
        from assay.training.engine import perfetto

        perfetto.write(found.fastest, timeline)
    if chakra is not None:
        from assay.training.engine import chakra as traces

        traces.write(found.fastest, chakra)
    return planning.answer(found, top)
