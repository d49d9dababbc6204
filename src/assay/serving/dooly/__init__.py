"""Dooly: time an operation once, for every model that has it.

A simulator of LLM serving needs to know how long each operation takes on the GPU, and it is usually told by profiling
every model anew. But models are built from few sizes: Llama-3-8B, Qwen3-8B, Mistral and Mixtral all multiply
[tokens, 4096] by [4096, 6144]. Dooly runs one pass in which integers and tensors carry labels that say where each size
comes from, the model's configuration or the request. An operation's signature keeps the former as numbers and the
latter as symbols; only signatures that the latency database does not hold are timed, over the symbols' range. Attention
needs a KV cache to exist, so it is timed through the engine's own initialisation. Regressions over the request's sizes
then predict any iteration of any model, and an iteration's time drives a simulator.

The study does this for twelve models. Sharing operations between them must save time, and the predicted times must be
right: the engine here really serves requests, on this machine with shrunk models and, from stored measurements, on an
H200 with the full ones, and the same requests are simulated with the predicted step times.

What Dooly saves is time of profiling, not error: predictions are calibrated on a few runs, and with the same
calibration the nearest profiled model, or a coarse grid of whole steps, errs as little. The study asks that, too.

"Dooly: Configuration-Agnostic, Redundancy-Aware Profiling for LLM Inference Simulation", arXiv:2605.07985 (UT Austin).

>>> from assay.sim.profile_db import ProfileDB
>>> timed, db = [], ProfileDB()
>>> def clock(signature):
...     timed.append(signature)
...     return [({"T": 1}, 1e-6), ({"T": 100}, 2e-6)]
>>> profile_new(db, {"mm(T×4096, 4096×6144)": 32, "silu_mul(T×28672)": 32}, "gpu", clock)  # Llama-3-8B
2
>>> profile_new(db, {"mm(T×4096, 4096×6144)": 36, "silu_mul(T×24576)": 36}, "gpu", clock)  # Qwen3-8B
1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.serving.dooly import h200 as dooly_h200
from assay.serving.dooly.replayed import errors
from assay.sim.cost_fit import Observed, add_overheads
from assay.sim.llm_cost import StepCost
from assay.sim.profile_db import ProfileDB, step_cost
from assay.sim.random import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.serving.dooly.dim_labels import Signature
    from assay.serving.dooly.torch_engine import Engine, Request
    from assay.serving.dooly.torch_model import Shape

evidence = Evidence.REAL  # operations and serving runs are timed on this machine; the H200's rows say so themselves
use_when = (
    "Many models, layouts or attention backends must be simulated on one kind of GPU and profiling each would take "
    "hours: families share sizes, and a new model brings few new operations."
)
avoid_when = (
    "One model on one GPU is all there is, operations overlap or are fused across boundaries a trace cannot see "
    "(compiled graphs), or the engine's own overheads dominate the iteration."
)
needs = ("torch",)
own_input = "assay compare dooly --config examples/config.json --trace examples/azure.csv"
references = (
    "Profiling per model, the baseline: Agrawal et al., Vidur, MLSys 2024, arXiv:2405.05465.",
    "The engine's iteration plan: Kwon et al., PagedAttention, SOSP 2023; Agrawal et al., Sarathi-Serve, OSDI 2024.",
)

MACHINE = "this cpu"
DTYPE = "float32"
COLUMNS = ("experiment", "substrate", "model", "backend", "workload", "method", "seed", "seconds", "operations",
           "ttft_error", "ttft_run_error", "tpot_error", "step_error")  # fmt: skip
Samples = Iterable[tuple[Mapping[str, int], float]]


def profile_new(db: ProfileDB, operations: Mapping[Any, int], machine: str, clock: Callable[[Any], Samples]) -> int:
    """Time what the database does not hold of a model's operations; returns how many that were."""
    new = [op for op in operations if not db.has(str(op), machine)]
    for op in new:
        for dims, seconds in clock(op):
            db.put(str(op).partition("(")[0], str(op), machine, dims, seconds)
    return len(new)


def cost_model(config: Mapping[str, Any], db: ProfileDB, machine: str = MACHINE, **options: Any) -> StepCost:
    """The step time of a model given by its `config.json` fields; operations that are new to `db` are timed on the CPU.

    A user's own model: `cost_model(json.load(open("config.json")), ProfileDB("mine.sqlite"))`.
    """
    from assay.serving.dooly.dim_labels import operations
    from assay.serving.dooly.torch_model import Shape

    shape = Shape.from_hf(config)
    found = operations(shape, options.pop("backend", "sdpa"), DTYPE)
    profile_new(db, found, machine, lambda op: clock(op, (64, 512, 2048)))
    db.save()
    return step_cost(db, _named(found), machine, window=shape.window or np.inf, **options)


