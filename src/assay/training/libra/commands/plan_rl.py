"""`assay plan rl`: how many GPUs roll out and how many train, for the user's own trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim.hardware import device
from assay.sim.models import model
from assay.training import libra
from assay.training.libra.planner import Machine
from assay.workloads.trajectories import read

MOST = 512  # GPUs
ROLLOUTS = 1 << 17


@click.command(
    name="rl",
    epilog="Example:  assay plan rl --trajectories examples/trajectories.jsonl --device a800 --gpus 48",
)
@click.option(
    "--trajectories", "path", required=True, type=click.Path(path_type=Path),
    help="Your rollouts: JSON lines, a turn a line, with trajectory, turn, prompt_tokens (new ones), gen_tokens, and "
    "where there was a tool tool, payload_bytes, status, env_seconds; step, where there are several.",
)  # fmt: skip
@click.option("--gpus", type=click.IntRange(2, MOST), default=64, show_default=True, help="For both sides together.")
@click.option("--model", "name", default="qwen3-8b", show_default=True, help="A model's name, or its config.json.")
@click.option("--device", "on", default="h200", show_default=True, help="The GPU.")
@click.option(
    "--batch", type=click.IntRange(8, ROLLOUTS),
    help="Trajectories of a step, drawn from yours; those of the latest step where it is not given.",
)  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="Splits to show.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the trajectories drawn.")
def command(path: Path, gpus: int, name: str, on: str, batch: int | None, top: int, seed: int) -> dict[str, Any]:
    """Split GPUs between rollout and training: seconds of a step, who waits for whom, sizes of instances."""
    work = read(path)
    work = work if batch is None else libra.scaled(work, batch, seed)
    if len(work) > ROLLOUTS:
        raise BadInput(f"{path}: {len(work)} trajectories; give at most {ROLLOUTS} of a step")
    model(name), device(on)  # unknown ones are told before anything is planned
    return libra.answer(work, Machine(name, on.lower(), gpus), top)
