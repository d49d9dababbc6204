"""Measure the torch engine and its operations on a GPU (`benchmarks/h200_engine.py`). Needs torch and numpy.

What it writes, into one folder:

    meta.json      machine, versions, what was checked, how long each part took
    ops.csv        one line per operation of twelve models: its seconds over its grid
    profiling.csv  seconds spent on timing each operation of each model, and whether it was new
    steps.csv      iterations for calibration: of chosen composition, and of serving runs made for this purpose
    requests.csv   held-back runs: arrival, lengths, first token and finish of every request, on the wall clock
    run_steps.csv  the iterations of those runs
"""

from __future__ import annotations

import csv
import gc
import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.serving.dooly import dim_labels, graph_pieces, op_timing, torch_kernels, torch_ops
from assay.serving.dooly.graph_pieces import PiecewiseTransformer
from assay.serving.dooly.torch_engine import GRAPH_SIZES, Engine, Outcome, Request, Step, Work, compose, lay_out, replay
from assay.serving.dooly.torch_model import CONFIGS, Shape, Transformer, shape_of

# (prompt median, spread, least, most), (output median, spread, least, most): lognormal lengths
WORKLOADS = {
    "chat": ((400, 0.8, 32, 2048), (120, 0.6, 8, 400)),
    "long-prompts": ((2500, 0.5, 512, 7000), (80, 0.5, 8, 256)),
    "long-outputs": ((180, 0.5, 32, 512), (260, 0.4, 64, 600)),
}
TRAFFIC = ((700, 1.0, 16, 5000), (100, 0.7, 4, 400))  # of the runs that calibrate
RATES = {
    "llama-3-8b": {"chat": (14.0, 160), "long-prompts": (4.5, 90), "long-outputs": (12.0, 120), "": (9.0, 45)},
    "qwen3-32b": {"chat": (4.5, 100), "long-prompts": (1.8, 50), "long-outputs": (4.0, 80), "": (3.0, 25)},
}


