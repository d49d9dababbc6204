"""Does streaming a layer's weights hide behind computing the layer before it? Measured on one GPU.

    python3 benchmarks/h200_overlap.py          # NVIDIA GPU
    python3 benchmarks/h200_overlap.py --tiny   # the same code on a CPU, in a second

Layer l of a group of G lives on GPU l mod G. Here all layers lie in one GPU's memory; those of the other owners are
copied, in chunks with a pause after each, at the rate of an NVLink port, into a ring of buffers from which a second
stream computes. A copy within the device reads and writes HBM once each: what a GPU of the group does when it receives
its own layers while serving its own to the others. Writes sidp_overlap.csv and .json to $OUT, or here: time of a layer
alone, of a fetch alone, of both overlapped, beside max(compute, fetch); and whether outputs are bit-identical.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

LAYERS = 16
GROUP = 4
CHUNK = 32 << 20  # bytes
RATES = (225e9, 450e9, 900e9)  # bytes/s into one GPU: half a Hopper port, a Hopper port, a Blackwell port
BATCHES = (16, 64, 256, 512, 1024, 2048, 4096)
SLOTS = (2, 4)
ROUNDS = 7
# A layer of Qwen3-32B: width, qkv columns, attention width, feed-forward width.
SHAPE = (5120, 10240, 8192, 25600)
TINY = (64, 128, 64, 128)


@dataclass
class Setup:
    """Weights of all layers as flat byte ranges, so that a layer is one copy."""

    cuda: bool
    device: str
    dtype: torch.dtype
    sizes: list[tuple[int, int]]
    pool: torch.Tensor  # [layers, elements]
    compute: Any
    copy: Any

    @property
    def elements(self) -> int:
        """Weights of one layer."""
        return self.pool.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of one layer."""
        return self.elements * self.pool.element_size()


def make(tiny: bool) -> Setup:
    """Random weights on the device that is there."""
    cuda = torch.cuda.is_available() and not tiny
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    d, qkv, attention, ffn = SHAPE if cuda else TINY
    sizes = [(d, qkv), (attention, d), (d, 2 * ffn), (ffn, d)]
    elements = sum(a * b for a, b in sizes)
    pool = torch.empty(LAYERS, elements, device=device, dtype=dtype).normal_(0.0, d**-0.5)
    streams = [torch.cuda.Stream() for _ in range(2)] if cuda else [None, None]
    return Setup(cuda, device, dtype, sizes, pool, *streams)


