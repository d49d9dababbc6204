"""`assay plan training`: which layout, which schedule, what a step takes and needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from assay.sim.models import model
from assay.training.engine import cluster as clusters
from assay.training.engine import planning
from assay.training.engine.launch import read_plan


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
@click.option(
    "--layout", "line", help="Price one plan of your own, such as 'tp8 pp16 vpp4 cp2 dp128 zero1 mbs1 recompute full'."
)
@click.option(
    "--precision", type=click.Choice(list(planning.PRECISIONS)), default="bf16", show_default=True,
    help="What the layers' products are computed in; with fp8 the rest stays bf16, as in Transformer Engine.",
)  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="Layouts to show.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the winner's step for Perfetto.")
@click.option("--chakra", type=click.Path(path_type=Path), help="Write it as Chakra traces into this folder.")
def command(
    name: str, machines: str, batch: int, seq: int, lengths: Path | None, search: str, collectives: str,
    line: str | None, precision: str, top: int, timeline: Path | None, chakra: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """The best layouts of a model on a cluster, with step time, memory and cost, why the winner wins, and its flags."""
    job = planning.job(batch, seq, lengths)
    progress = click.get_current_context().obj
    cluster = planning.in_precision(clusters.read(machines), precision)
    if collectives == "nccl":
        cluster = replace(cluster, collectives=clusters.Nccl.of(cluster))
    if line is not None:
        found = planning.own(model(name), cluster, job, read_plan(line, cluster.ranks))
    else:
        found = planning.best(model(name), cluster, job, search=search, progress=progress)
    if timeline is not None:
        from assay.training.engine import perfetto

        perfetto.write(found.fastest, timeline)
    if chakra is not None:
        from assay.training.engine import chakra as traces

        traces.write(found.fastest, chakra)
    return planning.answer(found, top)
