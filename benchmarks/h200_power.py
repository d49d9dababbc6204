"""Power, clocks and energy per token of decode and prefill, for four attention families, on one NVIDIA GPU.

    python3 benchmarks/h200_power.py             # measures the card as it is found: nothing is set
    python3 benchmarks/h200_power.py --tiny      # the same code in seconds on a CPU, without power
    python3 benchmarks/h200_power.py --settings  # also sweeps power caps and locked clocks: only on a GPU of your own

Needs torch alone (Triton if it is there). Each point is a steady loop of a few decoder layers with random weights in
an 8B model's shape, sampled at 50 Hz through NVML; the layers' weights are many times the L2 cache, so every step
reads HBM. Writes powercap_h200.csv (a row per point) and powercap_h200.json (the machine) to $OUT, or here.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
import token_mixers as mixers
from assay.sim import meters
from assay.sim.mixer_shapes import FAMILIES, TINY, Shape

LAYERS = 4
DECODE = (
    (32, 4096),
    (128, 4096),
    (1, 1024),
    (256, 16384),
    (256, 1024),
    (64, 65536),
    (8, 4096),
    (1, 65536),
    (32, 16384),
)
RECURRENT = ((32, 4096), (128, 4096), (1, 1024), (256, 4096), (8, 4096))  # the context does not change their work
PREFILL = ((1, 8192), (4, 8192), (1, 1024), (1, 32768), (8, 1024))
CAPS = (700, 600, 500, 400, 300, 250, 200)  # watts
CLOCKS = (1980, 1800, 1620, 1440, 1260, 1080, 900, 720)  # MHz
HELD = {name: bit for name, bit in meters.THROTTLE.items() if name not in ("gpu_idle", "sync_boost")}
NAN = float("nan")


class Bench:
    """The device, its meter and the rows so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cuda = torch.cuda.is_available() and not options.tiny
        self.device = "cuda" if self.cuda else "cpu"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.shape = Shape() if self.cuda else TINY
        self.nvml = meters.Nvml()
        self.available = self.nvml.probe() if self.cuda else meters.Availability(False, "nvml", "no GPU")
        self.fast: set[str] = set()
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.start = time.perf_counter()

    def late(self) -> bool:
        """Whether the time for this run is spent."""
        return bool(time.perf_counter() - self.start > self.options.budget)

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def steady(self, run: Callable[[], Any]) -> tuple[list[meters.Reading], int, float]:
        """Repeat `run` for the measuring time after a warm-up: (samples, passes, seconds)."""
        once = self.once(run)
        group = max(1, int(0.04 / once))
        self.loop(run, group, self.options.warm)
        if not self.available.ok:
            passes, seconds = self.loop(run, group, self.options.seconds)
            return [], passes, seconds
        with meters.Sampler(self.nvml, rate=50.0) as sampler:
            passes, seconds = self.loop(run, group, self.options.seconds)
        return sampler.readings, passes, seconds

    def once(self, run: Callable[[], Any]) -> float:
        """Seconds of one pass, roughly."""
        run()
        self.sync()
        start = time.perf_counter()
        run()
        self.sync()
        return time.perf_counter() - start

    def loop(self, run: Callable[[], Any], group: int, seconds: float) -> tuple[int, float]:
        """Keep two groups of passes queued, so that the device never waits for Python."""
        events: list[Any] = []
        start = time.perf_counter()
        passes = 0
        while time.perf_counter() - start < seconds:
            for _ in range(group):
                run()
            passes += group
            if self.cuda:
                event = torch.cuda.Event()
                event.record()
                events.append(event)
                if len(events) > 1:
                    events.pop(0).synchronize()
        self.sync()
        return passes, time.perf_counter() - start

    def captured(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """`run` as a CUDA graph where it can be one, so that launches do not starve small batches."""
        if not self.cuda:
            return run
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
        except RuntimeError as error:
            self.notes.append(f"no CUDA graph: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            return run
        return graph.replay


def summary(samples: list[meters.Reading], seconds: float) -> dict[str, Any]:
    """What the meter saw; samples under firmware throttling (heat, supply) are counted and left out of the means."""
    if len(samples) < 3:
        return {"samples": len(samples), "watts": NAN, "watts_counter": NAN, "watts_max": NAN, "sm_clock": NAN,
                "sm_clock_min": NAN, "mem_clock": NAN, "celsius": NAN, "invalid_share": NAN,
                **{f"held_{name}": NAN for name in HELD}}  # fmt: skip
    good = meters.valid(samples)
    used = good or samples
    first, last = samples[0], samples[-1]
    counter = NAN
    if first.joules is not None and last.joules is not None:
        counter = (last.joules - first.joules) / (last.t - first.t)
    watts = [r.watts for r in used if r.watts is not None]
    clocks = [r.sm_clock for r in used if r.sm_clock is not None] or [NAN]
    return {
        "samples": len(samples),
        "watts": statistics.fmean(watts),
        "watts_counter": counter,
        "watts_max": max(watts),
        "sm_clock": statistics.fmean(clocks),
        "sm_clock_min": min(clocks),
        "mem_clock": statistics.fmean([r.mem_clock for r in used if r.mem_clock is not None] or [NAN]),
        "celsius": last.celsius,
        "invalid_share": 1 - len(good) / len(samples),
        **{f"held_{n}": sum(bool(r.throttle & bit) for r in samples) / len(samples) for n, bit in HELD.items()},
    }


def add(bench: Bench, case: dict[str, Any], run: Callable[[], Any], flops: float, nbytes: float) -> None:
    """Measure one point and keep its row."""
    samples, passes, seconds = bench.steady(run)
    seen = summary(samples, seconds)
    step = seconds / passes
    row = {**case, "step": step, "passes": passes, "seconds": seconds, "flops": flops, "bytes": nbytes, **seen}
    bench.rows.append(row)
    print(
        f"{case['family']:>7} {case['phase']:<8} b={case['batch']:<4} ctx={case['context']:<6}"
        f" cap={case['cap']:<5} lock={case['lock']:<5} {step * 1e3:9.3f} ms {nbytes / step / 1e12:6.2f} TB/s"
        f" {flops / step / 1e12:7.1f} TFLOP/s {seen['watts']:6.0f} W {seen['watts_counter']:6.0f} W"
        f" {seen['sm_clock'] / 1e6:5.0f} MHz cap held {seen['held_sw_power_cap']:.2f}",
        flush=True,
    )


@contextlib.contextmanager
def prepared(bench: Bench, layers: list[mixers.Layer], phase: str, batch: int, context: int) -> Iterator[Any]:
    """The pass of one point, ready to repeat; its memory is given back afterwards."""
    size = (batch, bench.shape.d) if phase == "decode" else (batch, context, bench.shape.d)
    x = torch.empty(size, device=bench.device, dtype=bench.dtype).normal_()
    for layer in layers:
        if phase == "decode":
            layer.allocate(batch, context)

    def run() -> None:
        y = x
        for layer in layers:
            y = layer.decode(y) if phase == "decode" else layer.prefill(y)

    try:
        yield bench.captured(run)
    finally:
        for layer in layers:
            layer.cache = None
        if bench.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def point(
    bench: Bench, layers: list[mixers.Layer], phase: str, batch: int, context: int, settings: Any = ((0, 0),)
) -> None:
    """Measure one (family, phase, batch, context), under each (cap in watts, locked MHz) given; 0 is as found."""
    family = layers[0].family
    flops, nbytes = bench.shape.work(family, phase, batch, context)
    with prepared(bench, layers, phase, batch, context) as run:
        for cap, lock in settings:
            case = {"family": family, "phase": phase, "batch": batch, "context": context, "cap": cap, "lock": lock,
                    "tokens": batch if phase == "decode" else batch * context, "layers": len(layers),
                    "model_layers": bench.shape.model_layers}  # fmt: skip
            with applied(bench, cap, lock) as done:
                if done:
                    add(bench, case, run, flops * len(layers), nbytes * len(layers))


@contextlib.contextmanager
def applied(bench: Bench, cap: int, lock: int) -> Iterator[bool]:
    """Set a cap and a clock for a while, and the defaults afterwards whatever happens. (0, 0) touches nothing."""
    refused = ""
    try:
        if cap:
            refused = bench.nvml.command("nvmlDeviceSetPowerManagementLimit", cap * 1000)
        if lock and not refused:
            refused = bench.nvml.command("nvmlDeviceSetGpuLockedClocks", lock, lock)
        if refused:
            bench.notes.append(f"cap={cap} lock={lock}: {refused}")
        yield not refused
    finally:
        if lock:
            bench.nvml.command("nvmlDeviceResetGpuLockedClocks")
        if cap:
            default = bench.nvml.number("nvmlDeviceGetPowerManagementDefaultLimit")
            bench.nvml.command("nvmlDeviceSetPowerManagementLimit", default)


def limits(bench: Bench) -> None:
    """The corners of the power model: idle, HBM alone, the tensor cores on random data and on zeros."""
    n, words = (8192, 1 << 30) if bench.cuda else (64, 1 << 10)
    a, b = (torch.empty(n, n, device=bench.device, dtype=bench.dtype).normal_() for _ in range(2))
    out, zero = torch.empty_like(a), torch.zeros_like(a)
    source = torch.empty(words, device=bench.device, dtype=bench.dtype).normal_()
    target = torch.empty_like(source)
    cube = 2.0 * n**3
    moved = 2.0 * source.numel() * source.element_size()
    common = {"phase": "corner", "batch": 0, "context": 0, "cap": 0, "lock": 0, "tokens": 0, "layers": 0,
              "model_layers": 0}  # fmt: skip
    add(bench, {"family": "idle", **common}, lambda: time.sleep(0.01), 0.0, 0.0)
    add(bench, {"family": "copy", **common}, lambda: target.copy_(source), 0.0, moved)
    add(bench, {"family": "read", **common}, lambda: source.view(-1, 1024).amax(1), 0.0, moved / 2)
    add(bench, {"family": "gemm", **common}, lambda: torch.mm(a, b, out=out), cube, 6.0 * n * n)
    add(bench, {"family": "zeros", **common}, lambda: torch.mm(zero, b, out=out), cube, 6.0 * n * n)


def as_found(bench: Bench) -> None:
    """All families and phases with the card's settings as they are; a short run still has every family."""
    stacks = {family: stack(bench, family) for family in FAMILIES}
    for place in range(len(DECODE) + len(PREFILL)):
        for family, layers in stacks.items():
            decode = DECODE if family in ("gqa", "mla") else RECURRENT
            cases = [("decode", *c) for c in decode[:4]] + [("prefill", *c) for c in PREFILL]
            cases += [("decode", *c) for c in decode[4:]]
            if not bench.cuda:
                cases = [("decode", 2, 128), ("prefill", 1, 128)]
            if place >= len(cases):
                continue
            phase, batch, context = cases[place]
            if bench.late():
                bench.notes.append(f"left out for time: {family} {phase} b={batch} ctx={context}")
                continue
            try:
                point(bench, layers, phase, batch, context)
            except torch.OutOfMemoryError as error:
                bench.notes.append(f"left out: {family} {phase} b={batch} ctx={context}: {str(error)[:120]}")
        write(bench)


def sweep(bench: Bench) -> None:
    """Caps and locked clocks on one decode and one prefill point of each family."""
    settings = [(0, 0), *((0, clock) for clock in CLOCKS), *((cap, 0) for cap in CAPS)]
    for family in FAMILIES:
        layers = stack(bench, family)
        for phase, batch, context in (("decode", 32, 4096), ("decode", 128, 4096), ("prefill", 1, 8192)):
            if not bench.late():
                point(bench, layers, phase, batch, context, settings)
        del layers


def stack(bench: Bench, family: str) -> list[mixers.Layer]:
    """A few layers with weights of their own."""
    return [
        mixers.Layer(family, bench.shape, bench.device, bench.dtype, family in bench.fast, seed)
        for seed in range(LAYERS)
    ]


def check_kernels(bench: Bench) -> dict[str, float]:
    """Use a family's Triton forms only if they agree with torch here; returns by how much they differ."""
    found: dict[str, float] = {}
    if not bench.cuda or not mixers.HAVE_TRITON:
        return found
    for family in FAMILIES:
        try:
            found[family] = mixers.difference(family, bench.device, bench.shape, bench.dtype)
        except Exception as error:  # a compiler that fails must not cost the run
            bench.notes.append(f"{family}: torch forms: {type(error).__name__}: {str(error)[:200]}")
            continue
        if found[family] < 0.05:
            bench.fast.add(family)
        else:
            bench.notes.append(f"{family}: torch forms, since the Triton ones differ by {found[family]:.3g}")
    return found


def machine(bench: Bench) -> dict[str, Any]:
    """What was measured on."""
    facts: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "layers": LAYERS,
                             "dtype": str(bench.dtype), "date": time.strftime("%Y-%m-%d"),
                             "meter": [bench.available.ok, bench.available.source, bench.available.why]}  # fmt: skip
    if bench.available.ok:
        nvml = bench.nvml
        low, high = ctypes.c_uint(), ctypes.c_uint()
        nvml._lib.nvmlDeviceGetPowerManagementLimitConstraints(nvml._handle, ctypes.byref(low), ctypes.byref(high))
        facts |= {
            "gpu": nvml.text("nvmlDeviceGetName"),
            "driver": nvml.text("nvmlSystemGetDriverVersion", device=False),
            "limit": nvml.number("nvmlDeviceGetEnforcedPowerLimit") / 1e3,
            "limit_default": nvml.number("nvmlDeviceGetPowerManagementDefaultLimit") / 1e3,
            "limit_range": [low.value / 1e3, high.value / 1e3],
            "sm_clock_max": nvml.number("nvmlDeviceGetMaxClockInfo", 1) * 1e6,
            "mem_clock_max": nvml.number("nvmlDeviceGetMaxClockInfo", 2) * 1e6,
        }
    return facts


def write(bench: Bench) -> None:
    """The rows and the machine so far, so that a run that is cut short leaves what it had."""
    folder = Path(os.environ.get("OUT", "."))
    name = "powercap_sweep" if bench.options.settings else "powercap_h200"
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(bench.rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in bench.rows)
    (folder / f"{name}.json").write_text(json.dumps(bench.facts | {"notes": bench.notes}, indent=1, default=str))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, no power")
    parser.add_argument("--settings", action="store_true", help="sweep caps and clocks; a GPU of your own, root")
    parser.add_argument("--seconds", type=float, default=2.2, help="measured time of a point")
    parser.add_argument("--warm", type=float, default=0.7, help="time before it, so that clocks and sensor settle")
    parser.add_argument("--budget", type=float, default=215.0, help="start no point after this many seconds")
    options = parser.parse_args()
    if options.tiny:
        options.seconds, options.warm = 0.05, 0.01
        torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    bench = Bench(options)
    bench.facts = machine(bench) | {"shape": vars(bench.shape), "settings_changed": options.settings}
    with torch.inference_mode():
        bench.facts["triton_difference"] = check_kernels(bench)
        bench.facts["triton"] = sorted(bench.fast)
        try:
            limits(bench)
            (sweep if options.settings else as_found)(bench)
        except Exception as error:  # whatever was measured is kept
            bench.notes.append(f"stopped: {type(error).__name__}: {str(error)[:300]}")
        finally:
            write(bench)
    print(f"{len(bench.rows)} rows in {time.perf_counter() - bench.start:.0f} s")
    print("\n".join(bench.notes))


if __name__ == "__main__":
    main()