def measure_gpu(out: Path, tiny: bool, parts: Sequence[str], ops_seconds: float) -> dict[str, Any]:
    """Run the torch engine and time its operations on the GPU at hand; CSV files go to the folder `out`.

    `parts` of "check", "ops", "llama-3-8b", "qwen3-32b" and "sdpa". `tiny` shrinks the models, for a CPU.
    """
    from assay.serving.dooly import gpu_run

    return gpu_run.measure(out, tiny, parts, ops_seconds)


def _named(operations: Mapping[Any, int]) -> dict[str, int]:
    return {str(op): count for op, count in operations.items()}


def clock(op: Signature, reach: tuple[int, int, int], budget: float = 0.0, rounds: int = 3) -> Samples:
    """Time an operation on the CPU over its grid, up to `reach` = (tokens, context, tokens of all contexts)."""
    from assay.serving.dooly import op_timing

    return op_timing.profile(op, "cpu", op_timing.grid(op, *reach), budget=budget, rounds=rounds)


@lru_cache(maxsize=64)
def _traced(name: str, factor: int, layers: int, backend: str) -> tuple[dict[Signature, int], float]:
    """A shrunk model's operations, and the seconds it took to trace them."""
    from assay.serving.dooly.dim_labels import operations
    from assay.serving.dooly.torch_model import shape_of

    start = time.thread_time()
    found = operations(shape_of(name).shrunk(factor, layers), backend, DTYPE)
    return found, time.thread_time() - start


# ---------------------------------------------------------------------------------------- time saved


def profiling(factor: int, reach: tuple[int, int, int], seed: int) -> dict[str, dict[str, float]]:
    """Profile twelve models one after the other, each from scratch, and with the database; the two take turns.

    From scratch means what a profiler without the database does: each of a model's own operations once, for both
    attention backends. `seconds` is what the device is busy for; tracing needs no device and is given beside it.
    """
    import torch

    from assay.serving.dooly.torch_model import CONFIGS

    torch.set_num_threads(1)
    shared = ProfileDB()
    found = {method: {"seconds": 0.0, "operations": 0.0, "tracing": 0.0} for method in ("scratch", "dooly")}

    def timer(op: Any) -> Samples:
        return clock(op, reach, rounds=1)

    for turn, name in enumerate(CONFIGS):
        databases = [("scratch", ProfileDB()), ("dooly", shared)]
        for method, db in databases if (turn + seed) % 2 else databases[::-1]:
            for backend in ("sdpa", "paged"):
                operations, tracing = _traced(name, factor, 2, backend)
                start = time.thread_time()
                found[method]["operations"] += profile_new(db, operations, MACHINE, timer)
                found[method]["seconds"] += time.thread_time() - start
                found[method]["tracing"] += tracing if method == "dooly" else 0.0
    return found


# ------------------------------------------------------------------------------------- times predicted


def arrivals(seed: int, count: int, rate: float, prompt: int, output: int) -> list[Request]:
    """Poisson arrivals with lognormal lengths around `prompt` and `output`."""
    from assay.serving.dooly.torch_engine import Request

    random = stream(seed, "dooly", "requests", prompt, output)
    times = np.cumsum(random.exponential(1 / rate, count))
    lengths = [np.clip(random.lognormal(np.log(middle), 0.5, count), 4, 4 * middle) for middle in (prompt, output)]
    return [Request(float(t), int(p), int(o)) for t, p, o in zip(times, *lengths, strict=True)]


