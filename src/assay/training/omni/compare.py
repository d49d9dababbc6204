"""`assay compare omni`: five ways to train an encoder with a language model, over the user's own schedule of mixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.encoders import vision
from assay.sim.models import model
from assay.training import omni
from assay.training.engine.cluster import read as machines
from assay.training.omni.search import SYSTEMS, choose, rates
from assay.training.omni.steps import Setup

UNITS = {"hours": "h", "memory": "bytes a rank"}
MOST_PHASES, LARGEST = 32, 2**26


@dataclass(frozen=True)
class Phase:
    """So many steps at one mix of image and text tokens."""

    image: float
    text: float
    steps: int


def read_schedule(path: Path) -> list[Phase]:
    """A TOML file of `[[phase]]` tables with `image`, `text` and `steps`.

    Raises:
        BadInput: the phase and what is wrong with it.
    """
    fields = reading.toml(path, "a TOML file of [[phase]] tables")
    listed = fields.get("phase")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_PHASES or set(fields) != {"phase"}:
        raise BadInput(f"{path}: should be 1 to {MOST_PHASES} [[phase]] tables with image, text and steps")
    return [_phase(table, f"{path}, phase {number}") for number, table in enumerate(listed, 1)]


def _phase(table: Any, where: str) -> Phase:
    if not isinstance(table, dict) or set(table) != {"image", "text", "steps"}:
        raise BadInput(f"{where}: should be image = 3, text = 7, steps = 1000")
    for name, value in table.items():
        kinds = (int,) if name == "steps" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= 1e9:
            raise BadInput(f"{where}: {name} is {value!r}, should be a number from 0 to 1e9")
    if not table["image"] + table["text"] > 0 or table["steps"] < 1:
        raise BadInput(f"{where}: image and text are not both 0, and steps at least 1")
    return Phase(float(table["image"]), float(table["text"]), int(table["steps"]))


@click.command(epilog="Example:  assay compare omni --schedule examples/mixes.toml")
@click.option(
    "--schedule", "path", required=True, type=click.Path(path_type=Path),
    help="How your mix moves: TOML with [[phase]] tables of image, text (shares of tokens) and steps.",
)  # fmt: skip
@click.option("--model", "language", default="llama-3-8b", show_default=True, help="The language model.")
@click.option("--encoder", default="vit-1b", show_default=True, help="A name, or LAYERSxHIDDENxHEADS.")
@click.option("--cluster", default="64xh100", show_default=True, help="COUNTxDEVICE[:ibGb/s], or a TOML file.")
@click.option("--seq", type=click.IntRange(256, 2**17), default=8192, show_default=True, help="Tokens of a sequence.")
@click.option("--batch", type=click.IntRange(1, 4096), default=128, show_default=True, help="Sequences of a step.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the samples drawn.")
def command(path: Path, language: str, encoder: str, cluster: str, seq: int, batch: int, seed: int) -> dict[str, Any]:
    """Your own schedule of mixes: how long it takes with the encoder on every rank, in the first stage, or apart."""
    if seq * batch > LARGEST:
        raise BadInput(f"--seq times --batch is {seq * batch}; at most {LARGEST} tokens a step")
    setup = Setup("yours", machines(cluster), vision(encoder), model(language), seq, batch)
    return compare(setup, read_schedule(path), seed, progress=click.get_current_context().obj)


def compare(
    setup: Setup, phases: list[Phase], seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Every system over the whole schedule, with the one layout that suits all its mixes best.

    Raises:
        BadInput: nothing fits this cluster.
    """
    mixes = tuple(dict.fromkeys((phase.image, phase.text) for phase in phases))
    mixes = tuple(sorted(mixes, key=lambda mix: mix[0] / sum(mix)))
    hours, most, left_out = dict.fromkeys(SYSTEMS, 0.0), dict.fromkeys(SYSTEMS, 0.0), dict.fromkeys(SYSTEMS, 0)
    table: list[dict[str, Any]] = []
    for done, phase in enumerate(phases):
        progress(done, len(phases))
        for name, found in rates(setup, (phase.image, phase.text), mixes, seed).items():
            left_out[name] += found is None
            hours[name] += phase.steps * found.seconds / 3600 if found else 0.0
            most[name] = max(most[name], found.memory if found else 0.0)
    for name in SYSTEMS:
        choice = choose(setup, name, mixes)
        layout = f"tp{choice.cut.tp} pp{choice.cut.pp} recompute {choice.cut.recompute}" if choice else "none that fits"
        whole = left_out[name] == 0
        table.append({
            "system": name, "hours": hours[name] if whole else None, "phases_out_of_memory": left_out[name],
            "memory": most[name] or None, "layout": layout,
        })  # fmt: skip
    if all(row["layout"] == "none that fits" for row in table):
        raise BadInput("no layout fits: take more devices, a smaller model, or a batch with more divisors")
    table.sort(key=lambda row: (row["hours"] is None, row["hours"] or 0.0))
    steps = sum(phase.steps for phase in phases)
    return {
        "schedule": {"phases": len(phases), "steps": steps, "mixes": ", ".join(omni.named(mix) for mix in mixes)},
        "table": table, "units": UNITS, "trust": omni.trust, "why": why(table),
    }  # fmt: skip


def why(table: list[dict[str, Any]]) -> str:
    """Who takes least, and who runs out of memory."""
    through = [row for row in table if row["hours"] is not None]
    short = [row["system"] for row in table if row["hours"] is None]
    lost = f" Out of memory in some phase: {', '.join(short)}." if short else ""
    if not through:
        return "no system gets through all phases." + lost
    if len(through) == 1:
        return f"{through[0]['system']} alone gets through all phases." + lost
    first, second = through[:2]
    longer = second["hours"] / first["hours"]
    if longer < 1.02:
        told = f"{first['system']} and {second['system']} tie ({longer:.2f} times as long)."
    else:
        told = f"{first['system']} takes least: {second['system']} takes {longer:.2f} times as long."
    return told + lost
