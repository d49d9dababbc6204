"""What was measured on an H200 (`benchmarks/h200_engine.py`), and how well it predicts itself.

Operation times, single iterations and short serving runs made for the purpose are the calibration; the other serving
runs are held back: their requests are simulated with the step times that the former predict, and compared with what
they took on the wall clock. Predicted are step times from operations ("dooly"), from iterations alone ("step grid"),
from a neighbour's operations ("nearest") and from a data sheet ("roofline").
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assay.serving.dooly.graph_pieces import SIZES
from assay.serving.dooly.replayed import Timed, errors
from assay.serving.dooly.torch_engine import GRAPH_SIZES, Outcome, Request, Step
from assay.sim import profiles
from assay.sim.cost_fit import Observed, fit_engine, fit_grid
from assay.sim.llm_cost import StepCost
from assay.sim.profile_db import ProfileDB, step_cost

FOLDER = profiles.FOLDER / "h200"
MACHINE = "h200"
NEAREST = {"llama-3-8b": "qwen3-8b", "qwen3-32b": "qwen3-14b"}
PARAMETERS = {"llama-3-8b": 8.03e9, "qwen3-8b": 8.19e9, "qwen3-32b": 32.8e9, "qwen3-14b": 14.8e9}
MOST = 2304  # tokens of an iteration
LIMITS = {"max_batched_tokens": 2048, "max_seqs": 256, "pages": 10_000}


def available(folder: Path = FOLDER) -> bool:
    """Whether the measurements are at hand."""
    return all((folder / f"{name}.csv").exists() for name in ("ops", "profiling", "steps", "requests", "run_steps"))


def stored(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of one file."""
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def chunks(text: str) -> tuple[tuple[int, int], ...]:
    """The chunks of an iteration.

    >>> chunks("512+0;64+1024")
    ((512, 0), (64, 1024))
    """
    pairs = (part.split("+") for part in text.split(";") if part)
    return tuple((int(c), int(pre)) for c, pre in pairs)


def database(folder: Path = FOLDER) -> ProfileDB:
    """The stored operation times as a profile database, with each model's operations."""
    db = ProfileDB()
    for row in stored(folder, "ops"):
        for sample in filter(None, row["samples"].split(";")):
            dims, _, seconds = sample.rpartition(":")
            sizes = {name: int(value) for name, value in (pair.split("=") for pair in dims.split())}
            db.put(row["op"].partition("(")[0], row["op"], MACHINE, sizes, float(seconds))
    uses: dict[tuple[str, str], dict[str, int]] = {}
    for row in stored(folder, "profiling"):
        attention = row["op"].startswith("paged_attention")
        for backend in ("paged", "sdpa"):
            if not attention or row["op"].rstrip(")").endswith(backend):
                uses.setdefault((row["model"], backend), {})[row["op"]] = int(row["count"])
    for (model, backend), operations in uses.items():
        db.use(model, operations, backend)
    return db


def observed(folder: Path, name: str, model: str, backend: str, workload: str = "") -> list[Observed]:
    """Iterations of one engine from `steps` or `run_steps`; of one run where its workload is named."""
    return [
        Observed(int(row["b"]), int(row["context"]), chunks(row["chunks"]), float(row["seconds"]))
        for row in stored(folder, name)
        if (row["model"], row["backend"]) == (model, backend) and (not workload or row["workload"] == workload)
    ]


def padded_sizes(folder: Path, backend: str) -> tuple[int, ...]:
    """What the measured engine rounded the tokens of its iterations up to: decodes, and prompts too if in pieces."""
    decodes = GRAPH_SIZES if backend == "paged" else ()
    return tuple(sorted({*decodes, *SIZES})) if "source" in stored(folder, "steps")[0] else decodes


def predicted(
    db: ProfileDB, model: str, backend: str, seen: list[Observed], padded: Sequence[int], scale: float = 1.0
) -> StepCost:
    """The step time of a model from its operations, with the engine's overheads added."""
    bare = step_cost(db, db.operations(model, backend), MACHINE, max_tokens=MOST, padded=padded)
    return fit_engine(bare.scaled(scale), seen)


@lru_cache(maxsize=1)
def rows(folder: Path = FOLDER) -> pl.DataFrame | None:
    """The study's rows that come from the stored measurements; None where there are none."""
    if not available(folder):
        return None
    found = [*_profiling(folder), *_serving(folder)]
    return pl.from_dicts(found, infer_schema_length=None).with_columns(substrate=pl.lit("h200"))


def _profiling(folder: Path) -> list[dict[str, Any]]:
    timed = stored(folder, "profiling")
    scratch = [float(row["seconds"]) for row in timed]
    new = [float(row["seconds"]) for row in timed if row["new"] == "1"]
    return [
        {"experiment": "profiling", "method": method, "seed": 0, "seconds": sum(part), "operations": len(part)}
        for method, part in (("scratch", scratch), ("dooly", new))
    ]


def served(folder: Path = FOLDER) -> list[tuple[str, str, str]]:
    """The measured serving runs: model, backend, workload."""
    return sorted({(row["model"], row["backend"], row["workload"]) for row in stored(folder, "requests")})


def measured_run(folder: Path, *run: str) -> Outcome:
    """The requests and iterations of one of them."""
    parts = (stored(folder, name) for name in ("requests", "run_steps"))
    return _outcome(
        *([row for row in rows if (row["model"], row["backend"], row["workload"]) == run] for rows in parts)
    )


def _serving(folder: Path) -> list[dict[str, Any]]:
    predictors = lru_cache(partial(costs, database(folder), folder))
    runs = served(folder)
    found = []
    for number, run in enumerate(runs):
        model, backend, _ = run
        measured = measured_run(folder, *run)
        for method, cost in predictors(model, backend).items():
            case = {"experiment": "serving", "model": model, "backend": backend, "workload": run[2], "seed": number}
            found.append(case | {"method": method, "count": len(measured.requests)} | errors(measured, cost, LIMITS))
    return found


def costs(db: ProfileDB, folder: Path, model: str, backend: str) -> dict[str, Timed]:
    """The step time of a model predicted in four ways; all but the roofline see the same calibration."""
    from assay.sim.roofline import layout

    seen = observed(folder, "steps", model, backend)
    padded = padded_sizes(folder, backend)
    near = NEAREST[model]
    return {
        "dooly": predicted(db, model, backend, seen, padded),
        "step grid": fit_grid(seen, max_tokens=MOST, padded=padded),
        "nearest": predicted(db, near, backend, seen, padded, PARAMETERS[model] / PARAMETERS[near]),
        "roofline": layout(f"h200:{model}"),
    }


def _outcome(requests: list[dict[str, str]], steps: list[dict[str, str]]) -> Outcome:
    return Outcome(
        tuple(Request(float(r["arrival"]), int(r["prompt"]), int(r["output"])) for r in requests),
        np.array([float(r["first"]) for r in requests]),
        np.array([float(r["finish"]) for r in requests]),
        tuple(
            Step(float(s["start"]), 0, int(s["b"]), int(s["context"]), chunks(s["chunks"]), float(s["seconds"]))
            for s in steps
        ),
    )