def calibration(engine: Engine) -> list[Observed]:
    """Single iterations of a few compositions, for the overheads that no operation explains."""
    shapes: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [
        (1, 64, ()), (4, 400, ()), (8, 1200, ()), (0, 0, ((24, 0),)), (0, 0, ((64, 64),)), (6, 500, ((40, 0),)),
        (3, 200, ((16, 32), (24, 0))),
    ]  # fmt: skip
    seen = []
    for b, context, chunks in shapes:
        times = sorted(step.seconds for step in engine.measure(b, context, chunks, repeat=3, warm=1))
        seen.append(Observed(b, context, chunks, times[len(times) // 2]))
    return seen


def serving(model: str, neighbour: str, backend: str, factor: int, layers: int, count: int, again: bool,
            seed: int) -> dict[str, dict[str, float]]:  # fmt: skip
    """Serve requests on this CPU, and simulate them with step times predicted in several ways.

    `again` also profiles the model from scratch: what that costs is the other experiment's question, and what it
    predicts is the same up to noise.
    """
    import torch

    from assay.serving.dooly.torch_engine import Engine, WorkClock
    from assay.serving.dooly.torch_model import shape_of

    torch.set_num_threads(1)
    shape, other = (shape_of(name).shrunk(factor, layers) for name in (model, neighbour))
    ratio = shape.parameters / other.parameters
    engine = Engine(shape, backend=backend, kv_tokens=8192, max_batched_tokens=96, max_seqs=32, max_context=512)

    def timer(op: Any) -> Samples:
        return clock(op, (64, 256, 1024), rounds=2)

    db, own = ProfileDB(), ProfileDB()
    found, near = _traced(model, factor, layers, backend)[0], _traced(neighbour, factor, layers, backend)[0]
    profile_new(db, near, MACHINE, timer)
    profile_new(db, found, MACHINE, timer)
    if again:
        profile_new(own, found, MACHINE, timer)
    seen = calibration(engine)
    step = float(np.median([s.seconds for s in seen]))
    engine.run(arrivals(seed, 3, 1e3, 40, 6), WorkClock())  # warm
    measured = engine.run(arrivals(seed, count, 0.35 / step / 8, 40, 16), WorkClock())
    seen += calibration(engine)  # before and after: the machine's speed drifts
    bare = {
        "dooly": step_cost(db, _named(found), MACHINE, max_tokens=512),
        "nearest": step_cost(db, _named(near), MACHINE, max_tokens=512).scaled(ratio),
        "fitted roofline": roofline_of(shape),
    }
    if again:
        bare["re-profiled"] = step_cost(own, _named(found), MACHINE, max_tokens=512)
    costs = {name: add_overheads(cost, seen, scaled=True) for name, cost in bare.items()}
    costs["roofline"] = bare["fitted roofline"]
    return {name: errors(measured, cost, engine.limits) for name, cost in costs.items()}


def roofline_of(shape: Shape) -> StepCost:
    """The roofline baseline, with this machine's own peaks instead of a data sheet's."""
    import dataclasses

    import torch

    from assay.sim.hardware import device
    from assay.sim.models import Model
    from assay.sim.roofline import roofline

    def best(action: Callable[[], Any]) -> float:
        times = []
        for _ in range(4):
            start = time.thread_time()
            action()
            times.append(time.thread_time() - start)
        return min(times)

    with torch.inference_mode():
        square, long = torch.ones(512, 512), torch.ones(4_000_000)
        flops = 2 * 512**3 / best(lambda: square @ square)
        bandwidth = 2 * long.nbytes / best(lambda: long.clone())
        small = torch.ones(1)
        launch = best(lambda: small + small)
    here = dataclasses.replace(
        device("cpu"), peak_flops={"fp32": flops, "bf16": flops}, mem_bw=bandwidth, launch=launch
    )
    return roofline(
        Model.from_hf(shape.to_hf(), "shrunk"), here, dtype="fp32", max_tokens=512, compute=1.0, bandwidth=1.0
    )


# ------------------------------------------------------------------------------------------- the study


def experiment(experiment: str, seed: int, **case: Any) -> dict[str, dict[str, float]]:
    """One of the two, by name: in one go, so that a worker loads torch once."""
    return profiling(**case, seed=seed) if experiment == "profiling" else serving(**case, seed=seed)


def study(lab: Lab) -> Tables:
    """Profiling of twelve models with and without the database; then predicted against measured serving."""
    saved = {"experiment": "profiling", "factor": lab.pick(quick=64, full=16),
             "reach": lab.pick(quick=(8, 64, 64), full=(128, 512, 8192))}  # fmt: skip
    served = [
        {"experiment": "serving", "model": model, "neighbour": near, "backend": backend,
         "factor": lab.pick(quick=32, full=16), "layers": lab.pick(quick=2, full=4),
         "count": lab.pick(quick=8, full=120), "again": lab.pick(quick=False, full=True)}
        for model, near, backend in (("llama-3-8b", "qwen3-8b", "paged"), ("qwen3-1.7b", "qwen3-0.6b", "sdpa"))
    ]  # fmt: skip
    few = lab.with_seeds(quick=len(lab.seeds), full=3)  # what seeds change is small beside what models do
    here = few.run(experiment, [saved, *served[: lab.pick(quick=1, full=2)]], per="method", alone=True)
    chat = pl.when(pl.col("experiment") == "serving").then(pl.lit("chat"))
    here = here.with_columns(substrate=pl.lit("cpu"), workload=chat)
    lab.cases.update(("substrate", "workload"))
    tables = {"here": here, "h200": dooly_h200.rows()}
    return {
        name: table.select(c for c in COLUMNS if c in table.columns)
        for name, table in tables.items()
        if table is not None
    }


def stored_runs() -> pl.DataFrame | None:
    """What was measured on an H200 beside every way to predict it; None where nothing is stored."""
    return dooly_h200.rows()


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """Seconds of profiling, and the errors of simulated times."""
    import altair as alt

    best = "h200" if "h200" in table["substrate"].to_list() else "cpu"
    chosen = table.filter(pl.col("substrate") == best)
    seconds = chosen.filter(pl.col("experiment") == "profiling").group_by("method").agg(pl.col("seconds").mean())
    left = alt.Chart(seconds).mark_bar().encode(
        x=alt.X("method:N", title=None, sort="-y", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("seconds:Q", title="seconds of profiling"), color=alt.Color("method:N", legend=None),
    ).properties(width=160, height=300, title="Twelve models")  # fmt: skip
    long = chosen.filter(pl.col("experiment") == "serving").unpivot(
        ["ttft_error", "tpot_error"], index=["method"], variable_name="quantity", value_name="error"
    ).with_columns(
        pl.col("quantity").replace({"ttft_error": "time to first token", "tpot_error": "time per output token"})
    ).group_by("method", "quantity").agg(pl.col("error").mean()).sort("method", "quantity")  # fmt: skip
    right = alt.Chart(long).mark_bar().encode(
        x=alt.X("method:N", title=None, axis=alt.Axis(labelAngle=0)), xOffset="quantity:N",
        y=alt.Y("error:Q", title="mean error", axis=alt.Axis(format="%")), color=alt.Color("quantity:N", title=None),
    ).properties(width=360, height=300, title=f"Simulated against measured requests ({best})")  # fmt: skip
    chart: alt.HConcatChart = alt.hconcat(left, right).resolve_scale(color="independent")
    return chart


# ------------------------------------------------------------------------------------------ the claims


def _substrate(table: pl.DataFrame) -> str:
    """The stored GPU measurements where they are at hand: the claims are about GPUs."""
    return "h200" if "h200" in table["substrate"].to_list() else "cpu"


def time_saved(table: pl.DataFrame) -> Estimate:
    """The change in time spent on profiling."""
    where = {"experiment": "profiling", "substrate": _substrate(table)}
    return measures.change("seconds", {"method": "dooly"}, {"method": "scratch"}, **where)(table)


def error(column: str) -> measures.Measure:
    """A mean error over all runs of the substrate, with its interval over runs."""

    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "serving", "substrate": _substrate(table), "method": "dooly"}
        found = measures.rows(table, where)[column].to_list()
        if any(value is None for value in found):
            raise NotMeasured(f"'{column}' is missing in a run")
        return intervals.bootstrap(found)

    return measure


def beside(column: str, rival: str) -> measures.Measure:
    """Dooly's error over a rival's that saw the same calibration, over the same runs."""

    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "serving", "substrate": _substrate(table)}
        return measures.ratio(column, of={"method": "dooly"}, to={"method": rival}, **where)(table)

    return measure


_HOW = Evidence.REPLAY if dooly_h200.available() else Evidence.REAL

claims = [
    Claim("gpu-hours", time_saved, evidence=_HOW),
    Claim("ttft-error", error("ttft_error"), evidence=_HOW),
    Claim("tpot-error", error("tpot_error"), evidence=_HOW),
    Claim(
        "ttft-nearest",
        beside("ttft_error", "nearest"),
        evidence=_HOW,
        asks="Dooly's error in time to first token is smaller than that of the nearest profiled model's times, equally "
        "calibrated.",
        kind=Kind.RATIO,
        toward="down",
    ),
    Claim(
        "tpot-nearest",
        beside("tpot_error", "nearest"),
        evidence=_HOW,
        asks="Dooly's error in time per output token is smaller than that of the nearest profiled model's times, "
        "equally calibrated.",
        kind=Kind.RATIO,
        toward="down",
    ),
    Claim(
        "ttft-roofline",
        beside("ttft_error", "roofline"),
        evidence=_HOW,
        asks="Dooly's error in time to first token is smaller than that of a roofline that saw no calibration.",
        kind=Kind.RATIO,
        toward="down",
    ),
]
