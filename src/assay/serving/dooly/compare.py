"""`assay compare dooly`: step times and latencies of the user's own model, from operations timed on an H200."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput, unreadable
from assay.serving.dooly import h200
from assay.serving.dooly.dim_labels import operations
from assay.serving.dooly.replayed import Timed, errors
from assay.serving.dooly.torch_engine import Request, replay
from assay.serving.dooly.torch_model import CONFIGS, Shape, shape_of
from assay.serving.dooly.torch_ops import PAGE
from assay.serving.engine.standings import Measure, add_leads, ranked, why
from assay.sim.cost_fit import Launched, fit_engine
from assay.sim.llm_cost import StepCost
from assay.sim.models import Model
from assay.sim.profile_db import ProfileDB, step_cost
from assay.sim.roofline import roofline

BACKEND, DTYPE = "paged", "bfloat16"
CALIBRATED = tuple(h200.NEAREST)  # models whose iterations were measured, too
ERROR = Measure("error", "mean error on held-out H200 runs", "those runs")
UNITS = {
    "ttft_mean": "s", "ttft_p99": "s", "tpot_mean": "s", "decode_step": "s", "prefill_step": "s", "error": "share",
    "ttft_error": "share", "tpot_error": "share",
}  # fmt: skip


@click.command(epilog="Example:  assay compare dooly --config config.json --trace chats.jsonl --rate 4")
@click.option(
    "--config", "source", required=True,
    help=f"Your model's Hugging Face config.json, or one of {', '.join(CONFIGS)}.",
)  # fmt: skip
@click.option("--trace", required=True, help="Any trace of requests, to simulate one H200 on.")
@click.option("--rate", type=click.FloatRange(1e-6), help="Requests a second.  [the trace's]")
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="Requests to simulate.")
def command(source: str, trace: str, rate: float | None, limit: int) -> dict[str, Any]:
    """Your own model's latencies, predicted from timed operations, from the nearest model, and from a data sheet."""
    from assay.workloads.request_files import read

    config = CONFIGS[source] if source in CONFIGS else _read(Path(source))
    requests = read(trace, limit=limit)
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
    used = {str(op): count for op, count in operations(shape, BACKEND, DTYPE).items()}
    new = [op for op in used if not _database().has(op, h200.MACHINE)]
    costs = predicted(shape, Model.from_hf(config, "own"), {} if new else used)
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
    held_out = {name: np.array(each) for name, each in transferred().items() if name in costs}
    for row in table:
        row |= dict(
            zip(("error", "ttft_error", "tpot_error"), held_out[row["method"]].mean(axis=0).tolist(), strict=True)
        )
    add_leads(table, {name: each[:, 0] for name, each in held_out.items()}, ERROR)
    return {
        "model": {
            "parameters": f"{shape.parameters / 1e9:.1f} G", "layers": shape.layers,
            "operations_timed": f"{len(used) - len(new)} of {len(used)}",
            "overheads_of": _closest(shape, CALIBRATED), "nearest": _closest(shape, CONFIGS),
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
        f"H200 ({told}); benchmarks/h200_engine.py times them on one. {said}"
    )


def _trust(table: Sequence[Mapping[str, Any]]) -> str:
    best = ranked(table, ERROR)[0]
    return (
        f"On {len(_runs())} H200 runs of {' and '.join(CALIBRATED)}, each with the other's overheads as yours, "
        f"{best['method']} was off by {100 * best['ttft_error']:.0f} % in time to first token and "
        f"{100 * best['tpot_error']:.0f} % a token."
    )


# ----------------------------------------------------------------------------- a model nobody ran


@dataclass(frozen=True)
class Overheads:
    """What an engine adds to its operations, per layer where the host launches them."""

    factor: float
    fixed: float
    seq: float
    chunk: float
    launch: tuple[float, float, float]

    @classmethod
    def between(cls, bare: StepCost, fitted: Launched, layers: int) -> Overheads:
        """What `fit_engine` added to the operations of a model with so many layers."""
        factor = fitted.cost.decode_kv / bare.decode_kv
        return cls(
            factor, float(fitted.cost.tokens[1] - factor * bare.tokens[1]) / layers,
            fitted.cost.decode_seq - factor * bare.decode_seq, fitted.cost.prefill_fixed - factor * bare.prefill_fixed,
            (fitted.alone / layers, fitted.mixed / layers, fitted.once / layers),
        )  # fmt: skip

    def on(self, bare: StepCost, layers: int) -> Launched:
        """The same on another model's operations."""
        base = bare.scaled(self.factor)
        whole = replace(
            base, tokens=base.tokens + self.fixed * layers, decode_seq=base.decode_seq + self.seq,
            prefill_fixed=base.prefill_fixed + self.chunk,
        )  # fmt: skip
        return Launched(whole, *(layers * part for part in self.launch))


@lru_cache(maxsize=1)
def _database() -> ProfileDB:
    return h200.database()


def _bare(used: Mapping[str, int]) -> StepCost:
    padded = h200.padded_sizes(h200.FOLDER, BACKEND)
    return step_cost(_database(), dict(used), h200.MACHINE, max_tokens=h200.MOST, padded=padded)


@lru_cache(maxsize=4)
def overheads(name: str) -> Overheads:
    """Of a model whose iterations were measured."""
    bare = _bare(_database().operations(name, BACKEND))
    return Overheads.between(
        bare, fit_engine(bare, h200.observed(h200.FOLDER, "steps", name, BACKEND)), shape_of(name).layers
    )


def _closest(shape: Shape, among: Iterable[str], but: str = "") -> str:
    """The model among these, experts like experts, whose number of parameters is closest and not the very same."""
    others = {name: shape_of(name) for name in among if name != but}
    alike = [name for name, other in others.items() if (other.experts > 0) == (shape.experts > 0)]
    apart = {name: abs(math.log(others[name].parameters / shape.parameters)) for name in alike or others}
    return min(apart, key=lambda name: apart[name] or math.inf)


def predicted(shape: Shape, model: Model, used: Mapping[str, int], but: str = "") -> dict[str, Timed]:
    """A model's step time in three ways, as for one that never ran: `but` names one that must not be looked at."""
    near, added = _closest(shape, CONFIGS, but), overheads(_closest(shape, CALIBRATED, but))
    scaled = _bare(_database().operations(near, BACKEND)).scaled(shape.parameters / shape_of(near).parameters)
    found: dict[str, Timed] = {"dooly": added.on(_bare(used), shape.layers)} if used else {}
    return found | {"nearest": added.on(scaled, shape.layers), "roofline": roofline(model, "h200")}


def _runs() -> list[tuple[str, str, str]]:
    return [run for run in h200.served() if run[1] == BACKEND]


@lru_cache(maxsize=1)
def transferred() -> dict[str, list[tuple[float, float, float]]]:
    """Errors (mean of both, first token, a token) on each measured run, of predictions that had not seen its model."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name, backend, workload in _runs():
        measured = h200.measured_run(h200.FOLDER, name, backend, workload)
        used = _database().operations(name, BACKEND)
        for method, cost in predicted(shape_of(name), Model.from_hf(CONFIGS[name], name), used, but=name).items():
            off = errors(measured, cost, h200.LIMITS)
            both = 0.5 * (off["ttft_error"] + off["tpot_error"])
            found.setdefault(method, []).append((both, off["ttft_error"], off["tpot_error"]))
    return found
