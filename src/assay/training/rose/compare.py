"""`assay compare rose`: the user's rollouts on the user's serving GPUs, with and without the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.record.errors import BadInput
from assay.training import rose
from assay.workloads.time_option import TIME_UNIT, read_decided
from assay.workloads.trajectories import read

MOST = 1 << 15  # trajectories of a step


@click.command(
    epilog="Example:  assay compare rose --trace examples/azure.csv --trajectories examples/trajectories.jsonl"
)
@click.option(
    "--trace",
    required=True,
    type=click.Path(path_type=Path),
    help="Requests to serve, in any format of `assay traces`.",
)
@click.option(
    "--trajectories", "path", required=True, type=click.Path(path_type=Path),
    help="Rollouts of a step: JSON lines, a turn a line (see `assay plan rl`).",
)  # fmt: skip
@click.option("--model", "name", type=click.Choice(list(rose.MODELS)), default="qwen3-8b", show_default=True)
@click.option(
    "--serving", type=click.IntRange(1, 256), default=8, show_default=True, help="GPUs (or groups) that serve."
)
@TIME_UNIT
@click.option("--dedicated", type=click.IntRange(1, 256), default=2, show_default=True, help="That only roll out.")
def command(trace: Path, path: Path, name: str, serving: int, dedicated: int, time_unit: str | None) -> dict[str, Any]:
    """Roll out on serving GPUs: how much sooner rollouts end, and whether requests stay in time."""
    work = read(path)
    if len(work) > MOST:
        raise BadInput(f"{path}: {len(work)} trajectories; give at most {MOST}")
    room = rose.cluster(name, dedicated, serving).room
    if int(work.length.max()) > room:
        raise BadInput(f"{path}: the longest trajectory has {work.length.max()} tokens and a GPU room for {room}")
    return rose.beside(read_decided(trace, None, time_unit), work, name, serving, dedicated)
