"""`assay compare sidp`: layouts of one machine for the user's own offline job."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.serving import sidp
from assay.serving.engine.standings import Measure, add_leads_over_draws, why
from assay.sim.hardware import device
from assay.sim.models import model
from assay.sim.random import stream
from assay.workloads.time_option import TIME_UNIT

RATE = Measure("tokens_per_second", "output tokens/s", "requests", least=False)
DRAWS = 20
UNITS = {
    "seconds": "s", "tokens_per_second": "tokens/s", "batch_mean": "sequences/replica", "kv_tokens_per_gpu": "tokens",
}  # fmt: skip


@click.command(epilog="Example:  assay compare sidp --job examples/azure.csv --copies 10 --gpus 4xh20:qwen3-32b")
@click.option(
    "--job", "path", required=True, type=click.Path(path_type=Path),
    help="The batch: any trace of prompt and output lengths; arrivals do not matter.",
)  # fmt: skip
@click.option("--gpus", "machine", default="8xh200:qwen3-32b", show_default=True, help="COUNTxGPU:MODEL.")
@click.option("--copies", type=click.IntRange(1, 1000), default=1, show_default=True, help="The job so many times.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order and the draws.")
@TIME_UNIT
def command(
    path: Path, machine: str, copies: int, limit: int | None, seed: int, time_unit: str | None
) -> dict[str, Any]:
    """Layouts for your own offline job: replicas, pipelines, wider cuts, weights shared or in host memory."""
    from assay.workloads.request_files import read

    found = re.fullmatch(r"(\d{1,2})x([\w.-]+):([\w./-]+)", machine.strip())
    if not found or int(found[1]) < 1:
        raise BadInput(f"--gpus '{machine}': write COUNTxGPU:MODEL, for example 8xh200:qwen3-32b; cuts are tried here")
    on, name = device(found[2]).name, found[3]
    model(name)  # an unknown one is refused by name
    job = read(path, limit=limit, time_unit=time_unit)
    lengths = np.tile(np.stack([job.prompt, job.output]).astype(np.int64), copies)
    # Equal lengths often follow one another in a file; replicas are dealt alike only from a shuffled one.
    order = stream(seed, "sidp", "own").permutation(lengths.shape[1])
    progress = click.get_current_context().obj
    return compare(*lengths[:, order], on=on, name=name, gpus=int(found[1]), seed=seed, progress=progress)


def compare(
    prompt: Any, output: Any, *, on: str = "h200", name: str = "qwen3-32b", gpus: int = sidp.GPUS, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every system at its layout for the job, and how sure the order is, from jobs drawn from the same requests.

    >>> prompt, output = sidp.batch("long", 400, seed=0)
    >>> answer = compare(prompt, output, on="h100", gpus=4)
    >>> rates = {row["system"]: row["tokens_per_second"] for row in answer["table"]}
    >>> rates["sidp"] > rates["dp"]
    True
    """
    job = np.asarray(prompt, np.int64), np.asarray(output, np.int64)
    found = sidp.contenders(on, name, *job, gpus)
    random = stream(seed, "sidp", "draws")
    draws_of = DRAWS if len(job[0]) > 1 else 0  # one request tells no spread
    picks = [np.arange(len(job[0])), *random.integers(0, len(job[0]), (draws_of, len(job[0])))]
    table = [{"system": system} | sidp.row(option, *job) for system, option in found.items()]
    draws: dict[str, list[float]] = {system: [] for system in found}
    for done, pick in enumerate(picks):
        progress(done, len(picks))
        for system, option in found.items():
            seconds, _ = sidp.makespan(option, job[0][pick], job[1][pick])
            draws[system].append(float(job[1][pick].sum()) / seconds)
    add_leads_over_draws(table, draws, RATE)
    return {
        "job": {
            "requests": len(job[0]), "prompt_mean": float(job[0].mean()), "output_mean": float(job[1].mean()),
        },
        "machine": {"gpus": gpus, "gpu": on, "model": name},
        "table": table, "units": UNITS,
        "why": why(table, RATE, "sidp"), "trust": sidp.trust,
        "shown": ["system", "layout", "tokens_per_second", "seconds", "batch_mean", "kv_bound_share"],
    }  # fmt: skip
