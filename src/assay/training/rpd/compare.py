"""`assay compare rpd`: your own Sequential in a pipeline, with and without old weights, in equal slots."""

from __future__ import annotations

from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim import own_code
from assay.training import rpd
from assay.training.rpd import methods, objectives
from assay.training.rpd.slots import delays, timeline
from assay.training.rpd.stages import split

TIE = 0.02
UNITS = {"loss": "", "rate": ""}


@click.command(epilog="Example:  assay compare rpd --model examples/sequential.py:job --stages 4")
@click.option(
    "--model", "source", required=True, metavar="FILE.py:FUNCTION",
    help="A function that gives an nn.Sequential, its microbatches (pairs of tensors of one shape) and a loss.",
)  # fmt: skip
@click.option("--stages", type=click.IntRange(2, 64), default=4, show_default=True, help="Of the pipeline.")
@click.option("--slots", type=click.IntRange(8, 100_000), default=400, show_default=True, help="Passes of a stage.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order of microbatches.")
def command(source: str, stages: int, slots: int, seed: int) -> dict[str, Any]:
    """Your own model in a pipeline: PipeDream's old weights beside LocalSGD, flushes and one microbatch at a time."""
    return compare(source, stages, slots, seed)


def compare(source: str, stages: int, slots: int = 400, seed: int = 0) -> dict[str, Any]:
    """Every method in so many slots, each with its best step size.

    Raises:
        BadInput: no such function, what it gives is no job, or it has fewer modules than stages.
    """
    import torch

    found = own_code.load(source)()
    try:
        model, batches, loss = found
        pairs = [(x, y) for x, y in batches]
        layers = split(model, stages)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{source} should give (nn.Sequential, [(inputs, targets), ...], loss): {error}") from error
    problem = objectives.modules(layers, pairs, loss)
    start = float(problem.loss(problem.start[None])[0])
    table: list[dict[str, Any]] = []
    torch.set_num_threads(1)  # the products are so small that a second thread only waits
    for name in methods.METHODS:
        if name == "rpd":
            continue  # a model of PipeDream, not a way to train
        lowest, rate = methods.best(name, problem, slots, seed, problem.smoothness)
        table.append({"method": name, "loss": lowest, "of_start": lowest / start, "rate": rate})
    table.sort(key=lambda row: row["loss"])
    first, second = table[:2]
    ties = second["loss"] < (1 + TIE) * first["loss"]
    lead = f"{second['loss'] / first['loss']:.2f} times the loss"
    return {
        "model": {"weights": len(problem.start), "stages": stages, "microbatches": len(pairs), "slots": slots},
        "delay": delays(timeline(stages, 8 * stages)).steady(), "table": table, "units": UNITS, "trust": rpd.trust,
        "why": f"{first['method']} and {second['method']} tie: the second has {lead}."
        if ties else f"{first['method']} is lowest after {slots} slots: {second['method']} has {lead}.",
    }  # fmt: skip