def layer(setup: Setup, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The matrix products of a decoder layer from one flat range of weights."""
    parts = weights.split([a * b for a, b in setup.sizes])
    qkv, back, up, down = (part.view(size) for part, size in zip(parts, setup.sizes, strict=True))
    y = x + (F.rms_norm(x, (x.shape[1],)) @ qkv)[:, : back.shape[0]] @ back
    gate, value = (F.rms_norm(y, (y.shape[1],)) @ up).chunk(2, -1)
    out: torch.Tensor = y + (F.silu(gate) * value) @ down
    return out


def resident(setup: Setup, x: torch.Tensor) -> torch.Tensor:
    """All layers with their weights at hand."""
    for index in range(LAYERS):
        x = layer(setup, setup.pool[index], x)
    return x


def fetch(setup: Setup, index: int, slot: torch.Tensor, pause: int) -> None:
    """Copy one layer in chunks, waiting `pause` cycles after each, on the current stream."""
    step = CHUNK // setup.pool.element_size()
    for start in range(0, setup.elements, step):
        slot[start : start + step].copy_(setup.pool[index, start : start + step], non_blocking=True)
        if pause:
            torch.cuda._sleep(pause)


def fetch_all(setup: Setup, layers: Iterable[int], slot: torch.Tensor, pause: int) -> None:
    """Fetch several layers one after another, computing nothing."""
    for index in layers:
        fetch(setup, index, slot, pause)


def streamed(setup: Setup, x: torch.Tensor, ring: list[torch.Tensor], pause: int, rank: int = 0) -> torch.Tensor:
    """All layers, those of other owners fetched ahead into the ring while earlier ones compute."""
    remote = [index for index in range(LAYERS) if index % GROUP != rank]
    if not setup.cuda:
        for index in range(LAYERS):
            if index in remote:
                fetch(setup, index, ring[remote.index(index) % len(ring)], 0)
                x = layer(setup, ring[remote.index(index) % len(ring)], x)
            else:
                x = layer(setup, setup.pool[index], x)
        return x
    arrived = {index: torch.cuda.Event() for index in remote}
    used = {index: torch.cuda.Event() for index in remote}
    setup.copy.wait_stream(torch.cuda.current_stream())
    setup.compute.wait_stream(torch.cuda.current_stream())
    # Queued in the order of use: a wait on an event that was not recorded yet would not wait at all.
    queued = 0
    for index in range(LAYERS):
        done = sum(other < index for other in remote)
        while queued < len(remote) and queued < done + len(ring):
            with torch.cuda.stream(setup.copy):
                if queued >= len(ring):
                    setup.copy.wait_event(used[remote[queued - len(ring)]])
                fetch(setup, remote[queued], ring[queued % len(ring)], pause)
                arrived[remote[queued]].record()
            queued += 1
        with torch.cuda.stream(setup.compute):
            if index in arrived:
                setup.compute.wait_event(arrived[index])
                x = layer(setup, ring[remote.index(index) % len(ring)], x)
                used[index].record()
            else:
                x = layer(setup, setup.pool[index], x)
    torch.cuda.current_stream().wait_stream(setup.compute)
    torch.cuda.current_stream().wait_stream(setup.copy)
    return x


def timed(setup: Setup, runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, taking turns, after a warm-up of each."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            if setup.cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if setup.cuda:
                torch.cuda.synchronize()
            if turn >= 2:
                found[name].append(time.perf_counter() - start)
    return found


def pause_for(setup: Setup, slot: torch.Tensor, rate: float) -> tuple[int, float]:
    """(cycles to wait after a chunk, bytes/s reached) so that a fetch comes in at `rate`."""
    if not setup.cuda:
        return 0, float("nan")

    def speed(pause: int) -> float:
        seconds = timed(setup, {"fetch": lambda: fetch_all(setup, range(4), slot, pause)}, 5)["fetch"]
        return 4 * setup.nbytes / statistics.median(seconds)

    low, high = 0, int(4e9 * CHUNK / rate)
    if speed(0) <= rate:
        return 0, speed(0)
    for _ in range(14):
        middle = (low + high) // 2
        low, high = (middle, high) if speed(middle) > rate else (low, middle)
    return high, speed(high)


def measure(setup: Setup, rate: float, pause: int, reached: float, batch: int, slots: int) -> dict[str, Any]:
    """One point: compute alone, fetch alone, both."""
    x = torch.empty(batch, setup.sizes[0][0], device=setup.device, dtype=setup.dtype).normal_()
    ring = [torch.empty(setup.elements, device=setup.device, dtype=setup.dtype) for _ in range(slots)]
    remote = [index for index in range(LAYERS) if index % GROUP]
    equal = bool(torch.equal(resident(setup, x), streamed(setup, x, ring, pause)))
    runs = {
        "compute": lambda: resident(setup, x),
        "fetch": lambda: fetch_all(setup, remote, ring[0], pause),
        "overlap": lambda: streamed(setup, x, ring, pause),
    }
    seconds = timed(setup, runs, ROUNDS)
    middle = {name: statistics.median(values) / LAYERS for name, values in seconds.items()}
    bound = max(middle["compute"], middle["fetch"])
    return {
        "rate": rate, "rate_reached": reached, "batch": batch, "slots": slots, "group": GROUP, "layers": LAYERS,
        "layer_bytes": setup.nbytes, **middle, "overlap_min": min(seconds["overlap"]) / LAYERS,
        "overlap_max": max(seconds["overlap"]) / LAYERS, "bound": bound, "ratio": middle["overlap"] / bound,
        "equal": equal, "rounds": ROUNDS,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU")
    parser.add_argument("--budget", type=float, default=200.0, help="start no point after this many seconds")
    options = parser.parse_args()
    if options.tiny:
        torch.set_num_threads(1)
    start = time.perf_counter()
    folder = Path(os.environ.get("OUT", "."))
    setup = make(options.tiny)
    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(),
                             "date": time.strftime("%Y-%m-%d"), "shape": SHAPE if setup.cuda else TINY}  # fmt: skip
    if setup.cuda:
        facts["gpu"] = torch.cuda.get_device_name()
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), contextlib.suppress(KeyboardInterrupt):
        slot = torch.empty(setup.elements, device=setup.device, dtype=setup.dtype)
        for rate in RATES if setup.cuda else RATES[:1]:
            pause, reached = pause_for(setup, slot, rate)
            for slots in SLOTS:
                for batch in BATCHES if setup.cuda else (4,):
                    if time.perf_counter() - start > options.budget:
                        break
                    rows.append(measure(setup, rate, pause, reached, batch, slots))
                    shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in rows[-1].items()}
                    print(" ".join(f"{k}={v}" for k, v in shown.items()), flush=True)
                    with (folder / "sidp_overlap.csv").open("w", newline="") as file:
                        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                        writer.writeheader()
                        writer.writerows(rows)
    (folder / "sidp_overlap.json").write_text(json.dumps(facts, indent=1))
    print(f"{len(rows)} rows in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
