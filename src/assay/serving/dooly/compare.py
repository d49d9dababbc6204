"""`assay compare dooly`: step times and latencies of the user's own model, from operations timed on an H200."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput, unreadable
from assay.serving.dooly import h200, unseen_model
from assay.serving.dooly.dim_labels import operations
from assay.serving.dooly.torch_engine import Request, replay
from assay.serving.dooly.torch_model import CONFIGS, Shape
from assay.serving.dooly.torch_ops import PAGE
from assay.serving.engine.standings import Measure, add_leads, ranked, why
from assay.sim.models import Model
from assay.sim.roofline import roofline
from assay.workloads.time_option import TIME_UNIT, read_decided

ERROR = Measure("error", "mean error on held-out H200 runs", "those runs")
UNITS = {
    "ttft_mean": "s", "ttft_p99": "s", "tpot_mean": "s", "decode_step": "s", "prefill_step": "s", "error": "share",
    "ttft_error": "share", "tpot_error": "share",
}  # fmt: skip


@click.command(
    epilog="Example:  assay compare dooly --config examples/config.json --trace examples/chats.jsonl --rate 4"
)
@click.option(
    "--config", "source", required=True,
    help=f"Your model's Hugging Face config.json, or one of {', '.join(CONFIGS)}.",
)  # fmt: skip
@click.option("--trace", required=True, help="Any trace of requests, to simulate one H200 on.")
@click.option("--rate", type=click.FloatRange(1e-6), help="Requests a second.  [the trace's]")
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="Requests to simulate.")
@TIME_UNIT
def command(source: str, trace: str, rate: float | None, limit: int, time_unit: str | None) -> dict[str, Any]:
    """Your own model's latencies, predicted from timed operations, from the nearest model, and from a data sheet."""
    config = CONFIGS[source] if source in CONFIGS else _read(Path(source))
    requests = read_decided(trace, limit, time_unit)
    if rate is not None:
        if not requests.seconds:
            raise BadInput("--rate needs a trace that lasts some time")
        requests = requests.faster(rate / requests.rate)
    columns = (requests.arrival.tolist(), requests.prompt.tolist(), requests.output.tolist())
    asked = [Request(*row) for row in zip(*columns, strict=True)]
    return compare(config, asked, progress=click.get_current_context().obj)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error, f"a config.json or one of {', '.join(CONFIGS)} expected") from error
    except ValueError as error:
        raise BadInput(f"{path}: no JSON ({error}); a Hugging Face config.json expected") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path}: not an object; a Hugging Face config.json expected")
    return found


def compare(
    config: Mapping[str, Any], asked: Sequence[Request],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Each way to predict, on the same requests; and how far each was off models whose iterations it had not seen.

    >>> answer = compare(CONFIGS["mistral-7b"], [Request(0.1 * k, 300, 20) for k in range(5)])
    >>> [row["method"] for row in answer["table"]], answer["model"]["operations_timed"]
    (['dooly', 'nearest', 'roofline'], '12 of 12')
    """
    shape = Shape.from_hf(config)
    used = {str(op): count for op, count in operations(shape, unseen_model.BACKEND, unseen_model.DTYPE).items()}
    new = [op for op in used if not unseen_model.database().has(op, h200.MACHINE)]
    costs = unseen_model.predicted(shape, Model.from_hf(config, "own"), {} if new else used)
    kv_tokens = roofline(Model.from_hf(config, "own"), "h200").kv_tokens
    need = max(one.prompt + one.output for one in asked)
    if kv_tokens < need + PAGE:
        raise BadInput(f"the model leaves room for {kv_tokens:,} tokens of KV on one H200, a request needs {need:,}")
    limits = h200.LIMITS | {"pages": kv_tokens // PAGE}
    table: list[dict[str, Any]] = []
    for done, (name, cost) in enumerate(costs.items()):
        progress(done, len(costs) + 1)
        run = replay(asked, cost.seconds, **limits)
        table.append({
            "method": name, "ttft_mean": float(run.ttft.mean()), "ttft_p99": float(np.quantile(run.ttft, 0.99)),
            "tpot_mean": float(np.nanmean(run.tpot)) if np.isfinite(run.tpot).any() else None,
            "decode_step": cost.seconds(32, 32 * 1024), "prefill_step": cost.seconds(chunks=[(2048, 0)]),
        })  # fmt: skip
    progress(len(costs), len(costs) + 1)
    held_out = {name: np.array(each) for name, each in unseen_model.transferred().items() if name in costs}
    for row in table:
        row |= dict(
            zip(("error", "ttft_error", "tpot_error"), held_out[row["method"]].mean(axis=0).tolist(), strict=True)
        )
    add_leads(table, {name: each[:, 0] for name, each in held_out.items()}, ERROR)
    return {
        "model": {
            "parameters": f"{shape.parameters / 1e9:.1f} G", "layers": shape.layers,
            "operations_timed": f"{len(used) - len(new)} of {len(used)}",
            "overheads_of": unseen_model.closest(shape, unseen_model.CALIBRATED),
            "nearest": unseen_model.closest(shape, CONFIGS),
        },
        "requests": {"count": len(asked), "on": "1 x h200"},
        "table": table, "units": UNITS, "why": _why(table, new), "trust": _trust(table),
        "shown": ["method", "ttft_mean", "tpot_mean", "decode_step", "prefill_step", "error"],
    }  # fmt: skip


def _why(table: Sequence[Mapping[str, Any]], new: Sequence[str]) -> str:
    said = f"To be trusted most: {why(table, ERROR, 'dooly')}"
    if not new:
        return said
    told = ", ".join(new[:2]) + (", …" if len(new) > 2 else "")
    return (
        f"Dooly cannot predict this model from the stored profile: {len(new)} of its operations were never timed on an "
        f"H200 ({told}). {said}"
    )


def _trust(table: Sequence[Mapping[str, Any]]) -> str:
    best, ran = ranked(table, ERROR)[0], " and ".join(unseen_model.CALIBRATED)
    return (
        f"On {len(unseen_model.runs())} H200 runs of {ran}, each with the other's overheads as yours, "
        f"{best['method']} was off by {100 * best['ttft_error']:.0f} % in time to first token and "
        f"{100 * best['tpot_error']:.0f} % a token."
    )
