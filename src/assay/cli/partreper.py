"""`assay partreper`: a script of mpi4py some of whose ranks have a second process that takes over when one dies."""

from __future__ import annotations

from dataclasses import asdict

import click

from assay.cli.output import json_option, print_json
from assay.record.errors import BadInput
from assay.record.types import NotMeasured

EXAMPLE = "Example:  assay partreper run -n 4 --replicas 2 --kill 0:25 examples/heat_mpi.py"


@click.group(epilog=EXAMPLE)
def command() -> None:
    """MPI jobs that survive kill -9 of processes whose rank has a replica."""


@command.command("run", epilog=EXAMPLE)
@click.option("-n", "ranks", default=2, show_default=True, type=click.IntRange(1, 256), help="Ranks the script sees.")
@click.option("--replicas", default=0, show_default=True, type=click.IntRange(0, 256), help="Of the first ranks.")
@click.option("--replicate", default="", metavar="RANK,...", help="Which ranks have one, instead of the first.")
@click.option(
    "--kill", "kills", multiple=True, metavar="PROCESS:CALL",
    help="Kill a process before a call of its, counted from 0, to see; replicas are numbered behind the ranks.",
)  # fmt: skip
@click.option("--limit", default=3600.0, show_default=True, type=click.FloatRange(1), help="Seconds of the whole job.")
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
@json_option
def run(
    ranks: int, replicas: int, replicate: str, kills: tuple[str, ...], limit: float, script: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT, whose `from mpi4py import MPI` became `from assay.training.partreper import MPI`.

    It goes on while every rank has a process left; else it ends with exit code 1 and the name of the rank.
    """
    from assay.training import partreper

    twins = partreper.replicate(ranks, replicas, replicate)
    doomed = [partreper.kill(one, ranks + len(twins)) for one in kills]
    try:
        found = partreper.run_script(script, ranks, twins, doomed, limit=limit)
    except NotMeasured as error:
        raise BadInput(str(error)) from error
    if as_json:
        print_json({"ranks": ranks, "replicated": list(twins), **asdict(found)})
        return
    for text in found.printed:
        click.echo(text, nl=False)
    died = f"process {', '.join(map(str, found.died))} died; " if found.died else ""
    click.echo(f"{died}{ranks} ranks, {len(twins)} replicated, came to the end", err=True)