class Files:
    """CSV files that are complete after every row group, so that a run that dies leaves what it measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.begun: set[str] = set()

    def write(self, name: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """Append rows, with a header the first time."""
        with (self.folder / name).open("a" if name in self.begun else "w", newline="") as file:
            out = csv.writer(file)
            if name not in self.begun:
                out.writerow(columns)
                self.begun.add(name)
            out.writerows([[f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows])


def wait(device: str) -> None:
    """Let the device finish."""
    if device == "cuda":
        torch.cuda.synchronize()


def check(device: str) -> dict[str, Any]:
    """Do the fused kernels and both backends agree with plain torch on this device? Largest relative difference."""
    shape = Shape(2, 512, 8, 2, 128, 1024, 1000, qk_norm=True, window=0)
    composition = [(2, 700, ()), (0, 0, ((300, 0), (64, 200))), (3, 900, ((100, 50),))]
    logits: dict[str, list[Any]] = {}
    fused, pages = torch_kernels.available, 512
    variants = (("plain", "sdpa", False), ("sdpa", "sdpa", True), ("paged", "paged", True), ("pieces", "paged", True))
    failed = {}
    for name, backend, kernels in variants:
        torch_kernels.available = fused and kernels
        model = Transformer(shape, device, None, backend, (pages + 1) * torch_ops.PAGE, 2048, seed=1)
        generator = torch.Generator(device).manual_seed(7)
        for cache in (cache for pair in model.caches for cache in pair):
            cache.normal_(generator=generator)
        try:
            logits[name] = [_logits(model, step, pages, name) for step in composition]
        except RuntimeError as error:
            if name == "plain":
                raise
            failed[name] = str(error)[:500]
    torch_kernels.available = fused

    def apart(name: str) -> float:
        pairs = zip(logits[name], logits["plain"], strict=True)
        return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)

    return {name: apart(name) if name in logits else failed[name] for name, _, _ in variants[1:]}


def _logits(model: Transformer, step: tuple[int, int, tuple[tuple[int, int], ...]], pages: int, variant: str) -> Any:
    b, context, chunks = step
    work, known = compose(b, context, chunks, pages, model.shape.vocab)
    with torch.inference_mode():
        batch = lay_out([seq for seq, _ in work[:b]], work[b:], known, model.device)
        if variant == "pieces":
            model = PiecewiseTransformer(model, pages)
        if variant != "plain":
            return model.forward(batch).float()
        saved, torch_ops._packed = torch_ops._packed, torch_ops._each  # one sequence after another, in plain torch
        try:
            return model.forward(batch).float()
        finally:
            torch_ops._packed = saved


def profile_operations(files: Files, device: str, tiny: bool, backends: list[str], limit: float) -> dict[str, float]:
    """Time every operation of every model, also those seen before, as far as the time limit allows."""
    seen: set[dim_labels.Signature] = set()
    dtype = "bfloat16" if device == "cuda" else "float32"
    begun = time.perf_counter()
    spent = {"scratch": 0.0, "new": 0.0, "trace": 0.0, "skipped": 0.0}
    for name in CONFIGS:
        shape = shape_of(name).shrunk(64, 4) if tiny else shape_of(name)
        own: set[dim_labels.Signature] = set()
        for backend in backends:
            start = time.perf_counter()
            operations = dim_labels.operations(shape, backend, dtype)
            spent["trace"] += time.perf_counter() - start
            for op, count in operations.items():
                if op in own:
                    continue  # a model profiled from scratch does not time its own operation twice
                own.add(op)
                if op in seen and time.perf_counter() - begun > limit:
                    spent["skipped"] += 1
                    continue
                start = time.perf_counter()
                points = op_timing.grid(op, *((64, 128, 512) if tiny else (8192, 8192, 400_000)))
                rows, failed = [], ""
                for sizes in points:
                    try:
                        seconds = op_timing.seconds(op, sizes, device, *((0.0, 3) if tiny else (0.004, 5)))
                    except (RuntimeError, torch.OutOfMemoryError) as error:
                        failed = str(error).splitlines()[0][:100]
                        wait(device)
                        continue
                    rows.append(" ".join(f"{name}={size}" for name, size in sizes.items()) + f":{seconds:.4g}")
                took = time.perf_counter() - start
                files.write("profiling.csv", ("model", "op", "count", "new", "points", "seconds", "failed"),
                            [[name, str(op), count, int(op not in seen), len(rows), took, failed]])  # fmt: skip
                if op not in seen:
                    files.write("ops.csv", ("op", "samples"), [[str(op), ";".join(rows)]])
                    spent["new"] += took
                spent["scratch"] += took
                seen.add(op)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - begun:.1f} s", flush=True)
    return spent


def step_grid(tiny: bool) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """Compositions of single iterations: decodes, prompt chunks, both."""
    if tiny:
        return [(1, 32, ()), (4, 128, ()), (0, 0, ((32, 0),)), (2, 64, ((16, 16),))]
    decodes = [(b, b * c, ()) for b in (1, 4, 8, 16, 32, 64, 128, 256) for c in (128, 1024, 4096) if b * c <= 200_000]
    decodes += [(b, b * 500, ()) for b in (2, 24, 48, 80, 96, 112, 160, 192, 224)]
    chunks = [(0, 0, ((c, pre),)) for c in (32, 128, 256, 512, 1024, 2048) for pre in (0, 1024, 4096)]
    several = [(0, 0, ((512, 0),) * 4), (0, 0, ((128, 0),) * 4), (0, 0, ((256, 0), (256, 512)))]
    mixed = [(b, b * 600, ((c, 0),)) for b in (4, 16, 64) for c in (60, 190, 370, 700, 1500)]
    return [*decodes, *chunks, *several, *mixed]


def lengths(rng: np.random.Generator, count: int, spec: tuple[float, float, int, int]) -> list[int]:
    """Lognormal lengths: median, spread, least, most."""
    middle, spread, least, most = spec
    return [int(x) for x in np.clip(rng.lognormal(np.log(middle), spread, count), least, most)]


def requests_of(workload: str, rate: float, count: int, seed: int, shrink: int = 1) -> list[Request]:
    """Requests of a workload that arrive at random, at a rate."""
    rng = np.random.default_rng(seed)
    prompts, outputs = (lengths(rng, count, spec) for spec in WORKLOADS.get(workload, TRAFFIC))
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return [
        Request(float(a), max(2, p // shrink), max(2, o // shrink))
        for a, p, o in zip(arrivals, prompts, outputs, strict=True)
    ]


def chunk_text(chunks: Iterable[tuple[int, int]]) -> str:
    """Chunks and what was before them, as one field of a CSV file."""
    return ";".join(f"{c}+{pre}" for c, pre in chunks)


class WaitingEngine(Engine):
    """An engine whose iteration ends when the GPU is done, also where no token comes out of it.

    A chunk in the middle of a prompt has no result to fetch: its time would be charged to the next iteration, and the
    plan of that one made before requests arrived that it could have taken.
    """

    def execute(self, work: list[Work]) -> float:
        """Compute the plan's tokens and wait for them."""
        launched = super().execute(work)
        wait(self.device)
        return launched


