"""`assay compare entrain`: ways to deal the user's own samples to microbatches of an encoder and a language model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.sim.random import stream
from assay.training import entrain
from assay.training.engine.planning import TIE
from assay.training.entrain.steps import Setup, split_of
from assay.workloads.multimodal import Samples, read

UNITS = {
    "step": "s", "sight_spread": "s", "words_spread": "s", "memory": "bytes a rank", "image_mean": "tokens",
    "text_mean": "tokens",
}  # fmt: skip
BATCHES = 4
LARGEST = 8192  # samples of a step


@click.command(epilog="Example:  assay compare entrain --input examples/multimodal.jsonl")
@click.option(
    "--input", "path", required=True, type=click.Path(path_type=Path),
    help='Your samples: JSON lines {"image_tokens": 600, "text_tokens": 40}; either may be 0 or missing.',
)  # fmt: skip
@click.option("--model", "language", default=entrain.LANGUAGE[0], show_default=True, help="The language model.")
@click.option("--encoder", default=entrain.ENCODER, show_default=True, help="A name, or LAYERSxHIDDENxHEADS.")
@click.option("--cluster", default=entrain.CLUSTER, show_default=True, help="COUNTxDEVICE[:ibGb/s], or a TOML file.")
@click.option("--stages", type=click.IntRange(2, 64), default=8, show_default=True, help="Of a pipeline, both models.")
@click.option("--tp", type=click.IntRange(1, 16), default=2, show_default=True, help="Tensor parallelism.")
@click.option("--batch", type=click.IntRange(1), default=512, show_default=True, help="Samples of a step.")
@click.option("--mbs", type=click.IntRange(1, 64), default=4, show_default=True, help="Samples of a microbatch.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the batches drawn.")
def command(
    path: Path, language: str, encoder: str, cluster: str, stages: int, tp: int, batch: int, mbs: int, seed: int
) -> dict[str, Any]:
    """Your own samples in one pipeline of an encoder and a language model: who is fastest, and how even it is."""
    from assay.training.engine.cluster import read as machines

    on = machines(cluster)
    copies, rest = divmod(on.ranks, stages * tp)
    if rest or not copies:
        raise BadInput(f"--stages {stages} times --tp {tp} does not divide the {on.ranks} devices of {cluster}")
    m, rest = divmod(batch, copies * mbs)
    if rest or not m or m % stages or batch > LARGEST:
        fit = copies * mbs * stages
        raise BadInput(f"--batch {batch}: should be a multiple of {fit} ({copies} copies), at most {LARGEST}")
    setup = entrain.job(language, cluster, encoder, copies=copies, tp=tp, stages=stages, m=m, mbs=mbs)
    if not setup.splits():
        raise BadInput(f"--stages {stages}: more than there are layers in {encoder} and {language}")
    return compare(setup, read(path), seed, progress=click.get_current_context().obj)


def compare(
    setup: Setup, samples: Samples, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Every system on the same batches, drawn from the samples with replacement.

    >>> from assay.workloads.multimodal import draw
    >>> found = compare(entrain.job("llama-3.2-1b"), draw("blend", 300, seed=3))
    >>> "entrain" in found["why"], found["split"]["encoder_stages"]
    (True, 5)
    """
    random = stream(seed, "entrain", "batches")
    profile = samples[random.integers(0, len(samples), entrain.PROFILED)]
    every: dict[str, list[dict[str, Any]]] = {}
    for done in range(BATCHES):
        progress(done, BATCHES)
        batch = samples[random.integers(0, len(samples), setup.batch)]
        for name, found in entrain.systems(setup, batch, profile).items():
            every.setdefault(name, []).append(entrain.told(batch, found))
    table = [{"system": name} | {key: _mean(rows, key) for key in rows[0]} for name, rows in every.items()]
    table.sort(key=lambda row: (row["step"] is None, row["step"]))
    facts = {
        "samples": len(samples), "image_mean": float(samples.image.mean()), "text_mean": float(samples.text.mean()),
        "batches": BATCHES, "batch": setup.batch,
    }  # fmt: skip
    chosen = split_of(setup, profile)
    return {
        "samples": facts,
        "split": {"encoder_stages": chosen, "language_stages": setup.stages - chosen, "copies": setup.copies},
        "table": table, "units": UNITS, "trust": entrain.trust, "why": why(table, every),
        "shown": ["system", "step", "tokens_per_second", "sight_spread", "words_spread", "bubble", "memory", "put_off"],
    }  # fmt: skip


def _mean(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows]
    return None if any(value is None for value in values) else float(np.mean(values))


def why(table: list[dict[str, Any]], every: dict[str, list[dict[str, Any]]]) -> str:
    """Who is fastest, by how much, in how many batches; what the model cannot tell apart is a tie."""
    fitting = [row for row in table if row["step"] is not None]
    if not fitting:
        return "nothing fits into memory: take more stages, smaller microbatches or another device."
    if len(fitting) == 1:
        return f"{fitting[0]['system']} alone fits into memory."
    first, second = (row["system"] for row in fitting[:2])
    lead = np.array([b["step"] / a["step"] for a, b in zip(every[first], every[second], strict=True)])
    spread = f"{lead.mean():.2f} times as long, {lead.min():.2f} to {lead.max():.2f} over {len(lead)} batches"
    if lead.min() < 1 + TIE:
        told = f"{first} and {second} tie: the second takes {spread}."
    else:
        told = f"{first} is fastest: {second} takes {spread}."
    ours = next((row for row in fitting if row["system"] == "entrain"), None)
    if ours and "entrain" not in (first, second):
        told += f" entrain takes {ours['step'] / fitting[0]['step']:.2f} times as long as {first}."
    return told + ("" if ours else " entrain does not fit into memory.")
