"""`assay compare fcp`: ways to share attention over the user's own sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.sim.models import model
from assay.sim.random import stream
from assay.training import fcp
from assay.training.engine.planning import read_lengths
from assay.training.fcp.blocks import Ints
from assay.training.fcp.pace import cluster

UNITS = {"seconds": "s", "mean": "tokens", "longest": "tokens"}
COLUMNS = ("mfu", "seconds", "imbalance", "memory", "rounds")
DRAWS = 8
LARGEST = 2**26  # tokens of one batch


@click.command(epilog="Example:  assay compare fcp --lengths examples/lengths.jsonl --ranks 16")
@click.option(
    "--lengths", "path", required=True, type=click.Path(path_type=Path),
    help="Tokens of your sequences: a number a line, or JSON lines with 'tokens' or 'length'.",
)  # fmt: skip
@click.option("--ranks", type=click.IntRange(2, 1024), default=64, show_default=True, help="GPUs that share a batch.")
@click.option("--tokens", type=click.IntRange(1024), default=fcp.PER_RANK, show_default=True, help="Of a batch, a GPU.")
@click.option("--block", type=click.IntRange(128), default=fcp.SIZE, show_default=True, help="Tokens of a block.")
@click.option("--mask", type=click.Choice(["causal", "full"]), default="causal", show_default=True)
@click.option("--model", "name", default="llama-3-70b", show_default=True, help="Whose attention heads.")
@click.option("--device", "on", default="h200", show_default=True, help="A GPU.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the batches drawn.")
def command(
    path: Path, ranks: int, tokens: int, block: int, mask: str, name: str, on: str, seed: int
) -> dict[str, Any]:
    """Attention over your own sequences: blocks, rings, heads cut, groups by length, and how evenly they load GPUs."""
    if ranks * tokens > LARGEST:
        raise BadInput(f"--ranks times --tokens is {ranks * tokens}; at most {LARGEST} tokens a batch")
    batches = drawn(read_lengths(path).astype(np.int64), ranks * tokens, seed)
    return compare(
        batches, ranks, size=block, causal=mask == "causal", name=name, on=on,
        progress=click.get_current_context().obj,
    )  # fmt: skip


def drawn(lengths: Ints, tokens: int, seed: int) -> list[Ints]:
    """Batches of so many tokens from a file's sequences, in drawn order; the last one of a batch is cut to fit."""
    random, found = stream(seed, "fcp", "batches"), []
    for _ in range(DRAWS):
        picked = lengths[random.integers(0, len(lengths), 1 + int(2 * tokens / lengths.mean()))]
        while picked.sum() < tokens:
            picked = np.concatenate([picked, lengths[random.integers(0, len(lengths), len(picked))]])
        last = int(np.searchsorted(np.cumsum(picked), tokens))
        batch = picked[: last + 1].copy()
        batch[-1] -= int(batch.sum()) - tokens
        found.append(batch)
    return found


def compare(
    batches: list[Ints], ranks: int, *, size: int = fcp.SIZE, causal: bool = True, name: str = "llama-3-70b",
    on: str = "h200", progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every system on the same batches.

    >>> from assay.workloads.lengths import lognormal
    >>> batch = lognormal(16 * 32768, seed=0)
    >>> sorted(row["system"] for row in compare([batch], 16)["table"])
    ['compute only', 'fcp', 'fcp, heads cut', 'groups', 'ring', 'ring or groups', 'usp']
    """
    if model(name).latent is not None:
        raise BadInput(f"--model {name} has latent attention, of which no keys and values travel; choose another")
    where = cluster(ranks, name, on)
    found: dict[str, list[dict[str, Any]]] = {}
    for done, batch in enumerate(batches):
        progress(done, len(batches))
        for system, row in fcp.systems(batch, where, size, causal).items():
            found.setdefault(system, []).append(row)
    table: list[dict[str, Any]] = [
        {"system": system} | {column: _mean(rows, column) for column in COLUMNS} for system, rows in found.items()
    ]
    table.sort(key=lambda row: row["seconds"])
    every = np.concatenate(batches)
    facts = {"batches": len(batches), "sequences": len(every), "mean": float(every.mean()), "longest": int(every.max())}
    return {
        "sequences": facts, "cluster": {"gpus": ranks, "gpu": on, "model": name}, "table": table, "units": UNITS,
        "why": why(table, {system: [row["seconds"] for row in rows] for system, rows in found.items()}),
        "trust": fcp.trust,
    }  # fmt: skip


def _mean(rows: list[dict[str, Any]], column: str) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return float(np.mean(values)) if values else None


def why(table: list[dict[str, Any]], seconds: dict[str, list[float]]) -> str:
    """Who is fastest, by how much, in how many batches; what is inside their spread is a tie."""
    first, second, *_ = (row for row in table if row["system"] != "ring or groups")
    one, other = first["system"], second["system"]
    lead = np.array(seconds[other]) / np.array(seconds[one])
    spread = f"{lead.min():.2f} to {lead.max():.2f} over {len(lead)} batches"
    if lead.min() < 1.01:
        return f"{one} and {other} tie: {other} takes {lead.mean():.2f} times as long ({spread})."
    said = f"{one} is fastest: {other} takes {lead.mean():.2f} times as long ({spread})."
    if one != "fcp":
        ours = next(row for row in table if row["system"] == "fcp")
        said += f" fcp takes {ours['seconds'] / first['seconds']:.2f} times as long."
    return said