def write_run(files: Files, model: str, backend: str, workload: str, outcome: Outcome) -> None:
    """A serving run: its requests and its iterations."""
    files.write(
        "requests.csv",
        ("model", "backend", "workload", "arrival", "prompt", "output", "first", "finish"),
        [
            [model, backend, workload, r.arrival, r.prompt, r.output, float(first), float(finish)]
            for r, first, finish in zip(outcome.requests, outcome.first, outcome.finish, strict=True)
        ],
    )
    # One iteration in eight says as much about the cost of an iteration as all of them.
    files.write(
        "run_steps.csv",
        ("model", "backend", "workload", "start", "b", "context", "chunks", "seconds", "launch"),
        [
            [model, backend, workload, s.start, s.b, s.context, chunk_text(s.chunks), s.seconds, s.launch]
            for s in outcome.steps[::8]
        ],
    )


def pin() -> int:
    """Keep this thread on the core that is fastest now: others' work and moving about make launching erratic."""
    if not hasattr(os, "sched_setaffinity"):
        return -1

    def speed(core: int) -> float:
        os.sched_setaffinity(0, {core})
        start = time.perf_counter()
        sum(i * i for i in range(200_000))
        return time.perf_counter() - start

    best = min(os.sched_getaffinity(0), key=lambda core: min(speed(core) for _ in range(2)))
    os.sched_setaffinity(0, {best})
    return best


def warm_up(engine: Engine) -> None:
    """Record every graph and compile every kernel: in a run that would be a pause of half a second."""
    if engine.use_graphs:
        for size in reversed(GRAPH_SIZES):
            engine.measure(size, size * 32, repeat=1, warm=0)
    if isinstance(engine.model, PiecewiseTransformer):
        for size in reversed(graph_pieces.SIZES):
            if size <= engine.limits["max_batched_tokens"]:
                engine.measure(0, 0, [(size, 0)], repeat=1, warm=1)
    for b in (1, 2, 4, 8, 16, 32, 64, 128):  # into how many stretches contexts are cut depends on b, and
        for pages in (1, 8, 16):  # Triton compiles apart for 1 page, multiples of 16 and the rest
            engine.measure(b, b * pages * torch_ops.PAGE, [(16, 0)], repeat=1, warm=0)


def intervals(steps: tuple[Step, ...]) -> list[tuple[Step, float]]:
    """Iterations with the time until the next one began: planning and bookkeeping are part of what a token waits for.

    Where the engine then had nothing to do, it is the iteration's own time.
    """
    ends = [*(later.start for later in steps[1:]), float("inf")]
    found = []
    for step, end in zip(steps, ends, strict=True):
        whole = end - step.start
        found.append((step, whole if whole < step.seconds + 1e-3 else step.seconds))
    return found


def calibrate(files: Files, engine: Engine, model: str, tiny: bool, seed: int) -> None:
    """Iterations of a serving run that only calibrates: lengths differ, prompts mix, shapes are new."""
    rate, count = (200.0, 4) if tiny else RATES[model][""]
    engine.run(requests_of("", 50.0, 4, seed=seed + 50, shrink=64 if tiny else 1))
    gc.collect()
    gc.disable()
    outcome = engine.run(requests_of("", rate, count, seed=seed, shrink=64 if tiny else 1))
    gc.enable()
    chosen = [(s, t) for i, (s, t) in enumerate(intervals(outcome.steps)) if s.chunks or i % 6 == 0]
    write_steps(files, model, engine.model.backend, chosen, "traffic")


def write_steps(files: Files, model: str, backend: str, steps: list[tuple[Step, float]], source: str) -> None:
    """Iterations for calibration."""
    files.write(
        "steps.csv",
        ("model", "backend", "b", "context", "chunks", "seconds", "launch", "source"),
        [[model, backend, s.b, s.context, chunk_text(s.chunks), t, s.launch, source] for s, t in steps],
    )


def from_own_times(outcome: Outcome, engine: Engine) -> float:
    """Largest difference, in seconds, between a run and its simulation with the times its iterations really took."""
    times = iter([seconds for _, seconds in intervals(outcome.steps)])
    again = replay(outcome.requests, lambda **_: next(times, 0.0), **engine.limits)
    return float(np.abs(again.finish - outcome.finish).max())


