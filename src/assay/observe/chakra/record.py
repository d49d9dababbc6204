"""Record a real training job for Chakra: data-parallel over gloo, a process a rank, PyTorch's own two recorders on.

The model is a small stack of linear layers, trained for real on one thread a rank. Two sleeps are declared: `rest`, the
part of a step that stands for compute, because busy ranks on few cores would measure the scheduler; and a window may
ask one rank of each step to be late by so much more. Needs the extra `torch`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.observe.graphs.events import HostGraph, Profile, read_host, read_profile
from assay.sim.gloo_ranks import PATIENCE, joined
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch

IMPORTS = (__name__, "torch", "torch.nn.parallel", "torch._dynamo")  # once for all ranks, and torch takes long
AFTER = 0.03  # seconds for gloo's threads to leave the recorder before it is freed: one that has not crashes the rank


@dataclass(frozen=True, slots=True)
class Job:
    """The job: `layers` of `width` by `width`, gradients reduced in buckets of about a layer."""

    ranks: int = 2
    layers: int = 4
    width: int = 256
    batch: int = 32
    rest: float = 0.0  # seconds of a step that are slept
    steps: int = 3  # of a window, one more to warm up not counted
    seed: int = 0  # of weights and batches


@dataclass(frozen=True, slots=True)
class Late:
    """Which rank is late in each step of a window, and by how many seconds."""

    ranks: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, rank: int) -> list[float]:
        """The seconds by which a rank is late, step by step.

        >>> Late((0, 1, 0), (0.1, 0.2, 0.3)).of(0)
        [0.1, 0.0, 0.3]
        """
        return [seconds if late == rank else 0.0 for late, seconds in zip(self.ranks, self.seconds, strict=True)]


@dataclass(frozen=True)
class Window:
    """What was recorded of some steps: a profile and a host graph of each rank."""

    late: Late | None
    profiles: tuple[Profile, ...]
    hosts: tuple[HostGraph, ...]


def record(job: Job, windows: Sequence[Late | None], *, keep: Path | None = None) -> list[Window]:
    """Run the job once and record each window; `keep` is a folder for the files (`device.0.1.json`: window, rank)."""
    with scratch() as own:
        folder = keep if keep is not None else own
        with Ranks(job.ranks, _work, job, tuple(windows), str(folder), str(own), imports=IMPORTS) as ranks:
            ranks.wait(timeout=PATIENCE + 10.0 * len(windows))
        return [
            Window(
                late,
                tuple(read_profile(folder / f"device.{number}.{rank}.json") for rank in range(job.ranks)),
                tuple(read_host(folder / f"host.{number}.{rank}.json") for rank in range(job.ranks)),
            )
            for number, late in enumerate(windows)
        ]


def _work(rank: Rank, job: Job, windows: tuple[Late | None, ...], folder: str, own: str) -> int:
    with joined(rank, own):
        import torch

        torch.manual_seed(job.seed)
        step = _step(job)
        for _ in range(3):  # DDP rebuilds its buckets after the first
            step(0.0)
        for number, late in enumerate(windows):
            delays = [0.0] * job.steps if late is None else late.of(rank.index)
            rank.meet(PATIENCE)
            _record(rank.index, number, delays, Path(folder), step)
        rank.meet(PATIENCE)
    return len(windows)


def _step(job: Job) -> Any:
    import torch

    layers = [torch.nn.Linear(job.width, job.width) for _ in range(job.layers)]
    bucket = job.width**2 * 4 / 2**20  # megabytes of one layer's gradients
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=bucket)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(delay: float) -> None:
        if job.rest + delay > 0:
            time.sleep(job.rest + delay)
        optimizer.zero_grad()
        model(torch.randn(job.batch, job.width)).square().mean().backward()
        optimizer.step()

    return step


def _record(rank: int, number: int, delays: Sequence[float], folder: Path, step: Any) -> None:
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

    observer = ExecutionTraceObserver()
    observer.register_callback(str(folder / f"host.{number}.{rank}.json"))
    plan = schedule(wait=0, warmup=1, active=len(delays), repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, execution_trace_observer=observer) as profiler:
        for delay in (0.0, *delays):
            step(delay)
            profiler.step()
        time.sleep(AFTER)
    profiler.export_chrome_trace(str(folder / f"device.{number}.{rank}.json"))
