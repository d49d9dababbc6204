"""Measure the torch engine and its operations on a GPU: python benchmarks/h200_engine.py [--tiny] [--out DIR].

Needs torch, numpy and this repository's `src` on PYTHONPATH, nothing else. Writes to $OUT (or --out):

    meta.json      machine, versions, what was checked, how long each part took
    ops.csv        one line per operation of twelve models: its seconds over its grid
    profiling.csv  seconds spent on timing each operation of each model, and whether it was new
    steps.csv      iterations of chosen composition, for calibration
    requests.csv   held-back runs: arrival, lengths, first token and finish of every request, on the wall clock
    run_steps.csv  the iterations of those runs

`--tiny` does the same on a CPU with shrunk models in seconds, which is how this script is tested.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import platform
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.serving import dim_labels, op_timing, torch_kernels, torch_ops
from assay.serving.torch_engine import Engine, Outcome, Request, compose, lay_out
from assay.serving.torch_model import CONFIGS, Shape, Transformer, shape_of

# (prompt median, spread, least, most), (output median, spread, least, most): lognormal lengths
WORKLOADS = {
    "chat": ((400, 0.8, 32, 2048), (120, 0.6, 8, 400)),
    "long-prompts": ((2500, 0.5, 512, 7000), (80, 0.5, 8, 256)),
    "long-outputs": ((180, 0.5, 32, 512), (260, 0.4, 64, 600)),
}
RATES = {
    "llama-3-8b": {"chat": (14.0, 200), "long-prompts": (4.5, 120), "long-outputs": (12.0, 150)},
    "qwen3-32b": {"chat": (4.5, 130), "long-prompts": (1.3, 60), "long-outputs": (4.0, 100)},
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
    if device == "cuda":
        torch.cuda.synchronize()


def check(device: str) -> dict[str, Any]:
    """Do the fused kernels and both backends agree with plain torch on this device? Largest relative difference."""
    shape = Shape(2, 512, 8, 2, 128, 1024, 1000, qk_norm=True, window=0)
    composition = [(2, 700, ()), (0, 0, ((300, 0), (64, 200))), (3, 900, ((100, 50),))]
    logits: dict[str, list[Any]] = {}
    fused = torch_kernels.available
    for name, backend, kernels in (("plain", "sdpa", False), ("sdpa", "sdpa", True), ("paged", "paged", True)):
        torch_kernels.available = fused and kernels
        model = Transformer(shape, device, None, backend, 8192, 2048, seed=1)
        generator = torch.Generator(device).manual_seed(7)
        for cache in (cache for pair in model.caches for cache in pair):
            cache.normal_(generator=generator)
        logits[name] = []
        with torch.inference_mode():
            for b, context, chunks in composition:
                work, known = compose(b, context, chunks, 512, shape.vocab)
                batch = lay_out([seq for seq, _ in work[:b]], work[b:], known, device)
                if name == "plain":  # one sequence after another, in plain torch
                    saved, torch_ops._packed = torch_ops._packed, torch_ops._each
                    logits[name].append(model.forward(batch).float())
                    torch_ops._packed = saved
                else:
                    logits[name].append(model.forward(batch).float())
    torch_kernels.available = fused

    def apart(name: str) -> float:
        pairs = zip(logits[name], logits["plain"], strict=True)
        return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)

    return {"sdpa": apart("sdpa"), "paged": apart("paged")}


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
    chunks = [(0, 0, ((c, pre),)) for c in (32, 128, 256, 512, 1024, 2048) for pre in (0, 1024, 4096)]
    several = [(0, 0, ((512, 0),) * 4), (0, 0, ((128, 0),) * 4), (0, 0, ((256, 0), (256, 512)))]
    mixed = [(b, b * 600, ((c, 0),)) for b in (4, 16, 64) for c in (64, 256, 512, 1500)]
    return [*decodes, *chunks, *several, *mixed]


def lengths(rng: np.random.Generator, count: int, spec: tuple[float, float, int, int]) -> list[int]:
    middle, spread, least, most = spec
    return [int(x) for x in np.clip(rng.lognormal(np.log(middle), spread, count), least, most)]


def requests_of(workload: str, rate: float, count: int, seed: int, shrink: int = 1) -> list[Request]:
    rng = np.random.default_rng(seed)
    prompts, outputs = (lengths(rng, count, spec) for spec in WORKLOADS[workload])
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return [
        Request(float(a), max(2, p // shrink), max(2, o // shrink))
        for a, p, o in zip(arrivals, prompts, outputs, strict=True)
    ]


def chunk_text(chunks: Iterable[tuple[int, int]]) -> str:
    return ";".join(f"{c}+{pre}" for c, pre in chunks)


def write_run(files: Files, model: str, backend: str, workload: str, outcome: Outcome) -> None:
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


def run_engine(files: Files, model: str, backend: str, device: str, tiny: bool, workloads: list[str]) -> dict[str, Any]:
    """Calibration steps of one model, then the held-back runs."""
    begun = time.perf_counter()
    shape = shape_of(model).shrunk(64, 2) if tiny else shape_of(model)
    dtype_bytes = 4 if tiny else 2
    room = 4096 if tiny else min(400_000, int(45e9 / (shape.kv_values() * dtype_bytes)) // 16 * 16)
    engine = Engine(
        shape, device, backend=backend, kv_tokens=room, max_batched_tokens=64 if tiny else 2048,
        max_seqs=256, max_context=512 if tiny else 8192,
    )  # fmt: skip
    wait(device)
    facts = {"build": time.perf_counter() - begun, "kv_tokens": room, "layers": shape.layers}
    if engine.use_graphs:
        for size in (256, 128, 64, 32, 16, 8, 4, 2, 1):  # recording is not serving: do it before
            engine.measure(size, size * 32, repeat=1, warm=0)
        for size in (224, 192, 160, 112, 96, 80, 48, 24):
            engine.measure(size, size * 32, repeat=1, warm=0)
    engine.measure(2, 64, [(48, 0)], repeat=1, warm=2)
    for b, context, chunks in step_grid(tiny):
        steps = engine.measure(b, context, chunks, repeat=7 if not tiny else 2)
        middle = sorted(steps, key=lambda s: s.seconds)[len(steps) // 2]
        files.write(
            "steps.csv",
            ("model", "backend", "b", "context", "chunks", "seconds", "launch"),
            [[model, backend, b, context, chunk_text(chunks), middle.seconds, middle.launch]],
        )
    facts["grid"] = time.perf_counter() - begun
    for number, workload in enumerate(workloads):
        rate, count = RATES[model][workload]
        requests = requests_of(workload, *((200.0, 6) if tiny else (rate, count)), seed=100 + number,
                               shrink=64 if tiny else 1)  # fmt: skip
        if not tiny:  # shapes the allocator and cuBLAS have not met yet
            engine.run([Request(r.arrival, r.prompt, 16) for r in requests_of(workload, 50.0, 8, seed=9)])
        gc.collect()
        gc.disable()
        write_run(files, model, backend, workload, engine.run(requests))
        gc.enable()
        facts[workload] = time.perf_counter() - begun
        print(f"{model} {backend} {workload}: {time.perf_counter() - begun:.1f} s", flush=True)
    del engine
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return facts


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tiny", action="store_true", help="shrunk models on the CPU")
    options.add_argument("--out", default=os.environ.get("OUT", "h200_engine_out"))
    options.add_argument("--parts", default="check,ops,llama-3-8b,qwen3-32b,sdpa")
    options.add_argument("--ops-seconds", type=float, default=150.0, help="stop timing duplicates after this long")
    chosen = options.parse_args()
    device = "cpu" if chosen.tiny or not torch.cuda.is_available() else "cuda"
    torch.set_num_threads(1 if chosen.tiny else torch.get_num_threads())
    files = Files(Path(chosen.out))
    begun = time.perf_counter()
    meta: dict[str, Any] = {
        "torch": torch.__version__, "python": platform.python_version(), "triton": torch_kernels.available,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(), "tiny": chosen.tiny,
    }  # fmt: skip
    parts = chosen.parts.split(",")

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
        if device == "cuda" and not worst < 0.05:
            torch_kernels.available = False
            meta["triton"] = "refused: it failed or disagrees with plain torch"
    paged = "paged" if device == "cpu" or torch_kernels.available else "sdpa"
    for model in ("llama-3-8b", "qwen3-32b"):
        if model in parts:
            attempt(f"engine {model}", partial(run_engine, files, model, paged, device, chosen.tiny, list(WORKLOADS)))
    if "sdpa" in parts:
        attempt("engine sdpa", lambda: run_engine(files, "llama-3-8b", "sdpa", device, chosen.tiny, ["chat"]))
    if "ops" in parts:
        backends = sorted({paged, "sdpa"})
        attempt("ops", lambda: profile_operations(files, device, chosen.tiny, backends, chosen.ops_seconds))
    print(json.dumps(meta, indent=1))


if __name__ == "__main__":
    main()