def run_engine(
    files: Files, model: str, backend: str, device: str, tiny: bool, workloads: list[str], pieces: bool
) -> dict[str, Any]:
    """Calibration of one model, then the held-back runs, then calibration again."""
    begun = time.perf_counter()
    shape = shape_of(model).shrunk(64, 2) if tiny else shape_of(model)
    room = 4096 if tiny else min(400_000, int(45e9 / (shape.kv_values() * 2)) // 16 * 16)
    engine = WaitingEngine(
        shape, device, backend=backend, kv_tokens=room, max_batched_tokens=64 if tiny else 2048,
        max_seqs=256, max_context=512 if tiny else 8192,
    )  # fmt: skip
    if pieces:
        engine.model = PiecewiseTransformer(engine.model, engine.limits["pages"])
    wait(device)
    facts = {"build": time.perf_counter() - begun, "kv_tokens": room, "layers": shape.layers, "pieces": pieces}
    if not tiny:
        warm_up(engine)
        facts["warm"] = time.perf_counter() - begun
    for b, context, chunks in step_grid(tiny):
        steps = engine.measure(b, context, chunks, repeat=5 if not tiny else 2)
        middle = sorted(steps, key=lambda s: s.seconds)[len(steps) // 2]
        write_steps(files, model, backend, [(middle, middle.seconds)], "grid")
    calibrate(files, engine, model, tiny, seed=7)
    facts["grid"] = time.perf_counter() - begun
    for number, workload in enumerate(workloads):
        rate, count = RATES[model][workload]
        requests = requests_of(workload, *((200.0, 6) if tiny else (rate, count)), seed=200 + number,
                               shrink=64 if tiny else 1)  # fmt: skip
        if not tiny:  # shapes the allocator and cuBLAS have not met yet
            engine.run([Request(r.arrival, r.prompt, 16) for r in requests_of(workload, 50.0, 8, seed=9)])
        gc.collect()
        gc.disable()
        outcome = engine.run(requests)
        gc.enable()
        write_run(files, model, backend, workload, outcome)
        facts[f"{workload} from its own times"] = from_own_times(outcome, engine)
        facts[workload] = time.perf_counter() - begun
        print(f"{model} {backend} {workload}: {time.perf_counter() - begun:.1f} s", flush=True)
    calibrate(files, engine, model, tiny, seed=8)
    del engine
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return facts


def measure(out: Path, tiny: bool, parts: Sequence[str], ops_seconds: float) -> dict[str, Any]:
    """Measure the parts that are asked for; what one of them raises is noted, and the others are measured."""
    device = "cpu" if tiny or not torch.cuda.is_available() else "cuda"
    torch.set_num_threads(1 if tiny else torch.get_num_threads())
    files = Files(out)
    begun = time.perf_counter()
    meta: dict[str, Any] = {
        "torch": torch.__version__, "python": platform.python_version(), "triton": torch_kernels.available,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(), "tiny": tiny,
    }  # fmt: skip

    def attempt(name: str, action: Any) -> None:
        try:
            meta[name] = action()
        except Exception as error:  # the rest is still worth measuring
            import traceback

            meta[name] = {"failed": str(error)[:2000], "traceback": traceback.format_exc()[-3000:]}
            print(f"{name} failed: {error}", flush=True)
        meta[f"{name}_seconds"] = time.perf_counter() - begun
        (files.folder / "meta.json").write_text(json.dumps(meta, indent=1))

    if "check" in parts:
        attempt("check", lambda: check(device))
        print("check", meta["check"], flush=True)
        worst = meta["check"].get("paged", 9.0)
        if device == "cuda" and not (isinstance(worst, float) and worst < 0.05):
            torch_kernels.available = False
            meta["triton"] = "refused: it failed or disagrees with plain torch"
    apart = meta["check"].get("pieces", 9.0) if "check" in parts else 0.0
    pieces = isinstance(apart, float) and apart < 0.05
    meta["core"] = pin() if device == "cuda" else -1
    paged = "paged" if device == "cpu" or torch_kernels.available else "sdpa"
    engine = partial(run_engine, files, device=device, tiny=tiny, pieces=pieces)
    for model in ("llama-3-8b", "qwen3-32b"):
        if model in parts:
            attempt(f"engine {model}", partial(engine, model, paged, workloads=list(WORKLOADS)))
    if "sdpa" in parts:
        attempt("engine sdpa", partial(engine, "llama-3-8b", "sdpa", workloads=["chat"]))
    if "ops" in parts:
        backends = sorted({paged, "sdpa"})
        attempt("ops", lambda: profile_operations(files, device, tiny, backends, ops_seconds))
    return meta
