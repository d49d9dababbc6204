"""Fit the step times that were measured on an H200, and say how far they, and data sheets, are off.

    python benchmarks/cost_error.py

Writes `src/assay/sim/profiles/h200/MODEL.toml` from the iterations that calibrate (`steps.csv`), and
`src/assay/sim/trust.toml` from the serving runs that were held back (`requests.csv`, `run_steps.csv`): each is
simulated by the engine of `assay compare serving` with the step times in question, and its requests are compared with
what they took on the wall clock. No run is in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.record.store import write_whole
from assay.serving import RoundRobin, parse, simulate
from assay.serving.dooly import h200
from assay.sim import profiles, trust
from assay.sim.cost_fit import Observed, fit_grid
from assay.workloads.requests import Requests

GPU, BACKEND = "h200", "paged"  # whose iterations the profiles are; data sheets answer for every engine measured
ENGINE = "assay's own torch engine: paged attention, CUDA graphs, bf16"
PAGE = 16  # tokens


class Run(NamedTuple):
    """A serving run that was measured."""

    model: str
    backend: str
    workload: str
    requests: Requests
    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    steps: list[Observed]


def calibration(model: str) -> list[Observed]:
    """The iterations that a model's step time is fitted to."""
    return h200.observed(h200.FOLDER, "steps", model, BACKEND)


def fitted(model: str) -> profiles.Profile:
    """A model's step time, and what it was fitted to."""
    seen = calibration(model)
    most = max(s.n for s in seen)
    cost = fit_grid(seen, max_tokens=most + 1, padded=h200.padded_sizes(h200.FOLDER, BACKEND))
    return profiles.Profile(cost, most, max(s.b for s in seen), max(s.context for s in seen), len(seen), ENGINE)


@cache
def held_back() -> list[Run]:
    """The runs that no step time was fitted to."""
    rows = h200.stored(h200.FOLDER, "requests")
    found = []
    for run in sorted({(row["model"], row["backend"], row["workload"]) for row in rows}):
        own = [row for row in rows if (row["model"], row["backend"], row["workload"]) == run]
        columns = {name: np.array([float(row[name]) for row in own]) for name in ("arrival", "first", "finish")}
        prompt, output = (np.array([int(row[name]) for row in own]) for name in ("prompt", "output"))
        ttft = columns["first"] - columns["arrival"]
        tpot = (columns["finish"] - columns["first"]) / np.maximum(output - 1, 1)
        trace = Requests.of(columns["arrival"].tolist(), prompt.tolist(), output.tolist())
        found.append(Run(*run, trace, ttft, tpot, h200.observed(h200.FOLDER, "run_steps", *run)))
    return found


def off(run: Run, source: str) -> tuple[float, float, float]:
    """Mean errors of one run, as shares: in time to first token, in time a token, and of an iteration."""
    fleet = parse(f"1x{GPU}:{run.model}", block=PAGE, cost=source)
    most, seats, pages = (h200.LIMITS[name] for name in ("max_batched_tokens", "max_seqs", "pages"))
    engine = replace(fleet.instances[0], kv_tokens=pages * PAGE, max_tokens=most, max_seqs=seats)
    fleet, cost = replace(fleet, instances=(engine,)), engine.cost
    outcome = simulate(run.requests, fleet, RoundRobin(), loop="open", record=False)
    several = run.requests.output > 1
    steps = np.array([[cost.seconds(s.b, s.context, s.chunks), s.seconds] for s in run.steps])
    return (
        _apart(outcome.ttft, run.ttft), _apart(outcome.tpot[several], run.tpot[several]),
        _apart(steps[:, 0], steps[:, 1]),
    )  # fmt: skip


def _apart(mine: Any, real: Any) -> float:
    return float(np.mean(np.abs(mine / real - 1)))


def errors() -> dict[str, trust.Trust]:
    """Of data sheets over all runs, and of each profile over those of its model: means over runs."""
    runs = held_back()
    found = {"roofline": _mean(runs, "roofline")}
    for model in sorted({run.model for run in runs}):
        own = (run for run in runs if (run.model, run.backend) == (model, BACKEND))
        found[f"{GPU}:{model}"] = _mean(own, "measured")
    return found


def _mean(runs: Iterable[Run], source: str) -> trust.Trust:
    chosen = list(runs)
    shares = np.mean([off(run, source) for run in chosen], axis=0)
    models = tuple(sorted({run.model for run in chosen}))
    ttft, tpot, step = (float(share) for share in shares)
    return trust.Trust(GPU, models, len(chosen), sum(len(run.ttft) for run in chosen), ttft, tpot, step)


if __name__ == "__main__":
    for name in sorted({run.model for run in held_back()}):
        write_whole(profiles.FOLDER / GPU / f"{name}.toml", profiles.text(fitted(name)).encode())
    profiles.profile.cache_clear()
    write_whole(trust.FILE, trust.as_toml(errors()).encode())
    print(trust.FILE.read_text())
