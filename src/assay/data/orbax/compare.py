"""`assay compare orbax`: checkpointers side by side on the user's own state."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from assay.data.orbax import side_by_side
from assay.data.orbax.files import read
from assay.data.orbax.tree import as_kind
from assay.record.errors import BadInput
from assay.record.extras import missing_module


@click.command(epilog="Example:  assay compare data --job ckpt --input examples/state.safetensors")
@click.option(
    "--input",
    "state",
    required=True,
    help="A .safetensors, .npz or .pt, a folder of Hugging Face or Orbax, a store@STEP.",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Interleaved timed rounds.")
def command(state: str, rounds: int) -> dict[str, Any]:
    """Save and load your own state with each tool that is installed: durable saves, loads from disk and cache."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("comparing checkpointers", error)) from error
    torch.set_num_threads(1)
    tensors = {}
    for leaf in read(state):
        data = np.array(np.frombuffer(leaf.views[0][1], np.uint8))
        tensors[leaf.path.replace("/", ".")] = as_kind(data, "torch", leaf.dtype, leaf.shape)
    if unusual := [
        name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16 or "float8" in str(tensor.dtype)
    ]:
        tensors |= {name: tensors[name].float() for name in unusual}  # NumPy and Orbax are given what they have, too
    table = [{"tool": name, **row} for name, row in side_by_side(tensors, rounds).items()]
    table.sort(key=lambda row: row["save"] + row["load"])
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    facts = {"arrays": len(tensors), "bytes": size, "rounds": rounds, "widened_to_float32": len(unusual)}
    return {
        "state": facts,
        "table": table,
        "why": _why(table),
        "shown": ["tool", "save", "load", "resume", "blocks", "same"],
    }


def _why(table: list[dict[str, Any]]) -> str:
    """Who is quickest at what; within a tenth of each other is a tie on a disk that others use."""
    told = []
    for what in ("save", "load"):
        first, second = sorted(table, key=lambda row: row[what])[:2]
        if second[what] < 1.1 * first[what]:
            told.append(f"{first['tool']} and {second['tool']} tie at a {what}")
        else:
            told.append(
                f"{first['tool']} is {second[what] / first[what]:.1f} times as fast at a {what} as {second['tool']}"
            )
    wrong = [row["tool"] for row in table if row["same"] != 1.0]
    return "; ".join(told) + "." + (f" {', '.join(wrong)} did not give back what was saved." if wrong else "")
